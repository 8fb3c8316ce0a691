//! RDMA reads of a transfer. They are posted as the device has room, and complete in any order.

use crate::endpoint::api::operation::IoVec;
use crate::endpoint::memory::rdma::{RdmaPart, next_part};
use crate::endpoint::memory::registration::OwnRegions;
use crate::wire::RmaIovs;

/// How the rest of a transfer is read.
pub(crate) struct ReadPlan {
    /// The peer's memory.
    remote: RmaIovs,
    /// The next byte to read, and the end, from the start of the message.
    next: u64,
    end: u64,
    /// The number of reads that the device has.
    outstanding: u32,
    /// Whether the peer expects an EOR.
    pub(super) notifies_peer: bool,
    /// Registrations of the target.
    pub(super) own_regions: OwnRegions,
}

impl ReadPlan {
    /// Plans to read the bytes from `next` to `end` of a message that is in `remote`.
    pub(super) fn new(
        remote: RmaIovs,
        next: u64,
        end: u64,
        notifies_peer: bool,
        own_regions: OwnRegions,
    ) -> Self {
        ReadPlan {
            remote,
            next,
            end,
            outstanding: 0,
            notifies_peer,
            own_regions,
        }
    }

    /// Returns whether reads remain to be posted.
    pub(super) fn has_more(&self) -> bool {
        self.next < self.end
    }

    /// The next read into `target`, of at most `limit` bytes. `None` if either side's memory ends
    /// before the message.
    pub(super) fn next(&self, target: &[IoVec], limit: usize) -> Option<RdmaPart> {
        next_part(target, &self.remote, self.next, self.end, limit)
    }

    /// Records that the next read, of this many bytes, was posted.
    pub(super) fn posted(&mut self, length: u64) {
        self.next += length;
        self.outstanding += 1;
    }

    /// Records that the device has completed a read.
    pub(super) fn done(&mut self) {
        self.outstanding -= 1;
    }

    /// Returns whether the device still has reads.
    pub(super) fn is_outstanding(&self) -> bool {
        self.outstanding > 0
    }
}
