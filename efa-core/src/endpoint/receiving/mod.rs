//! Messages on their way in: order, matching, assembly.

pub(crate) mod assembly;
pub(crate) mod claims;
pub(crate) mod held;
pub(crate) mod matching;
pub(crate) mod multi_receive;
pub(crate) mod postponed;
pub(crate) mod reorder;
pub(crate) mod table;
pub(crate) mod transfer;
