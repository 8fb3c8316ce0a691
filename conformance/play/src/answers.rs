//! Programs that answer: once, by their output ([`output`]), or with a line of JSON for each line
//! of JSON that they read ([`Conversation`] is the asking side, [`serve`] the program).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use efa_commands::process_group::{ProcessGroup, ends_within};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The maximum number of stored bytes of a stream.
const MOST_OUTPUT: u64 = 1 << 20;
/// Maximum time until a program ends after its input, and a stream after its program: a surviving
/// child process may hold the stream open.
const END: Duration = Duration::from_secs(5);

/// The end of a program.
#[derive(Clone, Debug)]
pub struct ProgramEnd {
    /// `None` if it did not end in time, and was killed.
    pub status: Option<ExitStatus>,
    /// Its standard output.
    pub output: String,
    /// Its standard error.
    pub errors: String,
}

/// Runs a command without input until it ends; kills it with its children after `limit`.
///
/// # Errors
/// It cannot be started.
pub fn output(command: &mut Command, limit: Duration) -> io::Result<ProgramEnd> {
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut group = ProcessGroup::start(piped.stdin(Stdio::null()))?;
    let started = Instant::now();
    let output = group.leader.stdout.take().map(text);
    let errors = group.leader.stderr.take().map(text);
    let heard = output.and_then(|it| it.recv_timeout(limit).ok());
    let left = limit.saturating_sub(started.elapsed());
    let status = heard
        .as_ref()
        .and_then(|_| ends_within(&mut group.leader, left));
    if status.is_none() {
        group.kill();
    }
    let errors = errors.and_then(|it| it.recv_timeout(END).ok());
    Ok(ProgramEnd {
        status,
        output: heard.unwrap_or_default(),
        errors: errors.unwrap_or_default(),
    })
}

/// Reads a stream to its end in a thread.
fn text(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, text) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // Bytes that cannot be read are dropped.
        let _ = stream.take(MOST_OUTPUT).read_to_end(&mut bytes);
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    text
}

/// Writes a value as a line.
///
/// # Errors
/// Of the stream.
pub fn write_line(output: &mut impl Write, value: &(impl Serialize + ?Sized)) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    output.write_all(&line)?;
    output.flush()
}

/// Reads a line's value; `None` at the end of the input.
///
/// # Errors
/// An error of the stream, or the line is not such a value.
pub fn read_line<T: DeserializeOwned>(input: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line)?))
}

/// Answers each line until the input ends.
///
/// # Errors
/// An error of the streams, or a line is not a question.
pub fn serve<Q: DeserializeOwned, A: Serialize>(
    mut input: impl BufRead,
    mut output: impl Write,
    mut answer: impl FnMut(Q) -> A,
) -> io::Result<()> {
    while let Some(question) = read_line(&mut input)? {
        write_line(&mut output, &answer(question))?;
    }
    Ok(())
}

/// The reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// Its standard output was closed; the text says how it ended, if it has.
    #[error("its output ended{0}")]
    Ended(String),
    /// The time that it had for the answer.
    #[error("it did not answer within {0:?}")]
    Late(Duration),
    /// It printed a line that is no answer.
    #[error("it printed `{line}`: {source}")]
    Unclear {
        /// The line as it was printed.
        line: String,
        /// What is wrong with the line.
        source: serde_json::Error,
    },
}

/// A program that calls [`serve`]. It has to end when its input does; dropping this closes the
/// input.
#[derive(Debug)]
pub struct Conversation {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Conversation {
    /// Starts the program.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn()?;
        let (sender, lines) = channel();
        let output = child.stdout.take();
        thread::spawn(move || {
            let lines = output.into_iter().flat_map(|it| BufReader::new(it).lines());
            for line in lines.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Conversation {
            input: child.stdin.take(),
            child,
            lines,
        })
    }

    /// Sends a question, and waits for the answer.
    ///
    /// # Errors
    /// There is no answer.
    pub fn ask<T: DeserializeOwned>(
        &mut self,
        question: &(impl Serialize + ?Sized),
        limit: Duration,
    ) -> Result<T, NoAnswer> {
        let input = self.input.as_mut();
        let told = input.is_some_and(|input| write_line(input, question).is_ok());
        let heard = match told {
            true => self.lines.recv_timeout(limit),
            false => Err(RecvTimeoutError::Disconnected),
        };
        let line = heard.map_err(|error| match error {
            RecvTimeoutError::Timeout => NoAnswer::Late(limit),
            RecvTimeoutError::Disconnected => NoAnswer::Ended(self.how_it_ended()),
        })?;
        serde_json::from_str(&line).map_err(|source| NoAnswer::Unclear { line, source })
    }

    /// The status in parentheses. A program that has closed its output is about to end.
    fn how_it_ended(&mut self) -> String {
        self.input = None;
        let status = ends_within(&mut self.child, END);
        status.map_or(String::new(), |status| format!(" ({status})"))
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        self.input = None;
        if ends_within(&mut self.child, END).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
