//! A hint to the processor to have memory in its caches before it is needed.

/// Bytes of a cache line.
pub const CACHE_LINE: usize = 64;

/// Asks for all cache lines of a value, which is going to be changed.
#[inline(always)]
pub fn value<T: ?Sized>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    for offset in (0..size_of_val(value)).step_by(CACHE_LINE) {
        for_write(start.wrapping_add(offset));
    }
}

/// Asks for the cache line that holds `address`, which is going to be written.
///
/// Any address will do: the processor drops a hint that it cannot follow. On processors without
/// such a hint nothing happens.
#[inline(always)]
pub fn for_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint reads and writes nothing and never faults. Every processor with a 64-bit mode
    // knows the instruction or takes it for a no-op.
    unsafe {
        core::arch::asm!(
            "prefetchw [{}]",
            in(reg) address,
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint reads and writes nothing and never faults.
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
