//! `--uplink`: a bridge to other machines that runs as long as programs do.
//!
//! The first run starts it as a separate process. It exits when the last host of this machine has
//! left the fabric (`efa-emu bridge --while-used`). Its output is forwarded by the run that has
//! started it, while that is running.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use efa_commands::sibling::SiblingError;
use efa_shm::Fabric;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::bridge;

/// Interval of forwarding its output.
const TURN: Duration = Duration::from_millis(250);

/// The bridge's first message. It is not printed if another bridge runs already.
const LISTENS: &str = "listens on ";

/// Part of the bridge's message for a port in use.
const CANNOT_LISTEN: &str = "cannot listen on ";

/// The bridge's message for a new connection.
const CONNECTED: &str = "connected with ";

/// Maximum number of bytes of the bridge's output that are forwarded per read.
const CHUNK: usize = 64 << 10;

/// The reason why there is no bridge to other machines.
#[derive(Debug, thiserror::Error)]
pub enum UplinkError {
    /// The program of the bridge does not start.
    #[error(transparent)]
    Start(#[from] SiblingError),
    /// The address at which the bridge was to listen is in use.
    #[error(
        "the bridge to other machines has ended: {output}: choose another port with {listen_option}"
    )]
    PortInUse {
        /// The last output of the bridge.
        output: String,
        /// See [`UplinkParameters`].
        listen_option: &'static str,
    },
    /// The bridge has ended for another reason.
    #[error("the bridge to other machines has ended: {output}")]
    Ended {
        /// The last output of the bridge.
        output: String,
    },
    /// A call of the system failed.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// The parameters of the bridge.
pub struct UplinkParameters<'a> {
    /// The file with the key that all bridges share.
    pub key: &'a Path,
    /// The address at which it listens.
    pub listen: &'a str,
    /// The option that changes that address.
    pub listen_option: &'static str,
    /// The addresses of the other bridges.
    pub peers: &'a [String],
    /// The name of this machine; `None` for its host name.
    pub machine: Option<&'a str>,
}

impl UplinkParameters<'_> {
    /// All addresses of this machine.
    pub const EVERYWHERE: &'static str = "0.0.0.0";
}

/// A bridge that this process has started.
pub struct Uplink {
    bridge: Child,
    /// The file with its output, and the number of bytes that were read.
    output: File,
    read: u64,
    /// Output that was read and not forwarded.
    unforwarded: String,
    /// Whether it has reported that it listens, and that it is connected with another machine.
    listens: bool,
    is_connected: bool,
    /// See [`UplinkParameters`].
    listen_option: &'static str,
    quiet: bool,
}

/// Forwards the output of this process's bridge, if there is one. Returns the time until the next
/// call.
pub fn turn(uplink: &mut Option<Uplink>) -> Duration {
    match uplink {
        Some(uplink) => {
            uplink.hear();
            uplink.tell();
            TURN
        }
        None => Duration::MAX,
    }
}

impl Uplink {
    /// Starts a bridge, which exits immediately if the fabric has one.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(
        fabric: &Fabric,
        wanted: &UplinkParameters<'_>,
        quiet: bool,
    ) -> Result<Uplink, UplinkError> {
        let output = memfd_create("efa-emu-uplink", MemfdFlags::CLOEXEC);
        let output = File::from(output.map_err(io::Error::from)?);
        let program = bridge::BRIDGE.path()?;
        let mut command = Command::new(&program);
        command
            .arg("--while-used")
            .arg("--key")
            .arg(wanted.key)
            .args(["--fabric", fabric.name(), "--listen", wanted.listen]);
        for address in wanted.peers {
            command.args(["--peer", address]);
        }
        if let Some(name) = wanted.machine {
            command.args(["--machine", name]);
        }
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?)
            // It outlives this process, and signals of the terminal are not for it.
            .process_group(0);
        let bridge = command
            .spawn()
            .map_err(|error| bridge::BRIDGE.missing(program, error))?;
        Ok(Uplink {
            bridge,
            output,
            read: 0,
            unforwarded: String::new(),
            listens: false,
            is_connected: false,
            listen_option: wanted.listen_option,
            quiet,
        })
    }

    /// Forwards its output while it starts. Returns false if it has exited because another one
    /// runs, whose output is forwarded elsewhere.
    ///
    /// # Errors
    /// It has exited, with its last output.
    pub fn look(&mut self) -> Result<bool, UplinkError> {
        let ended = self.bridge.try_wait()?;
        self.hear();
        match ended {
            Some(status) if status.success() => Ok(false),
            Some(_) => {
                let output = self.unforwarded.trim_end().to_owned();
                Err(match output.contains(CANNOT_LISTEN) {
                    true => UplinkError::PortInUse {
                        output,
                        listen_option: self.listen_option,
                    },
                    false => UplinkError::Ended { output },
                })
            }
            None => {
                self.tell();
                Ok(true)
            }
        }
    }

    /// Whether it has reported a connection with another machine.
    pub fn is_connected(&self) -> bool {
        self.is_connected
    }

    fn hear(&mut self) {
        let mut bytes = vec![0; CHUNK];
        // The file's position belongs to the bridge, which writes there. Reads from memory do not
        // fail.
        let length = self.output.read_at(&mut bytes, self.read).unwrap_or(0);
        bytes.truncate(length);
        // Complete lines only.
        bytes.truncate(
            bytes
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |at| at + 1),
        );
        self.read += bytes.len() as u64;
        let news = String::from_utf8_lossy(&bytes);
        self.listens |= news.contains(LISTENS);
        self.is_connected |= news.contains(CONNECTED);
        self.unforwarded.push_str(&news);
    }

    /// Forwards the output, once it is certain that this bridge stays: the output of a bridge that
    /// exits because another is running is dropped.
    fn tell(&mut self) {
        if !self.listens {
            return;
        }
        let output = std::mem::take(&mut self.unforwarded);
        if !self.quiet {
            output
                .lines()
                .for_each(|line| eprintln!("efa-emu: bridge: {line}"));
        }
    }
}
