//! `efa-emu ps`.

use std::process::ExitCode;

use clap::Args;
use efa_shm::{self, DEFAULT_FABRIC, HostStatus};
use serde_json::{Value, json};

use efa_commands::Failure;

#[derive(Args)]
pub(super) struct PsArguments {
    /// The fabric to list.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_FABRIC)]
    fabric: String,
    /// As JSON; see docs/json.md.
    #[arg(long)]
    json: bool,
}

impl PsArguments {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        let hosts = efa_shm::list_hosts(&self.fabric)?;
        crate::output::print(&match self.json {
            true => format!("{:#}\n", as_json(&hosts)),
            false => table(&hosts) + &diagnostics(&hosts),
        });
        Ok(ExitCode::SUCCESS)
    }
}

/// One line per process that has the device open or runs `efa-emu run`.
fn table(hosts: &[HostStatus]) -> String {
    let names = hosts
        .iter()
        .map(|host| host.name.to_string().len())
        .max()
        .unwrap_or(0)
        .max("HOST".len());
    let mut output = format!(
        "{:names$}  {:>7}  {:6}  {:24}  QPNS\n",
        "HOST", "PID", "DEVICE", "GID"
    );
    for host in hosts {
        for participant in &host.participants {
            let qpns: Vec<_> = participant
                .queue_pairs
                .iter()
                .map(ToString::to_string)
                .collect();
            let device = if participant.has_device { "open" } else { "-" };
            let (device, qpns) = match &host.machine {
                None => (device, qpns.join(" ")),
                Some(machine) => ("bridge", format!("on {machine}")),
            };
            let line = format!(
                "{:names$}  {:>7}  {device:6}  {:24}  {}",
                host.name,
                participant.pid,
                host.gid.to_string(),
                qpns
            );
            output += line.trim_end();
            output.push('\n');
        }
    }
    output
}

/// A line for each device that has lost completions, refused requests, or deferred them.
fn diagnostics(hosts: &[HostStatus]) -> String {
    let mut output = String::new();
    for host in hosts {
        let counters = host.statistics.diagnostics.iter();
        let counters: Vec<_> = counters
            .filter(|(_, value)| *value > 0)
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        if !counters.is_empty() {
            output += &format!("{}: {}\n", host.name, counters.join(", "));
        }
    }
    output
}

/// An object for each device; docs/json.md describes it.
fn as_json(hosts: &[HostStatus]) -> Value {
    hosts
        .iter()
        .map(|host| {
            let processes = host.participants.iter().map(|participant| {
                let queue_pairs: Vec<_> = participant.queue_pairs.iter().map(|qpn| qpn.0).collect();
                json!({
                    "pid": participant.pid,
                    "has_device": participant.has_device,
                    "queue_pairs": queue_pairs,
                })
            });
            let diagnostics: serde_json::Map<_, _> = host
                .statistics
                .diagnostics
                .iter()
                .map(|(name, value)| (name.to_owned(), Value::from(value)))
                .collect();
            json!({
                "host": host.name.host(),
                "device": host.name.index(),
                "gid": host.gid.to_string(),
                "profile": host.profile,
                "machine": host.machine,
                "processes": processes.collect::<Vec<_>>(),
                "diagnostics": diagnostics,
            })
        })
        .collect()
}
