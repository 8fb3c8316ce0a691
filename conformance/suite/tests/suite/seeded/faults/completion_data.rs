//! Completion data, in each subprotocol.

use efa_core::rules;
use efa_core::wire::PacketType as T;

use super::super::fault::Act::*;
use super::super::fault::Caught::*;
use super::super::fault::Change::*;
use super::super::fault::{Act, Fault, RdmaChange, all, fault, nth};

/// The flag of the header that has it.
const HEADER: u16 = 2;

/// A fault that only the application's wish shows, and so `run` only.
const fn asked(
    id: &'static str,
    does: &'static str,
    place: (&'static str, usize),
    act: Act,
) -> Fault {
    fault(id, does, place, act, ByRun(&rules::REQUEST_AS_ASKED))
}

/// A fault of a receiver: its application sees something else.
const fn seen(
    id: &'static str,
    does: &'static str,
    place: (&'static str, usize),
    act: Act,
) -> Fault {
    fault(id, does, place, act, ByRun(&rules::OUTCOME))
}

pub(super) const FAULTS: &[Fault] = &[
    asked(
        "eager-cq-data-lost",
        "The completion data of a message is missing.",
        ("cq-data", 0),
        Sends(nth(T::EagerTagRtm, 0), Without("cq_data", HEADER)),
    ),
    asked(
        "eager-cq-data-cut",
        "The upper half of the completion data is what was in memory.",
        ("releases/cq-data-2.5-2.5", 0),
        Sends(nth(T::EagerMsgRtm, 1), Add("cq_data", 1 << 32)),
    ),
    asked(
        "eager-cq-data-swapped",
        "The bytes of the completion data come in the opposite order.",
        ("releases/cq-data-2.5-2.5", 0),
        Sends(nth(T::EagerMsgRtm, 1), Reverse("cq_data")),
    ),
    asked(
        "eager-cq-data-unasked",
        "A message has completion data that no application gave.",
        ("releases/cq-data-2.5-2.5", 0),
        Sends(nth(T::EagerMsgRtm, 0), With(0x11, HEADER)),
    ),
    fault(
        "eager-cq-data-flag-alone",
        "The flag of the completion data is set, but its header is missing.",
        ("releases/cq-data-2.5-2.5", 1),
        Sends(nth(T::EagerTagRtm, 0), Drop("cq_data")),
        ByCheck(&rules::CONNID_TRUE),
    ),
    fault(
        "eager-cq-data-without-flag",
        "The completion data is there, but its flag is missing.",
        ("releases/cq-data-2.5-2.5", 1),
        Sends(nth(T::EagerTagRtm, 0), Clear(HEADER)),
        ByCheck(&rules::CONNID_TRUE),
    ),
    fault(
        "medium-cq-data-once",
        "Only the first segment carries the completion data.",
        ("releases/cq-data-2.5-2.5", 0),
        Sends(nth(T::MediumMsgRtm, 1), Without("cq_data", HEADER)),
        ByCheck(&rules::CQ_DATA_AGREEMENT),
    ),
    fault(
        "medium-cq-data-last",
        "Only the last segment carries the completion data.",
        ("releases/cq-data-2.5-2.5", 1),
        Sends(nth(T::MediumTagRtm, 0), Without("cq_data", HEADER)),
        ByCheck(&rules::CQ_DATA_AGREEMENT),
    ),
    asked(
        "medium-cq-data-before",
        "A message has the completion data of the message before it.",
        ("releases/cq-data-2.5-2.5", 0),
        Sends(all(T::MediumMsgRtm), Set("cq_data", 0x11)),
    ),
    asked(
        "long-cts-cq-data-lost",
        "The completion data of a long-CTS message is missing.",
        ("releases/cq-data-2.5-2.5", 0),
        Sends(all(T::LongctsTagRtm), Without("cq_data", HEADER)),
    ),
    asked(
        "long-cts-cq-data-swapped",
        "The bytes of the completion data of a long-CTS message come in the opposite order.",
        ("releases/cq-data-2.5-2.5", 1),
        Sends(all(T::LongctsMsgRtm), Reverse("cq_data")),
    ),
    asked(
        "long-read-cq-data-lost",
        "The completion data of a long-read message is missing.",
        ("releases/cq-data-read-2.5-2.5", 0),
        Sends(all(T::LongreadTagRtm), Without("cq_data", HEADER)),
    ),
    asked(
        "long-read-cq-data-before",
        "A long-read message has the completion data of the message before it.",
        ("releases/cq-data-read-2.5-2.5", 1),
        Sends(all(T::LongreadMsgRtm), Set("cq_data", 0x14)),
    ),
    fault(
        "runt-cq-data-lost",
        "A packet of a runt lacks the completion data.",
        ("releases/cq-data-runting-2.5-2.5", 0),
        Sends(nth(T::RuntreadMsgRtm, 0), Without("cq_data", HEADER)),
        ByRun(&rules::REQUEST_AS_ASKED),
    ),
    asked(
        "runt-cq-data-swapped",
        "The bytes of the completion data of a runting read come in the opposite order.",
        ("releases/cq-data-runting-tagged-2.5-2.5", 0),
        Sends(all(T::RuntreadTagRtm), Reverse("cq_data")),
    ),
    asked(
        "dc-eager-cq-data-lost",
        "The completion data of a message with delivery complete is missing.",
        ("releases/cq-data-dc-2.5-2.5", 0),
        Sends(all(T::DcEagerMsgRtm), Without("cq_data", HEADER)),
    ),
    fault(
        "dc-medium-cq-data-once",
        "Only the first segment of a message with delivery complete carries the completion data.",
        ("releases/cq-data-dc-2.5-2.5", 1),
        Sends(nth(T::DcMediumMsgRtm, 1), Without("cq_data", HEADER)),
        ByCheck(&rules::CQ_DATA_AGREEMENT),
    ),
    asked(
        "dc-long-cts-cq-data-lost",
        "The completion data of a long-CTS message with delivery complete is missing.",
        ("releases/cq-data-dc-2.5-2.5", 0),
        Sends(all(T::DcLongctsMsgRtm), Without("cq_data", HEADER)),
    ),
    asked(
        "rtw-cq-data-lost",
        "The completion data of a write is missing.",
        ("releases/write-data-2.5-2.5", 0),
        Sends(nth(T::EagerRtw, 0), Without("cq_data", HEADER)),
    ),
    asked(
        "rtw-cq-data-swapped",
        "The bytes of the completion data of a write come in the opposite order.",
        ("releases/write-data-2.5-2.5", 0),
        Sends(nth(T::EagerRtw, 0), Reverse("cq_data")),
    ),
    fault(
        "rtw-cq-data-unasked",
        "A write has completion data that no application gave.",
        ("releases/write-2.5-2.5", 0),
        Sends(nth(T::EagerRtw, 0), With(0x11, HEADER)),
        ByCheck(&rules::CONNID_TRUE),
    ),
    asked(
        "rtw-long-cts-cq-data-lost",
        "The completion data of a long-CTS write is missing.",
        ("releases/write-data-2.5-2.5", 0),
        Sends(all(T::LongctsRtw), Without("cq_data", HEADER)),
    ),
    asked(
        "rtw-long-read-cq-data-lost",
        "The completion data of a write that the target reads is missing.",
        ("releases/cq-data-write-read-2.5", 0),
        Sends(all(T::LongreadRtw), Without("cq_data", HEADER)),
    ),
    asked(
        "rtw-dc-cq-data-lost",
        "The completion data of a write with delivery complete is missing.",
        ("releases/cq-data-write-dc-2.5-2.5", 0),
        Sends(all(T::DcEagerRtw), Without("cq_data", HEADER)),
    ),
    asked(
        "rtw-dc-long-cts-cq-data-swapped",
        "The bytes of the completion data of a long-CTS write with delivery complete come in the opposite order.",
        ("releases/cq-data-write-dc-2.5-2.5", 0),
        Sends(all(T::DcLongctsRtw), Reverse("cq_data")),
    ),
    fault(
        "direct-write-data",
        "The immediate data of a direct write is another one.",
        ("releases/write-direct-data-2.5-2.5", 0),
        Writes(RdmaChange::Immediate(1)),
        ByRun(&rules::RDMA_AS_ASKED),
    ),
    fault(
        "rtr-cq-data",
        "A read carries completion data.",
        ("read-emulated", 0),
        Sends(all(T::ShortRtr), With(0x55, HEADER)),
        ByCheck(&rules::CQ_DATA_PLACE),
    ),
    seen(
        "eager-cq-data-ignored",
        "The completion data of a message that arrives is not handed on.",
        ("releases/cq-data-2.5-2.5", 1),
        Hears(nth(T::EagerMsgRtm, 1), Without("cq_data", HEADER)),
    ),
    seen(
        "eager-cq-data-misread",
        "The bytes of completion data that arrives are taken in the opposite order.",
        ("releases/cq-data-2.5-2.5", 1),
        Hears(nth(T::EagerMsgRtm, 1), Reverse("cq_data")),
    ),
    seen(
        "medium-cq-data-ignored",
        "The completion data of a message in several packets is not handed on.",
        ("releases/cq-data-2.5-2.5", 1),
        Hears(all(T::MediumMsgRtm), Without("cq_data", HEADER)),
    ),
    seen(
        "long-cts-cq-data-ignored",
        "The completion data of a long-CTS message is not handed on.",
        ("releases/cq-data-2.5-2.5", 1),
        Hears(all(T::LongctsTagRtm), Without("cq_data", HEADER)),
    ),
    seen(
        "long-read-cq-data-mixed",
        "A long-read message is handed on with the completion data of the message before it.",
        ("releases/cq-data-read-2.5-2.5", 1),
        Hears(all(T::LongreadTagRtm), Set("cq_data", 0x12)),
    ),
    seen(
        "rtw-cq-data-ignored",
        "A write with completion data arrives, and the application is not told.",
        ("releases/write-data-2.5-2.5", 1),
        Hears(nth(T::EagerRtw, 0), Without("cq_data", HEADER)),
    ),
    seen(
        "rtw-cq-data-mixed",
        "The completion of a write that arrives has other completion data.",
        ("releases/write-data-2.5-2.5", 1),
        Hears(all(T::LongctsRtw), Add("cq_data", 1)),
    ),
];
