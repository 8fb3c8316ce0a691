//! How the owner of a segment learns that something came, while it polls and while it sleeps.
//!
//! Both sides do two steps in opposite order, with a fence between them: the sender changes
//! something and then looks whether the owner wants to be told; the owner says that it wants to be
//! told and then looks whether something has changed. So at least one of both sees the other's
//! step.

use core::time::Duration;

use crate::process::shared::futex;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Value of a ring's attention word: the owner wants the doorbell.
pub(crate) const WANTED: u32 = 0;
/// Value of a ring's attention word: the owner looks at the ring by itself.
const POLLED: u32 = 1;

/// Values of the wake word. It changes by swaps only, so that its values have one order also for
/// loom, which does not order a plain store with the swaps of others.
const AWAKE: u32 = 0;
pub(crate) const ASLEEP: u32 = 1;

// --- the sender's side ---

/// Whether the owner wants the doorbell of a ring to be rung. To be asked after a change of the
/// ring.
#[inline]
pub(crate) fn is_wanted(attention: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    attention.load(Ordering::Relaxed) != POLLED
}

/// Rings the doorbell of a slot: its bit in its word, and the word's bit in the summary. The owner
/// may have to be woken then.
pub(crate) fn ring(word: &AtomicU64, summary: &AtomicU64, slot: usize) {
    word.fetch_or(1 << (slot % 64), Ordering::Release);
    // Release: who sees the word's bit here sees the slot's bit there.
    summary.fetch_or(1 << (slot / 64), Ordering::Release);
}

/// Wakes the owner if it sleeps. To be called after a change that the owner looks for before it
/// sleeps.
#[inline]
pub(crate) fn wake(wake_word: &AtomicU32) {
    fence(Ordering::SeqCst);
    wake_sleeper(wake_word);
}

/// As [`wake`] for an owner that has been asleep for a while: one that falls asleep at this moment
/// may be missed.
#[inline]
pub(crate) fn wake_sleeper(wake_word: &AtomicU32) {
    if is_asleep(wake_word) {
        wake_if_asleep(wake_word);
    }
}

#[cold]
fn wake_if_asleep(wake_word: &AtomicU32) {
    // One of several senders wakes.
    if wake_word.swap(AWAKE, Ordering::Relaxed) == ASLEEP {
        futex::wake(wake_word);
    }
}

// --- the owner's side ---

/// Takes all doorbells that were rung, and calls `look` for each slot. Returns the summary.
pub(crate) fn take<'a>(
    summary: &AtomicU64,
    words: usize,
    word: impl Fn(usize) -> &'a AtomicU64,
    look: &mut dyn FnMut(usize),
) -> u64 {
    // Acquire: what was changed before the doorbell was rung is seen by who looks now.
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

/// From now on the owner looks at a ring by itself. What came before has to be looked for after
/// this.
pub(crate) fn start_polling(attention: &AtomicU32) {
    attention.store(POLLED, Ordering::Relaxed);
}

/// From now on the owner wants the doorbell of a ring. What came before has to be looked for after
/// this.
pub(crate) fn stop_polling(attention: &AtomicU32) {
    attention.store(WANTED, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Announces that the owner is going to sleep. It then has to look for everything once more, and to
/// call either [`sleep`] or [`stay_awake`].
pub(crate) fn fall_asleep(wake_word: &AtomicU32) {
    wake_word.swap(ASLEEP, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Takes [`fall_asleep`] back.
pub(crate) fn stay_awake(wake_word: &AtomicU32) {
    wake_word.swap(AWAKE, Ordering::Relaxed);
}

/// Whether the owner announced that it sleeps and has not been woken since.
#[inline]
pub(crate) fn is_asleep(wake_word: &AtomicU32) -> bool {
    wake_word.load(Ordering::Relaxed) == ASLEEP
}

/// Sleeps until woken or until the time is over.
pub(crate) fn sleep(wake_word: &AtomicU32, timeout: Option<Duration>) {
    futex::wait(wake_word, ASLEEP, timeout);
}

/// Wakes the owner's thread from its own process, after a change that it looks for
/// before it sleeps.
pub(crate) fn interrupt(wake_word: &AtomicU32) {
    // Release: an owner whose `fall_asleep` comes after this sees the change. One whose
    // `fall_asleep` came before is woken.
    wake_word.swap(AWAKE, Ordering::Release);
    futex::wake(wake_word);
}
