//! Long-CTS: windows, and the data in them.

use efa_core::rules;
use efa_core::wire::PacketType as T;

use super::super::fault::Act::*;
use super::super::fault::Caught::*;
use super::super::fault::Change::*;
use super::super::fault::{Fault, all, fault, nth};

pub(super) const FAULTS: &[Fault] = &[
    fault(
        "cts-ids-swapped",
        "`send_id` and `recv_id` are swapped in CTS.",
        ("long-cts", 1),
        Sends(all(T::Cts), Swap("send_id", "recv_id")),
        ByCheck(&rules::ANSWER_NAMES_REQUEST),
    ),
    fault(
        "cts-other-operation",
        "CTS names the operation after the one that it is for.",
        ("releases/long-cts-2.5-2.5", 1),
        Sends(nth(T::Cts, 0), Add("send_id", 9)),
        ByCheck(&rules::ANSWER_NAMES_REQUEST),
    ),
    fault(
        "cts-of-nothing",
        "A window has no bytes.",
        ("long-cts", 1),
        Sends(nth(T::Cts, 0), Set("recv_length", 0)),
        ByCheck(&rules::CTS_POSITIVE),
    ),
    fault(
        "cts-too-much",
        "The last window has more bytes than the message has left.",
        ("long-cts", 1),
        Sends(nth(T::Cts, 2), Add("recv_length", 1)),
        ByCheck(&rules::CTS_WINDOW),
    ),
    fault(
        "cts-twice",
        "Each window is opened twice.",
        ("long-cts", 1),
        Sends(nth(T::Cts, 0), Twice),
        ByCheck(&rules::CTS_EARLY),
    ),
    fault(
        "cts-early",
        "A window is opened again when the first data of it arrives.",
        ("long-cts", 1),
        Sends(nth(T::Cts, 0), Again(T::CtsData)),
        ByCheck(&rules::CTS_EARLY),
    ),
    fault(
        "cts-never",
        "No window is opened.",
        ("long-cts", 1),
        Sends(all(T::Cts), Lost),
        ByRun(&rules::ANSWER_MISSING),
    ),
    fault(
        "cts-second-never",
        "Only the first window is opened.",
        ("long-cts", 1),
        Sends(nth(T::Cts, 1), Lost),
        ByRun(&rules::ANSWER_MISSING),
    ),
    fault(
        "cts-other-recv-id",
        "The second window has another `recv_id` than the first.",
        ("long-cts", 1),
        Sends(nth(T::Cts, 1), Add("recv_id", 1)),
        ByCheck(&rules::ANSWER_NAMES_REQUEST),
    ),
    fault(
        "cts-at-once",
        "An eager message is answered with CTS.",
        ("eager-untagged", 1),
        Invents(all(T::EagerMsgRtm), cts),
        ByCheck(&rules::ANSWER_NAMES_REQUEST),
    ),
    fault(
        "window-exceeded",
        "A window is taken for 1000 bytes more than the CTS grants.",
        ("long-cts", 0),
        Hears(nth(T::Cts, 0), Add("recv_length", 1000)),
        ByCheck(&rules::CTS_WINDOW),
    ),
    fault(
        "window-not-filled",
        "A window is taken for 1000 bytes less than the CTS grants.",
        ("long-cts", 0),
        Hears(nth(T::Cts, 0), Sub("recv_length", 1000)),
        ByRun(&rules::MESSAGE_WHOLE),
    ),
    fault(
        "window-ignored",
        "The first CTS opens a window for all of the message.",
        ("long-cts", 0),
        Hears(nth(T::Cts, 0), Set("recv_length", 91_136)),
        ByCheck(&rules::CTS_WINDOW),
    ),
    fault(
        "ctsdata-other-operation",
        "CTSDATA has the `recv_id` of another operation.",
        ("long-cts", 0),
        Sends(nth(T::CtsData, 0), Add("recv_id", 7)),
        ByCheck(&rules::CTSDATA_NAMES_CTS),
    ),
    fault(
        "ctsdata-offset-high",
        "A segment is placed one byte too far.",
        ("long-cts", 0),
        Sends(nth(T::CtsData, 1), Add("seg_offset", 1)),
        ByCheck(&rules::SEGMENT_OVERLAP),
    ),
    fault(
        "ctsdata-offset-from-window",
        "Offsets count from the window instead of from the message.",
        ("long-cts", 0),
        Sends(nth(T::CtsData, 0), Set("seg_offset", 0)),
        ByCheck(&rules::SEGMENT_OVERLAP),
    ),
    fault(
        "ctsdata-length-high",
        "`seg_length` is one more than the data.",
        ("long-cts", 0),
        Sends(nth(T::CtsData, 0), Add("seg_length", 1)),
        ByCheck(&rules::PACKET_FORM),
    ),
    fault(
        "ctsdata-short",
        "The last 8 bytes of a segment are missing.",
        ("long-cts", 0),
        Sends(nth(T::CtsData, 1), Shorter(8)),
        ByCheck(&rules::PACKET_FORM),
    ),
    fault(
        "ctsdata-twice",
        "A segment is sent twice.",
        ("long-cts", 0),
        Sends(nth(T::CtsData, 1), Twice),
        ByCheck(&rules::SEGMENT_OVERLAP),
    ),
    fault(
        "ctsdata-lost",
        "A segment is never sent.",
        ("long-cts", 0),
        Sends(nth(T::CtsData, 2), Lost),
        ByRun(&rules::MESSAGE_WHOLE),
    ),
    fault(
        "long-cts-length",
        "The length of the message is one too high.",
        ("long-cts", 0),
        Sends(all(T::LongctsMsgRtm), Add("msg_length", 1)),
        ByRun(&rules::REQUEST_AS_ASKED),
    ),
    fault(
        "long-cts-id-changes",
        "The request announces another `send_id` than the engine knows.",
        ("long-cts", 0),
        Sends(all(T::LongctsMsgRtm), Add("send_id", 5)),
        ByRun(&rules::MESSAGE_WHOLE),
    ),
];

/// A CTS for whatever a packet says.
fn cts(_: &[u8]) -> Vec<u8> {
    let mut packet = vec![T::Cts as u8, 4, 0, 0];
    packet.extend([0; 12]);
    packet.extend(1000_u64.to_le_bytes());
    packet
}
