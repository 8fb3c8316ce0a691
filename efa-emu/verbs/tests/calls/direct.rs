//! Clients that write the queues and the doorbells themselves: libfabric's direct data path, and
//! programs whose requests a GPU makes. The formats are written out here, bit by bit, as such
//! clients have them.

mod staged;

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use efa_testing::patience::Wait;
use libc::EINVAL;

use crate::on_emulated_host;
use efa_testing::programs::forbid_with;
use efa_testing::verbs::*;
use efa_verbs_abi::*;

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

    /// The lap of the counter, from 0.
    fn lap(&self) -> u32 {
        self.counter / self.entries
    }

    /// Writes an entry with 64-bit stores, as clients write to write-combined memory.
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

/// A completion, as laid out in memory.
#[derive(Debug, PartialEq, Eq)]
struct RawCompletion {
    request: u16,
    status: u8,
    /// The flags without the phase.
    flags: u8,
    qpn: u16,
    /// The length of a received message.
    length: u16,
    /// The whole id, for a send queue with 64-bit request ids; the 16 bits of a send queue without
    /// them.
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
            let answer = efadv_query_cq(queue, &raw mut attributes, 16);
            assert_eq!(answer, EINVAL, "too short");
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

    fn next(&mut self) -> RawCompletion {
        let wait = Wait::start();
        // The phase is 1 in the first lap.
        let phase = u64::from(self.0.lap().is_multiple_of(2));
        loop {
            let head = self.0.word(self.0.counter, 0).load(Ordering::Acquire);
            if head >> 24 & 1 == phase {
                let second = self.0.word(self.0.counter, 1).load(Ordering::Relaxed);
                self.0.counter += 1;
                return RawCompletion {
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

/// The first 32 bytes of a work request, which end with the upper 48 bits of a 64-bit request id.
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

/// A local buffer: its length, key and address.
fn buffer(region: *mut ibv_mr, offset: usize, length: u32) -> [u64; 2] {
    let sge = sge(region, offset, length);
    [u64::from(length) | u64::from(sge.lkey) << 32, sge.addr]
}

/// A receive with one buffer: its address, the request id, length, key and the flags for first and
/// last.
fn receive(region: *mut ibv_mr, offset: usize, length: u32, request: u16) -> [u64; 2] {
    let sge = sge(region, offset, length);
    let key = u64::from(sge.lkey | 1 << 30 | 1 << 31);
    [
        sge.addr,
        u64::from(request) | u64::from(length) << 16 | key << 32,
    ]
}

/// A client's view of a queue pair that it uses without calls and that sends to itself.
struct Direct {
    sends: Ring,
    receives: Ring,
    /// The queue pair's own address handle number and queue pair number.
    to: (u16, u16),
    attributes: [efadv_wq_attr; 2],
}

impl Direct {
    fn of(endpoint: &Endpoint, pair: *mut ibv_qp) -> Direct {
        let (mut send, mut receive): (efadv_wq_attr, efadv_wq_attr) = (zeroed(), zeroed());
        // SAFETY: a live queue pair, and structures of these sizes.
        let qpn = unsafe {
            let short = efadv_query_qp_wqs(pair, &raw mut send, &raw mut receive, 32);
            assert_eq!(short, EINVAL, "too short");
            let queried = efadv_query_qp_wqs(pair, &raw mut send, &raw mut receive, 40);
            assert_eq!(queried, 0);
            (*pair).qp_num as u16
        };
        Direct {
            sends: Ring::of(&send),
            receives: Ring::of(&receive),
            to: (ahn_of(endpoint.handle), qpn),
            attributes: [send, receive],
        }
    }

    /// Posts a send with one buffer.
    fn send(&mut self, request: u64, region: *mut ibv_mr, offset: usize, length: u32) {
        self.post(request, 0, 1, &buffer(region, offset, length));
    }

    /// Posts a request with these words after its head.
    fn post(&mut self, request: u64, kind: u8, count: u16, rest: &[u64]) {
        let head = head(&self.sends, request, kind, count, self.to);
        self.sends.write(&[&head, rest].concat());
        self.sends.ring();
    }

    /// Posts a receive with one buffer.
    fn receive(&mut self, region: *mut ibv_mr, offset: usize, length: u32, request: u16) {
        self.receives
            .write(&receive(region, offset, length, request));
        self.receives.ring();
    }
}

/// The upper bits of request ids, for queues with 64-bit ids.
const UPPER: u64 = 0xa6a5_a4a3_a2a1_0000;

/// Sends, inline sends and an RDMA read, over more than one lap, without calls after the queries.
fn exchange(inline: u32, entry_size: u32, has_long_ids: bool) {
    let endpoint = Endpoint::new();
    let queue = endpoint.cq(64);
    let (mut request, mut efa) = endpoint.srd_request(queue, 0x1f);
    request.cap.max_inline_data = inline;
    let pair = endpoint.create(&mut request, &mut efa);
    ready(pair);
    let mut memory: Vec<u8> = (0..=255).collect();
    let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
    let region = endpoint.register(&mut memory, access);
    let mut direct = Direct::of(&endpoint, pair);
    let ([of_send, of_receive], (_, qpn)) = (direct.attributes, direct.to);
    assert_eq!((of_send.entry_size, of_send.num_entries), (entry_size, 16));
    assert_eq!((of_receive.entry_size, of_receive.num_entries), (16, 32));
    // `EFADV_WQ_CAPS_64_BIT_REQ_ID`; receives never have it.
    assert_eq!((of_send.caps, of_receive.caps), (has_long_ids.into(), 0));
    let upper = if has_long_ids { UPPER } else { 0 };
    let mut completions = Completions::of(queue);

    for round in 0..100u16 {
        direct.receive(region, 128, 100, round);
        let wanted = memory[usize::from(round)..][..16].to_vec();
        let id = upper | u64::from(round);
        if round % 2 == 0 {
            direct.send(id, region, usize::from(round), 16);
        } else {
            const INLINE: u8 = 1 << 5;
            let mut data = wanted.clone();
            data.resize(inline as usize, 0x55);
            let words: Vec<_> = data
                .chunks(8)
                .map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap()))
                .collect();
            direct.post(id, INLINE, inline as u16, &words);
        }
        let mut seen = [completions.next(), completions.next()];
        seen.sort_by_key(|entry| entry.flags);
        let length = if round % 2 == 0 { 16 } else { inline as u16 };
        let sent = &seen[0];
        let answer = (sent.request, sent.status, sent.flags, sent.qpn);
        assert_eq!(answer, (round, 0, OF_SEND_QUEUE, qpn));
        assert_eq!(sent.long_request, id);
        let expected = RawCompletion {
            request: round,
            status: 0,
            flags: OF_RECEIVE_QUEUE,
            qpn,
            length,
            // It overlaps a field of receives.
            long_request: seen[1].long_request,
        };
        assert_eq!(seen[1], expected);
        assert_eq!(memory[128..144], wanted);
    }

    // An RDMA read: the peer's memory, then the local memory.
    const READ: u8 = 1;
    memory[128..160].fill(0);
    // SAFETY: a live region.
    let (rkey, address) = unsafe { ((*region).rkey, (*region).addr.addr() as u64) };
    let [to, memory_of_peer] = [32 | u64::from(rkey) << 32, address + 64];
    let [length_and_key, here] = buffer(region, 128, 32);
    direct.post(
        upper | 7,
        READ,
        1,
        &[to, memory_of_peer, length_and_key, here],
    );
    let done = completions.next();
    assert_eq!((done.long_request, done.status), (upper | 7, 0));
    assert_eq!(memory[128..160], (64..96).collect::<Vec<u8>>());

    // Invalid entries fail without affecting others.
    direct.post(upper | 8, 9, 1, &buffer(region, 0, 8));
    let done = completions.next();
    let seen = (done.long_request, done.status);
    assert_eq!(seen, (upper | 8, 3), "an unknown operation");
    assert_eq!(ibv_destroy_qp(pair), 0);
    assert_eq!(ibv_destroy_cq(queue), 0);
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

/// A client without 64-bit ids writes entries with 16 bits of an id followed by zeros, and reads 16
/// bits of a completion's id.
#[test]
fn request_ids_of_16_bits_work_everywhere() {
    on_emulated_host("efa4", || {
        let (endpoint, queue, pair, region) = Endpoint::with_pair(4, 8);
        let (mut of_send, mut of_receive): (efadv_wq_attr, efadv_wq_attr) = (zeroed(), zeroed());
        of_send.caps = 0xeeee;
        // SAFETY: a live queue pair.
        let asked = unsafe { efadv_query_qp_wqs(pair, &raw mut of_send, &raw mut of_receive, 36) };
        assert_eq!((asked, of_send.caps), (0, 0xeeee), "there is no such field");
        let (mut direct, mut completions) = (Direct::of(&endpoint, pair), Completions::of(queue));
        assert_eq!(post_recv(pair, 1, &mut [sge(region, 0, 8)]), 0);
        direct.send(0x1234, region, 0, 8);
        let seen = [completions.next(), completions.next()];
        let sent = seen
            .iter()
            .find(|entry| entry.flags == OF_SEND_QUEUE)
            .unwrap();
        let answer = (sent.request, sent.status, sent.long_request);
        assert_eq!(answer, (0x1234, 0, 0x1234));
    });
}

/// The client writes the queue's memory; its completions are polled by calls.
#[test]
fn directly_written_requests_complete_with_whole_ids() {
    on_emulated_host("efa4", || {
        let (endpoint, queue, pair, region) = Endpoint::with_pair(4, 8);
        let mut direct = Direct::of(&endpoint, pair);
        for id in [UPPER | 9, u64::MAX, 0] {
            assert_eq!(post_recv(pair, 1 << 40, &mut [sge(region, 0, 8)]), 0);
            direct.send(id, region, 0, 8);
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

/// Where the system does not report stores, the device polls doorbells from time to time.
#[test]
fn entries_without_userfaultfd() {
    on_emulated_host("efa2", || {
        forbid_with(libc::EPERM, &[libc::SYS_userfaultfd]);
        // SAFETY: makes nothing that outlives the call.
        let refused = unsafe { libc::syscall(libc::SYS_userfaultfd, 0) };
        assert_eq!((refused, errno()), (-1, libc::EPERM));
        exchange(32, 64, false);
    });
}

/// Polls without a completion wait while other programs need the processors.
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

/// A forked child has copies of the doorbells, which no device reads; its parent continues.
#[test]
fn a_forked_childs_doorbells_are_its_own() {
    on_emulated_host("efa2", || {
        let (endpoint, queue, pair, region) = Endpoint::with_pair(64, 64);
        let (mut direct, mut completions) = (Direct::of(&endpoint, pair), Completions::of(queue));
        for round in 0..20 {
            let child = fork(|| {
                direct.sends.counter = 7;
                direct.sends.ring();
                let entry = completions.0.word(completions.0.counter, 0);
                entry.load(Ordering::Relaxed);
                true
            });
            direct.receive(region, 0, 8, round);
            direct.send(round.into(), region, 8, 8);
            for _ in 0..2 {
                let entry = completions.next();
                assert_eq!((entry.request, entry.status), (round, 0));
            }
            assert_eq!(child.wait(), 0);
        }
        assert_eq!(ibv_destroy_qp(pair), 0);
        assert_eq!(ibv_destroy_cq(queue), 0);
    });
}

/// A client that waits arms the queue by writing the doorbell.
#[test]
fn a_doorbell_arms_a_queue_for_an_event() {
    on_emulated_host("efa2", || {
        const ARM: u32 = 1 << 31;
        let endpoint = Endpoint::new();
        let (channel, queue) = endpoint.channel_and_cq(std::ptr::null_mut());
        let pair = endpoint.srd(queue, 0);
        let region = endpoint.registered(16);
        let completions = Completions::of(queue);
        // SAFETY: the queue's doorbell.
        let doorbell = unsafe { AtomicU32::from_ptr(completions.0.doorbell) };
        doorbell.store(ARM, Ordering::Release);
        assert_eq!(post_recv(pair, 1, &mut [sge(region, 0, 8)]), 0);
        send(&endpoint, pair, pair, 2, &mut [sge(region, 8, 8)]);
        let (mut of, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a live channel; it blocks until the event comes.
        let taken: c_int = unsafe { ibv_get_cq_event(channel, &raw mut of, &raw mut context) };
        assert_eq!((taken, of), (0, queue));
    });
}

/// libfabric's direct data path reads the channel's descriptor itself, and expects the kernel's
/// format: the `ibv_cq`, in 8 bytes.
#[test]
fn a_channels_descriptor_reads_as_the_kernels() {
    on_emulated_host("efa2", || {
        const ARM: u32 = 1 << 31;
        const SEQUENCE: u32 = 29;
        let endpoint = Endpoint::new();
        let channel = ibv_create_comp_channel(endpoint.context);
        let queue_of = || ibv_create_cq(endpoint.context, 64, std::ptr::null_mut(), channel, 0);
        let (sends, receives) = (queue_of(), queue_of());
        let (mut request, mut efa) = endpoint.srd_request(sends, 0);
        request.recv_cq = receives;
        let pair = endpoint.create(&mut request, &mut efa);
        ready(pair);
        let region = endpoint.registered(16);
        let doorbells = [sends, receives].map(|queue| Completions::of(queue).0.doorbell);
        let exchange = |times: u32| {
            for doorbell in doorbells {
                // SAFETY: the queue's doorbell. So many completions were consumed, so many events
                // received before.
                let doorbell = unsafe { AtomicU32::from_ptr(doorbell) };
                doorbell.store(ARM | times << SEQUENCE | times, Ordering::Release);
            }
            assert_eq!(post_recv(pair, 1, &mut [sge(region, 0, 8)]), 0);
            send(&endpoint, pair, pair, 2, &mut [sge(region, 8, 8)]);
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
        // Events of a destroyed queue are removed from the descriptor, too.
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

/// The work of this process's device thread so far.
#[derive(Clone, Copy, Debug)]
struct Activity {
    /// The number of times that it went to sleep.
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
            // After the name, which ends with a parenthesis: user and system time are the 12th and
            // 13th fields.
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

    /// Checks the activity while the program does nothing: within a third of a second, at least
    /// once in several attempts. The device may have work left from before, and other programs can
    /// prolong a third of a second; a device that is always busy is busy in all attempts.
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

/// The device polls doorbells only while a client may write them, and seldom while none does.
#[test]
fn doorbells_are_polled_only_while_mapped() {
    on_emulated_host("efa2", || {
        let (endpoint, queue, pair, region) = Endpoint::with_pair(64, 64);
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

        let (mut direct, mut completions) = (Direct::of(&endpoint, pair), Completions::of(queue));
        // The calls have used one entry of each queue, and two completions.
        (direct.sends.counter, direct.receives.counter) = (1, 1);
        completions.0.counter = 2;
        for round in 0..3 {
            direct.receive(region, 0, 8, round);
            direct.send(round.into(), region, 8, 8);
            for _ in 0..2 {
                let entry = completions.next();
                assert_eq!((entry.request, entry.status), (round, 0));
            }
            Activity::assert_idle("with doorbells", |idle| {
                (1..2000).contains(&idle.sleeps) && idle.ticks < 15
            });
        }
        assert_eq!(ibv_destroy_qp(pair), 0);
        assert_eq!(ibv_destroy_cq(queue), 0);

        Activity::assert_idle("without doorbells again", without);
    });
}
