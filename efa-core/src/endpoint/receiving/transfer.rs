//! Operations in which this endpoint is the destination of the data: receives and reads of its own, and
//! emulated writes of peers.

use crate::endpoint::api::completion::CompletionFlags;
use crate::endpoint::api::error::Failure;
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::by_peer::PeerLinks;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::memory::iov::Iov;
use crate::wire::{MsgId, PacketType, RmaIovs, SendId};

use super::PlanKey;
use super::matching::PostedEntry;
use super::multi_receive::{MultiKey, Part};

/// A posted receive.
pub(crate) struct Posted {
    pub(crate) context: u64,
    /// Success is reported, not only failure.
    pub(crate) report_success: bool,
    pub(crate) target: Iov,
    /// Its place among the posted receives of its kind.
    pub(crate) tagged: bool,
    pub(crate) entry: PostedEntry,
    /// It takes several messages.
    pub(crate) multi: Option<MultiKey>,
    /// Its place among the receives that name its source, if it names one.
    pub(super) links: PeerLinks,
}

impl Posted {
    /// Who hears of the end of a message that the receive takes, and what.
    #[inline]
    pub(crate) fn ending(&self, tag: Option<u64>, cq_data: Option<u64>) -> Ending {
        Ending {
            context: self.context,
            report_success: self.report_success,
            flags: receive_flags(self.tagged, cq_data),
            tag: tag.unwrap_or(0),
            cq_data,
            audience: Audience::Starter,
            part: None,
        }
    }

    /// Length of the target in bytes.
    #[inline(always)]
    pub(crate) fn capacity(&self) -> u64 {
        self.target.length()
    }

    /// Sorts the receives of one kind by their age, untagged ones before tagged ones.
    pub(crate) fn age(&self) -> (bool, u64) {
        (self.tagged, self.entry.order())
    }
}

/// Data on its way in.
pub(crate) struct Transfer {
    pub(crate) peer: PeerId,
    pub(crate) target: Iov,
    pub(crate) capacity: u64,
    /// Length of the whole message in bytes; it may exceed the capacity.
    pub(crate) length: u64,
    /// Bytes that have arrived, those beyond the capacity included.
    pub(crate) received: u64,
    /// Bytes that RDMA reads are to bring, and packets must not.
    pub(crate) to_read: u64,
    pub(crate) supply: Supply,
    /// The RDMA reads of the transfer, if there are any.
    pub(crate) plan: Option<PlanKey>,
    /// What is to be sent to the peer next.
    ask: Ask,
    /// In the queue of work.
    queued: bool,
    /// The message, for segments that come later and for RECEIPT.
    pub(crate) msg_id: MsgId,
    /// Further packets find the transfer by `msg_id`.
    pub(crate) assembled: bool,
    /// The peer's operation, for CTS, EOR and RECEIPT.
    pub(crate) send_id: SendId,
    /// READRSP has come, which CTSDATA may overtake.
    pub(crate) responded: bool,
    /// The peer wants RECEIPT.
    pub(crate) wants_receipt: bool,
    pub(crate) failure: Option<Failure>,
    /// It ends although data is missing, when the device is done with its memory.
    aborted: bool,
    pub(crate) ending: Ending,
}

/// How the data comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Supply {
    /// The peer sends it without being asked, or it is read by RDMA.
    Unasked,
    /// The peer sends what it was granted; this many bytes of that are still to come.
    Windows { granted: u64 },
    /// It was to be read by RDMA, but the memory cannot be registered: when this many bytes have
    /// come in packets, READ_NACK makes the peer send the rest.
    Refused { in_packets: u64 },
    /// READ_NACK was sent.
    Nacked,
}

/// What is to be sent to the peer of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ask {
    Nothing,
    Cts,
    ReadNack,
}

/// Who is told of a transfer's end, and what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ending {
    pub(crate) context: u64,
    pub(crate) report_success: bool,
    pub(crate) flags: CompletionFlags,
    pub(crate) tag: u64,
    pub(crate) cq_data: Option<u64>,
    pub(crate) audience: Audience,
    /// The message goes to a part of a multi-receive buffer.
    pub(crate) part: Option<Part>,
}

/// Who hears of a transfer's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Audience {
    /// The application that started it.
    Starter,
    /// Nobody: the application discarded the message.
    Nobody,
    /// It is a peer's operation, started by a request of this type. The application hears of a
    /// success if there is CQ data for it; a failure is an event.
    Target(PacketType),
}

impl Ending {
    /// Returns whether it is an operation of the peer on our memory.
    pub(crate) fn is_peers(&self) -> bool {
        matches!(self.audience, Audience::Target(_))
    }

    /// Returns whether it was a peer that decided that there is such an operation: a write, or a
    /// message for a multi-receive buffer, of which peers decide how many there are.
    pub(crate) fn is_remote(&self) -> bool {
        self.is_peers() || self.part.is_some()
    }
}

impl Transfer {
    /// A transfer of which nothing has arrived.
    pub(crate) fn new(
        peer: PeerId,
        length: u64,
        target: Iov,
        capacity: u64,
        ending: Ending,
    ) -> Self {
        Transfer {
            peer,
            target,
            capacity,
            length,
            received: 0,
            to_read: 0,
            supply: Supply::Unasked,
            plan: None,
            ask: Ask::Nothing,
            queued: false,
            msg_id: MsgId(0),
            assembled: false,
            send_id: SendId(0),
            responded: false,
            wants_receipt: false,
            failure: None,
            aborted: false,
            ending,
        }
    }

    /// Returns whether all data has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.received == self.length
    }

    /// What brings its CTSDATA.
    pub(crate) fn windowed(&self) -> Protocol {
        if self.is_read() {
            Protocol::EmulatedRead
        } else if self.ending.is_peers() {
            Protocol::LongCtsWrite
        } else {
            Protocol::LongCts
        }
    }

    /// Returns whether it is a read of this endpoint's application.
    pub(crate) fn is_read(&self) -> bool {
        self.ending.flags.contains(CompletionFlags::READ)
    }

    /// Takes account of a piece of the data. Returns whether it fits what is known of the transfer; if
    /// not, nothing happened.
    pub(crate) fn accept(&mut self, offset: u64, length: u64) -> bool {
        let fits = offset
            .checked_add(length)
            .is_some_and(|end| end <= self.length)
            && length <= self.length - self.received - self.to_read;
        if fits {
            self.received += length;
        }
        fits
    }

    /// What is left of the window after `length` bytes. `None` if the peer was not granted so much.
    pub(crate) fn window_after(&self, length: u64) -> Option<u64> {
        match self.supply {
            Supply::Windows { granted } => granted.checked_sub(length),
            Supply::Unasked | Supply::Refused { .. } | Supply::Nacked => None,
        }
    }

    /// Notes that the peer wants RECEIPT for its operation, if it does.
    pub(crate) fn note_receipt(&mut self, receipt: Option<SendId>) {
        if let Some(send_id) = receipt {
            self.send_id = send_id;
            self.wants_receipt = true;
        }
    }

    /// Judges a packet that says where the data beyond the first `in_packets` bytes can be read.
    pub(crate) fn judge_read(&self, remote: &RmaIovs, in_packets: u64) -> ReadStart {
        let started = self.plan.is_some()
            || matches!(self.supply, Supply::Refused { .. } | Supply::Nacked)
            || self.failure.is_some();
        if started || in_packets == self.length {
            return ReadStart::Nothing;
        }
        // Packets may have come that said something else about how the rest comes.
        if in_packets > self.length
            || self.received > in_packets
            || remote.total_len() != Some(self.length)
        {
            return ReadStart::Mismatch;
        }
        ReadStart::Read
    }

    /// What the transfer needs next, if the device has no reads of it.
    pub(super) fn next_step(&self) -> Step {
        if self.aborted || self.is_complete() {
            return Step::Finish;
        }
        match self.supply {
            Supply::Windows { granted: 0 } => Step::Grant,
            Supply::Refused { in_packets } if self.received >= in_packets => Step::Refuse,
            _ => Step::Wait,
        }
    }

    /// Notes that the transfer failed: it ends when the device is done with its memory.
    pub(super) fn abort(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.aborted = true;
    }

    /// Notes that there is something to send or to post. Returns whether it has to be queued for
    /// that.
    #[must_use]
    pub(crate) fn enqueue(&mut self) -> bool {
        !core::mem::replace(&mut self.queued, true)
    }

    /// Notes what is to be sent to the peer next.
    pub(crate) fn ask(&mut self, ask: Ask) {
        self.ask = ask;
    }

    /// What is to be sent to the peer now.
    pub(crate) fn asks(&self) -> Ask {
        match self.aborted {
            true => Ask::Nothing,
            false => self.ask,
        }
    }

    /// Notes that what was to be sent was sent, and whether there is more to post.
    pub(crate) fn served(&mut self, more: bool) {
        self.ask = Ask::Nothing;
        self.queued = more;
    }
}

/// What a packet that says where data can be read asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadStart {
    /// To start reading.
    Read,
    /// Nothing: the data is being read, was refused, or comes in packets.
    Nothing,
    /// It contradicts what is known of the transfer.
    Mismatch,
}

/// What a transfer needs next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Nothing: more will come.
    Wait,
    /// To end.
    Finish,
    /// A CTS: the peer waits to be granted more.
    Grant,
    /// The peer has to be told that its data cannot be read.
    Refuse,
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
    use crate::endpoint::{Errno, ProviderError};
    use crate::wire::RmaIov;

    fn transfer(length: u64, capacity: u64) -> Transfer {
        let ending = Ending {
            context: 0,
            report_success: true,
            flags: receive_flags(true, None),
            tag: 0,
            cq_data: None,
            audience: Audience::Starter,
            part: None,
        };
        Transfer::new(PeerId::new(1, 0), length, Iov::NONE, capacity, ending)
    }

    #[test]
    fn data_beyond_the_message_or_more_than_it_lacks_is_not_accepted() {
        let mut transfer = transfer(100, 50);
        assert!(!transfer.accept(60, 41));
        assert!(!transfer.accept(u64::MAX, 2));
        assert!(transfer.accept(60, 40));
        assert!(!transfer.accept(0, 61));
        transfer.to_read = 10;
        assert!(!transfer.accept(0, 60));
        transfer.to_read = 0;
        assert!(transfer.accept(0, 60));
        assert!(transfer.is_complete());
    }

    #[test]
    fn the_next_step_follows_from_how_the_data_comes() {
        let mut transfer = transfer(100, 100);
        assert_eq!(transfer.next_step(), Step::Wait);
        transfer.supply = Supply::Windows { granted: 8 };
        assert_eq!(transfer.next_step(), Step::Wait);
        assert_eq!(transfer.window_after(8), Some(0));
        assert_eq!(transfer.window_after(9), None);
        transfer.supply = Supply::Windows { granted: 0 };
        assert_eq!(transfer.next_step(), Step::Grant);
        transfer.supply = Supply::Refused { in_packets: 10 };
        assert_eq!(transfer.next_step(), Step::Wait);
        assert!(transfer.accept(0, 10));
        assert_eq!(transfer.next_step(), Step::Refuse);
        transfer.supply = Supply::Nacked;
        assert_eq!(transfer.next_step(), Step::Wait);
        transfer.abort(Failure::new(Errno::EIO, ProviderError::None));
        assert_eq!(transfer.next_step(), Step::Finish);
        transfer.ask(Ask::Cts);
        assert_eq!(transfer.asks(), Ask::Nothing);
    }

    #[test]
    fn a_read_starts_once_and_only_with_sizes_that_agree() {
        let mut transfer = transfer(100, 100);
        let remote = |length| RmaIovs::first_of([RmaIov::new(0, length, 1)]);
        assert_eq!(transfer.judge_read(&remote(99), 0), ReadStart::Mismatch);
        assert_eq!(transfer.judge_read(&remote(100), 101), ReadStart::Mismatch);
        assert_eq!(transfer.judge_read(&remote(100), 100), ReadStart::Nothing);
        assert_eq!(transfer.judge_read(&remote(100), 10), ReadStart::Read);
        assert!(transfer.accept(0, 11));
        assert_eq!(transfer.judge_read(&remote(100), 10), ReadStart::Mismatch);
        transfer.supply = Supply::Nacked;
        assert_eq!(transfer.judge_read(&remote(100), 11), ReadStart::Nothing);
    }

    #[test]
    fn work_of_a_transfer_is_queued_once() {
        let mut transfer = transfer(1, 1);
        assert!(transfer.enqueue());
        assert!(!transfer.enqueue());
        transfer.served(true);
        assert!(!transfer.enqueue());
        transfer.served(false);
        assert!(transfer.enqueue());
    }
}
