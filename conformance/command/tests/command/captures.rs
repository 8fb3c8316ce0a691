//! `check` and `show` on captures of users.

use std::path::Path;

use efa_capture::frame::Frame;
use efa_capture::{CaptureTap as _, Direction, Interface, InterfaceId, Writer};
use efa_check::capture::{Capture, CapturedPacket};
use efa_testing::workspace::{efa_conformance, expect, traces};

/// Writes the frames of a trace for which `kept` returns true.
fn write(trace: &str, kept: impl Fn(&CapturedPacket) -> bool, into: &Path) {
    let capture = Capture::load(&traces().join(format!("{trace}.pcapng"))).unwrap();
    let mut writer = Writer::new(Vec::new()).unwrap();
    for name in &capture.interfaces {
        let interface = Interface {
            host: name.clone(),
            profile: "test".into(),
            gid: capture.frames[0].source,
        };
        writer.add_interface(&interface).unwrap();
    }
    for captured in capture.frames.iter().filter(|frame| kept(frame)) {
        let frame = Frame {
            source: captured.source,
            destination: captured.destination,
            header: captured.header,
            payload: &captured.payload,
        };
        let interface = InterfaceId(captured.interface as u32);
        let direction = captured.direction.unwrap();
        writer.frame(interface, captured.time, direction, &frame);
    }
    let bytes = writer.finish(std::time::Duration::ZERO).unwrap();
    std::fs::write(into, bytes).unwrap();
}

#[test]
fn one_direction_is_said_and_blames_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.pcapng");
    write(
        "long-cts",
        |frame| frame.direction == Some(Direction::Outbound),
        &path,
    );
    let path = path.display().to_string();
    let command = efa_conformance(&["check", &path, "--fail-on", "note"]);
    let printed = expect(command, 0, &[]);
    let note = "not judged: 2 ends of conversations lack frames that they sent or got";
    assert!(printed.contains(note), "{printed}");
    assert!(printed.contains("packet-form, iov-length"), "{printed}");

    let command = efa_conformance(&["check", &path, "--require-complete"]);
    expect(command, 2, &["not all of it could be judged"]);
    let whole = traces().join("long-cts.pcapng").display().to_string();
    let command = efa_conformance(&["check", &whole, "--require-complete"]);
    let printed = expect(command, 0, &[]);
    assert!(!printed.contains("not judged"), "{printed}");
}

#[test]
fn a_missing_beginning_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("late.pcapng");
    write("long-cts", |frame| frame.number > 10, &path);
    let command = efa_conformance(&["check", &path.display().to_string()]);
    let printed = expect(command, 0, &[]);
    let note = "not judged: 2 ends of conversations lack their beginning";
    assert!(printed.contains(note), "{printed}");
    assert!(printed.contains("answer-names-request"), "{printed}");
}

/// The type of pcapng's Enhanced Packet Block, and the length of the fields before its data.
const PACKET: u32 = 6;
const BEFORE_DATA: usize = 20;

/// The blocks of a trace, each with its type and the bytes between its lengths.
fn blocks(trace: &str) -> Vec<(u32, Vec<u8>)> {
    let file = std::fs::read(traces().join(format!("{trace}.pcapng"))).unwrap();
    let number = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let mut blocks = Vec::new();
    let mut at = 0;
    while at < file.len() {
        let end = at + number(at + 4) as usize;
        blocks.push((number(at), file[at + 8..end - 4].to_vec()));
        at = end;
    }
    blocks
}

fn file_of(blocks: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let mut file = Vec::new();
    for (block_type, body) in blocks {
        let length = (body.len() as u32 + 12).to_le_bytes();
        file.extend(block_type.to_le_bytes());
        file.extend(length);
        file.extend(body);
        file.extend(length);
    }
    file
}

/// Changes the captured bytes of a packet's block and drops its options.
fn with_data(body: &mut Vec<u8>, change: impl FnOnce(&mut Vec<u8>)) {
    let captured = u32::from_le_bytes(body[12..16].try_into().unwrap()) as usize;
    let mut data = body[BEFORE_DATA..BEFORE_DATA + captured].to_vec();
    change(&mut data);
    body.truncate(BEFORE_DATA);
    body[12..16].copy_from_slice(&(data.len() as u32).to_le_bytes());
    data.resize(data.len().next_multiple_of(4), 0);
    body.append(&mut data);
}

/// The options of a packet's block.
fn options(body: &[u8]) -> Vec<u8> {
    let captured = u32::from_le_bytes(body[12..16].try_into().unwrap()) as usize;
    body[BEFORE_DATA + captured.next_multiple_of(4)..].to_vec()
}

/// Whether a packet's block has the option `epb_flags` with a direction.
fn is_of(body: &[u8], direction: Direction) -> bool {
    let value = match direction {
        Direction::Inbound => 1,
        Direction::Outbound => 2,
    };
    let options = options(body);
    options.starts_with(&[2, 0, 4, 0]) && options[4] & 3 == value
}

#[test]
fn unjudged_packets_are_counted() {
    type Blocks = Vec<(u32, Vec<u8>)>;
    let cut = |most: usize, direction: Direction| {
        move |blocks: &mut Blocks| {
            let is_longer = |(kind, body): &&mut (u32, Vec<u8>)| {
                *kind == PACKET
                    && is_of(body, direction)
                    && body.len() - options(body).len() > BEFORE_DATA + most
            };
            let (_, body) = blocks.iter_mut().rfind(is_longer).unwrap();
            let options = options(body);
            with_data(body, |data| data.truncate(most));
            body.extend(options);
        }
    };
    let cut_header = cut(100, Direction::Outbound);
    let cut_arrival = cut(100, Direction::Inbound);
    let cut_data = cut(250, Direction::Outbound);
    type Loss<'a> = (&'a str, &'a str, &'a dyn Fn(&mut Blocks));
    let losses: [Loss<'_>; 8] = [
        ("cut_headers", "packets have no whole header", &cut_header),
        ("cut_data", "packets have not all of their data", &cut_data),
        (
            "skipped_blocks",
            "blocks are of a type that is not",
            &|blocks| {
                blocks.push((0x4000_0bad, vec![0; 8]));
            },
        ),
        (
            "foreign_frames",
            "frames are of other protocols",
            &|blocks| {
                let packet = blocks.iter().rfind(|(kind, _)| *kind == PACKET);
                let mut foreign = packet.unwrap().clone();
                // ARP.
                with_data(&mut foreign.1, |data| data[12..14].copy_from_slice(&[8, 6]));
                blocks.push(foreign);
            },
        ),
        (
            "without_beginning",
            "conversations lack their beginning",
            &|blocks| {
                let first = blocks.iter().position(|(kind, _)| *kind == PACKET);
                blocks.drain(first.unwrap()..first.unwrap() + 10);
            },
        ),
        (
            "without_direction",
            "ends of conversations lack frames",
            &|blocks| {
                blocks.retain(|(kind, body)| *kind != PACKET || is_of(body, Direction::Outbound));
            },
        ),
        ("without_direction", "or headers of them", &cut_arrival),
        (
            "without_order",
            "conversations have frames without a dir",
            &|blocks| {
                for (_, body) in blocks.iter_mut().filter(|(kind, _)| *kind == PACKET) {
                    with_data(body, |_| {});
                }
            },
        ),
    ];
    let directory = tempfile::tempdir().unwrap();
    let check = |blocks: &Blocks, options: &[&str], status, name: &str| {
        let path = directory.path().join(format!("{name}.pcapng"));
        std::fs::write(&path, file_of(blocks)).unwrap();
        let path = path.display().to_string();
        let arguments = [&["check", path.as_str()], options].concat();
        expect(efa_conformance(&arguments), status, &[])
    };
    let whole = blocks("long-cts");
    check(&whole, &["--require-complete"], 0, "whole");
    for (name, words, lose) in losses {
        let mut blocks = whole.clone();
        lose(&mut blocks);
        let printed = check(&blocks, &[], 0, name);
        let lines = printed.lines();
        let mut said = lines.filter(|line| line.starts_with("not judged: "));
        assert!(said.any(|line| line.contains(words)), "{name}: {printed}");
        check(&blocks, &["--require-complete"], 2, name);
        let json = check(&blocks, &["--json"], 0, name);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["complete"], false, "{name}");
        assert_ne!(json["not_judged"][name], 0, "{name}: {json}");
        assert_ne!(json["not_judged"][name], serde_json::Value::Null, "{name}");
    }
}

#[test]
fn captures_of_directories_are_judged_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    std::fs::write(file("b.txt"), "no capture").unwrap();
    for (name, trace) in [("c.pcapng", "ping-pong"), ("a.pcapng", "eager-tagged")] {
        let source = traces().join(format!("{trace}.pcapng"));
        std::fs::copy(source, file(name)).unwrap();
    }
    let whole = directory.path().display().to_string();
    let one = file("c.pcapng").display().to_string();
    let output = efa_conformance(&["check", &whole, &one, "--json", "--jobs", "2"]);
    let output = { output }.output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let verdicts = json.as_array().unwrap();
    let name = |verdict: &serde_json::Value| verdict["capture"].as_str().unwrap().to_owned();
    let names: Vec<String> = verdicts.iter().map(name).collect();
    assert_eq!(
        names,
        [file("a.pcapng").display().to_string(), one.clone(), one]
    );
    assert!(verdicts.iter().all(|verdict| verdict["complete"] == true));

    // An unreadable capture fails, and the others are judged.
    std::fs::write(file("b.pcapng"), "no capture").unwrap();
    let printed = expect(efa_conformance(&["check", &whole]), 2, &[]);
    assert_eq!(printed.matches("0 errors").count(), 2, "{printed}");
    assert!(printed.contains("b.pcapng: not a capture"), "{printed}");
}
