//! One file to send when something fails: the doctor's findings, reports, profiles, and captures
//! without the users' data.
//!
//! Texts contain no names of hosts and users ([`PrivateTexts`]), captures no data of applications
//! ([`without_private_data`]).

mod captures;
mod error;
mod member;
mod private;

pub use captures::without_private_data;
pub use error::{BlockError, BundleError};
pub use member::{Member, hosts, member};
pub use private::PrivateTexts;
