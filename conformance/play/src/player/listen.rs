//! What a driven program prints, as events.

use std::io::{BufRead, BufReader, Read};
use std::process::ChildStdout;
use std::sync::mpsc::SyncSender;

use crate::drive::line::shown;
use crate::drive::{Event, LONGEST_ANSWER, Line};

/// A line that is not an event.
#[derive(Debug)]
pub(super) struct Unclear {
    pub(super) line: String,
    pub(super) problem: String,
}

/// Whether a program answered `hello` as version 1 had it: `key=value` pairs, no JSON.
pub(super) fn is_version_1(line: &str) -> bool {
    line.starts_with("hello version=1") || line.starts_with("unsupported text=")
}

/// Passes on the events that a program prints, up to the first line that is not an event.
pub(super) fn listen(output: ChildStdout, sender: &SyncSender<Result<Event, Unclear>>) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = LONGEST_ANSWER as u64;
        match output.by_ref().take(limit).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        let heard = if line.len() == LONGEST_ANSWER && line.last() != Some(&b'\n') {
            Err(format!("no line is longer than {LONGEST_ANSWER} bytes"))
        } else {
            Event::parse(text).map_err(|error| error.to_string())
        };
        let heard = heard.map_err(|problem| Unclear {
            line: shown(text),
            problem,
        });
        let is_last = heard.is_err();
        if sender.send(heard).is_err() || is_last {
            return;
        }
    }
}
