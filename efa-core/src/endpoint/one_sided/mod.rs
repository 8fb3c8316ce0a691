//! What peers do with our memory: what they may access, the arithmetic of their atomics, and the answers
//! that wait to be sent.

pub(crate) mod arithmetic;
mod exposed;
mod soft_float;

use slab::Slab;

use crate::endpoint::base::ids::PeerId;
use crate::wire::RecvId;

pub(crate) use exposed::{Exposed, Withdrawn};

/// The responder's side of one-sided operations.
#[derive(Default)]
pub(crate) struct OneSided {
    /// What peers may access.
    pub(crate) exposed: Exposed,
    responses: Slab<AtomicResponse>,
    /// Memory for the values of one atomic.
    scratch: Vec<u8>,
}

/// The old values of an atomic on their way to its requester, for which there was no packet buffer.
pub(crate) struct AtomicResponse {
    pub(crate) peer: PeerId,
    pub(crate) recv_id: RecvId,
    pub(crate) values: Box<[u8]>,
}

impl OneSided {
    /// Memory for the values of one atomic, to be given back with [`OneSided::put_scratch`].
    pub(crate) fn take_scratch(&mut self) -> Vec<u8> {
        let mut scratch = core::mem::take(&mut self.scratch);
        scratch.clear();
        scratch
    }

    /// Takes memory of [`OneSided::take_scratch`] back.
    pub(crate) fn put_scratch(&mut self, scratch: Vec<u8>) {
        self.scratch = scratch;
    }

    /// Keeps old values until there is a packet buffer for them. Returns the key.
    pub(crate) fn keep_response(&mut self, response: AtomicResponse) -> u32 {
        self.responses.insert(response) as u32
    }

    /// Takes old values out. What is put back next with [`OneSided::keep_response`] has the same key.
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
