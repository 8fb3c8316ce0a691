//! A parsed packet as values of its own, free of the packet's bytes.
//!
//! The wire formats borrow from the packet. The engine's handlers change the engine that owns the
//! packet's buffer, so what they need is copied out here: a few words, and the arrays of iovs.

use crate::address::RawAddress;
use crate::wire::{
    AtomRsp, AtomicDatatype, AtomicOp, Connid, Cts, CtsData, EagerRtm, Eor, Header, LongctsRtm,
    MsgId, Packet, PacketType, ParseError, ReadNack, ReadRsp, Receipt, RecvId, ReqFlags,
    ReqOptions, RmaIov, RmaIovs, RtaKind, RtrKind, SendId,
};

use crate::endpoint::conversation::PeerFeatures;

/// A packet's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    pub(crate) packet_type: PacketType,
    /// The connection id, from wherever the packet has it.
    pub(crate) connid: Option<Connid>,
    /// The sender's address, if the packet states it.
    pub(crate) raw_address: Option<RawAddress>,
    pub(crate) body: Body,
    /// Where the payload is in the packet.
    pub(crate) payload: Payload,
}

/// The payload's place in the packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload {
    pub(crate) offset: usize,
    pub(crate) length: usize,
}

impl Payload {
    /// The payload is what a packet ends with.
    #[inline]
    fn of(packet: &[u8], payload: &[u8]) -> Self {
        Payload {
            offset: packet.len() - payload.len(),
            length: payload.len(),
        }
    }
}

/// What a packet asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    /// Takes its turn by `msg_id`: a message.
    Message(Rtm),
    /// Takes its turn by `msg_id`: an atomic.
    Atomic(Rta),
    Write(Rtw),
    Read(Rtr),
    Cts(Cts),
    CtsData(CtsData),
    ReadRsp(ReadRsp),
    Eor(Eor),
    AtomRsp(AtomRsp),
    Handshake(PeerFeatures),
    Receipt(Receipt),
    ReadNack(ReadNack),
    /// Known to the codec, but nothing that a release of libfabric sends.
    Unsupported,
}

/// A request to message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtm {
    pub(crate) msg_id: MsgId,
    pub(crate) tag: Option<u64>,
    pub(crate) cq_data: Option<u64>,
    pub(crate) protocol: RtmProtocol,
}

/// The subprotocol of a message, with its own fields.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RtmProtocol {
    Eager {
        receipt: Option<SendId>,
    },
    Medium {
        msg_length: u64,
        seg_offset: u64,
        receipt: Option<SendId>,
    },
    LongCts {
        msg_length: u64,
        send_id: SendId,
        delivery_complete: bool,
        /// It continues a message whose RDMA read was refused, under the same `msg_id`.
        answers_nack: bool,
    },
    LongRead {
        msg_length: u64,
        send_id: SendId,
        read_iov: Iovs,
    },
    RuntRead {
        msg_length: u64,
        send_id: SendId,
        seg_offset: u64,
        runt_length: u64,
        read_iov: Iovs,
    },
}

impl Rtm {
    /// Length of the whole message in bytes.
    pub(crate) fn length(&self, payload: Payload) -> u64 {
        match self.protocol {
            RtmProtocol::Eager { .. } => payload.length as u64,
            RtmProtocol::Medium { msg_length, .. }
            | RtmProtocol::LongCts { msg_length, .. }
            | RtmProtocol::LongRead { msg_length, .. }
            | RtmProtocol::RuntRead { msg_length, .. } => msg_length,
        }
    }

    /// Whether it continues a message whose RDMA read was refused.
    pub(crate) fn answers_nack(&self) -> bool {
        matches!(
            self.protocol,
            RtmProtocol::LongCts {
                answers_nack: true,
                ..
            }
        )
    }

    /// Whether it is all in one packet.
    pub(crate) fn is_eager(&self) -> bool {
        matches!(self.protocol, RtmProtocol::Eager { .. })
    }

    /// Whether other packets of the same `msg_id` may follow.
    pub(crate) fn is_segment(&self) -> bool {
        matches!(
            self.protocol,
            RtmProtocol::Medium { .. } | RtmProtocol::RuntRead { .. }
        )
    }
}

/// A request to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtw {
    pub(crate) target: Iovs,
    pub(crate) cq_data: Option<u64>,
    pub(crate) protocol: RtwProtocol,
}

impl Rtw {
    /// Whether it brings all of its data.
    pub(crate) fn is_eager(&self) -> bool {
        matches!(self.protocol, RtwProtocol::Eager { .. })
    }
}

/// The subprotocol of a write, with its own fields.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RtwProtocol {
    Eager {
        receipt: Option<SendId>,
    },
    LongCts {
        msg_length: u64,
        send_id: SendId,
        delivery_complete: bool,
    },
    LongRead {
        msg_length: u64,
        send_id: SendId,
        read_iov: Iovs,
    },
}

/// A request to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtr {
    pub(crate) kind: RtrKind,
    pub(crate) source: Iovs,
    pub(crate) msg_length: u64,
    pub(crate) recv_id: RecvId,
    pub(crate) recv_length: u32,
}

/// An atomic request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rta {
    pub(crate) kind: RtaKind,
    pub(crate) msg_id: MsgId,
    pub(crate) datatype: AtomicDatatype,
    pub(crate) operation: AtomicOp,
    pub(crate) target: Iovs,
}

/// Up to four pieces of a peer's (or, in requests to us, our own) registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Iovs {
    entries: [RmaIov; RmaIovs::MAX],
    count: usize,
}

impl Iovs {
    pub(crate) fn as_slice(&self) -> &[RmaIov] {
        &self.entries[..self.count]
    }

    /// The pieces as a packet takes them.
    pub(crate) fn wire(&self) -> RmaIovs<'_> {
        // There are never more than a packet may have.
        RmaIovs::new(self.as_slice()).unwrap_or(RmaIovs::EMPTY)
    }

    /// At most four pieces.
    pub(crate) fn new(pieces: impl Iterator<Item = RmaIov>) -> Self {
        let mut iovs = Iovs::from(RmaIovs::EMPTY);
        for (entry, piece) in iovs.entries.iter_mut().zip(pieces) {
            *entry = piece;
            iovs.count += 1;
        }
        iovs
    }

    /// The address, key and length of what follows byte `offset` within one piece.
    pub(crate) fn part_at(&self, offset: u64) -> Option<RmaIov> {
        let mut skip = offset;
        for piece in self.as_slice() {
            if skip < piece.len() {
                return Some(RmaIov::new(
                    piece.addr().wrapping_add(skip),
                    piece.len() - skip,
                    piece.key(),
                ));
            }
            skip -= piece.len();
        }
        None
    }

    /// The sum of the lengths, `None` if it does not fit 64 bits.
    pub(crate) fn total_length(&self) -> Option<u64> {
        self.as_slice()
            .iter()
            .try_fold(0_u64, |sum, iov| sum.checked_add(iov.len()))
    }
}

impl From<RmaIovs<'_>> for Iovs {
    fn from(iovs: RmaIovs<'_>) -> Self {
        let mut entries = [RmaIov::new(0, 0, 0); RmaIovs::MAX];
        entries[..iovs.len()].copy_from_slice(&iovs);
        Iovs {
            entries,
            count: iovs.len(),
        }
    }
}

impl Incoming {
    /// Whether it is a request to message.
    pub(crate) fn is_message(&self) -> bool {
        matches!(self.body, Body::Message(_))
    }

    /// Takes what the handlers need from an eager message, and its place among those of its sender.
    /// `None` for every other packet, which is for [`Incoming::parse`].
    #[inline(always)]
    pub(crate) fn parse_eager(bytes: &[u8]) -> Option<(MsgId, Self)> {
        let (packet_type, eager, payload) = Packet::parse_eager(bytes)?;
        let raw_address = eager.options.raw_address.map(|header| header.address());
        let incoming = Incoming {
            packet_type,
            connid: eager
                .options
                .connid
                .or(raw_address.map(|address| address.qkey.into())),
            raw_address,
            body: Body::Message(eager_message(&eager)),
            payload: Payload::of(bytes, payload),
        };
        Some((eager.msg_id, incoming))
    }

    /// Parses a packet and copies out what the handlers need of it.
    ///
    /// # Errors
    /// As [`Packet::parse`].
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let packet = Packet::parse(bytes)?;
        let options = packet.header.req_options();
        let raw_address = options
            .and_then(|options| options.raw_address)
            .map(|header| header.address());
        let connid = packet
            .header
            .connid()
            .or(raw_address.map(|address| address.qkey.into()));
        Ok(Incoming {
            packet_type: packet.base.packet_type,
            connid,
            raw_address,
            body: Body::from(&packet.header),
            payload: Payload::of(bytes, packet.payload),
        })
    }
}

impl From<&Header<'_>> for Body {
    #[inline]
    fn from(header: &Header<'_>) -> Self {
        match header {
            Header::EagerRtm(eager) => Body::Message(eager_message(eager)),
            Header::MediumRtm(medium) => Body::Message(Rtm {
                msg_id: medium.msg_id,
                tag: medium.tag,
                cq_data: medium.options.cq_data,
                protocol: RtmProtocol::Medium {
                    msg_length: medium.msg_length,
                    seg_offset: medium.seg_offset,
                    receipt: medium.receipt,
                },
            }),
            Header::LongctsRtm(long) => Body::Message(long_cts(long)),
            Header::LongreadRtm(long) => Body::Message(Rtm {
                msg_id: long.msg_id,
                tag: long.tag,
                cq_data: long.options.cq_data,
                protocol: RtmProtocol::LongRead {
                    msg_length: long.msg_length,
                    send_id: long.send_id,
                    read_iov: long.read_iov.into(),
                },
            }),
            Header::RuntreadRtm(runt) => Body::Message(Rtm {
                msg_id: runt.msg_id,
                tag: runt.tag,
                cq_data: runt.options.cq_data,
                protocol: RtmProtocol::RuntRead {
                    msg_length: runt.msg_length,
                    send_id: runt.send_id,
                    seg_offset: runt.seg_offset,
                    runt_length: runt.runt_length,
                    read_iov: runt.read_iov.into(),
                },
            }),
            Header::EagerRtw(eager) => Body::Write(Rtw {
                target: eager.rma_iov.into(),
                cq_data: eager.options.cq_data,
                protocol: RtwProtocol::Eager {
                    receipt: eager.receipt,
                },
            }),
            Header::LongctsRtw(long) => Body::Write(Rtw {
                target: long.rma_iov.into(),
                cq_data: long.options.cq_data,
                protocol: RtwProtocol::LongCts {
                    msg_length: long.msg_length,
                    send_id: long.send_id,
                    delivery_complete: long.delivery_complete,
                },
            }),
            Header::LongreadRtw(long) => Body::Write(Rtw {
                target: long.rma_iov.into(),
                cq_data: long.options.cq_data,
                protocol: RtwProtocol::LongRead {
                    msg_length: long.msg_length,
                    send_id: long.send_id,
                    read_iov: long.read_iov.into(),
                },
            }),
            Header::Rtr(rtr) => Body::Read(Rtr {
                kind: rtr.kind,
                source: rtr.rma_iov.into(),
                msg_length: rtr.msg_length,
                recv_id: rtr.recv_id,
                recv_length: rtr.recv_length,
            }),
            Header::Rta(rta) => Body::Atomic(Rta {
                kind: rta.kind,
                msg_id: rta.msg_id,
                datatype: rta.atomic_datatype,
                operation: rta.atomic_op,
                target: rta.rma_iov.into(),
            }),
            Header::Cts(cts) => Body::Cts(*cts),
            Header::CtsData(data) => Body::CtsData(*data),
            Header::ReadRsp(response) => Body::ReadRsp(*response),
            Header::Eor(eor) => Body::Eor(*eor),
            Header::AtomRsp(response) => Body::AtomRsp(*response),
            Header::Handshake(handshake) => Body::Handshake(handshake.into()),
            Header::Receipt(receipt) => Body::Receipt(*receipt),
            Header::ReadNack(nack) => Body::ReadNack(*nack),
            Header::RuntctsRtm(_)
            | Header::RuntctsRtw(_)
            | Header::RuntreadRtw(_)
            | Header::ReadRtr(_)
            | Header::PeerError(_) => Body::Unsupported,
        }
    }
}

#[inline]
fn eager_message(eager: &EagerRtm) -> Rtm {
    Rtm {
        msg_id: eager.msg_id,
        tag: eager.tag,
        cq_data: eager.options.cq_data,
        protocol: RtmProtocol::Eager {
            receipt: eager.receipt,
        },
    }
}

fn long_cts(long: &LongctsRtm) -> Rtm {
    Rtm {
        msg_id: long.msg_id,
        tag: long.tag,
        cq_data: long.options.cq_data,
        protocol: RtmProtocol::LongCts {
            msg_length: long.msg_length,
            send_id: long.send_id,
            delivery_complete: long.delivery_complete,
            answers_nack: nack_answer(&long.options),
        },
    }
}

fn nack_answer(options: &ReqOptions) -> bool {
    options.flags.contains(ReqFlags::READ_NACK)
}
