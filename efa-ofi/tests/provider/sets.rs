//! Poll sets and wait sets, through the C interface.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use crate::common::c::*;
use crate::common::{
    Libfabric, Options, Pair, Side, Threads, bind, close, control, opened, with_pair,
    with_provider, with_side,
};

const EINVAL: c_int = -libc::EINVAL;
const NOBODY: [*mut c_void; 0] = [];
const TIMED_OUT: c_int = -libc::ETIMEDOUT;

fn open_poll_set(side: &Side) -> *mut fid_poll {
    opened(|set| call!(side.domain => ops.poll_open(&mut fi_poll_attr::default(), set)))
}

fn open_wait_set(side: &Side) -> *mut fid_wait {
    let mut attributes = fi_wait_attr {
        wait_obj: FI_WAIT_FD,
        flags: 0,
    };
    opened(|set| call!(side.fabric => ops.wait_open(&mut attributes, set)))
}

fn open_counter(side: &Side, set: *mut fid_wait, context: *mut c_void) -> *mut fid_cntr {
    let mut attributes = fi_cntr_attr {
        wait_obj: if set.is_null() {
            FI_WAIT_NONE
        } else {
            FI_WAIT_SET
        },
        wait_set: set,
        ..fi_cntr_attr::default()
    };
    opened(|counter| call!(side.domain => ops.cntr_open(&mut attributes, counter, context)))
}

fn open_queue(side: &Side, set: *mut fid_wait, context: *mut c_void) -> *mut fid_cq {
    let mut attributes = fi_cq_attr {
        format: FI_CQ_FORMAT_TAGGED,
        wait_obj: if set.is_null() {
            FI_WAIT_NONE
        } else {
            FI_WAIT_SET
        },
        wait_set: set,
        ..fi_cq_attr::default()
    };
    opened(|queue| call!(side.domain => ops.cq_open(&mut attributes, queue, context)))
}

/// Another endpoint of a side, whose operations end in this queue, and count.
fn open_endpoint(side: &Side, queue: *mut fid_cq, counter: *mut fid_cntr) -> *mut fid_ep {
    let endpoint = side.bare();
    assert_eq!(bind(endpoint, side.vector, 0), 0);
    assert_eq!(bind(endpoint, queue, FI_TRANSMIT | FI_RECV), 0);
    assert_eq!(bind(endpoint, counter, FI_RECV), 0);
    assert_eq!(control(endpoint, FI_ENABLE, &mut 0), 0);
    endpoint
}

/// An endpoint on the right side of a pair, with a queue and a counter in a set of each kind.
struct Watched {
    pair: Pair,
    endpoint: *mut fid_ep,
    to_it: fi_addr_t,
    queue: *mut fid_cq,
    counter: *mut fid_cntr,
    buffer: [u8; 8],
}

/// Contexts, which are not followed.
const QUEUE: *mut c_void = std::ptr::without_provenance_mut(16);
const COUNTER: *mut c_void = std::ptr::without_provenance_mut(32);

impl Watched {
    fn open(
        libfabric: &Libfabric,
        options: &Options,
        set: impl FnOnce(&Side) -> *mut fid_wait,
    ) -> Self {
        let pair = Pair::open(libfabric, options);
        let set = set(&pair.right);
        let queue = open_queue(&pair.right, set, QUEUE);
        let counter = open_counter(&pair.right, set, COUNTER);
        let endpoint = open_endpoint(&pair.right, queue, counter);
        let to_it = pair.left.insert(&crate::common::name_of(endpoint));
        Watched {
            pair,
            endpoint,
            to_it,
            queue,
            counter,
            buffer: [0; 8],
        }
    }

    fn receive(&mut self) {
        let (into, no, from) = (self.buffer.as_mut_ptr().cast(), null_mut(), FI_ADDR_UNSPEC);
        let endpoint = self.endpoint;
        self.pair
            .start(|| call!(endpoint => tagged.recv(into, 8, no, from, 1, 0, no)));
    }

    fn send(&self) {
        let (left, no, to) = (self.pair.left.endpoint, null_mut(), self.to_it);
        let from = b"12345678".as_ptr().cast();
        self.pair
            .start(|| call!(left => tagged.send(from, 8, no, to, 1, no)));
        self.pair.left_completion();
    }

    /// Takes the completion of the message.
    fn read(&self) {
        let mut entry = fi_cq_tagged_entry::default();
        let queue = self.queue;
        let count = call!(queue => ops.read((&raw mut entry).cast(), 1));
        assert_eq!((count, entry.tag), (1, 1));
    }

    fn close(self, libfabric: &Libfabric) {
        assert_eq!(close(self.endpoint), 0);
        assert_eq!((close(self.queue), close(self.counter)), (0, 0));
        self.pair.close(libfabric);
    }
}

#[test]
fn poll_sets_name_who_has_news() {
    with_provider(|libfabric| {
        let mut watched = Watched::open(libfabric, &Options::USUAL, |_| null_mut());
        let set = open_poll_set(&watched.pair.right);
        let queue = watched.queue.cast::<fid>();
        let counter = watched.counter.cast::<fid>();
        for object in [queue, counter] {
            assert_eq!(call!(set => ops.poll_add(object, 0)), 0);
        }
        let poll = |room: usize| {
            let mut contexts = [null_mut(); 4];
            let count = call!(set => ops.poll(contexts.as_mut_ptr(), room as c_int));
            let count = usize::try_from(count).expect("a count");
            contexts[..count].to_vec()
        };
        assert_eq!(poll(4), NOBODY);
        watched.receive();
        watched.send();
        let both = watched
            .pair
            .until("news", |_| Some(poll(4)).filter(|news| !news.is_empty()));
        assert_eq!(both, [QUEUE, COUNTER]);
        // The queue is reported until it is empty; the counter was reported once.
        assert_eq!(poll(4), [QUEUE]);
        assert_eq!(poll(0), NOBODY);
        watched.read();
        assert_eq!(poll(4), NOBODY);
        let number = watched.counter;
        assert_eq!(call!(number => ops.add(1)), 0);
        assert_eq!(poll(4), NOBODY, "the application knows it");
        // A removed object is not reported any more, and can be closed.
        assert_eq!(close(queue), -libc::EBUSY);
        for _ in 0..2 {
            assert_eq!(call!(set => ops.poll_del(queue, 0)), 0);
        }
        watched.receive();
        watched.send();
        watched
            .pair
            .until("news", |_| (poll(4) == [COUNTER]).then_some(()));
        watched.read();
        assert_eq!(close(set), 0);
        watched.close(libfabric);
    });
}

#[test]
fn poll_sets_refuse_what_they_cannot_poll() {
    with_pair(&Options::USUAL, |pair| {
        let set = open_poll_set(&pair.right);
        let all = [
            (null_mut(), 0, EINVAL),
            (pair.right.vector.cast(), 0, EINVAL),
            (pair.right.endpoint.cast(), 0, EINVAL),
            (pair.left.queue.cast(), 0, EINVAL),
            (pair.right.queue.cast(), 1, EINVAL),
            (pair.right.queue.cast(), 0, 0),
            (pair.right.queue.cast(), 0, 0),
        ];
        for (object, flags, expected) in all {
            assert_eq!(call!(set => ops.poll_add(object, flags)), expected);
        }
        let queue = pair.right.queue.cast();
        assert_eq!(call!(set => ops.poll_del(queue, 1)), EINVAL);
        assert_eq!(call!(set => ops.poll(null_mut(), 1)), EINVAL);
        assert_eq!(call!(set => ops.poll(null_mut(), -1)), EINVAL);
        let (mut attributes, mut other) = (fi_poll_attr { flags: 1 }, null_mut());
        let status = call!(pair.right.domain => ops.poll_open(&mut attributes, &mut other));
        assert_eq!((status, other), (EINVAL, null_mut()));
        assert_eq!(close(set), 0);
    });
}

#[test]
fn wait_sets_tell_of_every_member() {
    with_provider(|libfabric| {
        let mut set = null_mut();
        let mut watched = Watched::open(libfabric, &Options::USUAL, |side| {
            set = open_wait_set(side);
            set
        });
        let fabric = watched.pair.right.fabric;
        let mut attributes = fi_eq_attr {
            wait_obj: FI_WAIT_SET,
            wait_set: set,
            flags: FI_WRITE,
            ..fi_eq_attr::default()
        };
        let events =
            opened(|queue| call!(fabric => ops.eq_open(&mut attributes, queue, null_mut())));
        let wait = |timeout: c_int| call!(set => ops.wait(timeout));
        assert_eq!(wait(0), TIMED_OUT);
        assert_eq!(close(set), -libc::EBUSY, "its members use it");
        // The queue.
        watched.receive();
        watched.send();
        assert_eq!(wait(-1), 0);
        let mut all = [set.cast::<fid>()];
        assert_eq!(
            call!(fabric => ops.trywait(all.as_mut_ptr(), 1)),
            -libc::EAGAIN
        );
        watched.read();
        // The counter: each count is reported once.
        assert_eq!((wait(0), wait(0)), (0, TIMED_OUT));
        // The event queue.
        let byte = [7_u8];
        assert_eq!(call!(events => ops.write(3, byte.as_ptr().cast(), 1, 0)), 1);
        assert_eq!(wait(-1), 0);
        let (mut event, mut buffer) = (0, [0_u8]);
        let read = call!(events => ops.read(&mut event, buffer.as_mut_ptr().cast(), 1, 0));
        assert_eq!((read, event, buffer), (1, 3, [7]));
        assert_eq!(wait(1), TIMED_OUT);
        // Each has the set's descriptor.
        let fd = |mut number: c_int| {
            assert_eq!(control(set, FI_GETWAIT, &mut number), 0);
            number
        };
        let (mut of_queue, mut kind) = (-1, 0);
        assert_eq!(control(watched.queue, FI_GETWAIT, &mut of_queue), 0);
        assert_eq!(control(watched.queue, FI_GETWAITOBJ, &mut kind), 0);
        assert_eq!((of_queue, kind), (fd(-1), FI_WAIT_SET));
        assert_eq!(call!(fabric => ops.trywait(all.as_mut_ptr(), 1)), 0);
        let mut watch = libc::pollfd {
            fd: fd(-1),
            events: libc::POLLIN,
            revents: 0,
        };
        watched.receive();
        watched.send();
        // SAFETY: one descriptor.
        assert_eq!(unsafe { libc::poll(&mut watch, 1, -1) }, 1);
        assert_eq!(wait(0), 0);
        watched.read();
        assert_eq!(close(events), 0);
        let endpoint = watched.endpoint;
        assert_eq!(close(endpoint), 0);
        assert_eq!((close(watched.queue), close(watched.counter)), (0, 0));
        assert_eq!(wait(0), TIMED_OUT, "nobody is in it");
        assert_eq!(close(set), 0);
        watched.pair.close(libfabric);
    });
}

#[test]
fn a_sleeper_on_a_wait_set_wakes() {
    with_provider(|libfabric| {
        let mut set = null_mut();
        let mut watched = Watched::open(libfabric, &Options::USUAL, |side| {
            set = open_wait_set(side);
            set
        });
        watched.receive();
        let shared = (set, &watched);
        let threads = Threads(&shared);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(move || {
                let set = threads.get().0;
                call!(set => ops.wait(-1))
            });
            // Whether it sleeps already is chance; it wakes in both cases.
            std::thread::sleep(std::time::Duration::from_millis(50));
            let (left, no, to) = (watched.pair.left.endpoint, null_mut(), watched.to_it);
            let from = b"12345678".as_ptr().cast();
            let sent = call!(left => tagged.send(from, 8, no, to, 1, no));
            assert_eq!(sent, 0);
            assert_eq!(sleeper.join().expect("no panic"), 0);
        });
        watched.read();
        let pair = &watched.pair;
        pair.left_completion();
        assert_eq!(close(watched.endpoint), 0);
        assert_eq!((close(watched.queue), close(watched.counter)), (0, 0));
        assert_eq!(close(set), 0);
        watched.pair.close(libfabric);
    });
}

#[test]
fn wait_sets_refuse_what_there_is_not() {
    with_side(&Options::USUAL, |side| {
        for (wait_obj, flags, expected) in [
            (FI_WAIT_MUTEX_COND, 0, -libc::ENOSYS),
            (FI_WAIT_SET, 0, -libc::ENOSYS),
            (FI_WAIT_FD, 1, EINVAL),
        ] {
            let (mut attributes, mut set) = (fi_wait_attr { wait_obj, flags }, null_mut());
            let status = call!(side.fabric => ops.wait_open(&mut attributes, &mut set));
            assert_eq!((status, set), (expected, null_mut()));
        }
        let mut set = null_mut();
        assert_eq!(
            call!(side.fabric => ops.wait_open(null_mut(), &mut set)),
            EINVAL
        );
        // A null set, and an object of another type.
        for set in [null_mut(), side.queue.cast()] {
            let mut attributes = fi_cq_attr {
                wait_obj: FI_WAIT_SET,
                wait_set: set,
                ..fi_cq_attr::default()
            };
            let mut queue = null_mut();
            let status = call!(side.domain => ops.cq_open(&mut attributes, &mut queue, null_mut()));
            assert_eq!((status, queue), (EINVAL, null_mut()));
        }
    });
}
