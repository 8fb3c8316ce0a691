//! How the end of a receive, a read or a peer's write is reported.

use crate::endpoint::api::completion::{CompletionEntry, CompletionFlags, ErrorEntry, Event};
use crate::endpoint::api::error::{Errno, Failure, ProviderError};
use crate::endpoint::api::reports::EndReport;
use crate::endpoint::base::ids::PeerId;
use crate::wire::PacketType;

use super::multi_receive::Part;

/// How the end of a transfer is reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TransferEnding {
    pub(crate) context: u64,
    pub(crate) report_success: bool,
    pub(crate) flags: CompletionFlags,
    pub(crate) tag: u64,
    pub(crate) cq_data: Option<u64>,
    pub(crate) recipient: ReportRecipient,
    /// The part of a multi-receive buffer that receives the message.
    pub(crate) part: Option<Part>,
}

/// The recipient of the report about the end of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReportRecipient {
    /// The application that started it.
    Starter,
    /// No report: the application discarded the message.
    None,
    /// To the application as the target of a peer's operation, which a request of this type
    /// started. A success is reported if it has CQ data; a failure is an event.
    Target(PacketType),
}

impl TransferEnding {
    /// Returns whether it is a peer's operation on local memory.
    pub(crate) fn is_peers(&self) -> bool {
        matches!(self.recipient, ReportRecipient::Target(_))
    }

    /// Returns whether a peer started this operation on its own: a peer's write, or a message for a
    /// multi-receive buffer, which accepts any number of messages.
    pub(crate) fn is_remote(&self) -> bool {
        self.is_peers() || self.part.is_some()
    }

    /// Returns whether it is a read of this endpoint's application.
    pub(super) fn is_read(&self) -> bool {
        self.flags.contains(CompletionFlags::READ)
    }

    /// The report of an operation that received `length` bytes from `peer` into a buffer of
    /// `capacity` bytes. A message longer than its buffer was truncated, which is a failure.
    /// `is_free` is set for the last message of a multi-receive buffer.
    #[inline(always)]
    pub(crate) fn outcome(
        &self,
        peer: PeerId,
        length: u64,
        capacity: u64,
        failure: Option<Failure>,
        is_free: bool,
    ) -> EndReport {
        const TRUNCATED: Failure = Failure::new(Errno::ETRUNC, ProviderError::None);
        let failure = failure.or((length > capacity).then_some(TRUNCATED));
        let mut flags = self.flags;
        if self.part.is_some() {
            flags.set(CompletionFlags::MULTI_RECV, is_free);
        }
        match (failure, self.recipient) {
            (_, ReportRecipient::None) => EndReport::Nothing,
            (Some(failure), ReportRecipient::Target(request)) => {
                EndReport::Event(Event::RemoteOperationFailed {
                    peer,
                    packet_type: request.code(),
                    failure,
                })
            }
            (Some(failure), ReportRecipient::Starter) => EndReport::Failed(ErrorEntry {
                context: self.context,
                flags,
                length: length.min(capacity),
                overflow_length: length.saturating_sub(capacity),
                data: self.cq_data.unwrap_or(0),
                tag: self.tag,
                source: Some(peer),
                failure,
            }),
            (None, _) if !self.report_success => EndReport::Counted(flags),
            (None, _) => EndReport::Succeeded(CompletionEntry {
                context: self.context,
                flags,
                length,
                data: self.cq_data.unwrap_or(0),
                tag: self.tag,
                source: (!self.is_read()).then_some(peer),
                buffer: self.part.map_or(0, |part| part.address),
            }),
        }
    }
}

/// The flags of a message's completion.
pub(crate) fn message_flags(tagged: bool, direction: CompletionFlags) -> CompletionFlags {
    direction
        | if tagged {
            CompletionFlags::TAGGED
        } else {
            CompletionFlags::MSG
        }
}

/// The flags of a receive's completion.
pub(crate) fn receive_flags(tagged: bool, cq_data: Option<u64>) -> CompletionFlags {
    let mut flags = message_flags(tagged, CompletionFlags::RECV);
    flags.set(CompletionFlags::REMOTE_CQ_DATA, cq_data.is_some());
    flags
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::base::ids::Id;

    const FAILURE: Failure = Failure::new(Errno::EIO, ProviderError::None);

    fn peer() -> PeerId {
        PeerId::new(3, 0)
    }

    /// A tagged receive that reports its success.
    fn receive() -> TransferEnding {
        TransferEnding {
            context: 7,
            report_success: true,
            flags: receive_flags(true, Some(5)),
            tag: 9,
            cq_data: Some(5),
            recipient: ReportRecipient::Starter,
            part: None,
        }
    }

    #[test]
    fn a_receive_completes_with_its_message_data() {
        let expected = CompletionEntry {
            context: 7,
            flags: CompletionFlags::RECV
                | CompletionFlags::TAGGED
                | CompletionFlags::REMOTE_CQ_DATA,
            length: 10,
            data: 5,
            tag: 9,
            source: Some(peer()),
            buffer: 0,
        };
        let outcome = receive().outcome(peer(), 10, 10, None, false);
        assert_eq!(outcome, EndReport::Succeeded(expected));
        let silent = TransferEnding {
            report_success: false,
            ..receive()
        };
        let outcome = silent.outcome(peer(), 10, 10, None, false);
        assert_eq!(outcome, EndReport::Counted(expected.flags));
    }

    #[test]
    fn earlier_failures_take_precedence_over_truncation() {
        for (failure, expected) in [(None, Errno::ETRUNC), (Some(FAILURE), Errno::EIO)] {
            // The failure is reported although a success is not.
            let silent = TransferEnding {
                report_success: false,
                ..receive()
            };
            let EndReport::Failed(entry) = silent.outcome(peer(), 10, 8, failure, false) else {
                panic!("a failure is reported");
            };
            assert_eq!(entry.failure.errno, expected);
            assert_eq!((entry.length, entry.overflow_length), (8, 2));
            assert_eq!((entry.context, entry.tag, entry.data), (7, 9, 5));
        }
    }

    #[test]
    fn a_read_names_no_source() {
        let read = TransferEnding {
            flags: CompletionFlags::RMA | CompletionFlags::READ,
            ..receive()
        };
        let EndReport::Succeeded(entry) = read.outcome(peer(), 1, 1, None, false) else {
            panic!("a success is reported");
        };
        assert_eq!(entry.source, None);
    }

    #[test]
    fn discarded_messages_are_never_reported() {
        let discarded = TransferEnding {
            recipient: ReportRecipient::None,
            ..receive()
        };
        for failure in [None, Some(FAILURE)] {
            let outcome = discarded.outcome(peer(), 10, 0, failure, false);
            assert_eq!(outcome, EndReport::Nothing);
        }
    }

    #[test]
    fn write_data_is_reported_and_failure_an_event() {
        let write = |report_success| TransferEnding {
            report_success,
            recipient: ReportRecipient::Target(PacketType::LongctsRtw),
            ..receive()
        };
        assert!(write(false).is_peers() && write(false).is_remote());
        let outcome = write(false).outcome(peer(), 10, 10, None, false);
        assert_eq!(outcome, EndReport::Counted(receive().flags));
        let outcome = write(true).outcome(peer(), 10, 10, None, false);
        assert!(matches!(outcome, EndReport::Succeeded(_)));
        let outcome = write(true).outcome(peer(), 10, 10, Some(FAILURE), false);
        let expected = Event::RemoteOperationFailed {
            peer: peer(),
            packet_type: PacketType::LongctsRtw.code(),
            failure: FAILURE,
        };
        assert_eq!(outcome, EndReport::Event(expected));
    }
}
