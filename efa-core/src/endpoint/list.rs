//! Doubly linked lists through the slots of a slab: removal anywhere in constant time, no
//! allocation of their own.

use slab::Slab;

const END: u32 = u32::MAX;

/// A node's place in one list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    previous: u32,
    next: u32,
}

impl Links {
    /// Those of a node that is in no list.
    pub(crate) const NONE: Links = Links {
        previous: END,
        next: END,
    };
}

/// A slab's element that can stand in list `LIST`.
pub(crate) trait Linked<const LIST: usize> {
    fn links(&self) -> &Links;
    fn links_mut(&mut self) -> &mut Links;
}

/// A list of slab elements, linked by their [`Linked<LIST>`] links.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List<const LIST: usize> {
    head: u32,
    tail: u32,
}

impl<const LIST: usize> List<LIST> {
    pub(crate) const EMPTY: Self = List {
        head: END,
        tail: END,
    };

    pub(crate) fn is_empty(&self) -> bool {
        self.head == END
    }

    /// The first element's slot.
    pub(crate) fn front(&self) -> Option<u32> {
        (self.head != END).then_some(self.head)
    }

    pub(crate) fn push_back<T: Linked<LIST>>(&mut self, nodes: &mut Slab<T>, node: u32) {
        *nodes[node as usize].links_mut() = Links {
            previous: self.tail,
            next: END,
        };
        match self.tail {
            END => self.head = node,
            tail => nodes[tail as usize].links_mut().next = node,
        }
        self.tail = node;
    }

    /// Takes out a node that is in this list.
    pub(crate) fn remove<T: Linked<LIST>>(&mut self, nodes: &mut Slab<T>, node: u32) {
        let Links { previous, next } = *nodes[node as usize].links();
        match previous {
            END => self.head = next,
            previous => nodes[previous as usize].links_mut().next = next,
        }
        match next {
            END => self.tail = previous,
            next => nodes[next as usize].links_mut().previous = previous,
        }
        *nodes[node as usize].links_mut() = Links::NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Node(Links);

    impl Linked<0> for Node {
        fn links(&self) -> &Links {
            &self.0
        }

        fn links_mut(&mut self) -> &mut Links {
            &mut self.0
        }
    }

    fn slots(list: &List<0>, nodes: &Slab<Node>) -> Vec<u32> {
        let step =
            |slot: &u32| Some(nodes[*slot as usize].links().next).filter(|next| *next != END);
        core::iter::successors(list.front(), step).collect()
    }

    #[test]
    fn nodes_leave_from_anywhere_and_the_rest_stays_in_order() {
        for victim in 0..4_u32 {
            let mut nodes = Slab::new();
            let mut list = List::<0>::EMPTY;
            for _ in 0..4 {
                let node = nodes.insert(Node(Links::NONE)) as u32;
                list.push_back(&mut nodes, node);
            }
            list.remove(&mut nodes, victim);
            let left = slots(&list, &nodes);
            let expected: Vec<u32> = (0..4).filter(|node| *node != victim).collect();
            assert_eq!(left, expected);
            list.push_back(&mut nodes, victim);
            assert_eq!(slots(&list, &nodes).last(), Some(&victim));
            for node in expected.into_iter().chain([victim]) {
                assert_eq!(list.front(), Some(node));
                list.remove(&mut nodes, node);
            }
            assert!(list.is_empty());
        }
    }
}
