//! Names of registered memory.

use serde::{Deserialize, Serialize};

/// An offset in memory that a step of the scenario registers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionOffset {
    /// The step's name.
    pub region: String,
    /// The offset in the region, in bytes.
    pub offset: usize,
}

impl RegionOffset {
    /// Returns the place in the region that begins at `region`.
    pub fn within(&self, region: Remote) -> Remote {
        Remote {
            address: region.address.wrapping_add(self.offset as u64),
            ..region
        }
    }
}

/// A place in a peer's registered memory, as its owner announced it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remote {
    /// Its first byte, as its owner names it.
    pub address: u64,
    /// Its key.
    pub key: u64,
}
