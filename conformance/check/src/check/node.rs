//! The two ends of a conversation.

use std::fmt;

use efa_wire::address::Gid;

/// A queue pair, as the network names it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct Node {
    pub(super) gid: Gid,
    pub(super) qpn: u16,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}]:{}", self.gid, self.qpn)
    }
}

/// From which end a conversation is seen. Frames without a direction belong to no end's view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct View {
    pub(super) has_direction: bool,
    pub(super) near: Node,
    pub(super) far: Node,
}
