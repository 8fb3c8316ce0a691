//! Lists of elements by peer, so that ending a peer takes time in proportion to its elements.
//!
//! All links are in the elements, which are in slots elsewhere. Inserting and removing an element
//! needs neither an allocation nor a look-up.

use crate::endpoint::base::ids::{Id, PeerId};

/// No slot.
const END: u32 = u32::MAX;

/// An element's position in the list of its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PeerLinks {
    /// The previous element; for the first element, the last one.
    previous: u32,
    /// The next element.
    next: u32,
}

impl PeerLinks {
    /// The links of an element that is in no list.
    pub(crate) const NONE: PeerLinks = PeerLinks {
        previous: END,
        next: END,
    };
}

/// Slots with elements that can belong to a peer. The methods may panic for a slot without an
/// element, which is a mistake of the caller.
pub(crate) trait PeerNodes {
    fn links(&self, node: u32) -> &PeerLinks;
    fn links_mut(&mut self, node: u32) -> &mut PeerLinks;
}

/// A list of elements for each peer, in the order of their insertion.
#[derive(Default)]
pub(crate) struct PeerLists {
    /// The first element of each list, by slot of the peer. A list is empty before its slot is used
    /// for another peer.
    first: Vec<u32>,
}

impl PeerLists {
    /// Appends an element to the list of its peer.
    #[inline]
    pub(crate) fn push(&mut self, nodes: &mut impl PeerNodes, peer: PeerId, node: u32) {
        let slot = peer.index();
        if self.first.len() <= slot {
            self.first.resize(slot + 1, END);
        }
        let first = &mut self.first[slot];
        let links = PeerLinks {
            previous: node,
            next: END,
        };
        if *first == END {
            *first = node;
            *nodes.links_mut(node) = links;
            return;
        }
        let last = core::mem::replace(&mut nodes.links_mut(*first).previous, node);
        nodes.links_mut(last).next = node;
        *nodes.links_mut(node) = PeerLinks {
            previous: last,
            ..links
        };
    }

    /// Removes an element.
    #[inline]
    pub(crate) fn remove(&mut self, nodes: &mut impl PeerNodes, peer: PeerId, node: u32) {
        let PeerLinks { previous, next } = *nodes.links(node);
        let first = &mut self.first[peer.index()];
        if *first == node {
            *first = next;
        } else {
            nodes.links_mut(previous).next = next;
        }
        // The first element has a link to the last one.
        match (next, *first) {
            (END, END) => {}
            (END, first) => nodes.links_mut(first).previous = previous,
            (next, _) => nodes.links_mut(next).previous = previous,
        }
    }

    /// The elements of a peer, in the order of their insertion.
    pub(crate) fn of(&self, nodes: &impl PeerNodes, peer: PeerId) -> Vec<u32> {
        let first = self.first.get(peer.index()).copied();
        let mut node = first.unwrap_or(END);
        let mut found = Vec::new();
        while node != END {
            #[cfg(any(test, debug_assertions))]
            super::steps::step();
            found.push(node);
            node = nodes.links(node).next;
        }
        found
    }

    /// Returns whether a peer has no elements.
    pub(crate) fn is_empty(&self, peer: PeerId) -> bool {
        let first = self.first.get(peer.index());
        first.is_none_or(|first| *first == END)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Nodes(Vec<PeerLinks>);

    impl PeerNodes for Nodes {
        fn links(&self, node: u32) -> &PeerLinks {
            &self.0[node as usize]
        }

        fn links_mut(&mut self, node: u32) -> &mut PeerLinks {
            &mut self.0[node as usize]
        }
    }

    proptest! {
        /// After any sequence of insertions and removals, each peer has exactly its objects, in
        /// order.
        #[test]
        fn each_peer_has_its_own_in_order(steps in proptest::collection::vec((0..3_u32, 0..8_u32), 0..60)) {
            let mut nodes = Nodes(vec![PeerLinks::NONE; 8]);
            let mut lists = PeerLists::default();
            let mut expected: [Vec<u32>; 3] = Default::default();
            for (peer, node) in steps {
                let owner = expected.iter().position(|list| list.contains(&node));
                match owner {
                    Some(owner) => {
                        lists.remove(&mut nodes, PeerId::new(owner as u32, 0), node);
                        expected[owner].retain(|other| *other != node);
                    }
                    None => {
                        lists.push(&mut nodes, PeerId::new(peer, 0), node);
                        expected[peer as usize].push(node);
                    }
                }
                for (peer, expected) in expected.iter().enumerate() {
                    let peer = PeerId::new(peer as u32, 0);
                    prop_assert_eq!(&lists.of(&nodes, peer), expected);
                    prop_assert_eq!(lists.is_empty(peer), expected.is_empty());
                }
            }
        }
    }
}
