//! `efa-emu fault`: faults in a running fabric.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use efa_device_model::device::LinkSpeed;
use efa_device_model::fault::{self, Action, Fault, HostName, PortSpeed, Queues};
use efa_shm::{ArmedFault, DEFAULT_FABRIC, Fabric};
use efa_wire::address::Qpn;
use serde_json::{Value, json};

use efa_commands::Failure;

#[derive(Args)]
pub(super) struct FaultArguments {
    /// The fabric.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_FABRIC, global = true)]
    fabric: String,
    #[command(subcommand)]
    command: FaultCommand,
}

#[derive(Subcommand)]
enum FaultCommand {
    /// Arm rules, until they are cleared or the fabric ends.
    Add(AddArguments),
    /// Release the frames that the rules with this label hold.
    Release {
        /// The label.
        label: String,
    },
    /// Lose everything between two hosts until they are healed.
    Cut {
        /// A host or device, by name or GID.
        one: HostName,
        /// The other.
        other: HostName,
    },
    /// End the cuts of two hosts.
    Heal {
        /// A host or device, by name or GID.
        one: HostName,
        /// The other.
        other: HostName,
    },
    /// Kill the processes of a host that have a device open.
    Kill {
        /// The host or device, by name or GID.
        host: HostName,
    },
    /// Remove a device, or all of a host, under the programs that use it.
    Remove {
        /// The host or device, by name or GID.
        host: HostName,
    },
    /// Return a removed device to a host, or all of them. Programs have to open it again.
    Restore {
        /// The host or device, by name or GID.
        host: HostName,
    },
    /// Take the link of a device's port, or of all of a host.
    PortDown {
        /// The host or device, by name or GID.
        host: HostName,
    },
    /// Give a device's port, or all of a host, its link back.
    PortUp {
        /// The host or device, by name or GID.
        host: HostName,
    },
    /// Give the link of a device's port, or of all of a host, another speed.
    PortSpeed {
        /// The host or device, by name or GID.
        host: HostName,
        /// Gbit/s: 25, 30, 40, 50, 60, 100, 120, 200 or 400. At first it is 100.
        gbps: LinkSpeed,
    },
    /// Fail queue pairs of a host, as the device fails those whose queues make no sense.
    QpError {
        /// The host or device, by name or GID.
        host: HostName,
        /// One queue pair by its number; without it all fail.
        qpn: Option<u16>,
    },
    /// Lose the next completion of completion queues of a host, as of those that are full.
    CqError {
        /// The host or device, by name or GID.
        host: HostName,
        /// Only the completion queues of this queue pair.
        qpn: Option<u16>,
    },
    /// List the armed rules: events seen, applied to, held now.
    List {
        /// As JSON; see docs/json.md.
        #[arg(long)]
        json: bool,
    },
    /// Disarm rules and release the frames that they hold.
    Clear {
        /// Only those with this label.
        label: Option<String>,
    },
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct AddArguments {
    /// A rule: 'when = { packet = "HANDSHAKE" }, then = "hold"'.
    #[arg(value_name = "RULE")]
    rule: Option<String>,
    /// Read rules from this file, `-` for standard input.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Reads a file of rules.
pub(super) fn read_rules(path: &Path) -> Result<Vec<Fault>, Failure> {
    let mut text = String::new();
    let name = path.display().to_string();
    let cannot = |error: std::io::Error| Failure(format!("cannot read {name}: {error}"));
    if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).map_err(cannot)?;
    } else {
        text = std::fs::read_to_string(path).map_err(cannot)?;
    }
    Ok(fault::parse_file(&name, &text)?)
}

impl FaultArguments {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        let fabric = Fabric::open(&self.fabric)?;
        match self.command {
            FaultCommand::Add(AddArguments { rule, file }) => {
                let mut rules = Vec::new();
                if let Some(text) = rule {
                    rules.push(text.parse()?);
                }
                if let Some(path) = file {
                    rules.extend(read_rules(&path)?);
                }
                for rule in &rules {
                    fabric.arm(rule)?;
                }
            }
            FaultCommand::Release { label } => {
                let known = fabric.armed()?;
                if !known.iter().any(|armed| armed.fault.label == label) {
                    return Err(no_label(&label, &self.fabric));
                }
                fabric.act(Action::Release(label))?;
            }
            FaultCommand::Cut { one, other } => {
                let pair = two_hosts(one, other)?;
                // A rule may name hosts that do not exist yet, but a command means hosts that do.
                for host in &pair {
                    fabric.find_devices(host)?;
                }
                fabric.act(Action::Cut(pair))?;
            }
            FaultCommand::Heal { one, other } => {
                fabric.act(Action::Heal(two_hosts(one, other)?))?;
            }
            FaultCommand::Kill { host } => fabric.act(Action::Kill(host))?,
            FaultCommand::Remove { host } => fabric.act(Action::Remove(host))?,
            FaultCommand::Restore { host } => fabric.act(Action::Restore(host))?,
            FaultCommand::PortDown { host } => {
                fabric.find_devices(&host)?;
                fabric.act(Action::PortDown(host))?;
            }
            FaultCommand::PortUp { host } => fabric.act(Action::PortUp(host))?,
            FaultCommand::PortSpeed { host, gbps } => {
                fabric.find_devices(&host)?;
                fabric.act(Action::PortSpeed(PortSpeed { host, speed: gbps }))?;
            }
            FaultCommand::QpError { host, qpn } => {
                fabric.act(Action::QpError(queues(host, qpn)))?;
            }
            FaultCommand::CqError { host, qpn } => {
                fabric.act(Action::CqError(queues(host, qpn)))?;
            }
            FaultCommand::List { json } => {
                let rules = fabric.armed()?;
                crate::output::print(&match json {
                    true => format!("{:#}\n", as_json(&rules)),
                    false => table(&rules),
                });
            }
            FaultCommand::Clear { label: None } => {
                fabric.disarm(|_| true)?;
            }
            FaultCommand::Clear { label: Some(label) } => {
                if fabric.disarm(|armed| armed.fault.label == label)? == 0 {
                    return Err(no_label(&label, &self.fabric));
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn queues(host: HostName, qpn: Option<u16>) -> Queues {
    Queues {
        host,
        qpn: qpn.map(Qpn),
    }
}

fn two_hosts(one: HostName, other: HostName) -> Result<[HostName; 2], Failure> {
    if one == other {
        return Err(Failure(format!("{one} is named twice: name two hosts")));
    }
    Ok([one, other])
}

fn no_label(label: &str, fabric: &str) -> Failure {
    Failure(format!(
        "no fault has the label {label:?} in fabric {fabric:?}: `efa-emu fault --fabric {fabric} \
         list` shows them"
    ))
}

/// One line per rule.
fn table(rules: &[ArmedFault]) -> String {
    let mut output = format!("{:>8} {:>8} {:>8}  RULE\n", "SEEN", "APPLIED", "HELD");
    for armed in rules {
        output += &format!(
            "{:>8} {:>8} {:>8}  {}\n",
            armed.seen, armed.applied, armed.held, armed.fault
        );
    }
    output
}

/// An object for each rule; docs/json.md describes it.
fn as_json(rules: &[ArmedFault]) -> Value {
    rules
        .iter()
        .map(|armed| {
            json!({
                "label": armed.fault.label,
                "rule": armed.fault.to_string(),
                "seen": armed.seen,
                "applied": armed.applied,
                "held": armed.held,
            })
        })
        .collect()
}
