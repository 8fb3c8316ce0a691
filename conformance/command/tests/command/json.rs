//! The documented fields of `efa-conformance`'s output with `--json`. All commands with this option
//! are documented.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use efa_interop::{NotMeasured, Outcome, Row};
use efa_testing::json::assert_documented;
use efa_testing::workspace::{built, efa_conformance, expect, outcome, root, traces};
use serde_json::Value;

use crate::altered::AlteredTrace;

/// The values in a command's output.
fn printed(arguments: &[&str]) -> Vec<Value> {
    let output = efa_conformance(arguments).output().unwrap();
    let values = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
    let values: Vec<Value> = values.map(Result::unwrap).collect();
    assert!(!values.is_empty(), "{output:?}");
    values
}

/// A trace with a wrong version in its first packet, and without its end.
fn damaged() -> AlteredTrace {
    let trace = AlteredTrace::of("long-read");
    trace.edit(|bytes, packets| {
        bytes[packets[0] + 1] = 9;
        bytes.truncate(bytes.len() - 3);
    });
    trace
}

#[test]
fn check() {
    let values = printed(&["check", damaged().name(), "--json"]);
    assert_documented("efa-conformance check", &values, &[]);
    assert_eq!(values[0]["result"], "failed");
    let damage = values[0]["damage"].as_array().unwrap();
    assert_eq!(damage.len(), 2, "{damage:?}");
}

#[test]
fn list() {
    let list = efa_conformance(&["list", traces().to_str().unwrap(), "--json"]);
    let text = expect(list, 0, &[]);
    let lines = text.lines().map(serde_json::from_str);
    let values: Vec<Value> = lines.map(Result::unwrap).collect();
    // The engine plays all traces.
    assert_documented("efa-conformance list", &values, &["codec_only"]);
    let trace = values.iter().find(|trace| trace["name"] == "eager-tagged");
    let trace = trace.unwrap();
    assert_eq!(trace["endpoints"], serde_json::json!(["a", "b"]));
    assert_eq!(trace["spec"], serde_json::json!(["3.2"]));
    assert_eq!(trace["packets"], 3);
    let path = trace["path"].as_str().unwrap();
    assert!(path.ends_with("eager-tagged.pcapng"));
}

#[test]
fn show() {
    let damaged = damaged();
    let cut = AlteredTrace::of("medium-untagged");
    cut.rewrite(256, |_| true);
    let mut values = Vec::new();
    let others = ["read-direct.pcapng", "releases/not-ready-eager-2.5.pcapng"];
    for path in others
        .map(|name| traces().join(name))
        .into_iter()
        .chain([damaged, cut].each_ref().map(|trace| trace.path.clone()))
    {
        values.extend(printed(&["show", path.to_str().unwrap(), "--json"]));
    }
    let several = others.map(|name| traces().join(name).display().to_string());
    values.extend(printed(&["show", &several[0], &several[1], "--json"]));
    // No capture of the corpus has connections.
    assert_documented(
        "efa-conformance show",
        &values,
        &["immediate", "rendezvous"],
    );
    let of_cut: Vec<_> = values
        .iter()
        .filter(|value| value.get("captured").is_some())
        .collect();
    // The fields of the header are present, and an incomplete packet is not called invalid.
    assert!(
        of_cut
            .iter()
            .any(|value| value["fields"]["msg_id"].is_number())
    );
    for value in of_cut {
        assert!(
            value["captured"].as_u64() < value["bytes"].as_u64(),
            "{value}"
        );
        assert!(value.get("invalid").is_none(), "{value}");
    }
}

#[test]
fn run() {
    // Another tag with the same checksum.
    let (old, new) = ([0x37, 0x12, 0, 0], [0x36, 0x12, 1, 0]);
    let trace = AlteredTrace::of("eager-tagged");
    trace.edit(|bytes, _| {
        for at in 0..bytes.len() - old.len() {
            if bytes[at..].starts_with(&old) {
                bytes[at..][..old.len()].copy_from_slice(&new);
            }
        }
    });
    let file = |name: &str| trace.directory.path().join(name).display().to_string();
    let expected =
        "[[deviation]]\nrow = 1\ntraces = \"eager-tagged\"\nfindings = \"tag\"\nwhy = \"a test\"\n";
    std::fs::write(file("expected.toml"), expected).unwrap();
    // No other implementation can take the place of one of its endpoints.
    let skipped = traces()
        .join("handshake-provoked.pcapng")
        .display()
        .to_string();
    let mut values: Vec<Value> = Vec::new();
    for options in [
        &[trace.name(), "--captures", &file("kept")][..],
        &[trace.name(), "--expected", &file("expected.toml")],
        &[&skipped],
    ] {
        let json = file("results.json");
        let arguments = [&["run", "--json", &json], options].concat();
        let (status, text) = outcome(&efa_conformance(&arguments).output().unwrap());
        assert!(status < Some(2), "{text}");
        values.push(serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap());
    }
    // `hosts.rs` covers cases on other hosts. Each message of these cases has its counterpart.
    let unseen = [
        "cases[].ladder.rungs[].actual",
        "cases[].ladder.rungs[].expected",
        "cases[].places.*",
        "pairs[].places[]",
        "pairs[].summary.*",
    ];
    assert_documented("efa-conformance run", &values, &unseen);
}

#[test]
fn interop() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("table.json");
    let row = |name: &str, outcome: Outcome| Row {
        group: "libfabric",
        name: name.to_owned(),
        places: BTreeMap::from([("a".to_owned(), "node0".to_owned())]),
        outcome,
        duration: Duration::from_millis(1500),
    };
    let rows = [
        row(
            "works",
            Outcome::Passed {
                measured: "1 us".to_owned(),
            },
        ),
        row(
            "fails",
            Outcome::NotMeasured(NotMeasured::Failed("why".to_owned())),
        ),
        row(
            "is not run",
            Outcome::NotMeasured(NotMeasured::Skipped("why".to_owned())),
        ),
        row(
            "is stock's",
            Outcome::NotMeasured(NotMeasured::Known {
                reason: "why".to_owned(),
                capture: "x.pcapng".into(),
            }),
        ),
    ];
    efa_interop::report::json(&rows, &path).unwrap();
    let value: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_documented("efa-conformance interop", std::slice::from_ref(&value), &[]);
    let results: Vec<_> = value["cells"].as_array().unwrap().iter().collect();
    let words = results.iter().map(|cell| cell["result"].as_str().unwrap());
    assert_eq!(words.collect::<Vec<_>>(), ["pass", "fail", "skip", "known"]);
    assert_eq!(results[3]["capture"], "x.pcapng");
}

/// This command and those below it whose help has the option `--json`.
fn with_json(program: &str, command: &[String], found: &mut Vec<String>) {
    let output = Command::new(built(program))
        .args(command)
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && !help.is_empty(), "{command:?}");
    // The help may mention an option of another command.
    if help
        .lines()
        .any(|line| line.trim_start().starts_with("--json"))
    {
        found.push([&[program.to_owned()], command].concat().join(" "));
    }
    let (_, list) = help.split_once("\nCommands:\n").unwrap_or_default();
    let names = list
        .lines()
        .take_while(|line| line.starts_with("  "))
        // Further lines of a description are indented more.
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help");
    for name in names {
        with_json(program, &[command, &[name.to_owned()]].concat(), found);
    }
}

#[test]
fn every_command_with_the_option_is_documented() {
    let mut found = Vec::new();
    for program in ["efa-emu", "efa-conformance", "efa-tap", "efa-emu-bridge"] {
        with_json(program, &[], &mut found);
    }
    let page = std::fs::read_to_string(root().join("docs/json.md")).unwrap();
    let documented = page.lines().filter_map(|line| {
        let heading = line.strip_prefix("## `")?;
        heading.strip_suffix(" --json`").map(str::to_owned)
    });
    let mut documented: Vec<String> = documented.collect();
    found.sort();
    documented.sort();
    assert_eq!(found, documented);
}
