//! Tables of the Requests To Write, To Read and To Atomic.

use super::{
    D_CREDIT_REQUEST, D_RUNT_LENGTH, D_SEG_OFFSET, D_SEND_ID_CTS, D_SEND_ID_EOR, S_DC, STOCK_RUNT,
    count, field, number, once, padding, table,
};
use crate::wire::fields::{Array, FieldDescriptor, Kind, Section, Source};

// Requests To Write.

const T_EAGER_RTW: Source = table("3.3", "3.8");
pub(super) const EAGER_RTW: Section = once(&[count("rma_iov_count", Array::RmaIov, T_EAGER_RTW)]);

const T_LONGCTS_RTW: Source = table("3.3", "3.9");
pub(super) const LONGCTS_RTW: Section = once(&[
    count("rma_iov_count", Array::RmaIov, T_LONGCTS_RTW),
    number("msg_length", 8, T_LONGCTS_RTW, "length of the whole write"),
    number("send_id", 4, T_LONGCTS_RTW, D_SEND_ID_CTS),
    number("credit_request", 4, T_LONGCTS_RTW, D_CREDIT_REQUEST),
]);

const T_LONGREAD_RTW: Source = table("4.1", "4.3");
pub(super) const LONGREAD_RTW: Section = once(&[
    count("rma_iov_count", Array::RmaIov, T_LONGREAD_RTW),
    number("msg_length", 8, T_LONGREAD_RTW, "length of the whole write"),
    number("send_id", 4, T_LONGREAD_RTW, D_SEND_ID_EOR),
    count("read_iov_count", Array::ReadIov, T_LONGREAD_RTW),
]);

pub(super) const RUNTCTS_RTW: Section = once(&[
    count("rma_iov_count", Array::RmaIov, STOCK_RUNT),
    number("msg_length", 8, STOCK_RUNT, "length of the whole write"),
    number("send_id", 4, STOCK_RUNT, D_SEND_ID_CTS),
    number("credit_request", 4, STOCK_RUNT, D_CREDIT_REQUEST),
    number("seg_offset", 8, STOCK_RUNT, D_SEG_OFFSET),
    number("runt_length", 8, STOCK_RUNT, D_RUNT_LENGTH),
]);

pub(super) const RUNTREAD_RTW: Section = once(&[
    count("rma_iov_count", Array::RmaIov, STOCK_RUNT),
    number("msg_length", 8, STOCK_RUNT, "length of the whole write"),
    number("send_id", 4, STOCK_RUNT, D_SEND_ID_EOR),
    count("read_iov_count", Array::ReadIov, STOCK_RUNT),
    number("seg_offset", 8, STOCK_RUNT, D_SEG_OFFSET),
    number("runt_length", 8, STOCK_RUNT, D_RUNT_LENGTH),
]);

// Requests To Read.

const T_SHORT_RTR: Source = table("3.3", "3.10");
pub(super) const SHORT_RTR: Section = once(&[
    count("rma_iov_count", Array::RmaIov, T_SHORT_RTR),
    number("msg_length", 8, T_SHORT_RTR, "length of the whole read"),
    number(
        "recv_id",
        4,
        T_SHORT_RTR,
        "operation of the requester, for READRSP",
    ),
    number(
        "recv_length",
        4,
        T_SHORT_RTR,
        "length of the whole read (padding in the table, but stock fills it)",
    ),
]);

const T_LONGCTS_RTR: Source = table("3.3", "3.12");
pub(super) const LONGCTS_RTR: Section = once(&[
    count("rma_iov_count", Array::RmaIov, T_LONGCTS_RTR),
    number("msg_length", 8, T_LONGCTS_RTR, "length of the whole read"),
    number(
        "recv_id",
        4,
        T_LONGCTS_RTR,
        "operation of the requester, for READRSP and CTSDATA",
    ),
    number(
        "recv_length",
        4,
        T_LONGCTS_RTR,
        "bytes that the requester is ready to receive, those in READRSP included",
    ),
]);

// Requests To Atomic.

const fn rta(source: Source) -> [FieldDescriptor; 4] {
    [
        number(
            "msg_id",
            4,
            source,
            "place of the operation in the sequence from this sender",
        ),
        count("rma_iov_count", Array::RmaIov, source),
        field(
            "atomic_datatype",
            4,
            Kind::AtomicDatatype,
            source,
            "enum fi_datatype of libfabric",
        ),
        field(
            "atomic_op",
            4,
            Kind::AtomicOp,
            source,
            "enum fi_op of libfabric",
        ),
    ]
}

const T_WRITE_RTA: Source = table("3.3", "3.13");
pub(super) const RTA: Section = once(&rta(T_WRITE_RTA));
pub(super) const RTA_PADDING: Section = once(&[padding("padding", 4, T_WRITE_RTA)]);
const T_FETCH_RTA: Source = table("3.3", "3.14");
pub(super) const FETCHING_RTA: Section = once(&rta(T_FETCH_RTA));
pub(super) const FETCHING_RTA_RECV_ID: Section = once(&[number(
    "recv_id",
    4,
    T_FETCH_RTA,
    "operation of the requester, for ATOMRSP",
)]);
pub(super) const DC_RTA: Section = once(&rta(S_DC));
pub(super) const DC_RTA_SEND_ID: Section = once(&[number(
    "send_id",
    4,
    S_DC,
    "operation of the requester, for RECEIPT",
)]);
