//! A running driven program.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ChildStdin, Command as Process, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use efa_commands::process_group::{ProcessGroup, ends_within};
use efa_core::address::RawAddress;

use super::delays::{Delays, Timeouts};
use super::error::PlayerError;
use super::listen::{InvalidLine, PartialLine, is_version_1, listen};
use super::place::HostDevice;
use super::status::{NO_CONNECTION, UNFIT, UNSUPPORTED};
use super::stderr::StderrReader;
use crate::answers::write_line;
use crate::drive::line::shown;
use crate::drive::{Bytes, Command, Event, Identity, Line, VERSION};

/// The remedy for unexpected answers.
const PRINT_ONE_ANSWER: &str = "print one answer for each command, and completions before it";
/// The largest number of completions before an answer; a program that sends more is broken.
const MOST_ASIDE: usize = 1 << 16;

/// A running driven program.
#[derive(Debug)]
pub struct Player {
    endpoint: String,
    group: ProcessGroup,
    input: Option<ChildStdin>,
    events: Receiver<Result<Event, InvalidLine>>,
    unfinished: PartialLine,
    /// The expected output, for messages.
    expected: String,
    timeouts: Timeouts,
    delays: Arc<Delays>,
    identity: Option<Identity>,
    tail: Option<StderrReader>,
    /// It answered `unsupported`, which its exit status may repeat.
    is_unsupported: bool,
    /// Whether it was killed, for a reason that was reported.
    is_killed: bool,
    /// The other host on which it runs, if any.
    place: Option<HostDevice>,
}

impl Player {
    pub(super) fn spawn(
        endpoint: String,
        mut process: Process,
        timeouts: Timeouts,
        place: Option<HostDevice>,
    ) -> Result<Self, PlayerError> {
        let program = PathBuf::from(process.get_program());
        let piped = process.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut group = ProcessGroup::start(piped).map_err(|source| PlayerError::Start {
            endpoint: endpoint.clone(),
            program,
            source,
        })?;
        let (sender, events) = sync_channel(EVENT_LIMIT);
        let unfinished = PartialLine::default();
        if let Some(output) = group.leader.stdout.take() {
            let unfinished = unfinished.clone();
            thread::spawn(move || listen(output, &sender, &unfinished));
        }
        let input = group.leader.stdin.take();
        let tail = group.leader.stderr.take().map(StderrReader::of);
        let mut player = Player {
            endpoint,
            group,
            input,
            events,
            unfinished,
            expected: String::new(),
            timeouts,
            delays: Arc::default(),
            identity: None,
            tail,
            is_unsupported: false,
            is_killed: false,
            place,
        };
        // The answer is read when it is needed, so that programs start in parallel. A program that
        // ends immediately is detected then.
        let _ = player.write(&Command::Hello { version: VERSION });
        Ok(player)
    }

    /// Counts slow answers in `delays`, and shortens the timeouts by those counted before.
    #[must_use]
    pub fn with_delays(mut self, delays: &Arc<Delays>) -> Self {
        self.timeouts = delays.shorten(self.timeouts);
        self.delays = Arc::clone(delays);
        self
    }

    /// The endpoint's name.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The name of its endpoint's device; `None` is the first EFA device.
    pub fn device(&self) -> Option<&str> {
        self.place.as_ref()?.device.as_deref()
    }

    /// The program's identity, from its answer to `hello`.
    pub fn identity(&mut self) -> Result<Identity, PlayerError> {
        if let Some(identity) = &self.identity {
            return Ok(identity.clone());
        }
        let hello = Command::Hello { version: VERSION };
        let answer = self.answer(&hello, self.timeouts.start, &mut Vec::new())?;
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
    pub fn send(&mut self, command: &Command) -> Result<(), PlayerError> {
        self.write(command).map_err(|_| self.ended())
    }

    fn write(&mut self, command: &Command) -> io::Result<()> {
        self.expected = format!("the answer {} to `{}`", command.answers(), command.name());
        match &mut self.input {
            Some(input) => write_line(input, command),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Waits for the next event; `None` if none arrived in time.
    pub fn receive(&mut self, limit: Duration) -> Result<Option<Event>, PlayerError> {
        match self.events.recv_timeout(limit) {
            Ok(Ok(event)) => Ok(Some(event)),
            Ok(Err(InvalidLine { line, .. })) if self.identity.is_none() && is_version_1(&line) => {
                self.kill();
                Err(self.other_version(1))
            }
            Ok(Err(unclear)) => Err(self.unclear(unclear)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    /// Sends a command and waits for its answer. Completions and reports that arrive before it go
    /// to `aside`.
    pub fn ask(&mut self, command: &Command, aside: &mut Vec<Event>) -> Result<Event, PlayerError> {
        self.identity()?;
        while let Ok(early) = self.events.try_recv() {
            match early {
                Ok(event) if event.is_answer() => return Err(self.unrequested(&event)),
                Ok(event) => aside.push(event),
                Err(unclear) => return Err(self.unclear(unclear)),
            }
        }
        self.send(command)?;
        self.answer(command, self.timeouts.answer, aside)
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
            match self.receive(left)? {
                Some(event @ (Event::Completed { .. } | Event::Reported { .. })) => {
                    if aside.len() == most {
                        let problem = format!("there are {MOST_ASIDE} such lines before an answer");
                        return Err(self.malformed(&event.line(), &problem, PRINT_ONE_ANSWER));
                    }
                    aside.push(event);
                }
                Some(Event::Refused { text }) => return Err(self.refused(&text)),
                Some(Event::Unsupported { text }) => {
                    self.is_unsupported = true;
                    return Err(PlayerError::Unsupported {
                        endpoint: self.endpoint.clone(),
                        text,
                    });
                }
                Some(event) => return Ok(event),
                None => return Err(self.silent(command, limit)),
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

    /// The error for a program that did not answer. If it flushes an answer when its input ends,
    /// the answer was buffered.
    fn silent(&mut self, command: &Command, limit: Duration) -> PlayerError {
        if !matches!(command, Command::Hello { .. }) {
            self.delays.hung();
        }
        let unfinished = self.unfinished.shown();
        self.input = None;
        let late = self.events.recv_timeout(self.delays.end_time());
        if matches!(late, Err(RecvTimeoutError::Timeout)) {
            self.delays.lingered();
        }
        let late = late.map(|late| late.map_or_else(|it| it.line, |it| shown(&it.line())));
        let printed = match (unfinished.as_str(), late) {
            ("", Ok(line)) => format!(
                "it printed `{line}` only when its input had ended: flush standard output after \
                 each line (docs/driver.md)"
            ),
            ("", Err(_)) => format!(
                "it printed nothing, and {} was expected: flush standard output after each line \
                 (docs/driver.md)",
                self.expected
            ),
            (beginning, _) => format!(
                "it printed `{beginning}` without the line feed that ends a line; {} was expected: \
                 end each line with a line feed, and flush it (docs/driver.md)",
                self.expected
            ),
        };
        self.kill();
        PlayerError::Silent {
            endpoint: self.endpoint.clone(),
            command: command.line(),
            limit,
            printed,
            tail: self.tail(),
        }
    }

    fn malformed(&mut self, line: &str, problem: &str, remedy: &'static str) -> PlayerError {
        self.kill();
        PlayerError::Rubbish {
            endpoint: self.endpoint.clone(),
            line: shown(line),
            problem: problem.to_owned(),
            remedy,
            tail: self.tail(),
        }
    }

    fn unclear(&mut self, unclear: InvalidLine) -> PlayerError {
        let InvalidLine {
            line,
            problem,
            is_unfinished,
        } = unclear;
        // A program that crashes may not finish its last line.
        if is_unfinished
            && let Some(status) = ends_within(&mut self.group.leader, self.delays.end_time())
            && !status.success()
        {
            return self.early_end(status);
        }
        let problem = format!("{problem}; {} was expected", self.expected);
        let remedy = match is_unfinished {
            true => "end each line with a line feed, and flush it",
            false => "print nothing but answers to standard output, and messages to standard error",
        };
        self.malformed(&line, &problem, remedy)
    }

    /// The error for an answer without a command.
    fn unrequested(&mut self, event: &Event) -> PlayerError {
        let problem = format!(
            "no command asked for it: {} had come already",
            self.expected
        );
        self.malformed(&event.line(), &problem, PRINT_ONE_ANSWER)
    }

    /// The error for an answer that does not belong to its command.
    pub fn unexpected(&mut self, event: &Event) -> PlayerError {
        let problem = format!("{} was expected", self.expected);
        self.malformed(&event.line(), &problem, PRINT_ONE_ANSWER)
    }

    /// Checks the address of an endpoint that was opened.
    ///
    /// # Errors
    /// Its length is not that of a raw address.
    pub fn check_address(&mut self, address: &Bytes) -> Result<(), PlayerError> {
        let Bytes(bytes) = address;
        if bytes.len() >= RawAddress::LEN {
            return Ok(());
        }
        let event = Event::Opened {
            address: address.clone(),
        };
        let problem = format!(
            "a raw address has {} bytes, and this one {}",
            RawAddress::LEN,
            bytes.len()
        );
        let remedy = "print its 64 hexadecimal digits";
        Err(self.malformed(&event.line(), &problem, remedy))
    }

    fn refused(&self, text: &str) -> PlayerError {
        PlayerError::Refused {
            endpoint: self.endpoint.clone(),
            text: text.to_owned(),
        }
    }

    fn tail(&mut self) -> String {
        self.tail.as_mut().map_or(String::new(), StderrReader::text)
    }

    fn ended(&mut self) -> PlayerError {
        // Its output is closed, so the process has ended or is about to.
        match ends_within(&mut self.group.leader, self.delays.end_time()) {
            Some(status) => match self.rest().1 {
                Some(Err(unclear)) if status.success() => self.unclear(unclear),
                _ => self.early_end(status),
            },
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
            self.is_unsupported = true;
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
        PlayerError::Ended {
            endpoint,
            how: match status.signal() {
                Some(_) => format!(": it crashed ({status})"),
                None => format!(" ({status})"),
            },
            is_unfit: status.code() == Some(UNFIT),
            tail,
        }
    }

    /// Kills the process and its children, because it does not respond or breaks the protocol.
    fn kill(&mut self) {
        if let Ok(None) = self.group.leader.try_wait() {
            self.is_killed = true;
            self.group.signal(libc::SIGKILL);
        }
    }

    /// Ends the program and waits for the end of its process, after which its capture is complete.
    /// Returns the capture that it printed: none, unless it ran under a recorder at another place.
    ///
    /// # Errors
    /// [`PlayerError::Lingers`]; or the description of an abnormal end, or of unrequested output.
    pub fn end(mut self) -> Result<Vec<u8>, PlayerError> {
        let limit = self.timeouts.answer;
        self.finish(limit)
    }

    /// As [`Player::end`], for a program without a capture to print, which ends soon.
    ///
    /// # Errors
    /// As [`Player::end`].
    pub(super) fn end_soon(&mut self) -> Result<(), PlayerError> {
        self.finish(self.delays.end_time()).map(|_| ())
    }

    fn finish(&mut self, limit: Duration) -> Result<Vec<u8>, PlayerError> {
        self.input = None;
        let says_so = self.is_unsupported;
        let is_good = |status: &ExitStatus| match status.code() {
            Some(UNSUPPORTED) => says_so,
            code => code == Some(0),
        };
        match ends_within(&mut self.group.leader, limit) {
            Some(status) if is_good(&status) => {
                self.delays.ended();
                let (capture, left) = self.rest();
                match left {
                    None => Ok(capture),
                    Some(Ok(event)) => Err(self.unrequested(&event)),
                    Some(Err(unclear)) => {
                        self.expected = "nothing more".into();
                        Err(self.unclear(unclear))
                    }
                }
            }
            Some(_) if self.is_killed => Ok(self.rest().0),
            Some(status) => Err(self.late_end(status)),
            None => {
                let before = self.delays.before();
                self.delays.lingered();
                self.kill();
                Err(PlayerError::Lingers {
                    endpoint: self.endpoint.clone(),
                    limit,
                    before,
                })
            }
        }
    }

    /// The error for a program that failed after it had answered everything.
    fn late_end(&mut self, status: ExitStatus) -> PlayerError {
        match self.early_end(status) {
            lost @ PlayerError::Lost { .. } => lost,
            _ => PlayerError::EndedBadly {
                endpoint: self.endpoint.clone(),
                how: match status.signal() {
                    Some(_) => format!("it crashed ({status})"),
                    None => format!("it ended with {status}"),
                },
                tail: self.tail(),
            },
        }
    }

    /// Ends the program before the end of its scenario. Returns the capture that it printed, if it
    /// still could.
    pub fn salvage(mut self) -> Vec<u8> {
        self.input = None;
        if ends_within(&mut self.group.leader, self.delays.end_time()).is_none() {
            self.kill();
        }
        self.rest().0
    }

    /// The capture in an ended program's output, and the first unrequested answer.
    fn rest(&self) -> (Vec<u8>, Option<Result<Event, InvalidLine>>) {
        let mut capture = Vec::new();
        let mut unrequested = None;
        // The program's output was sent, or is sent during this wait. A surviving child process may
        // hold the output open.
        while let Ok(event) = self.events.recv_timeout(self.delays.end_time()) {
            match event {
                Ok(Event::Captured { bytes }) => capture.extend(bytes.0),
                // Completions after the last poll are ignored.
                Ok(event) if !event.is_answer() => {}
                other => unrequested = unrequested.or(Some(other)),
            }
        }
        (capture, unrequested)
    }
}

/// The number of unread events after which the program has to wait.
const EVENT_LIMIT: usize = 4096;

impl Drop for Player {
    fn drop(&mut self) {
        self.input = None;
        if ends_within(&mut self.group.leader, self.delays.end_time()).is_none() {
            self.delays.lingered();
        }
    }
}

#[cfg(test)]
mod tests;
