//! The rules that captures are checked against are those of `docs/rules.md`.

use std::collections::BTreeSet;
use std::path::Path;

use efa_conformance::check::RULES;

#[test]
fn every_rule_is_documented_and_every_documented_rule_is_checked() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/rules.md");
    let text = std::fs::read_to_string(path).expect("docs/rules.md is there");
    let documented: BTreeSet<_> = text
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|row| row.split('|').map(str::trim).collect::<Vec<_>>())
        .filter(|cells| cells[5] == "yes")
        .map(|cells| cells[1].trim_matches('`').to_owned())
        .collect();
    let checked: BTreeSet<_> = RULES.iter().map(|rule| rule.id.to_owned()).collect();
    assert_eq!(documented, checked);
}
