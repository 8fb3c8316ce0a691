//! Withdraws the memory of requests from targets that copy from or to it.

use efa_device_model::device::Device;
use efa_device_model::link::{RequestHeader, Token};

use super::bulk::{BulkName, BulkStage};
use super::state::Outbound;
use efa_lock_free::ring::Position;

/// Requests whose memory was withdrawn from their targets: either permanently
/// ([`Outbound::keep_back`]), or until [`Outbound::give_back`].
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct WithdrawnRequests(Vec<(BulkName, Position)>);

impl Outbound {
    /// Withdraws the memory of requests from targets that access it directly: of the chosen
    /// requests, and of those whose memory is not registered any more. After this returns `Some`,
    /// no target accesses that memory. Returns `None` if a target is copying right now; then the
    /// requests continue unchanged.
    pub(crate) fn try_take_back(
        &mut self,
        device: &Device,
        chosen: impl Fn(Token, &RequestHeader) -> bool,
    ) -> Option<WithdrawnRequests> {
        let mut taken = WithdrawnRequests::default();
        for (name, bulk) in self.bulks.iter() {
            let BulkStage::Direct(position) = bulk.stage else {
                continue;
            };
            if !chosen(bulk.token, &bulk.header) && device.local_memory(bulk.token).is_some() {
                continue;
            }
            let ring = &self.rings[bulk.ring];
            if !ring.producer.try_withdraw(position) && ring.peer.is_alive() {
                self.give_back(taken);
                return None;
            }
            taken.0.push((name, position));
        }
        Some(taken)
    }

    /// Returns withdrawn memory to its targets.
    pub(crate) fn give_back(&self, taken: WithdrawnRequests) {
        for (name, position) in taken.0 {
            if let Some(bulk) = self.bulks.get(name) {
                self.rings[bulk.ring].producer.reopen(position);
            }
        }
    }

    /// Ends the requests with withdrawn memory when their answers arrive.
    pub(crate) fn keep_back(&mut self, taken: WithdrawnRequests) {
        for (name, _) in taken.0 {
            if let Some(bulk) = self.bulks.get_mut(name) {
                bulk.stage = BulkStage::TakenBack;
            }
        }
    }
}
