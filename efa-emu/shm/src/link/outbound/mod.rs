//! Requests on their way from this device to its peers, and the answers to them.

mod advance;
mod answers;
mod bulk;
mod dead_rings;
mod for_peers;
mod out_ring;
pub(crate) mod routes;
mod send;
mod state;
mod withdraw;

pub(crate) use bulk::{BulkName, BulkTable};
pub(crate) use out_ring::{PullName, PushError};
pub(crate) use state::Outbound;
pub(crate) use withdraw::WithdrawnRequests;
