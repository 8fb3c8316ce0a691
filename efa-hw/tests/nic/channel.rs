//! Sleeping on a completion channel: no completion is missed, and a sleeper uses no processor.

use super::*;

fn open_sleeping(device: &HwDevice) -> HwNic {
    let config = NicConfig {
        packet_buffers: 64,
        completion_channel: true,
        ..NicConfig::default()
    };
    device.open_nic(config).expect("the device notifies")
}

fn queue(nic: &HwNic) -> efa_core::nic::CompletionQueueId {
    nic.queue_pair().completion_queue()
}

fn arm(nic: &mut HwNic) {
    let queue = queue(nic);
    nic.arm(queue).unwrap();
}

fn sleep(nic: &mut HwNic, timeout: Duration) -> bool {
    let queue = queue(nic);
    nic.sleep(queue, Some(timeout)).unwrap()
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure is valid for writes.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

const SHORT: Duration = Duration::from_millis(50);

#[test]
fn a_completion_ends_the_sleep_whenever_it_comes() {
    with_device(|device| {
        let (mut a, mut b) = (open(&device), open_sleeping(&device));
        let to = destination(&mut a, &b);
        for _ in 0..8 {
            post_receive(&mut b);
        }
        arm(&mut b);
        assert!(!sleep(&mut b, SHORT), "nothing has come");

        // A completion before the request, which was not polled.
        send(&mut a, to, b"before", None, 1);
        expect_sent(&wait(&mut [&mut a], 1)[0], 1, Status::Ok);
        arm(&mut b);
        assert!(sleep(&mut b, TIMEOUT), "it came before `arm`");
        let before = wait(&mut [&mut b], 1);
        expect_received(&b, &before[0], b"before", None);

        // A completion between the request and the sleep.
        arm(&mut b);
        send(&mut a, to, b"between", None, 2);
        expect_sent(&wait(&mut [&mut a], 1)[0], 2, Status::Ok);
        assert!(sleep(&mut b, TIMEOUT), "it came before `sleep`");
        let between = wait(&mut [&mut b], 1);
        expect_received(&b, &between[0], b"between", None);

        // A completion during the sleep, from another thread. The sleeper uses no processor
        // meanwhile.
        arm(&mut b);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(300));
                send(&mut a, to, b"during", None, 3);
                expect_sent(&wait(&mut [&mut a], 1)[0], 3, Status::Ok);
            });
            let before = processor_time();
            assert!(sleep(&mut b, TIMEOUT), "it came during `sleep`");
            let used = processor_time() - before;
            assert!(
                used < Duration::from_millis(50),
                "{used:?} of work while asleep"
            );
        });
        let during = wait(&mut [&mut b], 1);
        expect_received(&b, &during[0], b"during", None);

        // One request produces one event: without another request the program is not woken.
        arm(&mut b);
        assert!(!sleep(&mut b, SHORT), "old events are gone after `arm`");
    });
}

#[test]
fn two_that_sleep_in_turn_lose_no_message() {
    with_device(|device| {
        const ROUNDS: u64 = 500;
        let (mut a, mut b) = (open_sleeping(&device), open_sleeping(&device));
        let to_b = destination(&mut a, &b);
        let to_a = destination(&mut b, &a);
        /// Answers each message with the next number, and sleeps between them.
        fn play(nic: &mut HwNic, to: Destination, begins: bool) {
            if begins {
                send(nic, to, &0_u64.to_le_bytes(), None, 0);
            }
            let mut completions = Vec::new();
            loop {
                arm(nic);
                while nic.poll(&mut completions, 16) > 0 {}
                if completions.is_empty() {
                    assert!(sleep(nic, TIMEOUT), "a completion was overlooked");
                    continue;
                }
                for completion in completions.drain(..) {
                    assert_eq!(completion.status, Status::Ok);
                    match completion.kind {
                        CompletionKind::Send { buffer } => nic.release_buffer(buffer),
                        CompletionKind::Recv { buffer, length, .. } => {
                            let bytes = nic.buffer(buffer)[..length].try_into().unwrap();
                            let number = u64::from_le_bytes(bytes);
                            nic.post_recv(buffer).unwrap();
                            if number < ROUNDS {
                                send(nic, to, &(number + 1).to_le_bytes(), None, 0);
                            }
                            if number + 1 >= ROUNDS {
                                return;
                            }
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
        // Before either begins: a sender does not wait for a thread that does not run yet.
        post_receive(&mut a);
        post_receive(&mut b);
        std::thread::scope(|scope| {
            scope.spawn(|| play(&mut a, to_b, true));
            scope.spawn(|| play(&mut b, to_a, false));
        });
    });
}

#[test]
fn a_descriptor_is_readable_after_a_completion() {
    with_device(|device| {
        use std::os::fd::AsRawFd as _;
        let (mut a, mut b) = (open(&device), open_sleeping(&device));
        let to = destination(&mut a, &b);
        post_receive(&mut b);
        let readable = |b: &HwNic, timeout: i32| {
            let mut waiting = libc::pollfd {
                fd: b.channel(queue(b)).unwrap().as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one structure, which is valid for writes.
            unsafe { libc::poll(&mut waiting, 1, timeout) == 1 }
        };
        arm(&mut b);
        assert!(!readable(&b, 0));
        send(&mut a, to, b"x", None, 1);
        assert!(readable(&b, 30_000));
        assert_eq!(wait(&mut [&mut b], 1).len(), 1);
        arm(&mut b);
        assert!(!readable(&b, 0));
    });
}

#[test]
fn a_queue_without_a_channel_says_so() {
    with_device(|device| {
        let mut domain = device
            .open_domain(&DomainConfig { packet_buffers: 8 })
            .unwrap();
        let queue = domain.create_completion_queue(16).unwrap();
        let no_channel = domain.arm(queue).unwrap_err();
        assert!(
            matches!(no_channel, NicError::Unsupported(_)),
            "{no_channel}"
        );
        assert_eq!(domain.sleep(queue, None), Err(no_channel));
        let unknown = efa_core::nic::CompletionQueueId(99);
        let error = domain.arm(unknown).unwrap_err();
        assert!(
            matches!(error, NicError::Invalid { value: 99, .. }),
            "{error}"
        );
        // Several queues, each with a channel; they can be destroyed with unread events.
        let sleeping = domain.create_completion_queue_with_channel(16).unwrap();
        let pair = domain.create_queue_pair(sleeping, &CONFIG).unwrap();
        domain.arm(sleeping).unwrap();
        domain.destroy_completion_queue(sleeping).unwrap_err();
        pair.close(&mut domain);
        domain.destroy_completion_queue(sleeping).unwrap();
    });
}
