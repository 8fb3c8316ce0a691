//! Peers' accesses to local memory: the exposed regions, the arithmetic of atomics, and responses
//! that wait to be sent.

pub(crate) mod arithmetic;
mod exposed;
mod soft_float;
mod values;

use slab::Slab;

use crate::endpoint::base::ids::PeerId;
use crate::wire::RecvId;

use values::AtomicValues;

pub(crate) use exposed::{ExposedRegions, WithdrawnRegion};

/// The responder's side of one-sided operations.
#[derive(Default)]
pub(crate) struct OneSided {
    /// The memory that peers may access.
    pub(crate) exposed: ExposedRegions,
    responses: Slab<AtomicResponse>,
    values: AtomicValues,
}

/// The old values for the requester of an atomic, which wait for a packet buffer.
pub(crate) struct AtomicResponse {
    pub(crate) peer: PeerId,
    pub(crate) recv_id: RecvId,
    pub(crate) values: Box<[u8]>,
}

impl OneSided {
    /// Stores a response until a packet buffer is available. Returns its key.
    pub(crate) fn keep_response(&mut self, response: AtomicResponse) -> u32 {
        self.responses.insert(response) as u32
    }

    /// Removes a response. The next [`OneSided::keep_response`] returns the same key.
    pub(crate) fn take_response(&mut self, key: u32) -> Option<AtomicResponse> {
        self.responses.try_remove(key as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::base::ids::Id;

    #[test]
    fn values_that_are_put_back_keep_their_key() {
        let mut one_sided = OneSided::default();
        let response = |number| AtomicResponse {
            peer: PeerId::new(number, 0),
            recv_id: RecvId(number),
            values: Box::new([]),
        };
        let keys = [1, 2].map(|number| one_sided.keep_response(response(number)));
        let taken = one_sided.take_response(keys[0]).unwrap();
        assert_eq!(one_sided.keep_response(taken), keys[0]);
        assert_eq!(one_sided.take_response(keys[1]).unwrap().recv_id, RecvId(2));
        assert!(one_sided.take_response(keys[1]).is_none());
    }
}
