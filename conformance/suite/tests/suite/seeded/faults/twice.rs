//! Packets that are sent twice: the types that no other chapter has such a fault of.

use efa_core::rules;
use efa_core::wire::PacketType as T;

use super::super::fault::Act::*;
use super::super::fault::Caught::*;
use super::super::fault::Change::*;
use super::super::fault::{Fault, fault, nth};

pub(super) const FAULTS: &[Fault] = &[
    fault(
        "eager-untagged-twice",
        "An untagged message is sent twice.",
        ("eager-untagged", 0),
        Sends(nth(T::EagerMsgRtm, 0), Twice),
        ByCheck(&rules::MSG_ID_ONCE),
    ),
    fault(
        "eager-dc-twice",
        "A message with delivery complete is sent twice.",
        ("releases/dc-2.5-2.5", 0),
        Sends(nth(T::DcEagerMsgRtm, 0), Twice),
        ByCheck(&rules::MSG_ID_ONCE),
    ),
    fault(
        "eager-dc-tagged-twice",
        "A tagged message with delivery complete is sent twice.",
        ("releases/dc-2.5-2.5", 1),
        Sends(nth(T::DcEagerTagRtm, 0), Twice),
        ByCheck(&rules::MSG_ID_ONCE),
    ),
    fault(
        "medium-tagged-twice",
        "A segment of a tagged message is sent twice.",
        ("releases/medium-2.5-2.5", 0),
        Sends(nth(T::MediumTagRtm, 0), Twice),
        ByCheck(&rules::SEGMENT_OVERLAP),
    ),
    fault(
        "medium-dc-twice",
        "A segment of a message with delivery complete is sent twice.",
        ("releases/dc-2.5-2.5", 1),
        Sends(nth(T::DcMediumMsgRtm, 0), Twice),
        ByCheck(&rules::SEGMENT_OVERLAP),
    ),
    fault(
        "medium-dc-tagged-twice",
        "The last segment of a tagged message with delivery complete is sent twice.",
        ("releases/dc-2.5-2.5", 0),
        Sends(nth(T::DcMediumTagRtm, 1), Twice),
        ByCheck(&rules::MSG_ID_ONCE),
    ),
    fault(
        "long-cts-twice",
        "The request of a long message is sent twice.",
        ("long-cts", 0),
        Sends(nth(T::LongctsMsgRtm, 0), Twice),
        ByCheck(&rules::MSG_ID_ONCE),
    ),
    fault(
        "long-cts-tagged-twice",
        "The request of a long tagged message is sent twice.",
        ("releases/long-cts-2.5-2.5", 0),
        Sends(nth(T::LongctsTagRtm, 0), Twice),
        ByCheck(&rules::MSG_ID_ONCE),
    ),
    fault(
        "long-cts-dc-twice",
        "The request of a long message with delivery complete is sent twice.",
        ("releases/dc-2.5-2.5", 0),
        Sends(nth(T::DcLongctsMsgRtm, 0), Twice),
        ByCheck(&rules::MSG_ID_ONCE),
    ),
    fault(
        "long-cts-dc-tagged-twice",
        "The request of a long tagged message with delivery complete is sent twice.",
        ("releases/dc-2.5-2.5", 1),
        Sends(nth(T::DcLongctsTagRtm, 0), Twice),
        ByCheck(&rules::MSG_ID_ONCE),
    ),
    fault(
        "long-read-twice",
        "The request of a message that is read is sent twice.",
        ("long-read", 0),
        Sends(nth(T::LongreadMsgRtm, 0), Twice),
        ByCheck(&rules::MSG_ID_ONCE),
    ),
    fault(
        "long-read-tagged-twice",
        "The request of a tagged message that is read is sent twice.",
        ("releases/long-read-2.5-2.5", 0),
        Sends(nth(T::LongreadTagRtm, 0), Twice),
        ByCheck(&rules::MSG_ID_ONCE),
    ),
    fault(
        "runt-packet-twice",
        "The last packet of a runt is sent twice.",
        ("runting-read", 0),
        Sends(nth(T::RuntreadMsgRtm, 1), Twice),
        ByCheck(&rules::MSG_ID_ONCE),
    ),
    fault(
        "runt-packet-tagged-twice",
        "The only packet of the runt of a tagged message is sent twice.",
        ("releases/runting-tagged-2.5-2.5", 0),
        Sends(nth(T::RuntreadTagRtm, 0), Twice),
        ByCheck(&rules::MSG_ID_ONCE),
    ),
    fault(
        "write-twice",
        "A write is sent twice.",
        ("write-emulated", 0),
        Sends(nth(T::EagerRtw, 0), Twice),
        ByRun(&rules::REQUEST_AS_ASKED),
    ),
    fault(
        "write-dc-twice",
        "A write with delivery complete is sent twice.",
        ("releases/write-dc-2.5-2.5", 0),
        Sends(nth(T::DcEagerRtw, 0), Twice),
        ByCheck(&rules::ID_IN_USE),
    ),
    fault(
        "long-write-twice",
        "The request of a long write is sent twice.",
        ("write-emulated", 0),
        Sends(nth(T::LongctsRtw, 0), Twice),
        ByCheck(&rules::ID_IN_USE),
    ),
    fault(
        "long-write-dc-twice",
        "The request of a long write with delivery complete is sent twice.",
        ("releases/write-dc-2.5-2.5", 0),
        Sends(nth(T::DcLongctsRtw, 0), Twice),
        ByCheck(&rules::ID_IN_USE),
    ),
    fault(
        "read-write-twice",
        "The request of a write that the target reads is sent twice.",
        ("releases/write-read-1.17-1.17", 1),
        Sends(nth(T::LongreadRtw, 0), Twice),
        ByCheck(&rules::ID_IN_USE),
    ),
    fault(
        "read-twice",
        "The request of a read is sent twice.",
        ("read-emulated", 0),
        Sends(nth(T::ShortRtr, 0), Twice),
        ByCheck(&rules::ID_IN_USE),
    ),
    fault(
        "long-read-request-twice",
        "The request of a long read is sent twice.",
        ("read-emulated", 0),
        Sends(nth(T::LongctsRtr, 0), Twice),
        ByCheck(&rules::ID_IN_USE),
    ),
    fault(
        "atomic-fetch-twice",
        "A fetching atomic is sent twice.",
        ("releases/atomic-fetch-2.5-2.5", 0),
        Sends(nth(T::FetchRta, 0), Twice),
        ByCheck(&rules::MSG_ID_ONCE),
    ),
    fault(
        "atomic-compare-twice",
        "A comparing atomic is sent twice.",
        ("releases/atomic-compare-2.5-2.5", 0),
        Sends(nth(T::CompareRta, 0), Twice),
        ByCheck(&rules::MSG_ID_ONCE),
    ),
    fault(
        "atomic-dc-twice",
        "An atomic with delivery complete is sent twice.",
        ("releases/atomic-dc-2.5-2.5", 0),
        Sends(nth(T::DcWriteRta, 0), Twice),
        ByCheck(&rules::MSG_ID_ONCE),
    ),
    fault(
        "read-nack-twice",
        "A read is refused twice.",
        ("read-nack-sent", 1),
        Sends(nth(T::ReadNack, 0), Twice),
        ByCheck(&rules::READ_NACK),
    ),
    fault(
        "peer-error-twice",
        "The end of a message that failed is told twice.",
        ("peer-error-sent", 0),
        Sends(nth(T::PeerError, 0), Twice),
        ByRun(&rules::ANSWER_NAMES_REQUEST),
    ),
];
