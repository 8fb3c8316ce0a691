//! `dlsym`, for programs that open libibverbs themselves and look its functions up by name.

use core::ffi::{CStr, c_char, c_void};
use core::ptr::null_mut;
use core::sync::atomic::Ordering;

use super::exports;
use super::libc_dlsym::{DLSYM, real_dlsym};

/// The replacement for a function that the program looks up; null if there is none. Stores the C
/// library's `dlsym` in [`DLSYM`].
///
/// # Safety
/// `name` is null or a string that ends with zero.
unsafe extern "C" fn instead(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    if DLSYM.load(Ordering::Relaxed).is_null() {
        // SAFETY: looks up a name that does not exist.
        unsafe { real_dlsym(libc::RTLD_DEFAULT, c"efa_tap".as_ptr()) };
    }
    if name.is_null() || handle == libc::RTLD_NEXT {
        return null_mut();
    }
    // SAFETY: by contract.
    let Some((real, own)) = exports::by_name(unsafe { CStr::from_ptr(name) }) else {
        return null_mut();
    };
    // SAFETY: by contract.
    let found = unsafe { real_dlsym(handle, name) };
    if found.is_null() || found == own {
        return null_mut();
    }
    real.learn(found);
    own
}

/// `dlsym`. For functions without a replacement it jumps to the C library's function, which
/// examines its caller.
///
/// # Safety
/// As that of the C library.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {instead}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2:",
        "mov rax, qword ptr [rip + {real}]",
        "jmp rax",
        instead = sym instead,
        real = sym DLSYM,
    )
}

/// The same for arm64.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {instead}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "cbz x16, 2f",
        "mov x0, x16",
        "ret",
        "2:",
        "adrp x16, {real}",
        "ldr x16, [x16, :lo12:{real}]",
        "br x16",
        instead = sym instead,
        real = sym DLSYM,
    )
}
