//! Writes a large capture of ordinary traffic, for benchmarks of the Wireshark dissector.
//!
//! `wireshark_load FRAMES FILE`, used by `wireshark/bench`: eager, medium and long-CTS messages and
//! emulated writes between two endpoints, captured at one of them, with the peer's packets slightly
//! reordered. With a third argument `roce` the same payloads follow InfiniBand headers on UDP port
//! 4791, for Wireshark's own dissector of similar depth.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::process::ExitCode;
use std::time::Duration;

use efa_capture::frame::{self, Frame, FrameKind, Repr};
use efa_capture::{CaptureTap, Direction, Interface, InterfaceId, Writer};
use efa_core::address::{Gid, Qkey, Qpn};
use efa_core::wire::{
    Connid, Cts, CtsData, EagerRtm, EagerRtw, Handshake, Header, LongctsRtm, MediumRtm, MsgId,
    RecvId, Repr as _, ReqOptions, RmaIov, RmaIovs, SendId,
};

struct Load<W: Write> {
    writer: Writer<W>,
    frames: u32,
    wanted: u32,
    sequence: [u32; 2],
    msg_id: [u32; 2],
}

const GIDS: [Gid; 2] = [
    Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 1]),
    Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 2]),
];

impl<W: Write> Load<W> {
    fn send(&mut self, from: usize, header: impl Into<Header>, data: &[u8]) {
        let packet = header.into().to_packet(data);
        let to = 1 - from;
        let transport = Repr {
            source_qpn: Qpn(from as u16 + 1),
            destination_qpn: Qpn(to as u16 + 1),
            qkey: Qkey(to as u32 + 100),
            sequence: self.sequence[from],
            path: self.sequence[from] as u16 % 8,
            ..Repr::new(FrameKind::Send, packet.len())
        };
        self.sequence[from] += 1;
        let frame = Frame {
            source: GIDS[from],
            destination: GIDS[to],
            header: transport,
            payload: &packet,
        };
        let direction = if from == 0 {
            Direction::Outbound
        } else {
            Direction::Inbound
        };
        let time = Duration::from_nanos(1_700_000_000_000_000_000 + u64::from(self.frames) * 900);
        self.writer
            .frame(InterfaceId::FIRST, time, direction, &frame);
        self.frames += 1;
    }

    fn next_id(&mut self, from: usize) -> MsgId {
        self.msg_id[from] = self.msg_id[from].wrapping_add(1);
        MsgId(self.msg_id[from].wrapping_sub(1))
    }

    fn run(&mut self) {
        const DATA: [u8; 8192] = [0x5a; 8192];
        for from in [1, 0] {
            self.send(
                from,
                Handshake {
                    connid: connid(from),
                    ..Handshake::default()
                },
                b"",
            );
        }
        let mut round = 0;
        while self.frames < self.wanted {
            let from = round % 2;
            round += 1;
            let options = ReqOptions {
                connid: connid(from),
                ..ReqOptions::default()
            };
            for _ in 0..4 {
                let msg_id = self.next_id(from);
                let tag = Some(u64::from(msg_id.0));
                let eager = EagerRtm {
                    tag,
                    ..EagerRtm::new(msg_id, options)
                };
                self.send(from, eager, &DATA[..64]);
            }
            let msg_id = self.next_id(from);
            for seg_offset in [1000, 0, 2000, 3000] {
                let medium = MediumRtm {
                    msg_id,
                    msg_length: 4000,
                    seg_offset,
                    options,
                    ..MediumRtm::default()
                };
                self.send(from, medium, &DATA[..1000]);
            }
            let iov = [RmaIov::new(0x7f00_0000_0000, 256, 9)];
            let rma_iov = RmaIovs::new(&iov).expect("one is allowed");
            self.send(
                from,
                EagerRtw {
                    rma_iov,
                    options,
                    ..EagerRtw::default()
                },
                &DATA[..256],
            );
            let long = LongctsRtm {
                msg_id: self.next_id(from),
                msg_length: 9000,
                send_id: SendId(round as u32 % 100),
                options,
                ..LongctsRtm::default()
            };
            self.send(from, long, &DATA[..1000]);
            let cts = Cts {
                connid: connid(1 - from),
                send_id: long.send_id,
                recv_id: RecvId(round as u32 % 77),
                recv_length: 8000,
                ..Cts::default()
            };
            self.send(1 - from, cts, b"");
            for piece in 0..8 {
                let data = CtsData {
                    recv_id: cts.recv_id,
                    seg_length: 1000,
                    seg_offset: 1000 + 1000 * (piece ^ 1),
                    connid: connid(from),
                    ..CtsData::default()
                };
                self.send(from, data, &DATA[..1000]);
            }
        }
    }
}

fn connid(from: usize) -> Option<Connid> {
    Some(Connid(from as u32 + 100))
}

/// Replaces the transport header by a RoCE header: a send with a 12-byte base transport header.
fn as_roce(capture: &[u8]) -> Vec<u8> {
    const TRANSPORT: usize = 28 + frame::OUTER_LEN;
    let mut converted = Vec::with_capacity(capture.len());
    let mut rest = capture;
    while rest.len() >= 12 {
        let length = u32::from_le_bytes([rest[4], rest[5], rest[6], rest[7]]) as usize;
        let (block, following) = rest.split_at(length);
        rest = following;
        let mut block = block.to_vec();
        if block[0] == 6 {
            block[TRANSPORT - 6..TRANSPORT - 4].copy_from_slice(&4791_u16.to_be_bytes());
            block[TRANSPORT..TRANSPORT + 12]
                .copy_from_slice(&[4, 0x40, 0xff, 0xff, 0, 0, 0, 17, 0, 0, 0, 1]);
        }
        converted.extend(block);
    }
    converted
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().collect();
    let (Some(frames), Some(path)) = (
        arguments.get(1).and_then(|frames| frames.parse().ok()),
        arguments.get(2),
    ) else {
        eprintln!("usage: wireshark_load FRAMES FILE [roce]");
        return ExitCode::from(2);
    };
    let mut writer = Writer::new(Vec::new()).expect("a Vec takes everything");
    let interface = Interface::new("load", "load", GIDS[0]);
    writer
        .add_interface(&interface)
        .expect("a Vec takes everything");
    let mut load = Load {
        writer,
        frames: 0,
        wanted: frames,
        sequence: [0; 2],
        msg_id: [0; 2],
    };
    load.run();
    let capture = load
        .writer
        .finish(Duration::ZERO)
        .expect("a Vec takes everything");
    let capture = if arguments.get(3).is_some_and(|format| format == "roce") {
        as_roce(&capture)
    } else {
        capture
    };
    let written = File::create(path).map(BufWriter::new).and_then(|mut file| {
        file.write_all(&capture)?;
        file.flush()
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("wireshark_load: cannot write {path}: {error}");
            ExitCode::from(1)
        }
    }
}
