//! Both ends' copies of each packet.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};

use efa_core::address::Gid;
use efa_core::wire::fields::{Field, fields_of};
use efa_emu::capture::Direction;

use crate::trace::CapturedPacket;

/// Packets under way that are remembered.
const MOST_PACKETS: usize = 1 << 14;
/// Bytes of a packet that are kept, to say what differs: more than any header.
const KEPT: usize = 512;

type Key = (Gid, u16, u32);

#[derive(Debug)]
struct Sent {
    number: u64,
    length: usize,
    digest: u64,
    beginning: Box<[u8]>,
}

/// Compares what arrives with what was sent.
#[derive(Debug, Default)]
pub(super) struct Copies {
    sent: HashMap<Key, Sent>,
    order: VecDeque<Key>,
}

impl Copies {
    /// Returns what is different from the packet that was sent.
    pub(super) fn difference(&mut self, frame: &CapturedPacket) -> Option<String> {
        let key = (
            frame.source,
            frame.header.source_qpn.0,
            frame.header.sequence,
        );
        let digest = digest(&frame.payload);
        match frame.direction {
            Some(Direction::Outbound) => {
                let beginning = &frame.payload[..frame.payload.len().min(KEPT)];
                let sent = Sent {
                    number: frame.number,
                    length: frame.payload.len(),
                    digest,
                    beginning: beginning.into(),
                };
                if self.sent.insert(key, sent).is_none() {
                    self.order.push_back(key);
                    if self.order.len() > MOST_PACKETS
                        && let Some(oldest) = self.order.pop_front()
                    {
                        self.sent.remove(&oldest);
                    }
                }
                None
            }
            Some(Direction::Inbound) => {
                let sent = self.sent.get(&key)?;
                let is_same = sent.length == frame.payload.len() && sent.digest == digest;
                (!is_same).then(|| describe(sent, &frame.payload))
            }
            None => None,
        }
    }
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

fn describe(sent: &Sent, received: &[u8]) -> String {
    fn fields(packet: &[u8]) -> Vec<Field<'_>> {
        fields_of(packet).into_iter().flatten().collect()
    }
    let beginning = &received[..received.len().min(KEPT)];
    let (before, after) = (fields(&sent.beginning), fields(beginning));
    let differing = before.iter().find(|field| {
        !after
            .iter()
            .any(|other| other.name() == field.name() && other.bytes == field.bytes)
    });
    match differing {
        Some(field) => {
            let show = |field: &Field<'_>| {
                field
                    .descriptor
                    .display(field.packet_type, field.value)
                    .to_string()
            };
            let other = after.iter().find(|other| other.name() == field.name());
            format!(
                "field `{}` ({}): expected {} as sent in packet {}, actual {}",
                field.name(),
                field.descriptor.source,
                show(field),
                sent.number,
                other.map_or_else(|| "absent".into(), show)
            )
        }
        None => format!(
            "{} bytes were sent in packet {}, these {} are others",
            sent.length,
            sent.number,
            received.len()
        ),
    }
}
