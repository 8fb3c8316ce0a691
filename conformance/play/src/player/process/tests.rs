//! Errors about programs that break the protocol.

use std::process::Command as Process;

use super::*;
use crate::player::{Host, Launcher, Program};

fn shell(script: &str) -> Player {
    let mut process = Process::new("sh");
    process.args(["-c", script]).stderr(Stdio::piped());
    Player::spawn("a".into(), process, Timeouts::DEFAULT, None).unwrap()
}

const HELLO: &str = r#"read line
    echo '{"hello":{"version":2,"software":{"name":"x","release":"1.2.3"}}}';"#;

fn ask(script: &str) -> Result<Event, PlayerError> {
    let mut player = shell(&format!("{HELLO} read line; {script}"));
    player.ask(&Command::Poll {}, &mut Vec::new())
}

#[test]
fn a_dead_process_is_reported_with_its_output() {
    let text = ask("echo it hurts >&2; exit 3").unwrap_err().to_string();
    assert!(
        text.contains("`a`") && text.contains("exit status: 3") && text.contains("it hurts"),
        "{text}"
    );
    let text = ask("kill -SEGV $$").unwrap_err().to_string();
    assert!(
        text.contains("crashed") && text.contains("SIGSEGV"),
        "{text}"
    );
}

#[test]
fn status_127_is_unsupported() {
    let error = ask("echo no RDMA here >&2; exit 127").unwrap_err();
    assert!(
        matches!(&error, PlayerError::Unsupported { text, .. } if text.contains("no RDMA here")),
        "{error:?}"
    );
    let error = ask(r#"echo '{"unsupported":{"text":"no RDMA"}}'; cat"#).unwrap_err();
    assert!(
        matches!(&error, PlayerError::Unsupported { text, .. } if text == "no RDMA"),
        "{error:?}"
    );
}

#[test]
fn a_silent_process_is_reported_with_the_command() {
    let mut player = shell(&format!("{HELLO} echo thinking >&2; sleep 1000"));
    player.identity().unwrap();
    player.timeouts.answer = Duration::from_millis(100);
    player.delays.lingered();
    let error = player.ask(&Command::Poll {}, &mut Vec::new()).unwrap_err();
    assert!(matches!(&error, PlayerError::Silent { command, .. } if command == r#"{"poll":{}}"#));
}

#[test]
fn an_unflushed_answer_is_recognised() {
    // The program buffers its output, and flushes it when its input ends.
    let mut player = shell(&format!("{HELLO} exec sed 's/.*poll.*/{{\"done\":{{}}}}/'"));
    player.identity().unwrap();
    player.timeouts.answer = Duration::from_millis(100);
    let error = player.ask(&Command::Poll {}, &mut Vec::new()).unwrap_err();
    let text = error.to_string();
    let told = "it printed `{\"done\":{}}` only when its input had ended: flush standard output \
                after each line (docs/driver.md)";
    assert!(text.contains(told), "{text}");
}

#[test]
fn an_unfinished_line_is_quoted() {
    let mut player = shell(&format!(
        "{HELLO} printf '{{\"done\":{{}}}}'; exec sleep 1000"
    ));
    player.identity().unwrap();
    while player.unfinished.shown().is_empty() {
        thread::yield_now();
    }
    player.timeouts.answer = Duration::from_millis(100);
    player.delays.lingered();
    let error = player.ask(&Command::Poll {}, &mut Vec::new()).unwrap_err();
    let told = "it printed `{\"done\":{}}` without the line feed that ends a line; the answer \
                `done` to `poll` was expected: end each line with a line feed, and flush it";
    assert!(error.to_string().contains(told), "{error}");
    // The output ends in the middle of a line.
    let text = ask("printf '{\"done\":{}}'").unwrap_err().to_string();
    assert!(
        text.contains("the line feed that ends a line is missing"),
        "{text}"
    );
    // The incomplete line is a consequence of a crash.
    let text = ask("printf '{\"do'; kill -SEGV $$")
        .unwrap_err()
        .to_string();
    assert!(text.contains("it crashed"), "{text}");
}

#[test]
fn unrequested_answers_are_reported() {
    let twice = r#"read line; echo '{"done":{}}'; echo '{"done":{}}'; cat >/dev/null"#;
    let mut player = shell(&format!("{HELLO} {twice}"));
    player.ask(&Command::Poll {}, &mut Vec::new()).unwrap();
    let text = player.end().unwrap_err().to_string();
    let told = "it printed `{\"done\":{}}`: no command asked for it: the answer `done` to `poll` \
                had come already; print one answer for each command";
    assert!(text.contains(told), "{text}");
    let mut player = shell(&format!("{HELLO} {twice}"));
    player.ask(&Command::Poll {}, &mut Vec::new()).unwrap();
    // It could be parsed as the answer to the next command, which it does not match.
    let memory = player.ask(&Command::Dump { id: 0 }, &mut Vec::new());
    let text = match memory {
        Ok(event) => player.unexpected(&event).to_string(),
        Err(error) => error.to_string(),
    };
    assert!(text.contains("it printed `{\"done\":{}}`"), "{text}");
    assert!(text.contains("print one answer for each command"), "{text}");
    let last = r#"read line; echo '{"done":{}}'; cat >/dev/null; echo Goodbye"#;
    let mut player = shell(&format!("{HELLO} {last}"));
    player.ask(&Command::Poll {}, &mut Vec::new()).unwrap();
    let text = player.end().unwrap_err().to_string();
    assert!(text.contains("`Goodbye`"), "{text}");
}

#[test]
fn an_end_with_another_status_is_bad() {
    for (end, told) in [
        (
            "echo lost 7 bytes >&2; exit 3",
            "it ended with exit status: 3",
        ),
        ("exit 127", "it ended with exit status: 127"),
        ("kill -SEGV $$", "it crashed (signal: 11 (SIGSEGV)"),
    ] {
        let done = r#"read line; echo '{"done":{}}'; cat >/dev/null"#;
        let mut player = shell(&format!("{HELLO} {done}; {end}"));
        player.ask(&Command::Poll {}, &mut Vec::new()).unwrap();
        let error = player.end().unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, PlayerError::EndedBadly { .. }), "{text}");
        assert!(text.contains(told), "{text}");
        assert_eq!(
            text.contains("lost 7 bytes"),
            end.contains("lost"),
            "{text}"
        );
    }
    // The exit status may repeat an earlier `unsupported`.
    let unsupported = r#"read line; echo '{"unsupported":{"text":"no"}}'; cat >/dev/null; exit"#;
    for (status, is_good) in [(0, true), (127, true), (1, false)] {
        let mut player = shell(&format!("{HELLO} {unsupported} {status}"));
        player.ask(&Command::Poll {}, &mut Vec::new()).unwrap_err();
        assert_eq!(player.end().is_ok(), is_good, "{status}");
    }
}

#[test]
fn lingering_programs_are_waited_for_once() {
    let delays = Arc::new(Delays::default());
    let lingers = || {
        let mut player = shell(&format!("{HELLO} exec sleep 1000")).with_delays(&delays);
        player.identity().unwrap();
        player.end_soon().unwrap_err().to_string()
    };
    assert!(lingers().contains("did not end within 5s"));
    for _ in 0..3 {
        assert!(
            lingers().contains(
                "did not end within 100ms of the end of its input (nor within 5s before)"
            )
        );
    }
    // A program that does end gets the full time limit again.
    delays.ended();
    assert_eq!(delays.end_time(), Duration::from_secs(5));
}

#[test]
fn texts_have_no_control_characters() {
    let escape = r#"echo '{"refused":{"text":"\\u001b[2J\\nPASS"}}'; cat"#;
    let text = ask(escape).unwrap_err().to_string();
    assert!(text.ends_with(r"\u{1b}[2J\nPASS"), "{text}");
    let error = ask(r"printf '\033[2J\rPASS\n' >&2; exit 1").unwrap_err();
    let text = error.to_string();
    assert!(text.ends_with(r"\u{1b}[2J\rPASS"), "{text}");
}

#[test]
fn reports_of_sanitisers_keep_their_first_line() {
    for first in [
        "==1==ERROR: AddressSanitizer: heap-use-after-free",
        "eager.c:226:9: runtime error: load of misaligned address",
        "==1== Invalid read of size 1",
        "==1== Conditional jump or move depends on uninitialised value(s)",
    ] {
        let report = format!("echo '{first}' >&2; seq 40 >&2; exit 1");
        let text = ask(&report).unwrap_err().to_string();
        assert!(text.contains(&format!("{first}\n")), "{text}");
        assert!(text.ends_with("40") && text.lines().count() < 20, "{text}");
    }
}

#[test]
fn a_process_that_closes_stdout_is_killed() {
    let mut player = shell(&format!("{HELLO} exec >&-; sleep 1000"));
    player.delays.lingered();
    let error = player.ask(&Command::Poll {}, &mut Vec::new()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("closed its standard output"), "{text}");
    // It was killed.
    let status = ends_within(&mut player.group.leader, Duration::from_secs(60));
    assert!(status.is_some());
}

#[test]
fn invalid_output_is_quoted_with_the_error() {
    let text = ask("echo Hello, world; cat").unwrap_err().to_string();
    let told = "does not keep to the driver protocol (docs/driver.md): it printed `Hello, world`";
    assert!(text.contains(told), "{text}");
    let completed = r#"echo '{"completed":{"id":"x","length":1}}'; cat"#;
    let text = ask(completed).unwrap_err().to_string();
    let wrong = r#"completed.id: invalid type: string "x", expected u64"#;
    assert!(text.contains(wrong), "{text}");
    let text = ask("head -c 2000000 /dev/zero; cat")
        .unwrap_err()
        .to_string();
    assert!(text.contains("longer than"), "{text}");
    let text = ask(r#"yes '{"completed":{"length":1}}'"#)
        .unwrap_err()
        .to_string();
    assert!(text.contains("before an answer"), "{text}");
}

#[test]
fn killed_for_invalid_lines_is_no_crash() {
    let mut player = shell(&format!("{HELLO} read line; echo Hello; cat"));
    let malformed = player.ask(&Command::Poll {}, &mut Vec::new());
    assert!(malformed.unwrap_err().to_string().contains("`Hello`"));
    player.end_soon().unwrap();
}

#[test]
fn protocol_version_1_is_rejected() {
    let spoken =
        format!("the program speaks version 1 of the driver protocol, this suite {VERSION}");
    for answer in ["hello version=1 name=x", "unsupported text={"] {
        let mut player = shell(&format!("read line; echo '{answer}'; cat >/dev/null"));
        let error = player.identity().unwrap_err();
        assert!(
            matches!(&error, PlayerError::Unsupported { text, .. } if *text == spoken),
            "{error:?}"
        );
    }
    // After `hello`, lines of version 1 are ordinary errors.
    let error = ask("echo unsupported text=x; cat").unwrap_err();
    assert!(matches!(error, PlayerError::Rubbish { .. }), "{error:?}");
}

#[test]
fn events_before_an_answer_are_kept() {
    let completed = r#"{"completed":{"id":7,"length":5,
        "failure":{"code":265,"overflow":3,"text":"too long a message"}}}"#
        .replace('\n', "");
    let done = r#"{"done":{}}"#;
    let mut player = shell(&format!(
        "{HELLO} read line; echo '{completed}'; echo '{done}'; cat >/dev/null"
    ));
    let mut aside = Vec::new();
    let answer = player.ask(&Command::Pause {}, &mut aside).unwrap();
    assert_eq!(answer, Event::Done {});
    let Event::Completed(report) = aside.remove(0) else {
        panic!("{aside:?}");
    };
    assert_eq!((report.token, report.length), (Some(7), 5));
    let failure = report.failure.unwrap();
    assert_eq!((failure.code, failure.overflow), (265, 3));
    assert_eq!(failure.text, "too long a message");
    assert_eq!(player.identity().unwrap().to_string(), "x 1.2.3");
    player.end().unwrap();
}

#[test]
fn a_missing_program_is_named() {
    let launcher = Launcher {
        efa_emu: "./no-such-efa-emu".into(),
        efa_conformance: "./x".into(),
        fabric: "f".into(),
    };
    let error = Player::launch(&launcher, &Program::Core, &Host::default()).unwrap_err();
    assert!(error.to_string().contains("no-such-efa-emu"), "{error}");
}
