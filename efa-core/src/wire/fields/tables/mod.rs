//! The tables. Each constant is a table of the spec, or what stock libfabric adds to it.

mod control;
mod rma;
mod rtm;

use control::*;
use rma::*;
use rtm::*;

use super::{Array, FieldDescriptor, Kind, Presence, Section, Source, Width};
use crate::wire::flags::{ReqFlags, UniversalFlags};
use crate::wire::packet_type::PacketType;

const CONNID_HDR: u16 = UniversalFlags::CONNID_HDR.bits();

const fn table(section: &'static str, table: &'static str) -> Source {
    Source::Spec {
        section,
        table: Some(table),
    }
}

const fn section(section: &'static str) -> Source {
    Source::Spec {
        section,
        table: None,
    }
}

const fn stock(since: &'static str) -> Source {
    Source::Stock { since }
}

const fn field(
    name: &'static str,
    width: usize,
    kind: Kind,
    source: Source,
    description: &'static str,
) -> FieldDescriptor {
    FieldDescriptor {
        name,
        width: Width::Fixed(width),
        presence: Presence::Always,
        kind,
        source,
        description,
    }
}

/// A number that is a quantity or an id.
const fn number(
    name: &'static str,
    width: usize,
    source: Source,
    description: &'static str,
) -> FieldDescriptor {
    field(name, width, Kind::Number, source, description)
}

/// A number that is read in hexadecimal.
const fn bits(
    name: &'static str,
    width: usize,
    source: Source,
    description: &'static str,
) -> FieldDescriptor {
    field(name, width, Kind::Bits, source, description)
}

const fn padding(name: &'static str, width: usize, source: Source) -> FieldDescriptor {
    field(
        name,
        width,
        Kind::Padding,
        source,
        "without meaning; senders may leave anything in it",
    )
}

const fn count(name: &'static str, array: Array, source: Source) -> FieldDescriptor {
    let description = match array {
        Array::RmaIov => "number of rma_iov entries, at most 4",
        Array::ReadIov => "number of read_iov entries, at most 4",
        Array::ExtraInfo => "number of extra_info words plus 3",
    };
    field(name, 4, Kind::Count(array), source, description)
}

impl FieldDescriptor {
    const fn when(mut self, presence: Presence) -> FieldDescriptor {
        self.presence = presence;
        self
    }
}

const fn once(fields: &'static [FieldDescriptor]) -> Section {
    Section {
        array: None,
        fields,
    }
}

/// Padding, or the sender's connid if the flag says so (`multiuse` in the spec's tables).
const fn connid_or_padding(source: Source) -> [FieldDescriptor; 2] {
    [
        bits("connid", 4, source, "connection id of the sender")
            .when(Presence::IfFlagElseNext(CONNID_HDR)),
        padding("padding", 4, source).when(Presence::UnlessFlag(CONNID_HDR)),
    ]
}

const T_BASE: Source = table("1.3", "1.3");
const BASE: Section = once(&[
    field("type", 1, Kind::PacketType, T_BASE, "packet type id"),
    number("version", 1, T_BASE, "protocol version, always 4"),
    field(
        "flags",
        2,
        Kind::Flags,
        T_BASE,
        "optional parts of the packet and what it is used for",
    ),
]);

const S_REQ: Source = section("3.1");
const DATA: Section = once(&[FieldDescriptor {
    name: "data",
    width: Width::Rest,
    presence: Presence::Always,
    kind: Kind::Data,
    source: S_REQ,
    description: "application data",
}]);
const TRAILING: Section = once(&[FieldDescriptor {
    name: "trailing",
    width: Width::Rest,
    presence: Presence::Always,
    kind: Kind::Unknown,
    source: section("1.3"),
    description: "bytes behind the end of the packet's format",
}]);

// Optional headers of requests.

const RAW_ADDR: Presence = Presence::IfFlag(ReqFlags::RAW_ADDR_HDR.bits());
const T_RAW_ADDR: Source = table("3.1", "3.2");
const T_ADDRESS: Source = table("1.4", "1.5");
const REQ_OPTIONS: Section = once(&[
    field(
        "raw_addr.size",
        4,
        Kind::RawAddressSize,
        T_RAW_ADDR,
        "bytes of the address that follow: 32, or 36 from stock libfabric since 1.13.0",
    )
    .when(RAW_ADDR),
    field(
        "raw_addr.gid",
        16,
        Kind::Gid,
        T_ADDRESS,
        "GID of the sender's device",
    )
    .when(RAW_ADDR),
    number(
        "raw_addr.qpn",
        2,
        T_ADDRESS,
        "queue pair number of the sender",
    )
    .when(RAW_ADDR),
    padding("raw_addr.pad", 2, T_ADDRESS).when(RAW_ADDR),
    bits(
        "raw_addr.connid",
        4,
        T_ADDRESS,
        "connection id of the sender, which is its Q-key",
    )
    .when(RAW_ADDR),
    padding("raw_addr.reserved", 8, T_ADDRESS).when(RAW_ADDR),
    FieldDescriptor {
        name: "raw_addr.surplus",
        width: Width::RawAddressSurplus,
        presence: RAW_ADDR,
        kind: Kind::Padding,
        source: T_RAW_ADDR,
        description: "what the size has beyond the 32 bytes of the address; not interpreted",
    },
    bits("cq_data", 8, S_REQ, "data for the completion at the target")
        .when(Presence::IfFlag(ReqFlags::CQ_DATA_HDR.bits())),
    bits("connid", 4, section("4.4"), "connection id of the sender")
        .when(Presence::IfFlag(CONNID_HDR)),
]);

// Arrays.

const S_RMA: Source = section("3.3");
const RMA_IOV: Section = Section {
    array: Some(Array::RmaIov),
    fields: &[
        bits("rma_iov.addr", 8, S_RMA, "virtual address at the target"),
        number("rma_iov.len", 8, S_RMA, "length in bytes"),
        bits("rma_iov.key", 8, S_RMA, "remote key of the target's memory"),
    ],
};

const S_READ: Source = section("4.1");
const READ_IOV: Section = Section {
    array: Some(Array::ReadIov),
    fields: &[
        bits("read_iov.addr", 8, S_READ, "virtual address at the sender"),
        number("read_iov.len", 8, S_READ, "length in bytes"),
        bits(
            "read_iov.key",
            8,
            S_READ,
            "remote key of the sender's memory",
        ),
    ],
};

// What the requests share.

const D_CREDIT_REQUEST: &str = "data packets that the sender would like to send";
const D_SEND_ID_CTS: &str = "operation of the sender, for CTS";
const D_SEND_ID_EOR: &str = "operation of the sender, for EOR or READ_NACK";
const D_SEG_OFFSET: &str = "where the data belongs, from the start of the message or write";
const D_RUNT_LENGTH: &str = "bytes that are sent in packets of this type, in all of them together";
const STOCK_RUNT: Source = stock("1.16.0");
// The spec's tables of the DC packets are those of the others; the ids are stock libfabric's.
const S_DC: Source = section("4.2");

/// The sections of each type, in the order of the packet.
pub(super) const fn sections(packet_type: PacketType) -> &'static [&'static Section] {
    use PacketType as T;
    match packet_type {
        T::Rts | T::Connack | T::RmaContext => &[&BASE, &TRAILING],
        T::Cts => &[&BASE, &CTS, &TRAILING],
        T::CtsData => &[&BASE, &CTSDATA, &DATA],
        T::ReadRsp => &[&BASE, &READRSP, &DATA],
        T::Eor => &[&BASE, &EOR, &TRAILING],
        T::AtomRsp => &[&BASE, &ATOMRSP, &DATA],
        T::Handshake => &[
            &BASE,
            &HANDSHAKE,
            &EXTRA_INFO,
            &HANDSHAKE_OPTIONS,
            &TRAILING,
        ],
        T::Receipt => &[&BASE, &RECEIPT, &TRAILING],
        T::ReadNack => &[&BASE, &READ_NACK, &TRAILING],
        T::PeerError => &[&BASE, &PEER_ERROR, &TRAILING],

        T::EagerMsgRtm => &[&BASE, &EAGER_RTM, &REQ_OPTIONS, &DATA],
        T::EagerTagRtm => &[&BASE, &EAGER_RTM, &EAGER_TAG, &REQ_OPTIONS, &DATA],
        T::DcEagerMsgRtm => &[&BASE, &EAGER_RTM, &DC_SEND_ID, &REQ_OPTIONS, &DATA],
        T::DcEagerTagRtm => &[
            &BASE,
            &EAGER_RTM,
            &DC_SEND_ID,
            &EAGER_TAG,
            &REQ_OPTIONS,
            &DATA,
        ],
        T::MediumMsgRtm => &[&BASE, &MEDIUM_MSG_ID, &MEDIUM_SEGMENT, &REQ_OPTIONS, &DATA],
        T::MediumTagRtm => &[
            &BASE,
            &MEDIUM_MSG_ID,
            &MEDIUM_SEGMENT,
            &MEDIUM_TAG,
            &REQ_OPTIONS,
            &DATA,
        ],
        T::DcMediumMsgRtm => &[
            &BASE,
            &MEDIUM_MSG_ID,
            &DC_SEND_ID,
            &MEDIUM_SEGMENT,
            &REQ_OPTIONS,
            &DATA,
        ],
        T::DcMediumTagRtm => &[
            &BASE,
            &MEDIUM_MSG_ID,
            &DC_SEND_ID,
            &MEDIUM_SEGMENT,
            &MEDIUM_TAG,
            &REQ_OPTIONS,
            &DATA,
        ],
        T::LongctsMsgRtm | T::DcLongctsMsgRtm => &[&BASE, &LONGCTS_RTM, &REQ_OPTIONS, &DATA],
        T::LongctsTagRtm | T::DcLongctsTagRtm => {
            &[&BASE, &LONGCTS_RTM, &LONGCTS_TAG, &REQ_OPTIONS, &DATA]
        }
        T::LongreadMsgRtm => &[&BASE, &LONGREAD_RTM, &REQ_OPTIONS, &READ_IOV, &TRAILING],
        T::LongreadTagRtm => &[
            &BASE,
            &LONGREAD_RTM,
            &LONGREAD_TAG,
            &REQ_OPTIONS,
            &READ_IOV,
            &TRAILING,
        ],
        T::RuntreadMsgRtm => &[&BASE, &RUNTREAD_RTM, &REQ_OPTIONS, &READ_IOV, &DATA],
        T::RuntreadTagRtm => &[
            &BASE,
            &RUNTREAD_RTM,
            &RUNTREAD_TAG,
            &REQ_OPTIONS,
            &READ_IOV,
            &DATA,
        ],
        T::RuntctsMsgRtm => &[&BASE, &RUNTCTS_RTM, &REQ_OPTIONS, &DATA],
        T::RuntctsTagRtm => &[&BASE, &RUNTCTS_RTM, &RUNTCTS_TAG, &REQ_OPTIONS, &DATA],

        T::EagerRtw => &[&BASE, &EAGER_RTW, &RMA_IOV, &REQ_OPTIONS, &DATA],
        T::DcEagerRtw => &[
            &BASE,
            &EAGER_RTW,
            &DC_SEND_ID,
            &RMA_IOV,
            &REQ_OPTIONS,
            &DATA,
        ],
        T::LongctsRtw | T::DcLongctsRtw => &[&BASE, &LONGCTS_RTW, &RMA_IOV, &REQ_OPTIONS, &DATA],
        T::LongreadRtw => &[
            &BASE,
            &LONGREAD_RTW,
            &RMA_IOV,
            &REQ_OPTIONS,
            &READ_IOV,
            &TRAILING,
        ],
        T::RuntctsRtw => &[&BASE, &RUNTCTS_RTW, &RMA_IOV, &REQ_OPTIONS, &DATA],
        T::RuntreadRtw => &[
            &BASE,
            &RUNTREAD_RTW,
            &RMA_IOV,
            &REQ_OPTIONS,
            &READ_IOV,
            &DATA,
        ],

        T::ShortRtr => &[&BASE, &SHORT_RTR, &RMA_IOV, &REQ_OPTIONS, &TRAILING],
        T::LongctsRtr => &[&BASE, &LONGCTS_RTR, &RMA_IOV, &REQ_OPTIONS, &TRAILING],
        T::ReadRtr => &[&BASE, &REQ_OPTIONS, &TRAILING],

        T::WriteRta => &[&BASE, &RTA, &RTA_PADDING, &RMA_IOV, &REQ_OPTIONS, &DATA],
        T::FetchRta | T::CompareRta => &[
            &BASE,
            &FETCHING_RTA,
            &FETCHING_RTA_RECV_ID,
            &RMA_IOV,
            &REQ_OPTIONS,
            &DATA,
        ],
        T::DcWriteRta => &[
            &BASE,
            &DC_RTA,
            &DC_RTA_SEND_ID,
            &RMA_IOV,
            &REQ_OPTIONS,
            &DATA,
        ],
    }
}
