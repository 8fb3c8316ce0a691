//! The last lines of a process's standard error.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::process::ChildStderr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::drive::line::printable;

/// The number of stored lines.
const KEPT: usize = 12;
/// The number of bytes after which a line is split.
const LONGEST: u64 = 400;
/// The time to wait for the rest of an ended process's output.
const REST: Duration = Duration::from_secs(5);

/// Marks of the first and last lines of reports by sanitisers and valgrind, which have more than
/// [`KEPT`] lines.
const TELLING: [&str; 5] = [
    "ERROR: ",
    "SUMMARY: ",
    "runtime error: ",
    "Invalid ",
    "uninitialised value",
];

#[derive(Debug, Default)]
struct KeptLines {
    /// Lines with a mark before the last lines.
    telling: VecDeque<String>,
    last: VecDeque<String>,
}

impl KeptLines {
    fn add(&mut self, line: String) {
        if self.last.len() == KEPT
            && let Some(old) = self.last.pop_front()
            && TELLING.iter().any(|mark| old.contains(mark))
        {
            self.telling.push_back(old);
            self.telling.truncate(KEPT);
        }
        self.last.push_back(line);
    }
}

/// Reads standard error continuously, so that the process never blocks on it.
#[derive(Debug)]
pub(super) struct StderrReader {
    lines: Arc<Mutex<KeptLines>>,
    reader: JoinHandle<()>,
}

impl StderrReader {
    pub(super) fn of(errors: ChildStderr) -> Self {
        let lines = Arc::new(Mutex::new(KeptLines::default()));
        let kept = Arc::clone(&lines);
        let reader = thread::spawn(move || {
            let mut errors = BufReader::new(errors);
            let mut line = Vec::new();
            while matches!(
                errors.by_ref().take(LONGEST).read_until(b'\n', &mut line),
                Ok(1..)
            ) {
                let text = printable(String::from_utf8_lossy(&line).trim_end());
                kept.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .add(text);
                line.clear();
            }
        });
        StderrReader { lines, reader }
    }

    /// The last lines, and lines with a mark before them, each after a line end.
    pub(super) fn text(&mut self) -> String {
        let deadline = Instant::now() + REST;
        while !self.reader.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = lines.telling.iter().chain(&lines.last);
        let lines = lines.map(|line| format!("\n        {line}"));
        match lines.collect::<String>() {
            lines if lines.is_empty() => lines,
            lines => format!("; its standard error ends with{lines}"),
        }
    }
}
