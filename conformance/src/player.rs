//! A driver process, seen from the one who drives it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command as Process, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::drive::{Command, Event};
use crate::scenario::EndpointSpec;

/// How long a driver may take to answer a command that needs no progress.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// How long a driver may take to end after its input ended.
const END_TIME: Duration = Duration::from_secs(5);

/// The exit status by which our programs say that usage or environment are at fault.
const UNFIT: i32 = 2;

/// Why a driver process cannot be used any more.
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
    #[error("the process of endpoint `{endpoint}` ended early{how}")]
    Ended {
        /// Which endpoint.
        endpoint: String,
        /// Its exit status, if known.
        how: String,
        /// Whether it said that the environment is at fault.
        is_unfit: bool,
    },
    /// It does not answer.
    #[error("the process of endpoint `{endpoint}` did not answer within {limit:?}")]
    Silent {
        /// Which endpoint.
        endpoint: String,
        /// How long was waited.
        limit: Duration,
    },
    /// It refused a command, or answered something else.
    #[error("endpoint `{endpoint}`: {text}")]
    Refused {
        /// Which endpoint.
        endpoint: String,
        /// What it said.
        text: String,
    },
}

/// How to start driver processes: each on its own emulated host.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The `efa-emu` program.
    pub efa_emu: PathBuf,
    /// This program.
    pub efa_conformance: PathBuf,
    /// Name of the emulated fabric, unlike any other in use.
    pub fabric: String,
}

impl Launcher {
    /// A launcher that uses the `efa-emu` beside this program, or else the one in `PATH`.
    pub fn new(efa_emu: Option<PathBuf>) -> Result<Self, String> {
        let own = std::env::current_exe()
            .map_err(|error| format!("cannot find this program's own file: {error}"))?;
        let efa_emu = match efa_emu {
            Some(path) => path,
            None => find_efa_emu(&own).ok_or(
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

fn find_efa_emu(own: &Path) -> Option<PathBuf> {
    let beside = own.with_file_name("efa-emu");
    if beside.is_file() {
        return Some(beside);
    }
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join("efa-emu"))
        .find(|path| path.is_file())
}

/// What is particular to one player's process.
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
    /// The program that runs programs with the libraries of another release, if that is wanted.
    pub runner: Option<PathBuf>,
    /// Where standard error goes, if not to ours.
    pub log: Option<PathBuf>,
    /// Further options of `efa-emu run`.
    pub options: Vec<String>,
}

/// A running driver.
#[derive(Debug)]
pub struct Player {
    endpoint: String,
    child: Child,
    input: Option<ChildStdin>,
    events: Receiver<Event>,
}

impl Player {
    /// Starts a driver on an emulated host of its own.
    pub fn launch(launcher: &Launcher, host: &Host) -> Result<Self, PlayerError> {
        let mut arguments: Vec<OsString> = vec!["run".into(), "--host".into()];
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
        arguments.push(launcher.efa_conformance.as_os_str().to_owned());
        arguments.push("drive".into());
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
        Self::spawn(host.name.clone(), process)
    }

    /// Starts a driver on this host, with the device that this process has.
    pub fn launch_here(endpoint: &EndpointSpec) -> Result<Self, PlayerError> {
        let own = std::env::current_exe().map_err(|source| PlayerError::Start {
            endpoint: endpoint.name.clone(),
            program: "this program".into(),
            source,
        })?;
        let mut process = Process::new(own);
        process.arg("drive").envs(&endpoint.environment);
        Self::spawn(endpoint.name.clone(), process)
    }

    fn spawn(endpoint: String, mut process: Process) -> Result<Self, PlayerError> {
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
        let (sender, events) = channel();
        if let Some(output) = child.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(output).lines() {
                    let Ok(line) = line else { break };
                    // Anything else on standard output belongs to the library or its device.
                    let event =
                        serde_json::from_str(&line).unwrap_or(Event::Reported { text: line });
                    if sender.send(event).is_err() {
                        break;
                    }
                }
            });
        }
        let input = child.stdin.take();
        Ok(Player {
            endpoint,
            child,
            input,
            events,
        })
    }

    /// The endpoint's name.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Sends a command.
    pub fn tell(&mut self, command: &Command) -> Result<(), PlayerError> {
        let mut line = serde_json::to_vec(command).map_err(|error| self.refused(&error))?;
        line.push(b'\n');
        let written = match &mut self.input {
            Some(input) => input.write_all(&line).and_then(|()| input.flush()),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        written.map_err(|_| self.ended())
    }

    /// Waits for the next event, `None` if there was none in time.
    pub fn hear(&mut self, limit: Duration) -> Result<Option<Event>, PlayerError> {
        match self.events.recv_timeout(limit) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    /// Sends a command and waits for its answer. Completions and reports that come in between go to
    /// `aside`.
    pub fn ask(&mut self, command: &Command, aside: &mut Vec<Event>) -> Result<Event, PlayerError> {
        self.tell(command)?;
        let deadline = Instant::now() + ANSWER_TIME;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.hear(left)? {
                Some(event @ (Event::Completed { .. } | Event::Reported { .. })) => {
                    aside.push(event);
                }
                Some(Event::Failed { text }) => return Err(self.refused(&text)),
                Some(event) => return Ok(event),
                None => {
                    return Err(PlayerError::Silent {
                        endpoint: self.endpoint.clone(),
                        limit: ANSWER_TIME,
                    });
                }
            }
        }
    }

    fn refused(&self, text: &impl ToString) -> PlayerError {
        PlayerError::Refused {
            endpoint: self.endpoint.clone(),
            text: text.to_string(),
        }
    }

    fn ended(&mut self) -> PlayerError {
        // Its output is closed, so the process is about to end if it has not already.
        let status = self.wait_end(END_TIME);
        PlayerError::Ended {
            endpoint: self.endpoint.clone(),
            how: status.map_or_else(String::new, |status| format!(" ({status})")),
            is_unfit: status.is_some_and(|status| status.code() == Some(UNFIT)),
        }
    }

    fn wait_end(&mut self, limit: Duration) -> Option<std::process::ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// Ends the driver and waits until its process is gone; its capture is complete then.
    pub fn end(mut self) -> Result<(), PlayerError> {
        self.input = None;
        match self.wait_end(END_TIME) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(PlayerError::Ended {
                endpoint: self.endpoint.clone(),
                how: format!(" ({status})"),
                is_unfit: status.code() == Some(UNFIT),
            }),
            None => Err(PlayerError::Silent {
                endpoint: self.endpoint.clone(),
                limit: END_TIME,
            }),
        }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.input = None;
        if self.wait_end(END_TIME).is_none() {
            // It does not listen any more; nothing of it may outlive us, nor what it started.
            if let Ok(group) = libc::pid_t::try_from(self.child.id()) {
                // SAFETY: sends a signal, touches no memory. The child was not waited for, so the
                // number is that of its group.
                unsafe { libc::kill(-group, libc::SIGKILL) };
            }
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Player {
        let mut process = Process::new("sh");
        process.args(["-c", script]);
        Player::spawn("a".into(), process).unwrap()
    }

    #[test]
    fn a_process_that_dies_is_named_with_its_status() {
        let mut player = shell("exit 3");
        let error = loop {
            match player.hear(ANSWER_TIME) {
                Ok(event) => assert!(event.is_none()),
                Err(error) => break error,
            }
        };
        let text = error.to_string();
        assert!(
            text.contains("`a`") && text.contains("exit status: 3"),
            "{text}"
        );
    }

    #[test]
    fn lines_that_are_no_events_are_passed_on_as_reports() {
        let mut player = shell("echo hello; echo '{\"event\":\"done\"}'; cat >/dev/null");
        let mut aside = Vec::new();
        assert_eq!(
            player.ask(&Command::Pause, &mut aside).unwrap(),
            Event::Done
        );
        assert_eq!(
            aside,
            [Event::Reported {
                text: "hello".into()
            }]
        );
        player.end().unwrap();
    }

    #[test]
    fn a_missing_program_is_named() {
        let launcher = Launcher {
            efa_emu: "./no-such-efa-emu".into(),
            efa_conformance: "./x".into(),
            fabric: "f".into(),
        };
        let error = Player::launch(&launcher, &Host::default()).unwrap_err();
        assert!(error.to_string().contains("no-such-efa-emu"), "{error}");
    }
}
