//! Runs any program on another host, without the driver protocol: stock software.
//!
//! `efa-conformance hosted` on that host starts the [`HostedProgram`] that it gets as JSON. It
//! reports on its standard output the program's output, the time when it listens at a port, and at
//! the end the frames of its device. When its standard input is closed, because the caller has
//! ended or is done, it ends the program. So nothing is left there except downloads: each host
//! finds programs of other releases itself ([`resolve`]).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use efa_commands::installation::Installation;
use efa_commands::ports::is_listened_on;
use efa_commands::process_group::ProcessGroup;
use efa_commands::{RunDirectory, temporary_directory};

use serde::{Deserialize, Serialize};

use super::contained::contain;
use super::place::{Recording, RemoteAccess};
use super::program::Program;
use super::recorder::{Recorder, write_lines};
use super::requirement::RequirementError;
use crate::answers::write_line;
use crate::drive::{Bytes, Line};
use crate::libfabric::Provider;

/// The start of the placeholder for the directory of software of another release; the name for
/// [`USERLAND`] follows, then `}`.
const SOFTWARE: &str = "{userland:";
/// The placeholder for the directory of the suite's files, which have the same names there as in
/// the repository.
const DATA: &str = "{data}";
/// The placeholder for this program's own file.
const OWN: &str = "{efa-conformance}";
/// The script that fetches software, by its name in the repository.
pub const USERLAND: &str = "scripts/userland";

/// Maximum time for a program to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);
/// Maximum time for output to end after its process. A grandchild may hold it open.
const DRAIN: Duration = Duration::from_secs(2);
/// The interval of checks whether the program has ended, or listens.
const TICK: Duration = Duration::from_millis(5);

/// An event of a program on another host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum HostedEvent {
    /// The program wrote to its standard output.
    Printed {
        /// The next bytes of that stream.
        bytes: Bytes,
    },
    /// The program wrote to its standard error.
    Complained {
        /// The next bytes of that stream.
        bytes: Bytes,
    },
    /// A process of the host listens at the requested port.
    Listens {},
    /// A part of the capture of the program's device; the parts are in order.
    Captured {
        /// Bytes of a pcapng file.
        bytes: Bytes,
    },
    /// The host lacks something, so the program was not started.
    Lacks {
        /// What is missing, and how to get it.
        text: String,
    },
}

impl Line for HostedEvent {}

/// A word with the placeholder for the directory of software of another release on the host where
/// it is used.
pub fn software_there(name: &str) -> PathBuf {
    PathBuf::from(format!("{SOFTWARE}{name}}}"))
}

/// A word with the placeholder for a file of the suite, on the host where it is used.
pub fn data_there(name: &str) -> PathBuf {
    Path::new(DATA).join(name)
}

/// A program to run on another host.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HostedProgram {
    /// The program and its arguments; [`resolve`] replaces placeholders in the words.
    pub words: Vec<String>,
    /// Variables of its environment, with placeholders too.
    pub environment: BTreeMap<String, String>,
    /// The program that starts it with the libraries of another release, with placeholders too.
    pub runner: Option<String>,
    /// The only plug-in that libfabric should use.
    pub provider: Option<String>,
    /// How its packets are captured; `None`: they are not.
    pub recording: Option<Recording>,
    /// The port at which it will listen.
    pub port: Option<u16>,
    /// Whether it speaks the driver protocol: its standard streams are then the caller's.
    pub driven: bool,
}

impl Line for HostedProgram {}

impl HostedProgram {
    /// The program that plays an endpoint for the driver protocol.
    pub fn driven(program: &Program) -> Self {
        let words = program.words(Path::new(OWN));
        let words = words.iter().map(|word| word.to_string_lossy().into_owned());
        HostedProgram {
            words: words.collect(),
            driven: true,
            ..HostedProgram::default()
        }
    }

    /// The command that starts it on a host. Its standard input must remain open as long as the
    /// program is to run.
    pub fn command(&self, host: &str, reach: &RemoteAccess) -> Command {
        let words = [reach.program.clone(), "hosted".into(), self.line()];
        reach.shell.command(host, &words)
    }

    /// Runs the program on this host until the program or `input` ends, and writes [`HostedEvent`]
    /// lines to `output`. Programs with the driver protocol use this process's streams instead, and
    /// their capture follows their output.
    ///
    /// # Errors
    /// The feature that this host lacks; for a program with the driver protocol it was not reported
    /// to `output`.
    pub fn run(
        &self,
        input: impl Read + Send + 'static,
        output: impl Write + Send + 'static,
    ) -> Result<ExitStatus, RequirementError> {
        let output = Output(Arc::new(Mutex::new(output)));
        let ended = self.command_here().and_then(|(command, capture)| {
            let status = match self.driven {
                true => drive(command),
                false => self.watch(command, input, &output),
            }?;
            Ok((status, capture))
        });
        match ended {
            Ok((status, capture)) => {
                if let Some((_directory, file)) = capture
                    && let Ok(file) = File::open(file)
                {
                    // The reader may have exited.
                    let _ = write_lines(file, &mut *output.lock());
                }
                Ok(status)
            }
            Err(problem) => {
                if !self.driven {
                    let text = problem.to_string().replace('\n', " ");
                    output.say(&HostedEvent::Lacks { text });
                }
                Err(problem)
            }
        }
    }

    /// The command on this host, and the path of its capture.
    fn command_here(&self) -> Result<(Command, Option<(RunDirectory, PathBuf)>), RequirementError> {
        let mut words = Vec::new();
        let mut capture = None;
        let recorder = match &self.recording {
            None => None,
            Some(Recording::AsTheHostDoes) => Some(Recorder::of_this_host()?),
            Some(Recording::By(command)) => Some(Recorder::parse(command)?),
        };
        match recorder {
            None => words.extend(Recorder::without_capture()?),
            Some(recorder) => {
                // If this process is killed, the next one removes the directory.
                let directory =
                    RunDirectory::create_below(&temporary_directory(), "efa-conformance")?;
                let file = directory.path().join("capture.pcapng");
                words.extend(recorder.words(&file));
                capture = Some((directory, file));
            }
        }
        if let Some(runner) = &self.runner {
            words.push(resolve(runner)?);
        }
        for word in &self.words {
            words.push(resolve(word)?);
        }
        if self.runner.is_none()
            && let Some(program) = self.words.first()
        {
            installed(&resolve(program)?)?;
        }
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        for (name, value) in &self.environment {
            command.env(name, resolve(value)?);
        }
        if let Some(name) = &self.provider {
            command.envs(plug_in(name, self.environment.get(Provider::SEARCH_PATH))?);
        }
        Ok((command, capture))
    }

    /// Runs a command and reports its output.
    fn watch<W: Write + Send + 'static>(
        &self,
        mut command: Command,
        mut input: impl Read + Send + 'static,
        output: &Output<W>,
    ) -> Result<ExitStatus, RequirementError> {
        command.stdin(Stdio::null());
        contain(&mut command);
        let started = ProcessGroup::start(&mut command);
        let mut group = started.map_err(|error| cannot_start(&command, error))?;
        let mut readers = Vec::new();
        let printed = group.leader.stdout.take();
        readers.extend(printed.map(|it| output.follow(it, |bytes| HostedEvent::Printed { bytes })));
        let complained = group.leader.stderr.take();
        readers.extend(
            complained.map(|it| output.follow(it, |bytes| HostedEvent::Complained { bytes })),
        );
        let is_wanted = Arc::new(AtomicBool::new(true));
        let wanted = Arc::clone(&is_wanted);
        thread::spawn(move || {
            // The content of the input is not used, only its end.
            let _ = io::copy(&mut input, &mut io::sink());
            wanted.store(false, Ordering::Relaxed);
        });
        let status = self.wait(&mut group, &is_wanted, output);
        // Kills children that it has left behind.
        group.signal(libc::SIGKILL);
        let deadline = Instant::now() + DRAIN;
        while readers.iter().any(|reader| !reader.is_finished()) && Instant::now() < deadline {
            thread::sleep(TICK);
        }
        status
    }

    /// Waits for the program's end, and ends it if it is no longer needed.
    fn wait<W: Write>(
        &self,
        group: &mut ProcessGroup,
        is_wanted: &AtomicBool,
        output: &Output<W>,
    ) -> Result<ExitStatus, RequirementError> {
        let mut port = self.port;
        let mut told: Option<Instant> = None;
        loop {
            match group.leader.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) => {}
                Err(source) => {
                    let program = self.words[0].clone();
                    return Err(RequirementError::Wait { program, source });
                }
            }
            if port.is_some_and(is_listened_on) {
                port = None;
                output.say(&HostedEvent::Listens {});
            }
            match told {
                None if !is_wanted.load(Ordering::Relaxed) => {
                    group.signal(libc::SIGTERM);
                    told = Some(Instant::now());
                }
                Some(since) if since.elapsed() > GRACE => group.signal(libc::SIGKILL),
                _ => {}
            }
            thread::sleep(TICK);
        }
    }
}

fn drive(mut command: Command) -> Result<ExitStatus, RequirementError> {
    let started = command.spawn();
    let mut child = started.map_err(|error| cannot_start(&command, error))?;
    child.wait().map_err(|source| {
        let program = command.get_program().to_string_lossy().into_owned();
        RequirementError::Wait { program, source }
    })
}

fn cannot_start(command: &Command, source: io::Error) -> RequirementError {
    let program = command.get_program().to_string_lossy().into_owned();
    RequirementError::Start { program, source }
}

/// The destination of [`HostedEvent`] lines.
struct Output<W>(Arc<Mutex<W>>);

impl<W: Write> Output<W> {
    fn lock(&self) -> std::sync::MutexGuard<'_, W> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes an event. If the reader has ended, standard input ends too.
    fn say(&self, said: &HostedEvent) {
        let _ = write_line(&mut *self.lock(), said);
    }
}

impl<W: Write + Send + 'static> Output<W> {
    fn follow(
        &self,
        mut pipe: impl Read + Send + 'static,
        said: impl Fn(Bytes) -> HostedEvent + Send + 'static,
    ) -> JoinHandle<()> {
        let output = Output(Arc::clone(&self.0));
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = pipe.read(&mut chunk) {
                output.say(&said(Bytes(chunk[..count].to_vec())));
            }
        })
    }
}

/// Replaces the placeholders in a word: for the directory of software of another release, which is
/// fetched at the first use, for the suite's files, and for this program.
///
/// # Errors
/// The feature that this host lacks.
pub fn resolve(word: &str) -> Result<String, RequirementError> {
    let mut word = word.to_owned();
    if word.contains(OWN) {
        let own = std::env::current_exe().map_err(RequirementError::OwnFile)?;
        word = word.replace(OWN, &own.display().to_string());
    }
    if !word.contains(DATA) && !word.contains(SOFTWARE) {
        return Ok(word);
    }
    let installation = Installation::of_this_program().map_err(RequirementError::OwnFile)?;
    if word.contains(DATA) {
        let data = installation.data().unwrap_or_default();
        word = word.replace(DATA, &data.display().to_string());
    }
    while let Some(begin) = word.find(SOFTWARE) {
        let name = &word[begin + SOFTWARE.len()..];
        let Some((name, _)) = name.split_once('}') else {
            return Err(RequirementError::Unnamed(word));
        };
        let directory = software(&installation, name)?;
        word = word.replace(
            &format!("{SOFTWARE}{name}}}"),
            &directory.display().to_string(),
        );
    }
    Ok(word)
}

/// The directory of software of another release, fetched at the first use.
///
/// # Errors
/// The reason why it cannot be fetched.
pub fn software(installation: &Installation, name: &str) -> Result<PathBuf, RequirementError> {
    let script = installation.file(USERLAND)?;
    let lacks = |reason: &str| RequirementError::Software {
        command: format!("{USERLAND} {name}"),
        reason: reason.to_owned(),
    };
    // The script limits the time of its downloads.
    let output = Command::new(script)
        .arg(name)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| lacks(&error.to_string()))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(lacks(errors.lines().last().unwrap_or("failed")));
    }
    Ok(PathBuf::from(
        String::from_utf8_lossy(&output.stdout).trim(),
    ))
}

fn installed(program: &str) -> Result<(), RequirementError> {
    let has = match program.contains('/') {
        true => Path::new(program).is_file(),
        false => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
        }
    };
    match has {
        true => Ok(()),
        false => Err(RequirementError::Program(program.to_owned())),
    }
}

/// The variables that make libfabric find a plug-in that belongs to this program, and use no other
/// provider. `path` is the search path in the program's environment.
fn plug_in(
    name: &str,
    path: Option<&String>,
) -> Result<[(&'static str, String); 2], RequirementError> {
    let installation = Installation::of_this_program().map_err(RequirementError::OwnFile)?;
    let directory = installation
        .provider_directory(name)
        .ok_or_else(|| RequirementError::Provider(name.to_owned()))?;
    let mut directories = directory.display().to_string();
    if let Some(path) = path {
        directories += &format!(":{}", resolve(path)?);
    }
    Ok([
        (Provider::CHOICE, name.to_owned()),
        (Provider::SEARCH_PATH, directories),
    ])
}

#[cfg(test)]
mod tests {
    use efa_commands::ports::free_port;

    use super::*;

    /// Standard input that never ends.
    struct EndlessInput;

    impl Read for EndlessInput {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            thread::sleep(Duration::from_secs(3600));
            Ok(0)
        }
    }

    /// The events, for a separate reader.
    #[derive(Clone, Default)]
    struct EventBuffer(Arc<Mutex<Vec<u8>>>);

    impl Write for EventBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl EventBuffer {
        fn said(&self) -> Vec<HostedEvent> {
            let bytes = self.0.lock().unwrap().clone();
            let text = String::from_utf8(bytes).unwrap();
            text.lines()
                .map(|line| HostedEvent::parse(line).unwrap())
                .collect()
        }
    }

    fn shell(script: &str) -> HostedProgram {
        HostedProgram {
            words: ["sh", "-c", script].map(str::to_owned).to_vec(),
            ..HostedProgram::default()
        }
    }

    fn run(
        hosted: &HostedProgram,
        input: impl Read + Send + 'static,
    ) -> (Option<i32>, Vec<HostedEvent>) {
        let heard = EventBuffer::default();
        let status = hosted.run(input, heard.clone());
        (status.ok().map(crate::player::status_as), heard.said())
    }

    #[test]
    fn lines_are_read_as_they_are_written() {
        let bytes = Bytes(b"hi".to_vec());
        let text = "ib_send_lat is not installed".to_owned();
        for (said, line) in [
            (
                HostedEvent::Printed {
                    bytes: bytes.clone(),
                },
                r#"{"printed":{"bytes":"6869"}}"#,
            ),
            (
                HostedEvent::Complained {
                    bytes: bytes.clone(),
                },
                r#"{"complained":{"bytes":"6869"}}"#,
            ),
            (HostedEvent::Listens {}, r#"{"listens":{}}"#),
            (
                HostedEvent::Captured { bytes },
                r#"{"captured":{"bytes":"6869"}}"#,
            ),
            (
                HostedEvent::Lacks { text },
                r#"{"lacks":{"text":"ib_send_lat is not installed"}}"#,
            ),
        ] {
            assert_eq!(said.line(), line);
            assert_eq!(HostedEvent::parse(line), Ok(said));
        }
    }

    #[test]
    fn both_outputs_and_the_end_are_reported() {
        let hosted = HostedProgram {
            environment: BTreeMap::from([("WORD".to_owned(), "a b".to_owned())]),
            ..shell("printf \"$WORD\"; printf bad >&2; exit 7")
        };
        let (status, said) = run(&hosted, EndlessInput);
        assert_eq!(status, Some(7));
        let bytes = |text: &str| Bytes(text.into());
        assert!(
            said.contains(&HostedEvent::Printed {
                bytes: bytes("a b")
            }),
            "{said:?}"
        );
        assert!(
            said.contains(&HostedEvent::Complained {
                bytes: bytes("bad")
            }),
            "{said:?}"
        );
    }

    #[test]
    fn the_capture_follows_the_output_of_the_program() {
        let recorded = |recorder: &str| {
            let hosted = HostedProgram {
                recording: Some(Recording::By(recorder.to_owned())),
                driven: true,
                ..shell("exit 7")
            };
            run(&hosted, EndlessInput)
        };
        let captured = HostedEvent::Captured {
            bytes: Bytes(b"abc".to_vec()),
        };
        let whole = "sh -c 'printf abc >\"$0\"; exec \"$@\"' {file}";
        assert_eq!(recorded(whole), (Some(7), vec![captured]));
        // There is no capture to print.
        let killed = (Some(128 + libc::SIGKILL), Vec::new());
        assert_eq!(recorded("sh -c 'kill -KILL $$' {file}"), killed);
    }

    #[test]
    fn an_unwanted_program_is_killed_with_its_children() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("child");
        // The child ignores SIGTERM.
        let script = format!(
            "sh -c 'trap \"\" TERM; echo $$ >{0}.new; mv {0}.new {0}; while :; do sleep 1; done' & wait",
            file.display()
        );
        // Standard input ends when the child exists.
        struct EndsWithFile(PathBuf);
        impl Read for EndsWithFile {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                while !self.0.is_file() {
                    thread::sleep(TICK);
                }
                Ok(0)
            }
        }
        let (status, _) = run(&shell(&script), EndsWithFile(file.clone()));
        assert_eq!(status, Some(128 + libc::SIGTERM));
        let child = std::fs::read_to_string(file).unwrap();
        let stat = format!("/proc/{}/stat", child.trim());
        // The signal takes effect when the child is scheduled next.
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            thread::sleep(TICK);
        }
    }

    #[test]
    fn a_listener_is_reported_once() {
        let port = free_port().unwrap();
        let script = format!(
            "import socket, time; s = socket.create_server((\"127.0.0.1\", {port})); time.sleep(1)"
        );
        let hosted = HostedProgram {
            words: ["python3", "-c", &script].map(str::to_owned).to_vec(),
            port: Some(port),
            ..HostedProgram::default()
        };
        let (_, said) = run(&hosted, EndlessInput);
        let lacks = |said: &HostedEvent| matches!(said, HostedEvent::Lacks { .. });
        let told = said
            .iter()
            .filter(|it| **it == HostedEvent::Listens {})
            .count();
        assert!(told == 1 || said.iter().any(lacks), "{said:?}");
    }

    #[test]
    fn missing_features_of_a_host_are_reported() {
        let lacks = |hosted: &HostedProgram| match &run(hosted, EndlessInput) {
            (None, said) => match &said[..] {
                [HostedEvent::Lacks { text }] => text.clone(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        };
        let missing = HostedProgram {
            words: vec!["no-such-program".into()],
            ..HostedProgram::default()
        };
        assert_eq!(lacks(&missing), "no-such-program is not installed");
        let plug_in = HostedProgram {
            provider: Some("no-such-provider".into()),
            ..shell("true")
        };
        assert!(lacks(&plug_in).contains("no-such-provider"));
        let software = HostedProgram {
            runner: Some(format!(
                "{}/run",
                software_there("no-such-software").display()
            )),
            ..shell("true")
        };
        let text = lacks(&software);
        assert!(text.contains("unknown name 'no-such-software'"), "{text}");
    }

    #[test]
    fn a_host_fills_in_its_paths() {
        let script = resolve(&data_there(USERLAND).display().to_string()).unwrap();
        assert!(Path::new(&script).is_file(), "{script}");
        let own = std::env::current_exe().unwrap();
        assert_eq!(resolve(OWN).unwrap(), own.display().to_string());
        assert_eq!(resolve("{other} $HOME").unwrap(), "{other} $HOME");
    }
}
