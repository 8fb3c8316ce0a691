//! Records a fabric: one capture of all its hosts, with an interface for each.
//!
//! The recording process joins every host of the fabric and makes its devices record to a file,
//! from which it moves the frames into the capture. When it ends, even by a kill, the devices stop
//! recording.
//!
//! The first byte of the capture is written when all devices record, so that a program which waits
//! for it misses no later event. Hosts that join later wait for the recorder before they begin.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use efa_capture::Interface;
use efa_shm::{CaptureScope, Fabric, FabricError, Host, HostStatus, Recorder};
use efa_wire::address::Gid;

use super::recorded_device::RecordedDevice;
use efa_commands::Failure;
use efa_options::capture_output::{Filter, RecordingTotals, Store};

/// Maximum time for devices to begin recording; a stopped process never does.
const PATIENCE: Duration = Duration::from_secs(3);

/// The interval of checks whether they have begun.
const PAUSE: Duration = Duration::from_millis(10);

/// The reason why a recording fails.
pub(crate) enum RecordingError {
    Output(io::Error),
    Fabric(Failure),
}

impl From<Failure> for RecordingError {
    fn from(failure: Failure) -> Self {
        RecordingError::Fabric(failure)
    }
}

impl From<FabricError> for RecordingError {
    fn from(error: FabricError) -> Self {
        RecordingError::Fabric(error.into())
    }
}

impl From<io::Error> for RecordingError {
    fn from(error: io::Error) -> Self {
        RecordingError::Fabric(error.into())
    }
}

/// A recording in progress.
pub(crate) struct Recording {
    fabric: Fabric,
    /// Makes new hosts wait for this process.
    _recorder: Recorder,
    store: Store,
    snaplen: u32,
    hosts: HashMap<Gid, (Host, RecordedDevice)>,
}

impl Recording {
    /// Prepares to record the first `snaplen` bytes of the frames that the filter accepts.
    pub(crate) fn begin(
        fabric: &str,
        mut store: Store,
        snaplen: u32,
        filter: Filter,
    ) -> Result<Recording, Failure> {
        let fabric = Fabric::open(fabric)?;
        store.set_filter(filter);
        Ok(Recording {
            _recorder: fabric.announce_recorder()?,
            fabric,
            store,
            snaplen,
            hosts: HashMap::new(),
        })
    }

    /// From now on, records the frames that this filter accepts.
    pub(crate) fn set_filter(&mut self, filter: Filter) {
        self.store.set_filter(filter);
    }

    /// The declared interfaces: all hosts so far, including removed ones.
    pub(crate) fn interfaces(&self) -> &[Interface] {
        self.store.interfaces()
    }

    /// Begins the capture as soon as all devices record. Returns the processes whose devices do not
    /// start within [`PATIENCE`].
    pub(crate) fn start(&mut self) -> Result<Vec<i32>, RecordingError> {
        let started = Instant::now();
        loop {
            let hosts = self.fabric.hosts()?;
            self.join_new(&hosts)?;
            let mut missing = Vec::new();
            for (host, _) in self.hosts.values() {
                missing.extend(host.devices_not_recording()?);
            }
            if missing.is_empty() || started.elapsed() > PATIENCE {
                // A reader at the other end of a pipe waits for this.
                self.store.flush().map_err(RecordingError::Output)?;
                return Ok(missing);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Follows the fabric's changes, and moves the recorded frames to the capture.
    pub(crate) fn turn(&mut self) -> Result<(), RecordingError> {
        let hosts = self.fabric.hosts()?;
        self.join_new(&hosts)?;
        for (host, recorded_device) in self.hosts.values_mut() {
            recorded_device.turn(host, &mut self.store)?;
        }
        self.leave_deserted(&hosts)?;
        self.store.turn().map_err(RecordingError::Output)
    }

    fn join_new(&mut self, hosts: &[HostStatus]) -> Result<(), RecordingError> {
        // Devices of other machines are recorded there.
        let here = hosts.iter().filter(|status| status.machine.is_none());
        for status in here.filter(|status| !is_deserted(status)) {
            if self.hosts.contains_key(&status.gid) {
                continue;
            }
            let queue_pairs = 1;
            let host = self
                .fabric
                .enter_device(&status.name, Some(status.gid), queue_pairs)?;
            let interface = Interface::new(
                status.name.to_string(),
                status.profile.clone().unwrap_or_default(),
                status.gid,
            );
            let id = self
                .store
                .declare(&interface)
                .map_err(RecordingError::Output)?;
            let recorded_device =
                RecordedDevice::begin(&host, CaptureScope::Host, interface, id, self.snaplen)?;
            self.hosts.insert(status.gid, (host, recorded_device));
        }
        Ok(())
    }

    /// Leaves hosts without other participants, so that they end.
    fn leave_deserted(&mut self, hosts: &[HostStatus]) -> Result<(), RecordingError> {
        for status in hosts.iter().filter(|status| is_deserted(status)) {
            if let Some((_, recorded_device)) = self.hosts.remove(&status.gid) {
                recorded_device.finish(&mut self.store)?;
            }
        }
        Ok(())
    }

    /// Ends the capture, and returns its totals.
    pub(crate) fn end(mut self) -> Result<RecordingTotals, RecordingError> {
        for (_, (_, recorded_device)) in std::mem::take(&mut self.hosts) {
            recorded_device.finish(&mut self.store)?;
        }
        self.store.finish().map_err(RecordingError::Output)
    }
}

/// Whether this process is the only participant of the host.
fn is_deserted(host: &HostStatus) -> bool {
    let own = std::process::id() as i32;
    host.participants
        .iter()
        .all(|participant| participant.pid == own)
}
