//! Completions of a destroyed queue pair, when the next one has its number and its buffers.

use super::*;
use efa_hw::HwQueuePair;
use efa_testing::hw::with_device_of;

/// Sends a packet from this buffer. With a `payload` without a valid key the device fails it
/// immediately.
fn send_from(
    (pair, domain): (&mut HwQueuePair, &mut HwDomain),
    (destination, buffer, context): (Destination, BufferId, u64),
    payload: Option<UserSlice>,
    doorbell: Doorbell,
) {
    let request = SendRequest {
        payload: payload.map(|slice| (slice, LocalKey(0x00ab_cdef))),
        ..packet(destination, buffer, 8, context)
    };
    pair.post_send(domain, &request, doorbell).unwrap();
}

fn a_late_completion_ends_nothing(device: &HwDevice) {
    let config = DomainConfig { packet_buffers: 2 };
    let mut domain = device.open_domain(&config).unwrap();
    let slice = domain.allocate(8).unwrap();
    let queue = domain.create_completion_queue(16).unwrap();
    let mut first = domain.create_queue_pair(queue, &CONFIG).unwrap();
    let qpn = first.address().qpn;
    let ahn = domain.create_address_handle(first.address().gid).unwrap();
    let to = Destination::new(ahn, first.address());

    // The device writes both completions together; the second one stays in the queue.
    let buffers = [(); 2].map(|()| domain.acquire_buffer().unwrap());
    for (index, doorbell) in [Doorbell::Defer, Doorbell::Ring].into_iter().enumerate() {
        let packet = (to, buffers[index], index as u64);
        send_from((&mut first, &mut domain), packet, Some(slice), doorbell);
    }
    let completed = one_completion(&mut domain, queue);
    expect_sent(&completed, 0, Status::LocalInvalidLkey);
    domain.release_buffer(buffers[0]);
    first.close(&mut domain);

    let mut second = domain.create_queue_pair(queue, &CONFIG).unwrap();
    assert_eq!(second.address().qpn, qpn, "the number is used again");
    let again = [(); 2].map(|()| domain.acquire_buffer().unwrap());
    let buffer = *again.iter().find(|buffer| **buffer == buffers[1]).unwrap();
    let nobody = Destination {
        qpn: Qpn(qpn.0.wrapping_add(1)),
        ..to
    };
    let packet = (nobody, buffer, 77);
    send_from((&mut second, &mut domain), packet, None, Doorbell::Ring);
    let completed = one_completion(&mut domain, queue);
    expect_sent(&completed, 77, Status::RemoteBadDestQpn);
    second.close(&mut domain);
    assert_eq!(domain.poll(queue, &mut Vec::new(), 1), 0);
}

#[test]
fn late_completions_with_16_bit_request_ids() {
    with_device_of("efa2", |device| a_late_completion_ends_nothing(&device));
}

#[test]
fn late_completions_with_64_bit_request_ids() {
    with_device_of("efa4", |device| a_late_completion_ends_nothing(&device));
}
