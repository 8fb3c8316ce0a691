//! Connected queue pairs (RC), shared receive queues and tag matching: the profile `tm`.
//!
//! A connection is a stream of InfiniBand packets over the link's unanswered requests
//! ([`Operation::Connected`](crate::link::Operation::Connected)). The link may lose, delay,
//! duplicate or reorder them; the two devices ensure that each request is executed once and in
//! order. They recover from losses like real devices: with sequence numbers, acknowledgements, NAKs
//! and time-outs.
//!
//! | file | contents |
//! |---|---|
//! | `psn`, `packet`, `token` | sequence numbers; headers as bytes; tokens of packets and timers |
//! | `attributes` | the attributes of a connection and its changes of state |
//! | `buffers`, `receives`, `tags` | local memory, posted receives, the tag list |
//! | `requester`, `responder` | the two halves of a connection, without any I/O |
//! | `pair` | a queue pair: both halves, its receives, its completions |
//! | `deliver`, `transmit` | received packets; sent packets, timers |
//! | `commands` | the interface for clients |

mod attributes;
mod buffers;
mod commands;
mod completion;
mod deliver;
mod packet;
mod pair;
mod psn;
mod receives;
mod requester;
mod responder;
mod tags;
mod token;
mod transmit;

use efa_core::address::Qpn;
use slab::Slab;

pub use attributes::{ConnectionAttributes, ConnectionMask, MAX_RD_ATOMIC, REMOTE_ATOMIC};
pub use buffers::BufferList;
pub use commands::{
    MAX_SRQ, MAX_TAG_OPERATIONS, MAX_TAGS, MAX_WR, TagRequest, TagRequestOperation,
};
pub use completion::{ConnectedCompletion, ConnectedFlags, WcOperation, WcStatus};
pub use pair::ConnectedConfig;
pub use psn::Psn;
pub use receives::{RecvWr, SrqAttributes, SrqConfig, SrqId, TagConfig};
pub use requester::{MAX_INLINE, Payload, RemoteMemory, SendOperation, SendWr};
pub use tags::{
    MAX_RENDEZVOUS_HEADER, RVH, RendezvousHeader, TMH, TagHeader, TagOperation, TaggedBuffer,
};
pub(super) use token::timer_of;

use super::qp_table::QpTable;

/// The connected queue pairs and shared receive queues of a device.
pub(super) struct Connected {
    pairs: QpTable<pair::Pair>,
    /// Number of connections so far. Tokens of packets contain its lower bits.
    connections: u8,
    shared: Slab<receives::SharedQueue>,
}

impl Connected {
    pub(super) fn new() -> Connected {
        Connected {
            pairs: QpTable::new(),
            connections: 0,
            shared: Slab::new(),
        }
    }

    fn next_connection(&mut self) -> u8 {
        self.connections = (self.connections + 1) & token::CONNECTION_BITS;
        self.connections
    }

    /// The numbers of all queue pairs.
    pub(super) fn numbers(&self) -> Vec<Qpn> {
        self.pairs.numbers().collect()
    }
}
