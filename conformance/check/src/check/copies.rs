//! Both ends' copies of each packet.

use efa_capture::Direction;
use efa_wire::address::Qkey;
use efa_wire::fields::{Field, fields_of};

use super::content::Content;
use super::node::NodeId;
use super::recent::Recent;
use crate::capture::CapturedPacket;

/// Packets under way that are remembered.
const MOST_PACKETS: usize = 1 << 14;

/// The sender, and the number of its request.
type Key = (NodeId, u32);

/// A packet that its sender's host captured.
#[derive(Debug)]
pub(super) struct Sent {
    number: u64,
    to: (NodeId, Qkey),
    pub(super) content: Content,
}

impl Sent {
    /// What is different in the packet that arrived.
    pub(super) fn difference(&self, received: &Content) -> Option<String> {
        let is_other = self.content.differs_from(received);
        is_other.then(|| describe(self, received))
    }
}

/// The packets that were sent, to be compared with what arrives.
#[derive(Debug, Default)]
pub(super) struct Copies {
    sent: Recent<Key, Sent>,
}

impl Copies {
    /// The packet that arrives, as it was sent.
    pub(super) fn sent(&self, frame: &CapturedPacket, from: NodeId, to: NodeId) -> Option<&Sent> {
        if frame.direction != Some(Direction::Inbound) {
            return None;
        }
        // Another endpoint may have sent another packet with this number.
        let sent = self.sent.get(&(from, frame.header.sequence))?;
        (sent.to == (to, frame.header.qkey)).then_some(sent)
    }

    /// Remembers a packet that is sent.
    pub(super) fn remember(
        &mut self,
        frame: &CapturedPacket,
        from: NodeId,
        to: NodeId,
        content: &Content,
    ) {
        if frame.direction != Some(Direction::Outbound) {
            return;
        }
        let sent = || Sent {
            number: frame.number,
            to: (to, frame.header.qkey),
            content: content.clone(),
        };
        let mut is_new = false;
        let key = (from, frame.header.sequence);
        let known = self.sent.get_or_insert(key, || {
            is_new = true;
            sent()
        });
        if !is_new {
            *known = sent();
        } else if self.sent.len() > MOST_PACKETS {
            self.sent.pop();
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
