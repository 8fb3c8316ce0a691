//! Operations in which this endpoint is the destination of the data: receives, and reads; also the
//! responder's side of emulated writes.

use crate::nic::Nic;
use crate::wire::{MsgId, SendId};

use super::Endpoint;
use super::completion::{CompletionEntry, CompletionFlags, ErrorEntry};
use super::error::{Errno, Failure, ProviderError};
use super::held::ReceivedPacket;
use super::ids::{PeerId, ReceiveId};
use super::incoming::Payload;
use super::iov::{Iov, copy_out};
use super::matching::PostedKey;
use super::transmit::Work;

/// A receive that the application posted, or an operation that a peer's data goes to.
pub(super) enum Inbound {
    /// Waits for a message.
    Posted(Posted),
    /// Takes data.
    Active(Transfer),
}

/// A posted receive.
pub(super) struct Posted {
    pub(super) context: u64,
    /// Success is reported, not only failure.
    pub(super) report_success: bool,
    pub(super) target: Iov,
    /// Length of the target in bytes.
    pub(super) capacity: u64,
    /// Its place among the posted receives of its kind.
    pub(super) tagged: bool,
    pub(super) key: PostedKey,
}

/// Data on its way in.
pub(super) struct Transfer {
    pub(super) peer: PeerId,
    pub(super) target: Iov,
    pub(super) capacity: u64,
    /// Length of the whole message in bytes; it may exceed the capacity.
    pub(super) length: u64,
    /// Bytes that have arrived, those beyond the capacity included.
    pub(super) received: u64,
    /// Bytes that the peer was allowed to send and that have not arrived.
    pub(super) granted: u64,
    /// The message, for segments that come later and for RECEIPT.
    pub(super) msg_id: MsgId,
    /// The peer's operation, for CTS and EOR.
    pub(super) send_id: SendId,
    /// The peer wants RECEIPT.
    pub(super) wants_receipt: bool,
    /// It comes in several packets of the same `msg_id`, which find it by that.
    pub(super) segmented: bool,
    /// In the queue of work: a CTS is to be sent.
    pub(super) queued: bool,
    pub(super) failure: Option<Failure>,
    pub(super) ending: Ending,
}

/// What the application is told in the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ending {
    pub(super) context: u64,
    pub(super) report_success: bool,
    pub(super) flags: CompletionFlags,
    pub(super) tag: u64,
    pub(super) cq_data: Option<u64>,
}

impl Transfer {
    /// A transfer of which nothing has arrived.
    pub(super) fn new(
        peer: PeerId,
        msg_id: MsgId,
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
            granted: 0,
            msg_id,
            send_id: SendId(0),
            wants_receipt: false,
            segmented: false,
            queued: false,
            failure: None,
            ending,
        }
    }

    /// Whether all data has arrived.
    pub(super) fn is_complete(&self) -> bool {
        self.received == self.length
    }
}

impl<N: Nic> Endpoint<N> {
    /// An active transfer.
    #[inline]
    pub(super) fn transfer_mut(&mut self, id: ReceiveId) -> Option<&mut Transfer> {
        match self.inbound.get_mut(id) {
            Some(Inbound::Active(transfer)) => Some(transfer),
            _ => None,
        }
    }

    /// Takes a piece of a transfer's data out of a packet. Returns whether the piece fits what is
    /// known of the transfer; if not, nothing happened.
    pub(super) fn take_data(
        &mut self,
        id: ReceiveId,
        packet: &ReceivedPacket,
        payload: Payload,
        offset: u64,
    ) -> bool {
        let Some(Inbound::Active(transfer)) = self.inbound.get_mut(id) else {
            return false;
        };
        let length = payload.length as u64;
        let fits = offset
            .checked_add(length)
            .is_some_and(|end| end <= transfer.length)
            && transfer.received + length <= transfer.length;
        if !fits {
            return false;
        }
        transfer.received += length;
        if transfer.failure.is_none() {
            let copied = copy_out(
                &mut self.nic,
                packet,
                payload.offset,
                payload.length,
                transfer.target.as_slice(),
                offset,
            );
            self.statistics.copied_bytes += length;
            if copied.is_err() {
                transfer.failure = Some(Failure::new(Errno::EFAULT, ProviderError::ReceiveCopy));
            }
        }
        true
    }

    /// Ends a transfer that is complete or has failed.
    pub(super) fn finish_inbound(&mut self, id: ReceiveId) {
        let Some(Inbound::Active(transfer)) = self.inbound.remove(id) else {
            return;
        };
        if transfer.segmented {
            self.assemblies.remove(transfer.peer, transfer.msg_id);
        }
        if transfer.wants_receipt && transfer.is_complete() && transfer.failure.is_none() {
            self.queue_work(Work::Receipt {
                peer: transfer.peer,
                send_id: transfer.send_id,
                msg_id: transfer.msg_id,
            });
        }
        self.end_inbound(
            &transfer.ending,
            transfer.peer,
            transfer.length,
            transfer.capacity,
            transfer.failure,
        );
    }

    /// Tells the application how a message of `length` bytes for a buffer of `capacity` bytes ended.
    #[inline]
    pub(super) fn end_inbound(
        &mut self,
        ending: &Ending,
        peer: PeerId,
        length: u64,
        capacity: u64,
        failure: Option<Failure>,
    ) {
        let truncated =
            (length > capacity).then_some(Failure::new(Errno::ETRUNC, ProviderError::None));
        match failure.or(truncated) {
            None if ending.report_success => self.report(CompletionEntry {
                context: ending.context,
                flags: ending.flags,
                length,
                data: ending.cq_data.unwrap_or(0),
                tag: ending.tag,
                source: Some(peer),
            }),
            None => {}
            Some(failure) => self.report_error(ErrorEntry {
                context: ending.context,
                flags: ending.flags,
                length: length.min(capacity),
                overflow_length: length.saturating_sub(capacity),
                data: ending.cq_data.unwrap_or(0),
                tag: ending.tag,
                source: Some(peer),
                failure,
            }),
        }
    }

    /// Ends a transfer with a failure.
    pub(super) fn fail_inbound(&mut self, id: ReceiveId, failure: Failure) {
        if let Some(transfer) = self.transfer_mut(id) {
            transfer.failure.get_or_insert(failure);
            self.finish_inbound(id);
        }
    }
}
