//! Programs of a run that continue after its end: they have no device left to open, and their
//! frames are not recorded.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use efa_shm::usage::{self, Process, UsageStep};

/// Maximum time for programs to end after the program that was started first.
const PATIENCE: Duration = Duration::from_millis(200);

const PAUSE: Duration = Duration::from_millis(10);

/// The most programs whose names are printed.
const NAMED: usize = 4;

/// The line for the user, if there are any. `marks` is the directory of the marks of the run's
/// processes.
pub(super) fn explain(marks: &Path) -> Option<String> {
    let started = Instant::now();
    let survivors = loop {
        let mut survivors = usage::processes(marks, UsageStep::Loaded);
        survivors.retain(|process| is_alive(process, marks));
        // A process that executes another program has left a mark for each of the two.
        survivors.sort_by_key(|process| process.pid);
        survivors.dedup_by_key(|process| process.pid);
        if survivors.is_empty() {
            return None;
        }
        if started.elapsed() > PATIENCE {
            break survivors;
        }
        thread::sleep(PAUSE);
    };
    let names = survivors.iter().take(NAMED);
    let names: Vec<_> = names
        .map(|process| format!("{} ({})", process.name, process.pid))
        .collect();
    let others = match survivors.len().saturating_sub(NAMED) {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    let verb = match survivors.len() {
        1 => "goes",
        _ => "go",
    };
    Some(format!(
        "{}{others} {verb} on after the run: no device can be opened there any more, and nothing is recorded",
        names.join(", ")
    ))
}

/// Whether the process still runs the program that left its mark.
fn is_alive(process: &Process, marks: &Path) -> bool {
    let of_process = |file: &str| std::fs::read(format!("/proc/{}/{file}", process.pid));
    let has_name = of_process("comm")
        .is_ok_and(|name| name.strip_suffix(b"\n") == Some(process.name.as_bytes()));
    // Another process may have the number now, and a process that has ended has no environment.
    has_name
        && of_process("environ").is_ok_and(|environment| {
            environment.split(|byte| *byte == 0).any(|variable| {
                let value = variable.strip_prefix(usage::ENVIRONMENT.as_bytes());
                let value = value.and_then(|value| value.strip_prefix(b"="));
                value.is_some_and(|value| value == marks.as_os_str().as_bytes())
            })
        })
}
