//! Processes that fork, through the C interface.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::ptr::null_mut;

use crate::common::c::*;
use crate::common::{Libfabric, Options, Pair, close, with_provider, with_provider_and};

/// The variable by which the preloaded library is a kernel that shares the pages of registered
/// memory with children.
const SHARES_PAGES: &str = "KERNEL_SHARES_PAGES";

/// libibverbs' answer about forks: `enum ibv_fork_status`.
fn status() -> c_int {
    // SAFETY: a name, and the function's type.
    unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, c"ibv_is_fork_initialized".as_ptr());
        assert!(!found.is_null());
        std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn() -> c_int>(found)()
    }
}

/// Forks a child that writes to its copy of the memory, or to none, and waits for its exit.
fn fork(memory: &mut [u8]) {
    // SAFETY: the child writes its own memory and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            memory.as_mut_ptr().write_bytes(99, memory.len());
            libc::_exit(7);
        }
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: the status is valid for a write.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 7);
}

/// Sends messages between memory that is registered all the time, with a fork while a receive is
/// posted.
fn exchange(libfabric: &Libfabric) {
    let pair = Pair::open(libfabric, &Options::USUAL);
    let (mut source, mut target) = (vec![0_u8; 100_000], vec![0_u8; 100_000]);
    let mut others = vec![0_u8; 100_000];
    let regions = [
        pair.left.register_for(&mut source, FI_SEND | FI_RECV),
        pair.right.register_for(&mut target, FI_RECV),
    ];
    // SAFETY: both are open.
    let [from, to] = regions.map(|region| unsafe { (*region).mem_desc });
    let no = null_mut();
    for round in 1..4_u8 {
        source.fill(round);
        let buffer = target.as_mut_ptr().cast();
        let (right, length) = (pair.right.endpoint, target.len());
        pair.start(|| call!(right => msg.recv(buffer, length, to, pair.to_left, no)));
        // Not registered, so that the child has it.
        fork(&mut others);
        let data = source.as_ptr().cast();
        let left = pair.left.endpoint;
        pair.start(|| call!(left => msg.send(data, length, from, pair.to_right, no)));
        pair.left_completion();
        pair.right_completion();
        assert!(target == source);
    }
    assert_eq!(others[0], 0, "the child's is another");
    assert_eq!(regions.map(close), [0, 0]);
    pair.close(libfabric);
}

#[test]
fn registered_memory_stays_the_parents() {
    with_provider(|libfabric| {
        assert_eq!(status(), 2, "the kernel copies it for children");
        exchange(libfabric);
    });
}

/// The preloaded library, and the environment in which it behaves as that kernel.
fn older_kernel(command: &mut Command, variable: &str, value: &str) -> tempfile::TempDir {
    let (kept, library) = efa_testing::hw::kernel::library();
    command.env("LD_PRELOAD", library).env(SHARES_PAGES, "1");
    command.env(variable, value);
    // The directory where other providers write files about an aborted process.
    command.current_dir(kept.path());
    kept
}

#[test]
fn libibverbs_is_asked_before_the_first_registration() {
    for (place, variable) in ["FI_EFA_FORK_SAFE", "RDMAV_FORK_SAFE", "IBV_FORK_SAFE"]
        .into_iter()
        .enumerate()
    {
        // Each in a process of its own. The nested one, which is the first round there, does not
        // start others.
        let prepare = |command: &mut Command| older_kernel(command, variable, "1");
        with_provider_and(prepare, |libfabric| {
            if place == 0 {
                // libibverbs would refuse the request after a registration.
                exchange(libfabric);
                assert_eq!(status(), 1);
            }
        });
    }
}

#[test]
fn forking_without_support_aborts() {
    for value in ["0", "off"] {
        let prepare = |command: &mut Command| older_kernel(command, "FI_EFA_FORK_SAFE", value);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            with_provider_and(prepare, |libfabric| {
                let pair = Pair::open(libfabric, &Options::USUAL);
                fork(&mut [0; 8]);
                pair.close(libfabric);
            });
        }));
        let said = ended.expect_err("the process ends");
        let said = said.downcast_ref::<String>().expect("a message");
        assert!(said.contains("Set FI_EFA_FORK_SAFE=1"), "{said}");
    }
}
