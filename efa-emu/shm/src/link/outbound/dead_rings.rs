//! Rings whose receivers are dead.

use super::out_ring::Pending;
use super::state::Outbound;
use efa_lock_free::record::Answer;

/// Rings whose receivers are dead or refuse them, by their index, which does not change until they
/// are abandoned.
#[must_use]
pub(crate) struct DeadRings {
    pub(super) rings: Vec<usize>,
    /// Whether all rings were checked.
    all: bool,
}

impl DeadRings {
    pub(crate) fn is_empty(&self) -> bool {
        self.rings.is_empty()
    }
}

impl Outbound {
    /// Searches for rings whose receiver is dead or refuses them: only among rings with awaited
    /// answers and no answer since the last search; and among all of them if any were added since
    /// then, so that rings of dead processes do not accumulate.
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

    /// Abandons these rings, and ends the requests in them. If all rings were checked, also drops
    /// the tables of removed hosts.
    pub(crate) fn abandon_dead(&mut self, dead: DeadRings) {
        for index in dead.rings {
            self.abandon(index);
        }
        if dead.all {
            self.routes.forget_gone_hosts();
        }
    }

    pub(super) fn abandon(&mut self, index: usize) {
        // A process that has ended has no queue pairs: its host's device would answer the same.
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
                // The peer that would send the outcome has ended.
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
