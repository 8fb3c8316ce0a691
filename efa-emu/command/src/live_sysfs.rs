//! What changes in the sysfs tree while a program runs: counters, and the state of ports.

use std::path::Path;
use std::time::{Duration, Instant};

use efa_device_model::sysfs::{CounterFiles, PortFiles, Rail};
use efa_shm::{Host, PortRules, PortState};

use super::watches::Watches;

/// Time between two updates while nobody reads the files, and for a while after somebody did.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_WITH_READERS: Duration = Duration::from_millis(20);
const READERS_STAY: Duration = Duration::from_secs(2);

/// The files of a host's devices and where their values come from.
pub(super) struct LiveSysfs<'a> {
    devices: Vec<LiveDevice<'a>>,
    last_read: Option<Instant>,
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
    pub(super) fn open(
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
            last_read: None,
        }
    }

    /// Writes what has changed, and returns when to call this again: earlier while somebody is seen to read counters.
    pub(super) fn update(&mut self, watches: &mut Watches) -> Duration {
        for live in &mut self.devices {
            // A full disk is no reason to end the program, which may not even look here.
            let _ = live.counters.write(&live.device.statistics());
            let link = live.state.as_mut().map(PortState::link);
            let _ = live.port.write(link.unwrap_or_default());
        }
        if watches.turn() {
            self.last_read = Some(Instant::now());
        }
        let pause = match self.last_read {
            Some(read) if read.elapsed() < READERS_STAY => PAUSE_WITH_READERS,
            _ => PAUSE,
        };
        watches.due().map_or(pause, |due| pause.min(due))
    }
}
