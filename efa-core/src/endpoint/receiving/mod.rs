//! What comes in: messages in their order, matched with receives; their packets, kept while they wait;
//! and data on its way to where the application wants it.
//!
//! [`Receiving`] owns what is known of all that and decides; it touches neither packets nor memory. Its
//! caller has the packets, copies data, and tells peers and the application.

mod assembly;
mod matching;
mod multi_receive;
mod postponed;
mod reads;
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
use reads::ReadPlan;
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

/// All that comes in.
pub(crate) struct Receiving {
    untagged: MessageMatcher,
    tagged: MessageMatcher,
    table: InboundTable,
    assemblies: Assemblies,
    claims: Arena<Claim, ClaimId>,
    /// The claims, by slot.
    claims_by_peer: ByPeer,
    multi_buffers: MultiBuffers,
    postponed: PostponedParts,
    plans: Slab<ReadPlan>,
}

/// A receive to post.
pub(crate) struct NewReceive {
    pub(crate) context: u64,
    /// Success is reported, not only failure.
    pub(crate) report_success: bool,
    pub(crate) tagged: bool,
    pub(crate) filter: Filter,
    pub(crate) target: Iov,
}

/// The window that a peer is to be granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    pub(crate) peer: PeerId,
    pub(crate) send_id: SendId,
    /// In bytes.
    pub(crate) length: u64,
    /// It is for a read of this endpoint's application.
    pub(crate) is_read: bool,
}

/// The READ_NACK for a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Nack {
    pub(crate) peer: PeerId,
    pub(crate) send_id: SendId,
    /// It is for a peer's write. The peer starts that afresh, with a request of another kind.
    pub(crate) is_write: bool,
}

/// What is left to do for a transfer that ended.
#[derive(Debug)]
pub(crate) struct EndedTransfer {
    pub(crate) peer: PeerId,
    pub(crate) ending: Ending,
    /// Length of the whole message, and of the buffer, in bytes.
    pub(crate) length: u64,
    pub(crate) capacity: u64,
    pub(crate) failure: Option<Failure>,
    /// To be deregistered.
    pub(crate) own_regions: OwnRegions,
    /// The peer's operation that waits for EOR.
    pub(crate) eor: Option<SendId>,
    /// The peer's operation that waits for RECEIPT, and its message.
    pub(crate) receipt: Option<(SendId, MsgId)>,
}

/// Where the next packet of a message goes whose first packet was processed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Segment {
    /// To a receive.
    Receive(ReceiveId),
    /// To the message's other packets, of which this is the last.
    Kept(HeldId),
    /// Nowhere: no message lacks it.
    Unknown,
}

impl Receiving {
    /// With room for as many operations of the application as the settings say.
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

    /// Receives posted, and operations in flight that take data.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Messages that no receive has taken.
    pub(crate) fn unexpected_len(&self) -> usize {
        self.untagged.unexpected_len() + self.tagged.unexpected_len()
    }

    /// Messages of which some packets have not come.
    pub(crate) fn assemblies_len(&self) -> usize {
        self.assemblies.len()
    }

    /// Messages that the application claimed.
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

    /// The receives of one kind, and where they are.
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
    /// Posts a receive; no message that is here already is looked at. `None` if there are too many
    /// operations.
    #[inline(always)]
    pub(crate) fn post(&mut self, receive: NewReceive) -> Option<ReceiveId> {
        self.insert_posted(receive, None)
    }

    /// Posts a buffer for several messages, as [`Receiving::post`].
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

    /// Finds the oldest receive that accepts a message, and takes it out of the posted ones unless it
    /// takes several.
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

    /// Ends a receive that [`Receiving::match_message`] found: its message was one packet.
    #[inline(always)]
    pub(crate) fn end_matched(&mut self, id: ReceiveId) {
        self.table.drop_posted(id);
    }

    /// Makes a receive that [`Receiving::match_message`] found a transfer of a message.
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

    /// Gives a message the next part of a multi-receive buffer. `None` if that takes no more.
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

    /// Notes that a message of a multi-receive buffer is complete. Returns whether the buffer is the
    /// application's again.
    pub(crate) fn end_part(&mut self, part: Part) -> bool {
        self.multi_buffers.end_part(part)
    }

    /// Takes out a posted receive that no message has matched. Returns its context and the flags of
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

    /// The oldest receive posted with a context; linear in the number of posted receives.
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

// Messages that are here before their receives.
impl Receiving {
    /// Keeps a message that no receive accepts yet.
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

    /// Looks at the first message to have arrived that a receive would accept.
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

    /// Takes out the first message to have arrived that a receive accepts, with its source and tag.
    #[inline(always)]
    pub(crate) fn take_unexpected(
        &mut self,
        tagged: bool,
        filter: &Filter,
    ) -> Option<(PeerId, u64, UnexpectedMessage)> {
        let matcher = self.matcher(tagged);
        // Usually receives are here first.
        match matcher.unexpected_len() {
            0 => None,
            _ => matcher
                .find_unexpected(filter)
                .map(|key| matcher.remove_unexpected(key)),
        }
    }

    /// Takes out all messages of a peer that no receive has taken, claimed ones included.
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

    /// Returns whether there is nothing of a peer or for it.
    pub(crate) fn has_none_of(&self, peer: PeerId) -> bool {
        self.table.has_none_with(peer)
            && self.claims_by_peer.is_empty(peer)
            && self.untagged.has_none_from(peer)
            && self.tagged.has_none_from(peer)
    }

    /// Reserves the first message to have arrived that a receive would accept.
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

    /// Takes out a message that was reserved.
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

    /// Takes out a message that has waited.
    pub(crate) fn take_postponed(&mut self, key: postponed::PartKey) -> PostponedPart {
        self.postponed.remove(key)
    }
}

// The packets of a message.
impl Receiving {
    /// Makes later packets of a message go to a transfer.
    pub(crate) fn assemble(&mut self, id: ReceiveId) {
        if let Some(Inbound::Active(transfer)) = self.table.get_mut(id)
            && !transfer.assembled
        {
            transfer.assembled = true;
            self.assemblies
                .set(transfer.peer, transfer.msg_id, Assembly::Receive(id));
        }
    }

    /// Forgets where later packets of a message go.
    pub(crate) fn forget_segments(&mut self, peer: PeerId, message: &UnexpectedMessage) {
        if message.segmented {
            self.assemblies.remove(peer, message.msg_id);
        }
    }

    /// Where a further packet of a message goes.
    pub(crate) fn segment(&mut self, peer: PeerId, msg_id: MsgId) -> Segment {
        match self.assemblies.get(peer, msg_id) {
            Some(Assembly::Receive(id)) => Segment::Receive(id),
            Some(assembly) => self
                .head_of(assembly)
                .map_or(Segment::Unknown, |head| Segment::Kept(*head)),
            None => Segment::Unknown,
        }
    }

    /// Puts a further packet, which waits in front of the others, to a message that no receive has
    /// taken.
    pub(crate) fn add_segment(&mut self, peer: PeerId, msg_id: MsgId, packet: HeldId) {
        if let Some(assembly) = self.assemblies.get(peer, msg_id)
            && let Some(head) = self.head_of(assembly)
        {
            *head = packet;
        }
    }

    /// The packets so far of a message that no receive has taken.
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
    /// Adds an operation that takes data. `None` if there are too many of the application; there is
    /// always room for those of peers.
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

    /// Returns whether a message is of this length.
    pub(crate) fn is_of_length(&self, id: ReceiveId, length: u64) -> bool {
        let transfer = self.transfer(id);
        transfer.is_some_and(|transfer| transfer.length == length)
    }

    /// The operation that a packet of a peer names, if it is one with that peer.
    pub(crate) fn transfer_with(&self, peer: PeerId, id: RecvId) -> Option<ReceiveId> {
        let id = ReceiveId::from_wire(id.0);
        let is_with = |transfer: &Transfer| transfer.peer == peer;
        self.transfer(id).is_some_and(is_with).then_some(id)
    }

    /// The operations with a peer, in the order in which they were started.
    pub(crate) fn transfers_with(&self, peer: PeerId) -> Vec<ReceiveId> {
        self.table.transfers_with(peer)
    }

    /// The writes of peers whose target `pick` accepts.
    pub(crate) fn peers_writes(&self, pick: impl Fn(&Iov) -> bool) -> Vec<ReceiveId> {
        let transfers = self.table.transfers();
        transfers
            .filter(|(_, transfer)| transfer.ending.is_peers() && pick(&transfer.target))
            .map(|(id, _)| id)
            .collect()
    }

    /// What a transfer needs next.
    pub(crate) fn next_step(&self, id: ReceiveId) -> Step {
        let Some(transfer) = self.transfer(id) else {
            return Step::Wait;
        };
        match transfer.next_step() {
            // The device writes its memory.
            Step::Finish if self.plan_of(transfer).is_some_and(ReadPlan::is_outstanding) => {
                Step::Wait
            }
            step => step,
        }
    }

    /// Notes that a transfer failed; [`Receiving::next_step`] says when it ends.
    pub(crate) fn abort(&mut self, id: ReceiveId, failure: Failure) {
        if let Some(transfer) = self.transfer_mut(id) {
            transfer.abort(failure);
        }
    }

    /// Takes out a transfer that ends.
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

// Data that comes in packets.
impl Receiving {
    /// A piece of a transfer's data arrived, which the peer sent without being asked or, with
    /// `in_window`, because it was granted.
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

    /// Notes that a piece could not be copied to the target: the transfer fails when all its data has
    /// come.
    pub(crate) fn copy_failed(&mut self, id: ReceiveId, failure: Failure) {
        if let Some(transfer) = self.transfer_mut(id) {
            transfer.fail(failure);
        }
    }

    /// Notes the operation of a peer that wants RECEIPT, if it does.
    pub(crate) fn note_receipt(&mut self, id: ReceiveId, receipt: Option<SendId>) {
        if let Some(transfer) = self.transfer_mut(id) {
            transfer.note_receipt(receipt);
        }
    }

    /// The peer's operation sends the rest of a transfer in windows, when it is granted them.
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

    /// The window of at most `limit` bytes that the peer is to be granted next.
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

    /// The peer of a transfer in windows, and what brings their data.
    pub(crate) fn windowed(&self, id: ReceiveId) -> Option<(PeerId, Protocol)> {
        let transfer = self.transfer(id)?;
        Some((transfer.peer, transfer.windowed()))
    }

    /// The first data of an emulated read arrived. Returns the read; `None` if the peer was not asked
    /// for it.
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

// What transfers ask of the peer.
impl Receiving {
    /// Notes that there is something to send or to post for a transfer. Returns whether it has to be
    /// queued for that.
    #[must_use]
    pub(crate) fn enqueue(&mut self, id: ReceiveId) -> bool {
        self.transfer_mut(id).is_some_and(Transfer::enqueue)
    }

    /// Notes what is to be sent to the peer of a transfer next.
    pub(crate) fn ask(&mut self, id: ReceiveId, ask: Ask) {
        if let Some(transfer) = self.transfer_mut(id) {
            transfer.ask(ask);
        }
    }

    /// What is to be sent to the peer of a transfer now. `None` if there is no such transfer.
    pub(crate) fn asks(&self, id: ReceiveId) -> Option<Ask> {
        self.transfer(id).map(Transfer::asks)
    }

    /// Notes that what was to be sent was sent, and whether there is more to post.
    pub(crate) fn served(&mut self, id: ReceiveId, more: bool) {
        if let Some(transfer) = self.transfer_mut(id) {
            transfer.served(more);
        }
    }

    /// The READ_NACK that is to be sent for a transfer.
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

    /// Takes the answer to READ_NACK: the peer's operation sends the rest in windows. Returns the
    /// transfer; `None` if it is no such answer.
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

// Reads of transfers.
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

    /// The peer's operation says where the data beyond the first `in_packets` bytes of a transfer can
    /// be read.
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

    /// Where the data of a transfer goes.
    pub(crate) fn target(&self, id: ReceiveId) -> Option<&Iov> {
        self.transfer(id).map(|transfer| &transfer.target)
    }

    /// Plans to read the bytes from `next` on of a transfer into its target, which is registered now.
    /// The bytes beyond the target count as received.
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

    /// Notes that the data of a transfer beyond the first `in_packets` bytes cannot be read. Returns its
    /// peer.
    pub(crate) fn refuse_read(&mut self, id: ReceiveId, in_packets: u64) -> Option<PeerId> {
        let transfer = self.transfer_mut(id)?;
        transfer.refuse(in_packets);
        let (peer, is_message) = (transfer.peer, !transfer.ending.is_peers());
        if is_message {
            // The answer finds the transfer by its message id.
            self.assemble(id);
        }
        Some(peer)
    }

    /// The next read of a transfer, of at most `limit` bytes. `Ok(None)` if there is none to be
    /// posted.
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

    /// Notes that the device is done with a read, which brought `length` bytes. Returns whether it is
    /// one of a transfer.
    pub(crate) fn read_done(&mut self, id: ReceiveId, length: u64) -> bool {
        let Some((transfer, plan)) = self.plan_of_mut(id) else {
            return false;
        };
        plan.done();
        transfer.read(length);
        true
    }

    /// Takes the registrations that were made for transfers, when the endpoint is closed.
    pub(crate) fn take_registrations(&mut self) -> Vec<OwnRegions> {
        self.plans.drain().map(|plan| plan.own_regions).collect()
    }
}

#[cfg(test)]
mod tests;
