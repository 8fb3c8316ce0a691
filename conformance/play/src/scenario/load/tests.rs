use std::path::Path;

use super::*;
use crate::libfabric::Version;
use crate::operation::TagMatch;
use crate::scenario::FieldPolicy;

const GOOD: &str = r#"
description = "A tagged message."
spec = ["3.2"]

[[endpoint]]
name = "a"
software = "libfabric"
version = "1.17"
capabilities = ["msg", "tagged"]
environment = { FI_EFA_ENABLE_SHM_TRANSFER = "0" }

[[endpoint]]
name = "b"
software = "core"
capabilities = ["msg", "tagged", "source"]
settings = { max_medium_size = 4096 }

[[step]]
at = "b"
do = "trecv"
id = "answer"
length = 64
tag = 0x10
ignore = 0xf
expect = { message = "question" }

[[step]]
at = "a"
do = "tsend"
id = "question"
to = "b"
length = 64
tag = 0x1f

[[step]]
do = "wait"
for = ["answer", "question"]
"#;

fn parse(text: &str) -> Result<Scenario> {
    Scenario::parse(Path::new("traces/example.toml"), text)
}

/// The message for `GOOD` with one replacement.
fn message(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from));
    parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string()
}

#[test]
fn a_scenario_is_read_whole() {
    let scenario = parse(GOOD).unwrap();
    assert_eq!(scenario.name, "example");
    assert_eq!(scenario.endpoints[0].version, Some("1.17".parse().unwrap()));
    assert_eq!(scenario.endpoints[0].api, Version::BASELINE_API);
    assert_eq!(scenario.endpoints[1].software, Software::Core);
    assert_eq!(scenario.endpoints[1].settings.max_medium_size, Some(4096));
    assert_eq!(scenario.steps.len(), 3);
    let (at, operation, expect) = scenario.operation("answer").unwrap();
    assert_eq!(at, 1);
    assert!(matches!(
        operation,
        Operation::Recv {
            length: 64,
            tag: Some(TagMatch {
                tag: 0x10,
                ignore: 0xf
            }),
            ..
        }
    ));
    assert_eq!(expect.message.as_deref(), Some("question"));
}

#[test]
fn errors_name_file_line_key_and_remedy() {
    let cases = [
        (
            "lengt = 64\n",
            "length = 64\ntag = 0x10",
            "lengt = 64\ntag = 0x10",
            "traces/example.toml:22: lengt: unknown key; did you mean `length`?",
        ),
        (
            "unknown kind",
            "do = \"trecv\"",
            "do = \"tercv\"",
            "traces/example.toml:20: do: unknown step `tercv`; did you mean `trecv`?",
        ),
        (
            "unknown endpoint",
            "to = \"b\"",
            "to = \"bb\"",
            "traces/example.toml:31: to: unknown endpoint `bb`; did you mean `b`?",
        ),
        (
            "unknown capability",
            "[\"msg\", \"tagged\"]",
            "[\"msg\", \"taged\"]",
            "traces/example.toml:9: capabilities: `taged` is not known; did you mean `tagged`?",
        ),
        (
            "missing key of a kind",
            "id = \"question\"\n",
            "",
            "traces/example.toml:27: id: `tsend` needs this key; add `id = ...`",
        ),
        (
            "key of another kind",
            "do = \"tsend\"",
            "do = \"tsend\"\nignore = 1",
            "traces/example.toml:30: ignore: `tsend` does not take this key; it takes `at`, `id`, \
             `to`, `length`, `seed`, `tag`, `data`, `expect`",
        ),
        (
            "misspelt key that need not be there",
            "do = \"tsend\"",
            "do = \"tsend\"\nsede = 1",
            "traces/example.toml:30: sede: unknown key; did you mean `seed`?",
        ),
        (
            "unknown setting",
            "max_medium_size",
            "max_medium_seize",
            "traces/example.toml:16: max_medium_seize: unknown key; did you mean \
             `max_medium_size`?",
        ),
        (
            "unknown profile",
            "software = \"core\"",
            "software = \"core\"\nprofile = \"efa22\"",
            "traces/example.toml:15: profile: unknown device profile `efa22`; did you mean \
             `efa2`?",
        ),
        (
            "unknown operation",
            "for = [\"answer\"",
            "for = [\"anwser\"",
            "traces/example.toml:37: for: no earlier step has the id `anwser`; did you mean \
             `answer`?",
        ),
        (
            "unknown message",
            "{ message = \"question\" }",
            "{ message = \"query\" }",
            "traces/example.toml:18: message: no step sends `query`; known are `question`",
        ),
        (
            "duplicate id",
            "id = \"question\"",
            "id = \"answer\"",
            "traces/example.toml:30: id: `answer` was started on line 18 already; give each \
             operation its own id",
        ),
        (
            "missing key of the file",
            "spec = [\"3.2\"]",
            "",
            "traces/example.toml:1: spec: this key is missing; add `spec = ...`",
        ),
        (
            "bad version",
            "version = \"1.17\"",
            "version = \"17\"",
            "traces/example.toml:8: version: `17` is not a version: write it as major.minor, such \
             as \"1.17\"; correct the value (docs/scenarios.md lists the keys)",
        ),
        (
            "unknown error",
            "{ message = \"question\" }",
            "{ message = \"question\", error = \"FI_TRUNC\" }",
            "traces/example.toml:25: error: `FI_TRUNC` is not known; did you mean `FI_ETRUNC`?",
        ),
        (
            "fault of an unknown host",
            "[[step]]",
            "[[fault]]\nwhen = { sender = \"server\" }\nthen = \"hold\"\n\n[[step]]",
            "traces/example.toml:18: fault: unknown endpoint `server`; known are `a`, `b`",
        ),
        (
            "fault that the emulator refuses",
            "[[step]]",
            "[[fault]]\nwhen = { packet = \"CTSS\" }\nthen = \"hold\"\n\n[[step]]",
            "traces/example.toml:18: fault: when.packet: \"CTSS\" is not an RDM packet type: use a name of \
             the protocol such as \"EAGER_MSGRTM\", \"CTS\" or \"HANDSHAKE\", or the type's number; \
             docs/faults.md describes the rules",
        ),
    ];
    for (what, from, to, expected) in cases {
        assert_eq!(message(from, to), expected, "{what}");
    }
}

#[test]
fn wrong_types_and_broken_toml_name_the_line() {
    let text = message("length = 64", "length = \"64\"");
    assert!(
        text.starts_with("traces/example.toml:22: length: "),
        "{text}"
    );
    let text = message("length = 64", "length 64");
    assert!(text.starts_with("traces/example.toml:22: "), "{text}");
    let text = message("length = 64", "length = -1");
    assert!(
        text.starts_with("traces/example.toml:22: length: "),
        "{text}"
    );
    let text = message("length = 64", "length = 99999999999");
    assert!(
        text.contains(":22: length: 99999999999 bytes; the limit is"),
        "{text}"
    );
}

#[test]
fn tags_have_64_bits() {
    let scenario = parse(&GOOD.replacen("0x10", "0xffffffffffffffff", 1)).unwrap();
    let (_, operation, _) = scenario.operation("answer").unwrap();
    assert!(matches!(
        operation,
        Operation::Recv {
            tag: Some(TagMatch { tag: u64::MAX, .. }),
            ..
        }
    ));
}

#[test]
fn a_receive_states_its_expectation() {
    let text = message("expect = { message = \"question\" }", "");
    assert!(
        text.contains(":18: expect: the step does not say what must arrive"),
        "{text}"
    );
}

#[test]
fn policies_name_a_packet_and_a_field() {
    let with = |policy: &str| parse(&format!("{GOOD}\n[[policy]]\n{policy}"));
    let good = with(
        "field = \"HANDSHAKE.extra_info\"\npolicy = \"one-of\"\nvalues = [26, 27]\nreason = \"r\"",
    );
    let policy = &good.unwrap().policies[0];
    assert_eq!(
        (policy.packet.as_str(), policy.field.as_str()),
        ("HANDSHAKE", "extra_info")
    );
    assert_eq!(policy.policy, FieldPolicy::OneOf(vec![26, 27]));
    let bad = with("field = \"extra_info\"\npolicy = \"exact\"\nreason = \"r\"").unwrap_err();
    assert!(
        bad.to_string()
            .contains("field: `extra_info` does not name a field"),
        "{bad}"
    );
    for (field, problem) in [
        (
            "HANDSHAK.extra_info",
            "unknown packet type `HANDSHAK`; did you mean `HANDSHAKE`?",
        ),
        (
            "HANDSHAKE.extra_inf",
            "`HANDSHAKE` has no field `extra_inf`; did you mean `extra_info`?",
        ),
    ] {
        let policy = format!("field = \"{field}\"\npolicy = \"exact\"\nreason = \"r\"");
        let bad = with(&policy).unwrap_err().to_string();
        assert!(bad.contains(problem), "{bad}");
    }
    let bad = with("field = \"*.flags\"\npolicy = \"one-of\"\nreason = \"r\"").unwrap_err();
    assert!(
        bad.to_string().contains("values: `one-of` needs values"),
        "{bad}"
    );
}
