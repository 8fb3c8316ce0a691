//! Messages that travel in requests.

use efa_core::rules;
use efa_core::wire::PacketType as T;

use super::super::fault::Act::*;
use super::super::fault::Caught::*;
use super::super::fault::Change::*;
use super::super::fault::{Fault, all, fault, nth};

/// Eager messages and their order.
pub(super) const EAGER: &[Fault] = &[
    fault(
        "tag-misread",
        "The tag of a message that arrives is taken for one less.",
        ("unexpected-tagged", 1),
        Hears(nth(T::EagerTagRtm, 1), Sub("tag", 1)),
        ByRun(&rules::OUTCOME),
    ),
    fault(
        "eager-not-tagged",
        "The flag TAGGED is missing in a tagged message.",
        ("eager-tagged", 0),
        Sends(all(T::EagerTagRtm), Clear(8)),
        ByCheck(&rules::REQ_FLAGS),
    ),
    fault(
        "eager-not-a-message",
        "The flag MSG is missing in a message.",
        ("eager-untagged", 0),
        Sends(all(T::EagerMsgRtm), Clear(4)),
        ByCheck(&rules::REQ_FLAGS),
    ),
    fault(
        "eager-version",
        "The base header says version 3.",
        ("eager-tagged", 0),
        Sends(all(T::EagerTagRtm), Set("version", 3)),
        ByCheck(&rules::PACKET_FORM),
    ),
    fault(
        "eager-other-tag",
        "The tag is one too high.",
        ("eager-tagged", 0),
        Sends(all(T::EagerTagRtm), Add("tag", 1)),
        ByRun(&rules::REQUEST_AS_ASKED),
    ),
    fault(
        "eager-garbled",
        "The last byte of a message is another one.",
        ("eager-tagged", 0),
        Sends(all(T::EagerTagRtm), Garbled),
        ByRun(&rules::DATA_AS_GIVEN),
    ),
    fault(
        "eager-shorter",
        "The last byte of a message is missing.",
        ("eager-untagged", 0),
        Sends(all(T::EagerMsgRtm), Shorter(1)),
        ByRun(&rules::MESSAGE_WHOLE),
    ),
    fault(
        "msg-id-from-one",
        "The `msg_id`s begin at 1.",
        ("eager-tagged", 0),
        Sends(all(T::EagerTagRtm), Add("msg_id", 1)),
        ByRun(&rules::MSG_ID_GAP),
    ),
    fault(
        "msg-id-repeated",
        "The second message has the `msg_id` of the first.",
        ("ping-pong", 0),
        Sends(nth(T::EagerTagRtm, 1), Sub("msg_id", 1)),
        ByCheck(&rules::MSG_ID_ONCE),
    ),
    fault(
        "msg-id-stuck",
        "Every message has `msg_id` 0.",
        ("burst-before-handshake", 0),
        Sends(all(T::EagerMsgRtm), Set("msg_id", 0)),
        ByCheck(&rules::MSG_ID_ONCE),
    ),
    fault(
        "msg-id-skipped",
        "The last message has a `msg_id` 1 higher than its turn.",
        ("ping-pong", 1),
        Sends(nth(T::EagerTagRtm, 3), Add("msg_id", 1)),
        ByRun(&rules::MSG_ID_GAP),
    ),
    fault(
        "message-lost",
        "A message is never sent, but completes.",
        ("ping-pong", 0),
        Sends(nth(T::EagerTagRtm, 1), Lost),
        ByRun(&rules::MESSAGE_WHOLE),
    ),
    fault(
        "message-twice",
        "A message is sent twice.",
        ("ping-pong", 0),
        Sends(nth(T::EagerTagRtm, 1), Twice),
        ByCheck(&rules::MSG_ID_ONCE),
    ),
    fault(
        "message-unheard",
        "A message that arrives is dropped.",
        ("eager-tagged", 1),
        Hears(all(T::EagerTagRtm), Lost),
        ByRun(&rules::HANDSHAKE_ANSWER),
    ),
];

/// Medium messages.
pub(super) const MEDIUM: &[Fault] = &[
    fault(
        "medium-offset-high",
        "A segment is placed 8 bytes too far.",
        ("medium-untagged", 0),
        Sends(nth(T::MediumMsgRtm, 2), Add("seg_offset", 8)),
        ByCheck(&rules::SEGMENT_BOUNDS),
    ),
    fault(
        "medium-offset-low",
        "A segment is placed 8 bytes too early.",
        ("medium-untagged", 0),
        Sends(nth(T::MediumMsgRtm, 1), Sub("seg_offset", 8)),
        ByCheck(&rules::SEGMENT_OVERLAP),
    ),
    fault(
        "medium-offset-zero",
        "All segments have offset 0.",
        ("medium-untagged", 0),
        Sends(all(T::MediumMsgRtm), Set("seg_offset", 0)),
        ByCheck(&rules::SEGMENT_OVERLAP),
    ),
    fault(
        "medium-segment-length",
        "The length of the message stands for what is left of it.",
        ("medium-untagged", 0),
        Sends(nth(T::MediumMsgRtm, 1), Sub("msg_length", 8000)),
        ByCheck(&rules::SEGMENT_AGREEMENT),
    ),
    fault(
        "medium-tags-differ",
        "One segment has another tag.",
        ("medium-tagged-unexpected", 0),
        Sends(nth(T::MediumTagRtm, 1), Add("tag", 1)),
        ByCheck(&rules::SEGMENT_AGREEMENT),
    ),
    fault(
        "medium-own-msg-id",
        "Every segment has a `msg_id` of its own.",
        ("medium-untagged", 0),
        Sends(nth(T::MediumMsgRtm, 1), Add("msg_id", 1)),
        ByRun(&rules::MSG_ID_GAP),
    ),
    fault(
        "medium-segment-twice",
        "A segment is sent twice.",
        ("medium-untagged", 0),
        Sends(nth(T::MediumMsgRtm, 1), Twice),
        ByCheck(&rules::SEGMENT_OVERLAP),
    ),
    fault(
        "medium-segment-lost",
        "The last segment is never sent.",
        ("medium-untagged", 0),
        Sends(nth(T::MediumMsgRtm, 2), Lost),
        ByRun(&rules::MESSAGE_WHOLE),
    ),
    fault(
        "medium-segment-short",
        "A segment lacks its last 8 bytes.",
        ("medium-untagged", 0),
        Sends(nth(T::MediumMsgRtm, 1), Shorter(8)),
        ByRun(&rules::MESSAGE_WHOLE),
    ),
];
