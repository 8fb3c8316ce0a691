//! Tests of the cache of registrations on a device whose registrations keep their pages.

use efa_core::endpoint::{self, Endpoint, EndpointConfig, RecvArgs, SendArgs, SourceFilter};
use efa_core::nic::Region;
use efa_hw::CacheLimits;

use super::*;
use efa_testing::hw::{kernel, with_device_and};

const LENGTH: usize = 1 << 20;

/// Calls `body` with a device; the emulated one pins pages as the kernel does.
fn with_pinned_pages<F: FnOnce(HwDevice)>(body: F) {
    let prepare = |command: &mut std::process::Command| {
        let (directory, library) = kernel::library();
        command.env("LD_PRELOAD", library);
        directory
    };
    with_device_and(prepare, body);
}

/// A private mapping of [`LENGTH`] bytes.
struct Mapping(*mut u8);

impl Mapping {
    fn new() -> Mapping {
        Mapping(map(std::ptr::null_mut(), libc::MAP_PRIVATE))
    }

    fn slice(&self) -> UserSlice {
        UserSlice::new(self.0 as u64, LENGTH)
    }

    fn fill(&self, byte: u8) {
        // SAFETY: the mapping has this length, and nothing refers to it.
        unsafe { self.0.write_bytes(byte, LENGTH) };
    }

    /// Replaces this memory by other memory, in one of several ways.
    fn replace(&self, how: &str) {
        let place = self.0.cast::<libc::c_void>();
        match how {
            "munmap" => {
                // SAFETY: nothing refers to the mapping.
                assert_eq!(unsafe { libc::munmap(place, LENGTH) }, 0);
                map(self.0, libc::MAP_PRIVATE);
            }
            "MAP_FIXED" => {
                map(self.0, libc::MAP_PRIVATE);
            }
            "MADV_DONTNEED" => {
                // SAFETY: nothing refers to the mapping.
                let result = unsafe { libc::madvise(place, LENGTH, libc::MADV_DONTNEED) };
                assert_eq!(result, 0);
            }
            "mremap" => {
                let other = map(std::ptr::null_mut(), libc::MAP_PRIVATE).cast();
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                // SAFETY: nothing refers to either mapping.
                let moved = unsafe { libc::mremap(other, LENGTH, LENGTH, flags, place) };
                assert_eq!(moved, place);
            }
            "another thread" => std::thread::scope(|scope| {
                let address = self.0.expose_provenance();
                scope.spawn(move || {
                    map(
                        std::ptr::with_exposed_provenance_mut(address),
                        libc::MAP_PRIVATE,
                    );
                });
            }),
            other => panic!("{other}"),
        }
    }
}

/// Maps memory at any address, or in place of other memory.
fn map(at: *mut u8, flags: i32) -> *mut u8 {
    let fixed = match at.is_null() {
        true => 0,
        false => libc::MAP_FIXED,
    };
    let flags = flags | libc::MAP_ANONYMOUS | fixed;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: anywhere, or in the place of memory of the test that nothing refers to.
    let start = unsafe { libc::mmap(at.cast(), LENGTH, protection, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start.cast()
}

/// Two queue pairs, the first of which caches registrations. `None`, and a message, if it cannot.
fn pair(device: &HwDevice) -> Option<(HwNic, HwNic, Destination)> {
    let (mut a, b) = (open(device), open(device));
    if let Err(error) = a.cache_registrations(CacheLimits::default()) {
        efa_testing::skip(error);
        return None;
    }
    let to = destination(&mut a, &b);
    Some((a, b, to))
}

/// Sends a header and 4000 bytes from the middle of the memory. Returns the payload that arrives.
fn send_from(
    a: &mut HwNic,
    b: &mut HwNic,
    to: Destination,
    memory: UserSlice,
    key: LocalKey,
) -> Vec<u8> {
    post_receive(b);
    let buffer = a.acquire_buffer().unwrap();
    let payload = UserSlice::new(memory.address + 5000, 4000);
    let request = SendRequest {
        payload: Some((payload, key)),
        ..packet(to, buffer, 8, 1)
    };
    a.post_send(&request, Doorbell::Ring).unwrap();
    let received = wait(&mut [b], 1)[0];
    let CompletionKind::Recv { buffer, length, .. } = received.kind else {
        panic!("{received:?}");
    };
    assert_eq!(received.status, Status::Ok);
    let payload = b.buffer(buffer)[8..length].to_vec();
    b.release_buffer(buffer);
    let sent = wait(&mut [a], 1)[0];
    expect_sent(&sent, 1, Status::Ok);
    let CompletionKind::Send { buffer } = sent.kind else {
        unreachable!("it was a send");
    };
    a.release_buffer(buffer);
    payload
}

/// Leases the memory, sends from it, and ends the lease.
fn send_leased(
    a: &mut HwNic,
    b: &mut HwNic,
    to: Destination,
    memory: UserSlice,
) -> (Vec<u8>, Region) {
    let region = a.lease(memory, Access::empty()).unwrap();
    let payload = send_from(a, b, to, memory, region.local_key);
    a.end_lease(region).unwrap();
    (payload, region)
}

#[test]
fn the_current_memory_of_an_address_is_sent() {
    with_pinned_pages(|device| {
        let Some((mut a, mut b, to)) = pair(&device) else {
            return;
        };
        let memory = Mapping::new();
        // SAFETY: the memory is mapped whenever an operation uses it.
        unsafe { a.allow_user(memory.slice()) }.unwrap();

        // A registration that the test keeps shows that the device still uses the old pages.
        memory.fill(0x01);
        let kept = a.register(memory.slice(), Access::empty()).unwrap();
        memory.replace("munmap");
        memory.fill(0x02);
        let sent = send_from(&mut a, &mut b, to, memory.slice(), kept.local_key);
        assert_eq!(
            sent, [0x01; 4000],
            "this device would hide stale registrations"
        );
        a.deregister(kept).unwrap();

        let ways = [
            "munmap",
            "MAP_FIXED",
            "MADV_DONTNEED",
            "mremap",
            "another thread",
        ];
        for (turn, how) in ways.into_iter().enumerate() {
            let bytes = [0x10 + turn as u8, 0x20 + turn as u8];
            memory.fill(bytes[0]);
            let (sent, first) = send_leased(&mut a, &mut b, to, memory.slice());
            assert_eq!(sent, [bytes[0]; 4000], "before {how}");
            let hits = a.cache_statistics().unwrap().hits;
            let (_, again) = send_leased(&mut a, &mut b, to, memory.slice());
            // Pages that were removed at an unknown time are not cached until they are
            // unmapped, by the next way.
            assert_eq!(again, first, "the cache serves what it has");
            assert_eq!(a.cache_statistics().unwrap().hits, hits + 1);
            memory.replace(how);
            memory.fill(bytes[1]);
            let (sent, _) = send_leased(&mut a, &mut b, to, memory.slice());
            assert_eq!(sent, [bytes[1]; 4000], "after {how}");
            memory.replace("munmap");
        }
        assert!(a.cache_statistics().unwrap().invalidations >= ways.len() as u64);
    });
}

/// Memory whose changes are not reported is registered for each operation.
#[test]
fn shared_memory_is_not_kept() {
    with_pinned_pages(|device| {
        let Some((mut a, mut b, to)) = pair(&device) else {
            return;
        };
        let memory = Mapping(map(std::ptr::null_mut(), libc::MAP_SHARED));
        // SAFETY: the memory is mapped until the end.
        unsafe { a.allow_user(memory.slice()) }.unwrap();
        for byte in 1..4 {
            memory.fill(byte);
            // Removes the pages, as another process can.
            let place = memory.0.cast();
            // SAFETY: nothing refers to the memory.
            let result = unsafe { libc::madvise(place, LENGTH, libc::MADV_REMOVE) };
            assert_eq!(result, 0);
            memory.fill(byte + 0x10);
            let (sent, _) = send_leased(&mut a, &mut b, to, memory.slice());
            assert_eq!(sent, [byte + 0x10; 4000]);
        }
        let statistics = a.cache_statistics().unwrap();
        assert_eq!((statistics.kept, statistics.bypasses), (0, 3));
    });
}

/// After `revoke_user` neither the device nor the cache refers to the memory.
#[test]
fn revoked_memory_is_not_kept() {
    with_pinned_pages(|device| {
        let Some((mut a, mut b, to)) = pair(&device) else {
            return;
        };
        let memory = Mapping::new();
        // SAFETY: the memory is mapped until the end.
        unsafe { a.allow_user(memory.slice()) }.unwrap();
        let (_, region) = send_leased(&mut a, &mut b, to, memory.slice());
        assert_eq!(a.cache_statistics().unwrap().kept, 1);
        a.revoke_user(memory.slice().address).unwrap();
        assert_eq!(a.cache_statistics().unwrap().kept, 0);
        let fault = a.lease(memory.slice(), Access::empty());
        assert!(
            matches!(fault, Err(NicError::MemoryFault { .. })),
            "{fault:?}"
        );
        a.end_lease(region).unwrap_err();
    });
}

/// An endpoint whose messages are read by the peer from memory that the application did not
/// register.
struct Program {
    endpoint: Endpoint<HwNic>,
    memory: Mapping,
}

impl Program {
    fn open(device: &HwDevice, caches: bool) -> Option<Program> {
        let mut nic = device.open_nic(NicConfig::default()).unwrap();
        if caches && let Err(error) = nic.cache_registrations(CacheLimits::default()) {
            efa_testing::skip(error);
            return None;
        }
        let memory = Mapping::new();
        // SAFETY: the memory is mapped whenever an operation uses it.
        unsafe { nic.allow_user(memory.slice()) }.unwrap();
        let endpoint = Endpoint::new(nic, EndpointConfig::default()).unwrap();
        Some(Program { endpoint, memory })
    }
}

/// Sends the whole memory of `a` to that of `b`. Returns the received bytes.
fn transfer(a: &mut Program, b: &mut Program, to: endpoint::PeerId) -> Vec<u8> {
    let begin = Instant::now();
    let buffer = [b.memory.slice().into()];
    let receive = RecvArgs::new(SourceFilter::Any, &buffer, 0);
    b.endpoint.recv(receive).unwrap();
    let data = [a.memory.slice().into()];
    let send = SendArgs::new(to, &data, 0);
    let (mut is_posted, mut left) = (false, 2);
    while left > 0 {
        if !is_posted {
            is_posted = match a.endpoint.send(send) {
                Ok(()) => true,
                Err(endpoint::EndpointError::TryAgain) => false,
                Err(error) => panic!("{error}"),
            };
        }
        for program in [&mut *a, &mut *b] {
            program
                .endpoint
                .progress(endpoint::Instant(begin.elapsed()));
            while let Some(completion) = program.endpoint.poll_completion() {
                completion.unwrap();
                left -= 1;
            }
        }
        assert!(begin.elapsed() < TIMEOUT, "{left} are left");
    }
    let nic = b.endpoint.nic_mut();
    nic.read(b.memory.slice()).unwrap()
}

#[test]
fn unregistered_messages_use_the_cache() {
    with_pinned_pages(|device| {
        if !device.attributes().caps.contains(DeviceCaps::RDMA_READ) {
            efa_testing::skip(format_args!("{} has no RDMA read", device.name()));
            return;
        }
        let Some(mut a) = Program::open(&device, true) else {
            return;
        };
        let mut b = Program::open(&device, false).unwrap();
        let to = a.endpoint.insert_address(b.endpoint.address()).unwrap();
        let statistics = |a: &Program| a.endpoint.nic().cache_statistics().unwrap();
        for byte in [1, 2, 3] {
            a.memory.fill(byte);
            // The first message may go in pieces, before the peer's capabilities are known.
            for _ in 0..2 {
                assert!(
                    transfer(&mut a, &mut b, to) == vec![byte; LENGTH],
                    "stale {byte}"
                );
            }
            a.memory.replace("munmap");
        }
        let statistics = statistics(&a);
        assert!(statistics.hits >= 2, "{statistics:?}");
        assert!(statistics.misses >= 3, "{statistics:?}");
        assert_eq!(statistics.bypasses, 0, "{statistics:?}");
    });
}
