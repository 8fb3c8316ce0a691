//! The claim word of a direct RDMA record: who may touch the initiator's memory.
//!
//! It is the record's offset field, the lower half of a word of the header; the upper half is the
//! length of the payload, which does not change. The header is read in words of 64 bits, so the
//! claim is changed in such words too.
//!
//! The initiator's take-back and the target's claim are changes of one word, so exactly one of them
//! comes first. What the target did to the memory happens before its [`release`], which the
//! initiator's [`withdraw`] has seen when it succeeds.

use crate::sync::atomic::{AtomicU64, Ordering};

/// No process may at the moment.
pub(crate) const OPEN: u32 = 0;
/// The target is copying.
const COPYING: u32 = 1;
/// The initiator has taken its memory back.
const WITHDRAWN: u32 = 2;

/// Changes the claim `from` one state `to` another. Returns whether it did, else what it found.
fn change(word: &AtomicU64, (from, to): (u32, u32), success: Ordering) -> Result<(), u32> {
    let seen = word.load(Ordering::Relaxed);
    if seen as u32 != from {
        return Err(seen as u32);
    }
    let new = seen & !u64::from(u32::MAX) | u64::from(to);
    // Only a hostile process changes the upper half; then the change is refused.
    word.compare_exchange(seen, new, success, Ordering::Relaxed)
        .map_err(|found| found as u32)?;
    Ok(())
}

/// The initiator takes its memory back. `true`: the target does not touch it any more. `false`: the
/// target is copying right now.
pub(crate) fn withdraw(word: &AtomicU64) -> bool {
    // Acquire: what the target did to the memory is over.
    match change(word, (OPEN, WITHDRAWN), Ordering::Acquire) {
        Ok(()) => true,
        Err(found) => found != OPEN && found != COPYING,
    }
}

/// The initiator lets the target have the memory again.
pub(crate) fn reopen(word: &AtomicU64) {
    // Release: what the initiator did to the memory meanwhile is over. It fails if the target was
    // found dead instead of being kept off.
    let _ = change(word, (WITHDRAWN, OPEN), Ordering::Release);
}

/// The target claims the memory for a copy; `false` if the initiator has taken it back.
pub(crate) fn claim(word: &AtomicU64) -> bool {
    // Acquire: what the initiator did to the memory before it opened the claim is over.
    change(word, (OPEN, COPYING), Ordering::Acquire).is_ok()
}

/// The target has finished its copy.
pub(crate) fn release(word: &AtomicU64) {
    // Release: see the module documentation.
    let _ = change(word, (COPYING, OPEN), Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_claimant_gets_the_memory_unchanged() {
        let length = 0xdead_beef_0000_0000;
        let word = AtomicU64::new(length);
        let is = |state: u32| assert_eq!(word.load(Ordering::Relaxed), length | u64::from(state));
        assert!(claim(&word) && !claim(&word) && !withdraw(&word));
        is(COPYING);
        release(&word);
        is(OPEN);
        assert!(withdraw(&word) && withdraw(&word) && !claim(&word));
        is(WITHDRAWN);
        // A target that was never given the claim does not give it back.
        release(&word);
        is(WITHDRAWN);
        reopen(&word);
        is(OPEN);
        reopen(&word);
        is(OPEN);
    }

    #[test]
    fn an_unknown_state_neither_admits_nor_blocks() {
        let word = AtomicU64::new(77);
        assert!(!claim(&word));
        assert!(withdraw(&word));
        release(&word);
        reopen(&word);
        assert_eq!(word.load(Ordering::Relaxed), 77);
    }
}
