//! The same packets in every form in which tools write captures.

use std::io::Write as _;
use std::time::Duration;

use efa_capture::frame::{Frame, FrameKind, Repr};
use efa_capture::{Direction, Reader};
use efa_testing::addresses::gid;
use efa_testing::pcap::{
    self, ETHERNET, block, classic_header, classic_record, cooked, cooked_2, option, section,
};
use efa_wire::address::{Qkey, Qpn};

/// Microseconds since the epoch.
const TIME: u64 = 1_700_000_000_123_456;

/// A frame as it is on Ethernet.
fn frame() -> Vec<u8> {
    let frame = Frame {
        source: gid(1),
        destination: gid(2),
        header: Repr {
            source_qpn: Qpn(1),
            destination_qpn: Qpn(2),
            qkey: Qkey(3),
            sequence: 4,
            ..Repr::new(FrameKind::Send, 5)
        },
        payload: b"hello",
    };
    let mut bytes = Vec::new();
    frame.emit(&mut bytes).unwrap();
    bytes
}

/// An interface whose reserved field is not zero.
fn interface(linktype: u16, options: &[u8]) -> Vec<u8> {
    pcap::interface(linktype, 0xbeef, options)
}

/// A packet of interface `id`, whose block of type `code` is enhanced or obsolete.
fn packet(code: u32, id: u32, bytes: &[u8], options: &[u8]) -> Vec<u8> {
    pcap::packet(code, id, TIME, bytes, options)
}

fn classic(magic: u32, linktype: u32, fraction: u32, rest: &[u8], bytes: &[u8]) -> Vec<u8> {
    let record = classic_record((TIME / 1_000_000) as u32, fraction, rest, bytes);
    [classic_header(magic, linktype), record].concat()
}

/// A frame of a capture: its number, time and direction, and its packet.
type NumberedFrame = (u64, Duration, Option<Direction>, Vec<u8>);

/// The frames of the emulated wire in a capture.
fn read(capture: &[u8]) -> Vec<NumberedFrame> {
    let mut reader = Reader::new(capture, "memory").unwrap();
    let mut seen = Vec::new();
    while let Some(found) = reader.next_frame().unwrap() {
        if let Ok(frame) = found.frame {
            let payload = frame.payload.to_vec();
            seen.push((found.number, found.time, found.direction, payload));
        }
    }
    assert_eq!(reader.truncation(), None);
    seen
}

fn time() -> Duration {
    Duration::from_micros(TIME)
}

/// The result of reading a capture with one packet of unknown direction.
fn one(number: u64) -> Vec<NumberedFrame> {
    vec![(number, time(), None, b"hello".to_vec())]
}

#[test]
fn options_need_no_end_mark_and_no_utf8() {
    let capture = [
        section(),
        interface(1, &option(2, b"caf\xe9")),
        packet(6, 0, &frame(), &option(1, b"\xe9\xff")),
    ]
    .concat();
    assert_eq!(read(&capture), one(1));
    let mut reader = Reader::new(&capture[..], "memory").unwrap();
    let comments = reader.next_frame().unwrap().unwrap().comments;
    assert_eq!(comments, ["\u{fffd}\u{fffd}"]);
    let name = reader.interfaces()[0].name.as_deref();
    assert_eq!(name, Some("caf\u{fffd}"));
    // A cut-off option loses the options after it, but not the packet.
    let options = [option(2, &[2, 0, 0, 0]), b"\x01\0\xff\0".to_vec()].concat();
    let capture = [
        section(),
        interface(1, b""),
        packet(6, 0, &frame(), &options),
    ]
    .concat();
    assert_eq!(read(&capture)[0].2, Some(Direction::Outbound));
}

#[test]
fn simple_and_obsolete_packets_are_read() {
    let length = frame().len() as u32;
    let simple = [&length.to_le_bytes()[..], &frame()].concat();
    let capture = [section(), interface(1, b""), block(3, &simple)].concat();
    let seen = read(&capture);
    assert_eq!((seen.len(), seen[0].1), (1, Duration::ZERO));
    // The number of packets dropped before is in the upper half of the word.
    let capture = [
        section(),
        interface(1, b""),
        packet(2, 7 << 16, &frame(), b""),
    ]
    .concat();
    assert_eq!(read(&capture), one(1));
}

#[test]
fn times_may_be_moved_back() {
    let back = |seconds: i64| option(14, &seconds.to_le_bytes());
    for (seconds, expected) in [
        (-1_700_000_000, Duration::from_micros(123_456)),
        (-1_800_000_000, Duration::from_micros(123_456)),
        (10, time() + Duration::from_secs(10)),
    ] {
        let capture = [
            section(),
            interface(1, &back(seconds)),
            packet(6, 0, &frame(), b""),
        ];
        assert_eq!(read(&capture.concat())[0].1, expected);
    }
}

#[test]
fn unrelated_interfaces_and_blocks_leave_numbers() {
    let usb = 189;
    let capture = [
        section(),
        interface(usb, b""),
        interface(1, b""),
        packet(6, 0, b"something else", b""),
        block(0x0bad_cafe, b"unknown"),
        packet(6, 1, &frame(), b""),
    ]
    .concat();
    assert_eq!(read(&capture), one(2));
}

#[test]
fn other_link_layers_are_read() {
    let ip = frame()[ETHERNET..].to_vec();
    let (inbound, outbound) = (Some(Direction::Inbound), Some(Direction::Outbound));
    for (linktype, bytes, direction) in [
        (101, ip.clone(), None),
        (229, ip.clone(), None),
        (113, cooked(&frame(), 0), inbound),
        (113, cooked(&frame(), 4), outbound),
        (276, cooked_2(&frame(), 0), inbound),
        (276, cooked_2(&frame(), 4), outbound),
    ] {
        let expected = vec![(1, time(), direction, b"hello".to_vec())];
        let capture = [
            section(),
            interface(linktype, b""),
            packet(6, 0, &bytes, b""),
        ]
        .concat();
        assert_eq!(read(&capture), expected, "link type {linktype}");
        let capture = classic(0xa1b2_c3d4, linktype.into(), 123_456, b"", &bytes);
        assert_eq!(read(&capture), expected, "link type {linktype}, classic");
    }
}

#[test]
fn the_classic_format_is_read_in_each_variant() {
    let cases = [
        (0xa1b2_c3d4, 123_456, &b""[..]),
        (0xa1b2_3c4d, 123_456_000, b""),
        (0xa1b2_cd34, 123_456, &[0; 8]),
    ];
    for (magic, fraction, rest) in cases {
        let capture = classic(magic, 1, fraction, rest, &frame());
        assert_eq!(read(&capture), one(1), "{magic:x}");
        // The upper bits of the link type hold the length of frame check sequences.
        let capture = classic(magic, 1 | 0x2400_0000, fraction, rest, &frame());
        assert_eq!(read(&capture), one(1), "{magic:x} with check sequences");
        let whole = capture.len();
        for cut in 4..whole {
            let mut reader = Reader::new(&capture[..cut], "memory").unwrap();
            assert!(reader.next_frame().unwrap().is_none());
            assert_eq!(
                reader.truncation().is_some(),
                cut != 24,
                "{magic:x} cut at {cut}"
            );
        }
    }
    let mut little = classic(0xa1b2_c3d4, 1, 123_456, b"", b"");
    for word in little.chunks_mut(4) {
        word.reverse();
    }
    let length = (frame().len() as u32).to_le_bytes();
    little.splice(32..40, [length, length].concat());
    little.extend(frame());
    assert_eq!(read(&little), one(1));
}

#[test]
fn packed_captures_are_unpacked_as_they_are_read() {
    let start = [section(), interface(1, b"")].concat();
    let rest = packet(6, 0, &frame(), b"");
    let gzip = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let zstd = |bytes: &[u8]| {
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        ruzstd::encoding::compress_to_vec(bytes, level)
    };
    let lz4 = |bytes: &[u8]| {
        let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let whole = [&start[..], &rest].concat();
    for (name, packed) in [
        ("gzip", gzip(&whole)),
        ("gzip in two parts", [gzip(&start), gzip(&rest)].concat()),
        ("zstd", zstd(&whole)),
        ("zstd in two parts", [zstd(&start), zstd(&rest)].concat()),
        ("lz4", lz4(&whole)),
    ] {
        assert_eq!(read(&packed), one(1), "{name}");
        // A truncated file gives an end or an error, never a panic.
        for cut in 4..packed.len() {
            let Ok(mut reader) = Reader::new(&packed[..cut], "memory") else {
                continue;
            };
            while let Ok(Some(_)) = reader.next_frame() {}
        }
    }
}
