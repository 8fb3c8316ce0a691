//! Completion channels, threads and forked children.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::Duration;

use efa_testing::patience::Wait;
use libc::{EAGAIN, EOPNOTSUPP};

use crate::on_emulated_host;
use efa_testing::verbs::*;
use efa_verbs_abi::*;

/// The `cq_context` of completion queues.
const CONTEXT: usize = 0x77;

/// Takes one event; the queue's own context identifies the queue.
fn take(channel: *mut ibv_comp_channel) -> Result<*mut ibv_cq, c_int> {
    let (mut queue, mut context) = (null_mut(), null_mut());
    // SAFETY: a live channel.
    match unsafe { ibv_get_cq_event(channel, &raw mut queue, &raw mut context) } {
        0 => {
            assert_eq!(context.addr(), CONTEXT, "the queue's context comes along");
            Ok(queue)
        }
        _ => Err(errno()),
    }
}

fn arm(queue: *mut ibv_cq, solicited: c_int) -> c_int {
    // SAFETY: a live queue.
    unsafe { (*(*queue).context).ops.req_notify_cq.unwrap()(queue, solicited) }
}

/// Makes the channel's descriptor non-blocking.
fn do_not_block(channel: *mut ibv_comp_channel) {
    // SAFETY: a live channel, whose descriptor is open.
    unsafe { libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK) };
}

/// Whether the channel's descriptor becomes readable within `milliseconds`.
fn readable(channel: *mut ibv_comp_channel, milliseconds: c_int) -> bool {
    // SAFETY: a live channel.
    let fd = unsafe { (*channel).fd };
    let mut descriptor = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one descriptor.
    unsafe { libc::poll(&raw mut descriptor, 1, milliseconds) == 1 }
}

/// A completion channel, and a completion queue with [`CONTEXT`] that sends its events there.
fn channel_and_queue(endpoint: &Endpoint) -> (*mut ibv_comp_channel, *mut ibv_cq) {
    endpoint.channel_and_cq(std::ptr::without_provenance_mut(CONTEXT))
}

#[test]
fn wake_a_program_that_waits() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let (channel, queue) = channel_and_queue(&endpoint);
        let sends = endpoint.cq(64);
        let (mut request, mut efa) = endpoint.srd_request(queue, 0);
        request.send_cq = sends;
        let receiver = endpoint.create(&mut request, &mut efa);
        ready(receiver);
        let sender = endpoint.srd(sends, 0);
        let region = endpoint.registered(64);
        let send = || {
            assert_eq!(post_recv(receiver, 1, &mut [sge(region, 0, 8)]), 0);
            send(&endpoint, sender, receiver, 2, &mut [sge(region, 8, 8)]);
            wait_for(sends, 1);
        };
        assert_eq!(arm(queue, 1), EOPNOTSUPP, "solicited events");
        assert_eq!(arm(sends, 0), 0, "without a channel, nothing happens");

        // One event for each request.
        assert_eq!(arm(queue, 0), 0);
        assert!(!readable(channel, 0));
        send();
        assert!(readable(channel, 60_000));
        send();
        assert_eq!(take(channel), Ok(queue));
        do_not_block(channel);
        assert_eq!(take(channel), Err(EAGAIN), "it was asked for once");
        // A request while completions are unpolled raises the event at once.
        assert_eq!(arm(queue, 0), 0);
        assert!(readable(channel, 60_000));
        assert_eq!(take(channel), Ok(queue));
        wait_for(queue, 2);
        assert_eq!(arm(queue, 0), 0);
        assert!(!readable(channel, 0));

        // Events that the program took keep the queue until they are acknowledged.
        let held = queue.addr();
        assert_eq!(ibv_destroy_qp(receiver), 0);
        assert_eq!(ibv_destroy_qp(sender), 0);

        let destroying =
            std::thread::spawn(move || ibv_destroy_cq(std::ptr::with_exposed_provenance_mut(held)));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!destroying.is_finished());
        ibv_ack_cq_events(queue, 2);
        assert_eq!(destroying.join().unwrap(), 0);
        assert_eq!(ibv_destroy_comp_channel(channel), 0);
    });
}

/// perftest's latency tests take an event, request the next one and only then poll, and rely on one
/// event for each completion.
#[test]
fn events_for_already_polled_completions_are_withdrawn() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let (channel, queue) = channel_and_queue(&endpoint);
        do_not_block(channel);
        let receives = endpoint.cq(64);
        let (mut request, mut efa) = endpoint.srd_request(queue, 0);
        request.recv_cq = receives;
        let pair = endpoint.create(&mut request, &mut efa);
        ready(pair);
        let region = endpoint.registered(64);
        let exchange = || {
            assert_eq!(post_recv(pair, 1, &mut [sge(region, 0, 8)]), 0);
            send(&endpoint, pair, pair, 2, &mut [sge(region, 8, 8)]);
            wait_for(receives, 1);
        };
        assert_eq!(arm(queue, 0), 0);
        for _ in 0..100 {
            exchange();
            assert!(readable(channel, 60_000));
            assert_eq!(take(channel), Ok(queue));
            ibv_ack_cq_events(queue, 1);
            assert_eq!(arm(queue, 0), 0);
            wait_for(queue, 1);
            assert!(!readable(channel, 0), "all was polled");
            assert_eq!(take(channel), Err(EAGAIN));
        }
        // An event that the program has taken stays taken, and unpolled completions raise another
        // one.
        exchange();
        assert!(readable(channel, 60_000));
        assert_eq!(take(channel), Ok(queue));
        assert_eq!(arm(queue, 0), 0);
        wait_for(queue, 1);
        exchange();
        assert!(readable(channel, 60_000));
        assert_eq!(take(channel), Ok(queue));
        ibv_ack_cq_events(queue, 2);
        assert_eq!(ibv_destroy_qp(pair), 0);
        assert_eq!(ibv_destroy_cq(queue), 0);
        assert_eq!(ibv_destroy_comp_channel(channel), 0);
    });
}

/// Several threads post to and poll the queues of two queue pairs.
#[test]
fn threads_share_queues() {
    on_emulated_host("efa2", || {
        const EACH: u64 = 500;
        let (endpoint, queue, pair, region) = Endpoint::with_pair(64, 64);
        let (receive, send) = (sge(region, 0, 8), sge(region, 8, 8));
        let shared = [pair.expose_provenance(), queue.expose_provenance()];
        let done = std::sync::atomic::AtomicU64::new(0);
        let wait = Wait::start();
        let request = {
            let request = send_request(&endpoint, pair, 1, &mut []);
            (request.ud.ah.expose_provenance(), request.ud.remote_qpn)
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let pair: *mut ibv_qp = std::ptr::with_exposed_provenance_mut(shared[0]);
                    for wr_id in 0..EACH {
                        while post_recv(pair, wr_id, &mut [receive]) != 0 {
                            wait.check(|| "the queue stays full".into());
                            std::thread::yield_now();
                        }
                        let mut list = [send];
                        let mut wr: ibv_send_wr = zeroed();
                        wr.wr_id = wr_id;
                        wr.sg_list = list.as_mut_ptr();
                        wr.num_sge = 1;
                        wr.opcode = IBV_WR_SEND;
                        wr.send_flags = IBV_SEND_SIGNALED;
                        wr.ud.ah = std::ptr::with_exposed_provenance_mut(request.0);
                        wr.ud.remote_qpn = request.1;
                        wr.ud.remote_qkey = QKEY;
                        while post_send(pair, &mut wr).0 != 0 {
                            wait.check(|| "the queue stays full".into());
                            std::thread::yield_now();
                        }
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    let queue: *mut ibv_cq = std::ptr::with_exposed_provenance_mut(shared[1]);
                    while done.load(std::sync::atomic::Ordering::Relaxed) < 6 * EACH {
                        let mut completions = [ibv_wc::default(); 8];
                        let count = poll(queue, &mut completions);
                        assert!(count >= 0, "{count}");
                        wait.check(|| "completions are missing".into());
                        for completion in &completions[..count as usize] {
                            assert_eq!(completion.status, 0);
                        }
                        done.fetch_add(count as u64, std::sync::atomic::Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(poll(queue, &mut [ibv_wc::default()]), 0);
    });
}

/// A forked child has no device, and its calls fail without hanging; its parent continues.
#[test]
fn forked_children_have_no_device() {
    on_emulated_host("efa2", || {
        let (endpoint, queue, pair, region) = Endpoint::with_pair(64, 64);
        let mut list = [sge(region, 0, 8)];
        let mut request = send_request(&endpoint, pair, 1, &mut list);
        let child = fork(|| {
            post_send(pair, &mut request).0 != 0
                && poll(queue, &mut [ibv_wc::default()]) == 0
                && ibv_alloc_pd(endpoint.context).is_null()
                && ibv_destroy_qp(pair) == 0
                && ibv_close_device(endpoint.context) == 0
        });
        assert_eq!(child.wait(), 0);
        assert_eq!(post_recv(pair, 2, &mut [sge(region, 8, 8)]), 0);
        assert_eq!(post_send(pair, &mut request).0, 0);
        wait_for(queue, 2);
    });
}

/// A child destroys its own copy: the events of the original stay for the parent, and the child
/// waits for no acknowledgement.
#[test]
fn forked_children_leave_events_alone() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let (channel, queue) = channel_and_queue(&endpoint);
        let pair = endpoint.srd(queue, 0);
        let completed = || {
            assert_eq!(arm(queue, 0), 0);
            assert_eq!(post_recv(pair, 1, &mut []), 0);
            change_state(pair, IBV_QPS_ERR, IBV_QP_STATE);
            assert!(readable(channel, 60_000));
        };
        // One event is taken and not acknowledged, one is not taken.
        completed();
        assert_eq!(take(channel), Ok(queue));
        wait_for(queue, 1);
        change_state(pair, IBV_QPS_RESET, IBV_QP_STATE);
        ready(pair);
        completed();
        let child = fork(|| ibv_destroy_qp(pair) == 0 && ibv_destroy_cq(queue) == 0);
        assert_eq!(child.wait(), 0);
        assert_eq!(take(channel), Ok(queue), "the parent's");
    });
}
