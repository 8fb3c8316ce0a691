//! `docs/protocol-coverage.md` names code and tests that exist, and leaves no section out;
//! `docs/known-failures.md` names tests that exist.

mod faults;
mod page;

use std::collections::BTreeSet;
use std::path::PathBuf;

use faults::Faults;
use page::{PROTOCOL, STATEMENTS, read, references, root, rows, source};

/// The sections of the protocol document that state something an implementation can break.
const SECTIONS: [&str; 27] = [
    "1.1",
    "1.2",
    "1.3",
    "1.4",
    "2.1",
    "2.1.1",
    "2.2",
    "2.3",
    "3.1",
    "3.2 eager",
    "3.2 medium",
    "3.2 long-CTS",
    "3.3",
    "3.3 eager write",
    "3.3 long-CTS write",
    "3.3 read",
    "3.3 atomic",
    "4.1 long-read message",
    "4.1 long-read write",
    "4.1 direct read",
    "4.2",
    "4.3",
    "4.4",
    "4.5",
    "4.6",
    "4.7",
    "5",
];

/// The file that a reference's path means, by the rules at the top of the document.
fn file(path: &str, is_test: bool) -> PathBuf {
    let root = root();
    let candidates = match (is_test, path.split_once('/')) {
        (true, Some(("unit", rest))) => match rest.split_once('/') {
            Some(("wire", rest)) => vec![format!("efa-core/wire/src/{rest}.rs")],
            Some(("model", rest)) => vec![format!("efa-emu/model/src/{rest}.rs")],
            _ => vec![
                format!("efa-core/src/{rest}.rs"),
                format!("efa-core/src/{rest}/mod.rs"),
            ],
        },
        (true, Some(("wire", _))) => vec![format!("efa-core/wire/tests/{path}.rs")],
        (true, Some(("device", rest))) => vec![format!("efa-emu/sim/tests/endpoint/{rest}.rs")],
        (true, Some(("connected", _))) => vec![format!("efa-emu/model/tests/{path}.rs")],
        (true, Some(("faults", _))) => vec![format!("conformance/command/tests/{path}.rs")],
        (true, Some(("calls", _))) => vec![format!("efa-emu/verbs/tests/{path}.rs")],
        (true, Some(("promises", _))) => vec![format!("efa-emu/promises/tests/{path}.rs")],
        (true, Some(("sim", _))) => vec![format!("efa-emu/sim/tests/{path}.rs")],
        (true, _) => vec![format!("efa-core/tests/{path}.rs")],
        (false, Some(("model", rest))) => vec![format!("efa-emu/model/src/{rest}.rs")],
        (false, Some(("wire", rest))) => vec![format!("efa-core/wire/src/{rest}.rs")],
        (false, _) => vec![
            format!("efa-core/src/endpoint/{path}.rs"),
            format!("efa-core/src/endpoint/{path}/mod.rs"),
            format!("efa-core/src/{path}.rs"),
        ],
    };
    let found = candidates
        .iter()
        .map(|name| root.join(name))
        .find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{path} names none of {candidates:?}"))
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|character: char| !character.is_alphanumeric() && character != '_')
        .any(|part| part == word)
}

fn check(reference: &str, is_test: bool) {
    let (path, name) = reference
        .split_once("::")
        .unwrap_or_else(|| panic!("{reference} has no name"));
    let text = read(&file(path, is_test));
    let defines = |line: &str| {
        let line = line.trim_start();
        let item = ["fn ", "struct ", "enum ", "const ", "type "]
            .iter()
            .any(|kind| line.contains(kind));
        // Formats are declared by a macro, and the tests of their literal bytes made by another.
        let in_macro = (path.starts_with("wire/") || path.starts_with("unit/wire/"))
            && [", ", " "]
                .iter()
                .any(|end| line.starts_with(&format!("{name}{end}")));
        (item && has_word(line, name)) || in_macro
    };
    assert!(text.lines().any(defines), "{reference} does not exist");
}

#[test]
fn every_row_names_code_and_tests_that_exist() {
    let tables = STATEMENTS.map(|first| rows(PROTOCOL, first));
    assert!(tables[0].len() > 60 && tables[1].len() > 12);
    for row in tables.concat() {
        let [_, statement, code, ..] = &row[..] else {
            panic!("{row:?} has no code");
        };
        assert!(!statement.is_empty());
        references(code)
            .into_iter()
            .for_each(|name| check(name, false));
    }
    for row in page::claims() {
        row.tests.iter().for_each(|name| check(name, true));
    }
}

/// `make coverage` shows that the tests of a row fail with its faults.
#[test]
fn rows_and_seedable_faults_match() {
    let faults = Faults::read();
    for file in faults.files() {
        faults.apply(file, &read(&root().join(source(file))));
    }
    let mut used = BTreeSet::new();
    for row in page::claims() {
        for name in row.faults {
            assert!(faults.number(&name).is_some(), "{}: {name}", row.statement);
            used.insert(name);
        }
    }
    let names = faults.names().iter();
    let unused: Vec<&String> = names.filter(|name| !used.contains(*name)).collect();
    assert!(unused.is_empty(), "no row names {unused:?}");
}

/// A fault is a choice in the text, whatever the white space; of two at one place, each has its
/// own.
#[test]
fn faults_become_choices_in_the_source() {
    let faults = Faults::parse(
        "# A comment.\n## one a.rs\n-if «x == 1» {\n+true\n\n## two a.rs\n-if «x == 1» {\n+false\n\n## three a.rs\n\
         -«go();»\n+\n",
    );
    assert_eq!(faults.number("three"), Some(2));
    let source = "if x\n    == 1 { go(); }";
    let expected = "if (if crate::seeded(0) { true } else { (if crate::seeded(1) { false } else { x\n    == 1 }) }) \
                    { if crate::seeded(2) {  } else { go(); } }";
    assert_eq!(faults.apply("a.rs", source), expected);
    assert_eq!(faults.apply("b.rs", source), source);
}

#[test]
#[should_panic(expected = "one: a.rs has 0 times")]
fn a_faults_missing_text_is_reported() {
    Faults::parse("## one a.rs\n-go();\n+\n").apply("a.rs", "gogo();");
}

#[test]
#[should_panic(expected = "one: a.rs has 2 times")]
fn a_faults_ambiguous_text_is_reported() {
    Faults::parse("## one a.rs\n-go();\n+\n").apply("a.rs", "go(); go();");
}

#[test]
fn no_section_is_left_out() {
    let covered: BTreeSet<String> = rows(PROTOCOL, "Section")
        .into_iter()
        .map(|row| row[0].clone())
        .collect();
    let expected: BTreeSet<String> = SECTIONS.iter().map(ToString::to_string).collect();
    assert_eq!(covered, expected);
}

#[test]
fn rows_and_deviations_match() {
    let text = read(&root().join("docs/deviations.md"));
    let deviations: BTreeSet<String> = text
        .lines()
        .filter_map(|line| {
            line.strip_prefix("| ")?
                .split(' ')
                .next()?
                .parse::<u32>()
                .ok()
        })
        .map(|number| format!("D{number}"))
        .collect();
    let rows = rows(PROTOCOL, "Deviation");
    let covered: BTreeSet<String> = rows.iter().map(|row| row[0].clone()).collect();
    assert_eq!(covered, deviations);
    // The statements refer to deviations that exist.
    let document = read(&root().join(PROTOCOL));
    let named = document
        .split(|character: char| !character.is_alphanumeric())
        .filter(|word| {
            word.strip_prefix('D')
                .is_some_and(|number| number.parse::<u32>().is_ok())
        });
    for name in named {
        assert!(deviations.contains(name), "{name} is not a deviation");
    }
}

#[test]
fn every_known_failure_names_tests_that_exist() {
    let rows = rows("docs/known-failures.md", "#");
    for (row, number) in rows.iter().zip(1..) {
        let [own, cells @ .., tests] = &row[..] else {
            panic!("{row:?} has no cells");
        };
        assert_eq!((own, cells.len()), (&number.to_string(), 5), "{row:?}");
        assert!(cells.iter().all(|cell| !cell.is_empty()), "{row:?}");
        references(tests)
            .into_iter()
            .for_each(|name| check(name, true));
    }
    assert_eq!(rows.len(), 17);
}
