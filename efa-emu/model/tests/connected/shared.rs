//! Shared receive queues.

use efa_core::address::Qpn;
use efa_device_model::device::DeviceEvent;
use efa_device_model::device::connected::{SendOperation, SrqId};

use efa_testing::device::net::{Net, NetworkEffects, request};

fn post(net: &mut Net, id: SrqId, wr_id: u64) -> Result<(), i32> {
    net.hosts[0].receive_shared(id, wr_id, wr_id as usize * 256, 256)
}

/// One host with a shared receive queue, and two hosts that send to it.
fn network() -> (Net, SrqId) {
    let calm = NetworkEffects {
        longest: 1,
        ..NetworkEffects::default()
    };
    Net::receiver(2, calm, 1, 8, None)
}

#[test]
fn queue_pairs_share_receives_in_order() {
    let (mut net, id) = network();
    for wr_id in 0..4 {
        post(&mut net, id, wr_id).unwrap();
    }
    for round in 0..2u64 {
        for peer in [1, 2] {
            net.hosts[peer].memory[..4].fill(10 * peer as u8 + round as u8);
            let list = net.hosts[peer].list(0, 4);
            net.post(
                peer,
                Qpn(5),
                request(round, SendOperation::Send(None), list),
            );
            net.settle();
        }
    }
    let mut found = Vec::new();
    while let Some(entry) = net.hosts[0].poll() {
        let wr_id = entry.connected_wr_id();
        let byte = net.hosts[0].memory[wr_id as usize * 256];
        found.push((wr_id, entry.qpn().0, byte));
    }
    assert_eq!(found, [(0, 11, 10), (1, 12, 20), (2, 11, 11), (3, 12, 21)]);
}

#[test]
fn the_limit_is_reported_once_and_refusals_recover() {
    let (mut net, id) = network();
    for wr_id in 0..2 {
        post(&mut net, id, wr_id).unwrap();
    }
    net.hosts[0].device.modify_srq(id, Some(2), None).unwrap();
    for wr_id in 0..4 {
        let list = net.hosts[1].list(0, 4);
        net.post(1, Qpn(5), request(wr_id, SendOperation::Send(None), list));
    }
    // The third finds no receive until one is posted.
    for _ in 0..200 {
        net.step();
    }
    assert_eq!(net.hosts[0].events(), [DeviceEvent::SrqLimit(id)]);
    assert_eq!(net.hosts[0].device.query_srq(id).unwrap().limit, 0);
    assert_eq!(net.hosts[1].completions().len(), 2);
    for wr_id in 2..4 {
        post(&mut net, id, wr_id).unwrap();
    }
    net.settle();
    assert_eq!(net.hosts[1].completions().len(), 2);
    assert_eq!(net.hosts[0].events(), [], "it was told once");
}

#[test]
fn size_errors_have_the_errnos_of_verbs() {
    let (mut net, id) = network();
    for wr_id in 0..8 {
        post(&mut net, id, wr_id).unwrap();
    }
    assert_eq!(post(&mut net, id, 8), Err(libc::ENOMEM));
    let device = &mut net.hosts[0].device;
    let errno =
        |result: Result<(), efa_device_model::device::Error>| result.map_err(|error| error.errno());
    assert_eq!(
        errno(device.modify_srq(id, Some(9), None)),
        Err(libc::EINVAL)
    );
    assert_eq!(
        errno(device.modify_srq(id, None, Some(7))),
        Err(libc::EINVAL)
    );
    assert_eq!(errno(device.modify_srq(id, Some(9), Some(16))), Ok(()));
    assert_eq!(errno(device.destroy_srq(id)), Err(libc::EBUSY));
    for qpn in [Qpn(11), Qpn(12)] {
        device.destroy_qp(qpn).unwrap();
    }
    assert_eq!(errno(device.destroy_srq(id)), Ok(()));
    assert_eq!(errno(device.destroy_srq(id)), Err(libc::ENOENT));
}
