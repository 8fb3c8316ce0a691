//! `efa-emu stats`.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Args;
use efa_emu::transport::{self, DEFAULT_FABRIC, HostStatus};
use serde_json::{Map, Value, json};

use super::Failure;

/// Time in which devices that work add what they have counted.
const ANSWER: Duration = Duration::from_millis(20);

#[derive(Args)]
pub(super) struct StatsArguments {
    /// The fabric to show.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_FABRIC)]
    fabric: String,
    /// Only this host, or this one of its devices.
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Counters that are zero, too.
    #[arg(long)]
    all: bool,
    /// As JSON: an array with an object for each device, which has all counters.
    #[arg(long)]
    json: bool,
}

impl StatsArguments {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        // The first look asks for what the second one finds.
        if !transport::list_hosts(&self.fabric)?.is_empty() {
            thread::sleep(ANSWER);
        }
        let mut hosts = transport::list_hosts(&self.fabric)?;
        if let Some(name) = &self.host {
            hosts.retain(|host| host.name.is_meant_by(name));
            if hosts.is_empty() {
                return Err(Failure(format!(
                    "the fabric {} has no host {name}: `efa-emu ps --fabric {0}` lists them",
                    self.fabric
                )));
            }
        }
        super::print(&match self.json {
            true => json_text(&hosts),
            false => table(&hosts, self.all),
        });
        Ok(ExitCode::SUCCESS)
    }
}

/// A line for each counter.
fn table(hosts: &[HostStatus], with_zeros: bool) -> String {
    let mut output = String::new();
    for host in hosts {
        let statistics = &host.statistics;
        let counters = statistics.commands.iter().chain(statistics.port.iter());
        for (name, value) in counters.filter(|(_, value)| with_zeros || *value > 0) {
            output += &format!("{}  {name:28} {value:>16}\n", host.name);
        }
    }
    output
}

fn json_text(hosts: &[HostStatus]) -> String {
    let object = |counters: &mut dyn Iterator<Item = (&'static str, u64)>| -> Map<String, Value> {
        counters
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect()
    };
    let hosts: Vec<_> = hosts
        .iter()
        .map(|host| {
            json!({
                "host": host.name.host(),
                "device": host.name.index(),
                "gid": host.gid.to_string(),
                "hw_counters": object(&mut host.statistics.commands.iter()),
                "port_hw_counters": object(&mut host.statistics.port.iter()),
            })
        })
        .collect();
    format!("{:#}\n", Value::Array(hosts))
}
