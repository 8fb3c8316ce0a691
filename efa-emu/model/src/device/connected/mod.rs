//! Connected queue pairs (RC), shared receive queues and the matching of tags: the profile `tm`.
//!
//! A connection is a stream of InfiniBand packets over the link's unanswered requests
//! ([`Operation::Connected`](crate::link::Operation::Connected)). The link may lose them, bring them
//! late, twice or in any order; the two devices see to it that requests are carried out once and in
//! order. What goes wrong below is recovered as real devices do it: sequence numbers,
//! acknowledgements, negative ones, time-outs.
//!
//! | file | what |
//! |---|---|
//! | `psn`, `packet` | sequence numbers; headers as bytes |
//! | `attributes` | the attributes of a connection and its changes of state |
//! | `buffers`, `receives`, `tags` | local memory, posted receives, the list of tags |
//! | `requester`, `responder` | the two halves of a connection, without any I/O |
//! | `pair` | a queue pair: both halves, its receives, its completions |
//! | `deliver`, `transmit` | packets that come, packets that leave, timers |
//! | `commands` | what clients call |

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
mod transmit;

use efa_core::address::Qpn;
use hashbrown::HashMap;
use slab::Slab;

pub use attributes::{ConnectionAttributes, ConnectionMask, MAX_RD_ATOMIC, REMOTE_ATOMIC};
pub use buffers::{BufferList, MAX_SGE};
pub use commands::{
    MAX_SRQ, MAX_TAG_OPERATIONS, MAX_TAGS, MAX_WR, TagRequest, TagRequestOperation,
};
pub use completion::{ConnectedCompletion, ConnectedFlags, WcOperation, WcStatus};
pub use pair::ConnectedConfig;
pub use psn::Psn;
pub use receives::{RecvWr, SrqAttributes, SrqConfig, SrqId, TagConfig};
pub use requester::{MAX_INLINE, MAX_MESSAGE, Payload, RemoteMemory, SendOperation, SendWr};
pub use tags::{
    MAX_RENDEZVOUS_HEADER, RVH, RendezvousHeader, TMH, TagHeader, TagOperation, TaggedBuffer,
};
pub(super) use transmit::timer_of;

/// The connected queue pairs and shared receive queues of a device.
#[derive(Default)]
pub(super) struct Connected {
    pairs: HashMap<Qpn, Box<pair::Pair>>,
    shared: Slab<receives::SharedQueue>,
}

impl Connected {
    /// The numbers of all queue pairs.
    pub(super) fn numbers(&self) -> Vec<Qpn> {
        self.pairs.keys().copied().collect()
    }
}
