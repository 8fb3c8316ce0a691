//! `efa-emu stats`.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Args;
use efa_shm::{self, DEFAULT_FABRIC, HostStatus, parse_duration};
use serde_json::{Map, Value, json};

use efa_commands::Failure;
use efa_commands::signals::Signals;

/// The time in which working devices add their counts.
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
    /// Show the growth of counters repeatedly until interrupted, also of later hosts. With --json:
    /// the values, each time on a line of its own.
    #[arg(long)]
    follow: bool,
    /// Time between two looks.
    #[arg(long, value_name = "DUR", default_value = "1s", requires = "follow", value_parser = interval)]
    interval: Duration,
    /// As JSON; see docs/json.md.
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    match parse_duration("interval", text) {
        Ok(time) if time < ANSWER => Err(format!("it is shorter than {ANSWER:?}")),
        Ok(time) => Ok(time),
        Err(error) => Err(error.to_string()),
    }
}

impl StatsArguments {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        // The first call requests from the devices the counts that the second one reads.
        let mut devices = self.look()?;
        if !devices.is_empty() {
            thread::sleep(ANSWER);
            devices = self.look()?;
        }
        if let Some(name) = &self.host
            && devices.is_empty()
            && !self.follow
        {
            return Err(Failure(format!(
                "the fabric {} has no host {name}: `efa-emu ps --fabric {0}` lists them",
                self.fabric
            )));
        }
        if self.follow {
            self.follow(devices)?;
            return Ok(ExitCode::SUCCESS);
        }
        crate::output::print(&match self.json {
            true => format!("{:#}\n", as_json(&devices)),
            false => table(&devices, |counter| self.all || counter.value > 0),
        });
        Ok(ExitCode::SUCCESS)
    }

    /// The selected devices in their current state.
    fn look(&self) -> Result<Vec<HostStatus>, Failure> {
        let mut devices = efa_shm::list_hosts(&self.fabric)?;
        // Devices of other machines are counted there.
        devices.retain(|device| device.machine.is_none());
        if let Some(name) = &self.host {
            devices.retain(|device| device.name.is_meant_by(name));
        }
        Ok(devices)
    }

    /// Shows the devices repeatedly, including new ones, until a signal arrives or standard output
    /// has no reader.
    fn follow(&self, mut before: Vec<HostStatus>) -> Result<(), Failure> {
        let signals = Signals::take(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]);
        loop {
            if self.json && !crate::output::print(&format!("{}\n", as_json(&before))) {
                return Ok(());
            }
            if signals.wait_for(self.interval).is_some() {
                return Ok(());
            }
            let devices = self.look()?;
            if !self.json {
                let table = table(&grown(&devices, &before), |counter| counter.value > 0);
                if !crate::output::print(&table) {
                    return Ok(());
                }
            }
            before = devices;
        }
    }
}

/// The devices, with the growth of their counters since `before`.
fn grown(devices: &[HostStatus], before: &[HostStatus]) -> Vec<HostStatus> {
    devices
        .iter()
        .map(|device| {
            let earlier = before.iter().find(|earlier| earlier.gid == device.gid);
            let mut values = device.statistics.values();
            for (value, earlier) in values.iter_mut().zip(
                earlier
                    .into_iter()
                    .flat_map(|earlier| earlier.statistics.values()),
            ) {
                // A host that was restarted counts from zero.
                *value = value.saturating_sub(earlier);
            }
            HostStatus {
                statistics: efa_device_model::device::Statistics::from_values(&values),
                ..device.clone()
            }
        })
        .collect()
}

/// A counter of a device.
struct Counter {
    name: &'static str,
    value: u64,
}

/// A line for each counter for which `is_shown` returns true.
fn table(devices: &[HostStatus], is_shown: impl Fn(&Counter) -> bool) -> String {
    let mut output = String::new();
    for device in devices {
        let statistics = &device.statistics;
        let port = statistics.port.iter().chain(statistics.diagnostics.iter());
        let counters = statistics.commands.iter().chain(port);
        for counter in counters
            .map(|(name, value)| Counter { name, value })
            .filter(&is_shown)
        {
            let Counter { name, value } = counter;
            output += &format!("{}  {name:28} {value:>16}\n", device.name);
        }
    }
    output
}

/// An object for each device; docs/json.md describes it.
fn as_json(devices: &[HostStatus]) -> Value {
    let object = |counters: &mut dyn Iterator<Item = (&'static str, u64)>| -> Map<String, Value> {
        counters
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect()
    };
    devices
        .iter()
        .map(|device| {
            json!({
                "host": device.name.host(),
                "device": device.name.index(),
                "gid": device.gid.to_string(),
                "hw_counters": object(&mut device.statistics.commands.iter()),
                "port_hw_counters": object(&mut device.statistics.port.iter()),
                "diagnostics": object(&mut device.statistics.diagnostics.iter()),
            })
        })
        .collect()
}
