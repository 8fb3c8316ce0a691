//! Splitting a transfer between local and remote memory into RDMA requests.
//!
//! A request ends where a piece of either side's memory ends, and at the size limit of the device
//! or the settings.

use crate::endpoint::api::operation::IoVec;
use crate::nic::{LocalKey, RemoteKey, UserSlice};
use crate::wire::RmaIovs;

use super::iov::parts;

/// The memory of one RDMA request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RdmaPart {
    pub(crate) local: UserSlice,
    pub(crate) local_key: LocalKey,
    pub(crate) remote_address: u64,
    pub(crate) remote_key: RemoteKey,
}

/// The next request of a transfer between `local` and `remote`, from byte `offset` to byte `end`,
/// of at most `limit` bytes.
pub(crate) fn next_part(
    local: &[IoVec],
    remote: &RmaIovs,
    offset: u64,
    end: u64,
    limit: usize,
) -> Option<RdmaPart> {
    let target = remote.part_at(offset)?;
    let length = (end.checked_sub(offset)?)
        .min(target.len())
        .min(limit as u64);
    let piece = parts(local, offset, length).next()?;
    Some(RdmaPart {
        local: piece.memory,
        local_key: piece.region.map(|region| region.local_key)?,
        remote_address: target.addr(),
        remote_key: RemoteKey(target.key()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::Region;
    use crate::wire::RmaIov;

    fn local(lengths: &[usize]) -> Vec<IoVec> {
        let region = Region {
            local_key: LocalKey(5),
            remote_key: RemoteKey(6),
        };
        lengths
            .iter()
            .enumerate()
            .map(|(index, length)| IoVec {
                memory: UserSlice::new(1000 * (index as u64 + 1), *length),
                region: Some(region),
            })
            .collect()
    }

    #[test]
    fn parts_end_at_either_side_or_limit() {
        let local = local(&[100, 50]);
        let remote = RmaIovs::first_of([
            RmaIov::new(7000, 30, 1),
            RmaIov::new(0, 0, 2),
            RmaIov::new(9000, 120, 3),
        ]);
        let mut offset = 0;
        let mut seen = Vec::new();
        while let Some(part) = next_part(&local, &remote, offset, 140, 60) {
            seen.push((
                part.local.address,
                part.local.length,
                part.remote_address,
                part.remote_key.0,
            ));
            offset += part.local.length as u64;
            if offset == 140 {
                break;
            }
        }
        assert_eq!(
            seen,
            [
                (1000, 30, 7000, 1),
                (1030, 60, 9000, 3),
                (1090, 10, 9060, 3),
                (2000, 40, 9070, 3),
            ]
        );
        assert!(next_part(&local, &remote, 150, 200, 60).is_none());
    }
}
