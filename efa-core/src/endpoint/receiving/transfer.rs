//! Operations in which this endpoint is the destination of the data: receives, and reads; also the
//! responder's side of emulated writes.

use crate::nic::Nic;
use crate::wire::{ExtraFeatures, MsgId, PacketType, Payload, ReadNack, RecvId, SendId};

use crate::endpoint::Endpoint;
use crate::endpoint::api::completion::{CompletionEntry, CompletionFlags, ErrorEntry, Event};
use crate::endpoint::api::error::{EndpointError, Errno, Failure, ProviderError};
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::ids::{PeerId, ReceiveId};
use crate::endpoint::memory::iov::{Iov, copy_out};
use crate::endpoint::posting::Owner;
use crate::endpoint::posting::Work;
use crate::endpoint::receiving::held::ReceivedPacket;
use crate::endpoint::receiving::matching::PostedEntry;
use crate::endpoint::receiving::multi_receive::{MultiKey, Part};
use crate::endpoint::receiving::table::Inbound;
use crate::endpoint::subprotocols::rdma::PlanKey;

/// A posted receive.
pub(crate) struct Posted {
    pub(crate) context: u64,
    /// Success is reported, not only failure.
    pub(crate) report_success: bool,
    pub(crate) target: Iov,
    /// Length of the target in bytes.
    pub(crate) capacity: u64,
    /// Its place among the posted receives of its kind.
    pub(crate) tagged: bool,
    pub(crate) entry: PostedEntry,
    /// It takes several messages.
    pub(crate) multi: Option<MultiKey>,
}

impl Posted {
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
enum Ask {
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
    /// Whether it is an operation of the peer on our memory.
    pub(crate) fn is_peers(&self) -> bool {
        matches!(self.audience, Audience::Target(_))
    }

    /// Whether it was a peer that decided that there is such an operation: a write, or one of who
    /// knows how many messages for a multi-receive buffer.
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

    /// Whether all data has arrived.
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

    /// Whether it is a read of this endpoint's application.
    pub(crate) fn is_read(&self) -> bool {
        self.ending.flags.contains(CompletionFlags::READ)
    }
}

impl<N: Nic> Endpoint<N> {
    /// An active transfer.
    #[inline]
    pub(crate) fn transfer_mut(&mut self, id: ReceiveId) -> Option<&mut Transfer> {
        match self.inbound.get_mut(id) {
            Some(Inbound::Active(transfer)) => Some(transfer),
            _ => None,
        }
    }

    /// An active transfer with a peer: what a packet of that peer may name.
    pub(crate) fn transfer_with(&mut self, peer: PeerId, id: RecvId) -> Option<ReceiveId> {
        let id = ReceiveId::from_wire(id.0);
        self.transfer_mut(id)
            .is_some_and(|transfer| transfer.peer == peer)
            .then_some(id)
    }

    /// Takes a piece of a transfer's data out of a packet. Returns whether the piece fits what is
    /// known of the transfer; if not, nothing happened.
    pub(crate) fn take_data(
        &mut self,
        id: ReceiveId,
        packet: &ReceivedPacket,
        payload: Payload,
        offset: u64,
        protocol: Protocol,
    ) -> bool {
        let Some(Inbound::Active(transfer)) = self.inbound.get_mut(id) else {
            return false;
        };
        let length = payload.length as u64;
        let fits = offset
            .checked_add(length)
            .is_some_and(|end| end <= transfer.length)
            && length <= transfer.length - transfer.received - transfer.to_read;
        if !fits {
            return false;
        }
        transfer.received += length;
        if transfer.failure.is_none() {
            let copied = copy_out(
                self.posting.nic_mut(),
                packet,
                payload.offset,
                payload.length,
                transfer.target.as_slice(),
                offset,
            );
            let taken = length.min(transfer.capacity.saturating_sub(offset));
            self.reports.statistics.note_received(protocol, taken);
            if copied.is_err() {
                transfer.failure = Some(Failure::new(Errno::EFAULT, ProviderError::ReceiveCopy));
            }
        }
        true
    }

    /// Goes on with a transfer after something arrived: ends it, or asks for more if the peer waits
    /// to be asked.
    pub(crate) fn go_on_with(&mut self, id: ReceiveId) {
        let Some(Inbound::Active(transfer)) = self.inbound.get(id) else {
            return;
        };
        if transfer.aborted || transfer.is_complete() {
            if !self.has_reads_in_flight(transfer) {
                self.finish_inbound(id);
            }
            return;
        }
        match transfer.supply {
            Supply::Windows { granted: 0 } => self.ask(id, Ask::Cts),
            Supply::Refused { in_packets } if transfer.received >= in_packets => {
                let features = self.features(transfer.peer);
                match features {
                    None => {}
                    Some(features) if features.extra.contains(ExtraFeatures::READ_NACK) => {
                        self.ask(id, Ask::ReadNack);
                    }
                    Some(_) => {
                        // libfabric before 1.20 knows no other way to send the data.
                        let failure = Failure::new(Errno::ENOMEM, ProviderError::RdmaReadPost);
                        self.fail_inbound(id, failure);
                    }
                }
            }
            _ => {}
        }
    }

    fn ask(&mut self, id: ReceiveId, ask: Ask) {
        if let Some(transfer) = self.transfer_mut(id) {
            transfer.ask = ask;
            self.queue_inbound(id);
        }
    }

    /// Queues a transfer for which there is something to send or to post.
    pub(crate) fn queue_inbound(&mut self, id: ReceiveId) {
        if let Some(transfer) = self.transfer_mut(id)
            && !transfer.queued
        {
            transfer.queued = true;
            self.posting.queue(Work::Inbound(id));
        }
    }

    /// Sends and posts what a transfer needs. Returns whether there is more.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`].
    pub(crate) fn serve_inbound(&mut self, id: ReceiveId) -> Result<bool, EndpointError> {
        let Some(transfer) = self.transfer_mut(id) else {
            return Ok(false);
        };
        if !transfer.aborted {
            match transfer.ask {
                Ask::Nothing => {}
                Ask::Cts => self.send_cts(id)?,
                Ask::ReadNack => self.send_read_nack(id)?,
            }
        }
        let more = self.post_reads(id)?;
        if let Some(transfer) = self.transfer_mut(id) {
            transfer.ask = Ask::Nothing;
            transfer.queued = more;
        }
        Ok(more)
    }

    fn send_read_nack(&mut self, id: ReceiveId) -> Result<(), EndpointError> {
        let Some(transfer) = self.transfer_mut(id) else {
            return Ok(());
        };
        let (peer, send_id) = (transfer.peer, transfer.send_id);
        let is_write = transfer.ending.is_peers();
        let nack = ReadNack {
            send_id,
            recv_id: RecvId(id.to_wire()),
            connid: Some(self.address.qkey.into()),
            ..ReadNack::default()
        };
        let owner = if is_write {
            Owner::Nobody
        } else {
            Owner::Inbound(id)
        };
        self.send_for(id, peer, owner, &nack)?;
        if let Some(transfer) = self.transfer_mut(id) {
            transfer.supply = Supply::Nacked;
        }
        if is_write {
            // The peer starts the write afresh, with a request of another kind.
            self.inbound.remove_active(id);
            self.end_operation(peer);
            self.end_request(peer);
        }
        Ok(())
    }

    /// Sends a packet for a transfer; an error other than want of room ends the transfer.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`].
    pub(crate) fn send_for(
        &mut self,
        id: ReceiveId,
        peer: PeerId,
        owner: Owner,
        header: &impl crate::wire::Repr,
    ) -> Result<(), EndpointError> {
        let posted = self
            .posting
            .start_packet(header)
            .and_then(|packet| self.post_packet(peer, owner, packet));
        match posted {
            Ok(()) => Ok(()),
            Err(EndpointError::TryAgain) => Err(EndpointError::TryAgain),
            Err(error) => {
                self.fail_inbound(id, Failure::of_post(&error));
                Ok(())
            }
        }
    }

    /// Ends a transfer that is complete or was aborted, and of which the device has nothing.
    fn finish_inbound(&mut self, id: ReceiveId) {
        let Some(transfer) = self.inbound.remove_active(id) else {
            return;
        };
        if transfer.assembled {
            self.assemblies.remove(transfer.peer, transfer.msg_id);
        }
        if transfer.ending.is_remote() {
            self.end_operation(transfer.peer);
        }
        if transfer.ending.is_peers() {
            self.end_request(transfer.peer);
        }
        let delivered = transfer.is_complete() && transfer.failure.is_none();
        if let Some(plan) = transfer.plan
            && self.end_reads(plan)
            && delivered
        {
            self.queue_eor(transfer.peer, transfer.send_id, id);
        }
        if transfer.wants_receipt && delivered {
            self.queue_receipt(transfer.peer, transfer.send_id, transfer.msg_id);
        }
        self.end_inbound(
            &transfer.ending,
            transfer.peer,
            transfer.length,
            transfer.capacity,
            transfer.failure,
        );
    }

    /// Tells how a message of `length` bytes for a buffer of `capacity` bytes ended.
    #[inline(always)]
    pub(crate) fn end_inbound(
        &mut self,
        ending: &Ending,
        peer: PeerId,
        length: u64,
        capacity: u64,
        failure: Option<Failure>,
    ) {
        let truncated =
            (length > capacity).then_some(Failure::new(Errno::ETRUNC, ProviderError::None));
        let failure = failure.or(truncated);
        let is_own = ending.flags.contains(CompletionFlags::READ);
        let mut flags = ending.flags;
        if let Some(part) = ending.part {
            flags.set(CompletionFlags::MULTI_RECV, self.end_part(part));
        }
        match (failure, ending.audience) {
            (_, Audience::Nobody) => {}
            (Some(failure), Audience::Target(request)) => {
                self.reports.event(Event::RemoteOperationFailed {
                    peer,
                    packet_type: request.code(),
                    failure,
                });
            }
            (Some(failure), Audience::Starter) => {
                self.reports.failed(ErrorEntry {
                    context: ending.context,
                    flags,
                    length: length.min(capacity),
                    overflow_length: length.saturating_sub(capacity),
                    data: ending.cq_data.unwrap_or(0),
                    tag: ending.tag,
                    source: Some(peer),
                    failure,
                });
            }
            // Of peers' operations only those with CQ data concern the application.
            (None, Audience::Target(_)) if !ending.report_success => {}
            (None, _) => {
                if ending.report_success {
                    self.reports.succeeded(CompletionEntry {
                        context: ending.context,
                        flags,
                        length,
                        data: ending.cq_data.unwrap_or(0),
                        tag: ending.tag,
                        source: (!is_own).then_some(peer),
                        buffer: ending.part.map_or(0, |part| part.address),
                    });
                } else {
                    self.reports.succeeded_silently(flags);
                }
            }
        }
    }

    /// Ends a transfer with a failure, as soon as the device is done with its memory.
    pub(crate) fn fail_inbound(&mut self, id: ReceiveId, failure: Failure) {
        if let Some(transfer) = self.transfer_mut(id) {
            transfer.failure.get_or_insert(failure);
            transfer.aborted = true;
            self.go_on_with(id);
        }
    }
}
