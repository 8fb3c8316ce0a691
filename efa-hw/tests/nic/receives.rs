//! Receives that are posted together.

use super::*;

#[test]
fn many_receives_are_posted_with_few_doorbells() {
    with_device(|device| {
        let config = NicConfig {
            recv_queue_depth: 40,
            packet_buffers: 64,
            ..NicConfig::default()
        };
        let (mut a, mut b) = (open(&device), device.open_nic(config).unwrap());
        let to = destination(&mut a, &b);
        let mut buffers: Vec<BufferId> = std::iter::from_fn(|| b.acquire_buffer()).collect();
        assert_eq!(buffers.len(), 64);
        let all = buffers.clone();
        assert_eq!(b.post_recvs(&mut buffers), Err(NicError::QueueFull));
        assert_eq!(
            buffers,
            all[..24],
            "those that there was room for are the device's"
        );
        assert!(buffers.iter().all(|buffer| !b.buffer(*buffer).is_empty()));
        assert!(all[24..].iter().all(|buffer| b.buffer(*buffer).is_empty()));
        assert_eq!(b.queue_pair().receive_doorbells(), 3, "16 + 16 + 8");

        let mut used = Vec::new();
        for number in 0..40_u8 {
            send(&mut a, to, &[number; 100], None, number.into());
            let received = wait(&mut [&mut b], 1);
            expect_received(&b, &received[0], &[number; 100], None);
            let CompletionKind::Recv { buffer, .. } = received[0].kind else {
                unreachable!("it was received");
            };
            used.push(buffer);
        }
        used.sort_unstable_by_key(|buffer| buffer.0);
        assert_eq!(used, all[24..], "each of them once");

        // A buffer that the device already has is refused; the later ones are posted.
        let lent = buffers[20];
        b.post_recv(lent).unwrap();
        expect_invalid(b.post_recvs(&mut buffers), "packet buffer");
        assert_eq!(
            buffers,
            all[..21],
            "the refused one is the last of the rest"
        );
        assert_eq!(b.queue_pair().receive_doorbells(), 5);
        for number in 0..4_u8 {
            send(&mut a, to, &[number], None, 0);
            let received = wait(&mut [&mut b], 1);
            expect_received(&b, &received[0], &[number], None);
        }
        assert_eq!(b.post_recvs(&mut Vec::new()), Ok(()));
        assert_eq!(b.queue_pair().receive_doorbells(), 5);
    });
}
