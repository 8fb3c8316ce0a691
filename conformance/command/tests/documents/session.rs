//! A terminal in a clone: where the commands of a page are run.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use efa_testing::workspace::{emulator, root};
use tempfile::TempDir;

/// Makes a terminal in which nothing of the machine's fabrics, ports and processes is seen, and with which everything
/// ends that was started there.
const ALONE: [&str; 12] = [
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--user",
    "--map-root-user",
    "--mount",
    "--net",
    "--pid",
    "--fork",
    "--mount-proc",
    "--kill-child",
];

/// What is done first in such a terminal.
const ALONE_AT_FIRST: &str = "mount -t tmpfs tmpfs /dev/shm && ip link set lo up";

/// Of `cargo`, what pages and the Makefile use: the programs are there, in the profile of the tests.
const CARGO: &str = r#"#!/bin/sh
case "$*" in
'build --workspace --release'|'build --workspace --release --quiet'|'nextest --version') ;;
'build -p '*) ;;
*) echo "cargo $*: not what a page may say" >&2; exit 1 ;;
esac
"#;

/// Wireshark without its window: it reads the same files and pipes, and loads the same dissector.
const WIRESHARK: &str = r#"#!/bin/sh
case "$*" in
# A window gets no Ctrl+C: the program that writes the pipe ends.
'-k -i -') exec setsid --wait tshark -i - ;;
'-C EFA '*) exec tshark -C EFA -r "$3" ;;
*) echo "wireshark $*: not what a page may say" >&2; exit 1 ;;
esac
"#;

/// The end of a session.
pub(crate) struct Outcome {
    /// The exit status of each command, in their order; those in the background at the end.
    pub(crate) statuses: Vec<i32>,
    /// The lines of standard output and standard error.
    pub(crate) lines: Vec<String>,
}

/// A directory that looks like a clone that was built, with the programs in the path.
pub(crate) struct Session {
    directory: TempDir,
}

impl Session {
    /// Makes it, with these traces as its corpus.
    pub(crate) fn new(traces: &[&str]) -> Session {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let session = Session { directory };
        for name in ["home", "stand-ins", "tmp"] {
            fs::create_dir(session.path(name)).unwrap();
        }
        let clone = session.clone_path();
        fs::create_dir(&clone).unwrap();
        for entry in fs::read_dir(root()).unwrap() {
            let name = entry.unwrap().file_name();
            // Commands may write there.
            if !["target", "traces", ".git"].iter().any(|own| name == *own) {
                symlink(root().join(&name), clone.join(&name)).unwrap();
            }
        }
        fs::create_dir(clone.join("target")).unwrap();
        for profile in ["debug", "release"] {
            symlink(programs(), clone.join("target").join(profile)).unwrap();
        }
        symlink(
            root().join("target/userland"),
            clone.join("target/userland"),
        )
        .unwrap();
        fs::create_dir_all(clone.join("traces/written")).unwrap();
        for name in traces {
            for extension in ["toml", "pcapng"] {
                let file = format!("traces/{name}.{extension}");
                // A scenario with packets has no capture.
                if root().join(&file).exists() {
                    fs::copy(root().join(&file), clone.join(&file)).unwrap();
                }
            }
        }
        for (name, text) in [("cargo", CARGO), ("wireshark", WIRESHARK)] {
            let program = session.path("stand-ins").join(name);
            fs::write(&program, text).unwrap();
            fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        }
        session
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The directory in which the commands are run.
    pub(crate) fn clone_path(&self) -> PathBuf {
        self.path("home/efa")
    }

    /// Runs a script in bash. File descriptor 9 takes the statuses, and the file `$SEEN` has what was printed.
    pub(crate) fn run(&self, script: &str) -> Outcome {
        let [statuses, seen] = ["statuses", "seen"].map(|name| self.path(name));
        // The names that are the same on this machine for everybody.
        let alone = is_alone_possible();
        let _only = (!alone).then(only_one);
        let mut command = match alone {
            true => {
                let mut command = Command::new(ALONE[0]);
                command.args(&ALONE[1..]).arg("bash");
                command
            }
            false => Command::new("bash"),
        };
        let clone = self.clone_path();
        // The programs are those of another clone, whose corpus they take if nobody names traces.
        let own_corpus = format!(
            "{ALONE_AT_FIRST} && mount --bind {}/traces {}/traces",
            clone.display(),
            root().display()
        );
        let first = if alone { &own_corpus } else { "true" };
        let whole = format!(
            "exec >\"$SEEN\" 2>&1 9>'{}'\n{first} || exit 99\n{script}",
            statuses.display()
        );
        let path = [
            self.path("stand-ins"),
            clone.join("target/release"),
            PathBuf::from(std::env::var_os("PATH").unwrap_or_default()),
        ];
        let path: Vec<_> = path.iter().map(|part| part.as_os_str()).collect();
        let status = command
            .args(["-c", &whole])
            .current_dir(&clone)
            .env("PATH", path.join(std::ffi::OsStr::new(":")))
            .env("HOME", self.path("home"))
            .env("TMPDIR", self.path("tmp"))
            .env("SEEN", &seen)
            // `make` of the test run would hand its options and variables down.
            .env_remove("MAKEFLAGS")
            .env_remove("MAKELEVEL")
            .env_remove("CARGO")
            .status()
            .expect("bash starts");
        let printed = String::from_utf8_lossy(&fs::read(seen).unwrap_or_default()).into_owned();
        assert!(status.success(), "{whole}\n{printed}");
        // As the pages call them.
        let printed = printed
            .replace(&programs().display().to_string(), "~/efa/target/release")
            .replace(&self.path("home").display().to_string(), "~");
        let statuses = fs::read_to_string(statuses).unwrap();
        Outcome {
            statuses: statuses.lines().map(|line| line.parse().unwrap()).collect(),
            lines: printed.lines().map(str::to_owned).collect(),
        }
    }
}

/// The directory of the programs that were built for the tests.
fn programs() -> PathBuf {
    let program = fs::canonicalize(emulator()).expect("it is there");
    program
        .parent()
        .expect("a program is in a directory")
        .to_owned()
}

/// Returns whether this system lets a test have a terminal of its own.
fn is_alone_possible() -> bool {
    let made = Command::new(ALONE[0])
        .args(&ALONE[1..])
        .args(["sh", "-c", ALONE_AT_FIRST])
        .output();
    made.is_ok_and(|output| output.status.success())
}

/// Waits until no other test uses the default fabric and the programs' usual ports.
fn only_one() -> File {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("documents.lock");
    let lock = File::create(path).expect("a file for the lock");
    lock.lock().expect("the lock can be waited for");
    lock
}
