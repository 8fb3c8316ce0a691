//! Commands of people and rules to a whole fabric.

use std::sync::Arc;

use efa_core::address::Gid;

use crate::error::FabricError;
use crate::fabric::board::{ArmedFault, FaultBoard};
use crate::fabric::directory::Fabric;
use crate::fabric::host::Host;
use crate::fabric::participants::wake_all;
use crate::fabric::paths::table_path;
use crate::fabric::status::HostStatus;
use crate::identity::qpn::HostTable;
use crate::identity::statistics;
use efa_device_model::device::QueueError;
use efa_device_model::fault::{Action, Fault, FaultId, Faults, HostName, PortSpeed, Trigger};

impl Fabric {
    pub(super) fn board(&self) -> Result<Arc<FaultBoard>, FabricError> {
        self.with_lock(|_| FaultBoard::open(self.directory()).map(Arc::new))
    }

    /// Arms a rule until it is disarmed or the fabric ends, and carries out its immediate effects.
    /// Devices see it with the next frame.
    pub fn arm(&self, fault: &Fault) -> Result<FaultId, FabricError> {
        self.check_inhabited()?;
        self.arm_for(fault, None)
    }

    fn check_inhabited(&self) -> Result<(), FabricError> {
        match self.hosts()?.is_empty() {
            false => Ok(()),
            true => Err(FabricError::NoHosts {
                fabric: self.name().to_owned(),
            }),
        }
    }

    fn arm_for(&self, fault: &Fault, owner: Option<&Host>) -> Result<FaultId, FabricError> {
        let (id, triggers, board) = self.with_registry(|_| {
            let board = FaultBoard::open(self.directory())?;
            let id = board.arm(fault, owner.map(Host::address))?;
            let mut faults = Faults::default();
            for armed in board.list() {
                faults.arm(armed.id, armed.fault);
            }
            let triggers = faults.begin(id, &board);
            Ok((id, triggers, board))
        })?;
        for trigger in &triggers {
            if let Err(error) = self.execute(trigger, &board) {
                board.disarm(id);
                return Err(error);
            }
        }
        Ok(id)
    }

    /// Carries out an action once: release, cut, heal, kill, ... A cut, a port without a link and
    /// the speed of a link stay in force until they are ended or disarmed.
    pub fn act(&self, action: Action) -> Result<(), FabricError> {
        let id = self.arm(&Fault::at_once(action.clone()))?;
        if !action.is_lasting() {
            self.disarm(|armed| armed.id == id)?;
        }
        // Ends the matching manual actions. A rule may put its action in force again.
        self.disarm(|armed| {
            armed.id != id && action.ends(&armed.fault.then) && armed.fault.when.is_none()
        })?;
        if let Action::PortDown(name)
        | Action::PortUp(name)
        | Action::PortSpeed(PortSpeed { host: name, .. }) = &action
        {
            // Wakes the programs of the device, so that sleeping ones detect the change.
            for device in self.find_devices(name)? {
                wake_all(&self.host_directory(device.gid), device.gid)?;
            }
        }
        Ok(())
    }

    /// The armed rules, in the order in which they were armed.
    pub fn armed(&self) -> Result<Vec<ArmedFault>, FabricError> {
        self.with_existing_registry(|_| {
            let board = FaultBoard::open_existing(self.directory())?;
            Ok(board.map(|board| board.list()).unwrap_or_default())
        })
    }

    /// Disarms the rules that `which` selects and releases all frames that they hold. Returns the
    /// number of rules.
    pub fn disarm(&self, which: impl Fn(&ArmedFault) -> bool) -> Result<usize, FabricError> {
        self.with_existing_registry(|_| {
            let Some(board) = FaultBoard::open_existing(self.directory())? else {
                return Ok(0);
            };
            let list = board.list();
            let chosen: Vec<_> = list.iter().filter(|armed| which(armed)).collect();
            for armed in &chosen {
                board.disarm(armed.id);
            }
            Ok(chosen.len())
        })
    }

    pub(super) fn execute(&self, trigger: &Trigger, board: &FaultBoard) -> Result<(), FabricError> {
        match trigger {
            Trigger::Release(faults) => {
                for fault in faults {
                    board.release(*fault);
                }
                Ok(())
            }
            Trigger::Kill(host) => self.kill(host),
            Trigger::Remove(host) => self.plug(host, HostTable::remove),
            Trigger::Restore(host) => self.plug(host, HostTable::restore),
            Trigger::Queues(host, error) => self.stage(host, *error),
        }
    }

    /// The devices with a name or GID, or all devices of the host with that name. There is at least
    /// one.
    pub fn find_devices(&self, name: &HostName) -> Result<Vec<HostStatus>, FabricError> {
        let mut found = self.hosts()?;
        found.retain(|status| {
            name.is(status.gid, &|gid: Gid, name: &str| {
                status.gid == gid && status.name.is_meant_by(name)
            })
        });
        if found.is_empty() {
            return Err(FabricError::NoSuchHost {
                fabric: self.name().to_owned(),
                host: name.to_string(),
            });
        }
        Ok(found)
    }

    /// As [`Fabric::find_devices`]; they have to be this machine's.
    fn find_own_devices(&self, name: &HostName) -> Result<Vec<HostStatus>, FabricError> {
        let mut found = self.find_devices(name)?;
        match found.iter_mut().find_map(|device| device.machine.take()) {
            None => Ok(found),
            Some(machine) => Err(FabricError::Elsewhere {
                host: name.to_string(),
                machine,
            }),
        }
    }

    /// Removes or restores a device, or all devices of a host.
    fn plug(&self, name: &HostName, change: fn(&HostTable)) -> Result<(), FabricError> {
        for device in self.find_own_devices(name)? {
            let directory = self.host_directory(device.gid);
            if let Some(table) = HostTable::open(&table_path(&directory), device.gid)? {
                change(&table);
                wake_all(&directory, device.gid)?;
            }
        }
        Ok(())
    }

    /// Stages an error of queues of a device, or of all of a host's.
    fn stage(&self, name: &HostName, error: QueueError) -> Result<(), FabricError> {
        for device in self.find_own_devices(name)? {
            let directory = self.host_directory(device.gid);
            self.with_lock(|_| {
                let table = HostTable::open(&table_path(&directory), device.gid)?;
                if let Some(table) = table {
                    table.order(statistics::order_of_error(error));
                }
                Ok(())
            })?;
            wake_all(&directory, device.gid)?;
        }
        Ok(())
    }

    /// Kills the processes that have opened a device, or any of a host's.
    fn kill(&self, name: &HostName) -> Result<(), FabricError> {
        let devices = self.find_own_devices(name)?;
        let own = std::process::id() as i32;
        let participants = devices.iter().flat_map(|device| &device.participants);
        let mut victims: Vec<_> = participants
            .filter(|participant| participant.has_device && participant.pid > 0)
            .map(|participant| participant.pid)
            .collect();
        victims.sort_unstable();
        victims.dedup();
        // This process last: afterwards it cannot kill others.
        victims.sort_by_key(|pid| *pid == own);
        for pid in victims {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                // A process that ended meanwhile counts as killed.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        Ok(())
    }
}

impl Host {
    /// Arms a rule for as long as this participation lasts; see [`Fabric::arm`].
    pub fn arm(&self, fault: &Fault) -> Result<FaultId, FabricError> {
        self.fabric().arm_for(fault, Some(self))
    }
}
