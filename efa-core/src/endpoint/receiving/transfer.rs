//! Operations in which this endpoint is the destination of the data: receives and reads of its
//! application, and emulated writes of peers.

use crate::endpoint::api::completion::CompletionFlags;
use crate::endpoint::api::error::Failure;
use crate::endpoint::api::operation::IoVec;
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::by_peer::PeerLinks;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::memory::iov::Iov;
use crate::endpoint::memory::rdma::RdmaPart;
use crate::endpoint::memory::registration::{OwnRegions, Registered};
use crate::wire::{MsgId, RmaIovs, SendId};

use super::arrived::{Insertion, ReceivedRanges};
use super::ending::TransferEnding;
use super::progress::{NextAction, Progress, ReadStart};
use super::read_plan::ReadPlan;

/// A transfer of data from a peer into the memory of this endpoint's application.
pub(crate) struct Transfer {
    pub(crate) peer: PeerId,
    target: Iov,
    progress: Progress,
    /// The RDMA reads of the transfer, if there are any.
    plan: Option<ReadPlan>,
    pub(crate) pending_control: PendingControl,
    /// The message id, for further packets and for RECEIPT.
    pub(super) msg_id: MsgId,
    /// Whether further packets find the transfer by `msg_id`.
    pub(super) assembled: bool,
    /// The peer's operation, for CTS, EOR and RECEIPT.
    send_id: SendId,
    /// Whether READRSP has arrived. CTSDATA may overtake it.
    responded: bool,
    /// Whether the peer expects a RECEIPT.
    wants_receipt: bool,
    failure: Option<Failure>,
    /// Whether the peer has abandoned it.
    peer_aborted: bool,
    /// Whether it ends with missing data, once the device no longer uses its memory.
    aborted: bool,
    pub(super) ending: TransferEnding,
    /// Its links among the transfers with the same peer.
    pub(super) links: PeerLinks,
}

/// The next control packet of a transfer.
#[derive(Debug)]
pub(crate) struct PendingControl {
    /// The next packet to send to the peer.
    packet: ControlPacket,
    /// Whether the transfer is in the work queue.
    queued: bool,
}

/// A packet to send to the peer of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ControlPacket {
    Nothing,
    Cts,
    ReadNack,
}

/// The action for a piece of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DataAction<'a> {
    /// Copy it to these pieces, which have room for `fits` bytes of it.
    Copy { target: &'a [IoVec], fits: u64 },
    /// Drop it: the transfer has failed.
    Drop,
    /// Refuse it: it has arrived before. The transfer is unchanged.
    Repeated,
    /// Refuse it: it contradicts the known state of the transfer, which is unchanged.
    Misfit,
}

/// A window that the peer is granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    pub(crate) send_id: SendId,
    /// In bytes.
    pub(crate) length: u64,
    /// Whether it is for a read of this endpoint's application.
    pub(crate) is_read: bool,
}

/// A READ_NACK for a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Nack {
    pub(crate) send_id: SendId,
    /// Whether it refuses a peer's write, which the peer starts again with a request of another
    /// type.
    pub(crate) is_write: bool,
}

/// Effects of a transfer that ended.
#[derive(Debug)]
pub(crate) struct EndedTransfer {
    pub(crate) peer: PeerId,
    pub(crate) ending: TransferEnding,
    /// Length of the whole message, and of the buffer, in bytes.
    pub(crate) length: u64,
    pub(crate) capacity: u64,
    pub(crate) failure: Option<Failure>,
    /// Registrations to end.
    pub(crate) own_regions: OwnRegions,
    /// The peer's operation that expects an EOR.
    pub(crate) eor: Option<SendId>,
    /// The peer's operation that expects a RECEIPT, and its message.
    pub(crate) receipt: Option<(SendId, MsgId)>,
    /// The message whose sender expects an EOR but will get none, with the sender's operation.
    pub(crate) abandoned: Option<(MsgId, SendId)>,
}

impl PendingControl {
    /// Notes the next packet to send to the peer.
    pub(crate) fn set(&mut self, packet: ControlPacket) {
        self.packet = packet;
    }

    /// The packet to send to the peer now.
    pub(crate) fn packet(&self) -> ControlPacket {
        self.packet
    }

    /// Records that the transfer has a packet to send or a read to post. Returns whether it must be
    /// queued.
    #[must_use]
    pub(crate) fn enqueue(&mut self) -> bool {
        !core::mem::replace(&mut self.queued, true)
    }

    /// Records that the packet was sent, and whether more packets are due.
    pub(crate) fn served(&mut self, more: bool) {
        self.packet = ControlPacket::Nothing;
        self.queued = more;
    }
}

impl Transfer {
    /// Makes a transfer that has received no data yet. `msg_id` is meaningful for messages only.
    pub(crate) fn new(
        peer: PeerId,
        msg_id: MsgId,
        length: u64,
        target: Iov,
        ending: TransferEnding,
    ) -> Self {
        Transfer {
            peer,
            target,
            progress: Progress::new(length),
            plan: None,
            pending_control: PendingControl {
                packet: ControlPacket::Nothing,
                queued: false,
            },
            msg_id,
            assembled: false,
            send_id: SendId(0),
            responded: false,
            wants_receipt: false,
            failure: None,
            peer_aborted: false,
            aborted: false,
            ending,
            links: PeerLinks::NONE,
        }
    }

    /// The destination of the data.
    pub(crate) fn target(&self) -> &Iov {
        &self.target
    }

    /// Returns whether it is of a message of this length in bytes.
    pub(crate) fn is_of_length(&self, length: u64) -> bool {
        self.progress.length() == length
    }

    /// The id of a message: not of a read or atomic of this endpoint's application, nor of a peer's
    /// write.
    pub(crate) fn message(&self) -> Option<MsgId> {
        let is_message = self.ending.flags.contains(CompletionFlags::RECV);
        is_message.then_some(self.msg_id)
    }

    /// Records that the peer has abandoned the message. [`Transfer::next_action`] returns when the
    /// transfer ends.
    pub(crate) fn peer_aborted(&mut self) {
        self.peer_aborted = true;
        self.abort(Failure::PEER_ABORTED);
    }

    /// Returns whether it is a fetching atomic of this endpoint's application.
    pub(crate) fn is_atomic(&self) -> bool {
        let flags = CompletionFlags::ATOMIC | CompletionFlags::READ;
        self.ending.flags.contains(flags)
    }

    /// The next action.
    pub(crate) fn next_action(&self) -> NextAction {
        let step = match self.aborted {
            true => NextAction::Finish,
            false => self.progress.next_action(),
        };
        match step {
            // The device still writes the transfer's memory.
            NextAction::Finish if self.plan.as_ref().is_some_and(ReadPlan::is_outstanding) => {
                NextAction::Wait
            }
            step => step,
        }
    }

    /// Records that the transfer failed. [`Transfer::next_action`] returns when it ends.
    pub(crate) fn abort(&mut self, failure: Failure) {
        self.fail(failure);
        self.aborted = true;
        self.pending_control.set(ControlPacket::Nothing);
    }

    /// Records that the transfer fails when all its data has arrived.
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// The effects of the end of the transfer.
    pub(super) fn end(self) -> EndedTransfer {
        let is_delivered = self.progress.is_complete() && self.failure.is_none();
        let notifies_peer = self.plan.as_ref().is_some_and(|plan| plan.notifies_peer);
        let message = self.message();
        let wants_receipt = self.wants_receipt;
        EndedTransfer {
            peer: self.peer,
            ending: self.ending,
            length: self.progress.length(),
            capacity: self.target.length(),
            failure: self.failure,
            own_regions: self.plan.and_then(|plan| plan.own_regions),
            eor: (is_delivered && notifies_peer).then_some(self.send_id),
            receipt: (is_delivered && wants_receipt).then_some((self.send_id, self.msg_id)),
            abandoned: message
                .filter(|_| !is_delivered && notifies_peer && !self.peer_aborted)
                .map(|msg_id| (msg_id, self.send_id)),
        }
    }
}

// Data in packets.
impl Transfer {
    /// Records a piece of the data. With `in_window` the piece was granted by a CTS, otherwise the
    /// peer sent it unsolicited.
    #[inline]
    pub(crate) fn arrived(&mut self, offset: u64, length: u64, in_window: bool) -> DataAction<'_> {
        let piece = match in_window {
            false => self.progress.take(offset, length),
            true => self.progress.take_granted(offset, length),
        };
        match piece {
            Insertion::New => {}
            Insertion::Repeated => return DataAction::Repeated,
            Insertion::Misfit => return DataAction::Misfit,
        }
        if self.failure.is_some() {
            return DataAction::Drop;
        }
        DataAction::Copy {
            fits: length.min(self.target.length().saturating_sub(offset)),
            target: self.target.as_slice(),
        }
    }

    /// The data that arrived in packets.
    #[inline]
    pub(super) fn arrived_mut(&mut self) -> &mut ReceivedRanges {
        self.progress.arrived_mut()
    }

    /// Records the peer's operation that expects a RECEIPT, if there is one.
    pub(crate) fn note_receipt(&mut self, receipt: Option<SendId>) {
        if let Some(send_id) = receipt {
            self.send_id = send_id;
            self.wants_receipt = true;
        }
    }

    /// Records that the peer's operation sends the rest in windows.
    pub(crate) fn windows_follow(&mut self, send_id: SendId, delivery_complete: bool) {
        self.send_id = send_id;
        self.wants_receipt = delivery_complete;
        self.progress.windows_follow();
    }

    /// The next window for the peer, of at most `limit` bytes.
    pub(crate) fn next_window(&self, limit: u64) -> Window {
        Window {
            send_id: self.send_id,
            length: self.progress.lacking().min(limit),
            is_read: self.ending.is_read(),
        }
    }

    /// Records that the peer was granted a window of this many bytes.
    pub(crate) fn granted(&mut self, bytes: u64) {
        self.progress.granted(bytes);
    }

    /// The protocol of its CTSDATA.
    pub(crate) fn windowed(&self) -> Protocol {
        if self.ending.is_read() {
            Protocol::EmulatedRead
        } else if self.ending.is_peers() {
            Protocol::LongCtsWrite
        } else {
            Protocol::LongCts
        }
    }

    /// Records the first data of an emulated read. Returns whether it is the first.
    pub(crate) fn responded(&mut self, send_id: SendId) -> bool {
        let is_first = self.ending.is_read() && !self.responded;
        if is_first {
            self.responded = true;
            self.send_id = send_id;
        }
        is_first
    }
}

// Data that is read by RDMA, and READ_NACK.
impl Transfer {
    /// Processes a packet that announces where the data beyond the first `in_packets` bytes can be
    /// read.
    pub(crate) fn readable(
        &mut self,
        send_id: SendId,
        remote: &RmaIovs,
        in_packets: u64,
    ) -> ReadStart {
        if self.plan.is_some() || self.failure.is_some() {
            return ReadStart::Nothing;
        }
        let start = self.progress.readable(in_packets, remote.total_len());
        if start == ReadStart::Read {
            self.send_id = send_id;
        }
        start
    }

    /// Notes the peer's operation whose data is to be read.
    pub(crate) fn note_sender(&mut self, send_id: SendId) {
        self.send_id = send_id;
    }

    /// Plans to read the bytes from `next` on into the target, which is registered now. Bytes
    /// beyond the target count as received.
    pub(crate) fn plan_reads(
        &mut self,
        remote: RmaIovs,
        next: u64,
        notifies_peer: bool,
        target: Registered,
    ) {
        let Registered {
            pieces,
            own_regions,
        } = target;
        self.target = pieces;
        let end = self.progress.plan_reads(next, self.target.length());
        self.plan = Some(ReadPlan::new(remote, next, end, notifies_peer, own_regions));
    }

    /// The next read, of at most `limit` bytes. `Ok(None)` if there is nothing to post.
    ///
    /// # Errors
    /// The peer's memory is shorter than its message.
    pub(crate) fn next_read(&self, limit: usize) -> Result<Option<RdmaPart>, ()> {
        match &self.plan {
            Some(plan) if self.failure.is_none() && plan.has_more() => {
                let part = plan.next(self.target.as_slice(), limit);
                part.map(Some).ok_or(())
            }
            _ => Ok(None),
        }
    }

    /// Records that the next read was posted.
    pub(crate) fn read_posted(&mut self, length: u64) {
        if let Some(plan) = &mut self.plan {
            plan.posted(length);
        }
    }

    /// Records that the device has completed a read of `length` bytes. Returns whether the transfer
    /// has reads.
    pub(crate) fn read_done(&mut self, length: u64) -> bool {
        let Some(plan) = &mut self.plan else {
            return false;
        };
        plan.done();
        self.progress.read(length);
        true
    }

    /// Records that the data beyond the first `in_packets` bytes cannot be read.
    pub(super) fn refuse(&mut self, in_packets: u64) {
        self.progress.refuse(in_packets);
    }

    /// The READ_NACK for the transfer.
    pub(crate) fn nack(&self) -> Nack {
        Nack {
            send_id: self.send_id,
            is_write: self.ending.is_peers(),
        }
    }

    /// Records that READ_NACK was sent.
    pub(crate) fn nacked(&mut self) {
        self.progress.nacked();
    }

    /// Processes the response to READ_NACK. Returns whether the packet is one.
    pub(super) fn nack_answered(
        &mut self,
        length: u64,
        send_id: SendId,
        delivery_complete: bool,
    ) -> bool {
        let is_answer = self.progress.nack_answered(length);
        if is_answer {
            self.send_id = send_id;
            self.wants_receipt = delivery_complete;
        }
        is_answer
    }

    /// Removes and returns the registrations, when the endpoint is closed.
    pub(super) fn take_registrations(&mut self) -> OwnRegions {
        self.plan.as_mut()?.own_regions.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::base::ids::Id;
    use crate::endpoint::receiving::ending::{ReportRecipient, receive_flags};
    use crate::endpoint::{Errno, ProviderError};
    use crate::nic::{LocalKey, Region, RemoteKey, UserSlice};
    use crate::wire::RmaIov;

    const FAILURE: Failure = Failure::new(Errno::EIO, ProviderError::None);

    /// A transfer of `length` bytes into a buffer of `capacity`, in registered memory at 1000.
    fn transfer(length: u64, capacity: usize) -> Transfer {
        let ending = TransferEnding {
            context: 0,
            report_success: true,
            flags: receive_flags(true, None),
            tag: 0,
            cq_data: None,
            recipient: ReportRecipient::Starter,
            part: None,
        };
        let target = Iov::One(IoVec {
            memory: UserSlice::new(1000, capacity),
            region: Some(Region {
                local_key: LocalKey(1),
                remote_key: RemoteKey(2),
            }),
        });
        Transfer::new(PeerId::new(1, 0), MsgId(5), length, target, ending)
    }

    /// The peer's memory at 5000.
    fn remote(length: u64) -> RmaIovs {
        RmaIovs::first_of([RmaIov::new(5000, length, 3)])
    }

    /// A transfer of 120 bytes into a buffer of 100. All but the first 10 bytes are read.
    fn read(remote_length: u64) -> Transfer {
        let mut transfer = transfer(120, 100);
        let start = transfer.readable(SendId(6), &remote(remote_length), 10);
        // Memory that is shorter than the message cannot be read.
        assert_eq!(start == ReadStart::Read, remote_length == 120);
        let target = Registered {
            pieces: transfer.target().clone(),
            own_regions: None,
        };
        transfer.plan_reads(remote(remote_length), 10, true, target);
        transfer
    }

    #[test]
    fn data_is_copied_within_the_target() {
        let mut transfer = transfer(100, 70);
        assert_eq!(transfer.arrived(60, 41, false), DataAction::Misfit);
        for (offset, length, expected) in [(60, 40, 10), (0, 60, 60)] {
            let arrival = transfer.arrived(offset, length, false);
            assert!(matches!(arrival, DataAction::Copy { fits, .. } if fits == expected));
        }
        assert_eq!(transfer.next_action(), NextAction::Finish);
        let ended = transfer.end();
        assert_eq!((ended.length, ended.capacity), (100, 70));
        assert_eq!((ended.eor, ended.receipt), (None, None));
    }

    #[test]
    fn data_of_failed_transfers_is_counted_and_dropped() {
        let mut transfer = transfer(100, 100);
        transfer.note_receipt(Some(SendId(4)));
        transfer.fail(FAILURE);
        assert_eq!(transfer.arrived(0, 100, false), DataAction::Drop);
        assert_eq!(transfer.next_action(), NextAction::Finish);
        let ended = transfer.end();
        assert_eq!((ended.receipt, ended.failure), (None, Some(FAILURE)));
    }

    #[test]
    fn windowed_messages_are_granted_the_rest_and_receipted() {
        let mut transfer = transfer(100, 100);
        transfer.windows_follow(SendId(6), true);
        assert!(transfer.arrived(0, 30, false) != DataAction::Misfit);
        assert_eq!(transfer.next_action(), NextAction::Grant);
        let window = transfer.next_window(50);
        assert_eq!((window.send_id, window.length), (SendId(6), 50));
        transfer.granted(50);
        assert_eq!(transfer.arrived(30, 51, true), DataAction::Misfit);
        assert!(transfer.arrived(30, 50, true) != DataAction::Misfit);
        assert_eq!(transfer.next_action(), NextAction::Grant);
        assert_eq!(transfer.next_window(50).length, 20);
        transfer.granted(20);
        assert!(transfer.arrived(80, 20, true) != DataAction::Misfit);
        assert_eq!(transfer.next_action(), NextAction::Finish);
        assert_eq!(transfer.end().receipt, Some((SendId(6), MsgId(5))));
    }

    #[test]
    fn reads_fit_the_target_and_end_the_transfer() {
        let mut transfer = read(120);
        let arrival = transfer.arrived(0, 10, false);
        assert!(matches!(arrival, DataAction::Copy { fits: 10, .. }));
        let mut lengths = Vec::new();
        while let Some(part) = transfer.next_read(60).unwrap() {
            assert_eq!(part.local.address - 1000, part.remote_address - 5000);
            lengths.push(part.local.length as u64);
            transfer.read_posted(part.local.length as u64);
        }
        assert_eq!(lengths, [60, 30]);
        assert_eq!(transfer.next_action(), NextAction::Wait);
        assert!(transfer.read_done(30));
        assert_eq!(transfer.next_action(), NextAction::Wait);
        assert!(transfer.read_done(60));
        assert_eq!(transfer.next_action(), NextAction::Finish);
        let ended = transfer.end();
        assert_eq!((ended.eor, ended.receipt), (Some(SendId(6)), None));
        assert_eq!((ended.length, ended.capacity), (120, 100));
    }

    #[test]
    fn reads_start_once() {
        let mut started = read(120);
        let start = started.readable(SendId(7), &remote(120), 10);
        assert_eq!(start, ReadStart::Nothing);
        assert_eq!(started.nack().send_id, SendId(6));
        let mut failed = transfer(120, 100);
        failed.fail(FAILURE);
        let start = failed.readable(SendId(7), &remote(120), 10);
        assert_eq!(start, ReadStart::Nothing);
    }

    #[test]
    fn failed_transfers_end_when_device_releases_memory() {
        let mut transfer = read(120);
        transfer.read_posted(90);
        transfer.abort(FAILURE);
        assert_eq!(transfer.next_action(), NextAction::Wait);
        // No more reads are posted for it.
        assert!(matches!(transfer.next_read(60), Ok(None)));
        assert!(transfer.read_done(0));
        assert_eq!(transfer.next_action(), NextAction::Finish);
        let ended = transfer.end();
        assert_eq!((ended.eor, ended.failure), (None, Some(FAILURE)));
    }

    #[test]
    fn a_transfer_without_reads_ends_none() {
        assert!(!transfer(1, 1).read_done(0));
    }

    #[test]
    fn short_remote_memory_is_an_error() {
        assert!(read(10).next_read(60).is_err());
    }

    #[test]
    fn an_aborted_transfer_requests_nothing() {
        let mut transfer = transfer(100, 100);
        transfer.pending_control.set(ControlPacket::Cts);
        assert_eq!(transfer.pending_control.packet(), ControlPacket::Cts);
        transfer.abort(FAILURE);
        assert_eq!(transfer.next_action(), NextAction::Finish);
        assert_eq!(transfer.pending_control.packet(), ControlPacket::Nothing);
    }

    #[test]
    fn only_the_first_read_response_counts() {
        let mut read = transfer(100, 100);
        assert!(!read.responded(SendId(4)));
        read.ending.flags = CompletionFlags::RMA | CompletionFlags::READ;
        assert!(read.responded(SendId(4)));
        assert!(!read.responded(SendId(5)));
        assert_eq!(read.next_window(1).send_id, SendId(4));
    }

    #[test]
    fn work_of_a_transfer_is_queued_once() {
        let mut transfer = transfer(1, 1);
        assert!(transfer.pending_control.enqueue());
        assert!(!transfer.pending_control.enqueue());
        transfer.pending_control.served(true);
        assert!(!transfer.pending_control.enqueue());
        transfer.pending_control.served(false);
        assert!(transfer.pending_control.enqueue());
    }
}
