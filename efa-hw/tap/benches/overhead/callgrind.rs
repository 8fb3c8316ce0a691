//! Counts the instructions of the tap's library, and the calls to it.

use std::process::Command;

use crate::Result;

/// The library that is preloaded.
const TAP: &str = "libefa_tap.so";
/// The library that the tap passes calls to.
const LIBRARY: &str = "libefa_emu_verbs.so";

/// The counts of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    /// Instructions of the tap, and of the functions that it calls outside of the library, such as
    /// copying memory.
    pub(crate) instructions: u64,
    /// Calls of the program that the tap has passed on.
    pub(crate) calls: u64,
}

/// Counts in a program; `command` is passed the words of callgrind to start it with.
pub(crate) fn count(command: impl FnOnce(&[String]) -> Result<Command>) -> Result<Counts> {
    let file = std::env::temp_dir().join(format!("efa-tap-{}.callgrind", std::process::id()));
    let valgrind = [
        "valgrind".to_owned(),
        "--tool=callgrind".to_owned(),
        "--compress-strings=no".to_owned(),
        "--compress-pos=no".to_owned(),
        format!("--callgrind-out-file={}", file.display()),
    ];
    let output = command(&valgrind)?.output()?;
    let profile = std::fs::read_to_string(&file);
    // The file may not exist, and nothing else uses it.
    let _ = std::fs::remove_file(&file);
    match profile {
        Ok(profile) if output.status.success() => Ok(parse(&profile)),
        _ => {
            let errors = String::from_utf8_lossy(&output.stderr);
            Err(format!("callgrind failed (is valgrind installed?): {errors}").into())
        }
    }
}

/// Sums up a profile without compressed names or positions.
fn parse(profile: &str) -> Counts {
    let is = |object: &str, name: &str| object.ends_with(name);
    let mut counts = Counts::default();
    let (mut object, mut called, mut calls) = ("", None, None);
    for line in profile.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            object = name;
        } else if let Some(name) = line.strip_prefix("cob=") {
            called = Some(name);
        } else if let Some(rest) = line.strip_prefix("calls=") {
            let count = rest.split_whitespace().next();
            calls = count.and_then(|count| count.parse::<u64>().ok());
        } else if line.starts_with(|c: char| c.is_ascii_digit()) {
            let cost = line.split_whitespace().nth(1);
            let cost: u64 = cost.and_then(|cost| cost.parse().ok()).unwrap_or(0);
            let Some(times) = calls.take() else {
                counts.instructions += if is(object, TAP) { cost } else { 0 };
                continue;
            };
            // The cost of the called function with its callees.
            let callee = called.take().unwrap_or(object);
            if is(object, TAP) && !is(callee, TAP) && !is(callee, LIBRARY) {
                counts.instructions += cost;
            }
            if !is(object, TAP) && is(callee, TAP) {
                counts.calls += times;
            }
        }
    }
    counts
}
