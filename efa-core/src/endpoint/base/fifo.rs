//! A queue in one piece of memory.

/// A queue that its readers usually empty. An element is written once and read from the same place;
/// unlike in a ring, no index wraps around.
pub(crate) struct Fifo<T> {
    elements: Vec<T>,
    /// The number of elements that were removed.
    taken: usize,
}

impl<T: Copy> Fifo<T> {
    /// An empty queue, without memory.
    pub(crate) const fn new() -> Self {
        Fifo {
            elements: Vec::new(),
            taken: 0,
        }
    }

    /// The number of elements in the queue.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.elements.len() - self.taken
    }

    /// Appends an element.
    #[inline(always)]
    pub(crate) fn push_back(&mut self, element: T) {
        if self.elements.len() == self.elements.capacity() {
            self.make_room();
        }
        self.elements.push(element);
    }

    /// Removes the oldest element.
    #[inline(always)]
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let element = *self.elements.get(self.taken)?;
        self.taken += 1;
        if self.taken == self.elements.len() {
            self.elements.clear();
            self.taken = 0;
        }
        Some(element)
    }

    /// Removes all elements, oldest first, and passes each to `take` without moving it.
    #[inline(always)]
    pub(crate) fn drain(&mut self, mut take: impl FnMut(&T)) {
        for element in self.elements.get(self.taken..).unwrap_or_default() {
            take(element);
        }
        self.elements.clear();
        self.taken = 0;
    }

    /// Frees the places of removed elements if they are half of all, so that each element is moved
    /// once on average, and memory stays in proportion to the length. Otherwise the memory grows.
    #[cold]
    fn make_room(&mut self) {
        if self.taken * 2 >= self.elements.len() {
            self.elements.drain(..self.taken);
            self.taken = 0;
        }
        if self.elements.len() == self.elements.capacity() {
            self.elements.reserve(self.elements.len().max(16));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// This includes a reader that never removes the last element.
        #[test]
        fn elements_are_removed_in_order(steps in proptest::collection::vec(any::<bool>(), 0..400)) {
            let mut fifo = Fifo::new();
            let mut expected = VecDeque::new();
            for (number, adds) in steps.into_iter().enumerate() {
                if adds {
                    fifo.push_back(number);
                    expected.push_back(number);
                } else {
                    prop_assert_eq!(fifo.pop_front(), expected.pop_front());
                }
                prop_assert_eq!(fifo.len(), expected.len());
            }
        }
    }

    #[test]
    fn all_elements_are_taken_in_their_order() {
        let mut fifo = Fifo::new();
        (0..5).for_each(|number| fifo.push_back(number));
        assert_eq!(fifo.pop_front(), Some(0));
        let mut taken = Vec::new();
        fifo.drain(|number| taken.push(*number));
        fifo.drain(|number| taken.push(*number));
        assert_eq!(taken, [1, 2, 3, 4]);
        assert_eq!((fifo.len(), fifo.pop_front()), (0, None));
    }

    #[test]
    fn memory_stays_in_proportion_to_the_length() {
        let mut fifo = Fifo::new();
        fifo.push_back(0);
        for number in 1..10_000 {
            fifo.push_back(number);
            assert_eq!(fifo.pop_front(), Some(number - 1));
        }
        assert!(fifo.elements.capacity() <= 32);
    }
}
