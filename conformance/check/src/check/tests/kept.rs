//! Captures of mistakes that `check` once missed, and of forms of captures that it once refused:
//! files in `tests/captures/kept`, each with the findings that it has to give.
//!
//! `EFA_UPDATE=1 cargo test -p efa-check --lib kept` writes the files again. The packed ones are
//! made of `reserved-not-zero.pcapng` by `gzip`, `zstd` and `lz4`.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use efa_capture::frame::Frame;
use efa_testing::pcap::{
    ENHANCED, OBSOLETE, block, classic_header, classic_record, cooked, cooked_2, interface, option,
    packet, section,
};
use efa_testing::workspace::expect_file;
use efa_wire::rules::Severity;

use super::misuse::{
    left_behind, restarted, runting_read, window_of_message, window_of_read, with_old_connid,
};
use super::*;

const ETHERNET: u16 = 1;
const RAW_IP: u32 = 101;
const COOKED: u32 = 113;
const COOKED_2: u32 = 276;
const USB: u16 = 189;
const MICROSECONDS: u32 = 0xa1b2_c3d4;

/// A file, its bytes if they are compared, the frames that are in it, and the findings.
struct SavedFile {
    name: &'static str,
    bytes: Option<Vec<u8>>,
    frames: Vec<CapturedPacket>,
    broken: Vec<(&'static str, u64)>,
}

/// A segment beyond its message, which one packet shows, and an EOR before its read, which only the
/// order of packets at their receiver shows.
fn two_mistakes() -> Builder {
    let mut b = Builder::acquainted(all());
    b.send(A, B, &piece(1, 250), &[0; 100]);
    let memory = RmaIov::new(0x1000, 5000, 1);
    b.send(A, B, &long_read(2, 7, memory), b"");
    b.send(B, A, &eor(7, B), b"");
    for frame in &mut b.capture.frames {
        frame.time += Duration::from_secs(1_700_000_000);
    }
    b
}

const BOTH: [(&str, u64); 2] = [("segment-bounds", 7), ("eor-early", 11)];

/// A frame as it is on Ethernet.
fn ethernet(frame: &CapturedPacket) -> Vec<u8> {
    let mut header = frame.header;
    header.payload_captured = header.payload_length as usize == frame.payload.len();
    let frame = Frame {
        source: frame.source,
        destination: frame.destination,
        header,
        payload: &frame.payload,
    };
    let mut bytes = Vec::new();
    frame.emit(&mut bytes).unwrap();
    bytes
}

/// The option `epb_flags` of a frame.
fn flags(frame: &CapturedPacket) -> Vec<u8> {
    let direction = match frame.direction.unwrap() {
        Direction::Inbound => 1_u32,
        Direction::Outbound => 2,
    };
    option(2, &direction.to_le_bytes())
}

fn micros(frame: &CapturedPacket) -> u64 {
    frame.time.as_micros() as u64
}

/// A capture in pcapng: the blocks before the packets, and how a frame is written.
fn pcapng(
    interfaces: &[Vec<u8>],
    frames: &[CapturedPacket],
    write: impl Fn(&CapturedPacket) -> Vec<u8>,
) -> Vec<u8> {
    let packets = frames.iter().map(write).collect::<Vec<_>>().concat();
    [section(), interfaces.concat(), packets].concat()
}

/// An Enhanced Packet Block, whose options have no end mark.
fn enhanced(frame: &CapturedPacket) -> Vec<u8> {
    let id = frame.interface as u32;
    packet(ENHANCED, id, micros(frame), &ethernet(frame), &flags(frame))
}

fn classic(
    linktype: u32,
    frames: &[CapturedPacket],
    link: impl Fn(&CapturedPacket) -> Vec<u8>,
) -> Vec<u8> {
    let record = |frame: &CapturedPacket| {
        let (seconds, fraction) = (frame.time.as_secs() as u32, frame.time.subsec_micros());
        classic_record(seconds, fraction, b"", &link(frame))
    };
    let records = frames.iter().map(record).collect::<Vec<_>>().concat();
    [classic_header(MICROSECONDS, linktype), records].concat()
}

/// The packet type of a cooked frame.
fn cooked_type(frame: &CapturedPacket) -> u8 {
    match frame.direction.unwrap() {
        Direction::Inbound => 0,
        Direction::Outbound => 4,
    }
}

/// Each form in which tools write captures, with the same frames.
fn forms() -> Vec<SavedFile> {
    let frames = two_mistakes().capture.frames;
    let of = |change: &dyn Fn(&mut CapturedPacket)| {
        let mut frames = frames.clone();
        frames.iter_mut().for_each(change);
        frames
    };
    let one_interface = of(&|frame| frame.interface = 0);
    let one_without_directions = of(&|frame| (frame.interface, frame.direction) = (0, None));
    let without_times = of(&|frame| {
        (frame.interface, frame.direction) = (0, None);
        frame.time = Duration::ZERO;
    });
    let plain = interface(ETHERNET, 0, b"");
    let form = |name, bytes: Option<Vec<u8>>, frames: &[CapturedPacket]| SavedFile {
        name,
        bytes,
        frames: frames.to_vec(),
        broken: match frames[0].direction {
            Some(_) => BOTH.to_vec(),
            None => BOTH[..1].to_vec(),
        },
    };
    let latin_1 = |name: &[u8]| interface(ETHERNET, 0, &option(2, name));
    let commented = |frame: &CapturedPacket| {
        let options = [option(1, b"p\xe9tition"), flags(frame)].concat();
        let id = frame.interface as u32;
        packet(ENHANCED, id, micros(frame), &ethernet(frame), &options)
    };
    // The clock of B is written 1,000 seconds ahead, and moved back.
    let moved = |frame: &CapturedPacket| {
        let ahead = 1_000_000_000 * frame.interface as u64;
        let id = frame.interface as u32;
        let time = micros(frame) + ahead;
        packet(ENHANCED, id, time, &ethernet(frame), &flags(frame))
    };
    let back = option(14, &(-1_000_i64).to_le_bytes());
    let simple = |frame: &CapturedPacket| {
        let bytes = ethernet(frame);
        block(
            3,
            &[&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat(),
        )
    };
    // The upper half of the interface's word counts packets that were dropped before.
    let obsolete = |frame: &CapturedPacket| {
        let id = frame.interface as u32 | 7 << 16;
        packet(OBSOLETE, id, micros(frame), &ethernet(frame), &flags(frame))
    };
    let shifted = of(&|frame| {
        frame.interface += 1;
        frame.number += 1;
    });
    let after_usb = |frame: &CapturedPacket| match frame.number {
        2 => [packet(ENHANCED, 0, 0, b"a mouse", b""), enhanced(frame)].concat(),
        _ => enhanced(frame),
    };
    let reserved = interface(ETHERNET, 0xbeef, b"");
    let interfaces = [plain.clone(), plain.clone()];
    let mut unrelated = form(
        "unrelated-interface.pcapng",
        Some(pcapng(
            &[interface(USB, 0, b""), plain.clone(), plain.clone()],
            &shifted,
            after_usb,
        )),
        &shifted,
    );
    for (_, number) in &mut unrelated.broken {
        *number += 1;
    }
    vec![
        form(
            "options-without-end.pcapng",
            Some(pcapng(&interfaces, &frames, enhanced)),
            &frames,
        ),
        form(
            "not-utf8.pcapng",
            Some(pcapng(
                &[latin_1(b"caf\xe9"), latin_1(b"\xfcber")],
                &frames,
                commented,
            )),
            &frames,
        ),
        form(
            "reserved-not-zero.pcapng",
            Some(pcapng(&[reserved.clone(), reserved], &frames, enhanced)),
            &frames,
        ),
        form(
            "negative-offset.pcapng",
            Some(pcapng(
                &[plain.clone(), interface(ETHERNET, 0, &back)],
                &frames,
                moved,
            )),
            &frames,
        ),
        form(
            "simple-packet-blocks.pcapng",
            Some(pcapng(&interfaces[..1], &frames, simple)),
            &without_times,
        ),
        form(
            "obsolete-packet-blocks.pcapng",
            Some(pcapng(&interfaces, &frames, obsolete)),
            &frames,
        ),
        form(
            "classic-of-two-hosts.pcap",
            Some(classic(ETHERNET.into(), &frames, ethernet)),
            &one_without_directions,
        ),
        form(
            "cooked.pcap",
            Some(classic(COOKED, &frames, |frame| {
                cooked(&ethernet(frame), cooked_type(frame))
            })),
            &one_interface,
        ),
        form(
            "cooked-2.pcap",
            Some(classic(COOKED_2, &frames, |frame| {
                cooked_2(&ethernet(frame), cooked_type(frame))
            })),
            &one_interface,
        ),
        form(
            "raw-ip.pcap",
            Some(classic(RAW_IP, &frames, |frame| {
                ethernet(frame)[efa_testing::pcap::ETHERNET..].to_vec()
            })),
            &one_without_directions,
        ),
        unrelated,
        form("packed.pcapng.gz", None, &frames),
        form("packed.pcapng.zst", None, &frames),
        form("packed.pcapng.lz4", None, &frames),
    ]
}

/// Packets of each extra feature, to a peer that announced only connids.
fn unannounced() -> Builder {
    let mut b = Builder::acquainted(ExtraFeatures::CONNID_HEADER);
    let memory = RmaIov::new(0x1000, 5000, 1);
    b.send(A, B, &long_read(1, 7, memory), b"");
    let dc = EagerRtm {
        receipt: Some(SendId(8)),
        ..eager(2, None, Some(A))
    };
    b.send(A, B, &dc, b"");
    let runt = RuntreadRtm {
        msg_id: MsgId(3),
        msg_length: 5000,
        runt_length: 1000,
        send_id: SendId(9),
        read_iov: RmaIovs::new(&[memory]).unwrap(),
        options: options(None, Some(A)),
        ..RuntreadRtm::default()
    };
    b.send(A, B, &runt, &[0; 1000]);
    b.send(A, B, &peer_error(4, PeerError::NO_OP, OpeType::TXE, A), b"");
    // A refuses a read of B.
    let read = LongreadRtm {
        options: options(Some(B), None),
        ..long_read(0, 5, memory)
    };
    b.send(B, A, &read, b"");
    let nack = ReadNack {
        connid: connid(A),
        send_id: SendId(5),
        ..ReadNack::default()
    };
    b.send(A, B, &nack, b"");
    b.rdma_read(A, B, RmaIov::new(0x9000, 64, 9), 64);
    b
}

/// Each kind of mistake.
fn mistakes() -> Vec<SavedFile> {
    let mistake = |name, b: Builder, broken: &[(&'static str, u64)]| SavedFile {
        name,
        bytes: Some(pcapng(
            &[interface(ETHERNET, 0, b""), interface(ETHERNET, 0, b"")],
            &b.capture.frames,
            enhanced,
        )),
        broken: broken.to_vec(),
        frames: b.capture.frames,
    };
    let (none, read) = (CtsFlags::empty(), CtsFlags::EMULATED_READ);
    let announced = [7, 9, 11, 13, 15, 17].map(|packet| ("feature-announced", packet));
    let unannounced_broken = [&announced[..], &[("rdma-announced", 19)]].concat();
    vec![
        mistake(
            "refused-left-behind.pcapng",
            left_behind(),
            &[("msg-id-refused", 11)],
        ),
        mistake(
            "features-not-announced.pcapng",
            unannounced(),
            &unannounced_broken,
        ),
        mistake(
            "read-flag-of-message.pcapng",
            window_of_message(read),
            &[("cts-read-flag", 9)],
        ),
        mistake(
            "read-flag-missing.pcapng",
            window_of_read(none),
            &[("cts-read-flag", 11)],
        ),
        mistake(
            "numbers-go-on.pcapng",
            restarted(2..8),
            &[("msg-id-first", 11)],
        ),
        mistake(
            "runt-too-long.pcapng",
            runting_read(2100, 2000),
            &[("runt-length", 7)],
        ),
        mistake(
            "old-connid.pcapng",
            with_old_connid(true),
            &[("connid-fresh", 13)],
        ),
    ]
}

/// The compared parts of a frame.
fn read(frame: &CapturedPacket) -> impl PartialEq + std::fmt::Debug + use<> {
    let header = (frame.header.kind, frame.header.sequence, frame.header.qkey);
    let place = (frame.number, frame.interface, frame.time, frame.direction);
    (place, frame.source, header, frame.payload.clone())
}

#[test]
fn kept_captures_have_their_findings() {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/captures/kept");
    let all: Vec<SavedFile> = forms().into_iter().chain(mistakes()).collect();
    for kept in &all {
        let (path, name) = (directory.join(kept.name), kept.name);
        if let Some(bytes) = &kept.bytes {
            expect_file(&path, "-p efa-check --lib kept", bytes);
        }
        let capture = Capture::load(&path).unwrap();
        assert_eq!(capture.damage, [""; 0], "{name}");
        let frames: Vec<_> = capture.frames.iter().map(read).collect();
        let expected: Vec<_> = kept.frames.iter().map(read).collect();
        assert_eq!(frames, expected, "{name}");
        let errors = check(&capture).findings.into_iter();
        let errors = errors.filter(|finding| finding.severity == Severity::Error);
        let errors: Vec<_> = errors.map(|it| (it.rule.id, it.packet)).collect();
        assert_eq!(errors, kept.broken, "{name}");
    }
    let names = fs::read_dir(&directory).unwrap();
    let names: BTreeSet<_> = names.map(|it| it.unwrap().file_name()).collect();
    let known = all.iter().map(|kept| kept.name.into()).collect();
    assert_eq!(names, known);
}
