//! Messages of several packets with the same `msg_id`, and the destination of the packets after the
//! first one.

use hashbrown::HashTable;

use crate::wire::MsgId;

use super::matching::MessageKey;
use super::unexpected::PartKey;
use crate::endpoint::base::hash::SeededHasher;
use crate::endpoint::base::ids::{ClaimId, InboundId, PeerId};

/// The destination of a message's further packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Assembly {
    /// To the packets of an unexpected message.
    Unexpected { tagged: bool, key: MessageKey },
    /// To the packets of a message that the application claimed.
    Claimed(ClaimId),
    /// The waiting packets of a message that has its part of a multi-receive buffer and waits for
    /// room.
    Waiting(PartKey),
    /// A transfer.
    Transfer(InboundId),
}

/// Messages that expect further packets with the same `msg_id`.
pub(crate) struct Assemblies {
    table: HashTable<(PeerId, MsgId, Assembly)>,
    hasher: SeededHasher,
}

impl Assemblies {
    pub(crate) fn new(hasher: SeededHasher) -> Self {
        Assemblies {
            table: HashTable::new(),
            hasher,
        }
    }

    fn hash(&self, peer: PeerId, msg_id: MsgId) -> u64 {
        self.hasher.hash(peer.to_bits(), u64::from(msg_id.0))
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn get(&self, peer: PeerId, msg_id: MsgId) -> Option<Assembly> {
        self.table
            .find(self.hash(peer, msg_id), |(other, id, _)| {
                *other == peer && *id == msg_id
            })
            .map(|(.., assembly)| *assembly)
    }

    pub(crate) fn set(&mut self, peer: PeerId, msg_id: MsgId, assembly: Assembly) {
        let hash = self.hash(peer, msg_id);
        let hasher = self.hasher;
        match self
            .table
            .find_mut(hash, |(other, id, _)| *other == peer && *id == msg_id)
        {
            Some((.., current)) => *current = assembly,
            None => {
                self.table
                    .insert_unique(hash, (peer, msg_id, assembly), |(peer, id, _)| {
                        hasher.hash(peer.to_bits(), u64::from(id.0))
                    });
            }
        }
    }

    pub(crate) fn remove(&mut self, peer: PeerId, msg_id: MsgId) {
        let hash = self.hash(peer, msg_id);
        let entry = self
            .table
            .find_entry(hash, |(other, id, _)| *other == peer && *id == msg_id);
        if let Ok(entry) = entry {
            entry.remove();
        }
    }
}
