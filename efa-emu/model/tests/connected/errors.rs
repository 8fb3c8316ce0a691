//! Errors that end connections, and hostile packets that must not.

use efa_core::address::{Qkey, Qpn};
use efa_core::nic::Access;
use efa_device_model::device::connected::{
    BufferList, ConnectionAttributes, ConnectionMask, REMOTE_ATOMIC, RemoteMemory, SendOperation,
    WcStatus,
};
use efa_device_model::device::queue::Buffer;
use efa_device_model::device::{DeviceEvent, QpState};
use efa_device_model::link::{Operation, RequestHeader};
use proptest::prelude::*;

use efa_testing::device::net::{MEMORY, Net, NetworkEffects, SIZE, attributes, gid, request};

const CALM: NetworkEffects = NetworkEffects {
    loss: 0.0,
    duplicates: 0.0,
    longest: 1,
    busy: 0.0,
    acknowledges: false,
};

const A: Qpn = Qpn(7);
const B: Qpn = Qpn(8);
const SEND: u8 = 0;
const RECV: u8 = 128;

fn state(net: &Net, host: usize, qpn: Qpn) -> QpState {
    let found = net.hosts[host].device.query_connected_qp(qpn);
    found.unwrap().state
}

/// Connects two hosts, with changed attributes at the first.
fn connect(change: impl FnOnce(&mut ConnectionAttributes), effects: NetworkEffects) -> Net {
    let mut net = Net::new(2, effects, 1);
    let pairs = [net.queue_pair(0, 7, None), net.queue_pair(1, 8, None)];
    let mut own = attributes(1, pairs[1]);
    change(&mut own);
    net.bring_up(0, pairs[0], own);
    net.bring_up(1, pairs[1], attributes(0, pairs[0]));
    net
}

#[test]
fn a_receiver_without_receives_is_given_up() {
    let mut net = connect(|own| own.rnr_retry = 2, CALM);
    for wr_id in 1..=2 {
        let list = net.hosts[0].list(0, 100);
        net.post(0, A, request(wr_id, SendOperation::Send(None), list));
    }
    net.settle();
    let exceeded = WcStatus::RnrRetryExceeded as u8;
    let flushed = WcStatus::Flushed as u8;
    let expected = [(1, exceeded, SEND), (2, flushed, SEND)];
    assert_eq!(net.hosts[0].completions(), expected);
    assert_eq!(state(&net, 0, A), QpState::Error);
    assert_eq!(
        state(&net, 1, B),
        QpState::ReadyToSend,
        "it did nothing wrong"
    );
    assert_eq!(net.hosts[0].events(), [DeviceEvent::QpFatal(A)]);
    assert_eq!(net.hosts[1].device.statistics().diagnostics.rnr_refusals, 3);
}

/// Each lost packet is a time-out, and there are more of them than `retry_cnt` while the receiver
/// has no receive.
#[test]
fn old_losses_do_not_add_up() {
    let lossy = NetworkEffects { loss: 0.1, ..CALM };
    let mut net = connect(|own| own.rnr_retry = 7, lossy);
    let list = net.hosts[0].list(0, 100);
    net.post(0, A, request(1, SendOperation::Send(None), list));
    for _ in 0..2000 {
        net.step();
    }
    net.hosts[1].receive(B, 9, 0, 100);
    net.settle();
    assert_eq!(net.hosts[0].completions(), [(1, 0, SEND)]);
}

#[test]
fn silent_peers_are_given_up_after_retries() {
    let lost = NetworkEffects { loss: 1.0, ..CALM };
    for retries in [0, 3] {
        let mut net = connect(|own| own.retry_count = retries, lost);
        let list = net.hosts[0].list(0, 100);
        net.post(0, A, request(1, SendOperation::Send(None), list));
        net.settle();
        let exceeded = [(1, WcStatus::RetryExceeded as u8, SEND)];
        assert_eq!(net.hosts[0].completions(), exceeded);
        let counters = net.hosts[0].device.counters();
        assert_eq!(counters.retrans_pkts, u64::from(retries));
    }
}

#[test]
fn refusals_end_both_sides_as_they_should() {
    let (rd, wr, inv) = (
        WcStatus::RemoteAccess as u8,
        WcStatus::RemoteAccess as u8,
        WcStatus::RemoteInvalidRequest as u8,
    );
    let unknown = RemoteMemory {
        address: MEMORY,
        key: 1,
    };
    let outside = |net: &Net| net.hosts[1].remote(SIZE - 4);
    let odd = |net: &Net| net.hosts[1].remote(4);
    type Ask = fn(RemoteMemory) -> SendOperation;
    let write: Ask = |remote| SendOperation::Write(remote, None);
    let read: Ask = SendOperation::Read;
    let add: Ask = |remote| SendOperation::FetchAdd { remote, add: 1 };
    let access = DeviceEvent::QpAccessError(B);
    let invalid = DeviceEvent::QpRequestError(B);
    let mut net = connect(|_| {}, CALM);
    let cases = [
        (write, unknown, wr, access),
        (write, outside(&net), wr, access),
        (read, unknown, rd, access),
        (read, outside(&net), rd, access),
        (add, unknown, rd, access),
        (add, odd(&net), inv, invalid),
    ];
    for (operation, remote, status, event) in cases {
        net = connect(|_| {}, CALM);
        net.hosts[1].receive(B, 9, 0, 8);
        let before = net.hosts[1].memory.clone();
        let list = net.hosts[0].list(0, 8);
        net.post(0, A, request(1, operation(remote), list));
        net.settle();
        let (_, found, _) = net.hosts[0].completions()[0];
        assert_eq!(found, status, "{:?}", operation(remote));
        let flushed = [(9, WcStatus::Flushed as u8, RECV)];
        assert_eq!(net.hosts[1].completions(), flushed);
        assert_eq!(net.hosts[1].events(), [event]);
        assert!(net.hosts[1].memory == before, "nothing was written");
        assert_eq!(state(&net, 1, B), QpState::Error);
    }
}

/// The keys are valid, but the queue pair denies the access.
#[test]
fn access_flags_of_the_queue_pair_count() {
    for (allowed, operations) in [
        (Access::REMOTE_READ, [false, true, false]),
        (Access::REMOTE_WRITE, [true, false, false]),
        (REMOTE_ATOMIC, [false, false, true]),
    ] {
        for (index, is_allowed) in operations.into_iter().enumerate() {
            let mut net = Net::new(2, CALM, 1);
            let pairs = [net.queue_pair(0, 7, None), net.queue_pair(1, 8, None)];
            net.bring_up(0, pairs[0], attributes(1, pairs[1]));
            let to = ConnectionAttributes {
                access: allowed,
                ..attributes(0, pairs[0])
            };
            net.bring_up(1, pairs[1], to);
            let remote = net.hosts[1].remote(0);
            let operation = match index {
                0 => SendOperation::Write(remote, None),
                1 => SendOperation::Read(remote),
                _ => SendOperation::FetchAdd { remote, add: 1 },
            };
            let list = net.hosts[0].list(0, 8);
            net.post(0, A, request(1, operation, list));
            net.settle();
            let (_, status, _) = net.hosts[0].completions()[0];
            assert_eq!(status == 0, is_allowed, "{operation:?} {allowed:?}");
        }
    }
}

#[test]
fn a_message_longer_than_its_receive_fails_both() {
    let mut net = connect(|_| {}, CALM);
    net.hosts[1].receive(B, 9, 0, 300);
    let list = net.hosts[0].list(0, 301);
    net.post(0, A, request(1, SendOperation::Send(None), list));
    net.settle();
    let invalid = WcStatus::RemoteInvalidRequest as u8;
    assert_eq!(net.hosts[0].completions(), [(1, invalid, SEND)]);
    let length = WcStatus::LocalLength as u8;
    assert_eq!(net.hosts[1].completions(), [(9, length, RECV)]);
}

#[test]
fn memory_that_is_not_registered_fails_locally() {
    let mut net = connect(|_| {}, CALM);
    let stale = Buffer::new(MEMORY, 8, 1);
    let list = BufferList::new(&[stale]).unwrap();
    net.post(0, A, request(1, SendOperation::Send(None), list));
    net.settle();
    let protection = WcStatus::LocalProtection as u8;
    assert_eq!(net.hosts[0].completions(), [(1, protection, SEND)]);
    assert_eq!(net.hosts[0].events(), [DeviceEvent::QpFatal(A)]);
}

#[test]
fn reads_need_a_permitted_queue_pair() {
    let mut net = connect(|own| own.max_rd_atomic = 0, CALM);
    let (remote, list) = (net.hosts[1].remote(0), net.hosts[0].list(0, 8));
    net.post(0, A, request(1, SendOperation::Read(remote), list));
    net.settle();
    let (_, status, _) = net.hosts[0].completions()[0];
    assert_eq!(status, WcStatus::LocalOperation as u8);
}

#[test]
fn requests_are_refused_by_state() {
    let mut net = Net::new(1, CALM, 1);
    let qpn = net.queue_pair(0, 7, None);
    let list = net.hosts[0].list(0, 8);
    let wr = request(1, SendOperation::Send(None), list);
    let device = &mut net.hosts[0].device;
    let refused = device.post_connected_send(qpn, wr.clone()).unwrap_err();
    assert_eq!(refused.errno(), libc::EINVAL);
    let to = ConnectionAttributes {
        state: QpState::Error,
        ..ConnectionAttributes::default()
    };
    device
        .modify_connected_qp(qpn, &to, ConnectionMask::STATE)
        .unwrap();
    device.post_connected_send(qpn, wr).unwrap();
    net.hosts[0].receive(qpn, 2, 0, 8);
    let flushed = WcStatus::Flushed as u8;
    let expected = [(1, flushed, SEND), (2, flushed, RECV)];
    assert_eq!(net.hosts[0].completions(), expected);
}

/// For example because its process waits for a processor: it had no chance to answer.
#[test]
fn a_peer_without_packets_is_waited_for() {
    let mut net = connect(|own| own.retry_count = 1, CALM);
    net.is_stopped = true;
    let list = net.hosts[0].list(0, 100);
    net.post(0, A, request(1, SendOperation::Send(None), list));
    net.settle();
    assert!(net.now.is_zero(), "no time-out begins");
    assert_eq!(net.hosts[0].completions(), []);
    assert_eq!(net.hosts[0].device.counters().retrans_pkts, 0);
}

/// A fault rule fails queue pairs of either type.
#[test]
fn staged_errors_fail_connections() {
    use efa_device_model::device::{QueueError, QueueKind};
    let mut net = connect(|_| {}, CALM);
    net.hosts[1].receive(B, 9, 0, 8);
    net.hosts[1].device.stage(QueueError {
        kind: QueueKind::QueuePair,
        qpn: Some(B),
    });
    assert_eq!(
        net.hosts[1].completions(),
        [(9, WcStatus::Flushed as u8, RECV)]
    );
    assert_eq!(net.hosts[1].events(), [DeviceEvent::QpFatal(B)]);
    let list = net.hosts[0].list(0, 8);
    net.post(0, A, request(1, SendOperation::Send(None), list));
    net.settle();
    let (_, status, _) = net.hosts[0].completions()[0];
    assert_eq!(status, WcStatus::RetryExceeded as u8);
}

#[test]
fn efa_has_no_connected_queue_pairs() {
    use efa_device_model::device::Device;
    use efa_device_model::device::connected::ConnectedConfig;
    use efa_device_model::device::queue::RequestIdSize;
    use efa_device_model::profile::Profile;
    for profile in Profile::all() {
        let mut device = Device::new(profile.clone(), gid(0));
        let pd = device.alloc_pd().unwrap();
        let (cq, _) = device.create_cq(4, RequestIdSize::Bits16).unwrap();
        let config = ConnectedConfig {
            pd,
            send_cq: cq,
            recv_cq: cq,
            shared: None,
            max_send_wr: 1,
            max_recv_wr: 1,
            max_recv_sge: 1,
        };
        let refused = device.create_connected_qp(Qpn(1), config).unwrap_err();
        assert_eq!(refused.errno(), libc::EOPNOTSUPP, "{}", profile.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Random bytes: no panic, memory that is not addressed stays unchanged, and a connection
    /// between other hosts continues.
    #[test]
    fn hostile_packets_do_not_affect_other_connections(
        packets in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..120), any::<bool>(), 0..24u8, 0..4u32), 1..12),
    ) {
        let mut net = connect(|_| {}, CALM);
        let others = [net.queue_pair(0, 20, None), net.queue_pair(1, 21, None)];
        net.bring_up(0, others[0], attributes(1, others[1]));
        net.bring_up(1, others[1], attributes(0, others[0]));
        for (mut bytes, is_plausible, opcode, ahead) in packets {
            if is_plausible && bytes.len() >= 12 {
                // Valid values for the checks of the first headers.
                bytes[0] = opcode;
                bytes[1] &= 0xb0;
                bytes[4..8].copy_from_slice(&8u32.to_be_bytes());
                let psn = 0xff_fff0 + ahead;
                bytes[8..12].copy_from_slice(&(psn | 1 << 31).to_be_bytes());
            }
            let header = RequestHeader {
                operation: Operation::Connected,
                source_qpn: A,
                destination_qpn: B,
                qkey: Qkey(0),
                sequence: 0,
                retries: 0,
                immediate: None,
                remote: None,
                length: bytes.len() as u32,
            };
            net.inject(0, 1, &header, &bytes);
        }
        net.hosts[1].receive(others[1], 1, 0, 64);
        let list = net.hosts[0].list(0, 64);
        net.post(0, others[0], request(2, SendOperation::Send(None), list));
        net.settle();
        let done = net.hosts[0].completions();
        prop_assert!(done.contains(&(2, 0, SEND)), "{done:?}");
        prop_assert!(net.hosts[1].completions().contains(&(1, 0, RECV)));
    }
}
