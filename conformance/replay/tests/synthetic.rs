//! Synthetic scenarios: their meaning, invalid ones, and that wrong behaviour fails.

use std::path::Path;
use std::process::Command;

use efa_core::wire::fields::{self, FieldKind, Presence, Width, field_of, fields_of};
use efa_core::wire::{Packet, PacketType};
use efa_play::scenario::Scenario;
use efa_play::trace::Trace;
use efa_replay::replay::emu::Emu;
use efa_replay::replay::{Engine, Strictness, Verdict, replay};
use efa_replay::synthetic;

const NACK: &str = include_str!("../../../traces/written/read-nack-message.toml");

fn load(text: &str) -> Result<Trace, String> {
    let scenario = Scenario::parse(Path::new("traces/written/example.toml"), text);
    let trace = synthetic::trace(scenario.map_err(|error| error.to_string())?);
    trace.map_err(|error| error.to_string())
}

/// The error for `NACK` with one replacement.
fn error(from: &str, to: &str) -> String {
    assert!(NACK.contains(from), "{from}");
    load(&NACK.replacen(from, to, 1)).unwrap_err()
}

/// A program computes the operands and results of all atomic operations.
#[test]
fn the_atomics_are_as_their_program_writes_them() {
    let root = efa_testing::workspace::root();
    let directory = tempfile::tempdir().unwrap();
    let program = Command::new("python3")
        .arg(root.join("scripts/atomics"))
        .arg(directory.path())
        .status();
    assert!(program.unwrap().success());
    let mut files = 0;
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        let kept = root.join("traces/written").join(entry.file_name());
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert!(
            read(&kept) == read(&entry.path()),
            "{} is old: write it anew with scripts/atomics",
            kept.display()
        );
        files += 1;
    }
    assert_eq!(files, 16);
}

fn play(trace: &Trace) -> Verdict {
    let (fields, mut emu) = (Strictness::Fields, Emu::orderly());
    replay(trace, 0, fields, &mut emu, &mut Engine::default(), None).unwrap()
}

/// The failures of `NACK` with one replacement.
fn failure(from: &str, to: &str) -> String {
    assert!(NACK.contains(from), "{from}");
    let trace = load(&NACK.replacen(from, to, 1)).unwrap();
    play(&trace).texts().join("\n")
}

#[test]
fn errors_name_key_value_and_remedy() {
    assert_eq!(
        error(r#"type = "READ_NACK""#, r#"type = "READ_NAK""#),
        "traces/written/example.toml:56: type: unknown packet type `READ_NAK`; did you mean \
         `READ_NACK`?"
    );
    assert_eq!(
        error(r#"flags = "READ_NACK""#, "msg_length = 5\nmsg_lenth = 6"),
        "traces/written/example.toml:68: msg_lenth: LONGCTS_MSGRTM has no field `msg_lenth`; did you \
         mean `msg_length`?"
    );
    assert_eq!(
        error(r#"flags = "READ_NACK""#, "credit_request = 0x1_0000_0000"),
        "traces/written/example.toml:67: credit_request: `4294967296` is out of range; the field has \
         4 bytes: give a number from 0 to 0xffffffff"
    );
    assert_eq!(
        error(r#"flags = "READ_NACK""#, r#"flags = "NACK""#),
        "traces/written/example.toml:67: flags: LONGCTS_MSGRTM has no flag `NACK`; known are \
         `RAW_ADDR_HDR`, `CQ_DATA_HDR`, `MSG`, `TAGGED`, `RMA`, `ATOMIC`, `READ_NACK`, `CONNID_HDR`"
    );
    assert_eq!(
        error(r#"of = "long""#, r#"of = "lang""#),
        "traces/written/example.toml:52: of: no step sends, writes or reads `lang`; did you mean \
         `long`?"
    );
    assert_eq!(
        error(r#"from = "b""#, r#"from = "c""#),
        "traces/written/example.toml:31: from: unknown endpoint `c`; did you mean `a`?"
    );
    assert_eq!(
        error("from = \"b\"\n", ""),
        "traces/written/example.toml:30: from: the packet needs this key; add `from = \"...\"`, the \
         name of an endpoint"
    );
    assert_eq!(
        error(r#"flags = "READ_NACK""#, "length = 20001"),
        "traces/written/example.toml:63: length: bytes 0 to 20001 of an operation of 20000; correct \
         `length` or `seg_offset`"
    );
    assert_eq!(
        error(r#"flags = "READ_NACK""#, "length = 10000"),
        "traces/written/example.toml:63: length: a packet of 10028 bytes; the device of the sender \
         takes 8928: give less data"
    );
    assert_eq!(
        error(r#"flags = "READ_NACK""#, "credit_request = [1]"),
        "traces/written/example.toml:67: credit_request: `[1]` is not a number; the field has 4 \
         bytes: give a number from 0 to 0xffffffff"
    );
    let from_b = r#"[[packet]]
from = "b"
type = "READ_NACK"
of = "long"
"#;
    assert!(NACK.contains(from_b));
    let begins = NACK.replacen("[[step]]", &format!("{from_b}\n[[step]]"), 1);
    assert_eq!(
        load(&begins).unwrap_err(),
        "traces/written/example.toml:18: packet: no step stands in front of the packet; put it \
         behind the step during which it is sent"
    );
}

/// Each field of each format can be given, and is at its declared offset.
#[test]
fn every_field_of_every_type_can_be_named() {
    let head = NACK.split("[[packet]]").next().unwrap();
    let mut named = 0;
    for &packet_type in PacketType::ALL.iter().filter(|it| it.has_format()) {
        let whole = load(&format!(
            "{head}\n[[packet]]\nfrom = \"a\"\ntype = \"{packet_type}\"\nof = \"hello\"\n"
        ));
        let whole = whole.unwrap_or_else(|error| panic!("{error}"));
        let bytes = &whole.capture.frames[0].payload;
        if packet_type.has_header() {
            Packet::parse(bytes).unwrap_or_else(|error| panic!("{packet_type}: {error}"));
        }
        for place in fields::layout(packet_type) {
            let field = place.descriptor;
            let Width::Fixed(width) = field.width else {
                continue;
            };
            let is_structural = matches!(
                field.kind,
                FieldKind::Padding
                    | FieldKind::PacketType
                    | FieldKind::Gid
                    | FieldKind::Flags
                    | FieldKind::Count(_)
            );
            // A field that replaces an absent one.
            let is_other = matches!(field.presence, Presence::UnlessFlag(_));
            if is_structural || is_other || field.name == "raw_addr.size" {
                continue;
            }
            let value = 0x5a_u64.wrapping_mul(0x0101_0101_0101_0101) >> (64 - 8 * width.min(7));
            let key = match (place.array, field.name.split_once('.')) {
                (None, None) => format!("{} = {value}", field.name),
                (None, Some((head, member))) => format!("{head} = {{ {member} = {value} }}"),
                (Some(_), None) => format!("{} = [7, {value}]", field.name),
                (Some(_), Some((array, member))) => {
                    format!("{array} = [{{ {member} = 7 }}, {{ {member} = {value} }}]")
                }
            };
            let text = format!(
                "{head}\n[[packet]]\nfrom = \"a\"\ntype = \"{packet_type}\"\nlength = 0\nof = \
                 \"hello\"\n{key}\n"
            );
            let text = match packet_type.carries_data() {
                true => text,
                false => text.replace("length = 0\n", ""),
            };
            let trace = load(&text).unwrap_or_else(|error| panic!("{packet_type} {key}: {error}"));
            let bytes = &trace.capture.frames[0].payload;
            let found = fields_of(bytes).unwrap().find(|found| {
                found.descriptor.name == field.name && found.index == place.array.map(|_| 1)
            });
            let found = found.unwrap_or_else(|| panic!("{packet_type} lacks {}", field.name));
            assert_eq!(
                found.value.as_u64(),
                Some(value),
                "{packet_type} {}",
                field.name
            );
            named += 1;
        }
    }
    assert!(named > 300, "{named}");
}

#[test]
fn unnamed_fields_get_correct_values() {
    let trace = load(NACK).unwrap();
    let shown = |place: usize| -> Vec<String> {
        let fields = fields_of(&trace.capture.frames[place].payload).unwrap();
        fields
            .filter(|field| !matches!(field.descriptor.kind, FieldKind::Data))
            .map(|field| field.to_string())
            .collect()
    };
    // Each packet has four frames: the packet and the device's answer, at the sender and at the
    // receiver of each.
    assert_eq!(
        shown(0),
        [
            "type = 64 (EAGER_MSGRTM)",
            "version = 4",
            "flags = 0x0005 (RAW_ADDR_HDR | MSG)",
            "msg_id = 0",
            "raw_addr.size = 32",
            "raw_addr.gid = fe80::1",
            "raw_addr.qpn = 1",
            "raw_addr.pad = 2 bytes: 00 00",
            "raw_addr.connid = 0x10000001",
            "raw_addr.reserved = 8 bytes: 00 00 00 00 00 00 00 00",
        ]
    );
    assert_eq!(
        shown(20),
        [
            "type = 68 (LONGCTS_MSGRTM)",
            "version = 4",
            "flags = 0xa004 (MSG | READ_NACK | CONNID_HDR)",
            "msg_id = 1",
            "msg_length = 20000",
            "send_id = 4099",
            "credit_request = 32",
            "connid = 0x10000001",
        ]
    );
    let segment = |place: usize| {
        let field = |name: &str| {
            let field = field_of(&trace.capture.frames[place].payload, name);
            field.and_then(|field| field.value.as_u64()).unwrap()
        };
        (field("seg_offset"), field("seg_length"))
    };
    assert_eq!(
        [28, 32, 36].map(segment),
        [(0, 8896), (8896, 8896), (17792, 2208)]
    );
}

#[test]
fn the_engine_answers_a_read_nack() {
    let verdict = play(&load(NACK).unwrap());
    assert_eq!(verdict.texts(), Vec::<String>::new());
    assert_eq!((verdict.compared, verdict.played), (7, 3));
}

/// Each change of an expectation fails, and the failure names the field.
#[test]
fn another_expectation_fails() {
    let unflagged = failure("flags = \"READ_NACK\"\n", "length = 0\n");
    assert!(
        unflagged.contains("field `flags`") && unflagged.contains("READ_NACK"),
        "{unflagged}"
    );
    let longer = failure(
        "flags = \"READ_NACK\"\n",
        "flags = \"READ_NACK\"\nmsg_length = 20001\n",
    );
    assert!(longer.contains("field `msg_length`"), "{longer}");
    let third = "[[packet]]\nfrom = \"a\"\ntype = \"CTSDATA\"\nof = \"long\"\n";
    let surplus = failure(
        third,
        "[[packet]]\nfrom = \"a\"\ntype = \"RECEIPT\"\nof = \"long\"\n",
    );
    assert!(surplus.contains("RECEIPT"), "{surplus}");
    let silent = failure("[[packet]]\nfrom = \"a\"\ntype = \"HANDSHAKE\"\n", "");
    assert!(
        silent.contains("sent HANDSHAKE") && silent.contains("nothing asks for it"),
        "{silent}"
    );
}

/// Data before the CTS that grants it is too early.
#[test]
fn packets_must_follow_their_causes() {
    let cts = "[[packet]]\nfrom = \"b\"\ntype = \"CTS\"\nof = \"long\"\n";
    assert!(NACK.contains(cts));
    let (before, behind) = NACK.split_once(cts).unwrap();
    let request = "[[packet]]\nfrom = \"a\"\ntype = \"LONGCTS_MSGRTM\"\nof = \"long\"\nflags = \"READ_NACK\"\n";
    let (start, _) = before.split_once(request).unwrap();
    // The request must wait for a CTS of a later step.
    let late = format!("{start}[[step]]\ndo = \"settle\"\n\n{cts}\n{request}{behind}");
    let late = late.replacen("do = \"wait\"\nfor = [\"long\"]\n", "do = \"settle\"\n", 1);
    let texts = play(&load(&late).unwrap()).texts().join("\n");
    assert!(texts.contains("it was sent before step 5"), "{texts}");
}

/// An implementation with a wrong reaction fails with the corresponding error.
#[test]
fn a_wrong_reaction_fails() {
    let trace = load(NACK).unwrap();
    let with = |change: &mut dyn FnMut(Vec<u8>) -> Vec<Vec<u8>>| {
        let mut hook = |packet: Vec<u8>| change(packet);
        let (fields, mut emu) = (Strictness::Fields, Emu::orderly());
        let engine = &mut Engine::default();
        let verdict = replay(&trace, 0, fields, &mut emu, engine, Some(&mut hook));
        verdict.unwrap().texts().join("\n")
    };
    let is = |packet: &[u8], packet_type| PacketType::peek(packet) == Some(packet_type);
    // It treats the READ_NACK as an EOR and sends nothing more.
    let silent = with(&mut |packet| match is(&packet, PacketType::LongctsMsgRtm) {
        true => Vec::new(),
        false => vec![packet],
    });
    for text in ["(LONGCTS_MSGRTM)", "it was not sent"] {
        assert!(silent.contains(text), "{silent}");
    }
    // It gives the message a new id.
    let renumbered = with(&mut |mut packet| {
        if is(&packet, PacketType::LongctsMsgRtm) {
            packet[4] += 1;
        }
        vec![packet]
    });
    assert!(renumbered.contains("field `msg_id`"), "{renumbered}");
    // It does not set the flag of the request, which then looks like another message with the same
    // id.
    let unmarked = with(&mut |mut packet| {
        if is(&packet, PacketType::LongctsMsgRtm) {
            packet[3] &= !0x20;
        }
        vec![packet]
    });
    assert!(unmarked.contains("field `flags`"), "{unmarked}");
}
