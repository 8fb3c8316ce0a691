//! Prefetch instructions.

/// Bytes of a cache line.
pub const CACHE_LINE: usize = 64;

/// Prefetches all cache lines of a value for writing.
#[inline(always)]
pub fn value<T: ?Sized>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    for offset in (0..size_of_val(value)).step_by(CACHE_LINE) {
        for_write(start.wrapping_add(offset));
    }
}

/// Prefetches the cache line of `address` for writing.
///
/// Any address is allowed: the processor ignores a hint that it cannot follow. On processors
/// without such an instruction this has no effect.
#[inline(always)]
pub fn for_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch accesses no memory architecturally and never faults. Every 64-bit
    // processor has the instruction or treats it as a no-op.
    unsafe {
        core::arch::asm!(
            "prefetchw [{}]",
            in(reg) address,
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch accesses no memory architecturally and never faults.
    unsafe {
        core::arch::asm!(
            "prfm pstl1keep, [{}]",
            in(reg) address,
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
