//! Processes that serve all present and future hosts of a fabric: they record them, or announce
//! them to other machines.
//!
//! A recorder makes each host's devices record ([`Host::request_capture`](crate::Host)), but it
//! detects new hosts by polling. Because of its lock in the fabric's directory, a process that
//! makes a host waits until the recorder has found it ([`Fabric::wait_for_recorders`]). The same
//! applies to a bridge, which marks a device when it was announced to all machines
//! ([`BridgeRegistration::mark_known`], [`Fabric::wait_for_bridges`]).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use efa_core::address::Gid;

use super::directory::Fabric;
use super::host::Host;
use super::recorder_locks::{bridges_directory, lock_in, locks, process, recorders_directory};
use crate::error::FabricError;
use crate::process::fork::HomeProcess;
use crate::process::lock::OwnLock;

/// The interval of checks whether a device is attended.
const PAUSE: Duration = Duration::from_millis(5);

/// Shows new hosts of the fabric that this process is going to record them, as long as it is alive.
#[derive(Debug)]
pub struct Recorder {
    fabric: Fabric,
    /// `None` only while dropping.
    lock: Option<OwnLock>,
    home: HomeProcess,
}

impl Fabric {
    /// Announces the caller as a recorder of all hosts.
    pub fn announce_recorder(&self) -> Result<Recorder, FabricError> {
        self.with_registry(|_| {
            Ok(Recorder {
                fabric: self.clone(),
                lock: Some(lock_in(&recorders_directory(self.directory()))?.1),
                home: HomeProcess::current(),
            })
        })
    }

    /// Announces the caller as a bridge, which announces all hosts to other machines.
    pub fn announce_bridge(&self) -> Result<BridgeRegistration, FabricError> {
        self.with_registry(|_| self.announce())
    }

    /// The same if it is the only one.
    pub fn announce_only_bridge(&self) -> Result<Option<BridgeRegistration>, FabricError> {
        self.with_registry(|_| {
            let mut others = locks(&bridges_directory(self.directory()));
            match others.any(|lock| process(&lock).is_some()) {
                true => Ok(None),
                false => self.announce().map(Some),
            }
        })
    }

    /// The registry is locked.
    fn announce(&self) -> Result<BridgeRegistration, FabricError> {
        let (number, lock) = lock_in(&bridges_directory(self.directory()))?;
        Ok(BridgeRegistration {
            fabric: self.clone(),
            number,
            lock: Some(lock),
            home: HomeProcess::current(),
        })
    }

    /// Waits until the processes that record the fabric (see [`Recorder`]) record these devices of
    /// it too, so that a program that then opens a device misses none of its frames. Returns the
    /// first device that a recorder has not begun to record within `patience`: the device's process
    /// may be stopped.
    pub fn wait_for_recorders<'a>(
        &self,
        devices: impl IntoIterator<Item = &'a Host>,
        patience: Duration,
    ) -> Result<Option<&'a Host>, FabricError> {
        for device in devices {
            let started = Instant::now();
            loop {
                let mut missing = self.recorders()?;
                // Hosts that join later cannot be missed either.
                if missing.is_empty() {
                    return Ok(None);
                }
                let recording = device.recording_processes()?;
                missing.retain(|pid| !recording.contains(pid));
                if missing.is_empty() {
                    break;
                }
                if started.elapsed() > patience {
                    return Ok(Some(device));
                }
                std::thread::sleep(PAUSE);
            }
        }
        Ok(None)
    }

    /// Waits until the bridges of this machine (see [`BridgeRegistration`]) have announced these
    /// devices and the armed rules to other machines, so that hosts there can answer the devices.
    /// Returns the first device that a bridge has not announced within `patience`.
    pub fn wait_for_bridges<'a>(
        &self,
        devices: impl IntoIterator<Item = &'a Host>,
        patience: Duration,
    ) -> Result<Option<&'a Host>, FabricError> {
        let faults = self.fault_generation();
        let mut bridges = self.bridges()?;
        for device in devices {
            let started = Instant::now();
            let is_missing = |bridge: &String| {
                known(device.directory(), bridge).is_none_or(|known| known < faults)
            };
            while bridges.iter().any(is_missing) {
                if started.elapsed() > patience {
                    return Ok(Some(device));
                }
                std::thread::sleep(PAUSE);
                // A bridge that has ended meanwhile is not waited for.
                bridges = self.bridges()?;
            }
        }
        Ok(None)
    }

    /// The numbers of the live bridges.
    fn bridges(&self) -> Result<Vec<String>, FabricError> {
        self.with_lock(|_| {
            let living = locks(&bridges_directory(self.directory()))
                .filter(|lock| process(lock).is_some())
                .filter_map(|lock| Some(lock.file_stem()?.to_str()?.to_owned()));
            Ok(living.collect())
        })
    }

    /// The live recorders, as processes in the pid namespace of the caller (0 if one has no number
    /// there).
    fn recorders(&self) -> Result<Vec<i32>, FabricError> {
        let processes = |_: &Path| {
            Ok(locks(&recorders_directory(self.directory())).filter_map(|lock| process(&lock)))
        };
        Ok(self.with_lock(processes)?.collect())
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        leave(&self.fabric, self.home, &mut self.lock);
    }
}

/// Shows new hosts of the fabric that this process will announce them to other machines, for as
/// long as it is alive.
#[derive(Debug)]
pub struct BridgeRegistration {
    fabric: Fabric,
    number: u32,
    /// `None` only while dropping.
    lock: Option<OwnLock>,
    home: HomeProcess,
}

impl BridgeRegistration {
    /// Marks that the device, and the rules of this [generation](Fabric::fault_generation), were
    /// announced to all machines to which this bridge is connected.
    pub fn mark_known(&self, gid: Gid, faults: u64) {
        // A removed device needs no mark.
        let path = known_path(&self.fabric.host_directory(gid), &self.number.to_string());
        let _ = std::fs::write(path, faults.to_string());
    }
}

impl Drop for BridgeRegistration {
    fn drop(&mut self) {
        leave(&self.fabric, self.home, &mut self.lock);
    }
}

/// The generation of rules on other machines, according to the bridge with this number, if the
/// device was announced to them. `None` if it was not, or while the file is being written.
fn known(host: &Path, bridge: &str) -> Option<u64> {
    let text = std::fs::read_to_string(known_path(host, bridge)).ok()?;
    text.parse().ok()
}

/// The file in which the bridge with this number records that a device was announced to other
/// machines.
fn known_path(host: &Path, bridge: &str) -> PathBuf {
    host.join(format!("known.{bridge}"))
}

/// Releases the lock of this process.
fn leave(fabric: &Fabric, home: HomeProcess, lock: &mut Option<OwnLock>) {
    if !home.is_current() {
        return;
    }
    if let Some(lock) = lock.take() {
        let _ = std::fs::remove_file(lock.path());
    }
    // Removes the fabric if it is empty. A failure is ignored, because the next change of the
    // registry tries again.
    fabric.sweep();
}
