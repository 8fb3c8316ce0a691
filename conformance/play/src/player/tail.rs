//! The last lines of a process's standard error.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::process::ChildStderr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The number of lines that are kept.
const KEPT: usize = 12;
/// The number of bytes after which a line is split.
const LONGEST: u64 = 400;
/// How long to wait for the rest of an ended process's output.
const REST: Duration = Duration::from_secs(5);

/// Reads standard error continuously, so that the process never blocks on it.
#[derive(Debug)]
pub(super) struct Tail {
    lines: Arc<Mutex<VecDeque<String>>>,
    reader: JoinHandle<()>,
}

impl Tail {
    pub(super) fn of(errors: ChildStderr) -> Self {
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&lines);
        let reader = thread::spawn(move || {
            let mut errors = BufReader::new(errors);
            let mut line = Vec::new();
            while matches!(
                errors.by_ref().take(LONGEST).read_until(b'\n', &mut line),
                Ok(1..)
            ) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                if kept.len() == KEPT {
                    kept.pop_front();
                }
                kept.push_back(String::from_utf8_lossy(&line).trim_end().to_owned());
                line.clear();
            }
        });
        Tail { lines, reader }
    }

    /// The last lines, each with a line end in front.
    pub(super) fn text(&mut self) -> String {
        let deadline = Instant::now() + REST;
        while !self.reader.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = lines.iter().map(|line| format!("\n        {line}"));
        match lines.collect::<String>() {
            lines if lines.is_empty() => lines,
            lines => format!("; its standard error ends with{lines}"),
        }
    }
}
