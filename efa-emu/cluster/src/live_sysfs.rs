//! Files of the sysfs tree that change while a program runs: counters, and the state of ports.

use std::path::Path;
use std::time::Duration;

use efa_device_model::sysfs::{CounterFiles, PortFiles, Rail};
use efa_shm::{Host, PortRules, PortState};

/// Interval of updates.
const PAUSE: Duration = Duration::from_millis(100);

/// The files of a host's devices, and the sources of their values.
pub struct LiveSysfs<'a> {
    devices: Vec<LiveDevice<'a>>,
}

struct LiveDevice<'a> {
    device: &'a Host,
    counters: CounterFiles,
    /// `None` if the fabric's rules cannot be read: then the state of its port does not change.
    state: Option<PortState>,
    port: PortFiles,
}

impl<'a> LiveSysfs<'a> {
    /// The files below `root` for the devices of a host, with these rules for its ports.
    pub(crate) fn open(
        root: &Path,
        devices: &'a [Host],
        rules: Option<&PortRules>,
    ) -> LiveSysfs<'a> {
        let rails = Rail::all(devices.len() as u32);
        let live = devices.iter().zip(rails).map(|(device, rail)| LiveDevice {
            device,
            counters: CounterFiles::of(root, rail),
            state: rules.map(|rules| PortState::new(rules, device)),
            port: PortFiles::of(root, rail),
        });
        LiveSysfs {
            devices: live.collect(),
        }
    }

    /// Writes the values that have changed. Returns the time until the next call.
    pub fn update(&mut self) -> Duration {
        for live in &mut self.devices {
            // An error such as a full disk must not end the program, which may never read the file.
            let _ = live.counters.write(&live.device.statistics());
            let link = live.state.as_mut().map(PortState::link);
            let _ = live.port.write(link.unwrap_or_default());
        }
        PAUSE
    }
}
