//! Rings whose receivers are dead.

use super::out_ring::Pending;
use super::state::Outbound;
use crate::transport::record::Answer;

/// Rings whose receivers are dead or refuse them, by their places among the rings, which stay
/// theirs until they are given up.
#[must_use]
pub(crate) struct DeadRings {
    pub(super) rings: Vec<usize>,
    /// Whether all rings were looked at.
    all: bool,
}

impl DeadRings {
    pub(crate) fn is_empty(&self) -> bool {
        self.rings.is_empty()
    }
}

impl Outbound {
    /// Looks for rings whose receiver is dead or refuses them: only among those where answers are
    /// waited for and none came since the last look; and among all of them if any were added since
    /// then, so that those of the dead do not add up.
    pub(crate) fn find_dead(&mut self) -> DeadRings {
        let all = std::mem::take(&mut self.routes.has_grown);
        let mut rings = Vec::new();
        for (index, ring) in &mut self.rings {
            let progressed = std::mem::take(&mut ring.progressed);
            if (all || ring.deferred > 0 || (ring.listed && !progressed))
                && (ring.producer.is_refused() || !ring.peer.is_alive())
            {
                rings.push(index);
            }
        }
        DeadRings { rings, all }
    }

    /// Gives these rings up, and ends the requests in them. If all were looked at, gives up the
    /// tables of hosts that are gone, too.
    pub(crate) fn abandon_dead(&mut self, dead: DeadRings) {
        for index in dead.rings {
            self.abandon(index);
        }
        if dead.all {
            self.routes.forget_gone_hosts();
        }
    }

    pub(super) fn abandon(&mut self, index: usize) {
        // A process that is gone has no queue pairs: the answer that its host's device would give.
        let gone = self.routes.nobody();
        self.waiting.retain(|other| *other != index);
        let ring = self.rings.remove(index);
        self.routes.forget_ring(ring.peer.address());
        let Outbound {
            completed,
            read_data,
            deferred,
            others,
            ..
        } = self;
        let extracted = deferred.extract_if(|(ring, _), _| *ring == index);
        let mut lost_requests: Vec<_> = extracted
            .map(|((_, number), pending)| (number, pending))
            .collect();
        lost_requests.sort_unstable_by_key(|(number, _)| *number);
        let mut fail = |pending| match pending {
            Pending::Request(token) => completed.push_back((token, Answer::Status(gone))),
            Pending::ReadData(pull) => read_data.push((pull, gone)),
            // Below, once per request and not once per part.
            Pending::Bulk(_) | Pending::Outcome | Pending::Datagram => {}
        };
        lost_requests
            .into_iter()
            .for_each(|(_, pending)| fail(pending));
        ring.producer
            .abandon(|pending, number, answer| match answer {
                // The peer that would send the outcome is gone.
                None | Some(Answer::Deferred) => fail(pending),
                Some(answer) => others.push((number, pending, answer)),
            });
        self.take_others(index);
        let Outbound {
            bulks, completed, ..
        } = self;
        let lost: Vec<_> = bulks
            .iter()
            .filter(|(_, bulk)| bulk.ring == index)
            .map(|(name, _)| name)
            .collect();
        for name in lost {
            if let Some(bulk) = bulks.remove(name) {
                completed.push_back((bulk.token, Answer::Status(gone)));
            }
        }
    }
}
