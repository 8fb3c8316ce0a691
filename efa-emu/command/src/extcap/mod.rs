//! `efa-emu extcap`: running fabrics as interfaces of Wireshark.
//!
//! Wireshark starts every program in its extcap directory to query its interfaces, their link types
//! and their options, and again to capture into a pipe. During a capture, two more pipes connect
//! the program with a toolbar. The extcap interface (`man 4 extcap`) defines the options and the
//! sentences that answer them.

mod sentences;
mod toolbar;

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use efa_capture::{Direction, WHOLE_FRAMES};
use efa_shm::{DEFAULT_FABRIC, Fabric, FabricError, HostStatus};
use efa_wire::address::Qpn;

use super::capture::{Output, Recording, record};
use efa_commands::Failure;
use efa_commands::signals::Signals;
use efa_options::capture_output::{Filter, Store, TICK, parse_filter};
use toolbar::Toolbar;

/// The prefix of interface names; the fabric's name follows.
const INTERFACE_PREFIX: &str = "efa-emu-";

/// The value that means all hosts, in the option and in the toolbar. It is not a valid name of a
/// host.
const ALL_HOSTS: &str = "*";
const ALL_HOSTS_LABEL: &str = "All hosts";

#[derive(Args)]
pub(super) struct ExtcapArguments {
    /// List the interfaces: one for each fabric that has hosts, and the default fabric in any case.
    #[arg(long)]
    extcap_interfaces: bool,
    /// The version of Wireshark that asks.
    #[arg(long, value_name = "VERSION")]
    extcap_version: Option<String>,
    /// The interface that the other options are about.
    #[arg(long, value_name = "INTERFACE")]
    extcap_interface: Option<String>,
    /// List the link types of the interface.
    #[arg(long)]
    extcap_dlts: bool,
    /// List the options of the interface.
    #[arg(long)]
    extcap_config: bool,
    /// Record the interface.
    #[arg(long)]
    capture: bool,
    /// Write the capture into this pipe.
    #[arg(long, value_name = "FILE")]
    fifo: Option<PathBuf>,
    /// Record only these frames (see `efa-emu capture --help`). Without --capture: print the errors
    /// in the filter.
    #[arg(long, value_name = "FILTER")]
    extcap_capture_filter: Option<String>,
    /// The pipe with the user's actions in the toolbar.
    #[arg(long, value_name = "FILE")]
    extcap_control_in: Option<PathBuf>,
    /// The pipe that changes the toolbar.
    #[arg(long, value_name = "FILE")]
    extcap_control_out: Option<PathBuf>,
    /// Record only frames of this host; `*` stands for all hosts.
    #[arg(long, value_name = "NAME", default_value = ALL_HOSTS)]
    host: String,
    /// Record only frames from or to queue pairs with this number.
    #[arg(long, value_name = "NUMBER")]
    qpn: Option<u16>,
    /// Record each frame once, as it was sent, and not again as it was received.
    #[arg(long)]
    once: bool,
}

/// The user's choices in the options or in the toolbar.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Selection {
    host: Option<String>,
    qpn: Option<Qpn>,
}

impl Selection {
    fn filter(&self) -> Filter {
        let host = self.host.clone().map_or(Filter::All, Filter::Host);
        host.and(self.qpn.map_or(Filter::All, Filter::Qpn))
    }
}

impl ExtcapArguments {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        if self.extcap_interfaces {
            crate::output::print(&sentences::interfaces(&fabrics()?));
            return Ok(ExitCode::SUCCESS);
        }
        let fabric = self.fabric()?;
        if self.capture {
            return self.record(fabric);
        }
        if self.extcap_dlts {
            crate::output::print(sentences::LINK_TYPES);
        } else if self.extcap_config {
            crate::output::print(&sentences::options(&efa_shm::list_hosts(fabric)?));
        } else if let Some(filter) = &self.extcap_capture_filter {
            // No output means that the filter is valid.
            if let Err(reason) = Filter::parse(filter) {
                crate::output::print(&format!("{reason}\n"));
            }
        } else {
            return Err(Failure(
                "nothing to do: use --capture, --extcap-dlts, --extcap-config or \
                 --extcap-capture-filter with --extcap-interface"
                    .to_owned(),
            ));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The fabric of the interface.
    fn fabric(&self) -> Result<&str, Failure> {
        let Some(interface) = &self.extcap_interface else {
            return Err(Failure(
                "use --extcap-interfaces, or name an interface with --extcap-interface".to_owned(),
            ));
        };
        interface.strip_prefix(INTERFACE_PREFIX).ok_or_else(|| {
            Failure(format!(
                "unknown interface {interface:?}: `efa-emu extcap --extcap-interfaces` lists them"
            ))
        })
    }

    fn record(&self, fabric: &str) -> Result<ExitCode, Failure> {
        let mut fixed = parse_filter(self.extcap_capture_filter.as_deref().unwrap_or_default())?;
        if self.once {
            fixed = fixed.and(Filter::Direction(Direction::Outbound));
        }
        let selection = Selection {
            host: (self.host != ALL_HOSTS).then(|| self.host.clone()),
            qpn: self.qpn.map(Qpn),
        };
        let Some(pipe) = &self.fifo else {
            return Err(Failure(
                "name the pipe to write into with --fifo".to_owned(),
            ));
        };
        let output = open_pipe(pipe)?;
        let signals = Signals::take(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]);
        let wireshark = rustix::process::getppid();
        let filter = fixed.clone().and(selection.filter());
        let store = Store::pipe(output.try_clone()?, WHOLE_FRAMES)?;
        let recording = Recording::begin(fabric, store, WHOLE_FRAMES, filter)?;
        let mut toolbar = Toolbar::new(
            self.extcap_control_in.as_deref(),
            self.extcap_control_out.as_deref(),
            selection,
        );
        // Wireshark shows output as an error; the capture's first byte serves as the announcement.
        let announce = |_: &Recording| {};
        record(
            recording,
            &pipe.display().to_string(),
            announce,
            |recording| {
                if let Some(selection) = toolbar.turn(recording.interfaces()) {
                    recording.set_filter(fixed.clone().and(selection.filter()));
                }
                // A killed Wireshark leaves the reader of the pipe running.
                let is_wanted = !output.is_deserted() && rustix::process::getppid() == wireshark;
                signals.wait_for(TICK).is_none() && is_wanted
            },
        )?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Waits until the reader opens its end.
fn open_pipe(path: &Path) -> Result<Output, Failure> {
    let file = OpenOptions::new().write(true).open(path).map_err(|error| {
        Failure(format!(
            "cannot open the pipe {}: {error}: Wireshark makes it; `efa-emu capture` writes files",
            path.display()
        ))
    })?;
    Ok(Output::new(file))
}

/// The fabrics that are interfaces, with their hosts.
fn fabrics() -> Result<Vec<(String, Vec<HostStatus>)>, FabricError> {
    let mut fabrics = Vec::new();
    for fabric in Fabric::running() {
        fabrics.push((fabric.name().to_owned(), fabric.hosts()?));
    }
    // A capture may begin before the first host exists.
    if !fabrics.iter().any(|(name, _)| name == DEFAULT_FABRIC) {
        fabrics.insert(0, (DEFAULT_FABRIC.to_owned(), Vec::new()));
    }
    Ok(fabrics)
}
