//! Reports tests that are skipped because of the machine.

use std::fmt::Display;
use std::io::Write;

/// The variable with a file to which [`skip`] appends its lines, because test runners only show the
/// output of failed tests.
const LIST: &str = "EFA_SKIPPED";

/// The variable that makes [`skip`] fail the test, for machines on which no test may be skipped.
const FORBIDDEN: &str = "EFA_NO_SKIPS";

/// Reports that the calling test or a part of it is skipped, and why: on standard output, and in
/// the file of `EFA_SKIPPED`.
///
/// # Panics
/// If `EFA_NO_SKIPS` is set, or the file cannot be written to.
pub fn skip(reason: impl Display) {
    let line = format!("skipped: {}: {reason}", test());
    println!("{line}");
    if let Some(list) = std::env::var_os(LIST) {
        let list = std::fs::File::options()
            .append(true)
            .create(true)
            .open(list);
        // In one write, because other tests write concurrently.
        let written = list.and_then(|mut list| list.write_all(format!("{line}\n").as_bytes()));
        written.unwrap_or_else(|error| panic!("{LIST}: {error}"));
    }
    if std::env::var_os(FORBIDDEN).is_some() {
        panic!("{FORBIDDEN} is set, and the test was {line}");
    }
}

/// The name of the calling thread's test, otherwise the program's.
fn test() -> String {
    match std::thread::current().name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => std::env::args().next().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_are_listed_and_fail_where_forbidden() {
        const INSIDE: &str = "EFA_TEST_OF_SKIP";
        if std::env::var_os(INSIDE).is_some() {
            skip("no adapter");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let list = directory.path().join("list");
        let name = "skip::tests::skips_are_listed_and_fail_where_forbidden";
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", name]).env(INSIDE, "");
        again.env(LIST, &list).env_remove(FORBIDDEN);
        let mut expected = String::new();
        for is_forbidden in [false, true] {
            if is_forbidden {
                again.env(FORBIDDEN, "1");
            }
            let output = again.output().unwrap();
            assert_eq!(output.status.success(), !is_forbidden, "{output:?}");
            expected += &format!("skipped: {name}: no adapter\n");
            assert_eq!(std::fs::read_to_string(&list).unwrap(), expected);
        }
    }
}
