//! Files of the sysfs tree that change while a program runs: counters, and the state of ports.

use std::path::Path;
use std::time::Duration;

use efa_device_model::sysfs::{CounterFiles, PortFiles, Rail};
use efa_shm::{Host, PortRules, PortState};

/// Time between two updates.
const PAUSE: Duration = Duration::from_millis(100);

/// The files of a host's devices and where their values come from.
pub struct LiveSysfs<'a> {
    devices: Vec<LiveDevice<'a>>,
}

struct LiveDevice<'a> {
    device: &'a Host,
    counters: CounterFiles,
    /// `None` if the fabric's rules cannot be read: then its links stay.
    state: Option<PortState>,
    port: PortFiles,
}

impl<'a> LiveSysfs<'a> {
    /// For the tree below `root` and the devices of a host, whose links go by these rules.
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

    /// Writes what has changed, and returns when to call this again.
    pub fn update(&mut self) -> Duration {
        for live in &mut self.devices {
            // A full disk is no reason to end the program, which may not even look here.
            let _ = live.counters.write(&live.device.statistics());
            let link = live.state.as_mut().map(PortState::link);
            let _ = live.port.write(link.unwrap_or_default());
        }
        PAUSE
    }
}
