//! How long a thread runs at a time.

/// Nanoseconds: the least that the system grants.
const SHORT: u64 = 100_000;

/// Has the system run the calling thread for a short time at a time, and in return soon after it was woken: programs that
/// poll keep their processors for milliseconds otherwise. Systems before Linux 6.12 do not know that, so that nothing
/// changes there.
pub(crate) fn shorten() {
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: all zeroes are a valid value of it.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: `attributes` has `size` bytes, and is valid for writes.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if got != 0 {
        return;
    }
    attributes.sched_runtime = SHORT;
    // SAFETY: `attributes` is valid for reads, and tells its size.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}
