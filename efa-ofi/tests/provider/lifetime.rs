//! Leftovers of closed objects, and of forked processes.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::thread;
use std::time::Duration;

use efa_testing::patience::Wait;

use crate::common::c::*;
use crate::common::{
    EINVAL, Libfabric, Options, Pair, Side, Threads, bind, close, opened, with_pair, with_provider,
    with_provider_under,
};

/// The resources of a process that can leak.
#[derive(Debug)]
struct Resources {
    /// Bytes, including those that the allocator keeps for threads.
    heap: usize,
    descriptors: usize,
    threads: usize,
}

/// The difference that the heap may have: memory that the allocator keeps, but no message or packet
/// buffers.
const KEPT: usize = 256 << 10;

/// More than the threads of a round, so that none of them is taken for one that stays.
const ROUNDS: usize = 6;

impl Resources {
    fn now() -> Resources {
        let entries = |path| std::fs::read_dir(path).expect("readable").count();
        Resources {
            // SAFETY: takes nothing.
            heap: unsafe { libc::mallinfo2() }.uordblks,
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
        }
    }
}

/// Opens a pair, leaves it with messages in all states, and closes everything.
fn live(libfabric: &Libfabric, progress: fi_progress) {
    let options = Options {
        wait_obj: FI_WAIT_FD,
        progress,
        ..Options::USUAL
    };
    let (left, right) = Side::open_two(libfabric, &options);
    let counter = left.counter(FI_WAIT_FD);
    let events = opened(|queue| call!(left.fabric => ops.eq_open(null_mut(), queue, null_mut())));
    assert_eq!(bind(left.endpoint, counter, FI_SEND), 0);
    assert_eq!(bind(left.endpoint, events, 0), 0);
    let event = b"unread".as_ptr().cast();
    assert_eq!(call!(events => ops.write(1, event, 6, 0)), 6);
    let pair = Pair::of(left, right);
    let (left, right, no) = (&pair.left, &pair.right, null_mut());
    let mut long = vec![0_u8; 3 << 20];
    let mut target = vec![0_u8; 3 << 20];
    let regions = [left.register(&mut long), right.register(&mut target)];
    let (from, to) = (long.as_ptr().cast(), target.as_mut_ptr().cast());
    for length in [64, long.len()] {
        pair.start(|| call!(right.endpoint => tagged.recv(to, length, no, u64::MAX, 1, 0, no)));
        pair.start(|| call!(left.endpoint => tagged.send(from, length, no, pair.to_right, 1, no)));
        pair.left_completion();
        pair.right_completion();
    }
    // A receive without a message, messages without a receive, unread completions.
    pair.start(|| call!(right.endpoint => tagged.recv(to, 64, no, u64::MAX, 2, 0, no)));
    for length in [64, 20_000, long.len()] {
        pair.start(|| call!(left.endpoint => tagged.send(from, length, no, pair.to_right, 3, no)));
    }
    assert_eq!(close(left.endpoint), 0);
    assert_eq!((close(counter), close(events)), (0, 0));
    assert_eq!(regions.map(close), [0, 0]);
    pair.left.close_rest(libfabric);
    pair.right.close(libfabric);
}

#[test]
fn closed_objects_leave_no_resources() {
    with_provider(|libfabric| {
        for progress in [FI_PROGRESS_MANUAL, FI_PROGRESS_AUTO] {
            // The first run allocates what the process keeps.
            live(libfabric, progress);
            live(libfabric, progress);
            let before = Resources::now();
            for _ in 0..ROUNDS {
                live(libfabric, progress);
            }
            let wait = Wait::start();
            let mut after = Resources::now();
            // A thread that has ended is listed for a moment longer, here and before: of one round
            // at most.
            while after.threads > before.threads {
                wait.pause(|| format!("{after:?} {before:?}"));
                after = Resources::now();
            }
            assert_eq!(after.descriptors, before.descriptors);
            assert!(after.heap < before.heap + KEPT, "{after:?} {before:?}");
        }
    });
}

/// Opens a pair with more objects than it needs, exchanges messages, and closes everything in the
/// order that `arrange` makes of the order of opening. An object that is still in use is closed
/// again after the rest.
fn close_in_order(libfabric: &Libfabric, arrange: fn(&mut Vec<*mut fid>)) {
    let pair = Pair::open(libfabric, &Options::USUAL);
    let (mut data, mut memory) = (vec![7_u8; 1 << 20], vec![0_u8; 1 << 20]);
    let (mut objects, mut regions) = (Vec::new(), Vec::new());
    for (side, buffer) in [(&pair.left, &mut data), (&pair.right, &mut memory)] {
        let domain = side.domain;
        let mut kind = fi_cq_attr::default();
        let queue: *mut fid_cq =
            opened(|queue| call!(domain => ops.cq_open(&mut kind, queue, null_mut())));
        let mut kind = fi_av_attr {
            type_: FI_AV_TABLE,
            ..fi_av_attr::default()
        };
        let vector: *mut fid_av =
            opened(|vector| call!(domain => ops.av_open(&mut kind, vector, null_mut())));
        let counter = side.counter(FI_WAIT_NONE);
        let events: *mut fid_eq =
            opened(|queue| call!(side.fabric => ops.eq_open(null_mut(), queue, null_mut())));
        let region: *mut fid_mr = side.register(buffer);
        regions.push(region);
        objects.extend([
            side.fabric.cast::<fid>(),
            side.domain.cast(),
            side.queue.cast(),
            side.vector.cast(),
            side.endpoint.cast(),
            queue.cast(),
            vector.cast(),
            counter.cast(),
            events.cast(),
            region.cast(),
            side.another().cast(),
        ]);
    }
    let (left, right, no) = (pair.left.endpoint, pair.right.endpoint, null_mut());
    let (from, to) = (
        data.as_mut_ptr().cast::<c_void>(),
        memory.as_mut_ptr().cast::<c_void>(),
    );
    for length in [64, 60_000, 1 << 20] {
        pair.start(|| call!(right => tagged.recv(to, length, no, u64::MAX, 1, 0, no)));
        pair.start(|| call!(left => tagged.send(from, length, no, pair.to_right, 1, no)));
        pair.left_completion();
        pair.right_completion();
        let address = memory.as_ptr().addr() as u64;
        // SAFETY: the registration is open.
        let key = unsafe { (*regions[1]).key };
        pair.start(|| call!(left => rma.write(from, length, no, pair.to_right, address, key, no)));
        pair.left_completion();
        pair.start(|| call!(left => rma.read(from, length, no, pair.to_right, address, key, no)));
        pair.left_completion();
    }
    // A receive without a message, messages without a receive, unread completions.
    pair.start(|| call!(right => tagged.recv(to, 64, no, u64::MAX, 2, 0, no)));
    for length in [64, 60_000, 1 << 20] {
        pair.start(|| call!(left => tagged.send(from, length, no, pair.to_right, 3, no)));
    }
    arrange(&mut objects);
    while !objects.is_empty() {
        let before = objects.len();
        objects.retain(|object| match close(*object) {
            0 => false,
            status => {
                assert_eq!(status, -libc::EBUSY);
                true
            }
        });
        assert!(objects.len() < before, "{before} objects use each other");
    }
    for side in [pair.left, pair.right] {
        // SAFETY: it came from `fi_getinfo`.
        unsafe { (libfabric.freeinfo)(side.info) };
    }
}

#[test]
fn nothing_is_lost_whatever_the_order_of_closing() {
    let name = "lifetime::nothing_is_lost_whatever_the_order_of_closing";
    if std::process::Command::new("valgrind")
        .arg("--version")
        .output()
        .is_err()
    {
        efa_testing::skip("valgrind is not installed");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let report = directory.path().join("valgrind.xml");
    let file = format!("--xml-file={}", report.display());
    let options = ["--leak-check=full", "--show-leak-kinds=definite"];
    let tool = [
        &["valgrind", "--xml=yes", "--num-callers=60", &file],
        &options[..],
    ]
    .concat();
    with_provider_under(
        &tool,
        name,
        |_| (),
        |libfabric| {
            live(libfabric, FI_PROGRESS_AUTO);
            close_in_order(libfabric, |_| ());
            close_in_order(libfabric, |objects| objects.reverse());
            // Every second one, then the others.
            close_in_order(libfabric, |objects| {
                let (mut index, mut late) = (0, Vec::new());
                objects.retain(|object| {
                    index += 1;
                    if index % 2 == 0 {
                        late.push(*object);
                    }
                    index % 2 == 1
                });
                objects.extend(late);
            });
        },
    );
    // The process that valgrind ran makes no report, nor does a machine with a real device.
    let Ok(report) = std::fs::read_to_string(&report) else {
        return;
    };
    assert!(report.contains("</valgrindoutput>"), "{report}");
    // Others' libraries, and the test's own harness, are not judged.
    let found: Vec<&str> = report
        .split("<error>")
        .skip(1)
        .filter(|error| error.contains("libefa_rs"))
        .collect();
    assert!(found.is_empty(), "{}", found.concat());
}

#[test]
fn a_child_process_leaves_its_parent_alone() {
    with_pair(&Options::USUAL, |pair| {
        let mut buffer = vec![0_u8; 100_000];
        let no = null_mut();
        let to = buffer.as_mut_ptr();
        for round in 0..3_u8 {
            let data = vec![round + 1; 100_000];
            let post =
                || call!(pair.right.endpoint => msg.recv(to.cast(), 100_000, no, pair.to_left, no));
            pair.start(post);
            // SAFETY: the child only writes to its copy of memory, and exits.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: as above.
                unsafe {
                    to.write_bytes(99, 100_000);
                    libc::_exit(7);
                }
            }
            assert!(child > 0);
            pair.start(|| {
                let from = data.as_ptr().cast();
                call!(pair.left.endpoint => msg.send(from, 100_000, no, pair.to_right, no))
            });
            pair.left_completion();
            pair.right_completion();
            assert!(buffer == data);
            let mut status = 0;
            // SAFETY: the status is valid for a write.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(libc::WEXITSTATUS(status), 7);
        }
    });
}

#[test]
fn a_child_may_close_what_it_has_inherited() {
    with_provider(|libfabric| {
        // With all objects that have descriptors and threads.
        let options = Options {
            wait_obj: FI_WAIT_FD,
            progress: FI_PROGRESS_AUTO,
            ..Options::USUAL
        };
        let pair = Pair::open(libfabric, &options);
        let events = pair.left.event_queue(FI_WAIT_FD);
        let length = 4 << 20;
        let (mut memory, no) = ([0_u8; 64], null_mut());
        let region = pair.left.register(&mut memory);
        // Its registration is kept, so the kernel reports when it is unmapped.
        let exchange = |value: u8| {
            // SAFETY: new memory at an address of the kernel's choice, which is the test's own.
            let data = unsafe {
                let (prot, flags) = (
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                );
                let data = libc::mmap(null_mut(), length, prot, flags, -1, 0);
                assert_ne!(data, libc::MAP_FAILED);
                data.cast::<u8>().write_bytes(value, length);
                data
            };
            let mut target = vec![0_u8; length];
            let to = target.as_mut_ptr().cast();
            pair.start(|| call!(pair.right.endpoint => msg.recv(to, length, no, pair.to_left, no)));
            pair.start(
                || call!(pair.left.endpoint => msg.send(data, length, no, pair.to_right, no)),
            );
            pair.left_completion();
            pair.right_completion();
            assert!(target.iter().all(|byte| *byte == value));
            data
        };
        let mapped = [exchange(1), exchange(2)];
        // SAFETY: the child closes the inherited objects, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let left = &pair.left;
            let name = [0_u8; 8].as_ptr().cast::<c_void>();
            let refused = [
                call!(left.endpoint => msg.send(name, 8, no, pair.to_right, no)),
                call!(left.queue => ops.read(no, 0)),
                call!(left.queue => ops.sread(no, 0, no, -1)),
                call!(left.vector => ops.remove(&mut 0, 1, 0)) as isize,
            ];
            let closed = [
                close(region),
                close(left.endpoint),
                close(left.vector),
                close(left.queue),
                close(left.domain),
                close(events),
            ];
            // A child may open objects of its own: the info and the fabric are plain memory.
            // SAFETY: the info is valid.
            let copy = unsafe { (libfabric.dupinfo)(left.info) };
            let is_right = refused == [EINVAL; 4] && closed == [0; 6] && !copy.is_null();
            // SAFETY: ends the child.
            unsafe { libc::_exit(if is_right { 7 } else { 8 }) };
        }
        let mut status = 0;
        // SAFETY: the status is valid for a write.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 7, "{status:#x}");
        for data in mapped {
            // SAFETY: the memory is not used any more.
            assert_eq!(unsafe { libc::munmap(data, length) }, 0);
        }
        for value in [3, 4] {
            // SAFETY: as above.
            assert_eq!(unsafe { libc::munmap(exchange(value), length) }, 0);
        }
        assert_eq!((close(region), close(events)), (0, 0));
        pair.close(libfabric);
    });
}

#[test]
fn others_use_the_domain_while_an_endpoint_closes() {
    with_provider(|libfabric| {
        let pair = Pair::open(libfabric, &Options::USUAL);
        let (left, no) = (&pair.left, null_mut());
        // More than the peer has buffers for, who makes no progress: they stay in flight.
        let data = [7_u8; 64];
        let mut again = 0;
        while again < 500 {
            let from = data.as_ptr().cast();
            match call!(left.endpoint => msg.inject(from, 64, pair.to_right)) {
                0 => again = 0,
                _ => {
                    again += 1;
                    thread::sleep(Duration::from_micros(100));
                }
            }
            call!(left.queue => ops.read(no, 0));
        }
        let shared = Threads(left);
        thread::scope(|scope| {
            let closing = scope.spawn(move || close(shared.get().endpoint));
            // It takes a second, and by then it has begun.
            thread::sleep(Duration::from_millis(100));
            let (is_late, mut calls) = (closing.is_finished(), 0);
            while !closing.is_finished() {
                call!(left.queue => ops.read(no, 0));
                calls += 1;
                // This thread must not be the one that the other waits for.
                thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(closing.join().expect("no panic"), 0);
            // Some may have waited for the end.
            assert!(is_late || calls > 5, "{calls} calls during the close");
        });
        pair.left.close_rest(libfabric);
        pair.right.close(libfabric);
    });
}
