//! `SpinCell`: calls and sessions of calls exclude each other.

use loom::sync::Arc;
use loom::thread;

use crate::spin::SpinCell;
use crate::spin::test_thread::Thread;

/// Calls of two threads change the value one after the other.
pub(super) fn calls_take_turns() {
    let cell = Arc::new(SpinCell::new(0));
    let other = Arc::clone(&cell);
    let thread = thread::spawn(move || *other.lock(&Thread) += 1);
    *cell.lock(&Thread) += 1;
    thread.join().expect("it does not panic");
    assert_eq!(*cell.lock(&Thread), 2);
}

/// A session of two calls that reads the value in between; the other thread comes before or after
/// both.
pub(super) fn a_session_keeps_others_out() {
    let cell = Arc::new(SpinCell::new((0, 0)));
    let other = Arc::clone(&cell);
    let thread = thread::spawn(move || {
        let locking = Thread;
        let mut value = other.lock(&locking);
        assert_eq!(value.0, value.1, "in the middle of a session");
        value.0 += 1;
        value.1 += 1;
    });
    let locking = Thread;
    let mut first = cell.lock(&locking);
    first.0 += 1;
    first.hold();
    // SAFETY: the session is this thread's.
    let seen = unsafe { cell.in_session() };
    assert!(seen.is_some_and(|value| value.0 == value.1 + 1));
    let mut second = cell.resume(&locking).expect("its own session");
    second.1 += 1;
    second.end();
    thread.join().expect("it does not panic");
    assert_eq!(*cell.lock(&locking), (2, 2));
}

/// A change during a session: a change by the owner does not end the session, a change by another
/// thread waits for its end.
pub(super) fn only_the_owner_gets_in_beside_a_session() {
    let cell = Arc::new(SpinCell::new((0, 0)));
    let other = Arc::clone(&cell);
    let thread = thread::spawn(move || {
        let locking = Thread;
        let mut value = other.lock_beside_session(&locking, false);
        assert_eq!(
            value.0, value.1,
            "in the middle of another thread's session"
        );
        value.0 += 1;
        value.1 += 1;
    });
    let locking = Thread;
    let mut first = cell.lock(&locking);
    first.0 += 1;
    first.hold();
    cell.lock_beside_session(&locking, false).1 += 1;
    cell.resume(&locking).expect("the session goes on").end();
    thread.join().expect("it does not panic");
    assert_eq!(*cell.lock(&locking), (2, 2));
}

/// The owner of an earlier session cannot make a change during another thread's session.
pub(super) fn an_earlier_session_makes_no_owner() {
    let cell = Arc::new(SpinCell::new((0, 0)));
    let locking = Thread;
    cell.lock(&locking).hold();
    cell.resume(&locking).expect("its own session").end();
    let other = Arc::clone(&cell);
    let thread = thread::spawn(move || {
        let locking = Thread;
        let mut first = other.lock(&locking);
        first.0 += 1;
        first.hold();
        let mut second = other.resume(&locking).expect("its own session");
        second.1 += 1;
        second.end();
    });
    let value = cell.lock_beside_session(&locking, false);
    assert_eq!(
        value.0, value.1,
        "in the middle of another thread's session"
    );
    drop(value);
    thread.join().expect("it does not panic");
}
