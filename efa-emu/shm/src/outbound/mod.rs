//! Requests on their way from this device to its peers, and the answers to them.

mod advance;
mod answers;
mod bulk;
mod dead_rings;
mod for_peers;
mod out_ring;
pub(super) mod routes;
mod send;
mod state;
mod withdraw;

pub(super) use bulk::{BulkName, BulkTable};
pub(super) use out_ring::{PullName, PushError};
pub(super) use state::Outbound;
pub(super) use withdraw::TakenBack;
