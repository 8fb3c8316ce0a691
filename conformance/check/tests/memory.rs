//! The memory that `check` needs depends on the operations in flight, not on the capture's length
//! or the number of conversations.
//!
//! `EFA_CAPTURE_MIB` sets the length of the generated captures; `EFA_CONVERSATIONS` and `EFA_DATA`
//! set the number of conversations, and the data of a packet, of the capture with many
//! conversations. `EFA_CAPTURE_FILE` keeps that capture, to measure `efa-conformance check`
//! (docs/conformance.md).

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use efa_capture::frame::{Frame, FrameKind, Repr};
use efa_capture::{CaptureTap as _, Direction, Interface, InterfaceId, Reader, Writer};
use efa_check::capture::Frames;
use efa_check::check::Judge;
use efa_testing::addresses::gid;
use efa_wire::address::{Qkey, Qpn, RawAddress};
use efa_wire::{
    Connid, Cts, CtsData, EagerRtm, ExtraFeatures, Handshake, LongctsRtm, MsgId, Receipt, RecvId,
    ReqOptions, SendId,
};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator with a counter of the bytes in use.
struct CountingAllocator;

// SAFETY: every call is passed unchanged to the system's allocator, which fulfils the contract; the
// counters allocate nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is the same, and the memory came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The address of a host's endpoint.
fn address(host: usize, qpn: u16) -> RawAddress {
    RawAddress::new(gid(host + 1), Qpn(qpn), Qkey(host as u32 + 1))
}

const A: usize = 0;
const B: usize = 1;
/// The number of host A's queue pair.
const OF_A: u16 = 1;

/// Writes the captures of two hosts: one endpoint of A exchanges messages with several of B.
struct Traffic<W: io::Write> {
    writer: Writer<W>,
    /// Next sequence numbers: of A's endpoint, and of each of B's.
    sequences: (u32, Vec<u32>),
    /// The last message to each endpoint of B.
    messages: Vec<u32>,
    data: Vec<u8>,
    frames: u64,
    bytes: u64,
}

impl<W: io::Write> Traffic<W> {
    fn new(sink: W, conversations: u16, data: usize) -> Self {
        let mut writer = Writer::new(sink).unwrap();
        for (host, name) in [(A, "a"), (B, "b")] {
            let interface = Interface::new(name, "test", address(host, 0).gid);
            writer.add_interface(&interface).unwrap();
        }
        let conversations = usize::from(conversations);
        Traffic {
            writer,
            sequences: (0, vec![0; conversations]),
            messages: vec![0; conversations],
            data: vec![0; data],
            frames: 0,
            bytes: 0,
        }
    }

    /// Sends a packet in conversation `with`, with `data` bytes.
    fn send(&mut self, from: usize, with: usize, packet: &impl efa_wire::Repr, data: usize) {
        let mut bytes = [0; 10_000];
        let data = &self.data[..data];
        let length = packet.emit_packet(data, &mut bytes).unwrap();
        let ends = [address(A, OF_A), address(B, with as u16)];
        let (source, destination) = (ends[from], ends[1 - from]);
        let sequence = match from {
            A => &mut self.sequences.0,
            _ => &mut self.sequences.1[with],
        };
        let frame = Frame {
            source: source.gid,
            destination: destination.gid,
            header: Repr {
                source_qpn: source.qpn,
                destination_qpn: destination.qpn,
                qkey: destination.qkey,
                sequence: *sequence,
                ..Repr::new(FrameKind::Send, length)
            },
            payload: &bytes[..length],
        };
        *sequence += 1;
        for (host, direction) in [(from, Direction::Outbound), (1 - from, Direction::Inbound)] {
            self.frames += 1;
            self.bytes += frame.len() as u64;
            let time = Duration::from_micros(self.frames);
            let interface = InterfaceId(host as u32);
            self.writer.frame(interface, time, direction, &frame);
        }
    }

    /// The endpoints exchange messages by all subprotocols until the capture has `bytes` bytes.
    fn run(mut self, bytes: u64) {
        let conversations = self.messages.len();
        for with in 0..conversations {
            self.begin(with);
        }
        while self.bytes < bytes {
            for with in 0..conversations {
                self.messages(with);
            }
        }
        self.writer.finish(Duration::ZERO).unwrap();
    }

    fn begin(&mut self, with: usize) {
        let introduction = ReqOptions::with_raw_address(address(A, OF_A));
        let first = EagerRtm::new(MsgId(0), introduction);
        self.send(A, with, &first, 5);
        for from in [B, A] {
            let handshake = Handshake {
                extra_info: ExtraFeatures::DELIVERY_COMPLETE
                    .union(ExtraFeatures::CONNID_HEADER)
                    .into(),
                connid: connid(from),
                device_version: Some(0xefa1),
                ..Handshake::default()
            };
            self.send(from, with, &handshake, 0);
        }
    }

    fn messages(&mut self, with: usize) {
        let (msg_id, data) = (self.messages[with] + 1, self.data.len());
        self.messages[with] += 2;
        let options = ReqOptions {
            connid: connid(A),
            ..ReqOptions::default()
        };
        let eager = EagerRtm {
            receipt: Some(SendId(msg_id % 64)),
            ..EagerRtm::new(MsgId(msg_id), options)
        };
        self.send(A, with, &eager, data);
        let receipt = Receipt {
            send_id: SendId(msg_id % 64),
            msg_id: MsgId(msg_id),
            connid: connid(B),
            ..Receipt::default()
        };
        self.send(B, with, &receipt, 0);
        // Ids as of an implementation that adds a generation: no id is used twice.
        let long = LongctsRtm {
            msg_id: MsgId(msg_id + 1),
            msg_length: 3 * data as u64,
            send_id: SendId(1000 + msg_id),
            options,
            ..LongctsRtm::default()
        };
        self.send(A, with, &long, data);
        let cts = Cts {
            connid: connid(B),
            send_id: long.send_id,
            recv_id: RecvId(msg_id),
            recv_length: 2 * data as u64,
            ..Cts::default()
        };
        self.send(B, with, &cts, 0);
        for segment in [1, 2] {
            let packet = CtsData {
                recv_id: RecvId(msg_id),
                seg_length: data as u64,
                seg_offset: segment * data as u64,
                connid: connid(A),
                ..CtsData::default()
            };
            self.send(A, with, &packet, data);
        }
    }
}

fn connid(host: usize) -> Option<Connid> {
    Some(Connid(host as u32 + 1))
}

/// Judges a correct capture. Returns the number of its packets, and the peak of memory in bytes.
fn judge(source: impl Read) -> (u64, usize) {
    PEAK.store(LIVE.load(Ordering::Relaxed), Ordering::Relaxed);
    let reader = Reader::new(source, "generated").unwrap();
    let mut frames = Frames::new(reader).without_rdma_data();
    let mut judge = Judge::new();
    while let Some(frame) = frames.next_frame().unwrap() {
        frames.reuse(judge.frame(frame).unwrap());
    }
    let checked = judge.finish();
    assert_eq!(checked.findings, []);
    (checked.packets, PEAK.load(Ordering::Relaxed))
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |value| value.parse().unwrap())
}

/// Judges a capture of `length` bytes while it is generated.
fn judge_generated(length: u64, conversations: u16, data: usize) -> usize {
    let (read, write) = io::pipe().unwrap();
    let writer = std::thread::spawn(move || {
        let sink = BufWriter::with_capacity(1 << 20, write);
        Traffic::new(sink, conversations, data).run(length);
    });
    let (packets, peak) = judge(BufReader::new(read));
    writer.join().unwrap();
    println!(
        "{} MiB, {conversations} conversations, {packets} packets: {} MiB at most",
        length >> 20,
        peak >> 20
    );
    assert!(packets > length / (4 * data as u64));
    peak
}

#[test]
fn memory_does_not_grow_with_the_capture() {
    let length = number("EFA_CAPTURE_MIB", 100) << 20;
    let conversations = number("EFA_CONVERSATIONS", 4095) as u16;
    let data = number("EFA_DATA", 1000) as usize;
    if let Some(path) = std::env::var_os("EFA_CAPTURE_FILE") {
        let sink = BufWriter::with_capacity(1 << 20, File::create(path).unwrap());
        Traffic::new(sink, conversations, data).run(length);
        return;
    }
    // The bound holds for captures of any length; most of the memory holds frames that wait to be
    // judged.
    let peak = judge_generated(length, 1, 1000);
    assert!(peak < 80 << 20, "{peak} bytes");
    let peak = judge_generated(length, conversations, data);
    assert!(peak < 170 << 20, "{peak} bytes");
}
