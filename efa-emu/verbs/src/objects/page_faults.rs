//! Registered memory that the program has unmapped.
//!
//! A real device has pinned the pages, and continues to use them. The emulated device runs in the
//! program's process and copies from and to the memory, in a verb or in the device's thread. It
//! would end the process with `SIGSEGV`, or with `SIGBUS` where a mapped file was shortened.
//! Therefore the first registration installs handlers for both signals. If the device accesses a
//! missing page of registered memory, the handler maps a private page there: a real device's copy
//! would not reach the program either. Other faults are passed to the previous handler.
//!
//! This costs the data path nothing. A page that was mapped remains: at deregistration, the program
//! may have mapped other memory in its place.

use core::ffi::{c_int, c_void};
use core::mem::{transmute, zeroed};
use core::ptr::{null, without_provenance_mut};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

use efa_shm::is_device_thread;

use crate::ffi::errno;
use crate::ffi::interrupted::inside_another_verb;

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// `si_code` of a page that is not mapped.
const SEGV_MAPERR: c_int = 1;
/// `si_code` of a page beyond the end of a file.
const BUS_ADRERR: c_int = 2;

/// The size of a page, which an arm64 kernel sets when it is built. Signal handlers may not query
/// it.
static PAGE: AtomicUsize = AtomicUsize::new(0);

/// The previous actions of the signals.
static BEFORE: OnceLock<[libc::sigaction; 2]> = OnceLock::new();

/// Whether a byte of this process's memory is registered. Allocates nothing.
static IS_REGISTERED: OnceLock<fn(u64) -> bool> = OnceLock::new();

/// Installs the handlers, the first time.
pub(crate) fn install(is_registered: fn(u64) -> bool) {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: the call takes no pointers.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        PAGE.store(page as usize, Ordering::Relaxed);
        IS_REGISTERED.get_or_init(|| is_registered);
        BEFORE.get_or_init(|| SIGNALS.map(|signal| action_on(signal, None)));
        // SAFETY: all zeroes is a valid value.
        let mut action: libc::sigaction = unsafe { zeroed() };
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        for signal in SIGNALS {
            action_on(signal, Some(&action));
        }
    });
}

/// Returns the action of the process for a signal, and changes it if `new` is `Some`.
fn action_on(signal: c_int, new: Option<&libc::sigaction>) -> libc::sigaction {
    // SAFETY: all zeroes is a valid value, which the call replaces.
    let mut before: libc::sigaction = unsafe { zeroed() };
    let new = new.map_or(null(), core::ptr::from_ref);
    // SAFETY: null or a valid action, and room for one.
    unsafe { libc::sigaction(signal, new, &raw mut before) };
    before
}

/// The handler of both signals.
///
/// # Safety
/// Called by the kernel, with its structures.
unsafe extern "C" fn on_fault(
    signal: c_int,
    information: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    let number = errno::get();
    // SAFETY: the kernel's structure, for a signal that has an address.
    let (code, address) = unsafe { ((*information).si_code, (*information).si_addr()) };
    if !put_page(signal, code, address.addr()) {
        // SAFETY: passed on.
        unsafe { pass_on(signal, code, information, context) };
    }
    errno::set(number);
}

/// Maps a page where the device misses one. Returns whether that was the reason for the signal.
fn put_page(signal: c_int, code: c_int, address: usize) -> bool {
    // Truncated pages of a file are still mapped.
    let (missing, how) = match signal {
        libc::SIGSEGV => (SEGV_MAPERR, libc::MAP_FIXED_NOREPLACE),
        _ => (BUS_ADRERR, libc::MAP_FIXED),
    };
    let is_device = || inside_another_verb() || is_device_thread();
    let is_registered = || {
        let check = IS_REGISTERED.get();
        check.is_some_and(|is_registered| is_registered(address as u64))
    };
    if code != missing || !is_device() || !is_registered() {
        return false;
    }
    let length = PAGE.load(Ordering::Relaxed);
    let page: *mut c_void = without_provenance_mut(address & !(length - 1));
    // SAFETY: no readable or writable memory is mapped there.
    let mapped = unsafe {
        libc::mmap(
            page,
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | how,
            -1,
            0,
        )
    };
    // Another thread may have mapped it first.
    mapped == page || (mapped == libc::MAP_FAILED && errno::get() == libc::EEXIST)
}

/// Acts as the process would have without the handler.
///
/// # Safety
/// The arguments are those of the handler.
unsafe fn pass_on(
    signal: c_int,
    code: c_int,
    information: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    let index = SIGNALS.iter().position(|known| *known == signal);
    let Some(before) = BEFORE.get().zip(index).map(|(all, index)| &all[index]) else {
        return;
    };
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            action_on(signal, Some(before));
            // A fault occurs again when the handler returns; a signal that was sent does not.
            if code <= 0 {
                // SAFETY: the call takes no pointers.
                unsafe { libc::raise(signal) };
            }
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: a handler that was installed with this flag has this type.
            unsafe {
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    transmute(handler);
                handler(signal, information, context);
            }
        }
        handler => {
            // SAFETY: a handler that was installed without the flag has this type.
            unsafe {
                let handler: extern "C" fn(c_int) = transmute(handler);
                handler(signal);
            }
        }
    }
}
