//! The other machine's fault rules, armed in this fabric.

use efa_core::address::Gid;

use super::machine::RemoteMachine;
use crate::error::FabricError;
use crate::link::staged::CarriedFault;
use efa_device_model::fault::FaultId;

/// A fault rule of the other machine.
#[derive(Debug)]
pub(super) struct RuleCopy {
    /// The rule's id there.
    there: FaultId,
    /// The rule's id here.
    here: FaultId,
    /// The device whose proxy armed it. The rule ends with that proxy.
    owner: Gid,
    /// The number of release orders that were passed on.
    releases: u64,
}

impl RemoteMachine {
    /// Sets the rules that are armed on the machine. They also apply here as long as one of the
    /// machine's devices is a member of this fabric. Must be called after each change of devices.
    ///
    /// # Errors
    /// One error for each rule that cannot be armed.
    pub fn declare_faults(&mut self, faults: &[CarriedFault]) -> Vec<FabricError> {
        let mut errors = Vec::new();
        let is_there = |copy: &RuleCopy| faults.iter().any(|fault| fault.id == copy.there);
        let (deferred, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut self.copies)
            .into_iter()
            .partition(is_there);
        self.copies = deferred;
        if !gone.is_empty() {
            let is_gone = |id: FaultId| gone.iter().any(|copy| copy.here == id);
            errors.extend(self.fabric.disarm(|armed| is_gone(armed.id)).err());
        }
        for fault in faults {
            if let Some(copy) = self.copies.iter_mut().find(|copy| copy.there == fault.id) {
                if copy.releases < fault.releases {
                    copy.releases = fault.releases;
                    errors.extend(self.fabric.release_fault(copy.here).err());
                }
                continue;
            }
            let Some((_, device)) = self.devices.iter().next() else {
                break;
            };
            match device.arm(&fault.fault) {
                Ok(here) => self.copies.push(RuleCopy {
                    there: fault.id,
                    here,
                    owner: device.gid(),
                    releases: fault.releases,
                }),
                Err(error) => errors.push(error),
            }
        }
        errors
    }

    /// Removes the rules that a device's proxy has armed. They end with it.
    pub(super) fn forget_copies_of(&mut self, gid: Gid) {
        self.copies.retain(|copy| copy.owner != gid);
    }
}
