//! Changes every field of every packet type in correct traffic. Each change is found as an error,
//! or there is a reason why it cannot be found in packets alone.
//!
//! The declarations of `efa_wire` provide the fields. The table of `docs/mutations.md` is generated
//! here: `EFA_UPDATE=1 cargo test -p efa-check --lib mutations` rewrites it.

mod change;
mod reasons;
pub(super) mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use efa_testing::workspace::expect_part;
use efa_wire::PacketType;
use efa_wire::rules::Severity;

use super::*;
use change::{Aspect, Change, changes};
use reasons::REASONS;
use traffic::{PeerKnowledge, traffic};

/// The rules that find the changes of a field's aspect first, and the reasons why others are not
/// found.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct Cell {
    rules: BTreeSet<&'static str>,
    reasons: BTreeSet<usize>,
}

/// By field, packet type and aspect.
type Rows = BTreeMap<(String, u8), BTreeMap<Aspect, Cell>>;

#[derive(Default)]
struct Table {
    rows: Rows,
    /// The number of changes that a rule finds, and the number with a reason why none does.
    found: u64,
    excused: u64,
    /// The changes with neither.
    missed: Vec<String>,
}

/// Makes the changes, one by one.
fn judge_all() -> Table {
    let mut table = Table::default();
    for &packet_type in PacketType::ALL.iter().filter(|known| known.has_header()) {
        for knowledge in PeerKnowledge::ALL {
            let Some((b, subject)) = traffic(packet_type, knowledge) else {
                continue;
            };
            let right = b.found(|finding| finding.severity > Severity::Note);
            assert_eq!(right, [], "{packet_type}, {knowledge:?}");
            let packet = b.capture.frames[subject].payload.clone();
            for change in changes(&packet) {
                let row = table.rows.entry((change.field.clone(), packet_type.code()));
                let cell = row.or_default().entry(change.aspect).or_default();
                if let Some(rule) = found(&b, subject, &change) {
                    cell.rules.insert(rule);
                    table.found += 1;
                } else if let Some(reason) = reasons::of(&change, packet_type) {
                    cell.reasons.insert(reason);
                    table.excused += 1;
                } else {
                    let missed = format!("{packet_type}, {knowledge:?}: {change}");
                    table.missed.push(missed);
                }
            }
        }
    }
    table
}

/// The first error that is found if both ends have the changed packet.
fn found(b: &Builder, subject: usize, change: &Change) -> Option<&'static str> {
    let mut capture = b.capture.clone();
    for frame in &mut capture.frames[subject..][..2] {
        frame.payload.clone_from(&change.packet);
        frame.header.payload_length = change.packet.len() as u32;
    }
    let mut findings = check(&capture).findings.into_iter();
    let error = findings.find(|finding| finding.severity == Severity::Error);
    error.map(|finding| finding.rule.id)
}

/// The page's table: fields, and packets with the same result.
fn documentation(table: &Table) -> String {
    let fields: BTreeSet<_> = table.rows.keys().map(|(field, _)| field).collect();
    let packets: BTreeSet<_> = table.rows.keys().map(|(_, code)| code).collect();
    let mut text = format!(
        "{} changes of {} fields and flags of {} packet types: {} are found, {} cannot be.\n\n",
        table.found + table.excused,
        fields.len(),
        packets.len(),
        table.found,
        table.excused
    );
    text.push_str("| field | packets |");
    for aspect in Aspect::ALL {
        write!(text, " {} |", aspect.title()).unwrap();
    }
    text.push_str("\n|---|---|---|---|---|---|\n");
    let mut rows: BTreeMap<(&str, Vec<Cell>), Vec<PacketType>> = BTreeMap::new();
    for ((field, code), cells) in &table.rows {
        let cells = Aspect::ALL.map(|aspect| cells.get(&aspect).cloned().unwrap_or_default());
        let packets = rows.entry((field, cells.to_vec())).or_default();
        packets.extend(PacketType::from_code(*code));
    }
    for ((field, cells), packets) in rows {
        let packets: Vec<_> = packets.iter().map(|packet| packet.name()).collect();
        write!(text, "| `{field}` | {} |", packets.join(", ")).unwrap();
        for cell in cells {
            let rules = cell.rules.iter().map(|rule| format!("`{rule}`"));
            let reasons = cell
                .reasons
                .iter()
                .map(|reason| format!("({})", reason + 1));
            let all: Vec<_> = rules.chain(reasons).collect();
            write!(text, " {} |", all.join(" ")).unwrap();
        }
        text.push('\n');
    }
    text.push_str("\n## Why nobody could\n\n");
    for (number, reason) in (1..).zip(REASONS) {
        writeln!(text, "{number}. {}", reason.text).unwrap();
    }
    text
}

#[test]
fn every_changed_field_is_found_or_excused() {
    let table = judge_all();
    let missed = &table.missed;
    assert!(
        missed.is_empty(),
        "{} changes are not found:\n{}",
        missed.len(),
        missed.join("\n")
    );
    let cells = table.rows.values().flat_map(BTreeMap::values);
    let used: BTreeSet<_> = cells
        .flat_map(|cell| cell.reasons.iter().copied())
        .collect();
    let stale: Vec<_> = (0..REASONS.len())
        .filter(|reason| !used.contains(reason))
        .collect();
    assert!(stale.is_empty(), "nothing needs the reasons {stale:?}");
    let tests = "-p efa-check --lib mutations";
    let mark = format!("<!-- generated from here on: EFA_UPDATE=1 cargo test {tests} -->\n\n");
    expect_part(
        "docs/mutations.md",
        [&mark, ""],
        tests,
        &documentation(&table),
    );
}
