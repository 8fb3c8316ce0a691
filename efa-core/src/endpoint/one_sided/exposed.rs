//! Memory of the application that peers may name in their requests.

use hashbrown::HashMap;

use crate::nic::{Access, DeviceCaps, Domain, Nic, Region, UserSlice};
use crate::wire::RmaIovs;

use crate::endpoint::Endpoint;
use crate::endpoint::api::error::{EndpointError, Errno, Failure, ProviderError};
use crate::endpoint::api::operation::IoVec;
use crate::endpoint::base::ids::OutboundId;
use crate::endpoint::memory::iov::Iov;
use crate::endpoint::sending::outbound::BulkKey;

/// Registered memory, by remote key.
pub(crate) type Exposed = HashMap<u64, (UserSlice, Access, Region)>;

/// Whether `outer` covers the bytes from `address` on.
fn covers(outer: UserSlice, address: u64, length: u64) -> bool {
    let ends = (
        address.checked_add(length),
        outer.address.checked_add(outer.length as u64),
    );
    matches!(ends, (Some(end), Some(limit)) if address >= outer.address && end <= limit)
}

/// Whether two pieces of memory have a byte in common.
fn overlap(a: UserSlice, b: UserSlice) -> bool {
    let end = |memory: UserSlice| memory.address.saturating_add(memory.length as u64);
    a.address < end(b) && b.address < end(a)
}

/// Registers memory, and notes what peers may do with it. The device is asked for the access that it
/// can give by itself; the rest is given by emulation.
///
/// # Errors
/// The device refuses.
pub(crate) fn register(
    nic: &mut impl Domain,
    exposed: &mut Exposed,
    memory: UserSlice,
    access: Access,
) -> Result<Region, EndpointError> {
    let caps = nic.attributes().caps;
    let mut by_device = access;
    if !caps.contains(DeviceCaps::RDMA_READ) {
        by_device -= Access::REMOTE_READ;
    }
    if !caps.contains(DeviceCaps::RDMA_WRITE) {
        by_device -= Access::REMOTE_WRITE;
    }
    let region = nic.register(memory, by_device)?;
    exposed.insert(region.remote_key.0, (memory, access, region));
    Ok(region)
}

impl<N: Nic> Endpoint<N> {
    /// The local memory that a peer's request names, if the keys allow this access to all of it.
    pub(crate) fn exposed_memory(&self, pieces: &RmaIovs, access: Access) -> Option<Iov> {
        let mut found = [IoVec::new(UserSlice {
            address: 0,
            length: 0,
        }); crate::endpoint::IOV_LIMIT];
        let pieces = pieces.as_slice();
        for (piece, found) in pieces.iter().zip(&mut found) {
            let (memory, allowed, region) = self.exposed.get(&piece.key())?;
            if !covers(*memory, piece.addr(), piece.len()) || !allowed.contains(access) {
                return None;
            }
            *found = IoVec {
                memory: UserSlice {
                    address: piece.addr(),
                    length: usize::try_from(piece.len()).ok()?,
                },
                // Where the device would write, a region that it may only read is of no use.
                region: (access == Access::REMOTE_READ || allowed.contains(Access::LOCAL_WRITE))
                    .then_some(*region),
            };
        }
        Iov::new(&found[..pieces.len()]).ok()
    }

    /// Ends what peers are doing with a region whose exposure has ended: its memory may be another's
    /// as soon as it is deregistered.
    pub(crate) fn give_up_uses(&mut self, region: Region, memory: UserSlice) {
        if self.quota.pending() == 0 {
            return;
        }
        let is_exposed = |piece: UserSlice, access| {
            self.exposed.values().any(|(memory, allowed, _)| {
                allowed.contains(access) && covers(*memory, piece.address, piece.length as u64)
            })
        };
        let is_lost = |pieces: &Iov, access| {
            pieces.as_slice().iter().any(|piece| {
                overlap(piece.memory, memory)
                    && (piece.region == Some(region) || !is_exposed(piece.memory, access))
            })
        };
        let writes = self.receiving.transfers(|transfer| {
            transfer.ending.is_peers() && is_lost(&transfer.target, Access::REMOTE_WRITE)
        });
        let reads: Vec<OutboundId> = self
            .outbound
            .iter()
            .filter(|(_, outbound)| {
                outbound.report.is_none()
                    && outbound.bulk.is_some_and(|BulkKey(key)| {
                        is_lost(&self.bulks[key as usize].source, Access::REMOTE_READ)
                    })
            })
            .map(|(id, _)| id)
            .collect();
        let failure = Failure::new(Errno::EINVAL, ProviderError::RmaAddress);
        for id in writes {
            self.fail_inbound(id, failure);
        }
        for id in reads {
            self.fail_outbound(id, failure);
        }
    }
}
