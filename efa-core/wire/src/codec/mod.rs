//! Declaration, parsing and writing of packet headers, and the parts that formats share.
//!
//! [`declare`] explains how a format is declared. The types of its lines are in `parts` (words,
//! optional words, flags), `iov`, `raw_address` and `req`; `cursor` reads them, `repr` writes them
//! to an `output`, `sections` and `record` make the tables, `prelude` names all of these.

mod base;
mod cursor;
mod declare;
mod iov;
mod output;
mod parts;
pub(super) mod prelude;
mod raw_address;
mod record;
mod repr;
mod req;
mod sections;

pub use base::BaseHeader;
pub(super) use base::{BASE, DATA, RawBase, TRAILING};
pub(super) use cursor::Cursor;
pub(super) use declare::{Fields, Format};
pub use iov::{ExtraInfo, RmaIov, RmaIovs};
pub use raw_address::RawAddressHeader;
pub use repr::Repr;
pub(super) use repr::sealed;
pub use req::ReqOptions;
