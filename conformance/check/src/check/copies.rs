//! The copies of each packet at both ends.

use efa_wire::fields::{Field, fields_of};

use super::content::Content;

/// A packet that its sender's host captured.
#[derive(Debug)]
pub(super) struct SentPacket {
    pub(super) number: u64,
    pub(super) content: Content,
    pub(super) identity: u64,
}

impl SentPacket {
    /// The difference of the packet that arrived.
    pub(super) fn difference(&self, received: &Content) -> Option<String> {
        let is_other = self.content.differs_from(received);
        is_other.then(|| describe(self, received))
    }
}

fn describe(sent: &SentPacket, received: &Content) -> String {
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
