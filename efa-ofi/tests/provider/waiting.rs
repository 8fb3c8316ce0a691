//! Sleeping through the C interface: in calls, and on descriptors. A wake-up that is lost leaves a
//! test asleep without end.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::thread;
use std::time::Duration;

use crate::common::c::*;
use crate::common::{
    Options, Pair, Side, Threads, bind, close, control, opened, with_pair, with_provider, with_side,
};

const AGAIN: c_int = -libc::EAGAIN;

fn sleeping() -> Options {
    Options::USUAL.with(|options| options.wait_obj = FI_WAIT_FD)
}

/// The descriptor of a wait object.
fn descriptor<T>(object: *mut T) -> c_int {
    let mut descriptor: c_int = -1;
    assert_eq!(control(object, FI_GETWAIT, &mut descriptor), 0);
    descriptor
}

fn wait_obj<T>(object: *mut T) -> fi_wait_obj {
    let mut kind = fi_wait_obj::MAX;
    assert_eq!(control(object, FI_GETWAITOBJ, &mut kind), 0);
    kind
}

fn try_wait<T>(side: &Side, object: *mut T) -> c_int {
    let mut fid: *mut fid = object.cast();
    call!(side.fabric => ops.trywait(&mut fid, 1))
}

/// Returns whether a descriptor is readable within `milliseconds`, or ever if they are negative.
fn is_readable(descriptor: c_int, milliseconds: c_int) -> bool {
    let mut waiting = libc::pollfd {
        fd: descriptor,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one structure, which is valid for writes.
    unsafe { libc::poll(&mut waiting, 1, milliseconds) == 1 }
}

/// Sleeps on the descriptor of the queue until there is a completion, as `fi_poll(3)` describes it.
fn sleep_and_read(side: &Side) -> fi_cq_tagged_entry {
    loop {
        match side.read() {
            Ok((entry, _)) => return entry,
            Err(error) => assert_eq!(error as c_int, AGAIN),
        }
        if try_wait(side, side.queue) == 0 {
            assert!(is_readable(descriptor(side.queue), -1));
        }
    }
}

/// `fi_cq_sread` of one entry.
fn read_or_sleep(side: &Side, milliseconds: c_int) -> Result<fi_cq_tagged_entry, isize> {
    let mut entry = fi_cq_tagged_entry::default();
    let to = (&raw mut entry).cast();
    match call!(side.queue => ops.sread(to, 1, null(), milliseconds)) {
        1 => Ok(entry),
        error => Err(error),
    }
}

fn post(side: &Side, from: fi_addr_t, buffer: &mut [u8], tag: u64) {
    let (memory, length, no) = (buffer.as_mut_ptr().cast(), buffer.len(), null_mut());
    let status = call!(side.endpoint => tagged.recv(memory, length, no, from, tag, 0, no));
    assert_eq!(status, 0);
}

/// Sends a message that has no completion.
fn inject(side: &Side, to: fi_addr_t, data: &[u8], tag: u64) {
    let data = (data.as_ptr().cast(), data.len());
    while call!(side.endpoint => tagged.inject(data.0, data.1, to, tag)) == AGAIN as isize {
        call!(side.queue => ops.read(null_mut(), 0));
    }
}

/// Processor time of this thread in milliseconds.
fn own_time() -> i64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one `timespec`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}

/// The time that a call sleeps without a wake-up, in milliseconds.
const LONG: c_int = 600;

/// Makes a call that sleeps for [`LONG`]. It hardly uses the processor, also on a machine that
/// gives each thread a small part of its time.
#[track_caller]
fn asleep<T>(call: impl FnOnce() -> T) -> T {
    let begin = own_time();
    let result = call();
    let spent = own_time() - begin;
    assert!(spent < 30, "{spent} ms of processor time");
    result
}

#[test]
fn descriptors_are_readable_while_something_is_queued() {
    with_pair(&sleeping(), |pair| {
        let (left, right) = (&pair.left, &pair.right);
        let mut buffer = [0; 4];
        // The first message brings the introductions of both sides.
        post(right, pair.to_left, &mut buffer, 1);
        inject(left, pair.to_right, b"1234", 1);
        sleep_and_read(right);
        assert_eq!(&buffer, b"1234");
        for side in [left, right] {
            pair.until("both sides are quiet", |_| {
                let sleeps = try_wait(side, side.queue) == 0;
                (sleeps && !is_readable(descriptor(side.queue), 20)).then_some(())
            });
        }
        assert_eq!(wait_obj(right.queue), FI_WAIT_FD);
        post(right, pair.to_left, &mut buffer, 2);
        inject(left, pair.to_right, b"5678", 2);
        assert!(is_readable(descriptor(right.queue), -1));
        let (entry, _) = pair.right_completion();
        assert_eq!((entry.tag, &buffer), (2, b"5678"));
        // Until all entries are read, `fi_trywait` refuses to sleep.
        post(right, pair.to_left, &mut buffer, 3);
        inject(left, pair.to_right, b"9abc", 3);
        while try_wait(right, right.queue) == 0 {
            is_readable(descriptor(right.queue), -1);
        }
        assert_eq!(try_wait(right, right.queue), AGAIN);
        assert_eq!(pair.right_completion().0.tag, 3);
    });
}

/// Sends `messages` messages back and forth between two threads, which sleep by `sleep` whenever
/// they wait.
fn back_and_forth(pair: &Pair, messages: u64, sleep: fn(&Side) -> fi_cq_tagged_entry) {
    let shared = Threads(pair);
    thread::scope(|scope| {
        scope.spawn(move || {
            let pair = shared.get();
            for tag in 0..messages {
                let mut buffer = [0; 8];
                post(&pair.right, pair.to_left, &mut buffer, tag);
                assert_eq!(sleep(&pair.right).tag, tag);
                inject(&pair.right, pair.to_left, &buffer, tag);
            }
        });
        for tag in 0..messages {
            let mut buffer = [0; 8];
            post(&pair.left, pair.to_right, &mut buffer, tag);
            inject(&pair.left, pair.to_right, &tag.to_ne_bytes(), tag);
            assert_eq!(sleep(&pair.left).tag, tag);
            assert_eq!(u64::from_ne_bytes(buffer), tag);
        }
    });
}

#[test]
fn no_wake_up_is_lost() {
    with_pair(&sleeping(), |pair| {
        back_and_forth(pair, 300, |side| {
            read_or_sleep(side, -1).expect("sleeps until there is a completion")
        });
        back_and_forth(pair, 300, sleep_and_read);
    });
}

#[test]
fn a_waiting_thread_sleeps() {
    with_pair(&sleeping(), |pair| {
        let status = asleep(|| read_or_sleep(&pair.left, LONG).err());
        assert_eq!(status, Some(AGAIN as isize));
    });
}

#[test]
fn a_signal_wakes_who_sleeps_on_a_queue() {
    with_pair(&sleeping(), |pair| {
        let shared = Threads(&pair.left);
        thread::scope(|scope| {
            let sleeper = scope.spawn(move || read_or_sleep(shared.get(), -1).err());
            // Before it sleeps or afterwards: both wake it.
            assert_eq!(call!(pair.left.queue => ops.signal()), 0);
            let woken = sleeper.join().expect("no panic");
            assert_eq!(woken, Some(AGAIN as isize));
        });
        // A sleeper on the descriptor is woken, too, once.
        assert_eq!(call!(pair.left.queue => ops.signal()), 0);
        assert!(is_readable(descriptor(pair.left.queue), -1));
        assert_eq!(try_wait(&pair.left, pair.left.queue), AGAIN);
        assert_eq!(try_wait(&pair.left, pair.left.queue), 0);
    });
}

#[test]
fn completions_within_a_call_wake_another_thread() {
    with_pair(&sleeping(), |pair| {
        for tag in 0..20 {
            // An unexpected message: the receive completes when it is posted.
            inject(&pair.left, pair.to_right, b"1234", tag);
            pair.until("the message waits", |pair| {
                let mut entry = fi_cq_tagged_entry::default();
                let peek = fi_msg_tagged {
                    addr: pair.to_left,
                    tag,
                    ..fi_msg_tagged::default()
                };
                let looked = call!(pair.right.endpoint => tagged.recvmsg(&peek, FI_PEEK));
                assert_eq!(looked, 0);
                let to = (&raw mut entry).cast();
                let found = call!(pair.right.queue => ops.read(to, 1)) == 1;
                if !found {
                    pair.right.read_error();
                }
                found.then_some(())
            });
            let shared = Threads(&pair.right);
            thread::scope(|scope| {
                let sleeper =
                    scope.spawn(move || read_or_sleep(shared.get(), -1).map(|entry| entry.tag));
                if tag % 2 == 0 {
                    // Most likely it sleeps by then; the result is the same if not.
                    thread::sleep(Duration::from_millis(2));
                }
                let mut buffer = [0; 4];
                post(&pair.right, pair.to_left, &mut buffer, tag);
                let woken = sleeper.join().expect("no panic").expect("a completion");
                assert_eq!((woken, &buffer), (tag, b"1234"));
            });
        }
    });
}

#[test]
fn calls_wait_for_the_requested_completions() {
    let options = sleeping().with(|options| options.wait_cond = FI_CQ_COND_THRESHOLD);
    with_pair(&options, |pair| {
        let mut buffers = [[0; 4]; 5];
        for (tag, buffer) in buffers.iter_mut().enumerate() {
            post(&pair.right, pair.to_left, buffer, tag as u64);
        }
        let threshold = 3_usize;
        let queue = Threads(&pair.right.queue);
        let sread = move |timeout| {
            let mut entries = [fi_cq_tagged_entry::default(); 8];
            let (to, condition) = (entries.as_mut_ptr().cast(), (&raw const threshold).cast());
            call!(*queue.get() => ops.sread(to, 8, condition, timeout))
        };
        let send = |tags: std::ops::Range<u64>| {
            tags.for_each(|tag| inject(&pair.left, pair.to_right, b"1234", tag));
        };
        thread::scope(|scope| {
            let sleeper = scope.spawn(move || sread(-1));
            send(0..2);
            // Most likely it has seen those by then; the result is the same if not.
            thread::sleep(Duration::from_millis(30));
            send(2..3);
            assert_eq!(sleeper.join().expect("no panic"), 3);
        });
        send(3..5);
        let mut fewer = 0;
        while fewer < 2 {
            // Not three: the available entries are returned after the time-out.
            match sread(200) {
                count @ 1.. => fewer += count,
                error => assert_eq!(error as c_int, AGAIN),
            }
        }
        assert_eq!(fewer, 2);
    });
}

#[test]
fn queues_that_were_opened_without_waiting_refuse_it() {
    with_side(&Options::USUAL, |side| {
        side.enable();
        assert_eq!(read_or_sleep(side, 0).err(), Some(-libc::ENOSYS as isize));
        assert_eq!(call!(side.queue => ops.signal()), -libc::EINVAL);
        assert_eq!(try_wait(side, side.queue), -libc::EINVAL);
        assert_eq!(try_wait(side, side.endpoint), -libc::EINVAL);
        assert_eq!(wait_obj(side.queue), FI_WAIT_NONE);
        let mut place: c_int = -1;
        assert_eq!(control(side.queue, FI_GETWAIT, &mut place), -libc::ENODATA);
        assert_eq!(control(side.queue, FI_ALIAS, &mut place), -libc::ENOSYS);
        // Kinds of wait objects that there are not.
        for (wait_obj, wait_cond, refused) in [
            (FI_WAIT_MUTEX_COND, FI_CQ_COND_NONE, -libc::ENOSYS),
            (99, FI_CQ_COND_NONE, -libc::ENOSYS),
            (FI_WAIT_FD, 99, -libc::EINVAL),
        ] {
            let mut attributes = fi_cq_attr {
                wait_obj,
                wait_cond,
                ..fi_cq_attr::default()
            };
            let mut queue = null_mut();
            let status = call!(side.domain => ops.cq_open(&mut attributes, &mut queue, null_mut()));
            assert_eq!((status, queue), (refused, null_mut()));
        }
    });
}

#[test]
fn counters_wake_who_sleeps_until_they_change() {
    with_provider(|libfabric| {
        // The queues cannot sleep, the counter can.
        let options = Options::USUAL.with(|options| options.queue_flags = FI_SELECTIVE_COMPLETION);
        let (left, right) = Side::open_two(libfabric, &options);
        let counter = right.counter(FI_WAIT_FD);
        assert_eq!(bind(right.endpoint, counter, FI_RECV), 0);
        let pair = Pair::of(left, right);
        let sides = (&pair.right, counter);
        let shared = Threads(&sides);
        for message in 1..=200 {
            let mut buffer = [0; 4];
            post(&pair.right, pair.to_left, &mut buffer, message);
            thread::scope(|scope| {
                let sleeper = scope.spawn(move || {
                    let (side, counter) = *shared.get();
                    if message % 2 == 0 {
                        return call!(counter => ops.wait(message, -1));
                    }
                    // In the way that `fi_poll(3)` describes.
                    while call!(counter => ops.read()) < message {
                        if try_wait(side, counter) == 0 {
                            // Counts before `fi_trywait` do not wake.
                            if call!(counter => ops.read()) >= message {
                                break;
                            }
                            is_readable(descriptor(counter), -1);
                        }
                    }
                    0
                });
                inject(&pair.left, pair.to_right, b"1234", message);
                assert_eq!(sleeper.join().expect("no panic"), 0);
            });
            assert_eq!(&buffer, b"1234");
        }
        // An application's own change wakes as well.
        for value in 201..=220 {
            thread::scope(|scope| {
                let sleeper = scope.spawn(move || call!(shared.get().1 => ops.wait(value, -1)));
                if value % 2 == 0 {
                    // Most likely it sleeps by then; the result is the same if not.
                    thread::sleep(Duration::from_millis(2));
                }
                assert_eq!(call!(counter => ops.add(1)), 0);
                assert_eq!(sleeper.join().expect("no panic"), 0);
            });
        }
        let status = asleep(|| call!(counter => ops.wait(1001, LONG)));
        assert_eq!(status, -libc::ETIMEDOUT);
        assert_eq!(wait_obj(counter), FI_WAIT_FD);
        assert_eq!(close(pair.right.endpoint), 0);
        assert_eq!(close(counter), 0);
        pair.right.close_rest(libfabric);
        pair.left.close(libfabric);
    });
}

#[test]
fn event_queues_wake_and_have_a_size() {
    with_side(&Options::USUAL, |side| {
        let open = |wait_obj| {
            let mut attributes = fi_eq_attr {
                size: 3,
                wait_obj,
                ..fi_eq_attr::default()
            };
            opened(|queue| call!(side.fabric => ops.eq_open(&mut attributes, queue, null_mut())))
        };
        let queue = open(FI_WAIT_FD);
        let write = |number: u32| call!(queue => ops.write(number, b"abcd".as_ptr().cast(), 4, 0));
        let sread = |queue: *mut fid_eq, timeout| {
            let (mut event, mut buffer) = (0, [0_u8; 8]);
            let to: *mut c_void = buffer.as_mut_ptr().cast();
            let count = call!(queue => ops.sread(&mut event, to, 8, timeout, 0));
            (count, event, buffer)
        };
        assert_eq!(try_wait(side, queue), 0);
        assert!(!is_readable(descriptor(queue), 0));
        let shared = Threads(&queue);
        thread::scope(|scope| {
            let sleeper = scope.spawn(move || sread(*shared.get(), -1));
            assert_eq!(write(7), 4);
            let woken = sleeper.join().expect("no panic");
            assert_eq!(woken, (4, 7, *b"abcd\0\0\0\0"));
        });
        assert!(!is_readable(descriptor(queue), 0));
        assert_eq!([write(1), write(2), write(3)], [4; 3]);
        assert_eq!(write(4), AGAIN as isize, "it holds three");
        assert!(is_readable(descriptor(queue), 0));
        assert_eq!(try_wait(side, queue), AGAIN);
        for number in 1..=3 {
            assert_eq!(sread(queue, 0).1, number);
        }
        assert!(!is_readable(descriptor(queue), 0));
        assert_eq!(asleep(|| sread(queue, LONG).0), AGAIN as isize);
        let silent = open(FI_WAIT_NONE);
        assert_eq!(sread(silent, 0).0, -libc::ENOSYS as isize);
        assert_eq!(
            (wait_obj(silent), wait_obj(queue)),
            (FI_WAIT_NONE, FI_WAIT_FD)
        );
        assert_eq!((close(silent), close(queue)), (0, 0));
    });
}
