//! The fields that `tshark` shows with `wireshark/efa.lua` equal those that `efa_core::wire` reads.
//!
//! Needs `tshark`; without it the tests say so and pass.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use bitflags::{Bits as _, Flags};
use efa_capture::frame::{self, Frame, Rdma, Repr};
use efa_capture::{
    CaptureTap, Direction, Interface, InterfaceId, Reader, SharedFile, WHOLE_FRAMES, Writer,
    create_shared,
};
use efa_core::address::{Gid, Qkey, Qpn};
use efa_core::endpoint::ProviderError;
use efa_core::nic::Status;
use efa_core::wire::fields::{FieldKind, Presence, Value, Width, fields_of, sections};
use efa_core::wire::{
    AtomicDatatype, AtomicOp, CtsFlags, ExtraFeatures, Family, HandshakeFlags, OpeType, Packet,
    PacketType, ReqFlags, UniversalFlags,
};
use efa_device_model::link::RemoteRange;
use efa_testing::addresses::gid;
use efa_testing::workspace::{captures, expect_file, root, traces};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

use efa_wireshark::{DissectedFrame, JoinedCaptures, Tshark};

const FROM: Gid = gid(1);
const TO: Gid = gid(2);

fn header(kind: frame::FrameKind, payload: usize) -> Repr {
    Repr {
        source_qpn: Qpn(3),
        destination_qpn: Qpn(4),
        qkey: Qkey(0x1122_3344),
        sequence: 5,
        path: 6,
        ..Repr::new(kind, payload)
    }
}

/// A capture of frames with these headers and payloads.
fn capture<'a>(frames: impl IntoIterator<Item = (Repr, &'a [u8])>) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    let interface = Interface::new("a", "efa2", FROM);
    let id = writer.add_interface(&interface).unwrap();
    for (number, (header, payload)) in frames.into_iter().enumerate() {
        let frame = Frame {
            source: FROM,
            destination: TO,
            header,
            payload,
        };
        let time = Duration::from_nanos(number as u64);
        writer.frame(id, time, Direction::Outbound, &frame);
    }
    writer.finish(Duration::ZERO).unwrap()
}

fn capture_packets(packets: &[Vec<u8>]) -> Vec<u8> {
    capture(
        packets
            .iter()
            .map(|packet| (header(frame::FrameKind::Send, packet.len()), &packet[..])),
    )
}

/// A random packet of this type and with these flags, valid as far as one packet can be.
fn packet(packet_type: PacketType, flags: u16, rng: &mut StdRng) -> Vec<u8> {
    let mut packet = vec![packet_type.code(), 4];
    packet.extend(flags.to_le_bytes());
    let mut data_length_at = None;
    let mut counts = [0; 3];
    let mut surplus = 0;
    for section in sections(packet_type) {
        let entries = section.array.map_or(1, |array| counts[array as usize]);
        for _ in 0..entries {
            for field in section.fields {
                let has_room = match field.presence {
                    Presence::UnlessFlagIfRoom(_) => rng.random(),
                    _ => true,
                };
                let present = field.presence.holds(packet_type, flags) && has_room;
                if !present || matches!(field.name, "type" | "version" | "flags") {
                    continue;
                }
                let width = match (field.width, field.kind) {
                    (Width::Fixed(width), _) => width,
                    (Width::RawAddressSurplus, _) => surplus,
                    (Width::Rest, FieldKind::Data) => rng.random_range(0..100),
                    (Width::Rest, _) => 0,
                };
                let at = packet.len();
                packet.resize(at + width, 0);
                rng.fill_bytes(&mut packet[at..]);
                let number = match field.kind {
                    FieldKind::Count(array) => {
                        let bias = if field.name == "nextra_p3" { 3 } else { 0 };
                        counts[array as usize] = rng.random_range(0..=4);
                        Some(counts[array as usize] as u32 + bias)
                    }
                    FieldKind::RawAddressSize => {
                        surplus = [0, 4, 32][rng.random_range(0..3)];
                        Some(32 + surplus as u32)
                    }
                    FieldKind::AtomicDatatype | FieldKind::AtomicOp => {
                        Some(rng.random_range(0..22))
                    }
                    _ => None,
                };
                if let Some(number) = number {
                    packet[at..].copy_from_slice(&number.to_le_bytes());
                }
                match field.name {
                    "seg_length" => data_length_at = Some(at),
                    "data" => {
                        if let Some(stated) = data_length_at {
                            packet[stated..stated + 8]
                                .copy_from_slice(&(width as u64).to_le_bytes());
                        }
                    }
                    _ => {}
                }
            }
        }
    }
    packet
}

/// The expected fields of a packet, by filter name.
fn expected(packet: &[u8]) -> BTreeMap<String, Vec<String>> {
    let mut expected: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for field in fields_of(packet).into_iter().flatten() {
        let value = match field.value {
            Value::Unsigned(number) => number.to_string(),
            Value::Gid(gid) => gid.to_string(),
            Value::Bytes(bytes) => hex(bytes),
        };
        expected
            .entry(format!("efa_rdm.{}", field.descriptor.name))
            .or_default()
            .push(value);
    }
    expected
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The fields of `efa_rdm` that come from packets, with numbers in decimal and bytes in
/// hexadecimal.
fn shown_fields(shown: &DissectedFrame, packet: &[u8]) -> BTreeMap<String, Vec<String>> {
    let kinds: BTreeMap<_, _> = fields_of(packet)
        .into_iter()
        .flatten()
        .map(|field| (format!("efa_rdm.{}", field.descriptor.name), field.value))
        .collect();
    let is_derived = |name: &str| {
        let last = name.trim_start_matches("efa_rdm.");
        last.starts_with("flags.")
            || last.starts_with("extra_info.")
            || last.starts_with("rule.")
            || last.starts_with("transfer")
            || last.starts_with("negotiated")
            || matches!(
                last,
                "data_length" | "raw_addr" | "user_recv_qp" | "hmem_p2p"
            )
            || matches!(
                last,
                "rma_iov" | "read_iov" | "malformed" | "sender_version"
            )
    };
    let mut fields = BTreeMap::new();
    for (name, values) in shown.fields("efa_rdm.") {
        if is_derived(&name) {
            continue;
        }
        let normal = values.iter().map(|value| match kinds.get(&name) {
            Some(Value::Bytes(_)) => value.replace(':', ""),
            Some(Value::Unsigned(_)) => match value.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).unwrap().to_string(),
                None => value.clone(),
            },
            _ => value.clone(),
        });
        let normal = normal.collect();
        fields.insert(name, normal);
    }
    fields
}

/// The bits of flags and features by name, whether set or not; unnamed bits in hexadecimal.
fn expected_bits(packet: &[u8]) -> BTreeMap<String, String> {
    fn name_bits<F: Flags>(group: &str, bits: F::Bits, named: &mut BTreeMap<String, String>)
    where
        F::Bits: std::fmt::LowerHex,
    {
        let mut unknown = bits;
        for flag in F::FLAGS.iter().filter(|flag| flag.is_named()) {
            let name = format!("efa_rdm.{group}.{}", flag.name().to_lowercase());
            let is_set = bits & flag.value().bits() == flag.value().bits();
            named.insert(name, u8::from(is_set).to_string());
            unknown = unknown & !flag.value().bits();
        }
        if unknown != F::Bits::EMPTY {
            named.insert(format!("efa_rdm.{group}.unknown"), format!("{unknown:x}"));
        }
    }
    let mut named = BTreeMap::new();
    let mut words = 0;
    for field in fields_of(packet).into_iter().flatten() {
        let Some(number) = field.value.as_u64() else {
            continue;
        };
        if field.descriptor.kind == FieldKind::Flags {
            let (flags, bits) = ("flags", number as u16);
            match field.packet_type {
                PacketType::Handshake => name_bits::<HandshakeFlags>(flags, bits, &mut named),
                PacketType::Cts => name_bits::<CtsFlags>(flags, bits, &mut named),
                other if other.is_req() => name_bits::<ReqFlags>(flags, bits, &mut named),
                _ => name_bits::<UniversalFlags>(flags, bits, &mut named),
            }
        } else if field.descriptor.name == "extra_info" {
            let group = "extra_info";
            if words == 0 {
                name_bits::<ExtraFeatures>(group, number, &mut named);
            } else if number != 0 {
                let unknown = named.entry(format!("efa_rdm.{group}.unknown"));
                let text = unknown.or_default();
                let separator = if text.is_empty() { "" } else { "," };
                *text = format!("{text}{separator}{number:x}");
            }
            words += 1;
        }
    }
    named
}

fn shown_bits(shown: &DissectedFrame) -> BTreeMap<String, String> {
    let groups = ["efa_rdm.flags.", "efa_rdm.extra_info."];
    let fields = groups.iter().flat_map(|group| shown.fields(group));
    fields
        .map(|(name, values)| {
            let values: Vec<_> = values
                .iter()
                .map(|value| match value.as_str() {
                    "True" => "1",
                    "False" => "0",
                    digits => match digits.strip_prefix("0x") {
                        Some(digits) => digits.trim_start_matches('0'),
                        None => digits,
                    },
                })
                .collect();
            (name, values.join(","))
        })
        .collect()
}

fn compare(packets: &[Vec<u8>], tshark: &Tshark) {
    let shown = tshark.dissect(&capture_packets(packets));
    assert_eq!(shown.len(), packets.len());
    for (number, (shown, packet)) in shown.iter().zip(packets).enumerate() {
        let about = format!("frame {}: {}", number + 1, hex(packet));
        assert_eq!(shown_fields(shown, packet), expected(packet), "{about}");
        assert_eq!(shown_bits(shown), expected_bits(packet), "{about}");
        let parsed = Packet::parse(packet).map(|packet| packet.header);
        assert_eq!(
            shown.has("efa_rdm.malformed"),
            parsed.is_err(),
            "{about} {parsed:?}"
        );
    }
}

/// A client of another protocol may send from our port: the dissector that recognises the datagrams
/// gets them.
#[test]
fn foreign_datagrams_from_our_port_are_ignored() {
    let Some(tshark) = Tshark::find() else { return };
    let room = vec![vec![0; 1200 - frame::header::HEADER_LEN]];
    let mut blocks = owned_blocks(&capture_packets(&room));
    let frame = blocks.iter_mut().find(|block| block[0] == 6).unwrap();
    let payload = 28 + frame::OUTER_LEN;
    // The start of a QUIC connection: long header, version 1, a connection id of 8 bytes, none of
    // the client, no token, the length of the rest.
    let mut initial = vec![0xc3, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0];
    let rest = 1200 - initial.len() - 2;
    initial.extend((0x4000 | rest as u16).to_be_bytes());
    frame[payload..payload + initial.len()].copy_from_slice(&initial);
    let lines = tshark.lines(&blocks.concat());
    assert!(lines[0].starts_with("QUIC|"), "{lines:?}");

    // Too short for recognition, but not ours; and the first bytes of ours, truncated by the
    // sender.
    for (bytes, protocol) in [
        (&b""[..], "UDP"),
        (b"x", "UDP"),
        (b"EX", "UDP"),
        (b"EF\x01", "EFA"),
    ] {
        let lines = tshark.lines(&datagram(bytes));
        let [line] = &lines[..] else {
            panic!("one frame: {lines:?}");
        };
        assert!(line.starts_with(&format!("{protocol}|")), "{line}");
    }
}

/// A capture of a datagram to our port with this payload.
fn datagram(payload: &[u8]) -> Vec<u8> {
    let mut blocks = owned_blocks(&capture_packets(&[vec![]]));
    let block = blocks.iter_mut().find(|block| block[0] == 6).unwrap();
    let captured = frame::OUTER_LEN + payload.len();
    let udp_length = (payload.len() as u16 + 8).to_be_bytes();
    // In the IPv6 header and in the UDP header.
    block[28 + 14 + 4..][..2].copy_from_slice(&udp_length);
    block[28 + frame::OUTER_LEN - 4..][..2].copy_from_slice(&udp_length);
    block[20..24].copy_from_slice(&(captured as u32).to_le_bytes());
    block[24..28].copy_from_slice(&(captured as u32).to_le_bytes());
    block[28 + frame::OUTER_LEN..][..payload.len()].copy_from_slice(payload);
    let length = 28 + captured.next_multiple_of(4) + 4;
    block.truncate(length);
    block[4..8].copy_from_slice(&(length as u32).to_le_bytes());
    block[length - 4..].copy_from_slice(&(length as u32).to_le_bytes());
    blocks.concat()
}

/// Every packet type with all combinations of the flags that change its layout, or some of them.
fn corpus(rng: &mut StdRng) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    for packet_type in PacketType::ALL {
        let flags: Vec<u16> = match (packet_type, packet_type.family()) {
            (PacketType::Handshake, _) => (0..32)
                .map(|bits| (bits & 0xf) | ((bits & 0x10) << 11))
                .collect(),
            (_, Family::Control) => vec![0, 0x8000, 0x80],
            (_, Family::Retired | Family::Local) => vec![0],
            _ => (0..8)
                .map(|bits| (bits & 3) | ((bits & 4) << 13) | 0x2c)
                .collect(),
        };
        for flags in flags {
            for _ in 0..4 {
                packets.push(packet(*packet_type, flags, rng));
            }
        }
    }
    packets
}

#[test]
fn every_packet_type_shows_the_codecs_values() {
    let Some(tshark) = Tshark::find() else { return };
    let mut rng = StdRng::seed_from_u64(1);
    let packets = corpus(&mut rng);
    // The corpus consists of packets that are accepted, except for the types that are never
    // accepted.
    for packet in &packets {
        let packet_type = PacketType::peek(packet).unwrap();
        let accepted = Packet::parse(packet).is_ok();
        assert_eq!(
            accepted,
            packet_type.has_header(),
            "{packet_type} {}",
            hex(packet)
        );
    }
    compare(&packets, &tshark);
}

#[test]
fn truncated_packets_show_fields_before_the_cut() {
    let Some(tshark) = Tshark::find() else { return };
    let mut rng = StdRng::seed_from_u64(2);
    let mut packets = Vec::new();
    for whole in corpus(&mut rng) {
        // A packet of less than four bytes has no flags, so the dissector shows only the base
        // header; the codec's walk shows the same.
        packets.push(whole[..rng.random_range(1..whole.len())].to_vec());
    }
    compare(&packets, &tshark);
}

/// The forms of development states are recognised by their length. Any other length than the
/// released form's is refused, too.
#[test]
fn peer_errors_show_the_fields_they_contain() {
    let Some(tshark) = Tshark::find() else { return };
    let whole: Vec<u8> = [12, 4, 0, 0x80].into_iter().chain(1..=60).collect();
    let packets: Vec<_> = (4..=64).map(|length| whole[..length].to_vec()).collect();
    compare(&packets, &tshark);
    let valid = packets
        .iter()
        .filter(|packet| Packet::parse(packet).is_ok());
    assert_eq!(valid.map(Vec::len).collect::<Vec<_>>(), [24]);
}

#[test]
fn mutated_packets_match_the_codec_without_lua_errors() {
    let Some(tshark) = Tshark::find() else { return };
    let mut rng = StdRng::seed_from_u64(3);
    let mut packets = Vec::new();
    while packets.len() < mutations() / 3 {
        for mut packet in corpus(&mut rng) {
            for _ in 0..rng.random_range(1..4) {
                let at = rng.random_range(0..packet.len());
                packet[at] = [rng.random(), 0, 0xff, 1, 4][rng.random_range(0..5)];
            }
            if rng.random_ratio(1, 4) {
                packet.truncate(rng.random_range(1..=packet.len()));
            }
            // A packet of an unassigned type has no fields to compare.
            if PacketType::peek(&packet).is_some() {
                packets.push(packet);
            }
        }
    }
    compare(&packets, &tshark);
}

#[test]
fn mutated_frames_never_make_a_lua_error() {
    let Some(tshark) = Tshark::find() else { return };
    let mut rng = StdRng::seed_from_u64(4);
    let mut whole = Vec::new();
    let packets = corpus(&mut rng);
    let kinds = [
        frame::FrameKind::Send,
        frame::FrameKind::RdmaWrite(Rdma {
            remote: RemoteRange { address: 1, key: 2 },
            total_length: 3,
            offset: 4,
        }),
        frame::FrameKind::Response(Status::RemoteRnr),
        frame::FrameKind::Datagram,
    ];
    for (number, packet) in packets.iter().enumerate() {
        let kind = if number % 2 == 0 {
            kinds[0]
        } else {
            kinds[number / 2 % kinds.len()]
        };
        whole.push((header(kind, packet.len()), &packet[..]));
    }
    let original = capture(whole);
    // Mutates only the bytes after the UDP header, so that the frames still reach the dissector.
    let blocks = efa_wireshark::blocks(&original);
    let (packets, others): (Vec<&[u8]>, Vec<&[u8]>) =
        blocks.into_iter().partition(|block| block[0] == 6);
    let mut mutated: Vec<u8> = others[..2].concat();
    for number in 0..mutations() {
        let mut block = packets[number % packets.len()].to_vec();
        let transport = 28 + frame::OUTER_LEN;
        let end = block.len() - 16;
        for _ in 0..rng.random_range(1..5) {
            let at = rng.random_range(transport..end.max(transport + 1));
            block[at] = rng.random();
        }
        mutated.extend(block);
    }
    // The filter contains a field of the dissector, so that the dissector shows fields.
    let filter = "_ws.lua.error || (_ws.lua.error && efa_rdm.msg_id && efa.opcode)";
    // Transfers are followed in the first pass and shown in the second.
    assert_eq!(tshark.run(&mutated, &["-Y", filter]), "");
    assert_eq!(tshark.run(&mutated, &["-2", "-Y", filter]), "");
    // With the whole tree as well; `run` searches it for errors.
    let details = tshark.run(&mutated, &["-2", "-O", "efa,efa_rdm"]);
    assert_eq!(details.matches("\nFrame ").count() + 1, mutations());
    // The filter finds errors.
    let function = "local function read_header(tvb)\n";
    let broken = tshark.with_dissector(|text| {
        assert!(text.contains(function));
        text.replace(function, &format!("{function}error('deliberate')\n"))
    });
    let errors = broken.run_unchecked(&mutated, &["-c", "100", "-Y", filter]);
    assert_eq!(errors.lines().count(), 100);
}

/// Numbers with a name in the protocol are shown with the codec's name.
#[test]
fn codes_are_shown_with_their_names() {
    let Some(tshark) = Tshark::find() else { return };
    let mut packets = Vec::new();
    let mut expected = Vec::new();
    for packet_type in PacketType::ALL {
        packets.push(vec![packet_type.code(), 4, 0, 0]);
        expected.push(format!("{packet_type} ({})", packet_type.code()));
    }
    let rta = |datatype: u32, op: u32| {
        let words = [0, 0, datatype, op, 0].map(u32::to_le_bytes);
        [&[74, 4, 0x20, 0][..], &words.concat()].concat()
    };
    for code in 0..=20 {
        packets.push(rta(code, 0));
        packets.push(rta(0, code));
        for name in [AtomicDatatype(code).name(), AtomicOp(code).name()] {
            expected.push(format!("{} ({code})", name.unwrap_or("Unknown")));
        }
    }
    let peer_error = |side: u32, error: u32| {
        let words = [0, 0, side, error, 0].map(u32::to_le_bytes);
        [&[12, 4, 0, 0][..], &words.concat()].concat()
    };
    for code in 0..=3 {
        packets.push(peer_error(code, 0));
        let name = OpeType(code).name().unwrap_or("Unknown");
        expected.push(format!("{name} ({code})"));
    }
    let upper = |name: String| name.replace('_', "").to_uppercase();
    for error in ProviderError::ALL {
        packets.push(peer_error(0, error.code()));
        expected.push(format!("{error:?} ({})", error.code()));
    }
    let mut frames: Vec<_> = packets
        .iter()
        .map(|packet| (header(frame::FrameKind::Send, packet.len()), &packet[..]))
        .collect();
    for status in Status::ALL {
        frames.push((header(frame::FrameKind::Response(status), 0), &[]));
        expected.push(format!(
            "{status:?} ({}): {}",
            status.code(),
            status.describe()
        ));
    }
    for opcode in frame::Opcode::ALL {
        expected.push(format!("{opcode} ({})", opcode as u8));
    }
    let rdma = Rdma {
        remote: RemoteRange { address: 1, key: 2 },
        total_length: 0,
        offset: 0,
    };
    for kind in [
        frame::FrameKind::RdmaReadRequest(rdma),
        frame::FrameKind::RdmaReadResponse(rdma),
        frame::FrameKind::RdmaWrite(rdma),
        frame::FrameKind::Datagram,
    ] {
        frames.push((header(kind, 0), &[]));
    }
    let text = tshark.run(&capture(frames), &["-O", "efa,efa_rdm"]);
    let shown: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(_, value)| upper(value.to_owned()))
        .collect();
    for name in expected {
        assert!(shown.contains(&upper(name.clone())), "{name}");
    }
}

/// The number of frames to mutate: `EFA_MUTATIONS`, or a number that takes a few seconds.
fn mutations() -> usize {
    let wanted = std::env::var("EFA_MUTATIONS").ok();
    wanted.map_or(3000, |wanted| {
        wanted.parse().expect("EFA_MUTATIONS is a number")
    })
}

#[test]
fn transport_headers_show_their_fields() {
    let Some(tshark) = Tshark::find() else { return };
    let rdma = Rdma {
        remote: RemoteRange::new(0x0102_0304_0506_0708, 0x0a0b_0c0d),
        total_length: 1 << 20,
        offset: 8192,
    };
    let mut frames = vec![
        header(frame::FrameKind::Datagram, 3),
        header(frame::FrameKind::RdmaReadRequest(rdma), 0),
        header(frame::FrameKind::RdmaReadResponse(rdma), 3),
        Repr {
            immediate: Some(0xabcd),
            ..header(frame::FrameKind::RdmaWrite(rdma), 3)
        },
        Repr {
            retransmission: true,
            ..header(frame::FrameKind::Datagram, 0)
        },
        Repr {
            payload_captured: false,
            ..header(frame::FrameKind::Send, 8000)
        },
    ];
    for status in Status::ALL {
        frames.push(header(frame::FrameKind::Response(status), 0));
    }
    let data = [1, 2, 3];
    let shown = tshark.dissect(&capture(
        frames
            .iter()
            .map(|repr| (*repr, &data[..repr.captured_len()])),
    ));
    for (repr, shown) in frames.iter().zip(&shown) {
        let value = |name: &str| -> u64 {
            let text = shown.one(name);
            match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
                None => text.parse().unwrap(),
            }
        };
        assert_eq!(shown.one("efa.magic"), "EF");
        assert_eq!(value("efa.version"), 1);
        assert_eq!(value("efa.opcode"), repr.kind.opcode() as u64);
        assert_eq!(value("efa.flags"), u64::from(repr.flags().bits()));
        assert_eq!(value("efa.header_length"), repr.header_len() as u64);
        assert_eq!(value("efa.source_qpn"), 3);
        assert_eq!(value("efa.destination_qpn"), 4);
        assert_eq!(value("efa.qkey"), 0x1122_3344);
        assert_eq!(value("efa.sequence"), 5);
        assert_eq!(value("efa.path"), 6);
        assert_eq!(value("efa.payload_length"), u64::from(repr.payload_length));
        assert_eq!(shown.one("efa.source"), format!("[{FROM}]:3"));
        assert_eq!(shown.one("efa.destination"), format!("[{TO}]:4"));
        assert_eq!(shown.has("efa.immediate"), repr.immediate.is_some());
        if let Some(immediate) = repr.immediate {
            assert_eq!(value("efa.immediate"), u64::from(immediate));
        }
        assert_eq!(
            shown.has("efa.rdma.remote_address"),
            repr.kind.rdma().is_some()
        );
        if let Some(rdma) = repr.kind.rdma() {
            assert_eq!(value("efa.rdma.remote_address"), rdma.remote.address);
            assert_eq!(value("efa.rdma.remote_key"), u64::from(rdma.remote.key));
            assert_eq!(value("efa.rdma.total_length"), u64::from(rdma.total_length));
            assert_eq!(value("efa.rdma.offset"), u64::from(rdma.offset));
        }
        assert_eq!(
            shown.has("efa.status"),
            matches!(repr.kind, frame::FrameKind::Response(_))
        );
        if let frame::FrameKind::Response(status) = repr.kind {
            assert_eq!(value("efa.status"), u64::from(status.code()));
        }
        assert_eq!(shown.has("efa.data"), repr.captured_len() > 0);
        assert!(!shown.has("efa.rule.transport-form"));
        // The outer headers are correct, including the UDP checksum.
        assert_eq!(shown.one("udp.checksum.status"), "1");
    }
}

#[test]
fn only_our_traffic_is_recognised_on_any_port() {
    let Some(tshark) = Tshark::find() else { return };
    let mut rng = StdRng::seed_from_u64(5);
    let real = packet(PacketType::EagerMsgRtm, 4, &mut rng);
    let mut blocks: Vec<Vec<u8>> = efa_wireshark::blocks(&capture_packets(&vec![real; 40]))
        .iter()
        .map(|b| b.to_vec())
        .collect();
    let udp = 28 + frame::OUTER_LEN - 8;
    let mut is_ours = Vec::new();
    for block in blocks.iter_mut().filter(|block| block[0] == 6) {
        // Another port, and one damaged byte that the header checks, or none.
        block[udp + 2..udp + 4].copy_from_slice(&[0x15, 0xb3]);
        let number = is_ours.len();
        let damaged = match number % 10 {
            1 => Some(0),  // magic
            2 => Some(2),  // version
            3 => Some(3),  // opcode
            4 => Some(5),  // unassigned flags
            5 => Some(6),  // header length
            6 => Some(24), // status in a request
            7 => Some(25), // reserved
            8 => Some(28), // payload length
            _ => None,
        };
        if let Some(at) = damaged {
            block[udp + 8 + at] ^= 0x80;
        }
        is_ours.push(damaged.is_none());
    }
    let shown = tshark.dissect(&blocks.concat());
    let claimed: Vec<bool> = shown.iter().map(|shown| shown.has("efa.opcode")).collect();
    assert_eq!(claimed, is_ours);
}

/// A transport header that a reader has to refuse breaks the rule `transport-form`, with the
/// reason.
#[test]
fn headers_without_form_are_named() {
    let Some(tshark) = Tshark::find() else { return };
    // {byte of the header, its new value, the message}
    let damages = [
        (2, 2, "version 2, but only 1 is known"),
        (3, 99, "opcode 99 is not assigned"),
        (6, 31, "header length 31, but SEND needs 32"),
        (6, 60, "header length 60, but there are 36 bytes"),
        (
            28,
            5,
            "payload length is 5, but the frame has 4 bytes of data",
        ),
    ];
    let packet = vec![64, 4, 4, 0];
    let mut blocks = owned_blocks(&capture_packets(&vec![packet; damages.len() + 1]));
    let frames = blocks.iter_mut().filter(|block| block[0] == 6);
    for (block, (at, value, _)) in frames.zip(damages) {
        block[28 + frame::OUTER_LEN + at] = value;
    }
    let text = tshark.run(
        &blocks.concat(),
        &["-O", "efa", "-Y", "efa.rule.transport-form"],
    );
    for (_, _, reason) in damages {
        let line = format!("[Expert Info (Error/Malformed): {reason}]");
        assert!(text.contains(&line), "{reason}:\n{text}");
    }
    assert_eq!(text.matches("[Expert Info").count(), damages.len());
}

/// The capture with other bytes after the UDP headers, to another port.
fn with_payloads(mut blocks: Vec<Vec<u8>>, mut payload: impl FnMut(&mut [u8])) -> Vec<u8> {
    let udp = 28 + frame::OUTER_LEN - 8;
    for block in blocks.iter_mut().filter(|block| block[0] == 6) {
        block[udp + 2..udp + 4].copy_from_slice(&OTHER_PORT.to_be_bytes());
        let captured = u32::from_le_bytes(block[20..24].try_into().unwrap()) as usize;
        payload(&mut block[udp + 8..28 + captured]);
    }
    blocks.concat()
}

const OTHER_PORT: u16 = 5555;

fn owned_blocks(capture: &[u8]) -> Vec<Vec<u8>> {
    let blocks = efa_wireshark::blocks(capture);
    blocks.into_iter().map(<[u8]>::to_vec).collect()
}

#[test]
fn random_datagrams_and_other_protocols_are_not_claimed() {
    let Some(tshark) = Tshark::find() else { return };
    let claimed = |capture: &[u8]| tshark.run(capture, &["-Y", "efa || efa_rdm"]);
    let mut rng = StdRng::seed_from_u64(6);
    let packets: Vec<Vec<u8>> = (0..3000)
        .map(|_| vec![0; rng.random_range(1..200)])
        .collect();
    let random = with_payloads(owned_blocks(&capture_packets(&packets)), |payload| {
        rng.fill_bytes(payload);
        // Some begin like one of our headers.
        let like_ours = [0x45, 0x46, 1, rng.random_range(1..7), 0, 0, 32, 0];
        let begin = rng.random_range(0..=8);
        payload[..begin].copy_from_slice(&like_ours[..begin]);
    });
    assert_eq!(claimed(&random), "");

    let directory = tempfile::tempdir().unwrap();
    let mut mergecap = Command::new("mergecap");
    let joined = directory.path().join("joined");
    mergecap.args(["-a", "-w"]).arg(&joined);
    for protocol in [
        "dns", "nbns", "syslog", "bvlc", "megaco", "udp", "ipv6", "sctp",
    ] {
        let file = directory.path().join(protocol);
        let mut randpkt = Command::new("randpkt");
        randpkt.args(["-b", "400", "-c", "500", "-t", protocol]);
        let Ok(output) = randpkt.arg(&file).output() else {
            efa_testing::skip("randpkt is not installed (apt-get install wireshark-common)");
            return;
        };
        assert!(output.status.success(), "{protocol}: {output:?}");
        assert!(file.metadata().unwrap().len() > 500 * 40, "{protocol}");
        mergecap.arg(file);
    }
    assert!(mergecap.status().unwrap().success());
    let capture = std::fs::read(joined).unwrap();
    // Other dissectors of Wireshark report errors in random bytes, which are ignored here.
    let found = tshark.run_unchecked(&capture, &["-Y", "efa || efa_rdm"]);
    assert_eq!(found, "");
}

#[test]
fn decode_as_takes_what_the_heuristic_leaves() {
    let Some(tshark) = Tshark::find() else { return };
    let mut rng = StdRng::seed_from_u64(7);
    let real = packet(PacketType::MediumTagRtm, 0xc, &mut rng);
    let header = frame::header::HEADER_LEN;
    // Bare RDM packets in UDP, as a hardware tap may produce them.
    let room = vec![vec![0; real.len() - header]];
    let bare = with_payloads(owned_blocks(&capture_packets(&room)), |payload| {
        payload.copy_from_slice(&real);
    });
    let fields = ["-T", "fields", "-e", "efa_rdm.type", "-e", "efa.opcode"];
    let decoded = |capture: &[u8], protocol: &str| {
        let rule = format!("udp.port=={OTHER_PORT},{protocol}");
        let text = tshark.run(capture, &[&["-d", &rule][..], &fields].concat());
        text.trim_end_matches('\n').to_owned()
    };
    assert_eq!(tshark.run(&bare, &fields).trim(), "");
    assert_eq!(decoded(&bare, "efa_rdm"), "67\t");
    // A reserved byte that a later version may use is accepted, but the heuristic is strict.
    let later = with_payloads(owned_blocks(&capture_packets(&[real])), |payload| {
        payload[25] = 1;
    });
    assert_eq!(tshark.run(&later, &fields).trim(), "");
    assert_eq!(decoded(&later, "efa"), "67\t1");
}

#[test]
fn datagrams_are_dissected_while_they_are_captured() {
    let Some(tshark) = Tshark::find() else { return };
    let mut rng = StdRng::seed_from_u64(8);
    let real = packet(PacketType::EagerMsgRtm, 4, &mut rng);
    let blocks = owned_blocks(&capture_packets(&[real]));
    let block = blocks.iter().find(|block| block[0] == 6).unwrap();
    let captured = u32::from_le_bytes(block[20..24].try_into().unwrap()) as usize;
    let datagram = &block[28 + frame::OUTER_LEN..28 + captured];

    let Ok(receiver) = std::net::UdpSocket::bind(("::1", frame::UDP_PORT)) else {
        efa_testing::skip(format_args!("UDP port {} of ::1 is taken", frame::UDP_PORT));
        return;
    };
    let sender = std::net::UdpSocket::bind(("::1", 0)).unwrap();
    let filter = format!("udp port {}", frame::UDP_PORT);
    let mut live = tshark
        .command()
        .args(["-i", "lo", "-f", &filter, "-c", "3", "-a", "duration:60"])
        .args(["-T", "fields", "-e", "efa_rdm.type", "-e", "efa.source"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while live.try_wait().unwrap().is_none() {
        sender
            .send_to(datagram, receiver.local_addr().unwrap())
            .unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = live.wait_with_output().unwrap();
    if !output.status.success() {
        efa_testing::skip("tshark may not capture on lo (be root, or in the group wireshark)");
        return;
    }
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, "64\t[::1]:3\n".repeat(3));
}

#[test]
fn captures_of_two_hosts_merge() {
    if Tshark::find().is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for (host, name) in [(FROM, "a"), (TO, "b")] {
        let interface = Interface::new(name, "efa2", host);
        create_shared(&path(name), &interface, WHOLE_FRAMES).unwrap();
        let mut file = SharedFile::open(&path(name)).unwrap();
        for number in 0..3_u64 {
            let frame = Frame {
                source: FROM,
                destination: TO,
                header: Repr {
                    sequence: number as u32,
                    ..header(frame::FrameKind::Send, 1)
                },
                payload: &[0],
            };
            let (direction, delay) = if host == FROM {
                (Direction::Outbound, 0)
            } else {
                (Direction::Inbound, 1)
            };
            let time = Duration::from_nanos(1_700_000_000_000_000_000 + 10 * number + delay);
            file.frame(InterfaceId::FIRST, time, direction, &frame);
        }
        file.close().unwrap();
    }
    let status = Command::new("mergecap")
        .args([OsStr::new("-w"), path("both").as_os_str()])
        .args([path("a"), path("b")])
        .status()
        .unwrap();
    assert!(status.success());
    let mut reader = Reader::open(&path("both")).unwrap();
    let mut seen = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        let sequence = frame.frame.unwrap().header.sequence;
        seen.push((
            frame.interface.0,
            sequence,
            frame.time.subsec_nanos(),
            frame.direction,
        ));
    }
    let (out, into) = (Some(Direction::Outbound), Some(Direction::Inbound));
    assert_eq!(
        seen,
        [
            (0, 0, 0, out),
            (1, 0, 1, into),
            (0, 1, 10, out),
            (1, 1, 11, into),
            (0, 2, 20, out),
            (1, 2, 21, into)
        ]
    );
    let names: Vec<_> = reader
        .interfaces()
        .iter()
        .filter_map(|i| i.name.as_deref())
        .collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn the_packet_list_tells_the_essentials() {
    let Some(tshark) = Tshark::find() else { return };
    use efa_core::wire::{EagerRtm, LongreadRtm, MsgId, Repr as _, RmaIov, RmaIovs, SendId};
    let eager = EagerRtm {
        msg_id: MsgId(5),
        tag: Some(0xcafe),
        ..EagerRtm::default()
    };
    let iov = [RmaIov::new(1, 2, 3)];
    let long = LongreadRtm {
        msg_id: MsgId(6),
        msg_length: 1 << 20,
        send_id: SendId(7),
        read_iov: RmaIovs::new(&iov).unwrap(),
        ..LongreadRtm::default()
    };
    let packets = [eager.to_packet(&[0; 64]), long.to_packet(b"")];
    let lines = tshark.lines(&capture_packets(&packets));
    assert_eq!(lines[0], "EFA RDM|EAGER_TAGRTM msg_id=5 tag=0xcafe len=64");
    assert_eq!(
        lines[1],
        "EFA RDM|LONGREAD_MSGRTM msg_id=6 send_id=7 read_iov=1 len=1048576"
    );
}

#[test]
fn recorded_traces_show_what_the_codec_reads() {
    let Some(tshark) = Tshark::find() else { return };
    let files = captures();
    let joined = JoinedCaptures::of(&files);
    let shown = tshark.dissect_twice(&joined.capture);
    assert_eq!(Some(shown.len()), joined.frames.last().map(|last| last.end));
    let mut reader = Reader::new(&joined.capture[..], "joined").unwrap();
    for (path, frames) in files.iter().zip(joined.frames) {
        for (number, shown) in (1..).zip(&shown[frames]) {
            let about = format!("{} frame {number}", path.display());
            let frame = reader.next_frame().unwrap().unwrap().frame.unwrap();
            assert_eq!(
                shown.one("efa.sequence"),
                frame.header.sequence.to_string(),
                "{about}"
            );
            let packet = frame.rdm_packet().filter(|packet| !packet.is_empty());
            let Some(packet) = packet else { continue };
            assert_eq!(shown_fields(shown, packet), expected(packet), "{about}");
            assert!(shown.has("efa_rdm.transfer"), "{about}");
            let broken: Vec<_> = shown.fields("efa_rdm.rule.packet-form").collect();
            assert!(broken.is_empty(), "{about}: {broken:?}");
        }
    }
}

/// Joins these traces of the corpus.
fn joined_traces(names: &[&str]) -> Vec<u8> {
    let path = |name: &&str| traces().join(format!("{name}.pcapng"));
    JoinedCaptures::of(&names.iter().map(path).collect::<Vec<_>>()).capture
}

/// While no details are on the screen, the dissector adds only the fields that a filter or a column
/// requests. A column then has the same value as the details.
#[test]
fn columns_have_what_the_details_have() {
    let Some(tshark) = Tshark::find() else { return };
    // Subtrees have no value of their own.
    let fields = tshark.fields().into_iter();
    let names: Vec<String> = fields
        .filter(|(_, [kind, ..])| kind != "FT_NONE")
        .map(|(name, _)| name)
        .collect();
    let columns = names
        .iter()
        .map(|name| format!(",\"{name}\",\"%Cus:{name}:0:U\""));
    let columns = format!(
        "gui.column.format:\"No.\",\"%m\"{}",
        columns.collect::<String>()
    );
    let mut seen = BTreeSet::new();
    let capture = joined_traces(&[
        "long-cts",
        "runting-read",
        "read-emulated",
        "delivery-complete",
    ]);
    for passes in [1, 2] {
        let options = ["-T", "tabs", "-o", &columns, "-2"];
        let text = tshark.run(&capture, &options[..3 + passes]);
        let shown = match passes {
            1 => tshark.dissect(&capture),
            _ => tshark.dissect_twice(&capture),
        };
        assert_eq!(text.lines().count(), shown.len());
        for (line, shown) in text.lines().zip(&shown) {
            // Empty columns at the end of a line are left out.
            let cells = line.split('\t').skip(1).chain(std::iter::repeat(""));
            for (field, cell) in names.iter().zip(cells) {
                assert_eq!(
                    !cell.is_empty(),
                    shown.has(field),
                    "in {passes}: {line}: {field}"
                );
                if !cell.is_empty() {
                    seen.insert(field);
                }
            }
        }
    }
    assert!(seen.len() > 80, "only {seen:?}");
}

/// The subtrees of optional parts, which have no value of their own, are found like their fields.
#[test]
fn filters_find_subtrees() {
    let Some(tshark) = Tshark::find() else { return };
    let mut rng = StdRng::seed_from_u64(10);
    // One packet with each combination of flags.
    let packets: Vec<_> = corpus(&mut rng).into_iter().step_by(4).collect();
    let packets = capture_packets(&packets);
    let groups = [
        ("raw_addr", "raw_addr.qpn"),
        ("read_iov", "read_iov.key"),
        ("rma_iov", "rma_iov.key"),
        ("user_recv_qp", "user_recv_qp.qkey"),
        ("hmem_p2p", "hmem_p2p.p2p_supported"),
        ("negotiated", "negotiated.sender_handshake_in"),
    ];
    let find = |options: &[&str]| {
        // All parts in one run: a shown field does not affect another one.
        let parts = groups.map(|(_, part)| format!("efa_rdm.{part}"));
        let shown = parts.iter().flat_map(|part| ["-e", part.as_str()]);
        let shown: Vec<&str> = [options, &["-T", "fields", "-E", "separator=;"]]
            .concat()
            .into_iter()
            .chain(shown)
            .collect();
        let table = tshark.run(&packets, &shown);
        let of_part = |at: usize| {
            let has = |line: &&str| line.split(';').nth(at).is_some_and(|cell| !cell.is_empty());
            table.lines().filter(has).count()
        };
        for (at, (group, _)) in groups.iter().enumerate() {
            // A single part: the dissector shows only the requested fields.
            let filter = format!("efa_rdm.{group}");
            let text = tshark.run(&packets, &[&["-Y", &filter], options].concat());
            let found = text.lines().count();
            assert!(found > 3 && found == of_part(at), "{group}: {found}");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| find(&["-2"]));
        find(&[]);
    });
}

/// The capture with no more than `snaplen` bytes of each frame.
fn cut_off(capture: &[u8], snaplen: usize) -> Vec<u8> {
    let mut blocks = owned_blocks(capture);
    for block in blocks.iter_mut().filter(|block| block[0] == 6) {
        let captured = u32::from_le_bytes(block[20..24].try_into().unwrap()) as usize;
        let kept = captured.min(snaplen);
        block[20..24].copy_from_slice(&(kept as u32).to_le_bytes());
        let padded = |length: usize| length.next_multiple_of(4);
        block.drain(28 + padded(kept)..28 + padded(captured));
        let length = (block.len() as u32).to_le_bytes();
        block[4..8].copy_from_slice(&length);
        let end = block.len() - 4;
        block[end..].copy_from_slice(&length);
    }
    blocks.concat()
}

/// Bytes that a snap length removed are no fault of the sender, and transfers are followed as long
/// as headers are whole.
#[test]
fn truncated_frames_break_no_rule() {
    let Some(tshark) = Tshark::find() else { return };
    let capture = joined_traces(&["long-cts", "runting-read", "read-emulated"]);
    let transfers = |shown: &DissectedFrame| -> Vec<(String, Vec<String>)> {
        let fields = shown.fields("efa_rdm.transfer");
        let fields = fields.filter(|(name, _)| name != "efa_rdm.transfer.data");
        fields
            .map(|(name, values)| (name, values.clone()))
            .collect()
    };
    let whole = tshark.dissect_twice(&capture);
    // In the transport header, after it, in and after the header of packets.
    for snaplen in [70, 94, 100, 130, 200] {
        let about = format!("{snaplen} bytes of each frame");
        let shown = tshark.dissect_twice(&cut_off(&capture, snaplen));
        assert_eq!(shown.len(), whole.len(), "{about}");
        for (number, (shown, whole)) in (1..).zip(shown.iter().zip(&whole)) {
            let about = format!("{about}: frame {number}");
            assert_eq!(Vec::from_iter(shown.broken_rules()), [""; 0], "{about}");
            for prefix in ["_ws.malformed", "efa_rdm.malformed"] {
                assert_eq!(shown.fields(prefix).count(), 0, "{about}: {prefix}");
            }
            if snaplen >= 200 {
                assert_eq!(transfers(shown), transfers(whole), "{about}");
            }
        }
    }
    let says_so = tshark.lines(&cut_off(&capture, 100)).concat();
    assert!(says_so.contains("[Packet size limited during capture]"));
}

/// The packet list of each trace, with transfers and subprotocols, and the file with the expected
/// list.
fn packet_lists(tshark: &Tshark) -> Vec<(String, PathBuf)> {
    let columns = concat!(
        "gui.column.format:\"Host\",\"%Cus:frame.interface_name:0:R\",",
        "\"Transfer\",\"%Cus:efa_rdm.transfer:0:R\",",
        "\"Subprotocol\",\"%Cus:efa_rdm.transfer.subprotocol:0:R\",\"Info\",\"%i\""
    );
    let files = captures();
    let joined = JoinedCaptures::of(&files);
    let text = tshark.run(&joined.capture, &["-2", "-T", "tabs", "-o", columns]);
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split('\t').collect())
        .collect();
    let mut lists = Vec::new();
    for (file, frames) in files.iter().zip(joined.frames) {
        let rows: Vec<[&str; 4]> = rows[frames]
            .iter()
            .map(|row| row[..].try_into().unwrap())
            .collect();
        // Transfers are numbered across all captures.
        let transfers = rows.iter().filter_map(|row| row[1].parse::<u32>().ok());
        let first = transfers.min().unwrap_or(0);
        let mut list = String::new();
        for (number, [host, transfer, subprotocol, info]) in (1..).zip(rows) {
            let transfer = transfer.parse::<u32>();
            let transfer =
                transfer.map_or(String::new(), |transfer| (transfer - first).to_string());
            writeln!(list, "{number:5} {host} {transfer} {subprotocol} {info}").unwrap();
        }
        let golden = root()
            .join("wireshark/golden")
            .join(file.file_name().unwrap());
        lists.push((list, golden.with_extension("txt")));
    }
    lists
}

/// Wireshark 3.4 of Debian 11 and 4.4 of Debian 13, with Lua 5.2 and 5.4.
#[test]
fn other_releases_of_wireshark_show_the_same() {
    std::thread::scope(|scope| {
        for name in ["wireshark-debian11", "wireshark-debian13"] {
            scope.spawn(move || {
                let Some(tshark) = Tshark::fetch(name) else {
                    return;
                };
                for (text, path) in packet_lists(&tshark) {
                    let expected = std::fs::read_to_string(&path).unwrap();
                    assert_eq!(text, expected, "{name}: {}", path.display());
                }
                let mut rng = StdRng::seed_from_u64(9);
                compare(&corpus(&mut rng), &tshark);
            });
        }
    });
}

/// `wireshark/golden` has the packet list and the transfers of each trace. `EFA_UPDATE=1` rewrites
/// it, to be read before it is committed.
#[test]
fn traces_are_shown_as_before() {
    let Some(tshark) = Tshark::find() else { return };
    for (text, before) in packet_lists(&tshark) {
        expect_file(before, "-p efa-wireshark dissector", text);
    }
}
