//! Sends, receives and RDMA between two queue pairs of one process.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use efa_testing::patience::Wait;
use libc::{EINVAL, ENOENT, ENOMEM};

use crate::on_emulated_host;
use efa_testing::verbs::*;
use efa_verbs_abi::*;

const SEND: c_int = 0;
const RDMA_WRITE: c_int = 1;
const RECV: c_int = 128;
const RECV_RDMA_WITH_IMM: c_int = 129;
const WITH_IMM: u32 = 2;

#[test]
fn classic_sends() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(64);
        let (sender, receiver) = (endpoint.srd(queue, 0), endpoint.srd(queue, 0));
        let mut out: Vec<u8> = (0..200).collect();
        let mut room = vec![0u8; 400];
        let source = endpoint.register(&mut out, 0);
        let target = endpoint.register(&mut room, IBV_ACCESS_LOCAL_WRITE);

        // Gathered from two buffers, scattered to two.
        let mut into = [sge(target, 0, 50), sge(target, 100, 300)];
        assert_eq!(post_recv(receiver, 1, &mut into), 0);
        let mut from = [sge(source, 0, 20), sge(source, 100, 60)];
        send(&endpoint, sender, receiver, 2, &mut from);
        let done = wait_for(queue, 2);
        let got = (done[0].status, done[0].opcode, done[0].byte_len);
        assert_eq!(got, (0, RECV, 80));
        assert_eq!((done[1].status, done[1].opcode), (0, SEND));
        // SAFETY: live queue pairs.
        let numbers = unsafe { ((*sender).qp_num, (*receiver).qp_num) };
        let got = (done[0].src_qp, done[0].qp_num, done[1].qp_num);
        assert_eq!(got, (numbers.0, numbers.1, numbers.0));
        let ahn = ahn_of(endpoint.handle);
        assert_eq!(done[0].slid, ahn, "the sender is in the address book");
        assert_eq!(room[..20], out[..20]);
        assert_eq!(room[20..50], out[100..130]);
        assert_eq!(room[100..130], out[130..160]);

        // Inline data needs no region and may change after the call; an immediate arrives as sent.
        let mut inline = *b"inline data";
        let mut list = [ibv_sge {
            addr: inline.as_ptr().addr() as u64,
            length: 11,
            lkey: 0,
        }];
        let mut request = send_request(&endpoint, receiver, 4, &mut list);
        request.opcode = IBV_WR_SEND_WITH_IMM;
        request.imm_data = 0x0102_0304;
        request.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
        assert_eq!(post_recv(receiver, 3, &mut [sge(target, 200, 100)]), 0);
        assert_eq!(post_send(sender, &mut request).0, 0);
        inline.fill(0);
        let done = wait_for(queue, 2);
        let got = (done[0].byte_len, done[0].wc_flags, done[0].imm_data);
        assert_eq!(got, (11, WITH_IMM, 0x0102_0304));
        assert_eq!(&room[200..211], b"inline data");

        // A message may be empty.
        assert_eq!(post_recv(receiver, 5, &mut []), 0);
        send(&endpoint, sender, receiver, 6, &mut []);
        let done = wait_for(queue, 2);
        let got = (done[0].status, done[0].byte_len, done[1].status);
        assert_eq!(got, (0, 0, 0));
    });
}

/// Work request ids stay with their queue pair when another queue pair of the completion queue is
/// destroyed.
#[test]
fn destroying_one_queue_pair_spares_a_shared_cq() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let (queue, sinks_queue) = (endpoint.cq(64), endpoint.cq(64));
        let (goes, stays) = (endpoint.srd(queue, 0), endpoint.srd(queue, 0));
        let region = endpoint.registered(64);
        let sink = || {
            let sink = endpoint.srd(sinks_queue, 0);
            for wr_id in 0..16 {
                assert_eq!(post_recv(sink, wr_id, &mut [sge(region, 0, 8)]), 0);
            }
            sink
        };
        let send = |from: *mut ibv_qp, to: *mut ibv_qp, wr_id: u64| {
            let mut list = [sge(region, 0, 8)];
            post_send(from, &mut send_request(&endpoint, to, wr_id, &mut list)).0
        };
        let first = sink();
        for index in 0..8 {
            assert_eq!(send(goes, first, 100 + index), 0);
            assert_eq!(send(stays, first, 200 + index), 0);
        }
        // The ids of the next `count` completions.
        let take = |count: usize| {
            let one = (0..count).map(|_| {
                loop {
                    let mut completion = [ibv_wc::default()];
                    if poll(queue, &mut completion) == 1 {
                        assert_eq!(completion[0].status, 0);
                        break completion[0].wr_id;
                    }
                }
            });
            one.collect::<Vec<_>>()
        };
        // Some of both; the rest stays in the queue.
        let mut ids = take(6);
        assert_eq!(ibv_destroy_qp(goes), 0);
        ids.retain(|wr_id| *wr_id >= 200);
        ids.extend(take(8 - ids.len()));
        ids.sort_unstable();
        assert_eq!(ids, (200..208).collect::<Vec<_>>());

        // All entries of the send queue are free again, and no id is repeated or belongs to the
        // other queue pair.
        for round in [1000, 2000] {
            let fresh = sink();
            for index in 0..16 {
                assert_eq!(send(stays, fresh, round + index), 0);
            }
            let mut ids = take(16);
            ids.sort_unstable();
            assert_eq!(ids, (round..round + 16).collect::<Vec<_>>());
        }
        assert_eq!(poll(queue, &mut [ibv_wc::default(); 4]), 0);
    });
}

#[test]
fn wrong_requests_are_not_posted() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(64);
        let (sender, receiver) = (endpoint.srd(queue, 0), endpoint.srd(queue, 0));
        let region = endpoint.registered(256);
        let mut list = [sge(region, 0, 8); 5];
        type Change = fn(&mut ibv_send_wr);
        let wrong: [(&str, Change); 7] = [
            ("unsignaled", |request| request.send_flags = 0),
            ("solicited", |request| request.send_flags |= 1 << 2),
            ("RDMA write", |request| request.opcode = 0),
            ("three gather entries", |request| request.num_sge = 3),
            ("five gather entries", |request| request.num_sge = 5),
            ("minus one entries", |request| request.num_sge = -1),
            ("inline of 40 bytes", |request| {
                request.num_sge = 5;
                request.send_flags |= IBV_SEND_INLINE;
            }),
        ];
        for (what, change) in wrong {
            let mut request = send_request(&endpoint, receiver, 1, &mut list[..1]);
            change(&mut request);
            let here = &raw mut request;
            assert_eq!(post_send(sender, &mut request), (EINVAL, here), "{what}");
        }
        let got = post_recv(receiver, 1, &mut list[..3]);
        assert_eq!(got, EINVAL, "three scatter entries");

        // The requests of a list before the wrong one are posted.
        let mut second = send_request(&endpoint, receiver, 11, &mut list[1..2]);
        second.send_flags = 0;
        let mut first = send_request(&endpoint, receiver, 10, &mut list[..1]);
        first.next = &raw mut second;
        let wrong = first.next;
        assert_eq!(post_recv(receiver, 9, &mut list[..1]), 0);
        assert_eq!(post_send(sender, &mut first), (EINVAL, wrong));
        let done = wait_for(queue, 2);
        assert_eq!((done[0].wr_id, done[1].wr_id), (9, 10));
        assert_eq!(poll(queue, &mut [ibv_wc::default()]), 0);

        // Fills a receive queue of 16, then a send queue of 16 with requests to a receiver that no
        // longer exists.
        for wr_id in 0..16 {
            assert_eq!(post_recv(receiver, wr_id, &mut list[..1]), 0);
        }
        assert_eq!(post_recv(receiver, 16, &mut list[..1]), ENOMEM);
        let mut request = send_request(&endpoint, receiver, 0, &mut list[..1]);
        assert_eq!(ibv_destroy_qp(receiver), 0);
        for _ in 0..16 {
            assert_eq!(post_send(sender, &mut request).0, 0);
        }
        let here = &raw mut request;
        let got = post_send(sender, &mut request);
        assert_eq!(got, (ENOMEM, here), "completions were not polled");
        for completion in wait_for(queue, 16) {
            let got = (completion.status, completion.vendor_err);
            assert_eq!(got, (15, 9), "bad destination QPN");
        }
        assert_eq!(post_send(sender, &mut request).0, 0, "there is room again");
        wait_for(queue, 1);
    });
}

/// Posting in a state that does not allow it, and the requests of a queue pair in the error state.
#[test]
fn states_allow_and_flush() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(64);
        let (mut request, mut efa) = endpoint.srd_request(queue, 0);
        let region = endpoint.registered(64);
        let pair = endpoint.create(&mut request, &mut efa);
        let mut list = [sge(region, 0, 8)];
        let mut send = send_request(&endpoint, pair, 1, &mut list);
        assert_eq!(post_send(pair, &mut send).0, EINVAL, "a send in reset");
        let got = post_recv(pair, 2, &mut [sge(region, 0, 8)]);
        assert_eq!(got, EINVAL, "a receive in reset");
        ready(pair);
        for wr_id in 3..6 {
            assert_eq!(post_recv(pair, wr_id, &mut [sge(region, 0, 8)]), 0);
        }
        let mut attributes: ibv_qp_attr = zeroed();
        attributes.qp_state = IBV_QPS_ERR;
        // SAFETY: a live queue pair.
        let result = unsafe { ibv_modify_qp(pair, &raw mut attributes, IBV_QP_STATE as c_int) };
        assert_eq!(result, 0);
        for completion in wait_for(queue, 3) {
            let got = (completion.status, completion.vendor_err);
            assert_eq!(got, (5, 1), "flushed");
        }
        assert_eq!(post_send(pair, &mut send).0, EINVAL, "a send in error");
    });
}

/// A session of extended polling: its fields, readers, and end.
struct Session {
    queue: *mut ibv_cq_ex,
}

impl Session {
    /// Waits for a completion and begins a session with it.
    fn begin(queue: *mut ibv_cq_ex) -> Session {
        let wait = Wait::start();
        // SAFETY: a live queue.
        let start = unsafe { (*queue).start_poll.unwrap() };
        loop {
            // SAFETY: a live queue, and no attributes.
            match unsafe { start(queue, null_mut()) } {
                0 => return Session { queue },
                ENOENT => wait.check(|| "no completion".into()),
                other => panic!("start_poll: {other}"),
            }
        }
    }

    fn seen(&self) -> (u64, c_int, c_int, u32) {
        // SAFETY: a live queue in this session.
        unsafe { shown(self.queue) }
    }

    fn vendor_error(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.queue).read_vendor_err.unwrap()(self.queue) }
    }
}

/// The request, status, opcode and length of the completion that a queue shows.
///
/// # Safety
/// The queue is live, and no other thread uses it.
unsafe fn shown(queue: *mut ibv_cq_ex) -> (u64, c_int, c_int, u32) {
    // SAFETY: by contract.
    unsafe {
        let opcode = (*queue).read_opcode.unwrap()(queue);
        let length = (*queue).read_byte_len.unwrap()(queue);
        ((*queue).wr_id, (*queue).status, opcode, length)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { (*self.queue).end_poll.unwrap()(self.queue) };
    }
}

/// A builder session with one request, which is posted.
///
/// # Safety
/// `pair` is live; `build` only makes calls that are allowed in a session.
#[track_caller]
pub(crate) unsafe fn build(pair: *mut ibv_qp, wr_id: u64, build: impl FnOnce(*mut ibv_qp_ex)) {
    // SAFETY: by contract.
    assert_eq!(unsafe { try_build(pair, wr_id, build) }, 0);
}

/// As [`build`], with the result of `complete`.
///
/// # Safety
/// As for [`build`].
unsafe fn try_build(pair: *mut ibv_qp, wr_id: u64, build: impl FnOnce(*mut ibv_qp_ex)) -> c_int {
    // SAFETY: by contract.
    unsafe {
        let builders = ibv_qp_to_qp_ex(pair);
        assert!(!builders.is_null());
        (*builders).wr_start.unwrap()(builders);
        (*builders).wr_id = wr_id;
        (*builders).wr_flags = IBV_SEND_SIGNALED;
        build(builders);
        (*builders).wr_complete.unwrap()(builders)
    }
}

pub(crate) fn extended_cq(endpoint: &Endpoint) -> *mut ibv_cq_ex {
    let mut attributes = ibv_cq_init_attr_ex {
        cqe: 64,
        wc_flags: 0x7f,
        ..zeroed()
    };
    let mut efa = efadv_cq_init_attr {
        wc_flags: 3,
        ..zeroed()
    };
    let (context, size) = (endpoint.context, size_of_val(&efa) as u32);
    // SAFETY: a live context, and attributes on the stack.
    let queue = unsafe { efadv_create_cq(context, &raw mut attributes, &raw mut efa, size) };
    assert!(!queue.is_null(), "errno {}", errno());
    queue
}

pub(crate) const ALL_OPS: u64 = 0x1f;

#[test]
fn completions_of_destroyed_queue_pairs_are_not_shown() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let (sent, received) = (extended_cq(&endpoint), extended_cq(&endpoint));
        let one = endpoint.srd(sent.cast(), ALL_OPS);
        let (mut attributes, mut efa) = endpoint.srd_request(received.cast(), ALL_OPS);
        efa.flags = EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV;
        let two = endpoint.create(&mut attributes, &mut efa);
        ready(two);
        let mut memory = vec![0u8; 64];
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        let region = endpoint.register(&mut memory, access);
        // SAFETY: live objects; the sessions are those of a correct program.
        unsafe {
            let address = (*region).addr.addr() as u64;
            for immediate in [1, 2] {
                build(one, 7, |builders| {
                    let rkey = (*region).rkey;
                    (*builders).wr_rdma_write_imm.unwrap()(builders, rkey, address, immediate);
                    let (handle, qpn) = (endpoint.handle, (*two).qp_num);
                    (*builders).wr_set_ud_addr.unwrap()(builders, handle, qpn, QKEY);
                    (*builders).wr_set_sge.unwrap()(builders, (*region).lkey, address, 16);
                });
                assert_eq!(Session::begin(sent).seen().1, 0);
            }
            // Neither has consumed a receive: only the number identifies their queue pair.
            let session = Session::begin(received);
            let efa = efadv_cq_from_ibv_cq_ex(received);
            assert!((*efa).wc_is_unsolicited.unwrap()(efa));
            drop(session);
            assert_eq!(ibv_destroy_qp(two), 0);
            let got = (*received).start_poll.unwrap()(received, null_mut());
            assert_eq!(got, ENOENT);
        }
    });
}

#[test]
fn rdma_by_builders_and_extended_polling() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let queue = extended_cq(&endpoint);
        let [one, two] = [(); 2].map(|()| endpoint.srd(queue.cast(), ALL_OPS));
        let mut local: Vec<u8> = (0..=255).collect();
        let mut remote = vec![7u8; 256];
        let mine = endpoint.register(&mut local, IBV_ACCESS_LOCAL_WRITE);
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
        let theirs = endpoint.register(&mut remote, access);
        // SAFETY: live objects; the sessions are those of a correct program, or wrong on purpose.
        unsafe {
            let (rkey, address) = ((*theirs).rkey, (*theirs).addr.addr() as u64);
            let to = |builders: *mut ibv_qp_ex| {
                (*builders).wr_set_ud_addr.unwrap()(builders, endpoint.handle, (*two).qp_num, QKEY);
            };
            let piece = |builders: *mut ibv_qp_ex, offset: u64, length: u32| {
                let address = (*mine).addr.addr() as u64 + offset;
                (*builders).wr_set_sge.unwrap()(builders, (*mine).lkey, address, length);
            };

            // A read, with its setters in either order.
            build(one, 1, |builders| {
                (*builders).wr_rdma_read.unwrap()(builders, rkey, address + 16);
                piece(builders, 0, 32);
                to(builders);
            });
            let session = Session::begin(queue);
            assert_eq!(session.seen(), (1, 0, SEND, 0));
            let mut gid = ibv_gid::default();
            let efa = efadv_cq_from_ibv_cq_ex(queue);
            let got = (*efa).wc_read_sgid.unwrap()(efa, &raw mut gid);
            assert!(got < 0, "it is our own request");
            drop(session);
            assert_eq!(local[..32], [7; 32]);

            // A write with immediate data consumes a receive of the peer.
            assert_eq!(post_recv(two, 2, &mut []), 0);
            build(one, 3, |builders| {
                (*builders).wr_rdma_write_imm.unwrap()(builders, rkey, address, 0xa1b2_c3d4);
                to(builders);
                piece(builders, 100, 50);
            });
            let mut seen = Vec::new();
            for _ in 0..2 {
                let session = Session::begin(queue);
                seen.push(session.seen());
                if seen.last().unwrap().0 == 2 {
                    assert_eq!((*queue).read_imm_data.unwrap()(queue), 0xa1b2_c3d4);
                    assert_eq!((*queue).read_wc_flags.unwrap()(queue), WITH_IMM);
                    assert_eq!((*queue).read_src_qp.unwrap()(queue), (*one).qp_num);
                    assert!(!(*efa).wc_is_unsolicited.unwrap()(efa));
                }
            }
            // The last completion can be read after its session, and the queue is free for the
            // next.
            assert_eq!(Some(&shown(queue)), seen.last());
            let got = (*queue).start_poll.unwrap()(queue, null_mut());
            assert_eq!(got, ENOENT, "nothing more");
            seen.sort();
            let expected = [(2, 0, RECV_RDMA_WITH_IMM, 50), (3, 0, RDMA_WRITE, 0)];
            assert_eq!(seen, expected);
            assert_eq!(remote[..50], (100..150).collect::<Vec<u8>>());

            // A wrong key, and a right one beyond the region.
            for (wr_id, rkey, offset) in [(4, rkey ^ 0x100, 0), (5, rkey, 250)] {
                build(one, wr_id, |builders| {
                    (*builders).wr_rdma_write.unwrap()(builders, rkey, address + offset);
                    to(builders);
                    piece(builders, 0, 32);
                });
                let session = Session::begin(queue);
                let (id, status, ..) = session.seen();
                assert_eq!((id, status, session.vendor_error()), (wr_id, 10, 7));
            }
            assert_eq!(remote[250..], [7; 6]);

            // A list of two requests and inline data, several completions in one session.
            assert_eq!(post_recv(two, 6, &mut [sge(theirs, 0, 100)]), 0);
            assert_eq!(post_recv(two, 7, &mut [sge(theirs, 100, 100)]), 0);
            let text = *b"two pieces";
            build(one, 8, |builders| {
                (*builders).wr_send.unwrap()(builders);
                to(builders);
                let data = |range: &[u8]| ibv_data_buf {
                    addr: range.as_ptr().cast_mut().cast::<c_void>(),
                    length: range.len(),
                };
                let list = [data(&text[..3]), data(&text[3..])];
                (*builders).wr_set_inline_data_list.unwrap()(builders, 2, list.as_ptr());
                (*builders).wr_id = 9;
                (*builders).wr_send_imm.unwrap()(builders, 5);
                let list = [sge(mine, 0, 4), sge(mine, 8, 4)];
                (*builders).wr_set_sge_list.unwrap()(builders, 2, list.as_ptr());
                to(builders);
            });
            let mut seen = Vec::new();
            while seen.len() < 4 {
                let session = Session::begin(queue);
                seen.push(session.seen());
                while (*queue).next_poll.unwrap()(queue) == 0 {
                    seen.push(session.seen());
                }
            }
            seen.sort();
            let ids: Vec<_> = seen.iter().map(|(id, status, ..)| (*id, *status)).collect();
            assert_eq!(ids, [(6, 0), (7, 0), (8, 0), (9, 0)]);
            assert_eq!((seen[0].2, seen[0].3 + seen[1].3), (RECV, 18));
        }
    });
}

/// An error anywhere in a session posts none of its requests, nor does an abort. The queue then
/// still works.
#[test]
fn sessions_are_all_or_nothing() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(64);
        let (one, two) = (endpoint.srd(queue, ALL_OPS), endpoint.srd(queue, ALL_OPS));
        let region = endpoint.registered(256);
        // SAFETY: live objects; the sessions are wrong on purpose, as the library promises to
        // notice.
        unsafe {
            let good = |builders: *mut ibv_qp_ex| {
                (*builders).wr_send.unwrap()(builders);
                (*builders).wr_set_ud_addr.unwrap()(builders, endpoint.handle, (*two).qp_num, QKEY);
                let address = (*region).addr.addr() as u64;
                (*builders).wr_set_sge.unwrap()(builders, (*region).lkey, address, 8);
            };
            type Build = unsafe fn(*mut ibv_qp_ex);
            let wrong: [(&str, Build); 5] = [
                ("too many gather entries", |b| {
                    (*b).wr_set_sge_list.unwrap()(b, 3, [ibv_sge::default(); 3].as_ptr())
                }),
                ("far too many gather entries", |b| {
                    (*b).wr_set_sge_list.unwrap()(b, 9, [ibv_sge::default(); 9].as_ptr())
                }),
                ("too long inline data", |b| {
                    (*b).wr_set_inline_data.unwrap()(b, [0u8; 33].as_ptr().cast_mut().cast(), 33)
                }),
                ("far too long inline data", |b| {
                    (*b).wr_set_inline_data.unwrap()(b, [0u8; 99].as_ptr().cast_mut().cast(), 99)
                }),
                ("an unsignaled request", |b| {
                    (*b).wr_flags = 0;
                    (*b).wr_send.unwrap()(b);
                }),
            ];
            for (what, poison) in wrong {
                let result = try_build(one, 1, |builders| {
                    good(builders);
                    poison(builders);
                    good(builders);
                });
                assert_eq!(result, EINVAL, "{what}");
            }
            let builders = ibv_qp_to_qp_ex(one);
            (*builders).wr_start.unwrap()(builders);
            good(builders);
            (*builders).wr_abort.unwrap()(builders);
            let got = (*builders).wr_complete.unwrap()(builders);
            assert_eq!(got, EINVAL, "there is no session");
            let too_many = try_build(one, 1, |builders| (0..17).for_each(|_| good(builders)));
            assert_eq!(too_many, ENOMEM);

            assert_eq!(post_recv(two, 2, &mut [sge(region, 100, 8)]), 0);
            build(one, 3, |builders| {
                (*builders).wr_flags = IBV_SEND_SIGNALED;
                good(builders);
            });
            let done = wait_for(queue, 2);
            let got = (done[0].wr_id, done[1].wr_id);
            assert_eq!(got, (2, 3), "nothing else was posted");
        }
    });
}

/// A datagram's receive starts with 40 bytes of header, which has the address for an answer.
#[test]
fn datagrams() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(64);
        let mut memory = vec![0u8; 256];
        let region = endpoint.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
        let (one, two) = (endpoint.ud(queue), endpoint.ud(queue));
        assert_eq!(post_recv(two, 1, &mut [sge(region, 100, 100)]), 0);
        memory[..5].copy_from_slice(b"hello");
        send(&endpoint, one, two, 2, &mut [sge(region, 0, 5)]);
        let done = wait_for(queue, 2);
        assert_eq!((done[0].status, done[0].byte_len), (0, 45));
        assert_eq!(&memory[140..145], b"hello");
        let sender = endpoint.gid.raw;
        assert_eq!(memory[108..124], sender, "its GID is in the header");
    });
}
