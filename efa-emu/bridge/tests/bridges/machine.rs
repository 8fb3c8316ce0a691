//! Machines as namespaces, and the programs on them.

use std::path::{Path, PathBuf};
use std::process::Command;

use efa_commands::namespaces::Namespaces;
use efa_testing::patience::Wait;
use efa_testing::programs::Program;
use efa_testing::workspace::{built, efa_emu};

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

    pub(crate) fn bridge(&self, key: &Path, options: &[&str]) -> Program {
        Program::start(self.bridge_command(key, options))
    }

    pub(crate) fn bridge_command(&self, key: &Path, options: &[&str]) -> Command {
        let mut command = self.command(&built("efa-emu"));
        command.arg("bridge").arg("--key").arg(key).args(options);
        command
    }

    pub(crate) fn emulator(&self, arguments: &[&str]) -> Program {
        let mut command = self.command(&built("efa-emu"));
        command.args(arguments);
        Program::start(command)
    }

    /// Waits until the output of `efa-emu ps` contains this text.
    #[track_caller]
    pub(crate) fn wait_for_host(&self, text: &str) {
        let wait = Wait::start();
        loop {
            let (_, listed) = self.emulator(&["ps"]).outcome();
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
pub(crate) fn address(bridge: &Program) -> String {
    let line = bridge.wait_for("listens on");
    line.rsplit(' ').next().unwrap().to_owned()
}

/// Two machines and a key for them; `None` without namespaces.
pub(crate) fn two(directory: &Path) -> Option<(PathBuf, Machine, Machine)> {
    let key = key(directory, "key");
    Some((key, Machine::new("first")?, Machine::new("second")?))
}

/// Two machines with connected bridges; `None` without namespaces.
pub(crate) fn joined(directory: &Path, options: &[&str]) -> Option<[(Machine, Program); 2]> {
    let (key, first, second) = two(directory)?;
    let here = first.bridge(&key, &[&["--listen", "127.0.0.1:0"], options].concat());
    let peer = address(&here);
    let there = second.bridge(&key, &[&["--peer", &peer], options].concat());
    here.wait_for("connected with second");
    there.wait_for("connected with first");
    Some([(first, here), (second, there)])
}
