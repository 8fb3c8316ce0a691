//! Rules in the fabrics of several machines, and how bridges exchange the armed rules.
//!
//! A rule is armed on the machine of the command, and as a copy on each connected machine. Each
//! event happens on one machine and is matched with the rule there, so each machine counts its own
//! events.

use efa_core::address::Gid;

use crate::error::FabricError;
use crate::fabric::board::{ArmedFault, FaultBoard};
use crate::fabric::directory::Fabric;
use crate::fabric::paths::table_path;
use crate::identity::qpn::HostTable;
use efa_device_model::fault::{Fault, FaultId};

/// A rule that was armed on this machine and concerns all machines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CarriedFault {
    /// Its name here.
    pub id: FaultId,
    /// The rule, which devices of each machine apply.
    pub fault: Fault,
    /// The number of orders to release all frames that it holds.
    pub releases: u64,
}

impl Fabric {
    /// Changes whenever a rule was armed, disarmed or released; 0 if none ever was.
    pub fn fault_generation(&self) -> u64 {
        match FaultBoard::open_existing(self.directory()) {
            Ok(Some(board)) => board.generation(),
            _ => 0,
        }
    }

    /// The rules that were armed on this machine, without one-time actions, and their
    /// [generation](Fabric::fault_generation).
    pub fn faults_of_this_machine(&self) -> Result<(u64, Vec<CarriedFault>), FabricError> {
        self.with_existing_registry(|_| {
            let Some(board) = FaultBoard::open_existing(self.directory())? else {
                return Ok((0, Vec::new()));
            };
            let generation = board.generation();
            let is_own = |armed: &ArmedFault| !armed.owner.is_some_and(|gid| self.is_remote(gid));
            let lasts =
                |armed: &ArmedFault| armed.fault.when.is_some() || armed.fault.then.is_lasting();
            let carried = board
                .list()
                .into_iter()
                .filter(|armed| is_own(armed) && lasts(armed))
                .map(|armed| CarriedFault {
                    id: armed.id,
                    releases: board.releases(armed.id),
                    fault: armed.fault,
                });
            Ok((generation, carried.collect()))
        })
    }

    /// Releases all frames that a rule holds.
    pub(crate) fn release_fault(&self, id: FaultId) -> Result<(), FabricError> {
        self.with_existing_registry(|_| {
            if let Some(board) = FaultBoard::open_existing(self.directory())? {
                board.release(id);
            }
            Ok(())
        })
    }

    fn is_remote(&self, gid: Gid) -> bool {
        let table = HostTable::open(&table_path(&self.host_directory(gid)), gid);
        table.is_ok_and(|table| table.is_some_and(|table| table.is_remote()))
    }
}
