//! The texts that are generated from the rules in `efa_wire::rules` are up to date: the tables of
//! `docs/rules.md`, and the dissector's table of expert information.
//!
//! After a change of the rules, `EFA_UPDATE=1 cargo test -p efa-check --test check rules_generated`
//! writes both again.

use std::fmt::Write as _;

use efa_testing::workspace::expect_part;
use efa_wire::rules::{Chapter, Evidence, Group, Judge, RULES, Rule, Severity};

/// The tables of `docs/rules.md`.
fn documentation() -> String {
    let mut text = String::new();
    for chapter in Chapter::ALL {
        write!(
            text,
            "\n## {}\n\n| id | statement | source | severity | Wireshark | `check` | `run` | meaning |\n\
             |---|---|---|---|---|---|---|---|\n",
            chapter.title()
        )
        .unwrap();
        let yes = |is_so| if is_so { "yes" } else { "" };
        for rule in RULES.iter().filter(|rule| rule.chapter == chapter) {
            writeln!(
                text,
                "| `{}` | `{}` | {} | {} | {} | {} | {} | {} |",
                rule.id,
                rule.statement,
                rule.source,
                rule.severity,
                yes(rule.is_dissected()),
                yes(rule.is_checked()),
                yes(rule.is_run()),
                rule.meaning
            )
            .unwrap();
        }
    }
    text.push('\n');
    text
}

/// The dissector's table.
fn dissector() -> String {
    let table = |name: &str, of: &dyn Fn(&Rule) -> bool| {
        let mut text = format!("local {name} = {{\n");
        for rule in RULES.iter().filter(|rule| rule.is_dissected() && of(rule)) {
            let group = match rule.group {
                Group::Malformed => "MALFORMED",
                Group::Protocol => "PROTOCOL",
                Group::Sequence => "SEQUENCE",
            };
            let severity = match rule.severity {
                Severity::Error => "ERROR",
                Severity::Warning => "WARN",
                Severity::Note => "NOTE",
            };
            // A note of the dissector alone is no one's error.
            let is_hint = (rule.severity, rule.judge) == (Severity::Note, Judge::Dissector);
            let evidence = match rule.evidence {
                _ if is_hint => "",
                Evidence::Packet => "",
                Evidence::History => ", HISTORY",
                Evidence::Sender => ", SENDER",
                Evidence::Beginning => ", BEGINNING",
            };
            writeln!(
                text,
                "    {{ \"{}\", {group}, {severity}, \"{}\"{evidence} }},",
                rule.id, rule.breach
            )
            .unwrap();
        }
        text + "}\n"
    };
    let is_packets =
        |rule: &Rule| !matches!(rule.chapter, Chapter::Transport | Chapter::TagMatching);
    let of = |chapter| move |rule: &Rule| rule.chapter == chapter;
    table("TRANSPORT_RULES", &of(Chapter::Transport))
        + &table("PACKET_RULES", &is_packets)
        + &table("TAG_RULES", &of(Chapter::TagMatching))
}

/// The arguments of `cargo test` that run these tests.
const TESTS: &str = "-p efa-check --test check rules_generated";

#[test]
fn the_documentation_lists_the_rules_as_they_are() {
    let marks = [
        "<!-- generated: rules begin -->\n",
        "<!-- generated: rules end -->\n",
    ];
    expect_part("docs/rules.md", marks, TESTS, &documentation());
}

#[test]
fn the_dissector_has_the_rules_as_they_are() {
    let marks = ["-- generated: rules begin\n", "-- generated: rules end\n"];
    expect_part("wireshark/efa.lua", marks, TESTS, &dissector());
}
