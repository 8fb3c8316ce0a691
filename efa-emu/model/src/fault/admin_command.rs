//! The commands of an admin queue, as fault rules name them.

use serde::{Deserialize, Serialize};

/// A command of the admin queue of a device at PCI level, by its opcode (`efa_admin_aq_opcode` of
/// the kernel's driver).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum AdminCommand {
    /// Makes a queue pair.
    CreateQp = 1,
    /// Changes the state of a queue pair.
    ModifyQp = 2,
    /// Queries the state of a queue pair.
    QueryQp = 3,
    /// Ends a queue pair.
    DestroyQp = 4,
    /// Makes an address handle.
    CreateAh = 5,
    /// Ends an address handle.
    DestroyAh = 6,
    /// Registers memory.
    RegMr = 7,
    /// Ends a registration.
    DeregMr = 8,
    /// Makes a completion queue.
    CreateCq = 9,
    /// Ends a completion queue.
    DestroyCq = 10,
    /// Queries a feature.
    GetFeature = 11,
    /// Sets a feature.
    SetFeature = 12,
    /// Queries statistics.
    GetStats = 13,
    /// Makes a protection domain.
    AllocPd = 14,
    /// Ends a protection domain.
    DeallocPd = 15,
    /// Makes a user access region.
    AllocUar = 16,
    /// Ends a user access region.
    DeallocUar = 17,
    /// Makes an event queue.
    CreateEq = 18,
    /// Ends an event queue.
    DestroyEq = 19,
}
