//! Events of solicited completions.

use efa_core::address::Qpn;
use efa_device_model::device::connected::{SendOperation, SendWr};
use efa_device_model::device::queue::CqDoorbell;

use efa_testing::device::net::{Net, NetworkEffects, request};

/// Requests an event at the second host, and returns the number of immediate events.
fn arm(net: &mut Net, sequence: u8, solicited_only: bool) -> usize {
    let host = &mut net.hosts[1];
    let doorbell = CqDoorbell {
        consumer: host.consumer(),
        sequence,
        solicited_only,
        arm: true,
    };
    host.ring().doorbell().write(doorbell.to_bits());
    host.device.arm_cq(host.cq).unwrap();
    events(net)
}

fn events(net: &mut Net) -> usize {
    net.hosts[1].device.take_events().count()
}

/// Sends a message to the second host, and returns the number of resulting events.
fn message(net: &mut Net, is_solicited: bool) -> usize {
    net.hosts[1].receive(Qpn(8), 1, 0, 64);
    let list = net.hosts[0].list(0, 4);
    let wr = SendWr {
        is_solicited,
        ..request(1, SendOperation::Send(None), list)
    };
    net.post(0, Qpn(7), wr);
    net.settle();
    events(net)
}

fn network() -> Net {
    let calm = NetworkEffects {
        longest: 1,
        ..NetworkEffects::default()
    };
    Net::connected(calm, 1)
}

#[test]
fn only_solicited_messages_raise_solicited_events() {
    let mut net = network();
    assert_eq!(arm(&mut net, 0, true), 0);
    assert_eq!(message(&mut net, false), 0);
    assert_eq!(message(&mut net, true), 1);
    assert_eq!(message(&mut net, true), 0, "not armed again");
    let flags = net.hosts[1].poll().unwrap().connected_flags();
    assert_eq!(flags, 0, "the verbs have no such flag");
}

#[test]
fn unread_messages_wake_only_if_solicited() {
    let mut net = network();
    message(&mut net, false);
    assert_eq!(arm(&mut net, 0, true), 0);
    let mut net = network();
    message(&mut net, true);
    message(&mut net, false);
    assert_eq!(arm(&mut net, 0, true), 1);
}

#[test]
fn the_request_for_more_events_counts() {
    for order in [[true, false], [false, true]] {
        let mut net = network();
        for solicited_only in order {
            assert_eq!(arm(&mut net, 0, solicited_only), 0);
        }
        assert_eq!(message(&mut net, false), 1, "{order:?}");
    }
}

#[test]
fn failures_raise_solicited_events() {
    let mut net = network();
    net.hosts[1].receive(Qpn(8), 1, 0, 64);
    assert_eq!(arm(&mut net, 0, true), 0);
    let list = net.hosts[0].list(0, 65);
    net.post(0, Qpn(7), request(1, SendOperation::Send(None), list));
    net.settle();
    let completions = net.hosts[1].completions();
    assert_eq!(completions[0].1, 1, "too long for its receive");
    let is_completion =
        |event: &_| matches!(event, efa_device_model::device::DeviceEvent::Completion(_));
    let found: Vec<_> = net.hosts[1].device.take_events().collect();
    assert_eq!(found.iter().filter(|event| is_completion(event)).count(), 1);
}
