//! A fabric for a single test, with its hosts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::files_with;
use super::program::Program;
use crate::patience::Wait;
use crate::workspace::efa_emu;

/// A fabric for a single test, so that tests do not interfere.
pub struct TestFabric {
    name: String,
}

impl TestFabric {
    /// A fabric with a unique name.
    #[allow(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> TestFabric {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        TestFabric {
            name: format!("test-{}-{count}", std::process::id()),
        }
    }

    /// The name for `--fabric`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory of the fabric, which exists as long as it has participants.
    pub fn directory(&self) -> PathBuf {
        // SAFETY: takes no pointers.
        let user = unsafe { libc::geteuid() };
        Path::new("/dev/shm")
            .join(format!("efa-emu-{user}"))
            .join(&self.name)
    }

    /// `efa-emu run --fabric ... OPTIONS -- COMMAND`, where options and command are one list.
    pub fn run(&self, arguments: &[&str]) -> Command {
        let mut command = efa_emu(&["run", "--fabric", &self.name]);
        command.args(arguments);
        command
    }

    /// `efa-emu run` on a host of its own, without options.
    pub fn host(&self, program: &[&str]) -> Command {
        self.run(&[&["--"], program].concat())
    }

    /// A host whose program only sleeps.
    pub fn sleeper(&self, host: &str) -> Program {
        let sleeper = Program::start(self.run(&["--host", host, "--", "sleep", "120"]));
        sleeper.inner_id();
        sleeper
    }

    /// Waits until captures of this many hosts are requested.
    ///
    /// # Panics
    /// If it takes longer than [`crate::patience::PATIENCE`].
    pub fn wait_for_captures(&self, count: usize) {
        let wait = Wait::start();
        let requested = || {
            let hosts = std::fs::read_dir(self.directory().join("hosts"));
            hosts
                .into_iter()
                .flatten()
                .flatten()
                .map(|host| files_with(&host.path(), ".capture").len())
                .sum::<usize>()
        };
        while requested() != count {
            wait.pause(|| format!("not {count} captures"));
        }
    }

    /// The GIDs of the processes that have a queue pair, as `efa-emu ps` lists them.
    pub fn gids_with_queue_pairs(&self) -> Vec<String> {
        self.ps()
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            // Host, process, "open", GID and at least one queue pair.
            .filter(|fields| fields.len() > 4 && fields[2] == "open")
            .map(|fields| fields[3].to_owned())
            .collect()
    }

    /// The output of `efa-emu ps`.
    pub fn ps(&self) -> String {
        Program::start(efa_emu(&["ps", "--fabric", &self.name]))
            .wait()
            .stdout
    }
}
