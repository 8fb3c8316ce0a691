//! `rank-shell`: runs a command on the host of a rank, with the arguments of ssh.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::message::Message;
use super::secret::Secret;

/// The exit status if there is no connection, as with ssh.
const NO_CONNECTION: u8 = 255;
/// How long a host may take to answer.
const ANSWER: Duration = Duration::from_secs(20);

#[derive(clap::Args)]
pub(crate) struct Shell {
    /// The file in which rank 0 has written where the ranks are.
    table: PathBuf,
    /// The host.
    host: String,
    /// The command line for the shell there.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Where the ranks are.
#[derive(Serialize, Deserialize)]
pub(super) struct Table {
    secret: String,
    hosts: BTreeMap<String, SocketAddr>,
}

impl Table {
    pub(super) fn new(secret: &Secret, hosts: BTreeMap<String, SocketAddr>) -> Self {
        Table {
            secret: secret.text(),
            hosts,
        }
    }

    /// Writes it where no other user can read it.
    pub(super) fn write(&self, path: &Path) -> Result<(), String> {
        let create = || {
            let mut options = OpenOptions::new();
            let mut file = options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(path)?;
            file.write_all(serde_json::to_string(self)?.as_bytes())
        };
        create().map_err(|error: io::Error| format!("cannot write {}: {error}", path.display()))
    }

    fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Connects to a host.
    fn connect(&self, host: &str) -> Result<TcpStream, String> {
        let address = self.hosts.get(host).ok_or_else(|| {
            let hosts: Vec<&str> = self.hosts.keys().map(String::as_str).collect();
            format!(
                "no rank is on {host}; there are ranks on {}",
                hosts.join(", ")
            )
        })?;
        let secret = Secret::parse(&self.secret).ok_or("the table has no secret")?;
        let connect = || {
            let mut stream = TcpStream::connect_timeout(address, ANSWER)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(ANSWER))?;
            secret.prove_as_client(&mut stream)?;
            stream.set_read_timeout(None)?;
            Ok(stream)
        };
        connect().map_err(|error: io::Error| format!("the rank on {host}, at {address}: {error}"))
    }
}

pub(crate) fn shell(arguments: &Shell) -> ExitCode {
    match run(arguments) {
        Ok(status) => ExitCode::from(status),
        Err(problem) => {
            eprintln!("efa-conformance: {problem}");
            ExitCode::from(NO_CONNECTION)
        }
    }
}

fn run(arguments: &Shell) -> Result<u8, String> {
    let mut stream = Table::read(&arguments.table)?.connect(&arguments.host)?;
    let lost = |error: io::Error| format!("the connection to {} ended: {error}", arguments.host);
    let line = arguments.command.join(" ");
    Message::Command(line).write(&mut stream).map_err(lost)?;
    let mut to = stream.try_clone().map_err(lost)?;
    // Ends with the process.
    thread::spawn(move || {
        let mut part = vec![0; 1 << 16];
        loop {
            let message = match io::stdin().read(&mut part) {
                Ok(length @ 1..) => Message::Input(part[..length].to_vec()),
                _ => Message::InputEnd,
            };
            // The other side reads the end of the connection.
            if message.write(&mut to).is_err() || message == Message::InputEnd {
                return;
            }
        }
    });
    loop {
        let written = match Message::read(&mut stream).map_err(lost)? {
            Message::Output(part) => {
                let mut output = io::stdout().lock();
                output.write_all(&part).and_then(|()| output.flush())
            }
            Message::Errors(part) => io::stderr().write_all(&part),
            Message::Ended(status) => return Ok(status),
            other => return Err(format!("{} said {other:?}", arguments.host)),
        };
        written.map_err(|error| format!("cannot pass on what {} says: {error}", arguments.host))?;
    }
}
