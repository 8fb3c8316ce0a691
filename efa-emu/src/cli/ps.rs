//! `efa-emu ps`.

use std::process::ExitCode;

use clap::Args;
use efa_emu::transport::{self, DEFAULT_FABRIC, HostStatus};

use super::Failure;

#[derive(Args)]
pub(super) struct PsArguments {
    /// The fabric to list.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_FABRIC)]
    fabric: String,
}

impl PsArguments {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        let hosts = transport::list_hosts(&self.fabric)?;
        super::print(&table(&hosts));
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
            let line = format!(
                "{:names$}  {:>7}  {device:6}  {:24}  {}",
                host.name,
                participant.pid,
                host.gid.to_string(),
                qpns.join(" ")
            );
            output += line.trim_end();
            output.push('\n');
        }
    }
    output
}
