//! The faults, read from `faults.txt`, which describes its format.

use std::sync::LazyLock;

use efa_core::rules::RULES;
use efa_core::wire::PacketType;
use efa_testing::fields::number;

use super::fault::{Answer, Change, DetectedBy, Fault, FaultyBehaviour, Packets, RdmaChange};

/// A heading, and the faults under it.
type Chapter = (&'static str, Vec<Fault>);

/// All faults, with headings.
pub(crate) static CHAPTERS: LazyLock<Vec<Chapter>> = LazyLock::new(|| {
    let (_, text) = include_str!("faults.txt")
        .split_once("\n# ")
        .expect("a chapter");
    let chapters = text.split("\n# ").map(|chapter| {
        let (title, faults) = chapter.split_once('\n').expect("faults");
        let faults = faults.split("\n## ").skip(1);
        (title, faults.map(fault).collect())
    });
    chapters.collect()
});

/// All faults.
pub(crate) fn all() -> impl Iterator<Item = &'static Fault> {
    CHAPTERS.iter().flat_map(|(_, faults)| faults)
}

fn fault(text: &'static str) -> Fault {
    let read = || {
        let (heading, text) = text.trim_end().split_once('\n')?;
        let (id, does) = heading.split_once(": ")?;
        let (play, text) = text.split_once("; ")?;
        let (act, caught) = text.split_once("; ")?;
        let (place, change) = act.split_once(": ")?;
        let (trace, endpoint, announced) = match words(play)[..] {
            [trace, endpoint] => (trace, endpoint, None),
            [trace, endpoint, "announced", features] => (trace, endpoint, Some(value(features)?)),
            _ => return None,
        };
        Some(Fault {
            id,
            does,
            trace,
            endpoint: endpoint.parse().ok()?,
            announced,
            act: parse_act(&words(place), &words(change))?,
            caught: parse_caught(caught)?,
        })
    };
    read().unwrap_or_else(|| panic!("faults.txt has no fault as it should be in `{text}`"))
}

fn words(text: &'static str) -> Vec<&'static str> {
    text.split(' ').collect()
}

/// A number, or a packet type.
fn value(word: &str) -> Option<u64> {
    let number = match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    };
    number.or_else(|| Some(packet_type(word)? as u64))
}

fn packet_type(word: &str) -> Option<PacketType> {
    let mut types = PacketType::ALL.iter();
    types.find(|known| format!("{known:?}") == word).copied()
}

fn parse_caught(text: &str) -> Option<DetectedBy> {
    let (by, id) = text.split_once(' ')?;
    let rule = RULES.iter().find(|rule| rule.id == id)?;
    match by {
        "check" => Some(DetectedBy::ByCheck(rule)),
        "run" => Some(DetectedBy::ByRun(rule)),
        _ => None,
    }
}

fn parse_act(place: &[&str], change: &[&'static str]) -> Option<FaultyBehaviour> {
    let (verb, rest) = place.split_first()?;
    let packets = || match rest {
        [kind] => Some(Packets::new(packet_type(kind)?, None)),
        [kind, nth] => Some(Packets::new(packet_type(kind)?, Some(nth.parse().ok()?))),
        _ => None,
    };
    Some(match *verb {
        "sends" => FaultyBehaviour::Sends(packets()?, parse_change(change)?),
        "hears" => FaultyBehaviour::Hears(packets()?, parse_change(change)?),
        "answers" => FaultyBehaviour::Invents(packets()?, answer(change.first()?)?),
        "reads" => FaultyBehaviour::Reads(parse_rdma_change(change)?),
        "writes" => FaultyBehaviour::Writes(parse_rdma_change(change)?),
        _ => return None,
    })
}

fn parse_change(words: &[&'static str]) -> Option<Change> {
    Some(match *words {
        ["set", field, number] => Change::Set(field, value(number)?),
        ["add", field, number] => Change::Add(field, value(number)?),
        ["sub", field, number] => Change::Sub(field, value(number)?),
        ["swap", one, other] => Change::Swap(one, other),
        ["clear", flags] => Change::Clear(flags.parse().ok()?),
        ["without", part, flag] => Change::Without(part, flag.parse().ok()?),
        ["with", number, flag] => Change::With(value(number)?, flag.parse().ok()?),
        ["drop", field] => Change::Drop(field),
        ["reverse", field] => Change::Reverse(field),
        ["shorter", bytes] => Change::Shorter(bytes.parse().ok()?),
        ["fewer", field, bytes] => Change::Fewer(field, bytes.parse().ok()?),
        ["garbled"] => Change::Garbled,
        ["lost"] => Change::Lost,
        ["twice"] => Change::Twice,
        ["again", kind] => Change::Again(packet_type(kind)?),
        _ => return None,
    })
}

fn parse_rdma_change(words: &[&str]) -> Option<RdmaChange> {
    Some(match *words {
        ["shorter", bytes] => RdmaChange::Shorter(bytes.parse().ok()?),
        ["elsewhere", bytes] => RdmaChange::Elsewhere(bytes.parse().ok()?),
        ["skipped"] => RdmaChange::Skipped,
        ["late"] => RdmaChange::Late,
        ["immediate", bits] => RdmaChange::Immediate(bits.parse().ok()?),
        _ => return None,
    })
}

/// The answers that are sent too early, by name.
fn answer(name: &str) -> Option<Answer> {
    Some(match name {
        "eor" => |request| packet(PacketType::Eor, send_id(request), 0, &[0; 4]),
        "nack" => |request| packet(PacketType::ReadNack, send_id(request), 0, &[0; 4]),
        // The same for every packet.
        "cts" => |_| {
            let rest = [&[0; 4][..], &1000_u64.to_le_bytes()].concat();
            packet(PacketType::Cts, 0, 0, &rest)
        },
        "receipt" => |request| {
            packet(
                PacketType::Receipt,
                send_id(request),
                msg_id(request),
                &[0; 4],
            )
        },
        "write_receipt" => |request| packet(PacketType::Receipt, send_id(request), 0, &[0; 4]),
        "unasked" => |request| packet(PacketType::Receipt, 0, msg_id(request), &[0; 4]),
        _ => return None,
    })
}

fn send_id(request: &[u8]) -> u64 {
    number(request, "send_id")
}

fn msg_id(request: &[u8]) -> u64 {
    number(request, "msg_id")
}

/// A packet with two ids after its base header.
fn packet(kind: PacketType, first: u64, second: u64, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![kind as u8, 4, 0, 0];
    packet.extend((first as u32).to_le_bytes());
    packet.extend((second as u32).to_le_bytes());
    packet.extend(rest);
    packet
}
