//! A fabric of a test's own, with its hosts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::files_with;
use super::program::Program;
use crate::patience::Wait;
use crate::workspace::efa_emu;

/// A fabric of this test's own, so that tests do not meet.
pub struct TestFabric {
    name: String,
}

impl TestFabric {
    /// With a name that no other test has at the same time.
    #[allow(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> TestFabric {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        TestFabric {
            name: format!("test-{}-{count}", std::process::id()),
        }
    }

    /// As `--fabric` takes it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the fabric is as long as anybody takes part in it.
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

    /// A host that is there without talking.
    pub fn sleeper(&self, host: &str) -> Program {
        let sleeper = Program::start(self.run(&["--host", host, "--", "sleep", "120"]));
        sleeper.inner_id();
        sleeper
    }

    /// Waits until that many hosts are asked to record.
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

    /// What `efa-emu ps` prints.
    pub fn ps(&self) -> String {
        Program::start(efa_emu(&["ps", "--fabric", &self.name]))
            .wait()
            .stdout
    }
}
