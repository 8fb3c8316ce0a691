//! What a test leaves out, since the machine lacks something.

use std::fmt::Display;
use std::io::Write;

/// A file to which each line of [`skip`] is added: test runners show the output of failed tests
/// only.
const LIST: &str = "EFA_SKIPPED";

/// Makes [`skip`] fail the test: for machines that are to have everything.
const FORBIDDEN: &str = "EFA_NO_SKIPS";

/// Says that the calling test is skipped, or a part of it, and why: on standard output, and in the
/// file that `EFA_SKIPPED` names.
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
        // In one write: other tests write, too.
        let written = list.and_then(|mut list| list.write_all(format!("{line}\n").as_bytes()));
        written.unwrap_or_else(|error| panic!("{LIST}: {error}"));
    }
    if std::env::var_os(FORBIDDEN).is_some() {
        panic!("{FORBIDDEN} is set, and the test was {line}");
    }
}

/// The calling thread's test, by its name in the test runner; elsewhere, the program.
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
