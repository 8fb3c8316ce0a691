//! Work that waits for room in the device's queues or for the end of a back-off.

use std::collections::VecDeque;

use crate::nic::Nic;
use crate::wire::{Eor, MsgId, Receipt, RecvId, Repr, SendId};

use crate::endpoint::Endpoint;
use crate::endpoint::api::completion::Event;
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::base::ids::{OutboundId, PacketId, PeerId, ReceiveId};
use crate::endpoint::posting::in_flight::{Owner, failure_of};
use crate::endpoint::receiving::table::Inbound;

/// Something to do when the device has room again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// Carry out operations of peers that waited for others to end.
    Admission,
    /// Send our HANDSHAKE.
    Handshake(PeerId),
    /// Post a packet again.
    Resend(PacketId),
    /// Send packets, or post RDMA writes, of an operation.
    Outbound(OutboundId),
    /// Send a CTS or READ_NACK, or post RDMA reads.
    Inbound(ReceiveId),
    /// Send RECEIPT.
    Receipt {
        peer: PeerId,
        send_id: SendId,
        msg_id: MsgId,
    },
    /// Send ATOMRSP.
    AtomicResponse { peer: PeerId, key: u32 },
    /// Send EOR.
    Eor {
        peer: PeerId,
        send_id: SendId,
        recv_id: RecvId,
    },
}

/// What became of a piece of [`Work`].
enum Outcome {
    Done,
    /// There is more of it; others first.
    Again,
    /// The device has no room.
    Blocked,
}

/// Packets that one operation may post before others get their turn.
pub(crate) const QUANTUM: usize = 32;

impl<N: Nic> Endpoint<N> {
    /// Queues work, to be done as soon as there is room. Packets that are to be posted again go
    /// first: they hold buffers that the others may be waiting for.
    pub(crate) fn queue_work(&mut self, work: Work) {
        self.queue_of(work).push_back(work);
    }

    /// Those that were moved out of their buffers wait behind those that have theirs: these may have
    /// all the buffers that there are.
    fn queue_of(&mut self, work: Work) -> &mut VecDeque<Work> {
        match work {
            Work::Resend(id) if self.is_stored(id) => &mut self.restock,
            Work::Resend(_) => &mut self.resend,
            _ => &mut self.ready,
        }
    }

    fn next_work(&mut self) -> Option<Work> {
        let queues = [&mut self.resend, &mut self.restock, &mut self.ready];
        queues.into_iter().find_map(VecDeque::pop_front)
    }

    fn take_back(&mut self, work: Work) {
        self.queue_of(work).push_front(work);
    }

    /// Does what waits, as far as the device has room.
    pub(crate) fn do_ready_work(&mut self) {
        while let Some(work) = self.next_work() {
            if let Some(peer) = self.peer_of(work)
                && let Some(state) = self.peers.state(peer)
                && state.backoff.is_some()
            {
                self.park(peer, work);
                continue;
            }
            match self.do_work(work) {
                Outcome::Done => self.note_answer(work),
                Outcome::Again => self.queue_work(work),
                Outcome::Blocked => {
                    self.take_back(work);
                    return;
                }
            }
        }
    }

    fn note_answer(&mut self, work: Work) {
        match work {
            Work::Receipt { peer, .. }
            | Work::Eor { peer, .. }
            | Work::AtomicResponse { peer, .. } => self.end_answer(peer),
            Work::Admission
            | Work::Handshake(_)
            | Work::Resend(_)
            | Work::Outbound(_)
            | Work::Inbound(_) => {}
        }
    }

    fn peer_of(&self, work: Work) -> Option<PeerId> {
        match work {
            Work::Handshake(peer)
            | Work::Receipt { peer, .. }
            | Work::Eor { peer, .. }
            | Work::AtomicResponse { peer, .. } => Some(peer),
            Work::Admission => None,
            Work::Resend(id) => self.packets.get(id).map(|packet| packet.peer),
            Work::Outbound(id) => self.outbound.get(id).map(|outbound| outbound.peer),
            Work::Inbound(id) => match self.inbound.get(id) {
                Some(Inbound::Active(transfer)) => Some(transfer.peer),
                _ => None,
            },
        }
    }

    fn do_work(&mut self, work: Work) -> Outcome {
        let result = match work {
            Work::Admission => {
                self.admit_waiting();
                Ok(())
            }
            Work::Handshake(peer) => self.send_handshake(peer),
            Work::Resend(id) => match self.post(id) {
                Ok(()) => Ok(()),
                Err(EndpointError::TryAgain) => Err(EndpointError::TryAgain),
                Err(error) => {
                    self.lose_packet(id, failure_of(&error));
                    Ok(())
                }
            },
            Work::Outbound(id) => match self.send_stream(id) {
                Ok(true) => return Outcome::Again,
                Ok(false) => Ok(()),
                Err(error) => Err(error),
            },
            Work::Inbound(id) => match self.serve_inbound(id) {
                Ok(true) => return Outcome::Again,
                Ok(false) => Ok(()),
                Err(error) => Err(error),
            },
            Work::AtomicResponse { key, .. } => self.send_atomic_response(key),
            Work::Receipt {
                peer,
                send_id,
                msg_id,
            } => self.send_control(
                peer,
                &Receipt {
                    send_id,
                    msg_id,
                    connid: Some(self.address.qkey.into()),
                    ..Receipt::default()
                },
            ),
            Work::Eor {
                peer,
                send_id,
                recv_id,
            } => self.send_control(
                peer,
                &Eor {
                    send_id,
                    recv_id,
                    connid: Some(self.address.qkey.into()),
                    ..Eor::default()
                },
            ),
        };
        match result {
            Ok(()) => Outcome::Done,
            Err(EndpointError::TryAgain) => Outcome::Blocked,
            Err(_) => Outcome::Done,
        }
    }

    /// Sends a packet that belongs to no operation of the application.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`]; other errors are told as events.
    pub(crate) fn send_control(
        &mut self,
        peer: PeerId,
        header: &impl Repr,
    ) -> Result<(), EndpointError> {
        let packet_type = header.packet_type();
        let sent = self
            .start_packet(header)
            .and_then(|packet| self.post_packet(peer, Owner::Nobody, packet));
        match sent {
            Ok(()) => Ok(()),
            Err(EndpointError::TryAgain) => Err(EndpointError::TryAgain),
            // The peer was removed: nobody waits for the packet.
            Err(EndpointError::UnknownPeer(_)) => Ok(()),
            Err(error) => {
                self.push_event(Event::ControlSendFailed {
                    peer,
                    packet_type: packet_type.code(),
                    failure: failure_of(&error),
                });
                Ok(())
            }
        }
    }
}
