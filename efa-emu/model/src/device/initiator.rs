//! State of the initiator: requests in flight, queue pairs with work, and retries.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use efa_core::address::{Ahn, Qpn};

use super::backlog::Backlogs;
use super::flight::{FlightTable, InFlightRequest, RequestPlace};
use crate::link::{Link, LinkBusy, Operation, RequestHeader, Token};

#[derive(Default)]
pub(super) struct Initiator {
    pub(super) flight: FlightTable,
    /// Queue pairs with entries that the device has not read, in the order of their turns. Each is
    /// in the list at most once.
    pub(super) scheduled: Vec<Qpn>,
    /// Queue pairs whose clients write doorbells without a call.
    pub(super) watched: Vec<Qpn>,
    /// Queue pairs in the error state. Requests that are posted to them must be flushed.
    pub(super) failed: Vec<Qpn>,
    pub(super) backlogs: Backlogs,
    /// Tokens of the requests that wait after RNR, by the time of their retry.
    pub(super) timers: BinaryHeap<Reverse<(Duration, u64)>>,
}

impl Initiator {
    pub(super) fn prefetch(&self, token: Token) {
        self.flight.prefetch(token);
    }

    pub(super) fn watch(&mut self, qpn: Qpn, watched: bool) {
        self.watched.retain(|other| *other != qpn);
        if watched {
            self.watched.push(qpn);
        }
    }

    /// Removes a destroyed queue pair from the lists of queue pairs.
    pub(super) fn remove_qp(&mut self, qpn: Qpn) {
        self.watch(qpn, false);
        self.scheduled.retain(|other| *other != qpn);
    }

    /// Offers a request to the link again after the link or the responder has refused it.
    pub(super) fn offer(&mut self, index: u32, link: &mut impl Link) -> Result<(), LinkBusy> {
        let token = self.flight.token(index);
        let Some(request) = self.flight.get(index) else {
            return Ok(());
        };
        request.offer_other(token, link)
    }

    pub(super) fn set_place(&mut self, index: u32, place: RequestPlace) {
        if let Some(request) = self.flight.get_mut(index) {
            request.place = place;
        }
    }

    /// Records that a queue pair is in the error state.
    pub(super) fn note_failed(&mut self, qpn: Qpn) {
        if !self.failed.contains(&qpn) {
            self.failed.push(qpn);
        }
    }

    /// Records that a queue pair is no longer in the error state.
    pub(super) fn note_reset(&mut self, qpn: Qpn) {
        self.failed.retain(|other| *other != qpn);
    }

    /// Removes all requests of a queue pair, in no order.
    pub(super) fn take_requests(&mut self, qpn: Qpn) -> Vec<InFlightRequest> {
        self.backlogs
            .remove_if(&mut self.flight, |request| request.qpn == qpn);
        let indices: Vec<u32> = self
            .flight
            .iter()
            .filter(|(_, request)| request.qpn == qpn)
            .map(|(index, _)| index)
            .collect();
        indices
            .into_iter()
            .filter_map(|index| self.flight.remove(index))
            .collect()
    }

    /// Removes the oldest request that waits for a destination.
    pub(super) fn take_from_backlog(&mut self, ahn: Ahn) -> Option<InFlightRequest> {
        let index = self.backlogs.pop(ahn, &self.flight)?;
        self.flight.remove(index)
    }
}

impl InFlightRequest {
    /// Offers the request to the link.
    #[inline(always)]
    pub(super) fn offer(&self, token: Token, link: &mut impl Link) -> Result<(), LinkBusy> {
        match self.operation {
            // Separate, so that the compiler can rely on a send's header having no remote memory.
            Operation::Send => {
                let header = RequestHeader {
                    operation: Operation::Send,
                    remote: None,
                    ..self.header()
                };
                link.try_send(self.to, token, &header, self.local())
            }
            _ => self.offer_other(token, link),
        }
    }

    #[cold]
    pub(super) fn offer_other(&self, token: Token, link: &mut impl Link) -> Result<(), LinkBusy> {
        link.try_send(self.to, token, &self.header(), self.local())
    }
}
