//! Hosts that a remote shell reaches, and their descriptions of themselves.
//!
//! `efa-conformance place` on a host prints a line with its versions and its devices. Each host is
//! queried before the first scenario is played there, so that a missing part is reported once, with
//! the host and the remedy.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::process::ExitStatus;
use std::str::FromStr;
use std::time::Duration;

use efa_capture::frame::header;
use efa_commands::shell::RemoteShell;
use efa_core::wire::PROTOCOL_VERSION;
use efa_hw::{DeviceName, HwDevice};
use efa_shm::HostConfig;
use efa_shm::version;
use serde::{Deserialize, Serialize};

use super::recorder::Recorder;
use super::status::{NO_CONNECTION, NO_PROGRAM};
use crate::answers::{self, ProgramEnd};
use crate::drive;
use crate::drive::line::shown;

/// The beginning of the line that describes a host.
const LINE: &str = "efa-conformance-place ";

/// A host, and the device of it that is used.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostDevice {
    /// The host in the form that the remote shell accepts: a name or an address, perhaps with a
    /// user.
    pub host: String,
    /// The device's name; `None` is the first EFA device.
    pub device: Option<String>,
}

/// `HOST` or `HOST%DEVICE`, as scopes are written after addresses.
impl fmt::Display for HostDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)?;
        match &self.device {
            Some(device) => write!(f, "%{device}"),
            None => Ok(()),
        }
    }
}

/// Text that does not name a [`HostDevice`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is not a place: write HOST, or HOST%DEVICE such as node1%rdmap0s6")]
pub struct ParseHostDeviceError(String);

impl FromStr for HostDevice {
    type Err = ParseHostDeviceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (host, device) = match text.split_once('%') {
            Some((host, device)) => (host, Some(device)),
            None => (text, None),
        };
        let is_word = |word: &str| !word.is_empty() && !word.contains(char::is_whitespace);
        // A host that begins with a dash would be an option of the remote shell.
        if !is_word(host) || host.starts_with('-') || !device.is_none_or(is_word) {
            return Err(ParseHostDeviceError(text.to_owned()));
        }
        Ok(HostDevice {
            host: host.to_owned(),
            device: device.map(str::to_owned),
        })
    }
}

/// The versions that have to be equal on two hosts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Versions {
    /// The suite's release, with the commit of a package.
    pub suite: String,
    /// The EFA RDM protocol.
    #[serde(default)]
    pub protocol: u32,
    /// The transport header of captures.
    #[serde(default)]
    pub transport_header: u32,
    /// The driver protocol.
    #[serde(default)]
    pub driver: u32,
}

impl Versions {
    /// The versions of this program.
    pub fn own() -> Self {
        Versions {
            suite: version::build(),
            protocol: PROTOCOL_VERSION.into(),
            transport_header: header::VERSION.into(),
            driver: drive::VERSION,
        }
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "efa-conformance {}, EFA RDM protocol {}, transport header {}, driver protocol {}",
            self.suite, self.protocol, self.transport_header, self.driver
        )
    }
}

/// A host's description of itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Description {
    #[serde(flatten)]
    pub(crate) versions: Versions,
    /// The host's name for itself.
    pub host: String,
    /// Its EFA devices: their GIDs by their names.
    pub devices: BTreeMap<String, String>,
    /// The part ids of these devices by their names.
    pub parts: BTreeMap<String, u32>,
    /// Its address on the network to other hosts.
    pub address: IpAddr,
    /// The reason why it has no device.
    pub reason: Option<String>,
    /// The emulated fabric to which the devices belong, if they are emulated.
    pub fabric: Option<String>,
    /// The reason why packets of programs cannot be recorded there.
    pub no_recorder: Option<String>,
}

impl Description {
    /// Describes this host.
    pub fn of_this_host() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let (opened, reason) = match efa_devices() {
            Ok(devices) => (devices, None),
            Err(error) => (BTreeMap::new(), Some(error.to_string())),
        };
        let parts = opened.iter().filter_map(|(name, device)| {
            let report = device.report().ok()?;
            Some((name.clone(), report.vendor_part_id))
        });
        let parts = parts.collect();
        let gids = opened.iter();
        let devices = gids.map(|(name, device)| (name.clone(), device.gid().to_string()));
        Description {
            versions: Versions::own(),
            host: host.trim_end().to_owned(),
            devices: devices.collect(),
            parts,
            address: own_address(),
            reason,
            fabric: HostConfig::from_env().ok().map(|config| config.fabric),
            no_recorder: Recorder::of_this_host()
                .err()
                .map(|error| error.to_string()),
        }
    }

    /// The line that describes the host.
    pub fn line(&self) -> String {
        // Strings and numbers can always be serialised.
        format!("{LINE}{}", serde_json::to_string(self).unwrap_or_default())
    }
}

/// This host's address on the way to others. No packet is sent for it.
pub fn own_address() -> IpAddr {
    let documentation: [SocketAddr; 2] = [
        ([192, 0, 2, 1], 9).into(),
        ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 9).into(),
    ];
    let own = documentation.into_iter().find_map(|address| {
        let any: SocketAddr = match address {
            SocketAddr::V4(_) => ([0; 4], 0).into(),
            SocketAddr::V6(_) => ([0; 16], 0).into(),
        };
        let socket = UdpSocket::bind(any).ok()?;
        socket.connect(address).ok()?;
        Some(socket.local_addr().ok()?.ip())
    });
    own.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// This machine's EFA devices, by their names.
fn efa_devices() -> Result<BTreeMap<String, HwDevice>, efa_hw::OpenError> {
    // Returns the error if there is no device.
    HwDevice::open(&DeviceName::First)?;
    let names = HwDevice::names()?.into_iter();
    let devices = names.filter_map(|name| {
        // Devices that cannot be opened are not EFA devices.
        let device = HwDevice::open(&DeviceName::Named(name.clone())).ok()?;
        Some((name, device))
    });
    Ok(devices.collect())
}

/// The reason why nothing can be played at a place.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The program that reaches hosts does not start.
    #[error("cannot start `{shell}` to reach {host}: {source}")]
    Start {
        /// The host that was to be reached.
        host: String,
        /// That program and its options.
        shell: String,
        /// The reason of the system.
        source: std::io::Error,
    },
    /// The program that reaches hosts ended with the status that means that it has no connection.
    #[error(
        "cannot reach {host}: `{shell} {host}` ended with status 255{tail}; see that `{shell} {host} true` \
         works without questions"
    )]
    Unreachable {
        /// The host that was to be reached.
        host: String,
        /// That program and its options.
        shell: String,
        /// The end of its standard error.
        tail: String,
    },
    /// The description of the host did not arrive in time.
    #[error("{host} did not answer within {limit:?}{tail}; see that `{shell} {host} true` works")]
    Silent {
        /// The host that was reached.
        host: String,
        /// The program that reached it, and its options.
        shell: String,
        /// The time that it had.
        limit: Duration,
        /// The end of the standard error.
        tail: String,
    },
    /// The shell of the host does not find efa-conformance.
    #[error(
        "{host} has no program `{program}`{tail}; install it there in a directory that is in the PATH of \
         `{shell} {host}`"
    )]
    NoProgram {
        /// The host that was reached.
        host: String,
        /// The name or path that was tried there.
        program: String,
        /// The program that reached it, and its options.
        shell: String,
        /// The end of the standard error.
        tail: String,
    },
    /// efa-conformance of the host did not describe it: it may be another release.
    #[error(
        "`{program} place` on {host} ended with {status}{tail}; install efa-conformance {} there",
        version::build()
    )]
    Refused {
        /// The host that was reached.
        host: String,
        /// efa-conformance there, by name or path.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of the standard error.
        tail: String,
    },
    /// Another program wrote to standard output.
    #[error(
        "{host} printed `{line}` where {program} should be heard first: something writes to standard output \
         when `{shell}` logs in, such as a banner or ~/.bashrc; silence it for shells that have no terminal"
    )]
    Banner {
        /// The host that was reached.
        host: String,
        /// The first line that arrived.
        line: String,
        /// efa-conformance there, by name or path.
        program: String,
        /// The program that reached it, and its options.
        shell: String,
    },
    /// The two programs are of builds that do not speak to each other.
    #[error("{host} has {there}; here is {here}: install the same release on both")]
    Different {
        /// The host that was reached.
        host: String,
        /// The versions that the host stated.
        there: Box<Versions>,
        /// The versions of this program.
        here: Box<Versions>,
    },
    /// The host has no device that can be used.
    #[error("{host} has no EFA device: {reason}")]
    NoDevice {
        /// The host that was reached.
        host: String,
        /// Why it has none, as it stated.
        reason: String,
    },
    /// The host has devices, but not the one that was named.
    #[error("{host} has no EFA device {wanted}; it has {}", found.join(", "))]
    NoSuchDevice {
        /// The host that was reached.
        host: String,
        /// The device that was named.
        wanted: String,
        /// The devices of the host, by name.
        found: Vec<String>,
    },
}

/// A host did not name a free port.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{host} names no free port: {reason}")]
pub struct PortError {
    pub(crate) host: String,
    /// The output instead, or why there was none.
    pub reason: String,
}

/// How the packets of a program are recorded.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recording {
    /// With the recorder of the host.
    AsTheHostDoes,
    /// With this command.
    By(String),
}

/// How hosts are reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemoteAccess {
    /// The program that runs a command on another host, such as `ssh`.
    pub shell: RemoteShell,
    /// `efa-conformance` there: a path, or a name for the shell.
    pub program: String,
    /// Maximum time for a host to describe itself.
    pub limit: Duration,
}

impl RemoteAccess {
    /// Queries a host for its description, and compares its versions with those of this program.
    ///
    /// # Errors
    /// [`PlaceError`] names the host and the remedy. It is returned after [`RemoteAccess::limit`]
    /// at the latest.
    pub fn describe(&self, host: &str) -> Result<Description, PlaceError> {
        let shell = self.shell.to_string();
        let (name, program) = (host.to_owned(), self.program.clone());
        let mut command = self.shell.command(host, &[program.clone(), "place".into()]);
        let ended = answers::output(&mut command, self.limit);
        let ProgramEnd {
            status,
            output,
            errors,
        } = ended.map_err(|source| PlaceError::Start {
            host: name.clone(),
            shell: shell.clone(),
            source,
        })?;
        let tail = tail(&errors);
        let Some(status) = status else {
            return Err(PlaceError::Silent {
                host: name,
                shell,
                limit: self.limit,
                tail,
            });
        };
        let first = output.lines().find(|line| !line.trim().is_empty());
        let described = first.and_then(|line| line.strip_prefix(LINE));
        match (status.code(), described, first) {
            (Some(0), Some(text), _) => read(host, text),
            (Some(0), None, Some(line)) => Err(PlaceError::Banner {
                host: name,
                line: shown(line),
                program,
                shell,
            }),
            (Some(NO_CONNECTION), ..) => Err(PlaceError::Unreachable {
                host: name,
                shell,
                tail,
            }),
            (Some(code), ..) if NO_PROGRAM.contains(&code) => Err(PlaceError::NoProgram {
                host: name,
                program,
                shell,
                tail,
            }),
            _ => Err(PlaceError::Refused {
                host: name,
                program,
                status,
                tail,
            }),
        }
    }

    /// Queries a host for a TCP port without a listener on the host.
    ///
    /// # Errors
    /// The error, with the host's name.
    pub fn free_port(&self, host: &str) -> Result<u16, PortError> {
        let words = [self.program.as_str(), "place", "--free-port"].map(str::to_owned);
        let failed = |why: &dyn fmt::Display| PortError {
            host: host.to_owned(),
            reason: why.to_string(),
        };
        let ended = answers::output(&mut self.shell.command(host, &words), self.limit);
        let ProgramEnd { output, errors, .. } = ended.map_err(|error| failed(&error))?;
        let port = output.trim().parse();
        port.map_err(|_| failed(&format!("it printed `{}`{}", shown(&output), tail(&errors))))
    }

    /// As [`RemoteAccess::describe`], and checks that the place's device exists.
    ///
    /// # Errors
    /// As [`RemoteAccess::describe`], [`PlaceError::NoDevice`] and [`PlaceError::NoSuchDevice`].
    pub fn inspect(&self, place: &HostDevice) -> Result<Description, PlaceError> {
        let description = self.describe(&place.host)?;
        let host = || place.host.clone();
        if let Some(reason) = &description.reason {
            return Err(PlaceError::NoDevice {
                host: host(),
                reason: reason.clone(),
            });
        }
        match &place.device {
            Some(wanted) if !description.devices.contains_key(wanted) => {
                Err(PlaceError::NoSuchDevice {
                    host: host(),
                    wanted: wanted.clone(),
                    found: description.devices.into_keys().collect(),
                })
            }
            _ => Ok(description),
        }
    }
}

/// Parses a description after its first word.
fn read(host: &str, text: &str) -> Result<Description, PlaceError> {
    let here = Versions::own();
    let there = serde_json::from_str::<Versions>(text);
    let unknown = || Versions {
        suite: shown(text),
        protocol: 0,
        transport_header: 0,
        driver: 0,
    };
    let there = there.unwrap_or_else(|_| unknown());
    // The same build has the same format.
    match serde_json::from_str(text) {
        Ok(description) if there == here => Ok(description),
        _ => Err(PlaceError::Different {
            host: host.to_owned(),
            there: Box::new(there),
            here: Box::new(here),
        }),
    }
}

/// The last lines of a process's standard error, for the end of a message.
fn tail(errors: &str) -> String {
    let lines: Vec<&str> = errors.lines().filter(|line| !line.is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(3)..];
    match last.is_empty() {
        true => String::new(),
        false => format!(" (`{}`)", last.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use efa_commands::shell::quote;

    use super::*;

    /// A remote shell that runs `script` in place of the command; host and command are its
    /// arguments.
    fn reach(script: &str) -> RemoteAccess {
        RemoteAccess {
            shell: format!("sh -c {}", quote(script)).parse().unwrap(),
            program: "efa-conformance".into(),
            limit: Duration::from_secs(60),
        }
    }

    fn refused(script: &str) -> String {
        reach(script).describe("node7").unwrap_err().to_string()
    }

    fn expect(text: &str, parts: &[&str]) {
        for part in ["node7"].iter().chain(parts) {
            assert!(text.contains(part), "`{part}` in: {text}");
        }
    }

    #[test]
    fn places_are_hosts_with_or_without_a_device() {
        let place: HostDevice = "me@node1%rdmap0s6".parse().unwrap();
        assert_eq!(place.host, "me@node1");
        assert_eq!(place.device.as_deref(), Some("rdmap0s6"));
        assert_eq!(place.to_string(), "me@node1%rdmap0s6");
        assert_eq!("node1".parse::<HostDevice>().unwrap().to_string(), "node1");
        for wrong in ["", "%x", "node1%", "-oProxyCommand=x", "a b"] {
            let problem = wrong.parse::<HostDevice>().unwrap_err();
            assert!(problem.to_string().contains("HOST%DEVICE"), "{problem}");
        }
    }

    #[test]
    fn a_host_describes_itself() {
        let own = Description {
            devices: BTreeMap::from([("efa_0".to_owned(), "fe80::1".to_owned())]),
            reason: None,
            ..Description::of_this_host()
        };
        let script = format!("echo '{}'", own.line());
        let place: HostDevice = "node7".parse().unwrap();
        assert_eq!(reach(&script).inspect(&place).unwrap(), own);
        let place: HostDevice = "node7%efa_1".parse().unwrap();
        let text = reach(&script).inspect(&place).unwrap_err().to_string();
        expect(&text, &["efa_1", "it has efa_0"]);
    }

    #[test]
    fn a_host_without_device_reports_the_reason() {
        let own = Description {
            reason: Some("no list".into()),
            ..Description::of_this_host()
        };
        let place: HostDevice = "node7".parse().unwrap();
        let text = reach(&format!("echo '{}'", own.line())).inspect(&place);
        expect(
            &text.unwrap_err().to_string(),
            &["no EFA device", "no list"],
        );
    }

    #[test]
    fn a_host_that_cannot_be_reached_is_named() {
        let text = refused("echo Connection refused >&2; exit 255");
        expect(&text, &["Connection refused", "`sh -c"]);
        let mut nothing = reach("");
        nothing.shell = "./no-such-shell".parse().unwrap();
        let text = nothing.describe("node7").unwrap_err().to_string();
        expect(&text, &["cannot start `./no-such-shell`"]);
    }

    #[test]
    fn a_silent_host_times_out() {
        for script in ["sleep 1000", "exec >&-; sleep 1000", "sleep 1000 & exit 0"] {
            let reach = RemoteAccess {
                limit: Duration::from_millis(300),
                ..reach(script)
            };
            let text = reach.describe("node7").unwrap_err().to_string();
            expect(&text, &["did not answer within 300ms", "node7 true` works"]);
        }
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let text = refused("echo sh: not found >&2; exit 127");
        expect(&text, &["`efa-conformance`", "not found", "in the PATH of"]);
        let text = refused("echo unrecognized subcommand >&2; exit 2");
        expect(
            &text,
            &["unrecognized subcommand", "exit status: 2", "install"],
        );
    }

    #[test]
    fn a_banner_is_quoted() {
        let own = Description::of_this_host();
        let text = refused(&format!("echo Welcome to AWS; echo '{}'", own.line()));
        expect(&text, &["`Welcome to AWS`", "~/.bashrc"]);
    }

    #[test]
    fn other_versions_are_refused_and_both_named() {
        let mut other = Description::of_this_host();
        other.versions.suite = "0.0.9 (commit abc)".into();
        let text = refused(&format!("echo '{}'", other.line()));
        let own = version::build();
        expect(&text, &["0.0.9 (commit abc)", &own, "same release"]);
        // The same suite with other protocols.
        let mut other = Description::of_this_host();
        other.versions.driver += 1;
        let text = refused(&format!("echo '{}'", other.line()));
        let number = format!("driver protocol {}", drive::VERSION + 1);
        expect(&text, &[&number]);
        // A description in an unknown format.
        let text = refused(&format!("echo '{LINE}{{\"suite\":\"9.9.9\"}}'"));
        expect(&text, &["9.9.9"]);
    }
}
