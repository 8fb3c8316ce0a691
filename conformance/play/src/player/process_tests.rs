//! What is said of programs that do not do as they are told.

use std::process::Command as Process;

use super::*;
use crate::player::{Host, Launcher, Program};

fn shell(script: &str) -> Player {
    let mut process = Process::new("sh");
    process.args(["-c", script]).stderr(Stdio::piped());
    Player::spawn("a".into(), process, Patience::DEFAULT, None).unwrap()
}

const HELLO: &str = r#"read line
    echo '{"hello":{"version":2,"software":{"name":"x","release":"1.2.3"}}}';"#;

fn ask(script: &str) -> Result<Event, PlayerError> {
    let mut player = shell(&format!("{HELLO} {script}"));
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
    player.patience.answer = Duration::from_millis(100);
    let error = player.ask(&Command::Poll {}, &mut Vec::new()).unwrap_err();
    assert!(matches!(&error, PlayerError::Silent { command, .. } if command == r#"{"poll":{}}"#));
}

#[test]
fn a_process_that_closes_stdout_is_killed() {
    let mut player = shell(&format!("{HELLO} exec >&-; sleep 1000"));
    let error = player.ask(&Command::Poll {}, &mut Vec::new()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("closed its standard output"), "{text}");
    // It has been killed.
    assert!(player.wait_end(END_TIME).is_some());
}

#[test]
fn rubbish_is_quoted_with_what_is_wrong() {
    let text = ask("echo Hello, world; cat").unwrap_err().to_string();
    assert!(
        text.contains("`Hello, world`") && text.contains("docs/driver.md"),
        "{text}"
    );
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
    // What comes after a `hello` is judged as it is.
    let error = ask("echo unsupported text=x; cat").unwrap_err();
    assert!(matches!(error, PlayerError::Rubbish { .. }), "{error:?}");
}

#[test]
fn what_comes_before_an_answer_is_kept() {
    let completed = r#"{"completed":{"id":7,"length":5,
        "failure":{"code":265,"overflow":3,"text":"too long a message"}}}"#
        .replace('\n', "");
    let done = r#"{"done":{}}"#;
    let mut player = shell(&format!(
        "{HELLO} echo '{completed}'; echo '{done}'; cat >/dev/null"
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
