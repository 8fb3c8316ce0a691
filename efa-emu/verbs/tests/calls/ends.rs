//! The destruction of objects: leftovers, and the effect on threads that use others.

use std::ffi::{c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;

use efa_testing::patience::Wait;

use crate::exchange::extended_cq;
use crate::on_emulated_host;
use efa_testing::verbs::*;
use efa_verbs_abi::*;

/// A process's resources, as the kernel counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Resources {
    threads: usize,
    descriptors: usize,
    /// Address space in KiB.
    mapped: usize,
}

/// The growth of mapped memory, in KiB, that a process may have without leftovers of the library:
/// the allocator's, and up to 20 MiB of freed blocks that valgrind keeps.
const NOISE: usize = 32 << 10;

impl Resources {
    fn now() -> Resources {
        let count = |directory: &str| std::fs::read_dir(Path::new(directory)).unwrap().count();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let mapped = status
            .lines()
            .find_map(|line| line.strip_prefix("VmSize:"))
            .and_then(|rest| rest.trim().strip_suffix(" kB"))
            .unwrap();
        Resources {
            threads: count("/proc/self/task"),
            descriptors: count("/proc/self/fd"),
            mapped: mapped.trim().parse().unwrap(),
        }
    }
}

/// Opens the device, makes one object of each type, and closes the device. The objects are
/// destroyed before that, or after it as far as possible.
fn cycle(in_order: bool) {
    let endpoint = Endpoint::new();
    let Endpoint {
        context,
        pd,
        handle,
        ..
    } = endpoint;
    let mut memory = [0u8; 64];
    let region = endpoint.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
    let channel = ibv_create_comp_channel(context);
    let queue = ibv_create_cq(context, 64, null_mut(), channel, 0);
    let pair = endpoint.srd(queue, 0);
    let mut data = [sge(region, 0, 64)];
    assert_eq!(post_recv(pair, 1, &mut data), 0);
    send(&endpoint, pair, pair, 2, &mut data);
    wait_for(queue, 2);
    if in_order {
        assert_eq!(ibv_destroy_qp(pair), 0);
    } else {
        assert_eq!(ibv_close_device(context), 0);
    }
    assert_eq!(ibv_destroy_cq(queue), 0);
    assert_eq!(ibv_destroy_comp_channel(channel), 0);
    assert_eq!(ibv_dereg_mr(region), 0);
    assert_eq!(ibv_destroy_ah(handle), 0);
    assert_eq!(ibv_dealloc_pd(pd), 0);
    if in_order {
        assert_eq!(ibv_close_device(context), 0);
    }
}

#[test]
fn of_devices_leaves_no_thread_descriptor_or_memory() {
    on_emulated_host("efa2", || {
        // Allocators and lists of freed handles first grow to their final size.
        for _ in 0..10 {
            cycle(true);
            cycle(false);
        }
        let before = Resources::now();
        for _ in 0..50 {
            cycle(true);
            cycle(false);
        }
        let after = Resources::now();
        let answer = (after.threads, after.descriptors);
        assert_eq!(answer, (before.threads, before.descriptors));
        // A freed handle keeps a structure of some hundred bytes. A device that stays is 64 MiB.
        assert!(
            after.mapped < before.mapped + NOISE,
            "{before:?}, then {after:?}"
        );
    });
}

#[test]
fn of_queue_pairs_leaves_no_rings() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(64);
        let pass = |times| {
            for _ in 0..times {
                let (mut request, mut efa) = endpoint.srd_request(queue, 0);
                request.cap.max_send_wr = 1024;
                request.cap.max_recv_wr = 1024;
                let pair = endpoint.create(&mut request, &mut efa);
                assert_eq!(ibv_destroy_qp(pair), 0);
            }
        };
        pass(100);
        let before = Resources::now();
        pass(900);
        let after = Resources::now();
        // The rings of one are more than 64 KiB.
        assert!(
            after.mapped < before.mapped + NOISE,
            "{before:?}, then {after:?}"
        );
    });
}

/// The thread that polls and the thread that makes and destroys queue pairs are independent.
#[test]
fn of_a_queue_pair_awaits_other_threads_sessions() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(64);
        let (pair, other) = (endpoint.srd(queue, 0), endpoint.srd(queue, 0));
        let region = endpoint.registered(64);
        for number in [1, 2] {
            assert_eq!(post_recv(pair, number, &mut [sge(region, 0, 64)]), 0);
            send(&endpoint, pair, pair, 10 + number, &mut [sge(region, 0, 8)]);
        }
        let extended: *mut ibv_cq_ex = queue.cast();
        // SAFETY: a live completion queue, in a session of this thread where that is needed.
        let (start, next, end) = unsafe {
            let table = &*extended;
            let (start, next, end) = (table.start_poll, table.next_poll, table.end_poll);
            (start.unwrap(), next.unwrap(), end.unwrap())
        };
        // SAFETY: as above.
        while unsafe { start(extended, null_mut::<c_void>()) } != 0 {}
        let address = other.expose_provenance();
        let destroyed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let pair: *mut ibv_qp = std::ptr::with_exposed_provenance_mut(address);
                let status: c_int = ibv_destroy_qp(pair);
                destroyed.store(true, Ordering::SeqCst);
                assert_eq!(status, 0);
            });
            std::thread::sleep(Duration::from_millis(50));
            // SAFETY: in a session of this thread.
            let last = unsafe {
                while next(extended) == 0 {}
                next(extended)
            };
            assert_eq!(last, libc::ENOENT, "the session went on");
            assert!(!destroyed.load(Ordering::SeqCst), "it did not wait");
            // SAFETY: as above.
            unsafe { end(extended) };
        });
        assert!(destroyed.load(Ordering::SeqCst));
    });
}

/// A thread may destroy a queue pair in its own session, as with queues of a single thread in
/// rdma-core.
#[test]
fn of_a_queue_pair_keeps_the_callers_session() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let extended = extended_cq(&endpoint);
        let queue = extended.cast();
        let (pair, other) = (endpoint.srd(queue, 0), endpoint.srd(queue, 0));
        let region = endpoint.registered(64);
        let mut data = [sge(region, 0, 8)];
        let mut request = send_request(&endpoint, pair, 2, &mut data);
        request.ud.remote_qkey ^= 1;
        assert_eq!(post_send(pair, &mut request).0, 0);
        // SAFETY: a live completion queue, and a session of this thread.
        unsafe {
            let table = &*extended;
            let (start, next, end) = (table.start_poll, table.next_poll, table.end_poll);
            while start.unwrap()(extended, null_mut()) != 0 {}
            assert_eq!(ibv_destroy_qp(other), 0);
            assert_eq!(table.read_qp_num.unwrap()(extended), (*pair).qp_num);
            assert_eq!(next.unwrap()(extended), libc::ENOENT);
            end.unwrap()(extended);
            assert_eq!(start.unwrap()(extended, null_mut()), libc::ENOENT);
        }
    });
}

/// The regions that a signal handler destroys, one for each signal, a function that destroys one,
/// and the number of destroyed regions.
static TO_END: [AtomicPtr<ibv_mr>; 3000] = [const { AtomicPtr::new(null_mut()) }; 3000];
static DEREGISTER: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static ENDED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn end_one(_: c_int) {
    let number = ENDED.load(Ordering::Relaxed);
    type Function = unsafe extern "C" fn(*mut ibv_mr) -> c_int;
    // SAFETY: `ibv_dereg_mr` of the library, whose type this is, and a region that nobody else
    // ends.
    let status = unsafe {
        let deregister: Function = std::mem::transmute(DEREGISTER.load(Ordering::Relaxed));
        deregister(TO_END[number].load(Ordering::Relaxed))
    };
    if status == 0 {
        ENDED.store(number + 1, Ordering::Relaxed);
    }
}

/// Programs call `exit` in signal handlers, and their exit handlers destroy their objects. The
/// interrupted poll may hold any lock of the device, and does not continue before the handler
/// returns.
#[test]
fn in_signal_handlers_never_await_interrupted_polls() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let extended = extended_cq(&endpoint);
        let queue: *mut ibv_cq = extended.cast();
        let mut memory = [0u8; 64];
        for region in &TO_END {
            let new = endpoint.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
            region.store(new, Ordering::Relaxed);
        }
        DEREGISTER.store(symbol("ibv_dereg_mr"), Ordering::Relaxed);
        // SAFETY: live queues, of which the first has no session.
        let (poll, start) = unsafe {
            let poll = (*(*queue).context).ops.poll_cq.unwrap();
            (poll, (*extended).start_poll.unwrap())
        };
        // SAFETY: the handler only calls what may be called in it.
        unsafe { libc::signal(libc::SIGUSR1, end_one as *const () as usize) };
        // SAFETY: takes nothing.
        let poller = unsafe { libc::pthread_self() };
        std::thread::scope(|scope| {
            let signals = scope.spawn(|| {
                for number in 0..TO_END.len() {
                    // SAFETY: the thread waits for this one.
                    unsafe { libc::pthread_kill(poller, libc::SIGUSR1) };
                    let wait = Wait::start();
                    while ENDED.load(Ordering::Relaxed) == number {
                        wait.check(|| format!("the handler waits, or fails, at signal {number}"));
                        std::thread::yield_now();
                    }
                }
            });
            while !signals.is_finished() {
                let mut completion: ibv_wc = zeroed();
                // SAFETY: a live queue, and room for one completion.
                unsafe {
                    assert_eq!(poll(queue, 1, &raw mut completion), 0);
                    assert_eq!(start(extended, null_mut()), libc::ENOENT);
                }
            }
        });
    });
}

/// Makes an object in a protection domain. Returns its pointer, null if that was refused.
type Make = fn(&Shared, *mut ibv_pd) -> *mut c_void;

/// The shared state of a test's threads.
struct Shared {
    gid: ibv_gid,
    /// Large enough that its registration takes a while.
    memory: *mut c_void,
    length: usize,
    /// A protection domain, passed from one thread to the other.
    domain: AtomicPtr<ibv_pd>,
}

// SAFETY: the memory is only registered.
unsafe impl Sync for Shared {}

#[test]
fn of_a_domain_excludes_creation_within_it() {
    on_emulated_host("efa2", || {
        const LENGTH: usize = 16 << 20;
        const KINDS: [Make; 2] = [
            |shared, domain| {
                let access = IBV_ACCESS_LOCAL_WRITE as c_int;
                ibv_reg_mr(domain, shared.memory, shared.length, access).cast()
            },
            |shared, domain| {
                let mut attributes: ibv_ah_attr = zeroed();
                attributes.port_num = 1;
                attributes.grh.dgid = shared.gid;
                // SAFETY: the library looks the domain up; the attributes are on the stack.
                unsafe { ibv_create_ah(domain, &raw mut attributes).cast() }
            },
        ];
        let endpoint = Endpoint::new();
        let mut memory = vec![0u8; LENGTH];
        let shared = Shared {
            gid: endpoint.gid,
            memory: memory.as_mut_ptr().cast(),
            length: LENGTH,
            domain: AtomicPtr::new(null_mut()),
        };
        let mut ends = 0;
        for round in 0..200u32 {
            let make = KINDS[round as usize % 2];
            let first = ibv_alloc_pd(endpoint.context);
            let (made, status, second) = std::thread::scope(|scope| {
                let maker = scope.spawn(|| {
                    let mut domain: *mut ibv_pd = null_mut();
                    while domain.is_null() {
                        domain = shared.domain.swap(null_mut(), Ordering::AcqRel);
                    }
                    make(&shared, domain).expose_provenance()
                });
                shared.domain.store(first, Ordering::Release);
                while !shared.domain.load(Ordering::Acquire).is_null() {
                    std::hint::spin_loop();
                }
                (0..round * 14 % 4000).for_each(|_| std::hint::spin_loop());
                let (status, second) = // The next domain gets the number of one that has ended.
                    (ibv_dealloc_pd(first), ibv_alloc_pd(endpoint.context));
                (maker.join().unwrap(), status, second)
            });
            ends += u32::from(status == 0);
            let is_made = made != 0;
            let expected = if is_made { libc::EBUSY } else { 0 };
            assert_eq!(status, expected, "round {round}");
            let made: *mut c_void = std::ptr::with_exposed_provenance_mut(made);
            assert_eq!(ibv_dealloc_pd(second), 0, "nothing was made in it");
            if is_made {
                match round % 2 {
                    0 => assert_eq!(ibv_dereg_mr(made.cast()), 0),
                    _ => assert_eq!(ibv_destroy_ah(made.cast()), 0),
                }
                assert_eq!(ibv_dealloc_pd(first), 0);
            }
        }
        assert!(ends > 0, "no domain ended while something was made in it");
    });
}
