//! The definition of the field of an error.

use core::fmt;

use super::{find, sections};
use crate::descriptor::Source;
use crate::error::{ParseError, Reason};

/// The table of type ids.
const TYPE_IDS: Source = Source::Spec {
    section: "1.3",
    table: Some("1.2"),
};

impl ParseError {
    /// The source of the field's definition; `None` if the packet is too short to have a type.
    pub fn defined_in(&self) -> Option<Source> {
        if let Reason::OtherForm { .. } = self.reason {
            let behind_base = sections(self.packet_type?).get(1)?;
            return Some(behind_base.fields.first()?.source);
        }
        if self.field == "type" {
            return Some(TYPE_IDS);
        }
        find(self.packet_type?, self.field).map(|descriptor| descriptor.source)
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.packet_type {
            Some(packet_type) => write!(f, "{packet_type}: ")?,
            None => f.write_str("packet: ")?,
        }
        write!(
            f,
            "field {} at byte {}: {}",
            self.field, self.offset, self.reason
        )?;
        match self.defined_in() {
            Some(source) => write!(f, " ({source})"),
            None => Ok(()),
        }
    }
}
