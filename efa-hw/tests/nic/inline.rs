//! Work requests that hold the packet themselves, in entries of 64 and of 128 bytes.

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
    let ahn = a.create_address_handle(b.address().gid).unwrap();
    let to = destination(ahn, b.address());
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
    with_device("inline::packets_are_inside_of_wide_entries", |device| {
        let (usual, widest) = (device.attributes().inline_size, device.max_inline_size());
        if widest == usual {
            println!("skipped: {} has no entries of 128 bytes", device.name());
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

/// The memory of the send queue holds half as many wide entries.
#[test]
fn wide_entries_take_the_room_of_two() {
    with_device("inline::wide_entries_take_the_room_of_two", |device| {
        let widest = device.max_inline_size();
        if widest == device.attributes().inline_size {
            println!("skipped: {} has no entries of 128 bytes", device.name());
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
