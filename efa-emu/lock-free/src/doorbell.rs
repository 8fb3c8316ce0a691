//! The notification of a segment's owner, while it polls and while it sleeps.
//!
//! Both sides do two steps in opposite order, with a fence between them. The sender changes the
//! segment and then checks whether the owner requests a notification. The owner requests one and
//! then checks for changes. Therefore at least one side sees the other's step.

use core::time::Duration;

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::sync::futex;

/// Value of a ring's attention word: the owner requests a doorbell for new records.
pub const WANTED: u32 = 0;
/// Value of a ring's attention word: the owner polls the ring.
const POLLED: u32 = 1;

/// Values of the wake word. It is changed by swaps only, so that its modifications have one order
/// for loom too, which does not order a plain store with swaps of other threads.
const AWAKE: u32 = 0;
/// The owner sleeps on the wake word, and is woken by a doorbell.
pub const ASLEEP: u32 = 1;

// --- the sender's side ---

/// Whether the owner requests a doorbell for this ring. To be called after a change of the ring.
#[inline]
pub fn is_wanted(attention: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    attention.load(Ordering::Relaxed) != POLLED
}

/// Rings the doorbell of a slot: sets its bit in its word, and the word's bit in the summary. The
/// caller may have to wake the owner afterwards.
pub fn ring(word: &AtomicU64, summary: &AtomicU64, slot: usize) {
    word.fetch_or(1 << (slot % 64), Ordering::Release);
    // Release: a thread that sees the word's bit here also sees the slot's bit there.
    summary.fetch_or(1 << (slot / 64), Ordering::Release);
}

/// Wakes the owner if it sleeps. To be called after a change for which the owner checks before it
/// sleeps.
#[inline]
pub fn wake(wake_word: &AtomicU32) {
    fence(Ordering::SeqCst);
    wake_sleeper(wake_word);
}

/// As [`wake`], for an owner that has been asleep for a while. An owner that falls asleep at this
/// moment may be missed.
#[inline]
pub fn wake_sleeper(wake_word: &AtomicU32) {
    if is_asleep(wake_word) {
        wake_if_asleep(wake_word);
    }
}

#[cold]
fn wake_if_asleep(wake_word: &AtomicU32) {
    // Only one of several senders makes the system call.
    if wake_word.swap(AWAKE, Ordering::Relaxed) == ASLEEP {
        futex::wake(wake_word);
    }
}

// --- the owner's side ---

/// Clears all rung doorbells, and calls `look` for each slot. Returns the summary.
pub fn take<'a>(
    summary: &AtomicU64,
    words: usize,
    word: impl Fn(usize) -> &'a AtomicU64,
    look: &mut dyn FnMut(usize),
) -> u64 {
    // Acquire: changes before the doorbell was rung are visible after this.
    let rung = summary.swap(0, Ordering::Acquire);
    for index in (0..words).filter(|index| rung & (1 << index) != 0) {
        let mut bits = word(index).swap(0, Ordering::Acquire);
        while bits != 0 {
            look(64 * index + bits.trailing_zeros() as usize);
            bits &= bits - 1;
        }
    }
    rung
}

/// The owner polls a ring from now on. It must check for earlier records afterwards.
pub fn start_polling(attention: &AtomicU32) {
    attention.store(POLLED, Ordering::Relaxed);
}

/// Requests doorbells for a ring from now on. The owner must check for earlier records afterwards.
pub fn stop_polling(attention: &AtomicU32) {
    attention.store(WANTED, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Announces that the owner is going to sleep. It must then check for all work again, and call
/// either [`sleep`] or [`stay_awake`].
pub fn fall_asleep(wake_word: &AtomicU32) {
    wake_word.swap(ASLEEP, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Revokes [`fall_asleep`].
pub fn stay_awake(wake_word: &AtomicU32) {
    wake_word.swap(AWAKE, Ordering::Relaxed);
}

/// Whether the owner has announced that it sleeps and has not been woken since.
#[inline]
pub fn is_asleep(wake_word: &AtomicU32) -> bool {
    wake_word.load(Ordering::Relaxed) == ASLEEP
}

/// Sleeps until woken or until the timeout.
pub fn sleep(wake_word: &AtomicU32, timeout: Option<Duration>) {
    futex::wait(wake_word, ASLEEP, timeout);
}

/// Wakes the owner's thread from its own process, after a change for which it checks before it
/// sleeps.
pub fn interrupt(wake_word: &AtomicU32) {
    // Release: an owner whose `fall_asleep` follows this sees the change. An owner whose
    // `fall_asleep` precedes this is woken.
    wake_word.swap(AWAKE, Ordering::Release);
    futex::wake(wake_word);
}
