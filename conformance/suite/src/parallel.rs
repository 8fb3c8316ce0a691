//! Work on several items simultaneously, in threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Calls `work` for all items, with each of `workers` simultaneously, and `ended` with an item's
/// index and its result as soon as it is available.
pub fn as_they_end<T: Sync, W: Send, R: Send>(
    items: &[T],
    workers: &mut [W],
    work: impl Fn(&mut W, &T) -> R + Sync,
    mut ended: impl FnMut(usize, R),
) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (sender, results) = mpsc::channel();
        for worker in workers.iter_mut().take(items.len()) {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { break };
                    if sender.send((at, work(worker, item))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for (at, result) in results {
            ended(at, result);
        }
    });
}

/// The same, with the results in the order of `items`.
pub fn in_order<T: Sync, W: Send, R: Send>(
    items: &[T],
    workers: &mut [W],
    work: impl Fn(&mut W, &T) -> R + Sync,
    mut ended: impl FnMut(&T, R),
) {
    let mut early = BTreeMap::new();
    let mut due = 0;
    as_they_end(items, workers, work, |at, result| {
        early.insert(at, result);
        while let Some(result) = early.remove(&due) {
            ended(&items[due], result);
            due += 1;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// The first item only ends after all others, which needs one thread per item.
    #[test]
    fn results_are_passed_in_order_as_items_end() {
        let mut workers = [(); 4];
        let items = [0, 1, 2, 3];
        let others = Barrier::new(4);
        let (first, rest) = mpsc::channel();
        let rest = std::sync::Mutex::new(rest);
        let work = |_: &mut (), item: &usize| {
            others.wait();
            if *item == 0 {
                rest.lock().unwrap().recv().unwrap();
            }
            item * 10
        };
        let mut ended = Vec::new();
        as_they_end(&items, &mut workers, work, |at, result| {
            ended.push((at, result));
            if ended.len() == 3 {
                first.send(()).unwrap();
            }
        });
        assert_eq!(ended.last(), Some(&(0, 0)));
        ended.sort_unstable();
        assert_eq!(ended, [(0, 0), (1, 10), (2, 20), (3, 30)]);

        // The same item again, which now ends when the others are about to end.
        let (other, rest) = mpsc::channel();
        let rest = std::sync::Mutex::new(rest);
        let work = |_: &mut (), item: &usize| {
            match *item {
                0 => (1..4).for_each(|_| rest.lock().unwrap().recv().unwrap()),
                _ => other.send(()).unwrap(),
            }
            item * 10
        };
        let mut ended = Vec::new();
        in_order(&items, &mut workers, work, |item, result| {
            ended.push((*item, result))
        });
        assert_eq!(ended, [(0, 0), (1, 10), (2, 20), (3, 30)]);
    }
}
