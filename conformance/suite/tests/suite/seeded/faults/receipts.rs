//! Delivery complete: RECEIPT.

use efa_core::rules;
use efa_core::wire::PacketType as T;
use efa_testing::fields::number;

use super::super::fault::Act::*;
use super::super::fault::Caught::*;
use super::super::fault::Change::*;
use super::super::fault::{Fault, all, fault, nth};

pub(super) const FAULTS: &[Fault] = &[
    fault(
        "receipt-other-operation",
        "RECEIPT names no operation of the peer.",
        ("delivery-complete", 1),
        Sends(nth(T::Receipt, 0), Add("send_id", 9)),
        ByCheck(&rules::ANSWER_NAMES_REQUEST),
    ),
    fault(
        "receipt-ids-swapped",
        "`send_id` and `msg_id` are swapped in RECEIPT.",
        ("releases/dc-2.5-2.5", 1),
        Sends(nth(T::Receipt, 1), Swap("send_id", "msg_id")),
        ByCheck(&rules::ANSWER_NAMES_REQUEST),
    ),
    fault(
        "receipt-twice",
        "RECEIPT is sent twice.",
        ("delivery-complete", 1),
        Sends(nth(T::Receipt, 2), Twice),
        ByCheck(&rules::ONE_ANSWER),
    ),
    fault(
        "receipt-never",
        "The first message is not acknowledged, later ones are.",
        ("releases/dc-2.5-2.5", 1),
        Sends(nth(T::Receipt, 0), Lost),
        ByCheck(&rules::ANSWER_MISSING),
    ),
    fault(
        "receipt-last-never",
        "The last message is not acknowledged.",
        ("delivery-complete", 1),
        Sends(nth(T::Receipt, 2), Lost),
        ByRun(&rules::ANSWER_MISSING),
    ),
    fault(
        "receipt-at-request",
        "A long message is acknowledged when its request arrives.",
        ("delivery-complete", 1),
        Invents(all(T::DcLongctsMsgRtm), receipt),
        ByCheck(&rules::RECEIPT_EARLY),
    ),
    fault(
        "receipt-unasked",
        "A message without delivery complete is acknowledged.",
        ("eager-untagged", 1),
        Invents(all(T::EagerMsgRtm), unasked),
        ByCheck(&rules::ANSWER_NAMES_REQUEST),
    ),
    fault(
        "receipt-as-eor",
        "EOR is sent instead of RECEIPT.",
        ("delivery-complete", 1),
        Sends(nth(T::Receipt, 0), Set("type", T::Eor as u64)),
        ByCheck(&rules::ANSWER_NAMES_REQUEST),
    ),
    fault(
        "dc-segments-disagree",
        "The segments of a message have `send_id`s of their own.",
        ("delivery-complete", 0),
        Sends(nth(T::DcMediumTagRtm, 1), Add("send_id", 1)),
        ByCheck(&rules::SEGMENT_AGREEMENT),
    ),
    fault(
        "dc-id-reused",
        "Two messages under way have the same `send_id`.",
        ("releases/atomic-dc-2.5-2.5", 0),
        Sends(nth(T::DcWriteRta, 1), Set("send_id", 0)),
        ByCheck(&rules::ID_IN_USE),
    ),
    fault(
        "write-receipt-never",
        "A write is not acknowledged.",
        ("releases/write-dc-2.5-2.5", 1),
        Sends(nth(T::Receipt, 0), Lost),
        ByCheck(&rules::ANSWER_MISSING),
    ),
    fault(
        "write-receipt-at-request",
        "A long write is acknowledged when its request arrives.",
        ("releases/write-dc-2.5-2.5", 1),
        Invents(all(T::DcLongctsRtw), write_receipt),
        ByCheck(&rules::RECEIPT_EARLY),
    ),
    fault(
        "atomic-receipt-other-operation",
        "The RECEIPT of an atomic names no operation of the peer.",
        ("releases/atomic-dc-2.5-2.5", 1),
        Sends(nth(T::Receipt, 1), Add("send_id", 99)),
        ByCheck(&rules::ANSWER_NAMES_REQUEST),
    ),
];

fn bytes(send_id: u64, msg_id: u64) -> Vec<u8> {
    let mut packet = vec![T::Receipt as u8, 4, 0, 0];
    packet.extend((send_id as u32).to_le_bytes());
    packet.extend((msg_id as u32).to_le_bytes());
    packet.extend([0; 4]);
    packet
}

fn receipt(request: &[u8]) -> Vec<u8> {
    bytes(number(request, "send_id"), number(request, "msg_id"))
}

fn write_receipt(request: &[u8]) -> Vec<u8> {
    bytes(number(request, "send_id"), 0)
}

fn unasked(request: &[u8]) -> Vec<u8> {
    bytes(0, number(request, "msg_id"))
}
