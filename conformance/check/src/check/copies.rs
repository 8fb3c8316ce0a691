//! Both ends' copies of each packet.

use std::collections::VecDeque;

use efa_capture::Direction;
use efa_wire::address::{Gid, Qkey, Qpn};
use efa_wire::fields::{Field, fields_of};
use foldhash::HashMap;

use super::content::Content;
use crate::capture::CapturedPacket;

/// Packets under way that are remembered.
const MOST_PACKETS: usize = 1 << 14;

type Key = (Gid, u16, u32);

#[derive(Debug)]
struct Sent {
    number: u64,
    to: (Gid, Qpn, Qkey),
    content: Content,
}

/// Compares what arrives with what was sent.
#[derive(Debug, Default)]
pub(super) struct Copies {
    sent: HashMap<Key, Sent>,
    order: VecDeque<Key>,
}

impl Copies {
    /// Returns what is different from the packet that was sent.
    pub(super) fn difference(
        &mut self,
        frame: &CapturedPacket,
        content: &Content,
    ) -> Option<String> {
        let key = (
            frame.source,
            frame.header.source_qpn.0,
            frame.header.sequence,
        );
        let to = (
            frame.destination,
            frame.header.destination_qpn,
            frame.header.qkey,
        );
        match frame.direction {
            Some(Direction::Outbound) => {
                let sent = Sent {
                    number: frame.number,
                    to,
                    content: content.clone(),
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
                // Another endpoint may have sent another packet with this number.
                let sent = self.sent.get(&key).filter(|sent| sent.to == to)?;
                sent.content
                    .differs_from(content)
                    .then(|| describe(sent, content))
            }
            None => None,
        }
    }
}

fn describe(sent: &Sent, received: &Content) -> String {
    fn fields(header: &[u8]) -> Vec<Field<'_>> {
        fields_of(header).into_iter().flatten().collect()
    }
    let (before, after) = (fields(sent.content.header()), fields(received.header()));
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
            sent.content.packet_length(),
            sent.number,
            received.packet_length()
        ),
    }
}
