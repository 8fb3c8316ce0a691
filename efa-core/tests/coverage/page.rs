//! The tables of the documents, and the names in their cells.

use std::fs;
use std::path::{Path, PathBuf};

/// The page that lists the implemented parts of the protocol.
pub(crate) const PROTOCOL: &str = "docs/protocol-coverage.md";

pub(crate) fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("a workspace").to_path_buf()
}

/// The source directories with seeded faults, by the prefix of their paths in `faults.txt`. Paths
/// without a prefix are below `efa-core/src`.
pub(crate) const SOURCES: [(&str, &str); 3] = [
    ("wire/", "efa-core/wire/src"),
    ("model/", "efa-emu/model/src"),
    ("", "efa-core/src"),
];

/// The file below the root that a path of `faults.txt` means.
pub(crate) fn source(path: &str) -> PathBuf {
    let mut sources = SOURCES.iter();
    let found = sources
        .find_map(|(prefix, source)| Some(Path::new(source).join(path.strip_prefix(prefix)?)));
    found.unwrap_or_else(|| panic!("{path} has no source"))
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The cells of the rows of a document's table whose header starts with `first`.
pub(crate) fn rows(document: &str, first: &str) -> Vec<Vec<String>> {
    let text = read(&root().join(document));
    let header = format!("| {first} |");
    text.lines()
        .skip_while(|line| !line.starts_with(&header))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let cells = line.trim_matches('|').split(" | ");
            cells.map(|cell| cell.trim().to_owned()).collect()
        })
        .collect()
}

/// The texts between backticks.
pub(crate) fn references(cell: &str) -> Vec<&str> {
    let parts: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
    assert!(!parts.is_empty(), "{cell} names nothing");
    parts
}

/// A row of the page: its statement, and the tests that verify it.
pub(crate) struct Row {
    pub(crate) statement: String,
    pub(crate) tests: Vec<String>,
    /// Names of faults with which the tests fail.
    pub(crate) faults: Vec<String>,
}

/// The first header cells of the tables with statements: of the protocol, and of hardware tag
/// matching.
pub(crate) const STATEMENTS: [&str; 2] = ["Section", "Tag matching"];

/// The rows of all tables of the page.
pub(crate) fn claims() -> Vec<Row> {
    let statements = STATEMENTS.map(|first| rows(PROTOCOL, first)).concat();
    let statements = statements.into_iter().map(|row| {
        let [section, statement, _, tests, faults] = &row[..] else {
            panic!("{row:?} has not five cells");
        };
        (
            format!("{section}: {statement}"),
            tests.clone(),
            faults.clone(),
        )
    });
    let deviations = rows(PROTOCOL, "Deviation").into_iter().map(|row| {
        let [deviation, tests, faults] = &row[..] else {
            panic!("{row:?} has not three cells");
        };
        (deviation.clone(), tests.clone(), faults.clone())
    });
    let names = |cell: &str| references(cell).into_iter().map(str::to_owned).collect();
    let claims = statements.chain(deviations);
    claims
        .map(|(statement, tests, faults)| Row {
            statement,
            tests: names(&tests),
            faults: names(&faults),
        })
        .collect()
}
