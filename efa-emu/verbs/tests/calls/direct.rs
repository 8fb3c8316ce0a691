//! Clients that write the queues and ring the doorbells by themselves: libfabric's data path direct,
//! and programs whose requests a GPU makes. The formats are written out here, bit by bit, as such
//! clients have them.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use efa_testing::patience::Wait;
use libc::EINVAL;

use crate::abi::*;
use crate::on_emulated_host;
use crate::verbs::*;

/// A queue's memory and doorbell, and the client's counter of entries.
struct Ring {
    words: *mut u64,
    entry_words: usize,
    entries: u32,
    doorbell: *mut u32,
    counter: u32,
}

impl Ring {
    fn of(attributes: &efadv_wq_attr) -> Ring {
        Ring {
            words: attributes.buffer.cast(),
            entry_words: attributes.entry_size as usize / 8,
            entries: attributes.num_entries,
            doorbell: attributes.doorbell,
            counter: 0,
        }
    }

    fn word(&self, entry: u32, word: usize) -> &AtomicU64 {
        let index = (entry % self.entries) as usize * self.entry_words + word;
        // SAFETY: inside the queue's memory, which is shared with the device.
        unsafe { AtomicU64::from_ptr(self.words.add(index)) }
    }

    /// Which lap the counter is in, from 0.
    fn lap(&self) -> u32 {
        self.counter / self.entries
    }

    /// Writes an entry with 64-bit stores, as clients do into write-combined memory.
    fn write(&mut self, words: &[u64]) {
        for (index, word) in words.iter().enumerate() {
            self.word(self.counter, index)
                .store(*word, Ordering::Relaxed);
        }
        self.counter += 1;
    }

    fn ring(&self) {
        // SAFETY: the queue's doorbell.
        let doorbell = unsafe { AtomicU32::from_ptr(self.doorbell) };
        doorbell.store(self.counter & 0xffff, Ordering::Release);
    }
}

/// A completion, as it stands in memory.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    request: u16,
    status: u8,
    /// Without the phase.
    flags: u8,
    qpn: u16,
    /// Of a receive.
    length: u16,
    /// Of a send queue whose request ids have 64 bits: all of it. Nothing but 16 bits of a send queue of old.
    long_request: u64,
}

const OF_SEND_QUEUE: u8 = 1 << 1;
const OF_RECEIVE_QUEUE: u8 = 2 << 1;

struct Completions(Ring);

impl Completions {
    fn of(queue: *mut ibv_cq) -> Completions {
        let mut attributes: efadv_cq_attr = zeroed();
        // SAFETY: a live queue.
        unsafe {
            assert_eq!(
                efadv_query_cq(queue, &raw mut attributes, 16),
                EINVAL,
                "too short"
            );
            assert_eq!(efadv_query_cq(queue, &raw mut attributes, 24), 0);
            assert!(
                attributes.doorbell.is_null(),
                "a client of old knows no doorbell"
            );
            assert_eq!(efadv_query_cq(queue, &raw mut attributes, 32), 0);
            assert_eq!((*queue).cqe as u32, attributes.num_entries);
        }
        assert_eq!(attributes.entry_size, 32);
        assert!(attributes.num_entries.is_power_of_two() && !attributes.doorbell.is_null());
        Completions(Ring {
            words: attributes.buffer.cast(),
            entry_words: 4,
            entries: attributes.num_entries,
            doorbell: attributes.doorbell,
            counter: 0,
        })
    }

    fn next(&mut self) -> Entry {
        let wait = Wait::start();
        // The phase is 1 in the first lap.
        let phase = u64::from(self.0.lap().is_multiple_of(2));
        loop {
            let head = self.0.word(self.0.counter, 0).load(Ordering::Acquire);
            if head >> 24 & 1 == phase {
                let second = self.0.word(self.0.counter, 1).load(Ordering::Relaxed);
                self.0.counter += 1;
                return Entry {
                    long_request: head & 0xffff | head >> 48 << 16 | second << 32,
                    request: head as u16,
                    status: (head >> 16) as u8,
                    flags: (head >> 24) as u8 & !1,
                    qpn: (head >> 32) as u16,
                    length: (head >> 48) as u16,
                };
            }
            wait.check(|| "no completion".into());
            std::hint::spin_loop();
        }
    }
}

/// The first 32 bytes of a work request. The upper 48 bits of a 64-bit request id are its last ones.
fn head(ring: &Ring, request: u64, kind: u8, count: u16, to: (u16, u16)) -> [u64; 4] {
    const META: u8 = 1 << 7;
    const FIRST_LAST_COMPLETE: u8 = 1 << 2 | 1 << 3 | 1 << 4;
    // The phase is 0 in the first lap.
    let control = FIRST_LAST_COMPLETE | (ring.lap() % 2) as u8;
    let (ahn, qpn) = to;
    [
        request & 0xffff
            | u64::from(kind | META) << 16
            | u64::from(control) << 24
            | u64::from(qpn) << 32
            | u64::from(count) << 48,
        u64::from(ahn) << 32,
        u64::from(QKEY),
        request & !0xffff,
    ]
}

/// A local buffer: length, key, address.
fn buffer(region: *mut ibv_mr, offset: usize, length: u32) -> [u64; 2] {
    let sge = sge(region, offset, length);
    [u64::from(length) | u64::from(sge.lkey) << 32, sge.addr]
}

/// A receive of one piece: address, then request id, length, key and the marks of first and last.
fn receive(region: *mut ibv_mr, offset: usize, length: u32, request: u16) -> [u64; 2] {
    let sge = sge(region, offset, length);
    let key = u64::from(sge.lkey | 1 << 30 | 1 << 31);
    [
        sge.addr,
        u64::from(request) | u64::from(length) << 16 | key << 32,
    ]
}

/// The upper bits of request ids, where they have any.
const UPPER: u64 = 0xa6a5_a4a3_a2a1_0000;

/// Sends, inline sends and an RDMA read, over more laps than one, without a call after the queries.
fn exchange(inline: u32, entry_size: u32, has_long_ids: bool) {
    let endpoint = Endpoint::new();
    let queue = endpoint.cq(64);
    let (mut request, mut efa) = endpoint.srd_request(queue, 0x1f);
    request.cap.max_inline_data = inline;
    // SAFETY: live objects.
    let pair = unsafe { efadv_create_qp_ex(endpoint.context, &raw mut request, &raw mut efa, 24) };
    ready(pair);
    let mut memory: Vec<u8> = (0..=255).collect();
    let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
    let region = endpoint.register(&mut memory, access);
    let mut number = efadv_ah_attr::default();
    let (mut of_send, mut of_receive): (efadv_wq_attr, efadv_wq_attr) = (zeroed(), zeroed());
    // SAFETY: live objects.
    let qpn = unsafe {
        assert_eq!(efadv_query_ah(endpoint.handle, &raw mut number, 16), 0);
        let (send, receive) = (&raw mut of_send, &raw mut of_receive);
        assert_eq!(
            efadv_query_qp_wqs(pair, send, receive, 32),
            EINVAL,
            "too short"
        );
        assert_eq!(efadv_query_qp_wqs(pair, send, receive, 40), 0);
        (*pair).qp_num as u16
    };
    assert_eq!((of_send.entry_size, of_send.num_entries), (entry_size, 16));
    assert_eq!((of_receive.entry_size, of_receive.num_entries), (16, 32));
    // `EFADV_WQ_CAPS_64_BIT_REQ_ID`; receives never have it.
    assert_eq!((of_send.caps, of_receive.caps), (has_long_ids.into(), 0));
    let upper = if has_long_ids { UPPER } else { 0 };
    let mut completions = Completions::of(queue);
    let (mut sends, mut receives) = (Ring::of(&of_send), Ring::of(&of_receive));
    let to = (number.ahn, qpn);

    for round in 0..100u16 {
        receives.write(&receive(region, 128, 100, round));
        receives.ring();
        let wanted = memory[usize::from(round)..][..16].to_vec();
        if round % 2 == 0 {
            let [a, b, c, d] = head(&sends, upper | u64::from(round), 0, 1, to);
            let [e, f] = buffer(region, usize::from(round), 16);
            sends.write(&[a, b, c, d, e, f]);
        } else {
            const INLINE: u8 = 1 << 5;
            let length = inline as u16;
            let mut words = head(&sends, upper | u64::from(round), INLINE, length, to).to_vec();
            let mut data = wanted.clone();
            data.resize(usize::from(length), 0x55);
            words.extend(
                data.chunks(8)
                    .map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap())),
            );
            sends.write(&words);
        }
        sends.ring();
        let mut seen = [completions.next(), completions.next()];
        seen.sort_by_key(|entry| entry.flags);
        let length = if round % 2 == 0 { 16 } else { inline as u16 };
        let sent = &seen[0];
        assert_eq!(
            (sent.request, sent.status, sent.flags, sent.qpn),
            (round, 0, OF_SEND_QUEUE, qpn)
        );
        assert_eq!(sent.long_request, upper | u64::from(round));
        let expected = Entry {
            request: round,
            status: 0,
            flags: OF_RECEIVE_QUEUE,
            qpn,
            length,
            // It overlaps what only receives have.
            long_request: seen[1].long_request,
        };
        assert_eq!(seen[1], expected);
        assert_eq!(memory[128..144], wanted);
    }

    // An RDMA read: the peer's memory, then ours.
    const READ: u8 = 1;
    memory[128..160].fill(0);
    let mut words = head(&sends, upper | 7, READ, 1, to).to_vec();
    // SAFETY: a live region.
    let (rkey, address) = unsafe { ((*region).rkey, (*region).addr.addr() as u64) };
    words.extend([32 | u64::from(rkey) << 32, address + 64]);
    words.extend(buffer(region, 128, 32));
    sends.write(&words);
    sends.ring();
    let done = completions.next();
    assert_eq!((done.long_request, done.status), (upper | 7, 0));
    assert_eq!(memory[128..160], (64..96).collect::<Vec<u8>>());

    // What makes no sense fails, and takes nothing else along.
    let mut words = head(&sends, upper | 8, 9, 1, to).to_vec();
    words.extend(buffer(region, 0, 8));
    sends.write(&words);
    sends.ring();
    let done = completions.next();
    let seen = (done.long_request, done.status);
    assert_eq!(seen, (upper | 8, 3), "an unknown operation");
    // SAFETY: live objects.
    unsafe {
        assert_eq!(ibv_destroy_qp(pair), 0);
        assert_eq!(ibv_destroy_cq(queue), 0);
    }
}

#[test]
fn entries_of_64_bytes() {
    on_emulated_host("efa2", || exchange(32, 64, false));
}

#[test]
fn entries_of_128_bytes() {
    on_emulated_host("efa2", || exchange(80, 128, false));
}

#[test]
fn entries_with_64_bit_request_ids() {
    on_emulated_host("efa4", || {
        exchange(32, 64, true);
        exchange(80, 128, true);
    });
}

/// A client of old writes entries with 16 bits of an id and zeros behind, and reads as many of a completion.
#[test]
fn clients_that_know_16_bit_request_ids_find_them_on_every_generation() {
    on_emulated_host("efa4", || {
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(4);
        let pair = endpoint.srd(queue, 0);
        let mut memory = [0u8; 8];
        let region = endpoint.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
        let (mut of_send, mut of_receive): (efadv_wq_attr, efadv_wq_attr) = (zeroed(), zeroed());
        of_send.caps = 0xeeee;
        // SAFETY: a live queue pair.
        let asked = unsafe { efadv_query_qp_wqs(pair, &raw mut of_send, &raw mut of_receive, 36) };
        assert_eq!((asked, of_send.caps), (0, 0xeeee), "there is no such field");
        let (mut sends, mut completions) = (Ring::of(&of_send), Completions::of(queue));
        let mut number = efadv_ah_attr::default();
        // SAFETY: live objects.
        let qpn = unsafe {
            assert_eq!(efadv_query_ah(endpoint.handle, &raw mut number, 16), 0);
            (*pair).qp_num as u16
        };
        assert_eq!(post_recv(pair, 1, &mut [sge(region, 0, 8)]), 0);
        let mut words = head(&sends, 0x1234, 0, 1, (number.ahn, qpn)).to_vec();
        words.extend(buffer(region, 0, 8));
        sends.write(&words);
        sends.ring();
        let seen = [completions.next(), completions.next()];
        let sent = seen
            .iter()
            .find(|entry| entry.flags == OF_SEND_QUEUE)
            .unwrap();
        assert_eq!(
            (sent.request, sent.status, sent.long_request),
            (0x1234, 0, 0x1234)
        );
    });
}

/// The queue's memory is the client's; its completions are polled by calls.
#[test]
fn a_request_that_is_written_directly_is_polled_with_its_whole_id() {
    on_emulated_host("efa4", || {
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(4);
        let pair = endpoint.srd(queue, 0);
        let mut memory = [0u8; 8];
        let region = endpoint.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
        let (mut of_send, mut of_receive): (efadv_wq_attr, efadv_wq_attr) = (zeroed(), zeroed());
        let mut number = efadv_ah_attr::default();
        // SAFETY: live objects.
        let qpn = unsafe {
            let (send, receive) = (&raw mut of_send, &raw mut of_receive);
            assert_eq!(efadv_query_qp_wqs(pair, send, receive, 40), 0);
            assert_eq!(efadv_query_ah(endpoint.handle, &raw mut number, 16), 0);
            (*pair).qp_num as u16
        };
        let mut sends = Ring::of(&of_send);
        for id in [UPPER | 9, u64::MAX, 0] {
            assert_eq!(post_recv(pair, 1 << 40, &mut [sge(region, 0, 8)]), 0);
            let mut words = head(&sends, id, 0, 1, (number.ahn, qpn)).to_vec();
            words.extend(buffer(region, 0, 8));
            sends.write(&words);
            sends.ring();
            let mut ids = wait_for(queue, 2)
                .iter()
                .map(|done| done.wr_id)
                .collect::<Vec<_>>();
            ids.sort_unstable();
            let mut expected = [id, 1 << 40];
            expected.sort_unstable();
            assert_eq!(ids, expected);
        }
    });
}

/// Where the system tells of no store, the device looks at doorbells from time to time.
#[test]
fn entries_without_userfaultfd() {
    on_emulated_host("efa2", || {
        forbid(libc::SYS_userfaultfd);
        // SAFETY: makes nothing that outlives the call.
        let refused = unsafe { libc::syscall(libc::SYS_userfaultfd, 0) };
        assert_eq!((refused, errno()), (-1, libc::EPERM));
        exchange(32, 64, false);
    });
}

/// Has a system call fail from now on, as containers do.
fn forbid(call: libc::c_long) {
    const NUMBER_OF_CALL: u32 = 0;
    let operation = |code: u32, k, (jt, jf)| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let next = (0, 0);
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut filter = [
        operation(
            libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
            NUMBER_OF_CALL,
            next,
        ),
        operation(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            call as u32,
            (0, 1),
        ),
        operation(libc::BPF_RET | libc::BPF_K, refuse, next),
        operation(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, next),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the filter is valid during the calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program),
            0
        );
    }
}

/// Polls that find nothing wait, while others want the processors.
#[test]
fn entries_beside_programs_that_never_wait() {
    on_emulated_host("efa2", || {
        let processors = std::thread::available_parallelism().unwrap().get();
        let is_over = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 * processors {
                scope.spawn(|| {
                    while is_over.load(Ordering::Relaxed) == 0 {
                        std::hint::spin_loop();
                    }
                });
            }
            exchange(32, 64, false);
            is_over.store(1, Ordering::Relaxed);
        });
    });
}

/// A forked child has copies of the doorbells, which nobody looks at; its parent goes on.
#[test]
fn a_forked_childs_doorbells_are_its_own() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(64);
        let pair = endpoint.srd(queue, 0);
        let mut memory = [0u8; 64];
        let region = endpoint.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
        let (mut of_send, mut of_receive): (efadv_wq_attr, efadv_wq_attr) = (zeroed(), zeroed());
        let mut number = efadv_ah_attr::default();
        // SAFETY: live objects.
        let qpn = unsafe {
            let (send, receive) = (&raw mut of_send, &raw mut of_receive);
            assert_eq!(efadv_query_qp_wqs(pair, send, receive, 40), 0);
            assert_eq!(efadv_query_ah(endpoint.handle, &raw mut number, 16), 0);
            (*pair).qp_num as u16
        };
        let mut completions = Completions::of(queue);
        let (mut sends, mut receives) = (Ring::of(&of_send), Ring::of(&of_receive));
        for round in 0..20 {
            // SAFETY: the child makes system calls and stores only.
            let child = unsafe { libc::fork() };
            if child == 0 {
                sends.counter = 7;
                sends.ring();
                let _ = completions
                    .0
                    .word(completions.0.counter, 0)
                    .load(Ordering::Relaxed);
                // SAFETY: ends the child without its exit handlers.
                unsafe { libc::_exit(0) };
            }
            receives.write(&receive(region, 0, 8, round));
            receives.ring();
            let [a, b, c, d] = head(&sends, u64::from(round), 0, 1, (number.ahn, qpn));
            let [e, f] = buffer(region, 8, 8);
            sends.write(&[a, b, c, d, e, f]);
            sends.ring();
            for _ in 0..2 {
                let entry = completions.next();
                assert_eq!((entry.request, entry.status), (round, 0));
            }
            let mut status = -1;
            // SAFETY: room for the status.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
        // SAFETY: live objects.
        unsafe {
            assert_eq!(ibv_destroy_qp(pair), 0);
            assert_eq!(ibv_destroy_cq(queue), 0);
        }
    });
}

/// A client that waits arms the queue by a write of its own.
#[test]
fn a_doorbell_arms_a_queue_for_an_event() {
    on_emulated_host("efa2", || {
        const ARM: u32 = 1 << 31;
        let endpoint = Endpoint::new();
        // SAFETY: live objects.
        let (channel, queue) = unsafe {
            let channel = ibv_create_comp_channel(endpoint.context);
            let none = std::ptr::null_mut();
            (
                channel,
                ibv_create_cq(endpoint.context, 64, none, channel, 0),
            )
        };
        let pair = endpoint.srd(queue, 0);
        let mut memory = [0u8; 16];
        let region = endpoint.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
        let completions = Completions::of(queue);
        // SAFETY: the queue's doorbell.
        let doorbell = unsafe { AtomicU32::from_ptr(completions.0.doorbell) };
        doorbell.store(ARM, Ordering::Release);
        assert_eq!(post_recv(pair, 1, &mut [sge(region, 0, 8)]), 0);
        let mut list = [sge(region, 8, 8)];
        assert_eq!(
            post_send(pair, &mut send_request(&endpoint, pair, 2, &mut list)).0,
            0
        );
        let (mut of, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a live channel; it blocks until the event comes.
        let taken: c_int = unsafe { ibv_get_cq_event(channel, &raw mut of, &raw mut context) };
        assert_eq!((taken, of), (0, queue));
    });
}

/// libfabric's direct data path reads the channel's descriptor by itself, and expects what the kernel
/// writes: the `ibv_cq`, in 8 bytes.
#[test]
fn a_channels_descriptor_reads_as_the_kernels() {
    on_emulated_host("efa2", || {
        const ARM: u32 = 1 << 31;
        const SEQUENCE: u32 = 29;
        let endpoint = Endpoint::new();
        // SAFETY: a live context.
        let channel = unsafe { ibv_create_comp_channel(endpoint.context) };
        // SAFETY: live objects.
        let queue_of =
            || unsafe { ibv_create_cq(endpoint.context, 64, std::ptr::null_mut(), channel, 0) };
        let (sends, receives) = (queue_of(), queue_of());
        let (mut request, mut efa) = endpoint.srd_request(sends, 0);
        request.recv_cq = receives;
        // SAFETY: live objects.
        let pair =
            unsafe { efadv_create_qp_ex(endpoint.context, &raw mut request, &raw mut efa, 24) };
        ready(pair);
        let mut memory = [0u8; 16];
        let region = endpoint.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
        let doorbells = [sends, receives].map(|queue| Completions::of(queue).0.doorbell);
        let exchange = |times: u32| {
            for doorbell in doorbells {
                // SAFETY: the queue's doorbell. So many completions were consumed, so many events
                // received before.
                let doorbell = unsafe { AtomicU32::from_ptr(doorbell) };
                doorbell.store(ARM | times << SEQUENCE | times, Ordering::Release);
            }
            assert_eq!(post_recv(pair, 1, &mut [sge(region, 0, 8)]), 0);
            let mut list = [sge(region, 8, 8)];
            let mut request = send_request(&endpoint, pair, 2, &mut list);
            assert_eq!(post_send(pair, &mut request).0, 0);
        };
        // SAFETY: a live channel; the descriptor blocks until an event comes.
        let read = || unsafe {
            let mut event = [0u64; 4];
            let length = libc::read((*channel).fd, event.as_mut_ptr().cast(), 8);
            assert_eq!(length, 8);
            event[0] as usize
        };
        let both = [sends, receives].map(|queue| queue.addr());
        for times in 0..3 {
            exchange(times);
            let mut seen = [read(), read()];
            if seen != both {
                seen.reverse();
            }
            assert_eq!(seen, both);
        }
        // What a queue has left when it is destroyed is gone from the descriptor, too.
        exchange(3);
        wait_for(receives, 4);
        wait_for(sends, 4);
        // SAFETY: live objects.
        unsafe {
            assert_eq!(ibv_destroy_qp(pair), 0);
            assert_eq!(ibv_destroy_cq(sends), 0);
            assert_eq!(read(), receives.addr());
            let flags = libc::fcntl((*channel).fd, libc::F_GETFL);
            libc::fcntl((*channel).fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
            let mut event = 0u64;
            assert_eq!(libc::read((*channel).fd, (&raw mut event).cast(), 8), -1);
            assert_eq!(errno(), libc::EAGAIN);
        }
    });
}

/// What the device's thread of this process has done so far.
#[derive(Clone, Copy, Debug)]
struct Activity {
    /// Times that it went to sleep.
    sleeps: u64,
    /// Processor time in ticks of 10 ms.
    ticks: u64,
}

impl Activity {
    fn now() -> Activity {
        for task in std::fs::read_dir("/proc/self/task").unwrap() {
            let task = task.unwrap().path();
            let file = |name| std::fs::read_to_string(task.join(name)).unwrap_or_default();
            if file("comm").trim() != "efa-emu" {
                continue;
            }
            let status = file("status");
            let sleeps = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
                .and_then(|count| count.trim().parse().ok())
                .expect("the kernel counts them");
            let stat = file("stat");
            // Behind the name, which ends with a parenthesis: user and system time are 12th and 13th.
            let fields: Vec<&str> = stat
                .rsplit_once(')')
                .unwrap()
                .1
                .split_whitespace()
                .collect();
            let time = |field: usize| fields[field].parse::<u64>().unwrap();
            return Activity {
                sleeps,
                ticks: time(11) + time(12),
            };
        }
        panic!("an opened device has a thread");
    }

    /// Checks what it does while the program does nothing: within a third of a second, at least
    /// once in several. It may have work left from before, and other programs can make a third of a
    /// second longer than that; a device that is busy for ever is so in all of them.
    fn assert_idle(when: &str, is_met: impl Fn(Activity) -> bool) {
        let mut seen = Vec::new();
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(60));
            let before = Activity::now();
            std::thread::sleep(Duration::from_millis(333));
            let after = Activity::now();
            let idle = Activity {
                sleeps: after.sleeps - before.sleeps,
                ticks: after.ticks - before.ticks,
            };
            if is_met(idle) {
                return;
            }
            seen.push(idle);
        }
        panic!("{when}: {seen:?}");
    }
}

/// The device looks at doorbells only while somebody may write them, and seldom while nobody does.
#[test]
fn doorbells_cost_those_who_asked_for_them() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(64);
        let pair = endpoint.srd(queue, 0);
        let mut memory = [0u8; 64];
        let region = endpoint.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
        let by_calls = || {
            assert_eq!(post_recv(pair, 1, &mut [sge(region, 0, 8)]), 0);
            let mut list = [sge(region, 8, 8)];
            let mut request = send_request(&endpoint, pair, 2, &mut list);
            assert_eq!(post_send(pair, &mut request).0, 0);
            wait_for(queue, 2);
        };
        by_calls();
        let without = |idle: Activity| idle.sleeps < 30 && idle.ticks < 5;
        Activity::assert_idle("without doorbells", without);

        let (mut of_send, mut of_receive): (efadv_wq_attr, efadv_wq_attr) = (zeroed(), zeroed());
        let mut number = efadv_ah_attr::default();
        // SAFETY: live objects.
        let qpn = unsafe {
            let (send, receive) = (&raw mut of_send, &raw mut of_receive);
            assert_eq!(efadv_query_qp_wqs(pair, send, receive, 40), 0);
            assert_eq!(efadv_query_ah(endpoint.handle, &raw mut number, 16), 0);
            (*pair).qp_num as u16
        };
        let mut completions = Completions::of(queue);
        let (mut sends, mut receives) = (Ring::of(&of_send), Ring::of(&of_receive));
        // The calls have used one entry of each queue, and two completions.
        (sends.counter, receives.counter, completions.0.counter) = (1, 1, 2);
        for round in 0..3 {
            receives.write(&receive(region, 0, 8, round));
            receives.ring();
            let [a, b, c, d] = head(&sends, round.into(), 0, 1, (number.ahn, qpn));
            let [e, f] = buffer(region, 8, 8);
            sends.write(&[a, b, c, d, e, f]);
            sends.ring();
            for _ in 0..2 {
                let entry = completions.next();
                assert_eq!((entry.request, entry.status), (round, 0));
            }
            Activity::assert_idle("with doorbells", |idle| {
                (1..2000).contains(&idle.sleeps) && idle.ticks < 15
            });
        }
        // SAFETY: live objects.
        unsafe {
            assert_eq!(ibv_destroy_qp(pair), 0);
            assert_eq!(ibv_destroy_cq(queue), 0);
        }
        Activity::assert_idle("without doorbells again", without);
    });
}
