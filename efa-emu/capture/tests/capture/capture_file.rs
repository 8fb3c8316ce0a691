//! Captures that are written and read back; files that are not captures.

use std::io::Cursor;
use std::time::Duration;

use efa_capture::Truncation;
use efa_capture::frame::{Frame, FrameKind, Repr};
use efa_capture::{
    CapturePoint, CaptureTap, Direction, Interface, InterfaceId, Reader, Recorder, RequestData,
    Route, Writer,
};
use efa_device_model::link::{Operation, RemoteRange, RequestHeader};
use efa_testing::addresses::gid;
use efa_wire::Status;
use efa_wire::address::{Gid, Qkey, Qpn};
use proptest::prelude::*;

use crate::counted;

const MTU: usize = 4096;

fn interface(host: u8) -> Interface {
    Interface::new(format!("host{host}"), "efa2", gid(host.into()))
}

fn request(operation: Operation, length: u32) -> RequestHeader {
    RequestHeader {
        operation,
        source_qpn: Qpn(1),
        destination_qpn: Qpn(2),
        qkey: Qkey(0x1234_5678),
        sequence: 9,
        retries: 0,
        immediate: None,
        remote: matches!(operation, Operation::RdmaRead | Operation::RdmaWrite)
            .then_some(RemoteRange::new(0x1000, 7)),
        length,
    }
}

const FORTH: Route = Route {
    source: Gid([1; 16]),
    destination: Gid([2; 16]),
    path: 5,
};
const BACK: Route = Route {
    source: Gid([2; 16]),
    destination: Gid([1; 16]),
    path: 6,
};

fn moment(interface: u32, nanoseconds: u64, direction: Direction) -> CapturePoint {
    let time = Duration::from_nanos(nanoseconds);
    CapturePoint {
        interface: InterfaceId(interface),
        time,
        direction,
    }
}

/// The fields of a frame that a test compares.
#[derive(PartialEq, Eq, Debug)]
struct FrameFields {
    interface: u32,
    nanoseconds: u128,
    direction: Direction,
    header: Repr,
    payload: Vec<u8>,
}

fn read_all(capture: &[u8]) -> (Vec<FrameFields>, Reader<Cursor<Vec<u8>>>) {
    let mut reader = Reader::new(Cursor::new(capture.to_vec()), "memory").unwrap();
    let mut seen = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        let parsed = frame.frame.unwrap();
        seen.push(FrameFields {
            interface: frame.interface.0,
            nanoseconds: frame.time.as_nanos(),
            direction: frame.direction.unwrap(),
            header: parsed.header,
            payload: parsed.payload.to_vec(),
        });
    }
    (seen, reader)
}

fn recorder(hosts: u8) -> Recorder<Writer<Vec<u8>>> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    for host in 0..hosts {
        assert_eq!(
            writer.add_interface(&interface(host)).unwrap(),
            InterfaceId(host.into())
        );
    }
    Recorder::new(writer, MTU)
}

fn finish(recorder: Recorder<Writer<Vec<u8>>>) -> Vec<u8> {
    recorder.into_tap().finish(Duration::from_secs(3)).unwrap()
}

#[test]
fn a_send_and_its_answer_round_trip() {
    let mut recorder = recorder(2);
    let send = RequestHeader {
        immediate: Some(77),
        ..request(Operation::Send, 5)
    };
    let out = moment(0, 1_700_000_000_123_456_789, Direction::Outbound);
    let into = moment(1, 1_700_000_000_123_456_790, Direction::Inbound);
    let mut data: &[u8] = b"hello";
    recorder.request(out, FORTH, &send, false, &mut data);
    recorder.request(into, FORTH, &send, true, &mut data);
    recorder.status(
        moment(1, 2, Direction::Outbound),
        BACK,
        &send,
        Status::RemoteRnr,
    );
    let capture = finish(recorder);

    let (seen, reader) = read_all(&capture);
    assert_eq!(seen.len(), 3);
    let header = Repr {
        path: 5,
        ..Repr::of_request(&send, 0, 5)
    };
    assert_eq!(
        seen[0],
        FrameFields {
            interface: 0,
            nanoseconds: 1_700_000_000_123_456_789,
            direction: Direction::Outbound,
            header,
            payload: b"hello".to_vec(),
        }
    );
    assert_eq!(seen[1].direction, Direction::Inbound);
    assert_eq!(
        seen[1].header,
        Repr {
            retransmission: true,
            ..header
        }
    );
    assert_eq!(seen[2].header.kind, FrameKind::Response(Status::RemoteRnr));
    assert_eq!(
        (seen[2].header.source_qpn, seen[2].header.path),
        (Qpn(2), 6)
    );

    assert_eq!(reader.truncation(), None);
    let names: Vec<_> = reader
        .interfaces()
        .iter()
        .map(|i| i.name.clone().unwrap())
        .collect();
    assert_eq!(names, ["host0", "host1"]);
    assert_eq!(reader.interfaces()[0].hardware.as_deref(), Some("efa2"));
    assert_eq!(reader.interfaces()[0].counts, Some(counted(1, 0)));
    assert_eq!(reader.interfaces()[1].counts, Some(counted(2, 0)));
}

#[test]
fn rdma_data_is_split_at_the_mtu() {
    let mut recorder = recorder(1);
    let memory = efa_testing::pattern(10_000, 0);
    let write = RequestHeader {
        immediate: Some(3),
        ..request(Operation::RdmaWrite, 10_000)
    };
    let read = request(Operation::RdmaRead, 8192);
    let out = moment(0, 1, Direction::Outbound);
    recorder.request(out, FORTH, &write, false, &mut &memory[..]);
    recorder.request(out, FORTH, &read, false, &mut &memory[..]);
    recorder.read_data(
        moment(0, 2, Direction::Inbound),
        BACK,
        &read,
        &mut &memory[..],
    );

    let (seen, _) = read_all(&finish(recorder));
    let shape: Vec<_> = seen
        .iter()
        .map(|frame| {
            let rdma = frame.header.kind.rdma().unwrap();
            let opcode = frame.header.kind.opcode();
            (
                opcode as u8,
                rdma.offset,
                frame.payload.len(),
                frame.header.immediate,
            )
        })
        .collect();
    assert_eq!(
        shape,
        [
            (4, 0, 4096, None),
            (4, 4096, 4096, None),
            (4, 8192, 1808, Some(3)),
            (2, 0, 0, None),
            (3, 0, 4096, None),
            (3, 4096, 4096, None),
        ]
    );
    let written: Vec<u8> = seen[..3]
        .iter()
        .flat_map(|frame| frame.payload.clone())
        .collect();
    assert_eq!(written, memory);
    assert!(seen.iter().all(|frame| {
        let rdma = frame.header.kind.rdma().unwrap();
        rdma.remote == RemoteRange::new(0x1000, 7)
    }));
}

#[test]
fn oversized_or_unreadable_data_is_omitted_and_counted() {
    let mut recorder = recorder(1).with_longest_rdma(1 << 20);
    let out = moment(0, 1, Direction::Outbound);
    let long = request(Operation::RdmaWrite, (1 << 20) + 1);
    recorder.request(out, FORTH, &long, false, &mut |_: u32, _: &mut [u8]| {
        panic!("not needed")
    });
    let gone = request(Operation::Send, 100);
    recorder.request(out, FORTH, &gone, false, &mut |_: u32, _: &mut [u8]| false);
    let zero = request(Operation::RdmaWrite, 0);
    recorder.request(out, FORTH, &zero, false, &mut &b""[..]);

    let (seen, _) = read_all(&finish(recorder));
    let shape: Vec<_> = seen
        .iter()
        .map(|frame| (frame.header.payload_length, frame.header.payload_captured))
        .collect();
    assert_eq!(shape, [((1 << 20) + 1, false), (100, false), (0, true)]);
    assert!(seen.iter().all(|frame| frame.payload.is_empty()));
}

#[test]
fn slices_refuse_ranges_outside() {
    let mut data: &[u8] = &[1, 2, 3];
    let mut two = [0; 2];
    assert!(data.read(1, &mut two));
    assert_eq!(two, [2, 3]);
    assert!(!data.read(2, &mut two));
    assert!(!data.read(u32::MAX, &mut two));
}

#[test]
fn a_failing_sink_counts_drops_and_reports() {
    struct Full(usize);
    impl std::io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.0 < bytes.len() {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            self.0 -= bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut writer = Writer::new(Full(700)).unwrap();
    let id = writer.add_interface(&interface(0)).unwrap();
    let payload = [0; 64];
    let header = Repr::of_request(&request(Operation::Send, 64), 0, 64);
    let frame = Frame {
        source: gid(0),
        destination: gid(1),
        header,
        payload: &payload,
    };
    for _ in 0..10 {
        writer.frame(id, Duration::ZERO, Direction::Outbound, &frame);
    }
    let counts = writer.counts(id);
    assert_eq!(counts.seen, 10);
    assert!((1..10).contains(&counts.dropped), "{counts:?}");
    let error = writer.finish(Duration::ZERO).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
}

fn some_capture() -> Vec<u8> {
    let mut recorder = recorder(1);
    for sequence in 0..4 {
        let send = RequestHeader {
            sequence,
            ..request(Operation::Send, 3)
        };
        let out = moment(0, sequence.into(), Direction::Outbound);
        recorder.request(out, FORTH, &send, false, &mut &b"abc"[..]);
    }
    finish(recorder)
}

fn error_of(bytes: &[u8]) -> String {
    let mut reader = match Reader::new(bytes, "some.pcapng") {
        Ok(reader) => reader,
        Err(error) => return error.to_string(),
    };
    loop {
        match reader.next_frame() {
            Ok(Some(_)) => {}
            Ok(None) => return format!("ended, {:?}", reader.truncation()),
            Err(error) => return error.to_string(),
        }
    }
}

#[test]
fn a_malformed_capture_is_refused_with_the_offset() {
    assert_eq!(
        error_of(b""),
        "some.pcapng: the file is empty: not a capture"
    );
    assert_eq!(
        error_of(b"PK\x03\x04...."),
        "some.pcapng: not a capture: it begins with [50, 4b, 03, 04]"
    );
    let cut = Truncation { offset: 0, have: 8 };
    assert_eq!(
        error_of(b"\xd4\xc3\xb2\xa1\x02\x00\x04\x00"),
        format!("ended, {:?}", Some(cut))
    );
    let mut bytes = some_capture();
    bytes[8] = 0;
    assert_eq!(
        error_of(&bytes),
        "some.pcapng: malformed block of type 0xa0d0d0a: byte-order magic is [00, 3c, 2b, 1a]"
    );
    let mut bytes = some_capture();
    bytes[4] = 1;
    assert_eq!(
        error_of(&bytes),
        "some.pcapng: malformed block of type 0xa0d0d0a: its length 1 is not a multiple of 4 \
         between 12 and 16777216"
    );
}

#[test]
fn undeclared_interfaces_are_errors() {
    let capture = some_capture();
    let section = u32::from_le_bytes(capture[4..8].try_into().unwrap()) as usize;
    let interface = section
        + u32::from_le_bytes(capture[section + 4..section + 8].try_into().unwrap()) as usize;
    let mut bytes = capture.clone();
    bytes[interface + 8] = 1;
    assert_eq!(
        error_of(&bytes),
        format!(
            "some.pcapng, byte {interface}: a packet names interface 1, but only 1 are declared"
        )
    );
}

#[test]
fn a_truncated_capture_yields_its_whole_frames() {
    let capture = some_capture();
    let (whole, _) = read_all(&capture);
    let mut ends = Vec::new();
    let mut at = 0;
    while at < capture.len() {
        at += u32::from_le_bytes(capture[at + 4..at + 8].try_into().unwrap()) as usize;
        ends.push(at);
    }
    for cut in 4..capture.len() {
        let (frames, reader) = read_all(&capture[..cut]);
        assert_eq!(frames[..], whole[..frames.len()]);
        let start = ends
            .iter()
            .copied()
            .filter(|end| *end <= cut)
            .max()
            .unwrap_or(0);
        let expected = (cut > start).then_some((start as u64, (cut - start) as u64));
        assert_eq!(
            reader.truncation().map(|t| (t.offset, t.have)),
            expected,
            "cut at {cut}"
        );
    }
}

#[test]
fn other_resolutions_byte_orders_and_sections_are_read() {
    // A section in big-endian order with microseconds, the format's default, and a custom block.
    fn block(code: u32, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u32 + 12).to_be_bytes();
        [&code.to_be_bytes()[..], &length, body, &length].concat()
    }
    let mut foreign = block(
        0x0a0d_0d0a,
        b"\x1a\x2b\x3c\x4d\0\x01\0\0\xff\xff\xff\xff\xff\xff\xff\xff",
    );
    foreign.extend(block(1, b"\0\x01\0\0\0\0\0\0"));
    foreign.extend(block(0xbad, b"what"));
    foreign.extend(block(
        6,
        b"\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\x02\xab\xcd\0\0",
    ));
    let mut capture = some_capture();
    capture.extend(&foreign);

    let mut reader = Reader::new(&capture[..], "memory").unwrap();
    for _ in 0..4 {
        assert!(reader.next_frame().unwrap().is_some());
    }
    let last = reader.next_frame().unwrap().unwrap();
    // Wireshark numbers custom blocks as frames.
    assert_eq!((last.number, last.interface), (6, InterfaceId(1)));
    assert_eq!(last.time, Duration::from_micros(1 << 32));
    assert_eq!((last.direction, last.bytes), (None, &[0xab, 0xcd][..]));
    assert!(last.frame.is_err());
    assert!(reader.next_frame().unwrap().is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn mutated_captures_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut: prop::sample::Index,
    ) {
        let mut bytes = some_capture();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        error_of(&bytes);
        error_of(&bytes[..cut.index(bytes.len())]);
    }
}
