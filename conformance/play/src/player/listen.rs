//! The output of a driven program, as events.

use std::io::{BufRead, BufReader, ErrorKind};
use std::process::ChildStdout;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};

use crate::drive::line::shown;
use crate::drive::{Event, LONGEST_ANSWER, Line};

/// A line that is not an event.
#[derive(Debug)]
pub(super) struct InvalidLine {
    pub(super) line: String,
    pub(super) problem: String,
    /// The output ended without the end of the line.
    pub(super) is_unfinished: bool,
}

/// The start of a line whose end has not arrived yet.
#[derive(Clone, Debug, Default)]
pub(super) struct PartialLine(Arc<Mutex<String>>);

impl PartialLine {
    fn set(&self, line: &[u8]) {
        let mut text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *text = shown(&String::from_utf8_lossy(line));
    }

    /// The part of it that is shown in a message; empty if the last line is complete.
    pub(super) fn shown(&self) -> String {
        let text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        text.clone()
    }
}

/// Whether a program answered `hello` in the format of version 1: `key=value` pairs, not JSON.
pub(super) fn is_version_1(line: &str) -> bool {
    line.starts_with("hello version=1") || line.starts_with("unsupported text=")
}

/// Sends the events that a program prints, up to the first line that is not an event.
pub(super) fn listen(
    output: ChildStdout,
    sender: &SyncSender<Result<Event, InvalidLine>>,
    unfinished: &PartialLine,
) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    loop {
        let is_whole = match output.fill_buf() {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Ok([]) | Err(_) if line.is_empty() => return,
            Ok([]) | Err(_) => None,
            Ok(read) => {
                let end = read.iter().position(|byte| *byte == b'\n');
                let taken = end.map_or(read.len(), |end| end + 1);
                let taken = taken.min(LONGEST_ANSWER - line.len());
                line.extend_from_slice(&read[..taken]);
                output.consume(taken);
                Some(line.ends_with(b"\n"))
            }
        };
        if is_whole == Some(false) && line.len() < LONGEST_ANSWER {
            unfinished.set(&line);
            continue;
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        let event = match is_whole {
            Some(true) => Event::parse(text).map_err(|error| error.to_string()),
            Some(false) => Err(format!("no line is longer than {LONGEST_ANSWER} bytes")),
            None => Err("the line feed that ends a line is missing".into()),
        };
        let event = event.map(Event::printable).map_err(|problem| InvalidLine {
            line: shown(text),
            problem,
            is_unfinished: is_whole.is_none(),
        });
        unfinished.set(b"");
        line.clear();
        let is_last = event.is_err();
        if sender.send(event).is_err() || is_last {
            return;
        }
    }
}
