//! `docs/faults.md` is complete, and its examples work.

use std::fs;
use std::path::PathBuf;

use efa_device_model::fault::{Fault, parse_file};

fn own(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn page() -> String {
    fs::read_to_string(own("../../docs/faults.md")).unwrap()
}

/// The error for this rule.
fn refusal(rule: &str) -> String {
    rule.parse::<Fault>().unwrap_err().to_string()
}

#[test]
fn every_key_action_and_value_is_explained() {
    let page = page();
    let mut names = Vec::new();
    for rule in [
        r#"when = { none = 1 }, then = "hold""#,
        r#"when = {}, then = "none""#,
        r#"when = { on = "none" }, then = "hold""#,
    ] {
        // The error lists the possible names after the refused one.
        let refusal = refusal(rule);
        names.extend(refusal.split('`').skip(3).step_by(2).map(str::to_owned));
    }
    assert!(names.len() > 30, "{names:?}");
    let refusal = refusal(r#"when = {}, then = { status = "none" }"#);
    let (_, statuses) = refusal.rsplit_once(" use one of ").unwrap();
    names.extend(statuses.split(", ").map(str::to_owned));
    assert!(names.len() > 45, "{names:?}");
    for name in names {
        let spellings = [
            format!("`{name}`"),
            format!("`\"{name}\"`"),
            format!("`{{ {name} = "),
        ];
        let is_there = spellings.iter().any(|spelling| page.contains(spelling));
        assert!(is_there, "docs/faults.md does not explain {name}");
    }
}

#[test]
fn examples_are_rules() {
    let page = page();
    let blocks: Vec<_> = page.split("```toml\n").skip(1).collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        let (rules, _) = block.split_once("```").unwrap();
        parse_file("docs/faults.md", rules).unwrap();
    }
    let mut count = 0;
    for line in page.lines().filter(|line| !line.starts_with("efa-emu:")) {
        let inline = line.split('`').skip(1).step_by(2);
        let quoted = line
            .strip_prefix("$ efa-emu fault add '")
            .and_then(|rest| rest.strip_suffix('\''));
        for rule in inline.chain(quoted) {
            if !rule.starts_with("when =") && !rule.contains("then =") {
                continue;
            }
            count += 1;
            match rule.parse::<Fault>() {
                Ok(_) => assert!(!rule.contains("CTSS")),
                Err(error) => {
                    // The example of a mistake.
                    assert!(
                        page.contains(&format!("efa-emu: {error}")),
                        "{rule}: {error}"
                    );
                }
            }
        }
    }
    assert!(count > 8, "{count} rules");
}

#[test]
fn recipes_are_rules_and_explained() {
    let page = page();
    let mut count = 0;
    for entry in fs::read_dir(own("../faults")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        parse_file(&name, &fs::read_to_string(&path).unwrap()).unwrap();
        assert!(page.contains(&format!("| `{name}` |")), "{name}");
        count += 1;
    }
    assert_eq!(count, 5);
}
