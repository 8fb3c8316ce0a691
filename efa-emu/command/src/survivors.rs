//! Programs of a run that continue after its end: they have no device left to open, and their
//! frames are not recorded.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use efa_shm::usage::{self, UsageStep};

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
        // A process that executes another program has left a mark for each: the last one counts.
        let survivors: BTreeMap<_, _> = usage::processes(marks, UsageStep::Loaded)
            .into_iter()
            .map(|process| (process.pid, process.name))
            .filter(|(pid, _)| is_alive(*pid, marks))
            .collect();
        if survivors.is_empty() {
            return None;
        }
        if started.elapsed() > PATIENCE {
            break survivors;
        }
        thread::sleep(PAUSE);
    };
    let names = survivors.iter().take(NAMED);
    let names: Vec<_> = names.map(|(pid, name)| format!("{name} ({pid})")).collect();
    let others = match survivors.len().saturating_sub(NAMED) {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    Some(format!(
        "left behind after the run: {}{others}: no device can be opened there any more, and nothing is recorded",
        names.join(", ")
    ))
}

/// Whether a process of the run still has this number. A process that has ended has no environment.
fn is_alive(pid: u32, marks: &Path) -> bool {
    let of_run = [usage::ENVIRONMENT.as_bytes(), marks.as_os_str().as_bytes()].join(&b'=');
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment
        .split(|byte| *byte == 0)
        .any(|variable| variable == of_run)
}
