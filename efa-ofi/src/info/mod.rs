//! The infos, and how hints are answered (`fi_getinfo`).

mod hints;
mod limits;
mod nic;
pub(crate) mod offer;
