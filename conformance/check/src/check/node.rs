//! Queue pairs, and the two that are the ends of a conversation.

use std::fmt;

use efa_wire::address::Gid;
use foldhash::HashMap;

/// A queue pair, by its identification in the network.
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

/// The index of a queue pair in a capture.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct NodeId(pub(super) u32);

impl NodeId {
    /// The index of state that is kept twice for each queue pair.
    pub(super) fn index(self, which: bool) -> usize {
        2 * self.0 as usize + usize::from(which)
    }
}

/// The index of a host in a capture.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct HostId(pub(super) u32);

/// The queue pairs of a capture. The state of each is found by its index, so that its long
/// identification is looked up only once per frame.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    ids: HashMap<Node, NodeId>,
    /// Sender and receiver of an earlier frame.
    latest: Option<([Node; 2], [NodeId; 2])>,
    known: Vec<(Node, HostId)>,
    hosts: HashMap<Gid, HostId>,
}

impl Nodes {
    /// The indices of sender and receiver of a frame.
    pub(super) fn ids(&mut self, ends: [Node; 2]) -> [NodeId; 2] {
        let [from, to] = ends;
        match self.latest {
            Some((known, ids)) if known == ends => ids,
            Some((known, [one, other])) if known == [to, from] => [other, one],
            _ => {
                let ids = ends.map(|node| self.id(node));
                self.latest = Some((ends, ids));
                ids
            }
        }
    }

    fn id(&mut self, node: Node) -> NodeId {
        let next = NodeId(self.known.len() as u32);
        let id = *self.ids.entry(node).or_insert(next);
        if id == next {
            let next_host = HostId(self.hosts.len() as u32);
            let host = *self.hosts.entry(node.gid).or_insert(next_host);
            self.known.push((node, host));
        }
        id
    }

    /// The queue pair with an index.
    pub(super) fn node(&self, id: NodeId) -> Node {
        self.known[id.0 as usize].0
    }

    /// The host of a queue pair.
    pub(super) fn host(&self, id: NodeId) -> HostId {
        self.known[id.0 as usize].1
    }
}

/// The view of a conversation. Frames without a direction belong to no end's view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct View {
    pub(super) has_direction: bool,
    pub(super) near: NodeId,
    pub(super) far: NodeId,
}
