//! The parts of a packet that the rules need.
//!
//! The rules access packets through this module only, so that packets with different layouts but
//! the same meaning are checked by the same code.

use efa_wire::address::RawAddress;
use efa_wire::{
    AtomicDatatype, AtomicOp, CtsFlags, ExtraFeatures, Header, Message, OpeType, Packet,
    PacketType, PeerError, RecvId, ReqOptions, RmaIovs, RtaKind, SendId,
};

/// A request to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub(super) length: u64,
    pub(super) recv_id: u32,
    /// Bytes that may be sent without a CTS.
    pub(super) window: u64,
    /// Whether the data fits into the READRSP.
    pub(super) is_short: bool,
    pub(super) rma_iov: RmaIovs,
}

/// An atomic operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Atomic {
    pub(super) msg_id: u32,
    pub(super) kind: RtaKind,
    pub(super) datatype: AtomicDatatype,
    pub(super) operation: AtomicOp,
    pub(super) rma_iov: RmaIovs,
}

/// The ids of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerIds {
    pub(super) send_id: u32,
    pub(super) recv_id: u32,
}

/// A window for data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) ids: AnswerIds,
    pub(super) length: u64,
    /// Whether its flag marks the data as that of an emulated read.
    pub(super) is_read: bool,
}

/// The end of one half of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Abort {
    pub(super) msg_id: u32,
    /// The receiver's operation.
    pub(super) op_id: Option<u32>,
    /// The half of the message that was aborted.
    pub(super) emitter: OpeType,
}

/// Announcements of a HANDSHAKE.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandshakeContent {
    pub(super) features: ExtraFeatures,
    pub(super) words: usize,
    pub(super) device_version: Option<u32>,
    pub(super) has_user_recv_qp: bool,
}

/// Content of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) enum PacketBody {
    Message(Message),
    Read(Read),
    Atomic(Atomic),
    Cts(Window),
    CtsData { recv_id: u32, offset: u64 },
    ReadRsp(AnswerIds),
    AtomRsp { recv_id: u32 },
    Eor(AnswerIds),
    Receipt { send_id: u32, msg_id: u32 },
    ReadNack(AnswerIds),
    Handshake(HandshakeContent),
    Abort(Abort),
}

impl PacketBody {
    /// The message or atomic that the packet begins or continues.
    pub(super) fn msg_id(&self) -> Option<u32> {
        match self {
            PacketBody::Message(message) => message.msg_id.map(|id| id.0),
            PacketBody::Atomic(atomic) => Some(atomic.msg_id),
            _ => None,
        }
    }

    /// Whether the packet is one of several packets of a message.
    pub(super) fn is_piece(&self) -> bool {
        matches!(self, PacketBody::Message(message) if message.is_segment())
    }
}

/// Content of a request's optional headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct OptionalHeaders {
    pub(super) raw_address: Option<RawAddress>,
    pub(super) cq_data: Option<u64>,
}

/// A parsed packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParsedPacket {
    pub(super) packet_type: PacketType,
    pub(super) flags: u16,
    /// Bytes of data.
    pub(super) payload: u64,
    /// The connection id of its sender, if it contains one.
    pub(super) connid: Option<u32>,
    /// Fields that only requests have.
    pub(super) request: Option<OptionalHeaders>,
    pub(super) body: PacketBody,
}

impl ParsedPacket {
    pub(super) fn of(packet: &Packet) -> ParsedPacket {
        let payload = packet.payload.length as u64;
        let (options, connid, body) = read(&packet.header, payload);
        ParsedPacket {
            packet_type: packet.base.packet_type,
            flags: packet.base.flags,
            payload,
            connid: connid.or(options.and_then(|options| options.connid.map(|id| id.0))),
            request: options.map(|options| OptionalHeaders {
                raw_address: options.raw_address.map(|header| header.address()),
                cq_data: options.cq_data,
            }),
            body,
        }
    }

    pub(super) fn raw_address(&self) -> Option<RawAddress> {
        self.request?.raw_address
    }

    /// The sender's connection id, from the raw address or the header.
    pub(super) fn named(&self) -> Option<u32> {
        let raw = self.raw_address().map(|address| address.qkey.0);
        raw.or(self.connid)
    }
}

fn read(header: &Header, payload: u64) -> (Option<ReqOptions>, Option<u32>, PacketBody) {
    if let Some(message) = Message::of(header, payload) {
        return (
            header.req_options().copied(),
            None,
            PacketBody::Message(message),
        );
    }
    let request = |options: ReqOptions, body| (Some(options), None, body);
    let control = |connid: Option<efa_wire::Connid>, body| (None, connid.map(|id| id.0), body);
    let ids = |send_id: SendId, recv_id: RecvId| AnswerIds {
        send_id: send_id.0,
        recv_id: recv_id.0,
    };
    match *header {
        Header::EagerRtm(_)
        | Header::MediumRtm(_)
        | Header::LongctsRtm(_)
        | Header::LongreadRtm(_)
        | Header::RuntreadRtm(_)
        | Header::EagerRtw(_)
        | Header::LongctsRtw(_)
        | Header::LongreadRtw(_) => unreachable!("`Message::of` reads all of these"),
        Header::Rtr(h) => {
            let read = Read {
                length: h.msg_length,
                recv_id: h.recv_id.0,
                window: h.recv_length.into(),
                is_short: h.kind == efa_wire::RtrKind::Short,
                rma_iov: h.rma_iov,
            };
            request(h.options, PacketBody::Read(read))
        }
        Header::Rta(h) => {
            let atomic = Atomic {
                msg_id: h.msg_id.0,
                kind: h.kind,
                datatype: h.atomic_datatype,
                operation: h.atomic_op,
                rma_iov: h.rma_iov,
            };
            request(h.options, PacketBody::Atomic(atomic))
        }
        Header::Cts(h) => {
            let window = Window {
                ids: ids(h.send_id, h.recv_id),
                length: h.recv_length,
                is_read: h.flags.contains(CtsFlags::EMULATED_READ),
            };
            control(h.connid, PacketBody::Cts(window))
        }
        Header::CtsData(h) => {
            let (recv_id, offset) = (h.recv_id.0, h.seg_offset);
            control(h.connid, PacketBody::CtsData { recv_id, offset })
        }
        Header::ReadRsp(h) => control(h.connid, PacketBody::ReadRsp(ids(h.send_id, h.recv_id))),
        Header::AtomRsp(h) => {
            let recv_id = h.recv_id.0;
            control(h.connid, PacketBody::AtomRsp { recv_id })
        }
        Header::Eor(h) => control(h.connid, PacketBody::Eor(ids(h.send_id, h.recv_id))),
        Header::Receipt(h) => {
            let (send_id, msg_id) = (h.send_id.0, h.msg_id.0);
            control(h.connid, PacketBody::Receipt { send_id, msg_id })
        }
        Header::ReadNack(h) => control(h.connid, PacketBody::ReadNack(ids(h.send_id, h.recv_id))),
        Header::Handshake(h) => {
            let announced = HandshakeContent {
                features: h.extra_info.features(),
                words: h.extra_info.count() as usize,
                device_version: h.device_version,
                has_user_recv_qp: h.user_recv_qp.is_some(),
            };
            control(h.connid, PacketBody::Handshake(announced))
        }
        Header::PeerError(h) => {
            let abort = Abort {
                msg_id: h.msg_id.0,
                op_id: (h.op_id != PeerError::NO_OP).then_some(h.op_id),
                emitter: h.emitter_ope_type,
            };
            control(h.connid, PacketBody::Abort(abort))
        }
    }
}
