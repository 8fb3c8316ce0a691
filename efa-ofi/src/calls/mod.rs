//! The calls that transfer data: each is a thin function ([`transfer_calls`](shim::transfer_calls))
//! over a safe one that starts the operation.

pub(crate) mod atomics;
pub(crate) mod collectives;
pub(crate) mod datagrams;
pub(crate) mod messages;
pub(crate) mod one_sided;
mod segments;
mod shim;
mod start;
