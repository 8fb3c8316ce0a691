//! Machines as namespaces, and the processes on them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use efa_commands::namespaces::Namespaces;
use efa_testing::patience::Wait;
use efa_testing::workspace::{built, efa_emu};

/// A process that is killed when this is dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    said: Arc<Mutex<String>>,
    /// Reads its output until all writers have closed it.
    reader: JoinHandle<()>,
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Process {
        command.stdin(Stdio::null());
        let (reader, writer) = std::io::pipe().unwrap();
        command.stdout(writer.try_clone().unwrap()).stderr(writer);
        let child = command.spawn().unwrap();
        // The command's copies of the writing end would keep the reader waiting.
        drop(command);
        let said = Arc::<Mutex<String>>::default();
        let heard = Arc::clone(&said);
        let reader = std::thread::spawn(move || {
            let mut reader = BufReader::new(reader);
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|count| count > 0) {
                heard.lock().unwrap().push_str(&std::mem::take(&mut line));
            }
        });
        Process {
            child,
            said,
            reader,
        }
    }

    pub(crate) fn child_id(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// Sends SIGTERM.
    pub(crate) fn stop(&self) {
        rustix::process::kill_process(self.child_id(), rustix::process::Signal::TERM).unwrap();
    }

    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits for this text in its output; returns the line.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) -> String {
        let wait = Wait::start();
        loop {
            let said = self.said();
            // A line may be incomplete.
            let mut lines = said
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'));
            if let Some(line) = lines.find(|line| line.contains(text)) {
                return line.trim_end().to_owned();
            }
            wait.pause(|| format!("{text:?} was not printed: {said}"));
        }
    }

    #[track_caller]
    pub(crate) fn wait_end(&mut self) -> (Option<i32>, String) {
        let wait = Wait::start();
        loop {
            if let Some(status) = self.child.try_wait().unwrap()
                && self.reader.is_finished()
            {
                return (status.code(), self.said());
            }
            wait.pause(|| format!("it does not end: {}", self.said()));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A machine: a process that keeps its namespaces alive.
pub(crate) struct Machine {
    name: &'static str,
    namespaces: Namespaces,
}

impl Machine {
    /// `None` where the system permits no namespaces; prints the reason.
    pub(crate) fn new(name: &'static str) -> Option<Machine> {
        let script = format!("hostname {name} && mount -t tmpfs tmpfs /dev/shm");
        match Namespaces::make(&["--mount", "--uts"], None, &script) {
            Ok(namespaces) => Some(Machine { name, namespaces }),
            Err(error) => {
                efa_testing::skip(error);
                None
            }
        }
    }

    /// A command on this machine.
    pub(crate) fn command(&self, program: &Path) -> Command {
        self.namespaces.command(program)
    }

    pub(crate) fn bridge(&self, key: &Path, options: &[&str]) -> Process {
        let mut command = self.command(&built("efa-emu"));
        command.arg("bridge").arg("--key").arg(key).args(options);
        Process::start(command)
    }

    pub(crate) fn emulator(&self, arguments: &[&str]) -> Process {
        let mut command = self.command(&built("efa-emu"));
        command.args(arguments);
        Process::start(command)
    }

    /// Waits until the output of `efa-emu ps` contains this text.
    #[track_caller]
    pub(crate) fn wait_for_host(&self, text: &str) {
        let wait = Wait::start();
        loop {
            let (_, listed) = self.emulator(&["ps"]).wait_end();
            if listed.contains(text) {
                return;
            }
            wait.pause(|| format!("{}: {listed}", self.name));
        }
    }
}

pub(crate) fn key(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    let made = efa_emu(&["bridge", "key"]).arg(&path).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    path
}

/// The address at which a bridge listens, from its output.
pub(crate) fn address(bridge: &Process) -> String {
    let line = bridge.wait_for("listens on");
    line.rsplit(' ').next().unwrap().to_owned()
}

/// Two machines and a key for them; `None` without namespaces.
pub(crate) fn two(directory: &Path) -> Option<(PathBuf, Machine, Machine)> {
    let key = key(directory, "key");
    Some((key, Machine::new("first")?, Machine::new("second")?))
}

/// Two machines with connected bridges; `None` without namespaces.
pub(crate) fn joined(directory: &Path, options: &[&str]) -> Option<[(Machine, Process); 2]> {
    let (key, first, second) = two(directory)?;
    let here = first.bridge(&key, &[&["--listen", "127.0.0.1:0"], options].concat());
    let peer = address(&here);
    let there = second.bridge(&key, &[&["--peer", &peer], options].concat());
    here.wait_for("connected with second");
    there.wait_for("connected with first");
    Some([(first, here), (second, there)])
}
