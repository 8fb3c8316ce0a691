//! The fields of every packet type as data: names, widths, conditions, sources, descriptions.
//!
//! [`layout`] lists the fields that a packet type may contain, for documentation and for the
//! dissector. [`fields_of`] walks one packet along that list and yields each field with its offset
//! and value. The packet may be invalid: the walk yields the fields of a damaged packet as far as
//! they go. Neither allocates.
//!
//! ```
//! use efa_wire::fields::fields_of;
//!
//! let packet = [64, 4, 0x04, 0x80, 7, 0, 0, 0, 0x78, 0x56, 0x34, 0x12, b'h', b'i'];
//! let lines: Vec<String> = fields_of(&packet)
//!     .into_iter()
//!     .flatten()
//!     .map(|field| format!("{:2}: {field} ({})", field.offset, field.descriptor.source))
//!     .collect();
//! assert_eq!(
//!     lines,
//!     [
//!         " 0: type = 64 (EAGER_MSGRTM) (spec section 1.3, table 1.3)",
//!         " 1: version = 4 (spec section 1.3, table 1.3)",
//!         " 2: flags = 0x8004 (MSG | CONNID_HDR) (spec section 1.3, table 1.3)",
//!         " 4: msg_id = 7 (spec section 3.2, table 3.3)",
//!         " 8: connid = 0x12345678 (spec section 4.4)",
//!         "12: data = 2 bytes: 68 69 (spec section 3.1)",
//!     ]
//! );
//! ```
//!
//! The tables and the typed parser ([`Packet::parse`](super::Packet::parse)) are generated from the
//! same declarations. Tests verify that they agree on every value, every offset and every error.

mod field;
mod layout;
mod of_type;
mod source;
mod value;
mod walk;

pub use super::descriptor::{Array, FieldDescriptor, FieldKind, Presence, Section, Source, Width};
pub use field::{Field, FieldName, MissingField};
pub use layout::{LayoutField, find, forms, layout, layout_of, sections};
pub use value::{DisplayValue, Value};
pub use walk::{Fields, field_of, fields_of};
