//! Namespaces that simulate other machines.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The reason why there are no namespaces, or why a script fails in them.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// A program that makes or configures namespaces does not start.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The name of the program, which `PATH` is searched for.
        program: &'static str,
        /// The reason why it does not start.
        source: io::Error,
    },
    /// This user can create no namespaces.
    #[error("the system permits no namespaces here, which takes root or user namespaces: {reason}")]
    NotPermitted {
        /// The standard error output of the program that makes them.
        reason: String,
    },
    /// A command in the namespaces fails.
    #[error("`{script}` fails: {reason}")]
    Script {
        /// The script, for `sh -c`.
        script: String,
        /// The script's standard error output.
        reason: String,
    },
}

/// Namespaces, and the process that keeps them. They end when this value is dropped, or with the
/// program that owns it.
#[derive(Debug)]
pub struct Namespaces {
    keeper: Child,
    /// Their names as options of `unshare` and `nsenter`.
    kinds: Vec<&'static str>,
}

impl Namespaces {
    /// Creates namespaces of these types, which are options of unshare(1) (`--mount`), and runs a
    /// shell script there. Unless the caller is root, they are in a user namespace: the one of
    /// `neighbour`, or a new one.
    ///
    /// # Errors
    /// The reason why the system does not permit them, or why the script fails.
    pub fn make(
        kinds: &[&'static str],
        neighbour: Option<&Namespaces>,
        script: &str,
    ) -> Result<Namespaces, NamespaceError> {
        let mut command = match neighbour {
            Some(neighbour) => neighbour.entering(&[]),
            None => Command::new("env"),
        };
        command.arg("unshare").args(kinds);
        if neighbour.is_none() && !is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        if kinds.contains(&"--mount") {
            command.args(["--propagation", "private"]);
        }
        // Its input is closed when the caller ends, even if the caller is killed.
        let script = format!("{script} && echo ready && exec cat >/dev/null");
        command.args(["sh", "-c", &script]);
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn();
        let mut made = Namespaces {
            keeper: child.map_err(|source| NamespaceError::Start {
                program: "unshare",
                source,
            })?,
            kinds: kinds.to_vec(),
        };
        let mut line = String::new();
        if let Some(output) = made.keeper.stdout.take() {
            // The rest of the output is not needed.
            let _ = BufReader::new(output).read_line(&mut line);
        }
        if line.trim_end() == "ready" {
            return Ok(made);
        }
        let mut reason = String::new();
        if let Some(mut errors) = made.keeper.stderr.take() {
            let _ = errors.read_to_string(&mut reason);
        }
        Err(NamespaceError::NotPermitted {
            reason: reason.trim_end().to_owned(),
        })
    }

    /// The process id of the process that keeps them.
    pub fn id(&self) -> u32 {
        self.keeper.id()
    }

    /// A command that runs in them.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = self.entering(&self.kinds);
        command.arg(program);
        command
    }

    /// Runs a shell script in them and waits for its end.
    ///
    /// # Errors
    /// The script's standard error output if it fails.
    pub fn run(&self, script: &str) -> Result<(), NamespaceError> {
        let mut command = self.command(Path::new("sh"));
        let output = command.args(["-c", script]).stdin(Stdio::null()).output();
        let output = output.map_err(|source| NamespaceError::Start {
            program: "nsenter",
            source,
        })?;
        match output.status.success() {
            true => Ok(()),
            false => Err(NamespaceError::Script {
                script: script.to_owned(),
                reason: String::from_utf8_lossy(&output.stderr)
                    .trim_end()
                    .to_owned(),
            }),
        }
    }

    /// The start of a command that enters the namespaces of these types, with the user namespace; a
    /// program follows.
    fn entering(&self, kinds: &[&str]) -> Command {
        let process = self.id().to_string();
        if kinds.is_empty() && is_root() {
            return Command::new("env");
        }
        let mut command = Command::new("nsenter");
        command.args(["--target", &process]).args(kinds);
        if kinds.contains(&"--mount") {
            command.arg("--wdns=/");
        }
        if !is_root() {
            command.args(["--user", "--preserve-credentials"]);
        }
        command
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

fn is_root() -> bool {
    // SAFETY: the call takes no pointers.
    unsafe { libc::geteuid() == 0 }
}
