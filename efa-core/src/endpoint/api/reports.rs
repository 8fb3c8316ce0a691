//! Completions and events that the application has not read yet, and the counters.

use std::collections::VecDeque;

use crate::endpoint::base::fifo::Fifo;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::base::immediate;
use crate::wire::PacketType;

use super::completion::{
    CompletionEntry, CompletionFlags, ErrorEntry, Event, PacketError, TypeName,
};
use super::error::{Errno, Failure, ProviderError};
use super::statistics::Statistics;

/// How the end of an operation that sends data is reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Report {
    pub(crate) context: u64,
    pub(crate) flags: CompletionFlags,
    /// Whether a success is reported, not only a failure.
    pub(crate) success: bool,
}

/// The report to the application at the end of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndReport {
    Nothing,
    /// No report, but a success with these flags is counted.
    Counted(CompletionFlags),
    Succeeded(CompletionEntry),
    Failed(ErrorEntry),
    Event(Event),
}

/// Completions and events that the application has not read, and the counters.
pub(crate) struct Reports {
    completions: Fifo<Result<CompletionEntry, ErrorEntry>>,
    events: VecDeque<Event>,
    /// Events kept; older ones are dropped.
    max_events: usize,
    /// The number of waiting completions at which the endpoint stops polling the device.
    max_completions: usize,
    pub(crate) statistics: Statistics,
}

impl Reports {
    /// Makes an empty report. At most `max_events` events are kept.
    pub(crate) fn new(max_events: usize, max_completions: usize) -> Self {
        Reports {
            completions: Fifo::new(),
            events: VecDeque::new(),
            max_events,
            max_completions,
            statistics: Statistics::default(),
        }
    }

    /// Returns whether the device may be polled.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.completions.len() < self.max_completions
    }

    #[inline]
    pub(crate) fn next_completion(&mut self) -> Option<Result<CompletionEntry, ErrorEntry>> {
        self.completions.pop_front()
    }

    /// Removes all completions, and passes them to `take`.
    #[inline(always)]
    pub(crate) fn drain_completions(
        &mut self,
        take: impl FnMut(&Result<CompletionEntry, ErrorEntry>),
    ) {
        self.completions.drain(take);
    }

    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Reports the end of an operation.
    #[inline(always)]
    pub(crate) fn report(&mut self, outcome: EndReport) {
        match outcome {
            EndReport::Nothing => {}
            EndReport::Counted(flags) => self.succeeded_silently(flags),
            EndReport::Succeeded(entry) => self.succeeded(entry),
            EndReport::Failed(entry) => self.failed(entry),
            EndReport::Event(event) => self.event(event),
        }
    }

    /// Counts and reports a success.
    #[inline(always)]
    pub(crate) fn succeeded(&mut self, entry: CompletionEntry) {
        self.statistics.count(entry.flags, true);
        self.completions.push_back(Ok(entry));
    }

    /// Counts a success that is not reported.
    #[inline]
    pub(crate) fn succeeded_silently(&mut self, flags: CompletionFlags) {
        self.statistics.count(flags, true);
    }

    /// Counts and reports a failure.
    #[cold]
    pub(crate) fn failed(&mut self, entry: ErrorEntry) {
        tracing::debug!(
            peer = entry.source.map(tracing::field::display),
            context = entry.context,
            flags = ?entry.flags,
            reason = %entry.failure,
            "operation failed"
        );
        self.statistics.count(entry.flags, false);
        self.completions.push_back(Err(entry));
    }

    /// Reports that a peer's device wrote local memory with immediate data.
    pub(crate) fn written(&mut self, peer: Option<PeerId>, length: usize, immediate: u32) {
        let flags =
            CompletionFlags::RMA | CompletionFlags::REMOTE_WRITE | CompletionFlags::REMOTE_CQ_DATA;
        self.succeeded(CompletionEntry {
            context: 0,
            flags,
            length: length as u64,
            data: immediate::to_cq_data(immediate),
            tag: 0,
            source: peer,
            buffer: 0,
        });
    }

    /// Counts the end of an operation that sends data, and reports it if requested.
    #[inline(always)]
    pub(crate) fn sent(
        &mut self,
        peer: PeerId,
        report: &Report,
        length: u64,
        failure: Option<Failure>,
    ) {
        match failure {
            Some(failure) => {
                let (context, flags) = (report.context, report.flags);
                self.failed(ErrorEntry::without_data(
                    context,
                    flags,
                    Some(peer),
                    failure,
                ));
            }
            None if report.success => self.succeeded(CompletionEntry {
                context: report.context,
                flags: report.flags,
                length,
                data: 0,
                tag: 0,
                source: None,
                buffer: 0,
            }),
            None => self.succeeded_silently(report.flags),
        }
    }

    #[cold]
    pub(crate) fn event(&mut self, event: Event) {
        trace(&event);
        if self.events.len() >= self.max_events {
            self.events.pop_front();
            self.statistics.events_dropped += 1;
        }
        self.events.push_back(event);
    }

    /// Reports a refused packet.
    #[cold]
    pub(crate) fn refuse(&mut self, peer: Option<PeerId>, packet_type: u8, reason: PacketError) {
        self.statistics.packets_refused += 1;
        self.event(Event::PacketRefused {
            peer,
            packet_type,
            reason,
        });
    }

    /// Reports a request that names memory which the sender may not access.
    #[cold]
    pub(crate) fn refuse_memory(&mut self, peer: PeerId, packet_type: PacketType) {
        self.event(Event::RemoteOperationFailed {
            peer,
            packet_type: packet_type.code(),
            failure: Failure::new(Errno::EINVAL, ProviderError::RmaAddress),
        });
    }

    /// Reports a packet that names an operation which does not exist, or whose peer is not the
    /// sender.
    #[cold]
    pub(crate) fn refuse_id(&mut self, peer: PeerId, packet_type: PacketType, id: u32) {
        let reason = PacketError::StaleOperation { id };
        self.refuse(Some(peer), packet_type.code(), reason);
    }
}

/// Traces an event, with the fields that most kinds of events have.
fn trace(event: &Event) {
    let shown = tracing::field::display;
    match event {
        Event::PacketRefused {
            peer,
            packet_type,
            reason,
        } => tracing::debug!(
            peer = peer.map(shown),
            packet_type = %TypeName(*packet_type),
            %reason,
            "packet dropped"
        ),
        Event::PeerFailed { peer, failure } => {
            tracing::warn!(%peer, reason = %failure, "peer given up");
        }
        Event::SendingFailed { peer, failure } => {
            tracing::warn!(%peer, reason = %failure, "no more messages to this peer");
        }
        Event::PeerForgotten { peer, address } => {
            tracing::info!(%peer, %address, "idle peer forgotten, to make room for another");
        }
        Event::RemoteOperationFailed {
            peer,
            packet_type,
            failure,
        } => tracing::debug!(
            %peer,
            packet_type = %TypeName(*packet_type),
            reason = %failure,
            "request of a peer refused"
        ),
        Event::ControlSendFailed {
            peer,
            packet_type,
            failure,
        } => tracing::debug!(
            %peer,
            packet_type = %TypeName(*packet_type),
            reason = %failure,
            "control packet not sent"
        ),
        other => tracing::warn!(reason = %other, "device error"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::base::ids::Id;

    #[test]
    fn the_oldest_events_are_dropped_and_counted() {
        let mut reports = Reports::new(2, 0);
        for code in 1..=3 {
            reports.refuse(None, code, PacketError::InvalidType);
        }
        let kept: Vec<u8> = core::iter::from_fn(|| reports.next_event())
            .map(|event| match event {
                Event::PacketRefused { packet_type, .. } => packet_type,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(kept, [2, 3]);
        assert_eq!(reports.statistics.events_dropped, 1);
        assert_eq!(reports.statistics.packets_refused, 3);
    }

    #[test]
    fn send_ends_are_counted_and_reported_as_requested() {
        let peer = PeerId::new(1, 0);
        let report = |success| Report {
            context: 7,
            flags: CompletionFlags::MSG | CompletionFlags::SEND,
            success,
        };
        let failure = Failure::new(Errno::EIO, ProviderError::None);
        let mut reports = Reports::new(0, 2);
        reports.sent(peer, &report(false), 5, None);
        reports.sent(peer, &report(true), 5, None);
        reports.sent(peer, &report(false), 5, Some(failure));
        let sends = reports.statistics.sends;
        assert_eq!((sends.successes, sends.errors), (2, 1));
        assert!(!reports.has_room());
        let completion = reports.next_completion().unwrap().unwrap();
        assert!(reports.has_room());
        assert_eq!((completion.context, completion.length), (7, 5));
        let completion = reports.next_completion().unwrap().unwrap_err();
        assert_eq!(
            (completion.failure, completion.source),
            (failure, Some(peer))
        );
        assert_eq!(reports.next_completion(), None);
    }
}
