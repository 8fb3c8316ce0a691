//! `check --explain` and `check --format`: the requirements of the readers of each format.

use std::process::Command;

use efa_testing::workspace::{efa_conformance, expect, traces};
use serde_json::Value;

use crate::altered::AlteredTrace;

/// A capture whose first packet has version 3, in a file whose name needs escaping.
struct InvalidCapture(AlteredTrace);

impl InvalidCapture {
    fn new() -> InvalidCapture {
        InvalidCapture::of("ping-pong", [65, 4, 0x0d, 0], (1, 3))
    }

    /// A trace with one byte changed in each packet that begins with these bytes.
    fn of(trace: &str, beginning: [u8; 4], (offset, byte): (usize, u8)) -> InvalidCapture {
        let mut trace = AlteredTrace::of(trace);
        trace.edit(|bytes, packets| {
            let mut places = packets.to_vec();
            places.retain(|at| bytes[*at..].starts_with(&beginning));
            assert!(!places.is_empty());
            for at in places {
                bytes[at + offset] = byte;
            }
        });
        let path = trace.path.with_file_name("100% a:b, c.pcapng");
        std::fs::rename(&trace.path, &path).unwrap();
        trace.path = path;
        InvalidCapture(trace)
    }

    fn check(&self, options: &[&str]) -> Command {
        efa_conformance(&[&["check", self.0.name()], options].concat())
    }

    fn json(&self, format: &str) -> Value {
        let printed = expect(self.check(&["--format", format]), 1, &[]);
        serde_json::from_str(&printed).unwrap()
    }
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    let found = value[name].as_str();
    found.unwrap_or_else(|| panic!("no text `{name}` in {value}"))
}

#[test]
fn explanations_take_ten_lines_at_most() {
    let printed = expect(InvalidCapture::new().check(&["--explain"]), 1, &[]);
    let mut lengths = Vec::new();
    for line in printed.lines() {
        match line.starts_with("  ") {
            true => *lengths.last_mut().unwrap() += 1,
            false => lengths.push(1),
        }
    }
    assert!(lengths.iter().all(|length| *length <= 10), "{printed}");
    for expected in [
        "  seen       EAGER_TAGRTM: field version",
        "  rule       packet-form: A packet has an assigned type, version 4",
        "  statement  v4/1.3/packet-form (1.3)",
        "  right      a packet with every field",
        "  look at    frame.number in {1}",
    ] {
        assert!(printed.contains(expected), "{expected}: {printed}");
    }
}

#[test]
fn causes_are_explained() {
    // Each CTS has the flag of emulated reads.
    const BEGINNING: [u8; 4] = [3, 4, 0, 0x80];
    let mistaken = InvalidCapture::of("long-cts", BEGINNING, (2, 0x80));
    let texts = [
        "error: packet 6 (CTS): The flag for windows of emulated reads does not fit",
        "  seen       it has the flag 0x80, and packet 2 began no emulated read",
        "  statement  v4/3.2/cts-read-flag (3.2, below table 3.6)",
        "  right      flag 0x80 in windows of emulated reads, and in no others",
        "  look at    frame.number in {2, 6}",
    ];
    expect(mistaken.check(&["--explain"]), 1, &texts);
}

#[test]
fn github_gets_a_command_on_each_line() {
    let mistaken = InvalidCapture::new();
    let printed = expect(mistaken.check(&["--format", "github"]), 1, &[]);
    let file = "100%25 a%3Ab%2C c.pcapng";
    let mut levels = Vec::new();
    for line in printed.lines() {
        let (command, message) = line[2..].split_once("::").unwrap();
        let (level, properties) = command.split_once(' ').unwrap();
        assert!(["error", "warning", "notice"].contains(&level), "{line}");
        let properties: Vec<_> = properties.split(',').collect();
        assert!(properties[0].starts_with("file=") && properties[0].ends_with(file));
        assert!(properties[1].starts_with("title=") && properties.len() == 2);
        assert!(message.contains("%0A"), "{line}");
        levels.push(level);
    }
    assert!(levels.contains(&"error"), "{printed}");
    // Correct traffic gives no annotations.
    let right = traces().join("ping-pong.pcapng").display().to_string();
    let right = efa_conformance(&["check", &right, "--format", "github"]);
    assert_eq!(expect(right, 0, &[]), "");
}

#[test]
fn gitlab_gets_code_quality_issues() {
    let json = InvalidCapture::new().json("gitlab");
    let issues = json.as_array().unwrap();
    let mut fingerprints = Vec::new();
    for issue in issues {
        for name in ["description", "check_name", "fingerprint"] {
            assert!(!text(issue, name).is_empty());
        }
        let severities = ["info", "minor", "major", "critical", "blocker"];
        assert!(severities.contains(&text(issue, "severity")));
        assert!(text(&issue["location"], "path").ends_with("100% a:b, c.pcapng"));
        assert!(issue["location"]["lines"]["begin"].as_u64().unwrap() > 0);
        fingerprints.push(text(issue, "fingerprint"));
    }
    assert!(
        issues
            .iter()
            .any(|issue| text(issue, "severity") == "major")
    );
    fingerprints.sort_unstable();
    let all = fingerprints.len();
    fingerprints.dedup();
    assert_eq!(fingerprints.len(), all, "each issue has its own");
}

#[test]
fn sarif_has_what_its_standard_requires() {
    let mistaken = InvalidCapture::new();
    let json = mistaken.json("sarif");
    assert_eq!(text(&json, "version"), "2.1.0");
    assert!(text(&json, "$schema").ends_with("sarif-schema-2.1.0.json"));
    let run = &json["runs"][0];
    let driver = &run["tool"]["driver"];
    assert_eq!(text(driver, "name"), "efa-conformance");
    let rules = driver["rules"].as_array().unwrap();
    for rule in rules {
        for name in ["shortDescription", "fullDescription", "help"] {
            assert!(!text(&rule[name], "text").is_empty(), "{rule}");
        }
    }
    let results = run["results"].as_array().unwrap();
    for result in results {
        let index = result["ruleIndex"].as_u64().unwrap() as usize;
        assert_eq!(text(&rules[index], "id"), text(result, "ruleId"));
        assert!(["none", "note", "warning", "error"].contains(&text(result, "level")));
        assert!(!text(&result["message"], "text").is_empty());
        let place = &result["locations"][0]["physicalLocation"];
        let uri = text(&place["artifactLocation"], "uri");
        assert!(uri.ends_with("100%25%20a%3Ab%2C%20c.pcapng"), "{uri}");
        assert!(place["region"]["startLine"].as_u64().unwrap() >= 1);
        let fingerprints = result["partialFingerprints"].as_object().unwrap();
        assert!(fingerprints.values().all(Value::is_string));
    }
    assert!(
        results
            .iter()
            .any(|result| text(result, "level") == "error")
    );
    // The same findings have the same fingerprints in the next run.
    assert_eq!(json, mistaken.json("sarif"));
}

#[test]
fn several_captures_make_one_document() {
    let one = InvalidCapture::new();
    let other = InvalidCapture::of("long-cts", [3, 4, 0, 0x80], (2, 0x80));
    let paths = [&one, &other].map(|mistaken| mistaken.0.name());
    let together = |format: &str| {
        let options = ["check", paths[0], paths[1], "--format", format];
        expect(efa_conformance(&options), 1, &[])
    };
    let alone = |format| [&one, &other].map(|mistaken| mistaken.json(format));

    let issues: Value = serde_json::from_str(&together("gitlab")).unwrap();
    let singly = alone("gitlab").map(|json| json.as_array().unwrap().clone());
    assert_eq!(issues.as_array().unwrap(), &singly.concat());

    let sarif: Value = serde_json::from_str(&together("sarif")).unwrap();
    let of = |json: &Value| json["runs"][0]["results"].as_array().unwrap().len();
    let lengths = alone("sarif").each_ref().map(of);
    assert!(lengths.iter().all(|length| *length > 0));
    let all: usize = lengths.iter().sum();
    assert_eq!(of(&sarif), all);
    let run = &sarif["runs"][0];
    for result in run["results"].as_array().unwrap() {
        let index = result["ruleIndex"].as_u64().unwrap() as usize;
        let rule = &run["tool"]["driver"]["rules"][index];
        assert_eq!(text(rule, "id"), text(result, "ruleId"));
    }
    assert_eq!(together("github").lines().count(), all);
}
