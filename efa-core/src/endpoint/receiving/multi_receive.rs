//! Multi-receive: one buffer that takes message after message (libfabric's `FI_MULTI_RECV`).
//!
//! Each message gets the next part of the buffer and a completion of its own. When less is left than
//! the application wants for a message, the buffer takes no more; the completion after which none of
//! its messages is missing says so, and the buffer is the application's again.

use crate::nic::{Nic, UserSlice};
use crate::wire::Packet;

use crate::endpoint::Endpoint;
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::operation::{IoVec, MultiRecvArgs, SourceFilter, TagFilter};
use crate::endpoint::base::ids::{PeerId, ReceiveId};
use crate::endpoint::memory::iov::Iov;
use crate::endpoint::receiving::claims::UnexpectedMessage;
use crate::endpoint::receiving::held::ReceivedPacket;
use crate::endpoint::receiving::matching::Filter;
use crate::endpoint::receiving::table::Inbound;
use crate::endpoint::receiving::transfer::{Audience, Ending, Posted, Transfer};
use crate::endpoint::subprotocols::message::{Extent, Rtm, receive_flags};

/// Names a [`MultiBuffer`] in [`Endpoint::multi_buffers`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MultiKey(u32);

/// A message's part of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    buffer: MultiKey,
    pub(crate) address: u64,
}

/// A buffer for several messages.
pub(crate) struct MultiBuffer {
    piece: IoVec,
    /// Bytes given to messages; they are the first ones.
    used: usize,
    min_free: usize,
    /// Messages that are not complete.
    incomplete: usize,
    /// It takes no more messages.
    closed: bool,
}

impl<N: Nic> Endpoint<N> {
    pub(crate) fn start_multi_recv(
        &mut self,
        args: &MultiRecvArgs,
    ) -> Result<ReceiveId, EndpointError> {
        if let SourceFilter::Peer(peer) = args.source
            && !self.peers.contains(peer)
        {
            return Err(EndpointError::UnknownPeer(peer));
        }
        if args.min_free == 0 || args.min_free > args.buffer.memory.length {
            return Err(EndpointError::OutOfRange {
                what: "min_free of a multi-receive buffer",
                value: args.min_free as u64,
                limit: args.buffer.memory.length as u64,
            });
        }
        if self.inbound.is_full() {
            return Err(EndpointError::TryAgain);
        }
        let buffer = MultiBuffer {
            piece: args.buffer,
            used: 0,
            min_free: args.min_free,
            incomplete: 0,
            closed: false,
        };
        let multi = MultiKey(self.multi_buffers.insert(buffer) as u32);
        let filter = Filter {
            source: args.source,
            tag: TagFilter::exact(0),
        };
        let posted = Posted {
            context: args.context,
            report_success: true,
            target: Iov::One(args.buffer),
            capacity: args.buffer.memory.length as u64,
            tagged: false,
            entry: self.untagged.new_entry(&filter, true),
            multi: Some(multi),
        };
        let Ok(id) = self.inbound.insert_posted(posted) else {
            return Err(EndpointError::TryAgain);
        };
        self.untagged.post(&mut self.inbound, id.slot());
        // Those that are here already come first.
        while let Some(unexpected) = self.untagged.find_unexpected(&filter)
            && let (.., message) = self.untagged.unexpected_mut(unexpected)
            && let (length, cq_data) = (message.length, message.cq_data)
            && let Some((target, ending)) = self.next_part(id, length, cq_data)
        {
            let (peer, _, message) = self.untagged.remove_unexpected(unexpected);
            match self.is_admitted(peer) {
                true => self.receive_part(peer, &message, target, ending),
                false => self.postpone_part(peer, message, target, ending),
            }
        }
        Ok(id)
    }

    /// Gives a message of `length` bytes the next part of a buffer, `None` if that takes no more.
    /// Closes the buffer if too little is left then.
    fn next_part(
        &mut self,
        id: ReceiveId,
        length: u64,
        cq_data: Option<u64>,
    ) -> Option<(IoVec, Ending)> {
        let Some(Inbound::Posted(posted)) = self.inbound.get(id) else {
            return None;
        };
        let (context, multi) = (posted.context, posted.multi?);
        let buffer = self.multi_buffers.get_mut(multi.0 as usize)?;
        let memory = buffer.piece.memory;
        let free = memory.length - buffer.used;
        let taken = usize::try_from(length).map_or(free, |length| length.min(free));
        let target = IoVec {
            memory: UserSlice {
                address: memory.address.wrapping_add(buffer.used as u64),
                length: taken,
            },
            region: buffer.piece.region,
        };
        buffer.used += taken;
        buffer.incomplete += 1;
        if memory.length - buffer.used < buffer.min_free {
            buffer.closed = true;
            self.untagged.remove_receive(&mut self.inbound, id.slot());
            self.inbound.remove_posted(id);
        }
        let ending = Ending {
            context,
            report_success: true,
            flags: receive_flags(false, cq_data),
            tag: 0,
            cq_data,
            audience: Audience::Starter,
            part: Some(Part {
                buffer: multi,
                address: target.memory.address,
            }),
        };
        Some((target, ending))
    }

    /// Takes a message for a buffer that accepts it.
    pub(crate) fn match_multi(
        &mut self,
        receive: ReceiveId,
        peer: PeerId,
        packet: ReceivedPacket,
        incoming: &Packet,
        rtm: &Rtm,
    ) {
        let length = rtm.length;
        // A message that ends with its first packet is no operation that others would wait for.
        if rtm.extent != Extent::Whole && !self.is_admitted(peer) {
            let Some(head) = self.make_wait(peer, packet, incoming.base.packet_type) else {
                return;
            };
            let message = UnexpectedMessage {
                msg_id: rtm.msg_id,
                length,
                cq_data: rtm.cq_data,
                segmented: rtm.is_segment(),
                head,
            };
            match self.next_part(receive, length, rtm.cq_data) {
                Some((target, ending)) => self.postpone_part(peer, message, target, ending),
                None => self.drop_unexpected(peer, &message),
            }
            return;
        }
        let Some((target, ending)) = self.next_part(receive, length, rtm.cq_data) else {
            return self.keep_unexpected(peer, packet, incoming, rtm);
        };
        self.begin_operation(peer);
        let capacity = target.memory.length as u64;
        let mut transfer = Transfer::new(peer, length, Iov::One(target), capacity, ending);
        transfer.msg_id = rtm.msg_id;
        self.start_transfer(transfer, packet, incoming, rtm);
    }

    /// A message of a buffer is complete. Returns whether the buffer is the application's again.
    pub(crate) fn end_part(&mut self, part: Part) -> bool {
        let MultiKey(key) = part.buffer;
        let Some(buffer) = self.multi_buffers.get_mut(key as usize) else {
            return false;
        };
        buffer.incomplete -= 1;
        self.release_multi(part.buffer)
    }

    /// A buffer takes no more messages. Returns whether it is the application's again.
    pub(crate) fn close_multi(&mut self, multi: MultiKey) -> bool {
        if let Some(buffer) = self.multi_buffers.get_mut(multi.0 as usize) {
            buffer.closed = true;
        }
        self.release_multi(multi)
    }

    fn release_multi(&mut self, MultiKey(key): MultiKey) -> bool {
        let released = self
            .multi_buffers
            .get(key as usize)
            .is_some_and(|buffer| buffer.closed && buffer.incomplete == 0);
        if released {
            self.multi_buffers.remove(key as usize);
        }
        released
    }
}
