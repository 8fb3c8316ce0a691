//! Work requests that include the packet, in entries of 64 and of 128 bytes.

use super::*;
use efa_hw::OpenError;

fn open_with(device: &HwDevice, inline_size: Option<usize>) -> Result<HwNic, OpenError> {
    device.open_nic(NicConfig {
        packet_buffers: 64,
        inline_size,
        ..NicConfig::default()
    })
}

/// Sends packets of all lengths around the limits.
fn exchange(a: &mut HwNic, b: &mut HwNic) {
    let to = destination(a, b);
    for length in [0, 1, 31, 32, 33, 48, 64, 79, 80, 81, 128] {
        let bytes: Vec<u8> = (0..length).map(|index| index ^ 0x5A).collect();
        let immediate = (length % 2 == 0).then_some(0x0102_0304);
        post_receive(b);
        send(a, to, &bytes, immediate, 9);
        let received = wait(&mut [b], 1);
        expect_received(b, &received[0], &bytes, immediate);
        expect_sent(&wait(&mut [a], 1)[0], 9, Status::Ok);
    }
}

#[test]
fn packets_are_inside_of_wide_entries() {
    with_device(|device| {
        let (usual, widest) = (device.attributes().inline_size, device.max_inline_size());
        if widest == usual {
            efa_testing::skip(format_args!(
                "{} has no entries of 128 bytes",
                device.name()
            ));
            return;
        }
        let mut b = open(&device);
        for inline_size in [0, usual, usual + 1, widest] {
            let mut a = open_with(&device, Some(inline_size)).unwrap();
            assert_eq!(a.queue_pair().attributes().inline_size, inline_size);
            exchange(&mut a, &mut b);
        }
        let beyond = open_with(&device, Some(widest + 1)).unwrap_err();
        let text = beyond.to_string();
        assert!(matches!(beyond, OpenError::Config { .. }), "{text}");
        assert!(text.contains(&format!("{widest}")), "{text}");
    });
}

/// The memory of the send queue has room for half as many wide entries.
#[test]
fn wide_entries_take_the_room_of_two() {
    with_device(|device| {
        let widest = device.max_inline_size();
        if widest == device.attributes().inline_size {
            efa_testing::skip(format_args!(
                "{} has no entries of 128 bytes",
                device.name()
            ));
            return;
        }
        let open = |send_queue_depth, inline_size| {
            device.open_nic(NicConfig {
                send_queue_depth,
                packet_buffers: 64,
                inline_size,
                ..NicConfig::default()
            })
        };
        let deepest = device.attributes().send_queue_depth;
        open(deepest, None).unwrap();
        open(deepest / 2, Some(widest)).unwrap();
        let refused = open(deepest, Some(widest)).unwrap_err().to_string();
        assert!(
            refused.starts_with("efadv_create_qp_ex failed on "),
            "{refused}"
        );
    });
}

/// Data of writes up to the limit is included in the work request: no key of the memory is needed,
/// and the memory may change before the write has completed. Longer writes refer to their memory.
#[test]
fn short_writes_are_inside_of_their_entries() {
    with_device(|device| {
        let widest = device.max_inline_size();
        let can_write = device.attributes().caps.contains(DeviceCaps::RDMA_WRITE);
        if widest == device.attributes().inline_size || !can_write {
            efa_testing::skip(format_args!(
                "{} has no entries of 128 bytes or no RDMA writes",
                device.name()
            ));
            return;
        }
        let mut b = open(&device);
        let config = NicConfig {
            packet_buffers: 64,
            inline_size: Some(widest),
            inline_writes: true,
            ..NicConfig::default()
        };
        let mut a = device.open_nic(config).unwrap();
        b.create_address_handle(a.address().gid).unwrap();
        let to = destination(&mut a, &b);
        let (local, remote) = (a.allocate(4096).unwrap(), b.allocate(4096).unwrap());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = b.register(remote, access).unwrap();
        // A key of a registration that has ended.
        let ended = a.register(local, Access::empty()).unwrap();
        a.deregister(ended).unwrap();
        let write = |length, immediate| RdmaRequest {
            destination: to,
            local: UserSlice { length, ..local },
            local_key: ended.local_key,
            remote_address: remote.address + 100,
            remote_key: region.remote_key,
            immediate,
            context: length as u64,
        };
        for length in [1, 31, 32, 33, widest - 1, widest] {
            b.write_user(remote.address, &[0x11; 4096]).unwrap();
            let bytes = efa_testing::pattern(length, 0xA5);
            a.write_user(local.address, &bytes).unwrap();
            let immediate = (length % 2 == 0).then_some(0x0102_0304);
            if immediate.is_some() {
                post_receive(&mut b);
            }
            a.post_write(&write(length, immediate), Doorbell::Ring)
                .unwrap();
            a.write_user(local.address, &vec![0xFF; length]).unwrap();
            let done = wait(&mut [&mut a], 1);
            assert_eq!(
                (done[0].context, done[0].status),
                (length as u64, Status::Ok)
            );
            let mut expected = vec![0x11; 4096];
            expected[100..100 + length].copy_from_slice(&bytes);
            assert_eq!(b.read(remote).unwrap(), expected, "{length} bytes");
            if immediate.is_some() {
                assert_eq!(wait(&mut [&mut b], 1)[0].status, Status::Ok);
            }
        }
        // These writes refer to their memory, whose key is wrong: a longer write, one that
        // waits for its doorbell, and one of memory that is unknown to the domain.
        a.post_write(&write(widest + 1, None), Doorbell::Ring)
            .unwrap();
        assert_eq!(wait(&mut [&mut a], 1)[0].status, Status::LocalInvalidLkey);
        a.post_write(&write(1, None), Doorbell::Defer).unwrap();
        a.flush();
        assert_eq!(wait(&mut [&mut a], 1)[0].status, Status::LocalInvalidLkey);
        let unknown = RdmaRequest {
            local: UserSlice::new(4096, 8),
            ..write(8, None)
        };
        a.post_write(&unknown, Doorbell::Ring).unwrap();
        assert_eq!(wait(&mut [&mut a], 1)[0].status, Status::LocalInvalidLkey);
    });
}

/// By default writes refer to their memory.
#[test]
fn writes_name_their_memory_unless_asked_otherwise() {
    with_device(|device| {
        if !device.attributes().caps.contains(DeviceCaps::RDMA_WRITE) {
            efa_testing::skip(format_args!("{} has no RDMA writes", device.name()));
            return;
        }
        let widest = device.max_inline_size();
        let (mut a, mut b) = (open_with(&device, Some(widest)).unwrap(), open(&device));
        b.create_address_handle(a.address().gid).unwrap();
        let (local, remote) = (a.allocate(64).unwrap(), b.allocate(64).unwrap());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = b.register(remote, access).unwrap();
        let ended = a.register(local, Access::empty()).unwrap();
        a.deregister(ended).unwrap();
        let write = RdmaRequest {
            destination: destination(&mut a, &b),
            local: UserSlice { length: 8, ..local },
            local_key: ended.local_key,
            remote_address: remote.address,
            remote_key: region.remote_key,
            immediate: None,
            context: 0,
        };
        a.post_write(&write, Doorbell::Ring).unwrap();
        assert_eq!(wait(&mut [&mut a], 1)[0].status, Status::LocalInvalidLkey);
    });
}
