//! How a fault is declared.

use std::ops::Range;

use efa_core::rules::Rule;
use efa_core::wire::PacketType;
use efa_core::wire::fields::{field_of, fields_of};
use efa_testing::fields::{number, write};

use super::play::Play;

/// One fault.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) id: &'static str,
    /// The description of the engine's error.
    pub(crate) does: &'static str,
    /// The trace that shows it, and the endpoint that the engine replaces.
    pub(crate) trace: &'static str,
    pub(crate) endpoint: usize,
    /// The features that the peers announce in place of the recorded ones.
    pub(crate) announced: Option<u64>,
    pub(crate) act: FaultyBehaviour,
    pub(crate) caught: DetectedBy,
}

impl Fault {
    /// The trace to play.
    pub(crate) fn play(&self) -> Play {
        (self.trace, self.endpoint, self.announced)
    }
}

/// The program that detects a fault, and the rule that it names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DetectedBy {
    /// `check`, on the capture alone, and therefore `run` too: this rule.
    ByCheck(&'static Rule),
    /// `run` only: this rule.
    ByRun(&'static Rule),
}

impl DetectedBy {
    /// The statement that `run` has to name.
    pub(crate) fn statement(self) -> &'static str {
        match self {
            DetectedBy::ByCheck(rule) | DetectedBy::ByRun(rule) => rule.statement,
        }
    }

    /// The rule that `check` has to report.
    pub(crate) fn rule(self) -> Option<&'static str> {
        match self {
            DetectedBy::ByCheck(rule) => Some(rule.id),
            DetectedBy::ByRun(_) => None,
        }
    }
}

/// Makes an answer to a packet.
pub(crate) type Answer = fn(&[u8]) -> Vec<u8>;

/// The behaviour that is wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FaultyBehaviour {
    /// The engine changes such packets when it sends them.
    Sends(Packets, Change),
    /// It reads such packets wrongly.
    Hears(Packets, Change),
    /// It answers such packets at once, instead of when it should.
    Invents(Packets, Answer),
    /// Its RDMA reads.
    Reads(RdmaChange),
    /// Its RDMA writes.
    Writes(RdmaChange),
}

/// Packets of one type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packets {
    pub(crate) kind: PacketType,
    /// The index of the one that is changed, from 0; all if `None`.
    nth: Option<usize>,
}

impl Packets {
    pub(crate) fn new(kind: PacketType, nth: Option<usize>) -> Packets {
        Packets { kind, nth }
    }

    pub(crate) fn has(&self, nth: usize) -> bool {
        self.nth.is_none_or(|wanted| wanted == nth)
    }
}

/// The change of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// A field has another value.
    Set(&'static str, u64),
    /// A number is added to a field, modulo its width.
    Add(&'static str, u64),
    /// A number is subtracted from a field, modulo its width.
    Sub(&'static str, u64),
    /// Two fields are exchanged.
    Swap(&'static str, &'static str),
    /// Flags are cleared.
    Clear(u16),
    /// The fields with this prefix, and the flag of the part, are missing.
    Without(&'static str, u16),
    /// Eight bytes are inserted before the data, with the flag that announces them.
    With(u64, u16),
    /// A field is missing, although its flag is set.
    Drop(&'static str),
    /// The bytes of a field are in reverse order.
    Reverse(&'static str),
    /// The last bytes are missing.
    Shorter(usize),
    /// The last bytes are missing, and the field that counts them agrees.
    Fewer(&'static str, usize),
    /// The last byte is changed.
    Garbled,
    /// The packet is never sent.
    Lost,
    /// It is sent twice.
    Twice,
    /// It is sent again after the next packet of this type, in either direction.
    Again(PacketType),
}

/// The change of RDMA requests.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RdmaChange {
    /// The length is reduced by this many bytes.
    Shorter(usize),
    /// The address is moved by this many bytes.
    Elsewhere(i64),
    /// The request is not posted.
    Skipped,
    /// The request is posted after the packet that reports its end.
    Late,
    /// These bits of the immediate data are inverted.
    Immediate(u32),
}

impl Change {
    /// The packet with the change.
    pub(crate) fn of(self, packet: &[u8]) -> Vec<u8> {
        let mut changed = packet.to_vec();
        let flags = number(packet, "flags");
        match self {
            Change::Set(name, value) => write(&mut changed, name, value),
            Change::Add(name, by) => {
                write(&mut changed, name, number(packet, name).wrapping_add(by));
            }
            Change::Sub(name, by) => {
                write(&mut changed, name, number(packet, name).wrapping_sub(by));
            }
            Change::Swap(one, other) => {
                write(&mut changed, one, number(packet, other));
                write(&mut changed, other, number(packet, one));
            }
            Change::Clear(bits) => write(&mut changed, "flags", flags & !u64::from(bits)),
            Change::Without(part, flag) => {
                let fields = fields_of(packet).into_iter().flatten();
                let places: Vec<_> = fields
                    .filter(|field| field.descriptor.name.starts_with(part))
                    .map(|field| field.range())
                    .collect();
                for place in places.into_iter().rev() {
                    changed.drain(place);
                }
                write(&mut changed, "flags", flags & !u64::from(flag));
            }
            Change::With(value, flag) => {
                let fields = fields_of(packet).into_iter().flatten();
                let header = fields.filter(|field| field.descriptor.name != "data");
                let end = header.map(|field| field.range().end).max();
                let end = end.unwrap_or(packet.len());
                changed.splice(end..end, value.to_le_bytes());
                write(&mut changed, "flags", flags | u64::from(flag));
            }
            Change::Drop(name) => {
                let place = place(packet, name);
                changed.drain(place);
            }
            Change::Reverse(name) => changed[place(packet, name)].reverse(),
            Change::Shorter(by) => changed.truncate(packet.len() - by),
            Change::Fewer(name, by) => {
                changed.truncate(packet.len() - by);
                write(&mut changed, name, number(packet, name) - by as u64);
            }
            Change::Garbled => *changed.last_mut().expect("packets have bytes") ^= 0x55,
            Change::Lost | Change::Twice | Change::Again(_) => {}
        }
        changed
    }
}

/// The bytes of a field in a packet.
fn place(packet: &[u8], name: &str) -> Range<usize> {
    let field = field_of(packet, name).expect("the packet has the field");
    field.range()
}
