//! The variables `EFA_LOG` and `EFA_LOG_FILE`. A subscriber is set once in a process, so each case
//! starts this program again.

use std::process::{Command, Output};

/// Set for the program that a test starts.
const CHILD: &str = "EFA_LOG_TEST_CHILD";

/// Runs `child` in a process with these variables.
fn run(variables: &[(&str, &str)]) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env_remove("EFA_LOG")
        .env_remove("EFA_LOG_FILE")
        .env(CHILD, "1")
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

fn standard_error(variables: &[(&str, &str)]) -> String {
    let output = run(variables);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The program: two events of two modules, and one of a forked child.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    efa_log::init();
    efa_log::init();
    tracing::debug!(target: "efa_core::endpoint", peer = 3, reason = "text", "packet dropped");
    tracing::info!(target: "efa_shm::engine", "device opened");
}

#[test]
fn nothing_is_shown_without_the_variable() {
    assert_eq!(standard_error(&[]), "");
    assert_eq!(standard_error(&[("EFA_LOG", "")]), "");
    let file = tempfile::tempdir().unwrap().path().join("log");
    assert_eq!(
        standard_error(&[("EFA_LOG_FILE", file.to_str().unwrap())]),
        ""
    );
    assert!(!file.exists());
}

#[test]
fn a_line_has_process_level_module_and_fields() {
    let shown = standard_error(&[("EFA_LOG", "efa_core=debug")]);
    let words: Vec<&str> = shown.split_whitespace().collect();
    let [time, process, rest @ ..] = &words[..] else {
        panic!("{shown:?}");
    };
    assert!(time.contains('T') && time.ends_with('Z'), "{shown:?}");
    assert_ne!(process.parse::<u32>().unwrap(), std::process::id());
    let expected = "DEBUG efa_core::endpoint: packet dropped peer=3 reason=\"text\"";
    assert_eq!(rest.join(" "), expected);
    assert!(
        shown.ends_with('\n') && shown.lines().count() == 1,
        "{shown:?}"
    );
}

#[test]
fn directives_choose_modules_and_levels() {
    let shown = standard_error(&[("EFA_LOG", "info")]);
    assert!(
        shown.contains("device opened") && !shown.contains("packet dropped"),
        "{shown}"
    );
    let shown = standard_error(&[("EFA_LOG", "efa_shm=warn, efa_core=trace")]);
    assert!(
        !shown.contains("device opened") && shown.contains("packet dropped"),
        "{shown}"
    );
}

#[test]
fn lines_are_appended_to_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let variables = [
        ("EFA_LOG", "debug"),
        ("EFA_LOG_FILE", path.to_str().unwrap()),
    ];
    assert_eq!(standard_error(&variables), "");
    assert_eq!(standard_error(&variables), "");
    let shown = std::fs::read_to_string(&path).unwrap();
    assert_eq!(shown.lines().count(), 4, "{shown}");
}

#[test]
fn a_bad_variable_is_named_on_one_line() {
    let shown = standard_error(&[("EFA_LOG", "efa_core=debug,efa_shm=loud")]);
    assert_eq!(
        shown,
        "efa: EFA_LOG: invalid directive `efa_shm=loud`: use a level (error, warn, info, debug, trace) \
         or MODULE=LEVEL, such as EFA_LOG=efa_core=debug\n"
    );
    let shown = standard_error(&[("EFA_LOG", "debug"), ("EFA_LOG_FILE", "/nowhere/log")]);
    assert!(
        shown.starts_with("efa: EFA_LOG_FILE: cannot open `/nowhere/log`: ")
            && shown.lines().count() == 1,
        "{shown:?}"
    );
}
