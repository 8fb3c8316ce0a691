//! Long-CTS transfers (spec section 3.2): the receiver opens one window after the other.
//!
//! A CTS grants a number of bytes. The sender sends exactly these, in CTSDATA packets whose offsets
//! count from the start of the whole message, data of the request included. Only when all of them
//! have arrived does the receiver grant more; that is what every stock libfabric does and expects.

use crate::nic::Nic;
use crate::wire::{Cts, CtsData, ExtraFeatures, LongctsRtm, RecvId, Repr, ReqOptions, SendId};

use super::Endpoint;
use super::completion::PacketError;
use super::error::{EndpointError, Errno, Failure, ProviderError};
use super::held::ReceivedPacket;
use super::ids::{OutboundId, PeerId, ReceiveId};
use super::incoming::Payload;
use super::iov::{Iov, attach};
use super::operation::SendArgs;
use super::outbound::{Awaited, Outbound, Stream};
use super::transmit::{Outgoing, Owner, QUANTUM, Work};

/// Header of CTSDATA with a connection id, in bytes.
const CTSDATA_HEADER: usize = 32;

// The sender's side.
impl<N: Nic> Endpoint<N> {
    /// Starts a message of `length` bytes; the request carries as much of it as fits.
    pub(super) fn send_long_cts(
        &mut self,
        args: &SendArgs<'_>,
        length: u64,
        options: ReqOptions,
        delivery_complete: bool,
    ) -> Result<(), EndpointError> {
        let mut header = LongctsRtm {
            msg_id: self.next_msg_id(args.peer),
            msg_length: length,
            send_id: SendId(0),
            credit_request: self.config.cts_window_packets,
            tag: args.tag,
            delivery_complete,
            options,
        };
        let in_request = length.min(self.mtu.saturating_sub(header.header_len()) as u64);
        let outbound = Outbound {
            sent: in_request,
            allowed: in_request,
            stream: Stream::CtsData(None),
            awaited: if delivery_complete {
                Awaited::Receipt
            } else {
                Awaited::Nothing
            },
            outstanding: 1,
            ..Outbound::single_packet(
                args.peer,
                Self::send_report(args),
                Iov::new(args.data)?,
                length,
            )
        };
        let Ok(id) = self.outbound.insert(outbound) else {
            return Err(EndpointError::TryAgain);
        };
        header.send_id = SendId(id.to_wire());
        let posted = self
            .start_packet(&header)
            .and_then(|packet| self.post_data(id, args.peer, packet, 0, in_request as usize));
        if posted.is_err() {
            self.outbound.remove(id);
        }
        posted
    }

    /// Puts data of an operation behind a header and posts the packet.
    pub(super) fn post_data(
        &mut self,
        id: OutboundId,
        peer: PeerId,
        mut packet: Outgoing,
        offset: u64,
        length: usize,
    ) -> Result<(), EndpointError> {
        let source = self.outbound.get(id).map(|outbound| &outbound.source);
        let attached = attach(
            &mut self.nic,
            packet.buffer,
            packet.in_buffer,
            source.map_or(&[], Iov::as_slice),
            offset,
            length,
            true,
        );
        match attached {
            Ok(attached) => {
                packet.in_buffer = attached.in_buffer;
                packet.gathered = attached.gathered;
                self.post_packet(peer, Owner::Outbound(id), packet)
            }
            Err(error) => {
                self.nic.release_buffer(packet.buffer);
                Err(error.into())
            }
        }
    }

    /// Starts an operation whose packets are all alike: the first one now, as the call can still
    /// fail, the others as the device has room.
    pub(super) fn start_stream(&mut self, outbound: Outbound) -> Result<(), EndpointError> {
        let Ok(id) = self.outbound.insert(outbound) else {
            return Err(EndpointError::TryAgain);
        };
        if let Err(error) = self.send_next(id) {
            self.outbound.remove(id);
            return Err(error);
        }
        self.queue_outbound(id);
        Ok(())
    }

    /// Sends packets of an operation, up to [`QUANTUM`]. Returns whether there are more to send.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`]; other errors end the operation.
    pub(super) fn send_stream(&mut self, id: OutboundId) -> Result<bool, EndpointError> {
        for _ in 0..QUANTUM {
            let Some(outbound) = self.outbound.get_mut(id) else {
                return Ok(false);
            };
            if !outbound.has_packets_to_send() {
                outbound.queued = false;
                return Ok(false);
            }
            match self.send_next(id) {
                Ok(()) => {}
                Err(EndpointError::TryAgain) => return Err(EndpointError::TryAgain),
                Err(error) => {
                    if let Some(outbound) = self.outbound.get_mut(id) {
                        outbound.queued = false;
                    }
                    self.fail_outbound(id, super::transmit::failure_of(&error));
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Sends one packet of an operation that has packets to send.
    fn send_next(&mut self, id: OutboundId) -> Result<(), EndpointError> {
        let Some(outbound) = self.outbound.get(id) else {
            return Ok(());
        };
        let (peer, stream) = (outbound.peer, outbound.stream);
        let (length, sent, allowed) = (outbound.length, outbound.sent, outbound.allowed);
        let (packet, size) = match stream {
            Stream::Medium(segments) => self.medium_packet(id, &segments, length, sent)?,
            Stream::CtsData(Some(recv_id)) => self.cts_data_packet(peer, recv_id, sent, allowed)?,
            Stream::CtsData(None) | Stream::None => return Ok(()),
        };
        self.post_data(id, peer, packet, sent, size)?;
        if let Some(outbound) = self.outbound.get_mut(id) {
            outbound.sent += size as u64;
            outbound.outstanding += 1;
        }
        Ok(())
    }

    fn cts_data_packet(
        &mut self,
        peer: PeerId,
        recv_id: RecvId,
        sent: u64,
        allowed: u64,
    ) -> Result<(Outgoing, usize), EndpointError> {
        // libfabric before 1.14 would take the connid for data; it does not ask for it.
        let wants_connid = self
            .peers
            .state(peer)
            .is_some_and(|state| state.has(ExtraFeatures::CONNID_HEADER));
        let mut header = CtsData {
            recv_id,
            seg_length: 0,
            seg_offset: sent,
            connid: wants_connid.then(|| self.address.qkey.into()),
            ..CtsData::default()
        };
        let capacity = self.mtu.saturating_sub(header.header_len()) as u64;
        header.seg_length = (allowed - sent).min(capacity);
        Ok((self.start_packet(&header)?, header.seg_length as usize))
    }

    /// The peer opened a window.
    pub(super) fn on_cts(&mut self, peer: PeerId, cts: &Cts) {
        let id = OutboundId::from_wire(cts.send_id.0);
        let outbound = self
            .outbound
            .get_mut(id)
            .filter(|outbound| outbound.peer == peer);
        let Some(outbound) = outbound else {
            return self.refuse_id(peer, crate::wire::PacketType::Cts, cts.send_id.0);
        };
        let Stream::CtsData(_) = outbound.stream else {
            return self.refuse_id(peer, crate::wire::PacketType::Cts, cts.send_id.0);
        };
        let left = outbound.by_packets - outbound.allowed;
        if cts.recv_length == 0 || cts.recv_length > left {
            return self.refuse(
                Some(peer),
                crate::wire::PacketType::Cts.code(),
                PacketError::SizeMismatch,
            );
        }
        outbound.stream = Stream::CtsData(Some(cts.recv_id));
        outbound.allowed += cts.recv_length;
        self.queue_outbound(id);
    }

    /// The data of an operation is where the peer's application wants it.
    pub(super) fn on_receipt(&mut self, peer: PeerId, receipt: &crate::wire::Receipt) {
        let id = OutboundId::from_wire(receipt.send_id.0);
        match self.outbound.get_mut(id) {
            Some(outbound) if outbound.peer == peer && outbound.awaited == Awaited::Receipt => {
                outbound.awaited = Awaited::Nothing;
                self.finish_outbound(id);
            }
            _ => self.refuse_id(peer, crate::wire::PacketType::Receipt, receipt.send_id.0),
        }
    }

    /// Reports a packet for an operation that does not exist, or is not one of the sender's.
    pub(super) fn refuse_id(
        &mut self,
        peer: PeerId,
        packet_type: crate::wire::PacketType,
        id: u32,
    ) {
        self.refuse(
            Some(peer),
            packet_type.code(),
            PacketError::StaleOperation { id },
        );
    }
}

// The receiver's side.
impl<N: Nic> Endpoint<N> {
    /// Opens the next window of a transfer whose last one is used up.
    pub(super) fn grant(&mut self, id: ReceiveId) {
        if let Some(transfer) = self.transfer_mut(id)
            && transfer.granted == 0
            && !transfer.segmented
            && !transfer.queued
        {
            transfer.queued = true;
            self.queue_work(Work::Inbound(id));
        }
    }

    /// Sends a CTS.
    ///
    /// # Errors
    /// Only [`EndpointError::TryAgain`]; other errors end the transfer.
    pub(super) fn send_cts(&mut self, id: ReceiveId) -> Result<(), EndpointError> {
        let window = u64::from(self.config.cts_window_packets)
            * self.mtu.saturating_sub(CTSDATA_HEADER) as u64;
        let connid = Some(self.address.qkey.into());
        let Some(transfer) = self.transfer_mut(id) else {
            return Ok(());
        };
        let peer = transfer.peer;
        let cts = Cts {
            connid,
            send_id: transfer.send_id,
            recv_id: RecvId(id.to_wire()),
            recv_length: (transfer.length - transfer.received).min(window.max(1)),
            ..Cts::default()
        };
        let posted = self
            .start_packet(&cts)
            .and_then(|packet| self.post_packet(peer, Owner::Inbound(id), packet));
        match posted {
            Ok(()) => {
                if let Some(transfer) = self.transfer_mut(id) {
                    transfer.queued = false;
                    transfer.granted = cts.recv_length;
                }
            }
            Err(EndpointError::TryAgain) => return Err(EndpointError::TryAgain),
            Err(error) => self.fail_inbound(id, super::transmit::failure_of(&error)),
        }
        Ok(())
    }

    /// Data of a window.
    pub(super) fn on_cts_data(
        &mut self,
        peer: PeerId,
        data: &CtsData,
        packet: &ReceivedPacket,
        payload: Payload,
    ) {
        let id = ReceiveId::from_wire(data.recv_id.0);
        let packet_type = crate::wire::PacketType::CtsData;
        match self.transfer_mut(id) {
            Some(transfer) if transfer.peer == peer => {
                let length = payload.length as u64;
                if length > transfer.granted
                    || !self.take_data(id, packet, payload, data.seg_offset)
                {
                    self.refuse(Some(peer), packet_type.code(), PacketError::SizeMismatch);
                    return self.fail_inbound(
                        id,
                        Failure::new(Errno::EIO, ProviderError::RequestSizeMismatch),
                    );
                }
                if let Some(transfer) = self.transfer_mut(id) {
                    transfer.granted -= length;
                }
                self.go_on_with(id);
            }
            _ => self.refuse_id(peer, packet_type, data.recv_id.0),
        }
    }
}
