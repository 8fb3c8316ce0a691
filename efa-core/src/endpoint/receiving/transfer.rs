//! Operations in which this endpoint is the destination of the data: receives and reads of its
//! application, and emulated writes of peers.

use crate::endpoint::api::completion::CompletionFlags;
use crate::endpoint::api::error::Failure;
use crate::endpoint::api::operation::IoVec;
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
    /// Whether a success is reported, not only a failure.
    pub(crate) report_success: bool,
    pub(crate) target: Iov,
    /// Whether it takes tagged messages; what the matcher keeps in it.
    pub(crate) tagged: bool,
    pub(crate) entry: PostedEntry,
    /// The multi-receive buffer, if it is one.
    pub(crate) multi: Option<MultiKey>,
    /// Its links among the receives that name the same source, if it names one.
    pub(super) links: PeerLinks,
}

impl Posted {
    /// How the end of a message that the receive takes is reported.
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

    /// A key by which receives are sorted: untagged ones first, each kind by age.
    pub(crate) fn age(&self) -> (bool, u64) {
        (self.tagged, self.entry.order())
    }
}

/// A transfer of data from a peer into the memory of this endpoint's application.
pub(crate) struct Transfer {
    pub(super) peer: PeerId,
    pub(super) target: Iov,
    pub(super) capacity: u64,
    /// Length of the whole message in bytes. It may exceed the capacity of the target.
    pub(super) length: u64,
    /// Bytes that have arrived, including those beyond the capacity.
    pub(super) received: u64,
    /// Bytes that RDMA reads bring, and packets must not.
    pub(super) to_read: u64,
    pub(super) supply: Supply,
    /// The RDMA reads of the transfer, if there are any.
    pub(super) plan: Option<PlanKey>,
    /// The packet that has to be sent to the peer next.
    ask: Ask,
    /// Whether it is in the work queue.
    queued: bool,
    /// The message id, for further packets and for RECEIPT.
    pub(super) msg_id: MsgId,
    /// Whether further packets find the transfer by `msg_id`.
    pub(super) assembled: bool,
    /// The peer's operation, for CTS, EOR and RECEIPT.
    pub(super) send_id: SendId,
    /// Whether READRSP has arrived. CTSDATA may overtake it.
    pub(super) responded: bool,
    /// Whether the peer wants RECEIPT.
    pub(super) wants_receipt: bool,
    pub(super) failure: Option<Failure>,
    /// Whether it ends although data is missing, when the device no longer uses its memory.
    aborted: bool,
    pub(super) ending: Ending,
}

/// How the data arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Supply {
    /// Without being asked for: the peer sends it, or it is read by RDMA.
    Unasked,
    /// In windows. The peer was granted this many bytes that have not arrived.
    Windows { granted: u64 },
    /// The memory for an RDMA read could not be registered. When this many bytes have arrived in
    /// packets, a READ_NACK makes the peer send the rest.
    Refused { in_packets: u64 },
    /// READ_NACK was sent.
    Nacked,
}

/// The packet that has to be sent to the peer of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ask {
    Nothing,
    Cts,
    ReadNack,
}

/// How the end of a transfer is reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ending {
    pub(crate) context: u64,
    pub(crate) report_success: bool,
    pub(crate) flags: CompletionFlags,
    pub(crate) tag: u64,
    pub(crate) cq_data: Option<u64>,
    pub(crate) audience: Audience,
    /// The part of a multi-receive buffer to which the message goes.
    pub(crate) part: Option<Part>,
}

/// To whom the end of a transfer is reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Audience {
    /// The application that started it.
    Starter,
    /// To nobody: the application discarded the message.
    Nobody,
    /// To the application as the target of a peer's operation, which a request of this type
    /// started. A success is reported if it has CQ data; a failure is an event.
    Target(PacketType),
}

impl Ending {
    /// Returns whether it is a peer's operation on our memory.
    pub(crate) fn is_peers(&self) -> bool {
        matches!(self.audience, Audience::Target(_))
    }

    /// Returns whether a peer decided that there is this operation: it is a peer's write, or a
    /// message for a multi-receive buffer, which takes as many messages as peers send.
    pub(crate) fn is_remote(&self) -> bool {
        self.is_peers() || self.part.is_some()
    }
}

impl Transfer {
    /// Makes a transfer of which nothing has arrived. `msg_id` is meaningful for messages only.
    pub(crate) fn new(
        peer: PeerId,
        msg_id: MsgId,
        length: u64,
        target: Iov,
        ending: Ending,
    ) -> Self {
        Transfer {
            peer,
            capacity: target.length(),
            target,
            length,
            received: 0,
            to_read: 0,
            supply: Supply::Unasked,
            plan: None,
            ask: Ask::Nothing,
            queued: false,
            msg_id,
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
    fn is_complete(&self) -> bool {
        self.received == self.length
    }

    /// The protocol of its CTSDATA.
    pub(super) fn windowed(&self) -> Protocol {
        if self.is_read() {
            Protocol::EmulatedRead
        } else if self.ending.is_peers() {
            Protocol::LongCtsWrite
        } else {
            Protocol::LongCts
        }
    }

    /// Returns whether it is a read of this endpoint's application.
    pub(super) fn is_read(&self) -> bool {
        self.ending.flags.contains(CompletionFlags::READ)
    }

    /// Returns whether a piece of data is consistent with what is known of the transfer.
    fn fits(&self, offset: u64, length: u64) -> bool {
        offset
            .checked_add(length)
            .is_some_and(|end| end <= self.length)
            && length <= self.length - self.received - self.to_read
    }

    /// Takes a piece of data for which the peer need not be asked.
    pub(super) fn arrived(&mut self, offset: u64, length: u64) -> Arrival<'_> {
        if !self.fits(offset, length) {
            return Arrival::Misfit;
        }
        self.received += length;
        if self.failure.is_some() {
            return Arrival::Drop;
        }
        Arrival::Copy {
            target: self.target.as_slice(),
            fits: length.min(self.capacity.saturating_sub(offset)),
        }
    }

    /// Takes a piece of a window. A piece beyond what the peer was granted is a misfit.
    pub(super) fn arrived_in_window(&mut self, offset: u64, length: u64) -> Arrival<'_> {
        let left = match self.supply {
            Supply::Windows { granted } => granted.checked_sub(length),
            Supply::Unasked | Supply::Refused { .. } | Supply::Nacked => None,
        };
        match left {
            Some(granted) if self.fits(offset, length) => {
                self.supply = Supply::Windows { granted };
                self.arrived(offset, length)
            }
            _ => Arrival::Misfit,
        }
    }

    /// Notes the peer's operation that wants a RECEIPT, if there is one.
    pub(super) fn note_receipt(&mut self, receipt: Option<SendId>) {
        if let Some(send_id) = receipt {
            self.send_id = send_id;
            self.wants_receipt = true;
        }
    }

    /// Notes that the peer's operation sends the rest in windows.
    pub(super) fn windows_follow(&mut self, send_id: SendId, delivery_complete: bool) {
        self.send_id = send_id;
        self.wants_receipt = delivery_complete;
        self.supply = Supply::Windows { granted: 0 };
    }

    /// Notes that the peer was granted a window of this many bytes.
    pub(super) fn granted(&mut self, bytes: u64) {
        self.supply = Supply::Windows { granted: bytes };
    }

    /// Takes the answer to READ_NACK. Returns whether it is one.
    pub(super) fn nack_answered(
        &mut self,
        length: u64,
        send_id: SendId,
        delivery_complete: bool,
    ) -> bool {
        let fits = self.supply == Supply::Nacked && self.length == length;
        if fits {
            self.windows_follow(send_id, delivery_complete);
        }
        fits
    }

    /// Takes the first data of an emulated read. Returns whether it is the first.
    pub(super) fn responded(&mut self, send_id: SendId) -> bool {
        let is_first = self.is_read() && !self.responded;
        if is_first {
            self.responded = true;
            self.send_id = send_id;
        }
        is_first
    }

    /// Takes a packet that says where the data beyond the first `in_packets` bytes can be read.
    pub(super) fn readable(
        &mut self,
        send_id: SendId,
        remote: &RmaIovs,
        in_packets: u64,
    ) -> ReadStart {
        let started = self.plan.is_some()
            || matches!(self.supply, Supply::Refused { .. } | Supply::Nacked)
            || self.failure.is_some();
        if started || in_packets == self.length {
            return ReadStart::Nothing;
        }
        // Earlier packets may have contradicted this one.
        if in_packets > self.length
            || self.received > in_packets
            || remote.total_len() != Some(self.length)
        {
            return ReadStart::Mismatch;
        }
        self.send_id = send_id;
        ReadStart::Read
    }

    /// Plans to read the bytes from `next` on. Returns where the reads end. Bytes beyond that, for
    /// which the target has no room, count as received.
    pub(super) fn plan(&mut self, key: PlanKey, next: u64) -> u64 {
        let end = self.length.min(self.capacity).max(next);
        self.received += self.length - end;
        self.to_read = end - next;
        self.plan = Some(key);
        end
    }

    /// Notes that a read has brought this many bytes.
    pub(super) fn read(&mut self, length: u64) {
        self.received += length;
        self.to_read -= length;
    }

    /// Notes that the data beyond the first `in_packets` bytes cannot be read.
    pub(super) fn refuse(&mut self, in_packets: u64) {
        self.supply = Supply::Refused { in_packets };
    }

    /// Notes that READ_NACK was sent.
    pub(super) fn nacked(&mut self) {
        self.supply = Supply::Nacked;
    }

    /// What has to be done next, if the device has no reads of the transfer.
    pub(super) fn next_step(&self) -> Step {
        if self.aborted || self.is_complete() {
            return Step::Finish;
        }
        match self.supply {
            Supply::Windows { granted: 0 } => Step::Grant,
            Supply::Refused { in_packets } if self.received >= in_packets => Step::Refuse,
            Supply::Unasked | Supply::Windows { .. } | Supply::Refused { .. } | Supply::Nacked => {
                Step::Wait
            }
        }
    }

    /// Notes that the transfer failed. It ends when the device no longer uses its memory.
    pub(super) fn abort(&mut self, failure: Failure) {
        self.fail(failure);
        self.aborted = true;
    }

    /// Notes that the transfer fails when all its data has arrived.
    pub(super) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// Returns whether all data is in the target.
    pub(super) fn is_delivered(&self) -> bool {
        self.is_complete() && self.failure.is_none()
    }

    /// Notes that something has to be sent or posted. Returns whether the transfer has to be
    /// queued.
    #[must_use]
    pub(super) fn enqueue(&mut self) -> bool {
        !core::mem::replace(&mut self.queued, true)
    }

    /// Notes which packet has to be sent to the peer next.
    pub(super) fn ask(&mut self, ask: Ask) {
        self.ask = ask;
    }

    /// The packet that has to be sent to the peer now.
    pub(super) fn asks(&self) -> Ask {
        match self.aborted {
            true => Ask::Nothing,
            false => self.ask,
        }
    }

    /// Notes that the packet was sent, and whether there is more to post.
    pub(super) fn served(&mut self, more: bool) {
        self.ask = Ask::Nothing;
        self.queued = more;
    }
}

/// What has to be done with a piece of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrival<'a> {
    /// Copy it to these pieces, which have room for `fits` bytes of it.
    Copy { target: &'a [IoVec], fits: u64 },
    /// Drop it: the transfer has failed.
    Drop,
    /// Refuse it: it contradicts what is known of the transfer, which is unchanged.
    Misfit,
}

/// What follows from a packet that says where data can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadStart {
    /// The reads have to start.
    Read,
    /// Nothing: the data is being read, cannot be read, or arrives in packets.
    Nothing,
    /// It contradicts what is known of the transfer.
    Mismatch,
}

/// What has to be done for a transfer next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Wait for more data.
    Wait,
    /// End it.
    Finish,
    /// Send a CTS: the peer waits for a window.
    Grant,
    /// Tell the peer that its data cannot be read.
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
    use crate::nic::UserSlice;
    use crate::wire::RmaIov;

    const FAILURE: Failure = Failure::new(Errno::EIO, ProviderError::None);

    /// A transfer of `length` bytes into a buffer of `capacity`.
    fn transfer(length: u64, capacity: usize) -> Transfer {
        let ending = Ending {
            context: 0,
            report_success: true,
            flags: receive_flags(true, None),
            tag: 0,
            cq_data: None,
            audience: Audience::Starter,
            part: None,
        };
        let memory = UserSlice {
            address: 1000,
            length: capacity,
        };
        let target = Iov::One(IoVec::new(memory));
        Transfer::new(PeerId::new(1, 0), MsgId(0), length, target, ending)
    }

    /// The bytes of an accepted piece for which the buffer has room.
    fn copied(arrival: Arrival<'_>) -> Option<u64> {
        match arrival {
            Arrival::Copy { fits, .. } => Some(fits),
            Arrival::Drop | Arrival::Misfit => None,
        }
    }

    #[test]
    fn data_beyond_the_message_or_more_than_it_lacks_is_not_accepted() {
        let mut transfer = transfer(100, 70);
        assert_eq!(transfer.arrived(60, 41), Arrival::Misfit);
        assert_eq!(transfer.arrived(u64::MAX, 2), Arrival::Misfit);
        assert_eq!(copied(transfer.arrived(60, 40)), Some(10));
        assert_eq!(transfer.arrived(0, 61), Arrival::Misfit);
        transfer.to_read = 10;
        assert_eq!(transfer.arrived(0, 60), Arrival::Misfit);
        transfer.to_read = 0;
        assert_eq!(copied(transfer.arrived(0, 60)), Some(60));
        assert!(transfer.is_delivered());
    }

    #[test]
    fn data_of_a_transfer_that_failed_counts_and_is_dropped() {
        let mut transfer = transfer(100, 100);
        transfer.fail(FAILURE);
        assert_eq!(transfer.arrived(0, 100), Arrival::Drop);
        assert_eq!(transfer.next_step(), Step::Finish);
        assert!(!transfer.is_delivered());
    }

    #[test]
    fn a_window_takes_what_was_granted_and_its_end_asks_for_the_next() {
        let mut transfer = transfer(100, 100);
        assert_eq!(transfer.arrived_in_window(0, 1), Arrival::Misfit);
        assert_eq!(transfer.next_step(), Step::Wait);
        transfer.windows_follow(SendId(7), true);
        assert_eq!(transfer.next_step(), Step::Grant);
        transfer.granted(8);
        assert_eq!(transfer.next_step(), Step::Wait);
        // That is more than the window, and more than the message.
        assert_eq!(transfer.arrived_in_window(0, 9), Arrival::Misfit);
        assert_eq!(transfer.arrived_in_window(93, 8), Arrival::Misfit);
        assert_eq!(copied(transfer.arrived_in_window(0, 5)), Some(5));
        assert_eq!(transfer.next_step(), Step::Wait);
        assert_eq!(copied(transfer.arrived_in_window(5, 3)), Some(3));
        assert_eq!(transfer.next_step(), Step::Grant);
        assert_eq!(
            (transfer.send_id, transfer.wants_receipt),
            (SendId(7), true)
        );
    }

    #[test]
    fn what_cannot_be_read_is_refused_when_the_packets_have_come_and_is_sent_in_windows() {
        let mut transfer = transfer(100, 100);
        assert!(!transfer.nack_answered(100, SendId(3), false));
        transfer.refuse(10);
        assert_eq!(transfer.next_step(), Step::Wait);
        assert_eq!(copied(transfer.arrived(0, 10)), Some(10));
        assert_eq!(transfer.next_step(), Step::Refuse);
        transfer.nacked();
        assert_eq!(transfer.next_step(), Step::Wait);
        assert!(!transfer.nack_answered(99, SendId(3), false));
        assert!(transfer.nack_answered(100, SendId(3), false));
        assert_eq!(transfer.next_step(), Step::Grant);
    }

    #[test]
    fn nothing_is_asked_for_a_transfer_that_was_aborted() {
        let mut transfer = transfer(100, 100);
        transfer.ask(Ask::Cts);
        assert_eq!(transfer.asks(), Ask::Cts);
        transfer.abort(FAILURE);
        assert_eq!(transfer.next_step(), Step::Finish);
        assert_eq!(transfer.asks(), Ask::Nothing);
    }

    #[test]
    fn a_read_starts_once_and_only_with_sizes_that_agree() {
        let mut transfer = transfer(100, 60);
        let remote = |length| RmaIovs::first_of([RmaIov::new(0, length, 1)]);
        let mut readable = |length, in_packets| {
            let start = transfer.readable(SendId(9), &remote(length), in_packets);
            (start, transfer.send_id)
        };
        assert_eq!(readable(99, 0), (ReadStart::Mismatch, SendId(0)));
        assert_eq!(readable(100, 101), (ReadStart::Mismatch, SendId(0)));
        assert_eq!(readable(100, 100), (ReadStart::Nothing, SendId(0)));
        assert_eq!(readable(100, 10), (ReadStart::Read, SendId(9)));
        assert_eq!(copied(transfer.arrived(0, 11)), Some(11));
        let start = transfer.readable(SendId(9), &remote(100), 10);
        assert_eq!(start, ReadStart::Mismatch);
        // Bytes for which the buffer has no room are not read.
        assert_eq!(transfer.plan(PlanKey(0), 11), 60);
        let start = transfer.readable(SendId(9), &remote(100), 11);
        assert_eq!(start, ReadStart::Nothing);
        transfer.read(49);
        assert!(transfer.is_delivered());
    }

    #[test]
    fn only_the_first_answer_to_a_read_is_taken() {
        let mut read = transfer(100, 100);
        assert!(!read.responded(SendId(4)));
        read.ending.flags = CompletionFlags::RMA | CompletionFlags::READ;
        assert!(read.responded(SendId(4)));
        assert!(!read.responded(SendId(5)));
        assert_eq!(read.send_id, SendId(4));
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
