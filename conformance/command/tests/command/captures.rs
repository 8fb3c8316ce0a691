//! `check` and `show` on captures of users.

use efa_capture::Direction;
use efa_testing::pcap::{ENHANCED, block};
use efa_testing::workspace::{efa_conformance, expect, traces};

use crate::altered::AlteredTrace;

#[test]
fn one_direction_is_said_and_blames_nobody() {
    let half = AlteredTrace::of("long-cts");
    half.keep(|frame| frame.direction == Some(Direction::Outbound));
    let command = efa_conformance(&["check", half.name(), "--fail-on", "note"]);
    let note = "not judged: 2 ends of conversations lack frames that they sent or got";
    expect(command, 0, &[note, "packet-form, iov-length"]);

    let command = efa_conformance(&["check", half.name(), "--require-complete"]);
    expect(command, 2, &["not all of it could be judged"]);
    let whole = traces().join("long-cts.pcapng").display().to_string();
    let command = efa_conformance(&["check", &whole, "--require-complete"]);
    let printed = expect(command, 0, &[]);
    assert!(!printed.contains("not judged"), "{printed}");
}

#[test]
fn a_missing_beginning_is_reported() {
    let late = AlteredTrace::of("long-cts");
    late.keep(|frame| frame.number > 10);
    let note = "not judged: 2 ends of conversations lack their beginning";
    let command = efa_conformance(&["check", late.name()]);
    expect(command, 0, &[note, "answer-names-request"]);
}

/// The length of the fields before the data in a packet's block.
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
                *kind == ENHANCED
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
                let packet = blocks.iter().rfind(|(kind, _)| *kind == ENHANCED);
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
                let first = blocks.iter().position(|(kind, _)| *kind == ENHANCED);
                blocks.drain(first.unwrap()..first.unwrap() + 10);
            },
        ),
        (
            "without_direction",
            "ends of conversations lack frames",
            &|blocks| {
                blocks.retain(|(kind, body)| *kind != ENHANCED || is_of(body, Direction::Outbound));
            },
        ),
        ("without_direction", "or headers of them", &cut_arrival),
        (
            "without_order",
            "conversations have frames without a dir",
            &|blocks| {
                for (_, body) in blocks.iter_mut().filter(|(kind, _)| *kind == ENHANCED) {
                    with_data(body, |_| {});
                }
            },
        ),
    ];
    let directory = tempfile::tempdir().unwrap();
    let check = |blocks: &Blocks, options: &[&str], status, name: &str| {
        let path = directory.path().join(format!("{name}.pcapng"));
        let blocks = blocks.iter().map(|(kind, body)| block(*kind, body));
        std::fs::write(&path, blocks.collect::<Vec<_>>().concat()).unwrap();
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
