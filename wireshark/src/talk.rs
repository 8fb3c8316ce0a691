//! Constructed conversations: the packets of endpoints, and captures from the view of one of two.

use std::time::Duration;

use efa_capture::frame::{Frame, FrameKind, Repr};
use efa_capture::{CaptureTap, Direction, Interface, InterfaceId, Writer};
use efa_core::address::{Gid, Qkey, Qpn, RawAddress};
use efa_core::nic::Status;
use efa_core::wire::{
    AtomRsp, Connid, Cts, CtsData, EagerRtm, Eor, ExtraFeatures, Handshake, LongctsRtm,
    LongreadRtm, MediumRtm, MsgId, OpeType, PeerError, ReadNack, ReadRsp, Receipt, RecvId,
    Repr as PacketRepr, ReqOptions, RmaIov, RmaIovs, Rtr, RtrKind, SendId,
};

/// An endpoint. The captures of [`Talk`] are those of `A`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The endpoint that recorded the capture.
    A,
    /// Its peer.
    B,
    /// An endpoint that takes no part in their conversation.
    C,
}

impl End {
    /// Its raw address.
    pub fn address(self) -> RawAddress {
        let number = self as u8 + 1;
        let mut gid = [0; 16];
        gid[15] = number;
        RawAddress::new(
            Gid(gid),
            Qpn(number.into()),
            Qkey(0x1000 + u32::from(number)),
        )
    }

    /// Its connection id, the same as its Q-key.
    pub fn connid(self) -> Connid {
        Connid(self.address().qkey.0)
    }

    fn other(self) -> End {
        if self == End::A { End::B } else { End::A }
    }

    /// The options of a request before the peer's handshake has come.
    pub fn unknown(self) -> ReqOptions {
        ReqOptions::with_raw_address(self.address())
    }

    /// The options of a request afterwards.
    pub fn known(self) -> ReqOptions {
        ReqOptions::with_connid(self.connid())
    }

    /// A HANDSHAKE with these features.
    pub fn handshake(self, features: ExtraFeatures) -> Handshake {
        Handshake {
            extra_info: features.into(),
            connid: Some(self.connid()),
            device_version: Some(0xefa1),
            ..Handshake::default()
        }
    }

    /// An eager message to a peer that knows its sender.
    pub fn eager(self, msg_id: u32) -> EagerRtm {
        EagerRtm::new(MsgId(msg_id), self.known())
    }

    /// Likewise with delivery complete.
    pub fn dc_eager(self, msg_id: u32, send_id: u32) -> EagerRtm {
        EagerRtm {
            receipt: Some(SendId(send_id)),
            ..self.eager(msg_id)
        }
    }

    /// Likewise a part of a message of 300 bytes.
    pub fn medium(self, msg_id: u32, seg_offset: u64) -> MediumRtm {
        MediumRtm {
            msg_id: MsgId(msg_id),
            msg_length: 300,
            seg_offset,
            options: self.known(),
            ..MediumRtm::default()
        }
    }

    /// Likewise the request of a long-CTS message.
    pub fn long_cts(self, msg_id: u32, msg_length: u64, send_id: u32) -> LongctsRtm {
        LongctsRtm {
            msg_id: MsgId(msg_id),
            msg_length,
            send_id: SendId(send_id),
            credit_request: 32,
            options: self.known(),
            ..LongctsRtm::default()
        }
    }

    /// Likewise a message that the peer reads from this memory.
    pub fn long_read(self, msg_id: u32, send_id: u32, memory: RmaIov) -> LongreadRtm {
        LongreadRtm {
            msg_id: MsgId(msg_id),
            msg_length: memory.len(),
            send_id: SendId(send_id),
            read_iov: RmaIovs::new(&[memory]).unwrap(),
            options: self.known(),
            ..LongreadRtm::default()
        }
    }

    /// Likewise the request of a read of this memory, with its first window.
    pub fn long_rtr(self, recv_id: u32, recv_length: u32, memory: RmaIov) -> Rtr {
        Rtr {
            kind: RtrKind::Longcts,
            rma_iov: RmaIovs::new(&[memory]).unwrap(),
            msg_length: memory.len(),
            recv_id: RecvId(recv_id),
            recv_length,
            options: self.known(),
        }
    }

    /// The first data for the read `recv_id` of the peer.
    pub fn read_rsp(self, recv_id: u32, send_id: u32, seg_length: u64) -> ReadRsp {
        ReadRsp {
            connid: Some(self.connid()),
            recv_id: RecvId(recv_id),
            send_id: SendId(send_id),
            seg_length,
            ..ReadRsp::default()
        }
    }

    /// The old elements for the atomic `recv_id` of the peer.
    pub fn atom_rsp(self, recv_id: u32, seg_length: u64) -> AtomRsp {
        AtomRsp {
            connid: Some(self.connid()),
            recv_id: RecvId(recv_id),
            seg_length,
            ..AtomRsp::default()
        }
    }

    /// The RECEIPT of message `msg_id`, for the operation `send_id` of the peer.
    pub fn receipt(self, send_id: u32, msg_id: u32) -> Receipt {
        Receipt {
            connid: Some(self.connid()),
            send_id: SendId(send_id),
            msg_id: MsgId(msg_id),
            ..Receipt::default()
        }
    }

    /// The refusal to read for the operation `send_id` of the peer.
    pub fn read_nack(self, send_id: u32, recv_id: u32) -> ReadNack {
        ReadNack {
            connid: Some(self.connid()),
            send_id: SendId(send_id),
            recv_id: RecvId(recv_id),
            ..ReadNack::default()
        }
    }

    /// A window for the operation `send_id` of the peer.
    pub fn cts(self, send_id: u32, recv_id: u32, recv_length: u64) -> Cts {
        Cts {
            connid: Some(self.connid()),
            send_id: SendId(send_id),
            recv_id: RecvId(recv_id),
            recv_length,
            ..Cts::default()
        }
    }

    /// Data for the operation `recv_id` of the peer.
    pub fn data(self, recv_id: u32, seg_offset: u64, seg_length: u64) -> CtsData {
        CtsData {
            connid: Some(self.connid()),
            recv_id: RecvId(recv_id),
            seg_length,
            seg_offset,
            ..CtsData::default()
        }
    }

    /// The end of the reads for the operation `send_id` of the peer.
    pub fn eor(self, send_id: u32) -> Eor {
        Eor {
            connid: Some(self.connid()),
            send_id: SendId(send_id),
            recv_id: RecvId(10),
            ..Eor::default()
        }
    }

    /// One `side` of message `msg_id` aborts it.
    pub fn peer_error(self, msg_id: u32, op_id: u32, side: OpeType) -> PeerError {
        PeerError {
            msg_id: MsgId(msg_id),
            op_id,
            emitter_ope_type: side,
            connid: Some(self.connid()),
            ..PeerError::default()
        }
    }
}

/// A capture under construction, with a frame every microsecond.
pub struct Talk {
    writer: Writer<Vec<u8>>,
    interface: InterfaceId,
    frames: u32,
    sequence: [u32; 2],
}

impl Talk {
    /// Nothing was sent yet.
    #[expect(
        clippy::new_without_default,
        reason = "a test begins with what it says"
    )]
    pub fn new() -> Talk {
        let mut writer = Writer::new(Vec::new()).unwrap();
        let interface = Interface::new("a", "test", End::A.address().gid);
        let interface = writer.add_interface(&interface).unwrap();
        Talk {
            writer,
            interface,
            frames: 0,
            sequence: [0; 2],
        }
    }

    /// Both ends have exchanged one message and a handshake each way.
    pub fn acquainted(features: ExtraFeatures) -> Talk {
        let mut talk = Talk::new();
        talk.handshake(End::B, features);
        talk.handshake(End::A, features);
        talk
    }

    /// Sends a HANDSHAKE with these features. Returns the number of its frame.
    pub fn handshake(&mut self, from: End, features: ExtraFeatures) -> u32 {
        self.packet(from, &from.handshake(features), b"")
    }

    /// Sends a packet and returns the frame's number.
    pub fn packet(&mut self, from: End, header: &impl PacketRepr, data: &[u8]) -> u32 {
        self.bytes(from, &header.to_packet(data))
    }

    /// Sends any bytes as a packet.
    pub fn bytes(&mut self, from: End, packet: &[u8]) -> u32 {
        let sequence = self.next_sequence(from);
        self.request(from, FrameKind::Send, sequence, false, packet)
    }

    /// The number of the next request.
    pub fn next_sequence(&mut self, from: End) -> u32 {
        let next = &mut self.sequence[from as usize];
        *next += 1;
        *next - 1
    }

    /// A frame of a request, or of the data that answers one.
    pub fn request(
        &mut self,
        from: End,
        kind: FrameKind,
        sequence: u32,
        retransmission: bool,
        payload: &[u8],
    ) -> u32 {
        let header = Repr {
            sequence,
            retransmission,
            ..self.header(from, kind, payload.len())
        };
        self.frame(from, header, payload)
    }

    /// The header of the next frame, for a test to change.
    pub fn header(&self, from: End, kind: FrameKind, payload: usize) -> Repr {
        Repr {
            source_qpn: from.address().qpn,
            destination_qpn: from.other().address().qpn,
            qkey: from.other().address().qkey,
            sequence: self.sequence[from as usize],
            ..Repr::new(kind, payload)
        }
    }

    /// The device of `from` answers the request `sequence`. Returns the number of the frame.
    pub fn answer(&mut self, from: End, sequence: u32, status: Status) -> u32 {
        self.request(from, FrameKind::Response(status), sequence, false, b"")
    }

    /// Any frame. Returns its number.
    pub fn frame(&mut self, from: End, header: Repr, payload: &[u8]) -> u32 {
        let frame = Frame {
            source: from.address().gid,
            destination: from.other().address().gid,
            header,
            payload,
        };
        let direction = if from == End::A {
            Direction::Outbound
        } else {
            Direction::Inbound
        };
        self.frames += 1;
        let time = Duration::from_micros(self.frames.into());
        self.writer.frame(self.interface, time, direction, &frame);
        self.frames
    }

    /// The capture as a file.
    pub fn capture(self) -> Vec<u8> {
        self.writer.finish(Duration::ZERO).unwrap()
    }
}
