//! Headers of every kind from plain numbers: what property tests draw and other tests iterate over.

use efa_core::address::{Gid, Qkey, Qpn, RawAddress};
use efa_core::wire::{
    AtomRsp, AtomicDatatype, AtomicOp, Connid, Cts, CtsData, CtsFlags, EagerRtm, EagerRtw, Eor,
    ExtraInfo, Handshake, HandshakeFlags, Header, LongctsRtm, LongctsRtw, LongreadRtm, LongreadRtw,
    MediumRtm, MsgId, PacketType, PeerError, PeerErrorRefKind, RawAddressHeader, ReadNack, ReadRsp,
    ReadRtr, Receipt, RecvId, ReqFlags, ReqOptions, RmaIov, RmaIovs, Rta, RtaKind, Rtr, RtrKind,
    RuntctsRtm, RuntctsRtw, RuntreadRtm, RuntreadRtw, SendId, UniversalFlags, UserRecvQp,
};

/// Everything that some header needs. Which header it is depends on `packet_type`.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub packet_type: PacketType,
    pub words: [u32; 4],
    pub longs: [u64; 4],
    pub connid: Option<u32>,
    pub cq_data: Option<u64>,
    pub raw_address: Option<(RawAddress, u32)>,
    pub host_id: Option<u64>,
    pub device_version: Option<u32>,
    pub user_recv_qp: Option<(u32, u32)>,
    pub hmem_p2p: Option<bool>,
    pub rma_iov: Vec<RmaIov>,
    pub read_iov: Vec<RmaIov>,
    pub extra_info: Vec<u64>,
    pub flags: u16,
    pub payload: Vec<u8>,
}

/// The types that may be on the wire.
pub(crate) fn wire_types() -> impl Iterator<Item = PacketType> {
    PacketType::ALL.iter().copied().filter(|packet_type| {
        !matches!(
            packet_type,
            PacketType::Rts | PacketType::Connack | PacketType::RmaContext
        )
    })
}

impl Parts {
    /// A header with every optional part.
    pub(crate) fn full(packet_type: PacketType) -> Parts {
        let address = RawAddress {
            gid: Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]),
            qpn: Qpn(0x0123),
            qkey: Qkey(0x1234_5678),
        };
        Parts {
            packet_type,
            words: [0x0a01_0203, 0x0b01_0203, 0x0c01_0203, 0x0d01_0203],
            longs: [
                0x1a01_0203_0405_0607,
                0x1b01_0203_0405_0607,
                0x1c01_0203_0405_0607,
                0x1d01_0203_0405_0607,
            ],
            connid: Some(0x7654_3210),
            cq_data: Some(0x2a01_0203_0405_0607),
            raw_address: Some((address, 36)),
            host_id: Some(0x3a01_0203_0405_0607),
            device_version: Some(0xefa1),
            user_recv_qp: Some((0x0456, 0x2345_6789)),
            hmem_p2p: Some(true),
            rma_iov: vec![RmaIov::new(0x1000, 3, 7), RmaIov::new(0x2000, 4, 8)],
            read_iov: vec![RmaIov::new(0x3000, 5, 9)],
            extra_info: vec![0x1_ff, 0x1],
            flags: 0,
            payload: b"payload".to_vec(),
        }
    }

    pub(crate) fn header(&self) -> Header {
        use PacketType as T;
        let [word_a, word_b, word_c, word_d] = self.words;
        let [long_a, long_b, long_c, long_d] = self.longs;
        let connid = self.connid.map(Connid);
        let seg_length = self.payload.len() as u64;
        let flags = UniversalFlags::from_bits_retain(self.flags & 0x7fff);
        let tag = self.packet_type.is_tagged().then_some(long_d);
        let delivery_complete = self.packet_type.is_delivery_complete();
        let receipt = delivery_complete.then_some(SendId(word_d));
        let rma_iov = RmaIovs::new(&self.rma_iov).expect("at most four");
        let read_iov = RmaIovs::new(&self.read_iov).expect("at most four");
        let options = self.options();
        let (msg_id, send_id, recv_id) = (MsgId(word_a), SendId(word_b), RecvId(word_c));
        match self.packet_type {
            T::Rts | T::Connack | T::RmaContext => panic!("{} has no header", self.packet_type),
            T::Cts => Cts {
                connid,
                send_id,
                recv_id,
                recv_length: long_a,
                flags: CtsFlags::from_bits_retain(self.flags & 0x7fff),
            }
            .into(),
            T::CtsData => CtsData {
                recv_id,
                seg_length,
                seg_offset: long_b,
                connid,
                flags,
            }
            .into(),
            T::ReadRsp => ReadRsp {
                connid,
                recv_id,
                send_id,
                seg_length,
                flags,
            }
            .into(),
            T::Eor => Eor {
                send_id,
                recv_id,
                connid,
                flags,
            }
            .into(),
            T::AtomRsp => AtomRsp {
                connid,
                recv_id,
                seg_length,
                flags,
            }
            .into(),
            T::Handshake => Handshake {
                extra_info: ExtraInfo::new(&self.extra_info).expect("few"),
                connid,
                host_id: self.host_id,
                device_version: self.device_version,
                user_recv_qp: self.user_recv_qp.map(|(qpn, qkey)| UserRecvQp {
                    qpn,
                    qkey: Qkey(qkey),
                }),
                hmem_p2p: self.hmem_p2p,
                flags: HandshakeFlags::from_bits_retain(self.flags)
                    .difference(HandshakeFlags::OPTIONAL_FIELDS),
            }
            .into(),
            T::Receipt => Receipt {
                send_id,
                msg_id,
                connid,
                flags,
            }
            .into(),
            T::ReadNack => ReadNack {
                send_id,
                recv_id,
                connid,
                flags,
            }
            .into(),
            T::PeerError => PeerError {
                op_id: word_a,
                ref_kind: PeerErrorRefKind(word_b),
                prov_errno: word_c,
                connid,
                flags,
            }
            .into(),
            T::EagerMsgRtm | T::EagerTagRtm | T::DcEagerMsgRtm | T::DcEagerTagRtm => EagerRtm {
                msg_id,
                tag,
                receipt,
                options,
            }
            .into(),
            T::MediumMsgRtm | T::MediumTagRtm | T::DcMediumMsgRtm | T::DcMediumTagRtm => {
                MediumRtm {
                    msg_id,
                    msg_length: long_a,
                    seg_offset: long_b,
                    tag,
                    receipt,
                    options,
                }
                .into()
            }
            T::LongctsMsgRtm | T::LongctsTagRtm | T::DcLongctsMsgRtm | T::DcLongctsTagRtm => {
                LongctsRtm {
                    msg_id,
                    msg_length: long_a,
                    send_id,
                    credit_request: word_c,
                    tag,
                    delivery_complete,
                    options,
                }
                .into()
            }
            T::LongreadMsgRtm | T::LongreadTagRtm => LongreadRtm {
                msg_id,
                msg_length: long_a,
                send_id,
                tag,
                read_iov,
                options,
            }
            .into(),
            T::RuntreadMsgRtm | T::RuntreadTagRtm => RuntreadRtm {
                msg_id,
                msg_length: long_a,
                send_id,
                seg_offset: long_b,
                runt_length: long_c,
                tag,
                read_iov,
                options,
            }
            .into(),
            T::RuntctsMsgRtm | T::RuntctsTagRtm => RuntctsRtm {
                msg_id,
                msg_length: long_a,
                send_id,
                credit_request: word_c,
                seg_offset: long_b,
                runt_length: long_c,
                tag,
                options,
            }
            .into(),
            T::EagerRtw | T::DcEagerRtw => EagerRtw {
                rma_iov,
                receipt,
                options,
            }
            .into(),
            T::LongctsRtw | T::DcLongctsRtw => LongctsRtw {
                rma_iov,
                msg_length: long_a,
                send_id,
                credit_request: word_c,
                delivery_complete,
                options,
            }
            .into(),
            T::LongreadRtw => LongreadRtw {
                rma_iov,
                msg_length: long_a,
                send_id,
                read_iov,
                options,
            }
            .into(),
            T::RuntctsRtw => RuntctsRtw {
                rma_iov,
                msg_length: long_a,
                send_id,
                credit_request: word_c,
                seg_offset: long_b,
                runt_length: long_c,
                options,
            }
            .into(),
            T::RuntreadRtw => RuntreadRtw {
                rma_iov,
                msg_length: long_a,
                send_id,
                seg_offset: long_b,
                runt_length: long_c,
                read_iov,
                options,
            }
            .into(),
            T::ShortRtr | T::LongctsRtr => Rtr {
                kind: if self.packet_type == T::ShortRtr {
                    RtrKind::Short
                } else {
                    RtrKind::Longcts
                },
                rma_iov,
                msg_length: long_a,
                recv_id,
                recv_length: word_d,
                options,
            }
            .into(),
            T::ReadRtr => ReadRtr { options }.into(),
            T::WriteRta | T::FetchRta | T::CompareRta | T::DcWriteRta => Rta {
                kind: match self.packet_type {
                    T::FetchRta => RtaKind::Fetch(recv_id),
                    T::CompareRta => RtaKind::Compare(recv_id),
                    T::DcWriteRta => RtaKind::DcWrite(send_id),
                    _ => RtaKind::Write,
                },
                msg_id,
                atomic_datatype: AtomicDatatype(word_b),
                atomic_op: AtomicOp(word_d),
                rma_iov,
                options,
            }
            .into(),
        }
    }

    /// The optional headers. Flags that follow from type and presence are left out of `flags`,
    /// because parsing leaves them out as well.
    fn options(&self) -> ReqOptions {
        let derived = if self.packet_type.is_tagged() {
            ReqFlags::MSG | ReqFlags::TAGGED
        } else if self.packet_type.name().ends_with("MSGRTM") {
            ReqFlags::MSG
        } else if self.packet_type.name().ends_with("RTA") {
            ReqFlags::ATOMIC
        } else {
            ReqFlags::empty()
        };
        ReqOptions {
            raw_address: self.raw_address.map(|(address, size)| {
                RawAddressHeader::with_size(address, size).expect("at least 32")
            }),
            cq_data: self.cq_data,
            connid: self.connid.map(Connid),
            flags: ReqFlags::from_bits_retain(self.flags)
                .difference(derived | ReqFlags::OPTIONAL_HEADERS),
        }
    }
}
