//! Builds captures of a reliable connection with tag matching, packet by packet.

use std::time::Duration;

use efa_capture::frame::roce_frame;
use efa_capture::{Direction, Interface, RecordedFrame, Writer};
use efa_core::address::Gid;
use efa_core::wire::infiniband::{Aeth, Bth, Reth, Rvh, Tmh};
use zerocopy::IntoBytes;

/// The key of each host's memory.
pub const KEY: u32 = 0x77;

/// A packet that a host has sent.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The host that has sent it, 0 or 1.
    pub from: usize,
    /// The packet from its BTH on.
    pub bytes: Vec<u8>,
}

/// Two hosts with a connection between them.
#[derive(Clone, Debug)]
pub struct Connected {
    /// The packets in the order of time.
    pub packets: Vec<Packet>,
    next: [u32; 2],
    sent: [u32; 2],
}

impl Default for Connected {
    fn default() -> Connected {
        Connected {
            packets: Vec::new(),
            next: [0xff_fffe, 0x10],
            sent: [0; 2],
        }
    }
}

/// The number of a frame's bytes in a capture: all.
pub const WHOLE: usize = usize::MAX;

impl Connected {
    fn packet(&mut self, from: usize, opcode: u8, psn: u32, head: &[u8], payload: &[u8]) {
        let padding = payload.len().next_multiple_of(4) - payload.len();
        let bth = Bth {
            opcode,
            flags: 0x40 | (padding as u8) << 4,
            partition: 0xffff.into(),
            destination: (7 + 2 * (1 - from as u32)).into(),
            sequence: (1 << 31 | psn & 0xff_ffff).into(),
        };
        let padding = &[0; 3][..padding];
        let bytes = [bth.as_bytes(), head, payload, padding].concat();
        self.packets.push(Packet { from, bytes });
    }

    fn request(
        &mut self,
        from: usize,
        opcode: u8,
        packets: u32,
        head: &[u8],
        payload: &[u8],
    ) -> u32 {
        let psn = self.next[from];
        self.next[from] += packets;
        self.sent[from] += 1;
        self.packet(from, opcode, psn, head, payload);
        psn
    }

    fn answer(&mut self, from: usize, opcode: u8, psn: u32, syndrome: u8, payload: &[u8]) {
        let [_, messages @ ..] = self.sent[1 - from].to_be_bytes();
        let aeth = Aeth { syndrome, messages };
        self.packet(from, opcode, psn, aeth.as_bytes(), payload);
    }

    /// Adds a message with these bytes and its acknowledgement.
    pub fn send(&mut self, from: usize, payload: &[u8]) {
        let psn = self.request(from, 4, 1, &[], payload);
        self.answer(1 - from, 17, psn, 0x1f, &[]);
    }

    /// A message with a tag.
    pub fn tagged(&mut self, from: usize, operation: u8, tag: u64, rest: &[u8]) {
        let tmh = Tmh {
            operation,
            data: 0xda7a.into(),
            tag: tag.into(),
            ..Tmh::default()
        };
        self.send(from, &[tmh.as_bytes(), rest].concat());
    }

    /// Adds the request of a rendezvous, or, with another operation, its end.
    pub fn rendezvous(&mut self, from: usize, operation: u8, tag: u64, address: u64, length: u32) {
        let rvh = Rvh {
            address: address.into(),
            key: KEY.into(),
            length: length.into(),
        };
        self.tagged(from, operation, tag, rvh.as_bytes());
    }

    /// Adds a read and returns its number.
    pub fn read(&mut self, from: usize, address: u64, length: u32) -> u32 {
        let reth = Reth {
            address: address.into(),
            key: KEY.into(),
            length: length.into(),
        };
        let packets = length.div_ceil(1024).max(1);
        self.request(from, 12, packets, reth.as_bytes(), &[])
    }

    /// The data of a read, in packets of 1024 bytes.
    pub fn data(&mut self, from: usize, psn: u32, length: u32) {
        let packets = length.div_ceil(1024).max(1);
        for number in 0..packets {
            let left = (length - number * 1024).min(1024) as usize;
            let payload = vec![number as u8; left];
            let psn = psn + number;
            match (number, packets - 1 - number) {
                (0, 0) => self.answer(from, 16, psn, 0, &payload),
                (0, _) => self.answer(from, 13, psn, 0, &payload),
                (_, 0) => self.answer(from, 15, psn, 0, &payload),
                _ => self.packet(from, 14, psn, &[], &payload),
            }
        }
    }

    /// Adds the refusal of a read: the requester has no access to the memory.
    pub fn refuse(&mut self, from: usize, psn: u32) {
        self.answer(from, 17, psn, 0x62, &[]);
    }

    /// Adds a whole rendezvous with data of host 0. Returns its packets: request, read, first data,
    /// FIN.
    pub fn whole_rendezvous(&mut self, tag: u64, address: u64, length: u32) -> [usize; 4] {
        let request = self.packets.len();
        self.rendezvous(0, Tmh::RENDEZVOUS, tag, address, length);
        let read = self.packets.len();
        let psn = self.read(1, address, length);
        self.data(0, psn, length);
        let finish = self.packets.len();
        self.rendezvous(1, Tmh::FINISH, tag, address, length);
        [request, read, read + 1, finish]
    }

    /// The capture of these hosts.
    pub fn capture(&self, hosts: &[usize]) -> Vec<u8> {
        self.cut(hosts, WHOLE)
    }

    /// The capture of these hosts, with at most `most` bytes of each frame.
    pub fn cut(&self, hosts: &[usize], most: usize) -> Vec<u8> {
        captured(&[(self, hosts)], most)
    }

    /// The number of frames in a capture of these hosts.
    pub fn frames(&self, hosts: &[usize]) -> usize {
        self.packets.len() * hosts.len()
    }
}

fn gid(talk: usize, host: usize) -> Gid {
    let mut gid = [0; 16];
    (gid[0], gid[15]) = (0xfe, host as u8 + 1);
    gid[8..10].copy_from_slice(&(talk as u16).to_be_bytes());
    Gid(gid)
}

/// The capture of connections one after the other, each with the frames of some of its hosts, and
/// at most `most` bytes of each frame. Each connection has its own GIDs.
pub fn captured(talks: &[(&Connected, &[usize])], most: usize) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    let mut interfaces = Vec::new();
    for (talk, (_, hosts)) in talks.iter().enumerate() {
        for host in *hosts {
            let interface = Interface::new(
                format!("{}{talk}", ["a", "b"][*host]),
                "tm",
                gid(talk, *host),
            );
            let id = writer.add_interface(&interface).unwrap();
            interfaces.push(((talk, *host), id));
        }
    }
    let mut time = Duration::ZERO;
    for (talk, (connected, _)) in talks.iter().enumerate() {
        for packet in &connected.packets {
            let ends = [packet.from, 1 - packet.from];
            let [source, destination] = ends.map(|host| gid(talk, host));
            let mut bytes = roce_frame(source, destination, 0, &packet.bytes);
            let original_len = bytes.len();
            bytes.truncate(most);
            for (host, direction) in ends
                .into_iter()
                .zip([Direction::Outbound, Direction::Inbound])
            {
                let interface = interfaces.iter().find(|(of, _)| *of == (talk, host));
                let Some((_, interface)) = interface else {
                    continue;
                };
                time += Duration::from_micros(1);
                let recorded = RecordedFrame {
                    time,
                    direction: Some(direction),
                    original_len,
                    bytes: bytes.clone(),
                    comments: Vec::new(),
                };
                writer.add(*interface, &recorded).unwrap();
            }
        }
    }
    writer.finish(Duration::ZERO).unwrap()
}

/// A breach of a rule: its description, the connection, the rule, and the index of the packet.
pub type Misuse = (&'static str, Connected, &'static str, usize);

/// A connection for each mistake.
pub fn misuses() -> Vec<Misuse> {
    let mut misuses = Vec::new();
    // First a whole rendezvous, which shows that messages have tags.
    let mut add = |what, rule, play: &dyn Fn(&mut Connected) -> usize| {
        let mut talk = Connected::default();
        talk.whole_rendezvous(5, 0x10_0000, 3000);
        let at = play(&mut talk);
        // It shows that no request is missing.
        talk.tagged(0, Tmh::EAGER, 1, b"more");
        misuses.push((what, talk, rule, at));
    };
    let ask = |talk: &mut Connected| talk.rendezvous(0, Tmh::RENDEZVOUS, 6, 0x20_0000, 2048);
    let end = |talk: &mut Connected| {
        talk.rendezvous(1, Tmh::FINISH, 6, 0x20_0000, 2048);
        talk.packets.len() - 2
    };
    let read = |talk: &mut Connected, address, length| {
        let psn = talk.read(1, address, length);
        talk.data(0, psn, length);
    };
    add("FIN without a read", "rendezvous-fin-early", &|talk| {
        ask(talk);
        end(talk)
    });
    add("FIN before the data", "rendezvous-fin-early", &|talk| {
        ask(talk);
        let psn = talk.read(1, 0x20_0000, 2048);
        let at = end(talk);
        talk.data(0, psn, 2048);
        at
    });
    add("a read beyond the end", "rendezvous-read-range", &|talk| {
        ask(talk);
        read(talk, 0x20_0000, 4096);
        end(talk)
    });
    add("a read of half", "rendezvous-part-read", &|talk| {
        ask(talk);
        read(talk, 0x20_0000, 1024);
        end(talk)
    });
    add("a read after FIN", "rendezvous-read-late", &|talk| {
        talk.read(1, 0x10_0000, 3000);
        talk.packets.len() - 1
    });
    add("FIN twice", "rendezvous-fin-names-request", &|talk| {
        talk.rendezvous(1, Tmh::FINISH, 5, 0x10_0000, 3000);
        talk.packets.len() - 2
    });
    add(
        "FIN with another tag",
        "rendezvous-fin-names-request",
        &|talk| {
            ask(talk);
            read(talk, 0x20_0000, 2048);
            talk.rendezvous(1, Tmh::FINISH, 7, 0x20_0000, 2048);
            talk.packets.len() - 2
        },
    );
    add(
        "FIN that nobody waits for",
        "rendezvous-fin-names-request",
        &|talk| end(talk),
    );
    add(
        "memory that is not registered",
        "rendezvous-memory",
        &|talk| {
            ask(talk);
            let psn = talk.read(1, 0x20_0000, 2048);
            talk.refuse(0, psn);
            talk.packets.len() - 1
        },
    );
    add("a request without RVH", "tag-header-whole", &|talk| {
        talk.tagged(0, Tmh::RENDEZVOUS, 6, &[1; 15]);
        talk.packets.len() - 2
    });
    add(
        "an eager message of 10 bytes",
        "tag-header-whole",
        &|talk| {
            talk.send(0, &[Tmh::EAGER, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            talk.packets.len() - 2
        },
    );
    add("an operation that is not known", "tag-operation", &|talk| {
        talk.tagged(0, 9, 6, b"data");
        talk.packets.len() - 2
    });
    misuses
}

/// A connection without errors: messages with and without tags; rendezvous read in parts, at once,
/// later by software, and never; memory that is sent twice at the same time.
pub fn right_talk() -> Connected {
    let mut talk = Connected::default();
    talk.tagged(0, Tmh::EAGER, 1, b"eager");
    talk.send(0, &[0]);
    talk.send(0, b"");
    talk.whole_rendezvous(5, 0x10_0000, 3000);
    talk.rendezvous(0, Tmh::RENDEZVOUS, 8, 0x30_0000, 0);
    talk.rendezvous(1, Tmh::FINISH, 8, 0x30_0000, 0);
    for _ in 0..2 {
        talk.rendezvous(0, Tmh::RENDEZVOUS, 6, 0x20_0000, 2048);
    }
    talk.rendezvous(0, Tmh::RENDEZVOUS, 7, 0x40_0000, 64);
    for address in [0x20_0000, 0x20_0400, 0x20_0000, 0x20_0400] {
        let psn = talk.read(1, address, 1024);
        talk.data(0, psn, 1024);
    }
    talk.send(1, &[9, 9, 9]);
    for _ in 0..2 {
        talk.rendezvous(1, Tmh::FINISH, 6, 0x20_0000, 2048);
    }
    talk.whole_rendezvous(5, 0x10_0000, 3000);
    talk
}
