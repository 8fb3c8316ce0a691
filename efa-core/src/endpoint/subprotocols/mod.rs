//! The subprotocols: what the parts do together for each kind of operation.

pub(crate) mod admission;
pub(crate) mod atomic;
pub(crate) mod eager;
pub(crate) mod handshake;
pub(crate) mod headerless;
pub(crate) mod long_cts;
pub(crate) mod long_read;
pub(crate) mod message;
pub(crate) mod rdma;
pub(crate) mod read;
pub(crate) mod receives;
pub(crate) mod sends;
pub(crate) mod streams;
pub(crate) mod transfers;
pub(crate) mod turns;
pub(crate) mod write;
