//! The destinations of an endpoint's completions.

use std::sync::Arc;

use efa_core::endpoint::{
    CompletionEntry, CompletionFlags, Errno, ErrorEntry, Event, Failure, PacketError, ProviderError,
};

use crate::ffi::host::log_warn;
use crate::ffi::result::Result;
use crate::ffi::{FI_ADDR_UNSPEC, fid};
use crate::state::addresses::Addresses;
use crate::state::collective_messages;
use crate::state::completions::Completions;
use crate::state::events::Events;
use crate::state::tables::Tables;

/// The context of operations without a further completion: those whose data was copied within the
/// call. It is not a valid memory address.
pub(crate) const INJECTED: u64 = u64::MAX;

/// Bindings of an enabled endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    /// The endpoint's pointer in C.
    pub(crate) fid: *const fid,
    /// The address vector, as an index of [`Tables::vectors`].
    pub(crate) vector: usize,
    /// The completion queues, as keys of [`Tables::queues`].
    pub(crate) transmit: Option<usize>,
    pub(crate) receive: Option<usize>,
    pub(crate) events: Option<Arc<Events>>,
    /// Completions name the sender (`FI_SOURCE`).
    pub(crate) names_source: bool,
    /// Some of its tagged messages belong to collective operations (`FI_COLLECTIVE`).
    pub(crate) collective: bool,
}

impl Route {
    /// The entries of the address vector.
    ///
    /// # Errors
    /// `FI_EINVAL` if the vector was closed.
    #[inline]
    pub(crate) fn addresses<'a>(&self, tables: &'a Tables) -> Result<&'a Addresses> {
        let addresses = tables.vectors.get(self.vector).and_then(Option::as_ref);
        addresses.ok_or(Errno::EINVAL)
    }

    /// Hands the end of an operation to the completion queue of its direction.
    #[inline(always)]
    pub(crate) fn report(
        &self,
        tables: &mut Tables,
        result: &std::result::Result<CompletionEntry, ErrorEntry>,
    ) {
        match result {
            Ok(entry) => self.succeeded(tables, entry),
            Err(entry) => self.failed(tables, *entry),
        }
    }

    #[inline(always)]
    fn succeeded(&self, tables: &mut Tables, entry: &CompletionEntry) {
        if self.collective && collective_messages::is_own(entry.context) {
            return tables.collective.push((entry.context, Ok(())));
        }
        let source = entry.source.filter(|_| self.names_source);
        let source = source.and_then(|peer| Some(self.addresses(tables).ok()?.address(peer)));
        if let Some(completions) = self.queue_of(tables, entry.flags) {
            let is_full = completions.add(entry, source.unwrap_or(FI_ADDR_UNSPEC));
            tables.may_be_full |= is_full;
        }
    }

    #[cold]
    fn failed(&self, tables: &mut Tables, entry: ErrorEntry) {
        if entry.context == INJECTED {
            return self.fail_injected(entry.failure);
        }
        if self.collective && collective_messages::is_own(entry.context) {
            let failure = (entry.failure, entry.source);
            return tables.collective.push((entry.context, Err(failure)));
        }
        if let Some(completions) = self.queue_of(tables, entry.flags) {
            completions.add_failure(entry);
            tables.may_be_full |= completions.is_full();
        }
    }

    /// The completion queue of an operation with these flags.
    #[inline(always)]
    fn queue_of<'a>(
        &self,
        tables: &'a mut Tables,
        flags: CompletionFlags,
    ) -> Option<&'a mut Completions> {
        const RECEIVED: CompletionFlags = CompletionFlags::RECV
            .union(CompletionFlags::REMOTE_READ)
            .union(CompletionFlags::REMOTE_WRITE);
        let queue = match flags.intersects(RECEIVED) {
            true => self.receive,
            false => self.transmit,
        };
        tables.queues.get_mut(queue?)
    }

    /// Reports the failure of an operation that has no completion: to the event queue, or to the
    /// log.
    #[cold]
    fn fail_injected(&self, failure: Failure) {
        if !self.fail(failure) {
            log_warn!(
                Endpoint,
                "an operation without a completion failed: {failure}"
            );
        }
    }

    /// Reports something that belongs to no operation of the application.
    #[cold]
    pub(crate) fn event(&self, event: &Event) {
        if !failure_of(event).is_some_and(|failure| self.fail(failure)) {
            log_warn!(Endpoint, "{event}");
        }
    }

    /// Adds a failure to the event queue; returns `false` if there is none.
    fn fail(&self, failure: Failure) -> bool {
        let Some(events) = &self.events else {
            return false;
        };
        // SAFETY: the domain forgets this when the endpoint closes.
        events.fail(unsafe { &*self.fid }, failure);
        true
    }
}

/// The failure that the event queue gets for an event that belongs to no operation of the
/// application. `None` if the event is not reported there.
fn failure_of(event: &Event) -> Option<Failure> {
    let Event::PacketRefused { reason, .. } = event else {
        return None;
    };
    let provider = match reason {
        PacketError::MessageWithHeader => ProviderError::HeaderAtZeroCopyReceiver,
        PacketError::NoMessage { .. } => ProviderError::PeerAborted,
        _ => return None,
    };
    Some(Failure {
        errno: Errno::EINVAL,
        provider,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_queues_get_failures_without_completions() {
        let failure = |reason| {
            let event = Event::PacketRefused {
                peer: None,
                packet_type: 12,
                reason,
            };
            failure_of(&event).map(|failure| (failure.errno, failure.provider.code()))
        };
        for (reason, code) in [
            (PacketError::MessageWithHeader, 4125),
            (PacketError::NoMessage { id: 7 }, 4127),
        ] {
            assert_eq!(failure(reason), Some((Errno::EINVAL, code)));
        }
        assert_eq!(failure(PacketError::StaleOperation { id: 7 }), None);
    }
}
