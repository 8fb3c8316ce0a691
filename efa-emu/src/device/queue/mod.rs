//! Queues in the device's own binary formats, in memory that device and client share.
//!
//! A client may be the user-space half in [`crate::provider`] or a program that writes work requests
//! and reads completions by itself (libfabric's direct data path). Either way the contract is the
//! same: entries first, then the doorbell word (send and receive queues) or the entry's phase bit
//! (completion queue) with release ordering. All access is through atomics, so a client that breaks
//! the contract can confuse only itself.
//!
//! Counters are 16 bits wide and free running; a ring has at most 32768 entries, so that a full
//! ring and an empty one differ.

mod completion;
mod memory;
mod receive;
mod send;
mod work_request;

pub use completion::{CompletionEntry, CompletionRing, CqDoorbell, Received, Slot};
pub use memory::{Doorbell, RingMemory};
pub use receive::{ReceiveDescriptor, ReceiveRing};
pub use send::SendRing;
pub use work_request::{
    BadWorkRequest, Buffer, EntryHead, RemoteBuffer, WorkRequest, WqeOperation, WqeSize,
};

/// The longest ring that 16-bit counters allow.
const MAX_ENTRIES: u32 = 1 << 15;

/// Why a ring was not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RingError {
    /// A ring of this kind cannot have so many entries.
    #[error("a {ring} of {entries} is not possible: it is a power of two up to {MAX_ENTRIES}")]
    Depth {
        /// What the number is, such as `send queue depth`.
        ring: &'static str,
        /// The number of entries.
        entries: u32,
    },
    /// The system has no memory for it.
    #[error("there is no memory for the queue")]
    NoMemory,
}

/// Checks the number of entries of a ring, which may be 0.
fn check_entries(ring: &'static str, entries: u32) -> Result<(), RingError> {
    if (entries == 0 || entries.is_power_of_two()) && entries <= MAX_ENTRIES {
        Ok(())
    } else {
        Err(RingError::Depth { ring, entries })
    }
}
