//! Many endpoints of one domain, through the C interface.

use std::ptr::null_mut;

use crate::common::c::*;
use crate::common::{AGAIN, Options, close, with_side};
use efa_testing::patience::Wait;

#[test]
fn a_domain_has_room_for_many_endpoints() {
    const COUNT: usize = 20;
    with_side(&Options::USUAL, |side| {
        side.enable();
        let own = side.insert(&side.name());
        let others: Vec<*mut fid_ep> = (0..COUNT).map(|_| side.another()).collect();
        let mut received = [0_u8; COUNT];
        let mut counts = [0; 2];
        let mut count = |expected: usize| {
            let wait = Wait::start();
            while counts.iter().sum::<usize>() < 2 * expected {
                match side.read() {
                    Ok((entry, _)) => counts[usize::from(entry.flags & FI_RECV != 0)] += 1,
                    Err(error) => assert_eq!(error, AGAIN),
                }
                wait.check(|| format!("{counts:?} of {expected}"));
            }
            assert_eq!(counts, [expected; 2]);
        };
        for (number, from) in others.iter().enumerate() {
            let (endpoint, no) = (side.endpoint, null_mut());
            let to = (&raw mut received[number]).cast();
            let tag = number as u64;
            assert_eq!(
                call!(endpoint => tagged.recv(to, 1, no, FI_ADDR_UNSPEC, tag, 0, no)),
                0
            );
            let byte = [number as u8];
            let data = byte.as_ptr().cast();
            assert_eq!(call!(*from => tagged.send(data, 1, no, own, tag, no)), 0);
            count(number + 1);
        }
        assert!(
            received
                .iter()
                .zip(0..)
                .all(|(byte, number)| *byte == number)
        );
        for endpoint in others {
            assert_eq!(close(endpoint), 0);
        }
    });
}

/// The memory that the process has allocated, in bytes.
fn virtual_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").expect("this is Linux");
    let pages = status.split_whitespace().next().expect("its first word");
    pages.parse::<usize>().expect("a number") * 4096
}

#[test]
fn endpoints_reuse_closed_ones_packet_buffers() {
    with_side(&Options::USUAL, |side| {
        side.enable();
        let again = || assert_eq!(close(side.another()), 0);
        again();
        again();
        let before = virtual_memory();
        for _ in 0..8 {
            again();
        }
        let grown = virtual_memory().saturating_sub(before);
        // The buffers of one endpoint have 26 MB.
        assert!(grown < 26 << 20, "{grown} bytes");
    });
}

/// The memory of packets: large allocations that have their own mappings, in bytes.
fn packet_memory() -> usize {
    // SAFETY: takes nothing.
    unsafe { libc::mallinfo2() }.hblkhd
}

#[test]
fn packet_buffers_are_bounded_by_the_queues() {
    with_side(&Options::USUAL, |side| {
        let mut before = packet_memory();
        side.enable();
        let others: Vec<*mut fid_ep> = (0..3)
            .map(|_| {
                let after = packet_memory();
                let taken = after.saturating_sub(before);
                // 3072 of 8960 bytes are 26 MiB.
                assert!((26 << 20..40 << 20).contains(&taken), "{taken} bytes");
                before = after;
                side.another()
            })
            .collect();
        for endpoint in others {
            assert_eq!(close(endpoint), 0);
        }
    });
}

#[test]
fn closed_endpoints_leave_no_descriptors() {
    let options = Options::USUAL.with(|options| options.wait_obj = FI_WAIT_FD);
    with_side(&options, |side| {
        side.enable();
        let descriptors = || {
            std::fs::read_dir("/proc/self/fd")
                .expect("readable")
                .count()
        };
        assert_eq!(close(side.another()), 0);
        let before = descriptors();
        for _ in 0..4 {
            assert_eq!(close(side.another()), 0);
        }
        assert_eq!(descriptors(), before);
    });
}
