//! Threads: endpoints and a completion queue that several of them use at the same time.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::common::c::*;
use crate::common::{
    AGAIN, Libfabric, Options, Side, Threads, bind, close, control, with_provider,
};
use efa_testing::patience::Wait;

/// Messages of each thread.
const MESSAGES: u64 = 400;
const THREADS: u64 = 4;

/// A domain with two endpoints on one completion queue.
struct SharedQueueDomain {
    side: Side,
    second: *mut fid_ep,
    /// The addresses of both.
    addresses: [fi_addr_t; 2],
}

impl SharedQueueDomain {
    fn open(libfabric: &Libfabric, options: &Options) -> SharedQueueDomain {
        let side = Side::open(libfabric, options);
        let second = side.bare();
        assert_eq!(bind(second, side.vector, 0), 0);
        assert_eq!(bind(second, side.queue, FI_TRANSMIT | FI_RECV), 0);
        side.enable();
        assert_eq!(control(second, FI_ENABLE, &mut 0), 0);
        let first = side.name();
        let names = [first, crate::common::name_of(second)];
        let addresses = names.map(|name| side.insert(&name));
        SharedQueueDomain {
            side,
            second,
            addresses,
        }
    }

    fn endpoint(&self, number: u64) -> *mut fid_ep {
        [self.side.endpoint, self.second][(number % 2) as usize]
    }

    /// Starts an operation as soon as there is room for it.
    fn start(&self, mut call: impl FnMut() -> isize, done: &AtomicU64) {
        let wait = Wait::start();
        loop {
            match call() {
                0 => return,
                status => assert_eq!(status, AGAIN),
            }
            self.read(done);
            wait.check(|| "an operation starts".to_owned());
        }
    }

    /// Reads up to two completions and counts them.
    fn read(&self, done: &AtomicU64) {
        let mut entries = [fi_cq_tagged_entry::default(); 2];
        match call!(self.side.queue => ops.read(entries.as_mut_ptr().cast(), 2)) {
            AGAIN => thread::yield_now(),
            count => {
                assert!(count > 0, "{count}: {:?}", self.side.read_error());
                done.fetch_add(count as u64, Ordering::Relaxed);
            }
        }
    }

    /// Sends messages from one endpoint to the other and receives as many, with tags of this
    /// thread.
    fn exchange(&self, thread: u64, done: &AtomicU64) {
        let mut buffers = vec![0_u64; MESSAGES as usize];
        let data: Vec<u64> = (0..MESSAGES).map(|number| thread << 32 | number).collect();
        let no = null_mut();
        for (number, (value, buffer)) in data.iter().zip(&mut buffers).enumerate() {
            let from = number as u64 + thread;
            let to = self.addresses[((from + 1) % 2) as usize];
            let (value, buffer) = ((&raw const *value), (&raw mut *buffer));
            // SAFETY: one of the test's own numbers.
            let tag = unsafe { *value };
            let receive = || {
                let target = self.endpoint(from + 1);
                call!(target => tagged.recv(buffer.cast(), 8, no, u64::MAX, tag, 0, no))
            };
            self.start(receive, done);
            let send = || {
                let source = self.endpoint(from);
                call!(source => tagged.send(value.cast(), 8, no, to, tag, no))
            };
            self.start(send, done);
        }
        let wait = Wait::start();
        while done.load(Ordering::Relaxed) < 2 * THREADS * MESSAGES {
            self.read(done);
            wait.check(|| format!("{done:?} completions"));
        }
        assert_eq!(buffers, data);
    }

    fn close(self, libfabric: &Libfabric) {
        assert_eq!(close(self.second), 0);
        self.side.close(libfabric);
    }
}

/// Threads exchange messages over two endpoints and one completion queue of a domain.
fn exchange_in_threads(libfabric: &Libfabric, options: &Options) {
    let several = SharedQueueDomain::open(libfabric, options);
    let (shared, done) = (Threads(&several), AtomicU64::new(0));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let done = &done;
            scope.spawn(move || shared.get().exchange(thread, done));
        }
    });
    assert_eq!(done.into_inner(), 2 * THREADS * MESSAGES);
    several.close(libfabric);
}

#[test]
fn threads_share_endpoints_and_a_queue() {
    let options = Options::USUAL.with(|options| options.threading = FI_THREAD_SAFE);
    with_provider(|libfabric| exchange_in_threads(libfabric, &options));
}

#[test]
fn threads_share_what_makes_progress_by_itself() {
    // Even where the application uses one thread at a time, the domain has another one.
    let options = Options {
        threading: FI_THREAD_SAFE,
        progress: FI_PROGRESS_AUTO,
        wait_obj: FI_WAIT_FD,
        ..Options::USUAL
    };
    with_provider(|libfabric| exchange_in_threads(libfabric, &options));
}

#[test]
fn single_threaded_applications_take_no_lock() {
    with_provider(|libfabric| {
        let options = Options::USUAL.with(|options| options.threading = FI_THREAD_DOMAIN);
        let several = SharedQueueDomain::open(libfabric, &options);
        // SAFETY: an info that was given has all attributes.
        let offered = unsafe { (*(*several.side.info).domain_attr).threading };
        assert_eq!(offered, FI_THREAD_DOMAIN);
        // The threads take turns.
        for thread in 0..THREADS {
            let shared = Threads(&several);
            thread::scope(|scope| {
                // The messages of the other threads have completed.
                let done = AtomicU64::new(2 * (THREADS - 1) * MESSAGES);
                scope.spawn(move || shared.get().exchange(thread, &done));
            });
        }
        several.close(libfabric);
    });
}
