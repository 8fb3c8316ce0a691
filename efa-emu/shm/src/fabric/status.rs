//! The state of a fabric's devices, for other processes.

use std::path::Path;

use efa_core::address::{Gid, Qpn};

use super::participants::participants;
use super::paths::{check_name, device_path, directories, profile_path, table_path};
use crate::error::FabricError;
use crate::identity::device_name::DeviceName;
use crate::identity::qpn::HostTable;
use efa_device_model::device::Statistics;

/// A device of a live host, as `efa-emu ps` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostStatus {
    /// The device's name, which contains the host's name.
    pub name: DeviceName,
    /// The address of the device in the fabric.
    pub gid: Gid,
    /// The name of the device's profile, as announced by the process that made the host
    /// ([`Fabric::enter_devices`](crate::Fabric::enter_devices)).
    pub profile: Option<String>,
    /// The live processes that participate in it, one entry per opened device and per `efa-emu
    /// run`.
    pub participants: Vec<ParticipantStatus>,
    /// The counters of its devices; see [`Host::statistics`](crate::Host::statistics).
    pub statistics: Statistics,
    /// The other machine of the device, if any. Its participant here is the process that represents
    /// it.
    pub machine: Option<String>,
}

/// One participation of a process in a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParticipantStatus {
    /// The process, in the pid namespace of the caller; 0 if it has no number there.
    pub pid: i32,
    /// Whether the process opened the device.
    pub has_device: bool,
    /// The queue pairs that it has created and not destroyed.
    pub queue_pairs: Vec<Qpn>,
}

/// Whose hosts are listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HostFilter {
    All,
    /// Hosts that are not on another machine.
    OfThisMachine,
}

/// Describes live hosts. The registry is locked, and dead participants were removed.
pub(crate) fn list(hosts: &Path, listed: HostFilter) -> Result<Vec<HostStatus>, FabricError> {
    let mut list = Vec::new();
    for (gid, directory) in directories(hosts)? {
        let Some(table) = HostTable::open(&table_path(&directory), gid)? else {
            continue;
        };
        if table.is_remote() && listed == HostFilter::OfThisMachine {
            continue;
        }
        let owned: Vec<_> = table.numbers().owned().collect();
        let participants = participants(&directory)?
            .into_iter()
            .map(|(id, pid)| ParticipantStatus {
                pid,
                has_device: device_path(&directory, id).exists(),
                queue_pairs: owned
                    .iter()
                    .filter(|_| !table.is_remote())
                    .filter(|(_, owner)| *owner == id)
                    .map(|(qpn, _)| *qpn)
                    .collect(),
            })
            .collect();
        list.push(HostStatus {
            name: table.name(),
            gid,
            profile: profile_of(&directory),
            participants,
            statistics: statistics_of(&table),
            machine: table.machine(),
        });
    }
    Ok(list)
}

/// Reads the statistics in a host's table, and requests newer ones from the host's devices.
pub(super) fn statistics_of(table: &HostTable) -> Statistics {
    let statistics = Statistics::from_values(&table.statistics());
    table.request_statistics();
    statistics
}

/// Reads the name of a host's profile. A file without a valid name counts as none.
fn profile_of(host: &Path) -> Option<String> {
    let name = std::fs::read_to_string(profile_path(host)).ok()?;
    check_name("profile", &name).ok().map(|()| name)
}
