//! The claim word of a direct RDMA record: which process may access the initiator's memory.
//!
//! The claim is the record's offset field, the lower half of a 64-bit word of the header. The upper
//! half is the length of the payload, which does not change. The header is read in words of 64
//! bits, so the claim is changed in such words too.
//!
//! The initiator's withdrawal and the target's claim both change this word, so exactly one of them
//! succeeds first. The target's accesses to the memory happen before its [`release`], and a
//! successful [`withdraw`] synchronises with that release.

use crate::sync::atomic::{AtomicU64, Ordering};

/// No process is copying.
pub const OPEN: u32 = 0;
/// The target is copying.
const COPYING: u32 = 1;
/// The initiator has withdrawn its memory.
const WITHDRAWN: u32 = 2;

/// Changes the claim `from` one state `to` another. If it is in another state, returns that state.
fn change(word: &AtomicU64, (from, to): (u32, u32), success: Ordering) -> Result<(), u32> {
    let seen = word.load(Ordering::Relaxed);
    if seen as u32 != from {
        return Err(seen as u32);
    }
    let new = seen & !u64::from(u32::MAX) | u64::from(to);
    // Only a hostile process changes the upper half. Then the change fails.
    word.compare_exchange(seen, new, success, Ordering::Relaxed)
        .map_err(|found| found as u32)?;
    Ok(())
}

/// Withdraws the initiator's memory. Returns true if the target no longer accesses it, false if the
/// target is copying right now.
pub fn withdraw(word: &AtomicU64) -> bool {
    // Acquire: the target's accesses to the memory are finished.
    match change(word, (OPEN, WITHDRAWN), Ordering::Acquire) {
        Ok(()) => true,
        Err(found) => found != OPEN && found != COPYING,
    }
}

/// Grants the target access to the memory again.
pub fn reopen(word: &AtomicU64) {
    // Release: the initiator's accesses meanwhile are finished. The change fails if the target was
    // found dead and the memory was therefore never withdrawn.
    let _ = change(word, (WITHDRAWN, OPEN), Ordering::Release);
}

/// Claims the memory for a copy by the target; false if the initiator has withdrawn it.
pub fn claim(word: &AtomicU64) -> bool {
    // Acquire: the initiator's accesses before it opened the claim are finished.
    change(word, (OPEN, COPYING), Ordering::Acquire).is_ok()
}

/// The target has finished its copy.
pub fn release(word: &AtomicU64) {
    // Release: see the module documentation.
    let _ = change(word, (COPYING, OPEN), Ordering::Release);
}

#[cfg(all(test, not(loom)))]
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
        // A release without a claim has no effect.
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
