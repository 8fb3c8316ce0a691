//! Registrations for a single operation.

use crate::endpoint::api::operation::IoVec;
use crate::nic::{Access, Domain, Nic, NicError, Region};
use crate::wire::{RmaIov, RmaIovs};

use super::iov::Iov;

/// Registrations that end with their operation.
pub(crate) type OwnRegions = Option<Box<[Region]>>;

/// The memory of an operation, all pieces registered.
pub(crate) struct Registered {
    pub(crate) pieces: Iov,
    pub(crate) own_regions: OwnRegions,
}

/// Registers the unregistered pieces. Returns the registrations that have to be ended with the
/// operation.
///
/// # Errors
/// The device refused. The pieces are unchanged; the returned registrations have to be ended.
pub(crate) fn register_pieces<N: Nic>(
    nic: &mut N,
    iov: &mut Iov,
    access: Access,
) -> Result<OwnRegions, (NicError, OwnRegions)> {
    let mut own = Vec::new();
    let lacking = |piece: &IoVec| piece.region.is_none() && piece.memory.length > 0;
    for piece in iov.as_slice().iter().filter(|piece| lacking(piece)) {
        match nic.lease(piece.memory, access) {
            Ok(region) => own.push(region),
            Err(error) => return Err((error, Some(own.into()))),
        }
    }
    // The pieces are changed last, because after a failure they are used without registrations.
    let pieces = iov.as_mut_slice().iter_mut().filter(|piece| lacking(piece));
    for (piece, region) in pieces.zip(&own) {
        piece.region = Some(*region);
    }
    Ok((!own.is_empty()).then(|| own.into()))
}

/// Ends registrations. Returns the errors.
pub(crate) fn deregister<N: Nic>(nic: &mut N, regions: OwnRegions) -> Vec<NicError> {
    let regions = regions.iter().flatten();
    regions
        .filter_map(|region| nic.end_lease(*region).err())
        .collect()
}

/// The memory that a peer is to read: all pieces that are not empty.
pub(crate) fn readable_pieces(iov: &Iov) -> RmaIovs {
    let with_bytes = iov
        .as_slice()
        .iter()
        .filter(|piece| piece.memory.length > 0);
    RmaIovs::first_of(with_bytes.map(|piece| {
        RmaIov::new(
            piece.memory.address,
            piece.memory.length as u64,
            piece.region.map_or(0, |region| region.remote_key.0),
        )
    }))
}
