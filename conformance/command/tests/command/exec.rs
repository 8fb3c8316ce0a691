//! Programs under test by `--dut exec:`: the results of their cases if they behave well or badly.
//!
//! Needs `efa-emu` beside the program (`cargo build --workspace`).

use std::path::Path;
use std::process::Command;

use efa_testing::workspace::{
    conformance, efa_conformance, efa_conformance_on_host, emulator, expect, traces,
};

use crate::assert_has;

/// Runs the cases of `eager-tagged` with `dut` under test.
fn run(dut: &str, further: &[&str]) -> Command {
    let mut command = efa_conformance_on_host(&[], &["run"]);
    command.arg(traces().join("eager-tagged.pcapng"));
    command
        .args(["--backend", "hw", "--dut", dut])
        .args(further);
    command
}

/// The reported reason is the program's failure, and not another transport.
#[test]
fn after_a_failure_no_other_transport_is_suspected() {
    for dut in [
        "exec:false".to_owned(),
        shell(&says("refused", "no device today")),
    ] {
        let printed = expect(run(&dut, &[]), 1, &[]);
        assert!(!printed.contains("efa-emu: nothing was sent"), "{printed}");
    }
}

/// A shell command, inside of single quotes, that prints a line.
fn echo(line: &str) -> String {
    format!("echo \"{}\"", line.replace('"', "\\\""))
}

/// The answer to `hello`.
fn hello() -> String {
    echo(r#"{"hello":{"version":2,"software":{"name":"mine","release":"0.3","commit":"1f2e3d4"}}}"#)
}

/// An answer with a text.
fn says(answer: &str, text: &str) -> String {
    echo(&format!(r#"{{"{answer}":{{"text":"{text}"}}}}"#))
}

/// A shell program that answers `hello` and then runs `rest`.
fn shell(rest: &str) -> String {
    let hello = hello();
    format!("exec:sh -c 'read line; {hello}; read line || exit 0; {rest}'")
}

#[test]
fn the_engine_passes_over_the_public_driver_protocol() {
    let dut = format!("exec:'{}' drive core", conformance().display());
    let texts = [
        "under test: efa-core 0.1.0, /",
        "efa-core as a",
        "2 passed, 0 codec only, 0 skipped, 0 unsupported, 0 known, 0 failed",
    ];
    expect(run(&dut, &[]), 0, &texts);
}

#[test]
fn unsupported_operations_are_reported_with_the_reason() {
    let texts = [
        "under test: mine 0.3, commit 1f2e3d4",
        ": no tags",
        "0 passed, 0 codec only, 0 skipped, 2 unsupported, 0 known, 0 failed",
    ];
    let dut = shell(&format!(
        "{}; cat >/dev/null",
        says("unsupported", "no tags")
    ));
    expect(run(&dut, &[]), 0, &texts);
    let dut = shell("echo no tags >&2; exit 127");
    let texts = ["no tags", "2 unsupported, 0 known, 0 failed"];
    expect(run(&dut, &[]), 0, &texts);
}

#[test]
fn a_crash_is_a_result_of_its_case() {
    let dut = shell("echo segment 7 is bad >&2; kill -SEGV $$");
    let texts = [
        "it crashed",
        "SIGSEGV",
        "segment 7 is bad",
        "0 unsupported, 0 known, 2 failed",
    ];
    let printed = expect(run(&dut, &[]), 1, &texts);
    // The summary does not announce lines that it leaves out.
    assert!(!printed.contains("ends with and 1 like it"), "{printed}");
}

/// The engine as a driver, followed by commands of the shell that started it.
fn engine_then(rest: &str) -> String {
    format!(
        "exec:sh -c '{} drive core; {rest}'",
        conformance().display()
    )
}

#[test]
fn a_bad_end_after_the_last_answer_fails() {
    let texts = [
        "when its input had ended it ended with exit status: 3; it has to",
        "0 unsupported, 0 known, 2 failed",
    ];
    expect(run(&engine_then("exit 3"), &[]), 1, &texts);
}

#[test]
fn a_program_that_does_not_end_is_remarked() {
    let dut = engine_then("exec sleep 100000");
    expect(run(&dut, &[]), 0, &["2 passed"]);
    let texts = [
        "did not end within 100ms of the end of its input (nor within 5s before)",
        "2 failed",
    ];
    expect(run(&dut, &["--fail-on", "note"]), 1, &texts);
}

#[test]
fn a_short_address_is_named_with_its_length() {
    let dut = shell(&format!(
        "{}; cat >/dev/null",
        echo(r#"{"opened":{"address":"12"}}"#)
    ));
    let texts = [
        "it printed `{\"opened\":{\"address\":\"12\"}}`: a raw address has 32 bytes, and this one 1",
        "print its 64 hexadecimal digits",
    ];
    expect(run(&dut, &[]), 1, &texts);
    let dut = shell("echo opened address=12; cat >/dev/null");
    let texts = [
        "it printed `opened address=12`: expected value",
        "the answer `opened` to `open` was expected",
        "print nothing but answers to standard output",
        "2 failed",
    ];
    expect(run(&dut, &[]), 1, &texts);
}

#[test]
fn a_hang_is_a_result_of_its_case() {
    let hello = hello();
    let dut = format!("exec:sh -c 'echo about to think >&2; {hello}; exec sleep 100000'");
    let texts = [
        r#"did not answer `{"open":{"api":"1.11","#,
        "within 1s",
        "about to think",
        "2 failed",
    ];
    expect(run(&dut, &["--answer-time", "1"]), 1, &texts);
}

#[test]
fn a_missing_file_is_a_usage_error() {
    let texts = ["no-such-program", "--dut exec:"];
    expect(run("exec:./no-such-program", &[]), 2, &texts);
    // Status 127: the shell finds no such program, so nothing was tested.
    let texts = [
        "status 127",
        "2 unsupported, 0 known, 0 failed",
        "nothing was tested",
    ];
    expect(run("exec:sh -c ./no-such-program", &[]), 2, &texts);
}

#[test]
fn a_program_without_hello_fails_each_case() {
    let texts = [
        r#"`{"hello":{"version":2}}`"#,
        "docs/driver.md",
        "printed `hi`",
        "2 failed",
    ];
    expect(run("exec:echo hi", &[]), 1, &texts);
    let texts = ["under test: false", "exit status: 1", "2 failed"];
    expect(run("exec:false", &[]), 1, &texts);
}

#[test]
fn protocol_version_1_is_rejected_by_name() {
    let text = "the program speaks version 1 of the driver protocol, this suite 2";
    let dut = "exec:sh -c 'read line; echo hello version=1 name=mine; cat >/dev/null'";
    expect(run(dut, &[]), 2, &[text]);
}

#[test]
fn a_hang_before_hello_is_waited_for_once() {
    let directory = tempfile::tempdir().unwrap();
    let starts = directory.path().join("starts");
    let dut = format!(
        "exec:sh -c 'echo start >> {}; echo deep in thought >&2; exec sleep 100000'",
        starts.display()
    );
    let more = ["inject", "zero-length"].map(|name| traces().join(format!("{name}.pcapng")));
    let more = more.each_ref().map(|path| path.to_str().unwrap());
    let texts = [
        r#"did not answer `{"hello":{"version":2}}` within 1s"#,
        "deep in thought",
        "the program was not started again: after 3 starts it had not answered `hello` within 1s",
        "6 failed",
        // The command that repeats a case.
        "--start-time 1",
    ];
    let command = run(&dut, &[&more[..], &["--start-time", "1"]].concat());
    expect(command, 1, &texts);
    let count = std::fs::read_to_string(&starts).unwrap().lines().count();
    assert_eq!(count, 3);
}

#[test]
fn repeated_hangs_shorten_the_timeout() {
    let dut = format!("exec:sh -c '{}; cat >/dev/null'", hello());
    let more = traces().join("inject.pcapng");
    let further = [more.to_str().unwrap(), "--answer-time", "2"];
    let printed = expect(run(&dut, &further), 1, &[]);
    for (text, count) in [("within 2s", 3), ("within 1s", 1)] {
        let found = printed
            .lines()
            // A line of a case, not of a cause.
            .filter(|line| line.starts_with("      the endpoint"))
            .filter(|line| line.contains(text) && line.contains("`{\"open\":"));
        assert_eq!(found.count(), count, "`{text}` in:\n{printed}");
    }
}

#[test]
fn reports_name_the_tested_software() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let file = |name: &str| path(name).display().to_string();
    let dut = shell(&format!(
        "{}; cat >/dev/null",
        says("unsupported", "nothing")
    ));
    let (json, junit, html) = (file("r.json"), file("r.xml"), file("r.html"));
    let reports = ["--json", &json, "--junit", &junit, "--html", &html];
    let command = run(&dut, &[&reports[..], &["--commit", "abc123"]].concat());
    expect(command, 0, &[]);
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(path("r.json")).unwrap()).unwrap();
    assert_eq!(json["under_test"]["name"], "mine");
    assert_eq!(json["under_test"]["release"], "0.3");
    assert_eq!(json["under_test"]["commit"], "abc123");
    assert_eq!(json["summary"]["unsupported"], 2);
    assert_eq!(json["cases"][0]["result"], "unsupported");
    assert_eq!(json["cases"][0]["reason"], "nothing");
    let junit = std::fs::read_to_string(path("r.xml")).unwrap();
    assert_has(
        &junit,
        &[r#"<property name="under-test.release" value="0.3"/>"#],
    );
    assert!(
        junit.contains("skipped=\"2\"") || junit.contains("<skipped"),
        "{junit}"
    );
    let html = std::fs::read_to_string(path("r.html")).unwrap();
    assert_has(&html, &["mine 0.3, commit abc123"]);
}

#[test]
fn wrong_option_values_are_named_with_the_remedy() {
    let say = |dut: &str| {
        let output = efa_conformance(&["run", "--dut", dut]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (dut, text) in [
        ("libfabrik", "`exec:`"),
        ("exec:", "it is empty"),
        ("exec:'a", "is not closed"),
        ("exec:true", "--backend hw"),
    ] {
        let said = say(dut);
        assert!(said.contains(text), "{dut}: {said}");
    }
    let output = efa_conformance(&["run", "--help"]).output().unwrap();
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_has(&help, &["exec:COMMAND", "docs/driver.md"]);
}

/// A program whose behaviour depends on the number of its start, from 1.
fn by_start(directory: &Path, cases: &str) -> String {
    let (count, engine) = (directory.join("starts"), conformance());
    let script = directory.join("program");
    let text = format!(
        "#!/bin/sh\nstarts=$(($(cat {count} 2>/dev/null || echo 0) + 1))\necho $starts > {count}\n\
         case $starts in\n{cases}\n*) exec {engine} drive core;;\nesac\n",
        count = count.display(),
        engine = engine.display()
    );
    std::fs::write(&script, text).unwrap();
    format!("exec:sh {}", script.display())
}

#[test]
fn cases_continue_after_a_failed_one() {
    let directory = tempfile::tempdir().unwrap();
    let (hello, opened) = (hello(), echo(r#"{"opened":{"address":"zz"}}"#));
    // The first start asks for the identity.
    let cases = format!(
        "3) read a; {hello}; read b; {opened}; cat >/dev/null;;\n\
         4) exit 9;;\n\
         5) read a; {hello}; exec sleep 100000;;\n\
         6) read a; exit 127;;"
    );
    let dut = by_start(directory.path(), &cases);
    let more = ["inject", "zero-length"].map(|name| traces().join(format!("{name}.pcapng")));
    let more = more.each_ref().map(|path| path.to_str().unwrap());
    let texts = [
        "2 passed, 0 codec only, 0 skipped, 1 unsupported, 0 known, 3 failed",
        "opened.address: \"zz\" is not bytes",
        "exit status: 9",
        "did not answer `{\"open\":",
        "ended with status 127",
    ];
    let command = run(&dut, &[&more[..], &["--answer-time", "5"]].concat());
    expect(command, 1, &texts);
}

#[test]
fn control_characters_are_stripped_and_output_is_shortened() {
    let dut = shell(r#"printf "\033[31m\007%0500d\n" 7; cat >/dev/null"#);
    let printed = expect(run(&dut, &[]), 1, &[]);
    let is_control = |c: char| c.is_control() && c != '\n';
    assert!(!printed.contains(is_control), "{printed:?}");
    assert!(printed.lines().all(|line| line.len() < 900), "{printed}");
    // Both roles fail for the same cause.
    assert!(printed.contains(" and 1 like it\n"), "{printed}");
}

#[test]
fn the_command_that_is_printed_repeats_the_failure() {
    let refused = says("refused", "no device today");
    let dut = shell(&format!("{refused}; cat >/dev/null"));
    let printed = expect(run(&dut, &[]), 1, &[]);
    let is_command =
        |line: &&str| line.starts_with("      ") && line.contains("efa-conformance run");
    let command = printed.lines().find(is_command).unwrap();
    let beside = |program: &Path| program.parent().unwrap().display().to_string();
    let path = format!(
        "{}:{}:{}",
        beside(&conformance()),
        beside(&emulator()),
        std::env::var("PATH").unwrap()
    );
    let output = Command::new("sh")
        .args(["-c", command])
        .env("PATH", path)
        .output()
        .unwrap();
    let again = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{command}\n{again}");
    assert_has(&again, &["no device today", "2 failed"]);
}
