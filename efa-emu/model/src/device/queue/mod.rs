//! Queues in the device's own binary formats, in memory that device and client share.
//!
//! A client is the user-space half in [`crate::provider`], or a program that itself writes work
//! requests and reads completions (libfabric's direct data path). The contract is the same for
//! both: entries first, then the doorbell word (send and receive queues) or the entry's phase bit
//! (completion queue), with release ordering. All accesses are atomic, so a client that breaks the
//! contract harms only itself.
//!
//! Counters are 16 bits wide and do not wrap at the end of the ring. A ring has at most 32768
//! entries, so that a full ring and an empty one have different counters.

mod completion;
mod lent;
mod memory;
mod receive;
mod send;
mod work_request;

pub use completion::{CompletionEntry, CompletionRing, CompletionSlot, CqDoorbell, Received};
pub use lent::{CompletionSize, LentMemory};
pub use memory::{Doorbell, DoorbellPage, RingMemory, SharedPages};
pub use receive::{ReceiveDescriptor, ReceiveRing};
pub use send::SendRing;
pub use work_request::{
    BadWorkRequest, Buffer, EntryHead, RemoteBuffer, WorkRequest, WqeOperation, WqeSize,
};

pub use crate::profile::RequestIdSize;

/// The length of the longest ring that 16-bit counters allow.
const MAX_ENTRIES: u32 = 1 << 15;

/// The reason why a ring cannot be created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RingError {
    /// The number of entries is invalid for this ring.
    #[error("a {ring} of {entries} is not possible: it is a power of two up to {MAX_ENTRIES}")]
    Depth {
        /// The name of the number, such as `send queue depth`.
        ring: &'static str,
        /// The number of entries.
        entries: u32,
    },
    /// The lent memory is too short or misaligned.
    #[error("the memory that was lent for the queue is too short or not aligned")]
    Lent,
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
