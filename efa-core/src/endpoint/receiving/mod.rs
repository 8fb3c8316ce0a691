//! Receiving: messages in order, their matching with receives, packets that wait, and the transfer
//! of data to its destination.
//!
//! [`Receiving`] owns this state and decides. It accesses neither packets nor memory: its caller
//! has the packets, copies data, and reports to peers and the application.

mod assembly;
mod matching;
mod multi_receive;
mod postponed;
mod read_plan;
mod reorder;
mod table;
mod transfer;
mod unexpected;

use slab::Slab;

use crate::endpoint::api::completion::CompletionFlags;
use crate::endpoint::api::config::EndpointConfig;
use crate::endpoint::api::error::Failure;
use crate::endpoint::api::operation::IoVec;
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::by_peer::{ByPeer, PeerLinks};
use crate::endpoint::base::hash::Mixer;
use crate::endpoint::base::ids::{Arena, ClaimId, PeerId, ReceiveId};
use crate::endpoint::memory::iov::Iov;
use crate::endpoint::memory::rdma::RdmaPart;
use crate::endpoint::memory::registration::{OwnRegions, Registered};
use crate::endpoint::posting::HeldId;
use crate::wire::{LongctsRtm, MsgId, RecvId, RmaIovs, SendId};

use assembly::{Assemblies, Assembly};
use matching::Matcher;
use multi_receive::MultiBuffers;
use postponed::PostponedParts;
use read_plan::ReadPlan;
use table::{Inbound, InboundTable};
use unexpected::MessageMatcher;

pub(crate) use matching::{Filter, Found};
pub(crate) use multi_receive::Part;
pub(crate) use postponed::{Postponed, PostponedPart};
pub(crate) use reorder::{Position, ReorderWindow};
pub(crate) use transfer::{
    Arrival, Ask, Audience, Ending, Posted, ReadStart, Step, Transfer, message_flags, receive_flags,
};
pub(crate) use unexpected::{Claim, UnexpectedMessage};

/// Names a [`ReadPlan`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlanKey(u32);

/// The state of receiving.
pub(crate) struct Receiving {
    untagged: MessageMatcher,
    tagged: MessageMatcher,
    table: InboundTable,
    assemblies: Assemblies,
    claims: Arena<Claim, ClaimId>,
    /// The claims by peer; each by its slot.
    claims_by_peer: ByPeer,
    multi_buffers: MultiBuffers,
    postponed: PostponedParts,
    plans: Slab<ReadPlan>,
}

/// A receive to post.
pub(crate) struct NewReceive {
    pub(crate) context: u64,
    /// Whether a success is reported, not only a failure.
    pub(crate) report_success: bool,
    pub(crate) tagged: bool,
    pub(crate) filter: Filter,
    pub(crate) target: Iov,
}

/// A window that the peer is granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    pub(crate) peer: PeerId,
    pub(crate) send_id: SendId,
    /// In bytes.
    pub(crate) length: u64,
    /// Whether it is for a read of this endpoint's application.
    pub(crate) is_read: bool,
}

/// A READ_NACK for a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Nack {
    pub(crate) peer: PeerId,
    pub(crate) send_id: SendId,
    /// Whether it refuses a peer's write, which the peer starts again with a request of another
    /// type.
    pub(crate) is_write: bool,
}

/// What has to be done for a transfer that ended.
#[derive(Debug)]
pub(crate) struct EndedTransfer {
    pub(crate) peer: PeerId,
    pub(crate) ending: Ending,
    /// Length of the whole message, and of the buffer, in bytes.
    pub(crate) length: u64,
    pub(crate) capacity: u64,
    pub(crate) failure: Option<Failure>,
    /// Registrations that have to be ended.
    pub(crate) own_regions: OwnRegions,
    /// The peer's operation to which an EOR has to be sent.
    pub(crate) eor: Option<SendId>,
    /// The peer's operation to which a RECEIPT has to be sent, and its message.
    pub(crate) receipt: Option<(SendId, MsgId)>,
}

/// Where a further packet of a message goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Segment {
    /// To a receive.
    Receive(ReceiveId),
    /// To the message's packets that wait, in front of this one.
    Kept(HeldId),
    /// Nowhere: no message lacks it.
    Unknown,
}

impl Receiving {
    /// Makes room for as many operations of the application as the settings say.
    pub(crate) fn new(config: &EndpointConfig, mixer: Mixer) -> Self {
        Receiving {
            untagged: Matcher::new(mixer),
            tagged: Matcher::new(mixer),
            table: InboundTable::new(config.max_operations),
            assemblies: Assemblies::new(mixer),
            claims: Arena::new(config.max_operations),
            claims_by_peer: ByPeer::default(),
            multi_buffers: MultiBuffers::default(),
            postponed: PostponedParts::default(),
            plans: Slab::new(),
        }
    }

    /// The number of receives posted, and of operations in flight that receive data.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// The number of messages that no receive has taken.
    pub(crate) fn unexpected_len(&self) -> usize {
        self.untagged.unexpected_len() + self.tagged.unexpected_len()
    }

    /// The number of messages of which packets are missing.
    pub(crate) fn assemblies_len(&self) -> usize {
        self.assemblies.len()
    }

    /// The number of messages that the application claimed.
    pub(crate) fn claims_len(&self) -> usize {
        self.claims.len()
    }

    /// Returns whether there is no room for another operation of the application.
    pub(crate) fn is_full(&self) -> bool {
        self.table.is_full()
    }

    #[inline]
    fn matcher(&mut self, tagged: bool) -> &mut MessageMatcher {
        match tagged {
            true => &mut self.tagged,
            false => &mut self.untagged,
        }
    }

    /// The matcher of tagged or of untagged receives, and the table of receives.
    #[inline]
    fn matching(&mut self, tagged: bool) -> (&mut MessageMatcher, &mut InboundTable) {
        match tagged {
            true => (&mut self.tagged, &mut self.table),
            false => (&mut self.untagged, &mut self.table),
        }
    }
}

// Posted receives.
impl Receiving {
    /// Posts a receive, without looking at messages that have arrived. `None` if there are too many
    /// operations.
    #[inline(always)]
    pub(crate) fn post(&mut self, receive: NewReceive) -> Option<ReceiveId> {
        self.insert_posted(receive, None)
    }

    /// Posts a buffer for several messages, as [`Receiving::post`] posts a receive.
    pub(crate) fn post_multi(
        &mut self,
        receive: NewReceive,
        piece: IoVec,
        min_free: usize,
    ) -> Option<ReceiveId> {
        if self.is_full() {
            return None;
        }
        let multi = self.multi_buffers.insert(piece, min_free);
        self.insert_posted(receive, Some(multi))
    }

    #[inline(always)]
    fn insert_posted(
        &mut self,
        receive: NewReceive,
        multi: Option<multi_receive::MultiKey>,
    ) -> Option<ReceiveId> {
        let NewReceive {
            context,
            report_success,
            tagged,
            filter,
            target,
        } = receive;
        let entry = self.matcher(tagged).new_entry(&filter, multi.is_some());
        let posted = Posted {
            context,
            report_success,
            target,
            tagged,
            entry,
            multi,
            links: PeerLinks::NONE,
        };
        let id = self.table.insert_posted(posted).ok()?;
        let (matcher, receives) = self.matching(tagged);
        matcher.post(receives, id.slot());
        Some(id)
    }

    /// Finds the oldest receive that accepts a message. Removes it from the posted receives unless
    /// it takes several messages.
    #[inline]
    pub(crate) fn match_message(&mut self, peer: PeerId, tag: Option<u64>) -> Option<Found> {
        let (matcher, receives) = self.matching(tag.is_some());
        matcher.match_receive(receives, peer, tag.unwrap_or(0))
    }

    /// A receive that [`Receiving::match_message`] found.
    #[inline(always)]
    pub(crate) fn matched(&self, id: ReceiveId) -> Option<&Posted> {
        match self.table.get(id)? {
            Inbound::Posted(posted) => Some(posted),
            Inbound::Active(_) => None,
        }
    }

    /// Ends a receive that [`Receiving::match_message`] found: its message has only one packet.
    #[inline(always)]
    pub(crate) fn end_matched(&mut self, id: ReceiveId) {
        self.table.drop_posted(id);
    }

    /// Turns a receive that [`Receiving::match_message`] found into a transfer.
    pub(crate) fn activate(
        &mut self,
        id: ReceiveId,
        peer: PeerId,
        msg_id: MsgId,
        length: u64,
        (tag, cq_data): (Option<u64>, Option<u64>),
    ) {
        let Some(Inbound::Posted(posted)) = self.table.get_mut(id) else {
            return;
        };
        let ending = posted.ending(tag, cq_data);
        let target = posted.target.clone();
        let transfer = Transfer::new(peer, msg_id, length, target, ending);
        self.table.activate(id, transfer);
    }

    /// Gives a message the next part of a multi-receive buffer. `None` if the buffer takes no more
    /// messages.
    pub(crate) fn next_part(
        &mut self,
        id: ReceiveId,
        length: u64,
        cq_data: Option<u64>,
    ) -> Option<(IoVec, Ending)> {
        let Some(Inbound::Posted(posted)) = self.table.get(id) else {
            return None;
        };
        let mut ending = posted.ending(None, cq_data);
        let (part, target, is_last) = self.multi_buffers.next_part(posted.multi?, length)?;
        if is_last {
            self.untagged.remove_receive(&mut self.table, id.slot());
            self.table.remove_posted(id);
        }
        ending.part = Some(part);
        Some((target, ending))
    }

    /// Notes that a message of a multi-receive buffer is complete. Returns whether the application
    /// may use the buffer again.
    pub(crate) fn end_part(&mut self, part: Part) -> bool {
        self.multi_buffers.end_part(part)
    }

    /// Removes a posted receive that no message has matched. Returns its context and the flags of
    /// its completion.
    pub(crate) fn withdraw(&mut self, id: ReceiveId) -> Option<(u64, CompletionFlags)> {
        let Some(Inbound::Posted(posted)) = self.table.get(id) else {
            return None;
        };
        let tagged = posted.tagged;
        let (matcher, receives) = self.matching(tagged);
        matcher.remove_receive(receives, id.slot());
        let posted = self.table.remove_posted(id)?;
        let mut flags = message_flags(tagged, CompletionFlags::RECV);
        if let Some(multi) = posted.multi {
            flags.set(CompletionFlags::MULTI_RECV, self.multi_buffers.close(multi));
        }
        Some((posted.context, flags))
    }

    /// The oldest receive that was posted with a context. Takes time in proportion to the number of
    /// posted receives.
    pub(crate) fn oldest_with_context(&self, context: u64) -> Option<ReceiveId> {
        let posted = self.table.posted();
        posted
            .filter(|(_, posted)| posted.context == context)
            .min_by_key(|(_, posted)| posted.age())
            .map(|(id, _)| id)
    }

    /// The receives that name a peer as their source, oldest first.
    pub(crate) fn posted_for(&self, peer: PeerId) -> Vec<ReceiveId> {
        self.table.posted_for(peer)
    }
}

// Unexpected messages.
impl Receiving {
    /// Keeps a message that no receive accepts.
    pub(crate) fn keep(&mut self, peer: PeerId, tag: Option<u64>, message: UnexpectedMessage) {
        let tagged = tag.is_some();
        let (msg_id, segmented) = (message.msg_id, message.segmented);
        let key = self
            .matcher(tagged)
            .add_unexpected(peer, tag.unwrap_or(0), message);
        if segmented {
            self.assemblies
                .set(peer, msg_id, Assembly::Unexpected { tagged, key });
        }
    }

    /// The first message to have arrived that a receive with this filter would accept.
    pub(crate) fn first_unexpected(
        &mut self,
        tagged: bool,
        filter: &Filter,
    ) -> Option<(PeerId, u64, &UnexpectedMessage)> {
        let matcher = self.matcher(tagged);
        let key = matcher.find_unexpected(filter)?;
        let (peer, tag, message) = matcher.unexpected_mut(key);
        Some((peer, tag, message))
    }

    /// Removes the first message to have arrived that a receive with this filter accepts. Returns
    /// it with its source and tag.
    #[inline(always)]
    pub(crate) fn take_unexpected(
        &mut self,
        tagged: bool,
        filter: &Filter,
    ) -> Option<(PeerId, u64, UnexpectedMessage)> {
        let matcher = self.matcher(tagged);
        // Usually receives are posted before their messages arrive.
        match matcher.unexpected_len() {
            0 => None,
            _ => matcher
                .find_unexpected(filter)
                .map(|key| matcher.remove_unexpected(key)),
        }
    }

    /// Removes all messages of a peer that no receive has taken, including claimed ones.
    pub(crate) fn take_all_of(&mut self, peer: PeerId) -> Vec<UnexpectedMessage> {
        let mut messages = Vec::new();
        for tagged in [false, true] {
            let matcher = self.matcher(tagged);
            for key in matcher.unexpected_from(peer) {
                messages.push(matcher.remove_unexpected(key).2);
            }
        }
        for slot in self.claims_by_peer.of(&self.claims, peer) {
            let id = self.claims.at(slot as usize).map(|(id, _)| id);
            messages.extend(
                id.and_then(|id| self.take_claim(id))
                    .map(|claim| claim.message),
            );
        }
        messages
    }

    /// Returns whether a peer has no messages, transfers, claims, or receives that name it.
    pub(crate) fn has_none_of(&self, peer: PeerId) -> bool {
        self.table.has_none_with(peer)
            && self.claims_by_peer.is_empty(peer)
            && self.untagged.has_none_from(peer)
            && self.tagged.has_none_from(peer)
    }

    /// Reserves the first message to have arrived that a receive with this filter would accept.
    pub(crate) fn claim(&mut self, tagged: bool, filter: &Filter) -> Option<ClaimId> {
        if self.claims.is_full() {
            return None;
        }
        let (peer, tag, message) = self.take_unexpected(tagged, filter)?;
        let (msg_id, segmented) = (message.msg_id, message.segmented);
        let claim = Claim {
            peer,
            tagged,
            tag,
            message,
            links: PeerLinks::NONE,
        };
        let id = self.claims.insert(claim).ok()?;
        self.claims_by_peer.push(&mut self.claims, peer, id.slot());
        if segmented {
            self.assemblies.set(peer, msg_id, Assembly::Claimed(id));
        }
        Some(id)
    }

    /// Removes a message that was reserved.
    pub(crate) fn take_claim(&mut self, id: ClaimId) -> Option<Claim> {
        let peer = self.claims.get(id)?.peer;
        self.claims_by_peer
            .remove(&mut self.claims, peer, id.slot());
        self.claims.remove(id)
    }

    /// Makes a message wait that has its part of a multi-receive buffer.
    pub(crate) fn postpone(&mut self, peer: PeerId, part: PostponedPart) -> Postponed {
        let (msg_id, segmented) = (part.message.msg_id, part.message.segmented);
        let key = self.postponed.insert(part);
        if segmented {
            self.assemblies.set(peer, msg_id, Assembly::Waiting(key));
        }
        Postponed::Part(key)
    }

    /// Removes a message of [`Receiving::postpone`].
    pub(crate) fn take_postponed(&mut self, key: postponed::PartKey) -> PostponedPart {
        self.postponed.remove(key)
    }
}

// Further packets of messages.
impl Receiving {
    /// Directs further packets of a message to a transfer.
    pub(crate) fn assemble(&mut self, id: ReceiveId) {
        if let Some(Inbound::Active(transfer)) = self.table.get_mut(id)
            && !transfer.assembled
        {
            transfer.assembled = true;
            self.assemblies
                .set(transfer.peer, transfer.msg_id, Assembly::Receive(id));
        }
    }

    /// Forgets where further packets of a message go.
    pub(crate) fn forget_segments(&mut self, peer: PeerId, message: &UnexpectedMessage) {
        if message.segmented {
            self.assemblies.remove(peer, message.msg_id);
        }
    }

    /// Finds out where a further packet of a message goes.
    pub(crate) fn segment(&mut self, peer: PeerId, msg_id: MsgId) -> Segment {
        match self.assemblies.get(peer, msg_id) {
            Some(Assembly::Receive(id)) => Segment::Receive(id),
            Some(assembly) => self
                .head_of(assembly)
                .map_or(Segment::Unknown, |head| Segment::Kept(*head)),
            None => Segment::Unknown,
        }
    }

    /// Adds a packet, which waits in front of the others, to a message that no receive has taken.
    pub(crate) fn add_segment(&mut self, peer: PeerId, msg_id: MsgId, packet: HeldId) {
        if let Some(assembly) = self.assemblies.get(peer, msg_id)
            && let Some(head) = self.head_of(assembly)
        {
            *head = packet;
        }
    }

    /// The first link of the packets of a message that no receive has taken.
    fn head_of(&mut self, assembly: Assembly) -> Option<&mut HeldId> {
        match assembly {
            Assembly::Unexpected { tagged, key } => {
                Some(&mut self.matcher(tagged).unexpected_mut(key).2.head)
            }
            Assembly::Claimed(id) => Some(&mut self.claims.get_mut(id)?.message.head),
            Assembly::Waiting(key) => self.postponed.head(key),
            Assembly::Receive(_) => None,
        }
    }
}

// Transfers.
impl Receiving {
    /// Starts a transfer. `None` if the application has too many operations. Operations of peers
    /// always have room.
    pub(crate) fn start(&mut self, transfer: Transfer) -> Option<ReceiveId> {
        self.table.insert_active(transfer).ok()
    }

    fn transfer(&self, id: ReceiveId) -> Option<&Transfer> {
        match self.table.get(id)? {
            Inbound::Active(transfer) => Some(transfer),
            Inbound::Posted(_) => None,
        }
    }

    fn transfer_mut(&mut self, id: ReceiveId) -> Option<&mut Transfer> {
        match self.table.get_mut(id)? {
            Inbound::Active(transfer) => Some(transfer),
            Inbound::Posted(_) => None,
        }
    }

    /// The peer of a transfer.
    pub(crate) fn peer(&self, id: ReceiveId) -> Option<PeerId> {
        self.transfer(id).map(|transfer| transfer.peer)
    }

    /// Returns whether a transfer is of a message of this length in bytes.
    pub(crate) fn is_of_length(&self, id: ReceiveId, length: u64) -> bool {
        let transfer = self.transfer(id);
        transfer.is_some_and(|transfer| transfer.length == length)
    }

    /// The transfer that a packet of a peer names, if it is with that peer.
    pub(crate) fn transfer_with(&self, peer: PeerId, id: RecvId) -> Option<ReceiveId> {
        let id = ReceiveId::from_wire(id.0);
        let is_with = |transfer: &Transfer| transfer.peer == peer;
        self.transfer(id).is_some_and(is_with).then_some(id)
    }

    /// The transfers with a peer, in the order of their start.
    pub(crate) fn transfers_with(&self, peer: PeerId) -> Vec<ReceiveId> {
        self.table.transfers_with(peer)
    }

    /// The writes of peers to targets that `pick` accepts.
    pub(crate) fn peers_writes(&self, pick: impl Fn(&Iov) -> bool) -> Vec<ReceiveId> {
        let transfers = self.table.transfers();
        transfers
            .filter(|(_, transfer)| transfer.ending.is_peers() && pick(&transfer.target))
            .map(|(id, _)| id)
            .collect()
    }

    /// What has to be done for a transfer next.
    pub(crate) fn next_step(&self, id: ReceiveId) -> Step {
        let Some(transfer) = self.transfer(id) else {
            return Step::Wait;
        };
        match transfer.next_step() {
            // The device still writes the transfer's memory.
            Step::Finish if self.plan_of(transfer).is_some_and(ReadPlan::is_outstanding) => {
                Step::Wait
            }
            step => step,
        }
    }

    /// Notes that a transfer failed. [`Receiving::next_step`] returns when it ends.
    pub(crate) fn abort(&mut self, id: ReceiveId, failure: Failure) {
        if let Some(transfer) = self.transfer_mut(id) {
            transfer.abort(failure);
        }
    }

    /// Removes a transfer that ends.
    pub(crate) fn finish(&mut self, id: ReceiveId) -> Option<EndedTransfer> {
        let transfer = self.table.remove_active(id)?;
        if transfer.assembled {
            self.assemblies.remove(transfer.peer, transfer.msg_id);
        }
        let plan = transfer.plan;
        let plan = plan.map(|PlanKey(key)| self.plans.remove(key as usize));
        let delivered = transfer.is_delivered();
        let eor = plan.as_ref().is_some_and(|plan| plan.tells_peer) && delivered;
        let receipt = transfer.wants_receipt && delivered;
        Some(EndedTransfer {
            peer: transfer.peer,
            ending: transfer.ending,
            length: transfer.length,
            capacity: transfer.capacity,
            failure: transfer.failure,
            own_regions: plan.and_then(|plan| plan.own_regions),
            eor: eor.then_some(transfer.send_id),
            receipt: receipt.then_some((transfer.send_id, transfer.msg_id)),
        })
    }
}

// Data in packets.
impl Receiving {
    /// Notes a piece of a transfer's data: one that the peer sent without being asked or, with
    /// `in_window`, one that it was granted.
    #[inline]
    pub(crate) fn arrived(
        &mut self,
        id: ReceiveId,
        offset: u64,
        length: u64,
        in_window: bool,
    ) -> Arrival<'_> {
        match (self.transfer_mut(id), in_window) {
            (None, _) => Arrival::Misfit,
            (Some(transfer), false) => transfer.arrived(offset, length),
            (Some(transfer), true) => transfer.arrived_in_window(offset, length),
        }
    }

    /// Notes that a piece could not be copied to the target. The transfer fails when all its data
    /// has arrived.
    pub(crate) fn copy_failed(&mut self, id: ReceiveId, failure: Failure) {
        if let Some(transfer) = self.transfer_mut(id) {
            transfer.fail(failure);
        }
    }

    /// Notes the peer's operation to which a RECEIPT has to be sent, if there is one.
    pub(crate) fn note_receipt(&mut self, id: ReceiveId, receipt: Option<SendId>) {
        if let Some(transfer) = self.transfer_mut(id) {
            transfer.note_receipt(receipt);
        }
    }

    /// Notes that the peer's operation sends the rest of a transfer in windows.
    pub(crate) fn windows_follow(
        &mut self,
        id: ReceiveId,
        send_id: SendId,
        delivery_complete: bool,
    ) {
        if let Some(transfer) = self.transfer_mut(id) {
            transfer.windows_follow(send_id, delivery_complete);
        }
    }

    /// The next window for the peer, of at most `limit` bytes.
    pub(crate) fn next_window(&self, id: ReceiveId, limit: u64) -> Option<Window> {
        let transfer = self.transfer(id)?;
        Some(Window {
            peer: transfer.peer,
            send_id: transfer.send_id,
            length: (transfer.length - transfer.received).min(limit),
            is_read: transfer.is_read(),
        })
    }

    /// Notes that the peer was granted a window of this many bytes.
    pub(crate) fn granted(&mut self, id: ReceiveId, bytes: u64) {
        if let Some(transfer) = self.transfer_mut(id) {
            transfer.granted(bytes);
        }
    }

    /// The peer of a transfer in windows, and the protocol of their data.
    pub(crate) fn windowed(&self, id: ReceiveId) -> Option<(PeerId, Protocol)> {
        let transfer = self.transfer(id)?;
        Some((transfer.peer, transfer.windowed()))
    }

    /// Takes the first data of an emulated read. Returns the transfer; `None` if the peer was not
    /// asked for it.
    pub(crate) fn responded(
        &mut self,
        peer: PeerId,
        id: RecvId,
        send_id: SendId,
    ) -> Option<ReceiveId> {
        let id = self.transfer_with(peer, id)?;
        let is_first = self.transfer_mut(id)?.responded(send_id);
        is_first.then_some(id)
    }

    /// The fetching atomic that a packet of a peer names.
    pub(crate) fn atomic_with(&self, peer: PeerId, id: RecvId) -> Option<ReceiveId> {
        let flags = CompletionFlags::ATOMIC | CompletionFlags::READ;
        let id = self.transfer_with(peer, id)?;
        let transfer = self.transfer(id)?;
        transfer.ending.flags.contains(flags).then_some(id)
    }
}

// Packets and reads that transfers need.
impl Receiving {
    /// Notes that something has to be sent or posted for a transfer. Returns whether it has to be
    /// queued.
    #[must_use]
    pub(crate) fn enqueue(&mut self, id: ReceiveId) -> bool {
        self.transfer_mut(id).is_some_and(Transfer::enqueue)
    }

    /// Notes which packet has to be sent to the peer of a transfer next.
    pub(crate) fn ask(&mut self, id: ReceiveId, ask: Ask) {
        if let Some(transfer) = self.transfer_mut(id) {
            transfer.ask(ask);
        }
    }

    /// The packet that has to be sent to the peer of a transfer now. `None` if there is no such
    /// transfer.
    pub(crate) fn asks(&self, id: ReceiveId) -> Option<Ask> {
        self.transfer(id).map(Transfer::asks)
    }

    /// Notes that the packet was sent, and whether there is more to post.
    pub(crate) fn served(&mut self, id: ReceiveId, more: bool) {
        if let Some(transfer) = self.transfer_mut(id) {
            transfer.served(more);
        }
    }

    /// The READ_NACK for a transfer.
    pub(crate) fn nack(&self, id: ReceiveId) -> Option<Nack> {
        let transfer = self.transfer(id)?;
        Some(Nack {
            peer: transfer.peer,
            send_id: transfer.send_id,
            is_write: transfer.ending.is_peers(),
        })
    }

    /// Notes that READ_NACK was sent for a message.
    pub(crate) fn nacked(&mut self, id: ReceiveId) {
        if let Some(transfer) = self.transfer_mut(id) {
            transfer.nacked();
        }
    }

    /// Takes the answer to READ_NACK: the peer sends the rest in windows. Returns the transfer;
    /// `None` if the packet is no such answer.
    pub(crate) fn nack_answered(&mut self, peer: PeerId, long: &LongctsRtm) -> Option<ReceiveId> {
        let Segment::Receive(id) = self.segment(peer, long.msg_id) else {
            return None;
        };
        let transfer = self.transfer_mut(id)?;
        let (length, send_id) = (long.msg_length, long.send_id);
        let is_answer = transfer.nack_answered(length, send_id, long.delivery_complete);
        is_answer.then_some(id)
    }
}

// RDMA reads of transfers.
impl Receiving {
    fn plan_of(&self, transfer: &Transfer) -> Option<&ReadPlan> {
        let PlanKey(key) = transfer.plan?;
        self.plans.get(key as usize)
    }

    fn plan_of_mut(&mut self, id: ReceiveId) -> Option<(&mut Transfer, &mut ReadPlan)> {
        let Inbound::Active(transfer) = self.table.get_mut(id)? else {
            return None;
        };
        let PlanKey(key) = transfer.plan?;
        Some((transfer, self.plans.get_mut(key as usize)?))
    }

    /// Takes a packet that says where the data beyond the first `in_packets` bytes of a transfer
    /// can be read.
    pub(crate) fn readable(
        &mut self,
        id: ReceiveId,
        send_id: SendId,
        remote: &RmaIovs,
        in_packets: u64,
    ) -> ReadStart {
        match self.transfer_mut(id) {
            Some(transfer) => transfer.readable(send_id, remote, in_packets),
            None => ReadStart::Mismatch,
        }
    }

    /// Notes the peer's operation whose data is to be read.
    pub(crate) fn note_sender(&mut self, id: ReceiveId, send_id: SendId) {
        if let Some(transfer) = self.transfer_mut(id) {
            transfer.send_id = send_id;
        }
    }

    /// The memory to which the data of a transfer goes.
    pub(crate) fn target(&self, id: ReceiveId) -> Option<&Iov> {
        self.transfer(id).map(|transfer| &transfer.target)
    }

    /// Plans to read the bytes of a transfer from `next` on into its target, which is registered
    /// now. Bytes beyond the target count as received.
    pub(crate) fn plan_reads(
        &mut self,
        id: ReceiveId,
        remote: RmaIovs,
        next: u64,
        tells_peer: bool,
        target: Registered,
    ) {
        let Some(Inbound::Active(transfer)) = self.table.get_mut(id) else {
            return;
        };
        let plan = self.plans.vacant_entry();
        let end = transfer.plan(PlanKey(plan.key() as u32), next);
        transfer.target = target.pieces;
        let own_regions = target.own_regions;
        plan.insert(ReadPlan::new(remote, next, end, tells_peer, own_regions));
    }

    /// Notes that the data of a transfer beyond the first `in_packets` bytes cannot be read.
    /// Returns its peer.
    pub(crate) fn refuse_read(&mut self, id: ReceiveId, in_packets: u64) -> Option<PeerId> {
        let transfer = self.transfer_mut(id)?;
        transfer.refuse(in_packets);
        let (peer, is_message) = (transfer.peer, !transfer.ending.is_peers());
        if is_message {
            // The answer to READ_NACK finds the transfer by its message id.
            self.assemble(id);
        }
        Some(peer)
    }

    /// The next read of a transfer, of at most `limit` bytes. `Ok(None)` if there is nothing to
    /// post.
    ///
    /// # Errors
    /// The peer's memory is shorter than its message.
    pub(crate) fn next_read(
        &self,
        id: ReceiveId,
        limit: usize,
    ) -> Result<Option<(PeerId, RdmaPart)>, ()> {
        let Some(transfer) = self.transfer(id) else {
            return Ok(None);
        };
        match self.plan_of(transfer) {
            Some(plan) if transfer.failure.is_none() && plan.has_more() => {
                let part = plan.next(transfer.target.as_slice(), limit).ok_or(())?;
                Ok(Some((transfer.peer, part)))
            }
            _ => Ok(None),
        }
    }

    /// Notes that the next read of a transfer was posted.
    pub(crate) fn read_posted(&mut self, id: ReceiveId, length: u64) {
        if let Some((_, plan)) = self.plan_of_mut(id) {
            plan.posted(length);
        }
    }

    /// Notes that the device has completed a read of `length` bytes. Returns whether it belongs to
    /// a transfer.
    pub(crate) fn read_done(&mut self, id: ReceiveId, length: u64) -> bool {
        let Some((transfer, plan)) = self.plan_of_mut(id) else {
            return false;
        };
        plan.done();
        transfer.read(length);
        true
    }

    /// Takes the registrations of all transfers, when the endpoint is closed.
    pub(crate) fn take_registrations(&mut self) -> Vec<OwnRegions> {
        self.plans.drain().map(|plan| plan.own_regions).collect()
    }
}

#[cfg(test)]
mod tests;
