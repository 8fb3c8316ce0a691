//! The command `efa-emu fault`.

use std::io::Write;
use std::process::{Output, Stdio};

use crate::rig::Rig;
use crate::with_each;
use efa_testing::workspace;

fn type_in(rig: &Rig, arguments: &[&str], input: &str) -> Output {
    let mut child = workspace::efa_emu(&["fault", "--fabric", rig.fabric_name()])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read its input may have exited.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// Runs a command, which must succeed, and returns its output.
#[track_caller]
fn works(rig: &Rig, arguments: &[&str], input: &str) -> String {
    let output = type_in(rig, arguments, input);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.is_empty(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

const NOTHING_ARMED: &str = "    SEEN  APPLIED     HELD  RULE\n";

#[test]
fn rules_are_added_listed_released_and_cleared() {
    with_each(|software| {
        let mut rig = Rig::pair(software);
        rig.exchange_handshakes();
        assert_eq!(works(&rig, &["list"], ""), NOTHING_ARMED);
        let rule =
            r#"label = "k", when = { packet = "EAGER_TAGRTM", sender = "a" }, then = "hold""#;
        works(&rig, &["add", rule], "");
        let file = "[[fault]]\nlabel = \"other\"\nwhen.packet = \"EOR\"\nthen = \"drop\"\n";
        works(&rig, &["add", "--file", "-"], file);
        let arrives = rig.trecv(1, 1, 64);
        rig.tsend(0, 1, 1, 64);
        rig.await_held("k", &[1]);
        let list = works(&rig, &["list"], "");
        let lines: Vec<Vec<_>> = list
            .lines()
            .map(|line| line.split_whitespace().take(3).collect())
            .collect();
        assert_eq!(lines[1..], [["1", "1", "1"], ["0", "0", "0"]], "{list}");
        works(&rig, &["release", "k"], "");
        rig.wait_ok(&[arrives]);
        works(&rig, &["clear", "k"], "");
        assert!(works(&rig, &["list"], "").contains("\"other\""));
        works(&rig, &["clear"], "");
        assert_eq!(works(&rig, &["list"], ""), NOTHING_ARMED);

        works(&rig, &["cut", "a", "b"], "");
        assert!(works(&rig, &["list"], "").contains("cut = [\"a\", \"b\"]"));
        works(&rig, &["heal", "b", "a"], "");
        assert_eq!(works(&rig, &["list"], ""), NOTHING_ARMED);
        rig.exchange(0, 1, 2);
        works(&rig, &["kill", "b"], "");
        rig.await_death(1);
    });
}

#[test]
fn mistakes_are_named_with_their_remedy() {
    with_each(|software| {
        let rig = Rig::pair(software);
        for (arguments, expected) in [
            (&["kill", "nobody"][..], "no host \"nobody\" runs in fabric"),
            (&["cut", "a", "nobody"], "efa-emu ps --fabric"),
            (&["cut", "a", "a"], "name two hosts"),
            (&["heal", "b", "b"], "name two hosts"),
            (&["release", "k"], "no fault has the label \"k\""),
            (&["clear", "k"], "list` shows them"),
            (&["add", "then = \"hold\""], "when: is missing"),
            (
                &["add", "--file", "no-such-file"],
                "cannot read no-such-file",
            ),
            (
                &["add", "--file", "-"],
                "write each rule as a table [[fault]]",
            ),
        ] {
            let output = type_in(&rig, arguments, "");
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
            assert!(said.contains(expected), "{arguments:?}: {said}");
            assert_eq!(said.lines().count(), 1, "{said}");
            assert_eq!(works(&rig, &["list"], ""), NOTHING_ARMED, "{arguments:?}");
        }
        rig.end();
    });
}
