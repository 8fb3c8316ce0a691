//! A running driven program.

use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command as Process, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::error::PlayerError;
use super::listen::{Unclear, is_version_1, listen};
use super::place::HostDevice;
use super::status::{NO_CONNECTION, UNFIT, UNSUPPORTED};
use super::tail::Tail;
use crate::drive::{Command, Event, Identity, Line, VERSION};

/// How long a program may take to end after the end of its input.
const END_TIME: Duration = Duration::from_secs(5);
/// The largest number of completions before an answer; a program that sends more is broken.
const MOST_ASIDE: usize = 1 << 16;

/// How long a program may take. No command takes long, but the machine may be busy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Patience {
    /// Until it has started and answers `hello`.
    pub start: Duration,
    /// Until it answers another command.
    pub answer: Duration,
}

impl Patience {
    /// What applies if nothing else is said.
    pub const DEFAULT: Patience = Patience {
        start: Duration::from_secs(60),
        answer: Duration::from_secs(60),
    };
}

/// A running driven program.
#[derive(Debug)]
pub struct Player {
    endpoint: String,
    child: Child,
    input: Option<ChildStdin>,
    heard: Receiver<Result<Event, Unclear>>,
    patience: Patience,
    identity: Option<Identity>,
    tail: Option<Tail>,
    /// Where it runs, if that is not here.
    place: Option<HostDevice>,
}

impl Player {
    pub(super) fn spawn(
        endpoint: String,
        mut process: Process,
        patience: Patience,
        place: Option<HostDevice>,
    ) -> Result<Self, PlayerError> {
        let program = PathBuf::from(process.get_program());
        let mut child = process
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|source| PlayerError::Start {
                endpoint: endpoint.clone(),
                program,
                source,
            })?;
        let (sender, heard) = sync_channel(HEARD);
        if let Some(output) = child.stdout.take() {
            thread::spawn(move || listen(output, &sender));
        }
        let input = child.stdin.take();
        let tail = child.stderr.take().map(Tail::of);
        let mut player = Player {
            endpoint,
            child,
            input,
            heard,
            patience,
            identity: None,
            tail,
            place,
        };
        // The answer is read when it is needed, so that programs start side by side. A program that
        // ends at once is noticed then.
        let _ = player.tell(&Command::Hello { version: VERSION });
        Ok(player)
    }

    /// The endpoint's name.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The name of the device that its endpoint is opened on; `None` is the first EFA device.
    pub fn device(&self) -> Option<&str> {
        self.place.as_ref()?.device.as_deref()
    }

    /// The identity that the program states.
    pub fn identity(&mut self) -> Result<Identity, PlayerError> {
        if let Some(identity) = &self.identity {
            return Ok(identity.clone());
        }
        let hello = Command::Hello { version: VERSION };
        let answer = self.answer(&hello, self.patience.start, &mut Vec::new())?;
        match answer {
            Event::Hello {
                version: VERSION,
                software,
            } => {
                self.identity = Some(software.clone());
                Ok(software)
            }
            Event::Hello { version, .. } => Err(self.other_version(version)),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Sends a command.
    pub fn tell(&mut self, command: &Command) -> Result<(), PlayerError> {
        let mut line = command.line();
        line.push('\n');
        let written = match &mut self.input {
            Some(input) => input
                .write_all(line.as_bytes())
                .and_then(|()| input.flush()),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        written.map_err(|_| self.ended())
    }

    /// Waits for the next event; `None` if none came in time.
    pub fn hear(&mut self, limit: Duration) -> Result<Option<Event>, PlayerError> {
        match self.heard.recv_timeout(limit) {
            Ok(Ok(event)) => Ok(Some(event)),
            Ok(Err(Unclear { line, .. })) if self.identity.is_none() && is_version_1(&line) => {
                self.kill();
                Err(self.other_version(1))
            }
            Ok(Err(Unclear { line, problem })) => Err(self.rubbish(line, problem)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    /// Sends a command and waits for its answer. Completions and reports that come in between go to
    /// `aside`.
    pub fn ask(&mut self, command: &Command, aside: &mut Vec<Event>) -> Result<Event, PlayerError> {
        self.identity()?;
        self.tell(command)?;
        self.answer(command, self.patience.answer, aside)
    }

    fn answer(
        &mut self,
        command: &Command,
        limit: Duration,
        aside: &mut Vec<Event>,
    ) -> Result<Event, PlayerError> {
        let deadline = Instant::now() + limit;
        let most = aside.len() + MOST_ASIDE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.hear(left)? {
                Some(event @ (Event::Completed { .. } | Event::Reported { .. })) => {
                    if aside.len() == most {
                        let problem = format!("there are {MOST_ASIDE} such lines before an answer");
                        return Err(self.rubbish(event.line(), problem));
                    }
                    aside.push(event);
                }
                Some(Event::Refused { text }) => return Err(self.refused(&text)),
                Some(Event::Unsupported { text }) => {
                    return Err(PlayerError::Unsupported {
                        endpoint: self.endpoint.clone(),
                        text,
                    });
                }
                Some(event) => return Ok(event),
                None => {
                    self.kill();
                    return Err(PlayerError::Silent {
                        endpoint: self.endpoint.clone(),
                        command: command.line(),
                        limit,
                        tail: self.tail(),
                    });
                }
            }
        }
    }

    fn other_version(&self, version: u32) -> PlayerError {
        PlayerError::Unsupported {
            endpoint: self.endpoint.clone(),
            text: format!(
                "the program speaks version {version} of the driver protocol, this suite {VERSION}"
            ),
        }
    }

    fn rubbish(&mut self, line: String, problem: String) -> PlayerError {
        self.kill();
        PlayerError::Rubbish {
            endpoint: self.endpoint.clone(),
            line,
            problem,
            tail: self.tail(),
        }
    }

    /// The error for an answer that does not belong to its command.
    pub fn unexpected(&self, event: &Event) -> PlayerError {
        self.refused(&format!("unexpected answer `{}`", event.line()))
    }

    fn refused(&self, text: &str) -> PlayerError {
        PlayerError::Refused {
            endpoint: self.endpoint.clone(),
            text: text.to_owned(),
        }
    }

    fn tail(&mut self) -> String {
        self.tail.as_mut().map_or(String::new(), Tail::text)
    }

    fn ended(&mut self) -> PlayerError {
        // Its output is closed, so the process is about to end or has ended.
        match self.wait_end(END_TIME) {
            Some(status) => self.early_end(status),
            None => {
                self.kill();
                PlayerError::Ended {
                    endpoint: self.endpoint.clone(),
                    how: ": it closed its standard output".into(),
                    is_unfit: false,
                    tail: self.tail(),
                }
            }
        }
    }

    fn early_end(&mut self, status: ExitStatus) -> PlayerError {
        let tail = self.tail();
        let endpoint = self.endpoint.clone();
        if status.code() == Some(UNSUPPORTED) {
            let text = format!("the program ended with status {UNSUPPORTED}{tail}");
            return PlayerError::Unsupported { endpoint, text };
        }
        if let (Some(place), Some(NO_CONNECTION)) = (&self.place, status.code()) {
            let host = place.host.clone();
            return PlayerError::Lost {
                endpoint,
                host,
                tail,
            };
        }
        let crash = status.signal().map(|_| ": it crashed").unwrap_or_default();
        PlayerError::Ended {
            endpoint,
            how: format!("{crash} ({status})"),
            is_unfit: status.code() == Some(UNFIT),
            tail,
        }
    }

    fn wait_end(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// Ends the process and its children at once, because it does not respond or breaks the
    /// protocol.
    fn kill(&mut self) {
        if let (Ok(None), Ok(group)) = (self.child.try_wait(), self.child.id().try_into()) {
            let group: libc::pid_t = group;
            // SAFETY: sends a signal, touches no memory. The child was not waited for, so the
            // number is that of its group.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
    }

    /// Ends the program and waits for the end of its process, after which its capture is complete.
    /// Returns the capture that it printed: none, unless it ran under a recorder at another place.
    pub fn end(mut self) -> Result<Vec<u8>, PlayerError> {
        self.input = None;
        let limit = self.patience.answer;
        match self.wait_end(limit) {
            Some(status) if status.success() => Ok(self.captured()),
            Some(status) => Err(self.early_end(status)),
            None => {
                self.kill();
                Err(PlayerError::Lingers {
                    endpoint: self.endpoint.clone(),
                    limit,
                })
            }
        }
    }
}

impl Player {
    /// Ends the program although its scenario did not come to its end. Returns the capture that it
    /// printed, if it is still able to.
    pub fn salvage(mut self) -> Vec<u8> {
        self.input = None;
        if self.wait_end(END_TIME).is_none() {
            self.kill();
        }
        self.captured()
    }

    /// The capture among what an ended program printed.
    fn captured(&self) -> Vec<u8> {
        let mut capture = Vec::new();
        // All of its output has been sent, or is sent while this waits. What it left behind may
        // keep the output open.
        while let Ok(heard) = self.heard.recv_timeout(END_TIME) {
            if let Ok(Event::Captured { bytes }) = heard {
                capture.extend(bytes.0);
            }
        }
        capture
    }
}

/// The number of unread events after which the program has to wait.
const HEARD: usize = 4096;

impl Drop for Player {
    fn drop(&mut self) {
        self.input = None;
        if self.wait_end(END_TIME).is_none() {
            // Its children must not outlive this process.
            self.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;
