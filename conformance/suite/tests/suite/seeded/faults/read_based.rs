//! Messages that the receiver reads by RDMA.

use efa_core::rules;
use efa_core::wire::PacketType as T;
use efa_testing::fields::number;

use super::super::fault::Act::*;
use super::super::fault::Caught::*;
use super::super::fault::Change::*;
use super::super::fault::{Fault, RdmaChange, all, fault, nth};

pub(super) const FAULTS: &[Fault] = &[
    fault(
        "read-iov-other-address",
        "`read_iov` begins 8 bytes too far.",
        ("releases/long-read-2.5-2.5", 0),
        Sends(nth(T::LongreadTagRtm, 0), Add("read_iov.addr", 8)),
        ByRun(&rules::REQUEST_AS_ASKED),
    ),
    fault(
        "read-iov-other-key",
        "The key in `read_iov` is another one.",
        ("long-read", 0),
        Sends(all(T::LongreadMsgRtm), Add("read_iov.key", 1)),
        ByRun(&rules::REQUEST_AS_ASKED),
    ),
    fault(
        "eor-before-read",
        "EOR goes out before the RDMA read.",
        ("long-read", 1),
        Reads(RdmaChange::Late),
        ByCheck(&rules::EOR_EARLY),
    ),
    fault(
        "eor-without-read",
        "EOR goes out, and nothing is ever read.",
        ("long-read", 1),
        Reads(RdmaChange::Skipped),
        ByCheck(&rules::EOR_EARLY),
    ),
    fault(
        "eor-at-once",
        "The request is answered with EOR when it arrives.",
        ("long-read", 1),
        Invents(all(T::LongreadMsgRtm), eor),
        ByCheck(&rules::EOR_EARLY),
    ),
    fault(
        "eor-ids-swapped",
        "`send_id` and `recv_id` are swapped in EOR.",
        ("releases/long-read-2.5-2.5", 1),
        Sends(nth(T::Eor, 1), Swap("send_id", "recv_id")),
        ByCheck(&rules::ANSWER_NAMES_REQUEST),
    ),
    fault(
        "eor-other-operation",
        "EOR names no operation of the peer.",
        ("long-read", 1),
        Sends(all(T::Eor), Add("send_id", 3)),
        ByCheck(&rules::ANSWER_NAMES_REQUEST),
    ),
    fault(
        "eor-twice",
        "EOR is sent twice.",
        ("long-read", 1),
        Sends(all(T::Eor), Twice),
        ByCheck(&rules::ONE_ANSWER),
    ),
    fault(
        "eor-never",
        "EOR is never sent.",
        ("long-read", 1),
        Sends(all(T::Eor), Lost),
        ByRun(&rules::ANSWER_MISSING),
    ),
    fault(
        "eor-first-never",
        "Of two messages the first is read without an EOR.",
        ("releases/long-read-2.5-2.5", 1),
        Sends(nth(T::Eor, 0), Lost),
        ByRun(&rules::ANSWER_MISSING),
    ),
    fault(
        "read-too-short",
        "The RDMA read lacks the last 100 bytes.",
        ("long-read", 1),
        Reads(RdmaChange::Shorter(100)),
        ByRun(&rules::EOR_EARLY),
    ),
    fault(
        "read-elsewhere",
        "The RDMA read is of the wrong place.",
        ("runting-read", 1),
        Reads(RdmaChange::Elsewhere(-8)),
        ByRun(&rules::EOR_EARLY),
    ),
    fault(
        "read-iov-too-long",
        "`read_iov` is one byte longer than the message.",
        ("long-read", 0),
        Sends(all(T::LongreadMsgRtm), Add("read_iov.len", 1)),
        ByCheck(&rules::IOV_LENGTH),
    ),
    fault(
        "long-read-length",
        "The length of the message is one too high.",
        ("long-read", 0),
        Sends(all(T::LongreadMsgRtm), Add("msg_length", 1)),
        ByCheck(&rules::IOV_LENGTH),
    ),
    fault(
        "nack-and-read",
        "READ_NACK is sent, and the message read all the same.",
        ("releases/long-read-2.5-2.5", 1),
        Invents(all(T::LongreadMsgRtm), nack),
        ByCheck(&rules::READ_NACK),
    ),
    fault(
        "runt-lengths-differ",
        "The second packet of a runt gives another `runt_length`.",
        ("runting-read", 0),
        Sends(nth(T::RuntreadMsgRtm, 1), Add("runt_length", 1)),
        ByCheck(&rules::SEGMENT_AGREEMENT),
    ),
    fault(
        "runt-segment-length",
        "`runt_length` is that of the packet instead of the runt.",
        ("runting-read", 0),
        Sends(all(T::RuntreadMsgRtm), Sub("runt_length", 8000)),
        ByCheck(&rules::SEGMENT_BOUNDS),
    ),
    fault(
        "runt-offset-low",
        "The second packet of a runt overlaps the first.",
        ("runting-read", 0),
        Sends(nth(T::RuntreadMsgRtm, 1), Sub("seg_offset", 1)),
        ByCheck(&rules::SEGMENT_OVERLAP),
    ),
    fault(
        "runt-ids-differ",
        "The second packet of a runt has another `send_id`.",
        ("runting-read", 0),
        Sends(nth(T::RuntreadMsgRtm, 1), Add("send_id", 1)),
        ByCheck(&rules::SEGMENT_AGREEMENT),
    ),
    fault(
        "runt-read-iov",
        "`read_iov` of a runting read is one byte short.",
        ("runting-read", 0),
        Sends(all(T::RuntreadMsgRtm), Sub("read_iov.len", 1)),
        ByCheck(&rules::IOV_LENGTH),
    ),
    fault(
        "runt-packet-lost",
        "The second packet of a runt is never sent.",
        ("runting-read", 0),
        Sends(nth(T::RuntreadMsgRtm, 1), Lost),
        ByRun(&rules::MESSAGE_WHOLE),
    ),
    fault(
        "runt-eor-early",
        "The EOR of a runting read goes out before the RDMA read.",
        ("runting-read", 1),
        Reads(RdmaChange::Late),
        ByCheck(&rules::EOR_EARLY),
    ),
];

/// An answer of a type to a request, from an operation 0.
fn answer(kind: T, request: &[u8]) -> Vec<u8> {
    let mut packet = vec![kind as u8, 4, 0, 0];
    packet.extend((number(request, "send_id") as u32).to_le_bytes());
    packet.extend([0; 8]);
    packet
}

fn eor(request: &[u8]) -> Vec<u8> {
    answer(T::Eor, request)
}

pub(super) fn nack(request: &[u8]) -> Vec<u8> {
    answer(T::ReadNack, request)
}
