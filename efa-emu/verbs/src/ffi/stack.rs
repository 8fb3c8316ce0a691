//! The use of the program's stack by calls.
//!
//! libfabric up to 1.22 reads flags of datagram completions from uninitialised stack memory, and
//! follows a null pointer if bit 61 is set there (docs/findings.md, 17). Text has that bit set in
//! half of its bytes. Therefore the calls that handle text, which find and open the device, clear
//! the stack that they have used.

use std::hint::black_box;

/// Bytes below the frame of a call, about four times the need of the calls in a debug build.
const DEPTH: usize = 64 << 10;

/// Runs a call, and clears the stack that it has used.
#[inline(never)]
pub(crate) fn with_cleared_stack<R>(call: impl FnOnce() -> R) -> R {
    let result = in_own_frame(call);
    clear();
    result
}

/// A frame below that of [`with_cleared_stack`].
#[inline(never)]
fn in_own_frame<R>(call: impl FnOnce() -> R) -> R {
    call()
}

#[inline(never)]
fn clear() {
    black_box([0u8; DEPTH]);
}
