//! Standard output that cannot be written, and options that determine what is not printed.

use std::fs::File;
use std::process::{Command, Stdio};

use efa_testing::workspace::{efa_conformance, efa_emu, expect, traces};

use crate::altered::AlteredTrace;

const TRACE: &str = "long-cts";

/// Commands whose results are their output, with and without `--json`.
fn commands() -> Vec<(String, Command)> {
    let capture = traces().join(format!("{TRACE}.pcapng"));
    let capture = capture.display().to_string();
    let fabric = format!("output-{}", std::process::id());
    let emulator: [&[&str]; 4] = [
        &["ps", "--fabric", &fabric],
        &["stats", "--fabric", &fabric],
        &["profiles"],
        &["fault", "list", "--fabric", &fabric],
    ];
    // Many lines.
    let written = traces().join("written").display().to_string();
    let suite: [&[&str]; 3] = [
        &["check", &capture],
        &["show", &capture],
        &["list", &written],
    ];
    let mut all = Vec::new();
    let mut add = |program: fn(&[&str]) -> Command, command: &[&str]| {
        for json in [&[][..], &["--json"]] {
            let words = [command, json].concat();
            all.push((words.join(" "), program(&words)));
        }
    };
    emulator.iter().for_each(|command| add(efa_emu, command));
    suite
        .iter()
        .for_each(|command| add(efa_conformance, command));
    all.push(("run".into(), efa_conformance(&["run", &written])));
    all
}

#[test]
fn a_full_disk_is_reported_once_and_fails() {
    for (name, mut command) in commands() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = command.stdout(full).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        // A fabric without hosts is an empty table.
        let prints_nothing = ["ps", "stats", "fault list"]
            .iter()
            .any(|command| name.starts_with(command) && !name.ends_with("--json"));
        if prints_nothing && told.is_empty() {
            continue;
        }
        let count = told.matches("cannot write to standard output").count();
        assert_eq!(
            (output.status.code(), count),
            (Some(2), 1),
            "{name}: {told}"
        );
    }
}

#[test]
fn a_reader_that_ends_is_no_failure() {
    for (name, mut command) in commands() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*told), (Some(0), ""), "{name}");
    }
}

#[test]
fn damage_is_reported_in_both_formats() {
    let cut = AlteredTrace::of(TRACE);
    cut.edit(|bytes, _| bytes.truncate(bytes.len() / 2));
    let cut = cut.name();
    for json in [&[][..], &["--json"]] {
        let words = [&["show", cut], json].concat();
        let text = expect(efa_conformance(&words), 0, &[]);
        assert_eq!(
            text.matches("damaged: the capture ends").count(),
            1,
            "{text}"
        );
    }
    let output = efa_conformance(&["show", "--json", cut]).output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let packets = lines.lines().map(serde_json::from_str::<serde_json::Value>);
    assert!(packets.map(Result::unwrap).count() > 0);
}

#[test]
fn options_that_would_be_ignored_are_refused() {
    for (words, told) in [
        (&["check", "--rules", "--json"][..], "'--json'"),
        (&["check", "--rules", "x.pcapng"], "'[CAPTURE]...'"),
        (&["list", "--matrix", "--json"], "'--json'"),
        (&["run", "--json", "-"], "/dev/stdout"),
        (&["run", "--junit", "-"], "/dev/stdout"),
        (&["run", "--html", "-"], "/dev/stdout"),
        (&["interop", "--json", "-"], "/dev/stdout"),
        (&["interop", "--junit", "-"], "/dev/stdout"),
        (&["report", "--html", "-", "x.json"], "/dev/stdout"),
    ] {
        expect(efa_conformance(words), 2, &[told]);
    }
}
