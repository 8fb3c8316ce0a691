//! Events that the device raises, and its behaviour after its removal.

use std::ffi::c_int;
use std::ptr::null_mut;

use efa_testing::workspace::efa_emu;
use libc::{EBUSY, EINVAL, EIO, ENODEV};

use crate::on_emulated_host_with;
use efa_testing::verbs::*;
use efa_verbs_abi::*;

const CQ_ERR: c_int = 0;
const QP_FATAL: c_int = 1;
const DEVICE_FATAL: c_int = 8;
const PORT_ACTIVE: c_int = 9;
const PORT_ERR: c_int = 10;
const DEVICE_SPEED_CHANGE: c_int = 20;

/// The device's status for an unknown queue pair.
const BAD_DESTINATION: u32 = 9;

/// `IBV_WC_WR_FLUSH_ERR`.
const FLUSHED: u32 = 5;

/// `efa-emu fault` in the fabric of this process.
#[track_caller]
pub(crate) fn fault(arguments: &[&str]) {
    let fabric = std::env::var("EFA_EMU_FABRIC").unwrap();
    let mut command = efa_emu(&["fault", "--fabric", &fabric]);
    let status = command.args(arguments).status().unwrap();
    assert!(status.success(), "{arguments:?}: {status}");
}

/// Waits for the next event.
#[track_caller]
fn take(context: *mut ibv_context) -> ibv_async_event {
    let mut event: ibv_async_event = zeroed();
    // SAFETY: a live context, and room for an event.
    let taken = unsafe { ibv_get_async_event(context, &raw mut event) };
    assert_eq!(taken, 0, "errno {}", errno());
    event
}

fn acknowledge(mut event: ibv_async_event) {
    // SAFETY: an event that was taken.
    unsafe { ibv_ack_async_event(&raw mut event) };
}

/// Waits for the next event and acknowledges it: its type and element.
#[track_caller]
fn next(context: *mut ibv_context) -> (c_int, usize) {
    let event = take(context);
    let seen = (event.event_type, event.element.addr());
    acknowledge(event);
    seen
}

/// Whether an event is pending.
fn has_event(context: *mut ibv_context) -> bool {
    // SAFETY: a live context.
    let fd = unsafe { (*context).async_fd };
    let mut descriptor = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one descriptor.
    unsafe { libc::poll(&raw mut descriptor, 1, 0) == 1 }
}

/// Waits for so many completions: their ids and statuses, in the order of [`wait_for`].
#[track_caller]
fn done(queue: *mut ibv_cq, count: usize) -> Vec<(u64, u32)> {
    let found = wait_for(queue, count);
    let done = found.iter().map(|wc| (wc.wr_id, wc.status as u32));
    done.collect()
}

fn port_state(context: *mut ibv_context) -> Result<c_int, c_int> {
    let mut port: ibv_port_attr = zeroed();
    // SAFETY: a live context, and room for the attributes.
    match unsafe { ibv_query_port(context, 1, &raw mut port) } {
        0 => Ok(port.state),
        error => Err(error),
    }
}

/// Waits until the files of the device's port have these values.
#[track_caller]
fn expect_in_sysfs(context: *mut ibv_context, expected: [&str; 3]) {
    let root = std::path::PathBuf::from(std::env::var_os("SYSFS_PATH").unwrap());
    // SAFETY: a live context, whose device has a name.
    let name = unsafe { std::ffi::CStr::from_ptr(ibv_get_device_name((*context).device)) };
    let device = root.join("class/infiniband").join(name.to_str().unwrap());
    let port = device.join("ports/1");
    let wait = efa_testing::patience::Wait::start();
    loop {
        let files = ["state", "phys_state", "rate"];
        let found = files.map(|file| std::fs::read_to_string(port.join(file)));
        let found = found.map(|value| value.expect("the file is there at all times"));
        if found == expected {
            return;
        }
        wait.check(|| format!("{found:?} instead of {expected:?}"));
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Waiting calls return, new requests are refused, objects can be destroyed; other devices
/// continue.
#[test]
fn removing_a_device_ends_its_requests() {
    on_emulated_host_with(&["--host", "alpha", "--devices", "2"], || {
        let endpoint = Endpoint::number(0);
        let other = Endpoint::number(1);
        let queue = endpoint.cq(16);
        let pair = endpoint.srd(queue, 0);
        let mut memory = [0u8; 64];
        let region = endpoint.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
        for wr_id in 0..3 {
            assert_eq!(post_recv(pair, wr_id, &mut [sge(region, 0, 8)]), 0);
        }
        assert!(!has_event(endpoint.context));
        fault(&["remove", "alpha:0"]);

        // The program does not poll, like a program that waits for events.
        assert_eq!(next(endpoint.context), (DEVICE_FATAL, 0));
        assert_eq!(done(queue, 3), [0, 1, 2].map(|wr_id| (wr_id, FLUSHED)));
        // Posting continues as on a failed queue pair: with completions.
        assert_eq!(post_recv(pair, 7, &mut [sge(region, 0, 8)]), 0);
        send(&endpoint, pair, pair, 8, &mut [sge(region, 0, 8)]);
        assert_eq!(done(queue, 2), [(7, FLUSHED), (8, FLUSHED)]);

        // SAFETY: live objects, and attributes on the stack.
        unsafe {
            let mut device: ibv_device_attr = zeroed();
            assert_eq!(ibv_query_device(endpoint.context, &raw mut device), EIO);
            assert_eq!(port_state(endpoint.context), Err(EIO));
            let mut gid = ibv_gid::default();
            assert_eq!(ibv_query_gid(endpoint.context, 1, 0, &raw mut gid), -1);
            expect_null(ibv_alloc_pd(endpoint.context), EIO, "protection domain");
            let address = memory.as_mut_ptr().cast();
            expect_null(ibv_reg_mr(endpoint.pd, address, 64, 1), EIO, "registration");
            let cq = ibv_create_cq(endpoint.context, 4, null_mut(), null_mut(), 0);
            expect_null(cq, EIO, "completion queue");
            let (mut attributes, mut efa) = endpoint.srd_request(queue, 0);
            let made = efadv_create_qp_ex(
                endpoint.context,
                &raw mut attributes,
                &raw mut efa,
                size_of::<efadv_qp_init_attr>() as u32,
            );
            expect_null(made, EIO, "queue pair");
            let mut change: ibv_qp_attr = zeroed();
            change.qp_state = IBV_QPS_ERR;
            let mask = IBV_QP_STATE as c_int;
            assert_eq!(ibv_modify_qp(pair, &raw mut change, mask), EIO);

            // The protection domain stays because it contains objects.
            assert_eq!(ibv_destroy_qp(pair), EIO);
            assert_eq!(ibv_dereg_mr(region), EIO);
            assert_eq!(ibv_destroy_ah(endpoint.handle), EIO);
            assert_eq!(ibv_destroy_cq(queue), EIO);
            assert_eq!(ibv_dealloc_pd(endpoint.pd), EBUSY);
            assert_eq!(ibv_close_device(endpoint.context), 0);

            let list = ibv_get_device_list(null_mut());
            expect_null(ibv_open_device(*list), ENODEV, "opening");
            ibv_free_device_list(list);
        }
        assert!(!has_event(other.context));
        assert_eq!(port_state(other.context), Ok(4));
    });
}

/// The host and its program stay. Objects from before the removal behave as on any removed device;
/// objects made after the return work, with traffic under way at each removal. A removal whose
/// device is back before the program notices is one, too.
#[test]
fn a_returned_device_has_to_be_opened_anew() {
    on_emulated_host_with(&["--host", "alpha", "--devices", "2"], || {
        let other = Endpoint::number(1);
        let others_queue = other.cq(64);
        let from = other.srd(others_queue, 0);
        let mut former: Vec<(*mut ibv_context, *mut ibv_qp, *mut ibv_cq)> = Vec::new();
        for round in 0..3 {
            let endpoint = Endpoint::number(0);
            let queue = endpoint.cq(64);
            let pair = endpoint.srd(queue, 0);
            let region = endpoint.registered(64);
            let to_device = Endpoint {
                handle: handle_of(other.pd, endpoint.gid),
                ..other
            };
            // Only messages from the other device and from itself, none from before the removal.
            for wr_id in 0..8 {
                assert_eq!(post_recv(pair, wr_id, &mut [sge(region, 0, 64)]), 0);
            }
            send(&to_device, from, pair, 100, &mut []);
            assert_eq!(wait_for(others_queue, 1)[0].status, 0);
            send(&endpoint, pair, pair, 101, &mut [sge(region, 0, 64)]);
            assert!(wait_for(queue, 3).iter().all(|done| done.status == 0));
            for (context, pair, queue) in &former {
                assert_eq!(port_state(*context), Err(EIO));
                assert!(!has_event(*context), "it is told once");
                assert_eq!(post_recv(*pair, 7, &mut []), 0);
                assert_eq!(wait_for(*queue, 1)[0].status as u32, FLUSHED);
            }

            for wr_id in 102..106 {
                send(&endpoint, pair, pair, wr_id, &mut [sge(region, 0, 64)]);
            }
            fault(&["remove", "alpha:0"]);
            if round == 1 {
                fault(&["restore", "alpha:0"]);
            }
            assert_eq!(next(endpoint.context), (DEVICE_FATAL, 0));
            // Each of the four sends and of the six receives has completed, successfully or not.
            let ended = wait_for(queue, 10);
            let flushed = ended.iter().filter(|done| done.status as u32 == FLUSHED);
            assert!(flushed.count() >= 2, "nothing was sent into two receives");
            send(&to_device, from, pair, 107, &mut []);
            assert_eq!(wait_for(others_queue, 1)[0].vendor_err, BAD_DESTINATION);
            fault(&["restore", "alpha"]);
            former.push((endpoint.context, pair, queue));
        }
        assert!(!has_event(other.context));
        for (context, ..) in former {
            assert_eq!(ibv_close_device(context), 0);
        }
    });
}

/// With rdma-core's variable for it.
#[test]
fn objects_of_removed_devices_can_be_destroyed() {
    on_emulated_host_with(&["--host", "alpha"], || {
        // SAFETY: no other thread of this process reads the environment now.
        unsafe { std::env::set_var("RDMAV_ALLOW_DISASSOC_DESTROY", "1") };
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(4);
        let pair = endpoint.srd(queue, 0);
        let region = endpoint.register(&mut [0u8; 64], IBV_ACCESS_LOCAL_WRITE);
        fault(&["remove", "alpha"]);
        assert_eq!(next(endpoint.context), (DEVICE_FATAL, 0));
        assert_eq!(ibv_destroy_qp(pair), 0);
        assert_eq!(ibv_destroy_cq(queue), 0);
        assert_eq!(ibv_dereg_mr(region), 0);
        assert_eq!(ibv_destroy_ah(endpoint.handle), 0);
        assert_eq!(ibv_dealloc_pd(endpoint.pd), 0);
        assert_eq!(ibv_close_device(endpoint.context), 0);
    });
}

#[test]
fn a_port_loses_and_regains_its_link() {
    on_emulated_host_with(&["--host", "alpha"], || {
        let endpoint = Endpoint::new();
        assert_eq!(port_state(endpoint.context), Ok(4));
        for _ in 0..2 {
            fault(&["port-down", "alpha"]);
            assert_eq!(next(endpoint.context), (PORT_ERR, 1));
            assert_eq!(port_state(endpoint.context), Ok(1));
            let down = ["1: DOWN\n", "3: Disabled\n", "100 Gb/sec (4X EDR)\n"];
            expect_in_sysfs(endpoint.context, down);
            fault(&["port-up", "alpha"]);
            assert_eq!(next(endpoint.context), (PORT_ACTIVE, 1));
            assert_eq!(port_state(endpoint.context), Ok(4));
            let up = ["4: ACTIVE\n", "5: LinkUp\n", "100 Gb/sec (4X EDR)\n"];
            expect_in_sysfs(endpoint.context, up);
        }
        assert!(!has_event(endpoint.context));
        // The port sends and receives while it has a link.
        let queue = endpoint.cq(4);
        let (from, to) = (endpoint.srd(queue, 0), endpoint.srd(queue, 0));
        assert_eq!(post_recv(to, 1, &mut []), 0);
        send(&endpoint, from, to, 2, &mut []);
        assert_eq!(done(queue, 2), [(1, 0), (2, 0)]);
    });
}

/// The link goes down in the middle of a burst. Datagrams without a link are lost, which their
/// sender does not notice; the receives stay, and every datagram of the burst after the link's
/// return arrives.
#[test]
fn datagrams_go_on_when_the_link_returns() {
    const BURST: u64 = 8;
    const BEFORE: u64 = 4;
    on_emulated_host_with(&["--host", "alpha"], || {
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(64);
        let (from, to) = (endpoint.ud(queue), endpoint.ud(queue));
        let mut memory = [0u8; 64];
        let region = endpoint.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
        // Receives are numbered from 100 on, in the order in which datagrams take them.
        let receive = |numbers: std::ops::Range<u64>| {
            for number in numbers {
                assert_eq!(post_recv(to, 100 + number, &mut [sge(region, 0, 64)]), 0);
            }
        };
        let burst = |arrivals: std::ops::Range<u64>| {
            for wr_id in 0..BURST {
                send(&endpoint, from, to, wr_id, &mut [sge(region, 0, 8)]);
            }
            let expected: Vec<_> = (0..BURST)
                .chain(arrivals.map(|number| 100 + number))
                .map(|wr_id| (wr_id, 0))
                .collect();
            assert_eq!(done(queue, expected.len()), expected);
        };
        for _ in 0..3 {
            fault(&[
                "add",
                &format!(
                    "when = {{ operation = \"datagram\", nth = {BEFORE} }}, \
                     then = {{ port-down = \"alpha\" }}"
                ),
            ]);
            receive(0..BURST);
            burst(0..BEFORE);
            assert_eq!(next(endpoint.context), (PORT_ERR, 1));
            burst(0..0);
            fault(&["port-up", "alpha"]);
            assert_eq!(next(endpoint.context), (PORT_ACTIVE, 1));
            receive(BURST..BURST + BEFORE);
            burst(BEFORE..BURST + BEFORE);
            fault(&["clear"]);
        }
        assert_eq!(poll(queue, &mut [ibv_wc::default()]), 0);
        assert!(!has_event(endpoint.context));
    });
}

/// The width and the speed of the port by `ibv_query_port`, and the speed by
/// `ibv_query_port_speed`.
fn port_speed(context: *mut ibv_context) -> (u8, u8, u64) {
    let mut port: ibv_port_attr = zeroed();
    let mut speed = 0;
    // SAFETY: a live context, and room for the answers.
    unsafe {
        assert_eq!(ibv_query_port(context, 1, &raw mut port), 0);
        assert_eq!(ibv_query_port_speed(context, 1, &raw mut speed), 0);
    }
    (port.active_width, port.active_speed, speed)
}

/// By a command and by a rule. A program gets one event for each change, and none from the other
/// device of the host.
#[test]
fn the_link_of_a_port_gets_another_speed() {
    on_emulated_host_with(&["--host", "alpha", "--devices", "2"], || {
        let endpoint = Endpoint::number(0);
        let other = Endpoint::number(1);
        const DEFAULT: (u8, u8, u64) = (2, 32, 1000);
        assert_eq!(port_speed(endpoint.context), DEFAULT);
        for (gbps, expected) in [
            ("400", (4, 64, 4000)),
            ("25", (1, 32, 250)),
            ("120", (8, 8, 1200)),
        ] {
            fault(&["port-speed", "alpha:0", gbps]);
            assert_eq!(next(endpoint.context), (DEVICE_SPEED_CHANGE, 0));
            assert_eq!(port_speed(endpoint.context), expected);
            assert_eq!(port_state(endpoint.context), Ok(4));
        }
        let slower = ["4: ACTIVE\n", "5: LinkUp\n", "120 Gb/sec (12X FDR10)\n"];
        expect_in_sysfs(endpoint.context, slower);
        fault(&["port-speed", "alpha:0", "120"]);
        fault(&["clear"]);
        assert_eq!(next(endpoint.context), (DEVICE_SPEED_CHANGE, 0));
        assert_eq!(port_speed(endpoint.context), DEFAULT);

        // A rule that applies at the second message.
        let queue = endpoint.cq(16);
        let pair = endpoint.srd(queue, 0);
        fault(&[
            "add",
            "when = { sender = \"alpha:0\", nth = 2 }, \
             then = { port-speed = { host = \"alpha:0\", gbps = 200 } }",
        ]);
        for (wr_id, expected) in [(1, DEFAULT), (2, (2, 64, 2000))] {
            assert_eq!(post_recv(pair, wr_id, &mut []), 0);
            send(&endpoint, pair, pair, wr_id, &mut []);
            assert!(wait_for(queue, 2).iter().all(|done| done.status == 0));
            if wr_id == 2 {
                assert_eq!(next(endpoint.context), (DEVICE_SPEED_CHANGE, 0));
            }
            assert_eq!(port_speed(endpoint.context), expected);
        }
        assert!(!has_event(endpoint.context));
        assert!(!has_event(other.context));
        assert_eq!(port_speed(other.context), DEFAULT);
    });
}

/// The entries in the queue stay, and an event reports that there were more.
#[test]
fn completion_queue_overrun_raises_an_event() {
    on_emulated_host_with(&[], || {
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(4);
        let pair = endpoint.srd(queue, 0);
        // Fills the queue repeatedly.
        let flush = |count: u64| {
            for wr_id in 0..count {
                assert_eq!(post_recv(pair, wr_id, &mut []), 0);
            }
            change_state(pair, IBV_QPS_ERR, IBV_QP_STATE);
        };
        for _ in 0..5 {
            flush(4);
            assert_eq!(wait_for(queue, 4).len(), 4);
            assert!(!has_event(endpoint.context));
            change_state(pair, IBV_QPS_RESET, IBV_QP_STATE);
            ready(pair);
        }
        flush(6);
        assert_eq!(next(endpoint.context), (CQ_ERR, queue.addr()));
        let expected = [0, 1, 2, 3].map(|wr_id| (wr_id, FLUSHED));
        assert_eq!(done(queue, 4), expected);
        assert_eq!(poll(queue, &mut [ibv_wc::default()]), 0);
        assert!(!has_event(endpoint.context), "it is told once");
        assert_eq!(ibv_destroy_qp(pair), 0);
        assert_eq!(ibv_destroy_cq(queue), 0);
    });
}

/// Outstanding requests are flushed, the program gets an event, and other queue pairs continue.
#[test]
fn a_staged_error_fails_one_pair_or_all() {
    on_emulated_host_with(&["--host", "alpha"], || {
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(64);
        let [failed, other] = [(); 2].map(|()| endpoint.srd(queue, 0));
        // SAFETY: a live queue pair.
        let number = unsafe { (*failed).qp_num }.to_string();
        for wr_id in 0..3 {
            assert_eq!(post_recv(failed, wr_id, &mut []), 0);
        }
        fault(&["qp-error", "alpha", &number]);
        assert_eq!(next(endpoint.context), (QP_FATAL, failed.addr()));
        let ended = wait_for(queue, 3);
        assert!(ended.iter().all(|ended| ended.status as u32 == FLUSHED));
        // The program sees the state of its last query.
        assert_eq!(post_recv(failed, 7, &mut []), 0);
        assert_eq!(wait_for(queue, 1)[0].status as u32, FLUSHED);
        let mut attributes: ibv_qp_attr = zeroed();
        let mut initial: ibv_qp_init_attr = zeroed();
        // SAFETY: a live queue pair, and room for attributes.
        unsafe {
            assert_eq!((*failed).state, IBV_QPS_RTS);
            let mask = IBV_QP_STATE as c_int;
            let asked = ibv_query_qp(failed, &raw mut attributes, mask, &raw mut initial);
            assert_eq!((asked, attributes.qp_state), (0, IBV_QPS_ERR));
            assert_eq!((*failed).state, IBV_QPS_ERR);
        }
        assert_eq!(post_recv(failed, 8, &mut []), EINVAL);

        assert_eq!(post_recv(other, 1, &mut []), 0);
        send(&endpoint, other, other, 2, &mut []);
        assert!(wait_for(queue, 2).iter().all(|done| done.status == 0));
        fault(&["qp-error", "alpha"]);
        assert_eq!(next(endpoint.context), (QP_FATAL, other.addr()));
        assert!(!has_event(endpoint.context), "one has failed before");
        // After a reset it works again.
        change_state(failed, IBV_QPS_RESET, IBV_QP_STATE);
        ready(failed);
        assert_eq!(post_recv(failed, 1, &mut []), 0);
        send(&endpoint, failed, failed, 2, &mut []);
        assert!(wait_for(queue, 2).iter().all(|done| done.status == 0));
    });
}

/// As with a full queue: the program gets an event, and one completion is missing.
#[test]
fn a_staged_completion_queue_error_loses_a_completion() {
    on_emulated_host_with(&["--host", "alpha"], || {
        let endpoint = Endpoint::new();
        let [sends, receives, other] = [(); 3].map(|()| endpoint.cq(16));
        let (mut request, mut efa) = endpoint.srd_request(sends, 0);
        request.recv_cq = receives;
        let pair = endpoint.create(&mut request, &mut efa);
        ready(pair);
        let exchange = |wr_id| {
            assert_eq!(post_recv(pair, wr_id, &mut []), 0);
            send(&endpoint, pair, pair, wr_id, &mut []);
        };
        // SAFETY: a live queue pair.
        let number = unsafe { (*pair).qp_num }.to_string();
        fault(&["cq-error", "alpha", &number]);
        assert_eq!(next(endpoint.context), (CQ_ERR, sends.addr()));
        assert_eq!(next(endpoint.context), (CQ_ERR, receives.addr()));
        for wr_id in 1..3 {
            exchange(wr_id);
        }
        for queue in [sends, receives] {
            assert_eq!(wait_for(queue, 1)[0].wr_id, 2);
            assert_eq!(poll(queue, &mut [ibv_wc::default()]), 0);
        }
        fault(&["cq-error", "alpha"]);
        let mut told = [(); 3].map(|()| next(endpoint.context).1);
        told.sort_unstable();
        let mut all = [sends, receives, other].map(|queue| queue.addr());
        all.sort_unstable();
        assert_eq!(told, all);
    });
}

/// The rule matches a send; its queue pair fails after it.
#[test]
fn a_rule_fails_the_requests_queue_pair() {
    on_emulated_host_with(&["--host", "alpha"], || {
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(64);
        let pair = endpoint.srd(queue, 0);
        // SAFETY: a live queue pair.
        let number = unsafe { (*pair).qp_num };
        let rule = format!(
            "when = {{ sender = \"alpha\", nth = 2 }}, \
             then = {{ qp-error = {{ host = \"alpha\", qpn = {number} }} }}"
        );
        fault(&["add", &rule]);
        for wr_id in 0..4 {
            assert_eq!(post_recv(pair, wr_id, &mut []), 0);
        }
        let send = |wr_id, completions| {
            send(&endpoint, pair, pair, wr_id, &mut []);
            done(queue, completions)
        };
        assert_eq!(send(10, 2), [(0, 0), (10, 0)]);
        // The second send arrives first; its own completion may be flushed with the rest.
        let ended = send(11, 4);
        assert_eq!(ended[..3], [(1, 0), (2, FLUSHED), (3, FLUSHED)]);
        assert_eq!(next(endpoint.context), (QP_FATAL, pair.addr()));
    });
}

/// An event that the program took keeps its object until it is acknowledged; other events do not.
#[test]
fn objects_wait_for_the_acknowledgement_of_their_events() {
    on_emulated_host_with(&["--host", "alpha"], || {
        type Destroy = fn(usize) -> c_int;
        let endpoint = Endpoint::new();
        let make = || {
            let queue = endpoint.cq(16);
            (queue, endpoint.srd(queue, 0))
        };
        let destroy_pair: Destroy =
            |pair| ibv_destroy_qp(std::ptr::with_exposed_provenance_mut(pair));
        let destroy_queue: Destroy =
            |queue| ibv_destroy_cq(std::ptr::with_exposed_provenance_mut(queue));
        let (queue, pair) = make();
        let objects = [
            (pair.expose_provenance(), destroy_pair),
            (queue.expose_provenance(), destroy_queue),
        ];
        for (command, (object, destroy)) in ["qp-error", "cq-error"].into_iter().zip(objects) {
            fault(&[command, "alpha"]);
            let first = take(endpoint.context);
            assert_eq!(first.element.addr(), object);
            let destroying = std::thread::spawn(move || destroy(object));
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!destroying.is_finished(), "{command}");
            acknowledge(first);
            assert_eq!(destroying.join().unwrap(), 0);
        }

        let (queue, pair) = make();
        for command in ["qp-error", "cq-error"] {
            fault(&[command, "alpha"]);
        }
        let wait = efa_testing::patience::Wait::start();
        while !has_event(endpoint.context) {
            wait.check(|| "no event".into());
        }
        assert_eq!(ibv_destroy_qp(pair), 0);
        assert_eq!(ibv_destroy_cq(queue), 0);

        assert!(!has_event(endpoint.context), "of what does not exist");
    });
}
