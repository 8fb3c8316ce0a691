//! Completion events: an armed queue raises one event when there is a new entry.

use efa_device_model::device::DeviceEvent;
use efa_device_model::device::queue::CqDoorbell;

use crate::harness::{Net, Setup};

fn events(net: &mut Net) -> usize {
    let host = &mut net.hosts[1];
    let cq = host.cq;
    host.device
        .take_events()
        .inspect(|event| assert_eq!(*event, DeviceEvent::Completion(cq)))
        .count()
}

fn arm(net: &mut Net) {
    let host = &mut net.hosts[1];
    host.completions.request_notification();
    host.device.arm_cq(host.cq).unwrap();
}

fn message(net: &mut Net, wr_id: u64) {
    let to = net.address(0, 1);
    net.hosts[1].post_recv(wr_id, &[(0, 16)]);
    net.hosts[0].post_send(wr_id, to, &[(0, 1)]);
    net.settle();
}

#[test]
fn an_armed_queue_raises_one_event() {
    let mut net = Net::pair(Setup::default());
    message(&mut net, 1);
    assert_eq!(events(&mut net), 0, "not armed");
    while net.hosts[1].poll().is_some() {}
    arm(&mut net);
    assert_eq!(events(&mut net), 0, "nothing new");
    message(&mut net, 2);
    message(&mut net, 3);
    assert_eq!(events(&mut net), 1);
    message(&mut net, 4);
    assert_eq!(events(&mut net), 0, "not armed again");
}

#[test]
fn arming_with_unread_entries_notifies_at_once() {
    let mut net = Net::pair(Setup::default());
    message(&mut net, 1);
    arm(&mut net);
    assert_eq!(events(&mut net), 1);
    // The client has received the event, polls no entry and requests another one.
    net.hosts[1].completions.event_received();
    arm(&mut net);
    assert_eq!(events(&mut net), 1);
    net.hosts[1].completions.event_received();
    assert!(net.hosts[1].poll().is_some());
    arm(&mut net);
    assert_eq!(events(&mut net), 0);
}

#[test]
fn arming_twice_before_receipt_gives_one_event() {
    let mut net = Net::pair(Setup::default());
    arm(&mut net);
    arm(&mut net);
    message(&mut net, 1);
    arm(&mut net);
    assert_eq!(events(&mut net), 1);
}

#[test]
fn a_consumer_index_update_does_not_disarm() {
    let mut net = Net::pair(Setup::default());
    arm(&mut net);
    let host = &mut net.hosts[1];
    let update = CqDoorbell {
        consumer: 0,
        sequence: 0,
        solicited_only: false,
        arm: false,
    };
    host.completions.ring().doorbell().write(update.to_bits());
    host.device.arm_cq(host.cq).unwrap();
    message(&mut net, 1);
    assert_eq!(events(&mut net), 1);
}

#[test]
fn a_doorbell_arms_a_watched_queue() {
    let mut net = Net::pair(Setup::default());
    let cq = net.hosts[1].cq;
    net.hosts[1].device.watch_cq(cq, true).unwrap();
    net.hosts[1].completions.request_notification();
    message(&mut net, 1);
    assert_eq!(events(&mut net), 1);
    // Armed without a call while an entry is unread: the watcher has to notice it.
    net.hosts[1].completions.event_received();
    net.hosts[1].completions.request_notification();
    assert_eq!(events(&mut net), 0);
    net.hosts[1].device.read_watched_doorbells();
    assert_eq!(events(&mut net), 1);
}

#[test]
fn a_destroyed_queue_raises_nothing() {
    let mut net = Net::pair(Setup::default());
    arm(&mut net);
    message(&mut net, 1);
    let host = &mut net.hosts[1];
    host.device.destroy_qp(host.client.qpn).unwrap();
    host.device.destroy_cq(host.cq).unwrap();
    assert_eq!(events(&mut net), 0);
}
