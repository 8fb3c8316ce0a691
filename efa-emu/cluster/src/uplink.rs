//! `--uplink`: a bridge to other machines, which is there as long as programs are.
//!
//! The first run starts it, as a process of its own; it ends by itself when the last host of
//! this machine has left the fabric (`efa-emu bridge --while-used`). What it says goes to whoever
//! has started it, as long as that runs.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use efa_commands::Failure;
use efa_shm::Fabric;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::bridge;

/// How often what it says is passed on.
const TURN: Duration = Duration::from_millis(250);

/// The bridge's first message, which it does not print if another bridge runs already.
const LISTENS: &str = "listens on ";

/// Part of the bridge's message for a port in use.
const CANNOT_LISTEN: &str = "cannot listen on ";

/// The bridge's message for a new connection.
const CONNECTED: &str = "connected with ";

/// The most bytes of what the bridge says that are passed on at a time.
const CHUNK: usize = 64 << 10;

/// The bridge that is to be there.
pub struct Wanted<'a> {
    /// The key of all bridges of the fabric.
    pub key: &'a Path,
    /// Where it is connected to.
    pub listen: &'a str,
    /// The option that changes that.
    pub listen_option: &'static str,
    /// The addresses of those that it connects with.
    pub peers: &'a [String],
    /// The name of this machine; its host name if none is given.
    pub machine: Option<&'a str>,
}

impl Wanted<'_> {
    /// All addresses of this machine.
    pub const EVERYWHERE: &'static str = "0.0.0.0";
}

/// A bridge that this process has started.
pub struct Uplink {
    bridge: Child,
    /// The file of its output, and the number of bytes that were read.
    said: File,
    read: u64,
    /// Output that was read and not passed on.
    held: String,
    /// It has said that it listens, and that it has met another machine.
    listens: bool,
    is_connected: bool,
    /// See [`Wanted`].
    listen_option: &'static str,
    quiet: bool,
}

/// Passes on what the bridge has said, if there is one of this process. Returns when to call this
/// again.
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
    /// Starts a bridge, which ends at once if the fabric has one.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(fabric: &Fabric, wanted: &Wanted<'_>, quiet: bool) -> Result<Uplink, Failure> {
        let said = File::from(memfd_create("efa-emu-uplink", MemfdFlags::CLOEXEC)?);
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
            .stdout(said.try_clone()?)
            .stderr(said.try_clone()?)
            // It outlives this process, and what the terminal sends is not for it.
            .process_group(0);
        let bridge = command
            .spawn()
            .map_err(|error| bridge::BRIDGE.missing(&program, &error))?;
        Ok(Uplink {
            bridge,
            said,
            read: 0,
            held: String::new(),
            listens: false,
            is_connected: false,
            listen_option: wanted.listen_option,
            quiet,
        })
    }

    /// Passes on what it says while it begins. Returns false if it has ended because another one is
    /// there, which says what it does to whoever has started that.
    ///
    /// # Errors
    /// It has ended, with what it has said last.
    pub fn look(&mut self) -> Result<bool, Failure> {
        let ended = self.bridge.try_wait()?;
        self.hear();
        match ended {
            Some(status) if status.success() => Ok(false),
            Some(_) => {
                let said = self.held.trim_end();
                let remedy = match said.contains(CANNOT_LISTEN) {
                    true => format!(": choose another port with {}", self.listen_option),
                    false => String::new(),
                };
                Err(Failure(format!(
                    "the bridge to other machines has ended: {said}{remedy}"
                )))
            }
            None => {
                self.tell();
                Ok(true)
            }
        }
    }

    /// Whether it has said that it is connected with another machine.
    pub fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Reads what it has said since the last call.
    fn hear(&mut self) {
        let mut bytes = vec![0; CHUNK];
        // The file's position is the one at which the bridge writes: it stays where it is. What is
        // in memory can be read.
        let length = self.said.read_at(&mut bytes, self.read).unwrap_or(0);
        bytes.truncate(length);
        // Whole lines only.
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
        self.held.push_str(&news);
    }

    /// Passes on what was read, once it is known that this is the bridge that runs: what one says
    /// that ends because of another one is for nobody.
    fn tell(&mut self) {
        if !self.listens {
            return;
        }
        let held = std::mem::take(&mut self.held);
        if !self.quiet {
            held.lines()
                .for_each(|line| eprintln!("efa-emu: bridge: {line}"));
        }
    }
}
