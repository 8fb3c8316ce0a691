//! The driver's side of a driven process.

mod contained;
pub mod hosted;
mod place;
mod program;
mod recorded;
mod subject;
mod tail;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command as Process, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use contained::contain;
pub use efa_commands::shell::{RemoteShell, join, quote, split_words};
pub use hosted::Hosted;
pub use place::{Description, Place, PlaceError, Reach, Recording, Versions, own_address};
pub use program::Program;
pub use recorded::{Recorder, status_as};
pub use subject::Driven;

use crate::drive::line::shown;
use crate::drive::{Command, Event, Identity, LONGEST_ANSWER, Line, VERSION};
use place::NO_CONNECTION;
use tail::Tail;

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

/// How long a program may take to end after the end of its input.
const END_TIME: Duration = Duration::from_secs(5);
/// The largest number of completions before an answer; a program that sends more is broken.
const MOST_ASIDE: usize = 1 << 16;

/// The exit status of our programs for wrong usage or environment.
const UNFIT: i32 = 2;
/// The exit status of a program that cannot do what is asked of it.
pub const UNSUPPORTED: i32 = 127;

/// Why a driven process cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum PlayerError {
    /// It could not be started.
    #[error("cannot start {program} for endpoint `{endpoint}`: {source}")]
    Start {
        /// Which endpoint.
        endpoint: String,
        /// The program.
        program: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It ended, or closed its output.
    #[error("the process of endpoint `{endpoint}` ended early{how}{tail}")]
    Ended {
        /// Which endpoint.
        endpoint: String,
        /// How it ended, if known.
        how: String,
        /// Whether its exit status says that the environment is at fault.
        is_unfit: bool,
        /// The end of its standard error.
        tail: String,
    },
    /// The connection to its host ended, or a signal ended it there.
    #[error(
        "the connection to {host} for endpoint `{endpoint}` ended, or a signal ended the program there \
         (status {NO_CONNECTION}){tail}; see that the host is up"
    )]
    Lost {
        /// Which endpoint.
        endpoint: String,
        /// The host.
        host: String,
        /// The end of its standard error.
        tail: String,
    },
    /// It did not answer in time.
    #[error(
        "the process of endpoint `{endpoint}` did not answer `{command}` within {limit:?}{tail}"
    )]
    Silent {
        /// Which endpoint.
        endpoint: String,
        /// The command.
        command: String,
        /// How long was waited.
        limit: Duration,
        /// The end of its standard error.
        tail: String,
    },
    /// It was not started, because it did not answer after any of its last starts.
    #[error(
        "the program was not started again: after {starts} starts it had not answered `hello` within \
         {limit:?}"
    )]
    GivenUp {
        /// The number of starts.
        starts: u32,
        /// How long was waited after each.
        limit: Duration,
    },
    /// It did not end after the end of its input.
    #[error(
        "the process of endpoint `{endpoint}` did not end within {limit:?} of the end of its input"
    )]
    Lingers {
        /// Which endpoint.
        endpoint: String,
        /// How long was waited.
        limit: Duration,
    },
    /// It wrote a line that is not part of the driver protocol.
    #[error(
        "the process of endpoint `{endpoint}` does not keep to the driver protocol \
         (docs/driver.md): it printed `{line}`: {problem}{tail}"
    )]
    Rubbish {
        /// Which endpoint.
        endpoint: String,
        /// The line, or its beginning.
        line: String,
        /// What is wrong with the line.
        problem: String,
        /// The end of its standard error.
        tail: String,
    },
    /// It refused a command, or gave an unexpected answer.
    #[error("endpoint `{endpoint}`: {text}")]
    Refused {
        /// Which endpoint.
        endpoint: String,
        /// The answer.
        text: String,
    },
    /// It does not support a command.
    #[error("endpoint `{endpoint}`: unsupported: {text}")]
    Unsupported {
        /// Which endpoint.
        endpoint: String,
        /// What it cannot do.
        text: String,
    },
}

/// Starts driven processes, each on its own emulated host.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The `efa-emu` program.
    pub efa_emu: PathBuf,
    /// This program.
    pub efa_conformance: PathBuf,
    /// Name of the emulated fabric, different from all others in use.
    pub fabric: String,
}

impl Launcher {
    /// A launcher that uses the `efa-emu` beside this program, or else the one in `PATH`.
    pub fn new(efa_emu: Option<PathBuf>) -> Result<Self, String> {
        let own = std::env::current_exe()
            .map_err(|error| format!("cannot find this program's own file: {error}"))?;
        let efa_emu = match efa_emu {
            Some(path) => path,
            None => find_beside(&own, "efa-emu").ok_or(
                "efa-emu is neither beside this program nor in PATH; build it with `cargo build \
                 -p efa-emu` or name it with --efa-emu PATH",
            )?,
        };
        Ok(Launcher {
            efa_emu,
            efa_conformance: own,
            fabric: format!("conformance-{}", std::process::id()),
        })
    }
}

/// A program in the directory of this one, or else in `PATH`.
fn find_beside(own: &Path, name: &str) -> Option<PathBuf> {
    let beside = own.with_file_name(name);
    if beside.is_file() {
        return Some(beside);
    }
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}

/// The emulated host and the environment of one player's process.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// Name of the endpoint and of its emulated host.
    pub name: String,
    /// Device profile.
    pub profile: Option<String>,
    /// Where the host's capture goes.
    pub capture: Option<PathBuf>,
    /// Environment variables.
    pub environment: BTreeMap<String, String>,
    /// The program that starts programs with the libraries of another release, if one is needed.
    pub runner: Option<PathBuf>,
    /// The file for standard error; `None` is our own standard error.
    pub log: Option<PathBuf>,
    /// Further options of `efa-emu run`.
    pub options: Vec<String>,
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
    place: Option<Place>,
}

/// A line that is not an event.
#[derive(Debug)]
struct Unclear {
    line: String,
    problem: String,
}

impl Player {
    /// Starts a program on an emulated host of its own.
    pub fn launch(
        launcher: &Launcher,
        program: &Program,
        host: &Host,
    ) -> Result<Self, PlayerError> {
        let mut arguments: Vec<OsString> = vec!["run".into(), "--quiet".into(), "--host".into()];
        arguments.push(host.name.as_str().into());
        arguments.extend(["--fabric".into(), launcher.fabric.as_str().into()]);
        if let Some(profile) = &host.profile {
            arguments.extend(["--profile".into(), profile.into()]);
        }
        if let Some(capture) = &host.capture {
            arguments.extend(["--pcap".into(), capture.into()]);
        }
        arguments.extend(host.options.iter().map(OsString::from));
        arguments.push("--".into());
        arguments.extend(
            host.runner
                .as_ref()
                .map(|runner| runner.as_os_str().to_owned()),
        );
        arguments.extend(program.words(&launcher.efa_conformance));
        let mut process = Process::new(&launcher.efa_emu);
        process.args(arguments).envs(&host.environment);
        if let Some(log) = &host.log {
            let file = File::create(log).map_err(|source| PlayerError::Start {
                endpoint: host.name.clone(),
                program: log.clone(),
                source,
            })?;
            process.stderr(file);
        }
        Self::spawn(host.name.clone(), process, Patience::DEFAULT, None)
    }

    /// Starts a program at a place; with `recording`, under a recorder.
    ///
    /// # Errors
    /// [`PlayerError::Start`]; what goes wrong there shows when the program is first asked.
    pub fn launch_at(
        endpoint: &str,
        place: &Place,
        reach: &Reach,
        program: &Program,
        environment: &BTreeMap<String, String>,
        patience: Patience,
        recording: Option<&Recording>,
    ) -> Result<Self, PlayerError> {
        let mut process = reach.command(&place.host, program, environment, recording);
        process.stderr(Stdio::piped());
        let endpoint = format!("{endpoint} at {place}");
        Self::spawn(endpoint, process, patience, Some(place.clone()))
    }

    /// Starts a program at a place as the place is told to run it.
    ///
    /// # Errors
    /// As [`Player::launch_at`].
    pub fn launch_hosted(
        endpoint: &str,
        place: &Place,
        reach: &Reach,
        hosted: &Hosted,
        patience: Patience,
    ) -> Result<Self, PlayerError> {
        let mut process = hosted.command(&place.host, reach);
        process.stderr(Stdio::piped());
        let endpoint = format!("{endpoint} at {place}");
        Self::spawn(endpoint, process, patience, Some(place.clone()))
    }

    /// Starts a program on this host, with the device that this process has.
    pub fn launch_here(
        endpoint: &str,
        program: &Program,
        environment: &BTreeMap<String, String>,
        patience: Patience,
    ) -> Result<Self, PlayerError> {
        let start = |source| PlayerError::Start {
            endpoint: endpoint.to_owned(),
            program: "this program".into(),
            source,
        };
        let own = std::env::current_exe().map_err(start)?;
        let words = program.words(&own);
        let Some((file, arguments)) = words.split_first() else {
            return Err(start(std::io::ErrorKind::InvalidInput.into()));
        };
        let mut process = Process::new(file);
        process.args(arguments).envs(environment);
        process.stderr(Stdio::piped());
        Self::spawn(endpoint.to_owned(), process, patience, None)
    }

    fn spawn(
        endpoint: String,
        mut process: Process,
        patience: Patience,
        place: Option<Place>,
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

/// Whether a program answered `hello` as version 1 had it: `key=value` pairs, no JSON.
fn is_version_1(line: &str) -> bool {
    line.starts_with("hello version=1") || line.starts_with("unsupported text=")
}

/// Passes on the events that a program prints, up to the first line that is not an event.
fn listen(output: ChildStdout, sender: &SyncSender<Result<Event, Unclear>>) {
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
mod tests {
    use super::*;

    fn shell(script: &str) -> Player {
        let mut process = Process::new("sh");
        process.args(["-c", script]).stderr(Stdio::piped());
        Player::spawn("a".into(), process, Patience::DEFAULT, None).unwrap()
    }

    const HELLO: &str = r#"read line
        echo '{"hello":{"version":2,"software":{"name":"x","release":"1.2.3"}}}';"#;

    fn ask(script: &str) -> Result<Event, PlayerError> {
        let mut player = shell(&format!("{HELLO} {script}"));
        player.ask(&Command::Poll {}, &mut Vec::new())
    }

    #[test]
    fn a_process_that_dies_is_named_with_its_status_and_last_words() {
        let text = ask("echo it hurts >&2; exit 3").unwrap_err().to_string();
        assert!(
            text.contains("`a`") && text.contains("exit status: 3") && text.contains("it hurts"),
            "{text}"
        );
        let text = ask("kill -SEGV $$").unwrap_err().to_string();
        assert!(
            text.contains("crashed") && text.contains("SIGSEGV"),
            "{text}"
        );
    }

    #[test]
    fn status_127_is_unsupported() {
        let error = ask("echo no RDMA here >&2; exit 127").unwrap_err();
        assert!(
            matches!(&error, PlayerError::Unsupported { text, .. } if text.contains("no RDMA here")),
            "{error:?}"
        );
        let error = ask(r#"echo '{"unsupported":{"text":"no RDMA"}}'; cat"#).unwrap_err();
        assert!(
            matches!(&error, PlayerError::Unsupported { text, .. } if text == "no RDMA"),
            "{error:?}"
        );
    }

    #[test]
    fn a_process_that_does_not_answer_is_named_with_the_command() {
        let mut player = shell(&format!("{HELLO} echo thinking >&2; sleep 1000"));
        player.identity().unwrap();
        player.patience.answer = Duration::from_millis(100);
        let error = player.ask(&Command::Poll {}, &mut Vec::new()).unwrap_err();
        assert!(
            matches!(&error, PlayerError::Silent { command, .. } if command == r#"{"poll":{}}"#)
        );
    }

    #[test]
    fn a_process_that_closes_its_output_and_goes_on_is_ended() {
        let mut player = shell(&format!("{HELLO} exec >&-; sleep 1000"));
        let error = player.ask(&Command::Poll {}, &mut Vec::new()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("closed its standard output"), "{text}");
        // It has been killed.
        assert!(player.wait_end(END_TIME).is_some());
    }

    #[test]
    fn rubbish_is_quoted_with_what_is_wrong() {
        let text = ask("echo Hello, world; cat").unwrap_err().to_string();
        assert!(
            text.contains("`Hello, world`") && text.contains("docs/driver.md"),
            "{text}"
        );
        let completed = r#"echo '{"completed":{"id":"x","length":1}}'; cat"#;
        let text = ask(completed).unwrap_err().to_string();
        let wrong = r#"completed.id: invalid type: string "x", expected u64"#;
        assert!(text.contains(wrong), "{text}");
        let text = ask("head -c 2000000 /dev/zero; cat")
            .unwrap_err()
            .to_string();
        assert!(text.contains("longer than"), "{text}");
        let text = ask(r#"yes '{"completed":{"length":1}}'"#)
            .unwrap_err()
            .to_string();
        assert!(text.contains("before an answer"), "{text}");
    }

    #[test]
    fn a_program_of_version_1_is_named_as_such() {
        let spoken =
            format!("the program speaks version 1 of the driver protocol, this suite {VERSION}");
        for answer in ["hello version=1 name=x", "unsupported text={"] {
            let mut player = shell(&format!("read line; echo '{answer}'; cat >/dev/null"));
            let error = player.identity().unwrap_err();
            assert!(
                matches!(&error, PlayerError::Unsupported { text, .. } if *text == spoken),
                "{error:?}"
            );
        }
        // What comes after a `hello` is judged as it is.
        let error = ask("echo unsupported text=x; cat").unwrap_err();
        assert!(matches!(error, PlayerError::Rubbish { .. }), "{error:?}");
    }

    #[test]
    fn what_comes_before_an_answer_is_kept() {
        let completed = r#"{"completed":{"id":7,"length":5,
            "failure":{"code":265,"overflow":3,"text":"too long a message"}}}"#
            .replace('\n', "");
        let done = r#"{"done":{}}"#;
        let mut player = shell(&format!(
            "{HELLO} echo '{completed}'; echo '{done}'; cat >/dev/null"
        ));
        let mut aside = Vec::new();
        let answer = player.ask(&Command::Pause {}, &mut aside).unwrap();
        assert_eq!(answer, Event::Done {});
        let Event::Completed(report) = aside.remove(0) else {
            panic!("{aside:?}");
        };
        assert_eq!((report.token, report.length), (Some(7), 5));
        let failure = report.failure.unwrap();
        assert_eq!((failure.code, failure.overflow), (265, 3));
        assert_eq!(failure.text, "too long a message");
        assert_eq!(player.identity().unwrap().to_string(), "x 1.2.3");
        player.end().unwrap();
    }

    #[test]
    fn a_missing_program_is_named() {
        let launcher = Launcher {
            efa_emu: "./no-such-efa-emu".into(),
            efa_conformance: "./x".into(),
            fabric: "f".into(),
        };
        let error = Player::launch(&launcher, &Program::Core, &Host::default()).unwrap_err();
        assert!(error.to_string().contains("no-such-efa-emu"), "{error}");
    }
}
