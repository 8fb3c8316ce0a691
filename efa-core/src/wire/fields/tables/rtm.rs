//! Tables of the Requests To Message.

use super::{
    D_CREDIT_REQUEST, D_RUNT_LENGTH, D_SEG_OFFSET, D_SEND_ID_CTS, D_SEND_ID_EOR, S_DC, STOCK_RUNT,
    bits, count, number, once, padding, table,
};
use crate::wire::fields::{Array, Section, Source};

const D_MSG_ID: &str = "place of the message in the sequence from this sender";
const D_MSG_LENGTH: &str = "length of the whole message";

const T_EAGER_RTM: Source = table("3.2", "3.3");
pub(super) const EAGER_RTM: Section = once(&[number("msg_id", 4, T_EAGER_RTM, D_MSG_ID)]);
pub(super) const EAGER_TAG: Section = once(&[bits("tag", 8, T_EAGER_RTM, "tag")]);

const T_MEDIUM_RTM: Source = table("3.2", "3.4");
pub(super) const MEDIUM_MSG_ID: Section = once(&[number("msg_id", 4, T_MEDIUM_RTM, D_MSG_ID)]);
pub(super) const MEDIUM_SEGMENT: Section = once(&[
    number(
        "msg_length",
        8,
        T_MEDIUM_RTM,
        "length of the whole message (seg_length in the table, but stock sends the total)",
    ),
    number("seg_offset", 8, T_MEDIUM_RTM, D_SEG_OFFSET),
]);
pub(super) const MEDIUM_TAG: Section = once(&[bits("tag", 8, T_MEDIUM_RTM, "tag")]);

const T_LONGCTS_RTM: Source = table("3.2", "3.5");
pub(super) const LONGCTS_RTM: Section = once(&[
    number("msg_id", 4, T_LONGCTS_RTM, D_MSG_ID),
    number("msg_length", 8, T_LONGCTS_RTM, D_MSG_LENGTH),
    number("send_id", 4, T_LONGCTS_RTM, D_SEND_ID_CTS),
    number("credit_request", 4, T_LONGCTS_RTM, D_CREDIT_REQUEST),
]);
pub(super) const LONGCTS_TAG: Section = once(&[bits("tag", 8, T_LONGCTS_RTM, "tag")]);

const T_LONGREAD_RTM: Source = table("4.1", "4.1");
pub(super) const LONGREAD_RTM: Section = once(&[
    number("msg_id", 4, T_LONGREAD_RTM, D_MSG_ID),
    number("msg_length", 8, T_LONGREAD_RTM, D_MSG_LENGTH),
    number("send_id", 4, T_LONGREAD_RTM, D_SEND_ID_EOR),
    count("read_iov_count", Array::ReadIov, T_LONGREAD_RTM),
]);
pub(super) const LONGREAD_TAG: Section = once(&[bits("tag", 8, T_LONGREAD_RTM, "tag")]);

pub(super) const DC_SEND_ID: Section = once(&[
    number("send_id", 4, S_DC, "operation of the sender, for RECEIPT"),
    padding("padding", 4, S_DC),
]);

const T_RUNTREAD_RTM: Source = table("4.5", "4.4");
pub(super) const RUNTREAD_RTM: Section = once(&[
    number("msg_id", 4, T_RUNTREAD_RTM, D_MSG_ID),
    number("msg_length", 8, T_RUNTREAD_RTM, D_MSG_LENGTH),
    number("send_id", 4, T_RUNTREAD_RTM, D_SEND_ID_EOR),
    count("read_iov_count", Array::ReadIov, T_RUNTREAD_RTM),
    number("seg_offset", 8, T_RUNTREAD_RTM, D_SEG_OFFSET),
    number(
        "runt_length",
        8,
        T_RUNTREAD_RTM,
        "bytes of the message that are sent in packets, in all of them together",
    ),
]);
pub(super) const RUNTREAD_TAG: Section = once(&[bits("tag", 8, T_RUNTREAD_RTM, "tag")]);

pub(super) const RUNTCTS_RTM: Section = once(&[
    number("msg_id", 4, STOCK_RUNT, D_MSG_ID),
    number("msg_length", 8, STOCK_RUNT, D_MSG_LENGTH),
    number("send_id", 4, STOCK_RUNT, D_SEND_ID_CTS),
    number("credit_request", 4, STOCK_RUNT, D_CREDIT_REQUEST),
    number("seg_offset", 8, STOCK_RUNT, D_SEG_OFFSET),
    number("runt_length", 8, STOCK_RUNT, D_RUNT_LENGTH),
]);
pub(super) const RUNTCTS_TAG: Section = once(&[bits("tag", 8, STOCK_RUNT, "tag")]);
