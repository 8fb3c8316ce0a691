//! The engine's mutex: threads exclude each other, and none sleeps forever.

use loom::sync::Arc;
use loom::thread;

use crate::mutex::Mutex;

/// Two threads add to a value; both may have to sleep.
pub(super) fn threads_take_turns() {
    let mutex = Arc::new(Mutex::new(0));
    let other = Arc::clone(&mutex);
    let thread = thread::spawn(move || *other.lock() += 1);
    *mutex.lock() += 1;
    thread.join().expect("it does not panic");
    assert_eq!(*mutex.lock(), 2);
}

/// Three threads, one of which only tries to lock.
pub(super) fn one_thread_may_find_it_held() {
    let mutex = Arc::new(Mutex::new(0));
    let threads: Vec<_> = (0..2)
        .map(|index| {
            let mutex = Arc::clone(&mutex);
            thread::spawn(move || match index {
                0 => {
                    *mutex.lock() += 1;
                    1
                }
                _ => mutex.try_lock().map_or(0, |mut value| {
                    *value += 1;
                    1
                }),
            })
        })
        .collect();
    *mutex.lock() += 1;
    let added: u32 = threads
        .into_iter()
        .map(|thread| thread.join().expect("it does not panic"))
        .sum();
    assert_eq!(*mutex.lock(), 1 + added);
}
