//! `docs/driver.md` agrees with the implemented driver protocol.

use std::fmt::Write as _;

use efa_play::drive::{Command, Event, LONGEST_ANSWER, LONGEST_COMMAND, Line, VERSION};
use efa_play::operation::pattern;
use efa_play::player::{Timeouts, UNSUPPORTED};
use efa_testing::workspace::{expect_part, root};

use crate::declared::{Declarations, Variant};

const PAGE: &str = "docs/driver.md";

fn document() -> String {
    std::fs::read_to_string(root().join(PAGE)).expect("docs/driver.md is there")
}

/// Examples of each command, and of each operation that is started.
const COMMANDS: [&str; 16] = [
    r#"{"hello":{"version":2}}"#,
    r#"{"open":{"api":"1.11","capabilities":["msg","tagged","source"],"hints":{"runt-size":307200}}}"#,
    r#"{"insert":{"peer":1,"address":"fe80000000000000000000fffe00000201000000785634120000000000000000"}}"#,
    r#"{"remove":{"peer":1}}"#,
    r#"{"start":{"id":0,"operation":{"recv":{"length":256,"tag":{"tag":4656,"ignore":15}}},"expect":7}}"#,
    r#"{"start":{"id":1,"operation":{"send":{"to":1,"payload":{"length":100,"seed":7},"tag":4663}}}}"#,
    r#"{"start":{"id":2,"operation":{"register":{"payload":{"length":4096,"seed":9},"access":["remote-read","remote-write"]}}}}"#,
    r#"{"start":{"id":3,"operation":{"write":{"to":1,"remote":{"address":139637976727552,"key":66},"payload":{"length":4096,"seed":11}}}}}"#,
    r#"{"start":{"id":4,"operation":{"read":{"from":1,"remote":{"address":139637976727552,"key":66},"length":4096}},"expect":9}}"#,
    r#"{"start":{"id":5,"operation":{"atomic":{"to":1,"remote":{"address":139637976727552,"key":66},"action":{"fetch":"sum"},"operand":{"length":8,"seed":12}}}}}"#,
    r#"{"check":{"id":2,"offset":0,"payload":{"length":4096,"seed":11}}}"#,
    r#"{"dump":{"id":2}}"#,
    r#"{"poll":{}}"#,
    r#"{"progress":{}}"#,
    r#"{"pause":{}}"#,
    r#"{"close":{}}"#,
];

/// Examples of each answer.
const ANSWERS: [&str; 14] = [
    r#"{"hello":{"version":2,"software":{"name":"libfabric","release":"1.17.0","path":"/usr/lib/libfabric.so.1","commit":"1f2e3d4"}}}"#,
    r#"{"opened":{"address":"fe80000000000000000000fffe00000201000000785634120000000000000000"}}"#,
    r#"{"done":{}}"#,
    r#"{"started":{}}"#,
    r#"{"registered":{"address":139637976727552,"key":66}}"#,
    r#"{"again":{}}"#,
    r#"{"checked":{"difference":{"position":17,"actual":58,"expected":18}}}"#,
    r#"{"memory":{"bytes":"0011223344556677"}}"#,
    r#"{"refused":{"text":"fi_tsend failed: Invalid argument (error 22)"}}"#,
    r#"{"unsupported":{"text":"RDMA"}}"#,
    r#"{"completed":{"id":0,"length":100,"tag":4663,"source":1}}"#,
    r#"{"completed":{"id":6,"length":64,"tag":0,"failure":{"code":265,"text":"truncated","overflow":36}}}"#,
    r#"{"captured":{"bytes":"0a0d0d0a1c000000"}}"#,
    r#"{"reported":{"text":"event queue: protocol error"}}"#,
];

/// The values that are described after the commands and answers.
const OBJECTS: [&str; 9] = [
    "Payload",
    "TagMatch",
    "Remote",
    "SendMode",
    "AtomicAction",
    "Settings",
    "Identity",
    "Failure",
    "Difference",
];

/// A paragraph for each variant, with the examples that contain it.
fn chapter(title: &str, variants: &[Variant], examples: &[&str]) -> String {
    let mut text = format!("\n## {title}\n");
    for variant in variants {
        let Variant {
            name,
            meaning,
            keys,
        } = variant;
        // Writing to a String cannot fail.
        let _ = write!(text, "\n### `{name}`\n\n{meaning}\n\n```\n");
        let contains = |line: &&&str| line.contains(&format!("{{\"{name}\":{{"));
        let shown: Vec<&&str> = examples.iter().filter(contains).collect();
        assert!(!shown.is_empty(), "{name} has no example");
        for example in shown {
            let _ = writeln!(text, "{example}");
        }
        text.push_str("```\n");
        text.push_str(keys);
    }
    text
}

#[test]
fn the_tables_are_those_of_the_declaration() {
    let declared = Declarations::read();
    let generated = chapter("Commands", &declared.variants("Command"), &COMMANDS)
        + &chapter("Operations", &declared.variants("Operation"), &COMMANDS)
        + &chapter("Answers", &declared.variants("Event"), &ANSWERS)
        + "\n## Values\n"
        + &OBJECTS.map(|name| declared.value(name)).concat();
    let tests = "-p efa-play --test play driver_documented";
    let mark = format!("<!-- generated from here on: EFA_UPDATE=1 cargo test {tests} -->\n");
    expect_part(PAGE, [&mark, ""], tests, &generated);
}

#[test]
fn examples_round_trip() {
    for example in COMMANDS {
        let read = Command::parse(example).unwrap();
        assert_eq!(read.line(), example);
        assert!(example.len() < LONGEST_COMMAND);
        // Other JSON writers insert white space there.
        let spaced = example.replace(':', " : ").replace(',', " , ");
        assert_eq!(Command::parse(&spaced), Ok(read));
    }
    for example in ANSWERS {
        assert_eq!(Event::parse(example).unwrap().line(), example);
    }
}

#[test]
fn the_conversation_is_understood() {
    let text = document();
    let mut lines = 0;
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("> ") {
            Command::parse(command).unwrap();
            lines += 1;
        } else if let Some(event) = line.strip_prefix("< ") {
            Event::parse(event).unwrap();
            lines += 1;
        }
    }
    assert!(lines > 10, "{lines}");
}

#[test]
fn figures_are_those_of_the_code() {
    let text = document().replace('\n', " ");
    let message = pattern::bytes(7, 10);
    let bytes: Vec<String> = message.iter().map(|byte| format!("{byte:02x}")).collect();
    for claim in [
        format!("Message 7 begins `{}`", bytes.join(" ")),
        format!("This is version {VERSION}."),
        format!("Commands are at most {LONGEST_COMMAND} bytes long"),
        format!("answers at most {} MiB", LONGEST_ANSWER >> 20),
        format!("ends with status {UNSUPPORTED} "),
        format!(
            "answer another command ({} each by default)",
            Timeouts::DEFAULT.answer.as_secs()
        ),
    ] {
        assert!(text.contains(&claim), "{claim}");
    }
}
