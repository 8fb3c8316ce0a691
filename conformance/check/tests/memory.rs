//! The memory for judging a capture depends on the operations under way, not on the capture's
//! length.
//!
//! `EFA_CAPTURE_MIB` sets the length of the generated capture.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{self, BufReader, BufWriter};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use efa_capture::frame::{Frame, Kind, Repr};
use efa_capture::{CaptureTap as _, Direction, Interface, InterfaceId, Reader, Writer};
use efa_check::capture::Frames;
use efa_check::check::Judge;
use efa_testing::addresses::gid;
use efa_wire::address::{Qkey, Qpn, RawAddress};
use efa_wire::{
    Connid, Cts, CtsData, EagerRtm, ExtraFeatures, Handshake, LongctsRtm, MsgId, RawAddressHeader,
    Receipt, RecvId, ReqOptions, SendId,
};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, which counts the bytes in use.
struct Counting;

// SAFETY: every call is handed on unchanged to the system's allocator, which keeps the contract;
// the counters need no allocation.
unsafe impl GlobalAlloc for Counting {
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
static ALLOCATOR: Counting = Counting;

fn address(host: u8) -> RawAddress {
    RawAddress {
        gid: gid(host.into()),
        qpn: Qpn(host.into()),
        qkey: Qkey(host.into()),
    }
}

/// Writes the captures of two hosts.
struct Traffic<W: io::Write> {
    writer: Writer<W>,
    sequence: [u32; 2],
    frames: u64,
    bytes: u64,
}

const A: usize = 0;
const B: usize = 1;

impl<W: io::Write> Traffic<W> {
    fn new(sink: W) -> Self {
        let mut writer = Writer::new(sink).unwrap();
        for (host, name) in [(1, "a"), (2, "b")] {
            let interface = Interface {
                host: name.into(),
                profile: "test".into(),
                gid: address(host).gid,
            };
            writer.add_interface(&interface).unwrap();
        }
        Traffic {
            writer,
            sequence: [0; 2],
            frames: 0,
            bytes: 0,
        }
    }

    fn send(&mut self, from: usize, packet: &impl efa_wire::Repr, data: &[u8]) {
        let mut bytes = [0; 2048];
        let length = packet.emit_packet(data, &mut bytes).unwrap();
        let (source, destination) = (address(from as u8 + 1), address(2 - from as u8));
        let frame = Frame {
            source: source.gid,
            destination: destination.gid,
            header: Repr {
                kind: Kind::Send,
                source_qpn: source.qpn,
                destination_qpn: destination.qpn,
                qkey: destination.qkey,
                sequence: self.sequence[from],
                immediate: None,
                retransmission: false,
                path: 0,
                payload_length: length as u32,
                payload_captured: true,
            },
            payload: &bytes[..length],
        };
        self.sequence[from] += 1;
        for (host, direction) in [(from, Direction::Outbound), (1 - from, Direction::Inbound)] {
            self.frames += 1;
            self.bytes += frame.len() as u64;
            let time = Duration::from_micros(self.frames);
            let interface = InterfaceId(host as u32);
            self.writer.frame(interface, time, direction, &frame);
        }
    }

    /// Lets two endpoints exchange messages by all subprotocols until the capture has `bytes`
    /// bytes.
    fn run(mut self, bytes: u64) {
        let connid = |host: usize| Some(Connid(host as u32 + 1));
        let introduction = ReqOptions {
            raw_address: Some(RawAddressHeader::new(address(1))),
            ..ReqOptions::default()
        };
        let first = EagerRtm {
            options: introduction,
            ..EagerRtm::default()
        };
        self.send(A, &first, b"first");
        for from in [B, A] {
            let handshake = Handshake {
                extra_info: ExtraFeatures::DELIVERY_COMPLETE
                    .union(ExtraFeatures::CONNID_HEADER)
                    .into(),
                connid: connid(from),
                device_version: Some(0xefa1),
                ..Handshake::default()
            };
            self.send(from, &handshake, b"");
        }
        let options = ReqOptions {
            connid: connid(A),
            ..ReqOptions::default()
        };
        let mut msg_id = 0_u32;
        while self.bytes < bytes {
            msg_id += 1;
            let eager = EagerRtm {
                msg_id: MsgId(msg_id),
                receipt: Some(SendId(msg_id % 64)),
                options,
                ..EagerRtm::default()
            };
            self.send(A, &eager, &[0; 1000]);
            let receipt = Receipt {
                send_id: SendId(msg_id % 64),
                msg_id: MsgId(msg_id),
                connid: connid(B),
                ..Receipt::default()
            };
            self.send(B, &receipt, b"");
            // Ids as of an implementation with generations: no id is used twice.
            let long = LongctsRtm {
                msg_id: MsgId(msg_id + 1),
                msg_length: 3000,
                send_id: SendId(1000 + msg_id),
                options,
                ..LongctsRtm::default()
            };
            msg_id += 1;
            self.send(A, &long, &[0; 1000]);
            let cts = Cts {
                connid: connid(B),
                send_id: long.send_id,
                recv_id: RecvId(msg_id),
                recv_length: 2000,
                ..Cts::default()
            };
            self.send(B, &cts, b"");
            for seg_offset in [1000, 2000] {
                let data = CtsData {
                    recv_id: RecvId(msg_id),
                    seg_length: 1000,
                    seg_offset,
                    connid: connid(A),
                    ..CtsData::default()
                };
                self.send(A, &data, &[0; 1000]);
            }
        }
        self.writer.finish(Duration::ZERO).unwrap();
    }
}

#[test]
fn memory_does_not_grow_with_the_capture() {
    let length = std::env::var("EFA_CAPTURE_MIB").map_or(100, |mib| mib.parse().unwrap());
    let (read, write) = io::pipe().unwrap();
    let writer = std::thread::spawn(move || {
        Traffic::new(BufWriter::with_capacity(1 << 20, write)).run(length << 20);
    });
    let reader = Reader::new(BufReader::new(read), "generated").unwrap();
    let mut frames = Frames::new(reader).without_rdma_data();
    let mut judge = Judge::new();
    while let Some(frame) = frames.next_frame().unwrap() {
        judge.frame(frame).unwrap();
    }
    let checked = judge.finish();
    writer.join().unwrap();
    let peak = PEAK.load(Ordering::Relaxed) >> 20;
    println!(
        "{length} MiB, {} packets: {peak} MiB at most",
        checked.packets
    );
    assert_eq!(checked.findings, []);
    assert!(checked.packets > (length << 20) / 4000);
    // For a capture of any length; most of the memory holds frames that wait for their turn.
    assert!(peak < 80, "{peak} MiB");
}
