//! `HwNic` and `HwDomain` on a device, and where there is none. Here: two queue pairs of one
//! process exchange messages.

mod cache;
mod channel;
mod datagrams;
mod dmabuf;
mod domain;
mod echo;
mod errors;
mod events;
mod inline;
mod late;
mod receives;
mod unfit;

use efa_core::address::{Qkey, Qpn};
use efa_core::nic::{
    Access, BufferId, Completion, CompletionKind, CompletionQueueId, Destination, Device,
    DeviceCaps, Domain, DomainConfig, Doorbell, LocalKey, Nic, NicError, PolledNic, QueuePair,
    QueuePairConfig, RdmaRequest, SendRequest, Source, Status, UserSlice,
};
use efa_hw::{HwDevice, HwDomain, HwNic, NicConfig};
use efa_testing::hw::with_device;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// The limit of every wait, far above the usual time; reached only when a completion is lost.
const TIMEOUT: Duration = Duration::from_secs(30);

fn open(device: &HwDevice) -> HwNic {
    let config = NicConfig {
        packet_buffers: 64,
        ..NicConfig::default()
    };
    device.open_nic(config).expect("the queue pair opens")
}

/// The parameters of queue pairs in tests that make them in a domain.
const CONFIG: QueuePairConfig = QueuePairConfig {
    send_queue_depth: 4,
    recv_queue_depth: 4,
    qkey: Some(Qkey(7)),
    rnr_retry: 0,
    unsolicited_write_recv: false,
    service_level: 0,
};

/// The destination of what `a` sends to `b`.
fn destination(a: &mut HwNic, b: &HwNic) -> Destination {
    let ahn = a.create_address_handle(b.address().gid).unwrap();
    Destination::new(ahn, b.address())
}

/// A packet of the first bytes of a buffer.
fn packet(to: Destination, buffer: BufferId, length: usize, context: u64) -> SendRequest {
    SendRequest {
        destination: to,
        buffer,
        header_length: length,
        payload: None,
        immediate: None,
        context,
    }
}

/// Expects that a call has refused its argument `name`.
#[track_caller]
fn expect_invalid(result: Result<(), NicError>, name: &str) {
    let is_refused = matches!(result, Err(NicError::Invalid { what, .. }) if what == name);
    assert!(is_refused, "{result:?}");
}

/// Polls every nic until the first one has `count` completions.
fn wait(nics: &mut [&mut HwNic], count: usize) -> Vec<Completion> {
    let start = Instant::now();
    let mut completions = Vec::new();
    let mut others = Vec::new();
    while completions.len() < count {
        for (index, nic) in nics.iter_mut().enumerate() {
            nic.poll(
                if index == 0 {
                    &mut completions
                } else {
                    &mut others
                },
                16,
            );
        }
        assert!(start.elapsed() < TIMEOUT, "only {completions:?}");
    }
    assert!(others.is_empty(), "the other nic completed {others:?}");
    completions
}

/// Waits for the next completion of a queue.
fn one_completion(domain: &mut HwDomain, queue: CompletionQueueId) -> Completion {
    let start = Instant::now();
    let mut completions = Vec::new();
    while domain.poll(queue, &mut completions, 1) == 0 {
        assert!(start.elapsed() < TIMEOUT, "no completion");
    }
    completions[0]
}

fn post_receive(nic: &mut HwNic) -> BufferId {
    let buffer = nic.acquire_buffer().expect("a buffer is free");
    nic.post_recv(buffer).expect("the receive is posted");
    buffer
}

fn send(nic: &mut HwNic, to: Destination, bytes: &[u8], immediate: Option<u32>, context: u64) {
    let buffer = nic.acquire_buffer().expect("a buffer is free");
    nic.buffer_mut(buffer)[..bytes.len()].copy_from_slice(bytes);
    let request = SendRequest {
        immediate,
        ..packet(to, buffer, bytes.len(), context)
    };
    nic.post_send(&request, Doorbell::Ring)
        .expect("the send is posted");
}

/// The one completion of a send with this context.
fn expect_sent(completion: &Completion, context: u64, status: Status) {
    assert_eq!((completion.context, completion.status), (context, status));
    assert!(
        matches!(completion.kind, CompletionKind::Send { .. }),
        "{completion:?}"
    );
}

fn expect_received(
    nic: &HwNic,
    completion: &Completion,
    bytes: &[u8],
    immediate: Option<u32>,
) -> Source {
    let CompletionKind::Recv {
        buffer,
        length,
        source,
        immediate: got,
    } = completion.kind
    else {
        panic!("not a receive: {completion:?}");
    };
    assert_eq!(completion.status, Status::Ok);
    assert_eq!(&nic.buffer(buffer)[..length], bytes);
    assert_eq!(got, immediate);
    source
}

#[test]
fn packets_arrive_whole_from_inline_size_to_mtu() {
    with_device(|device| {
        let (mut a, mut b) = (open(&device), open(&device));
        let to = destination(&mut a, &b);
        let mtu = a.attributes().mtu;
        for (context, length) in [0, 1, 32, 33, 64, 4096, mtu].into_iter().enumerate() {
            let bytes: Vec<u8> = (0..length)
                .map(|index| (index * 7 + length) as u8)
                .collect();
            let immediate = (length % 2 == 1).then_some(0xDEAD_BEEF);
            post_receive(&mut b);
            send(&mut a, to, &bytes, immediate, context as u64);
            let received = wait(&mut [&mut b], 1);
            let source = expect_received(&b, &received[0], &bytes, immediate);
            assert_eq!(source.qpn, a.address().qpn);
            expect_sent(&wait(&mut [&mut a], 1)[0], context as u64, Status::Ok);
        }
        let too_long = packet(to, a.acquire_buffer().unwrap(), mtu + 1, 0);
        expect_invalid(a.post_send(&too_long, Doorbell::Ring), "packet length");
    });
}

/// Two handles of one context have one Debug text, which names it.
#[test]
fn a_shared_device_is_opened_once() {
    with_device(|alone| {
        let shared = |name: &str| HwDevice::shared(name).map(|device| format!("{device:?}"));
        let first = HwDevice::shared(alone.name()).unwrap();
        let context = format!("{first:?}");
        assert_ne!(context, format!("{alone:?}"), "another one's is not shared");
        assert_eq!(shared(alone.name()).unwrap(), context);
        let nic = open(&first);
        drop(first);
        assert_eq!(
            shared(alone.name()).unwrap(),
            context,
            "its objects keep it"
        );
        drop(nic);
        let again = HwDevice::shared(alone.name()).unwrap();
        let mut sender = open(&again);
        let mut receiver = open(&HwDevice::shared(alone.name()).unwrap());
        let to = destination(&mut sender, &receiver);
        post_receive(&mut receiver);
        send(&mut sender, to, b"hello", None, 1);
        let received = wait(&mut [&mut receiver], 1);
        expect_received(&receiver, &received[0], b"hello", None);
        expect_sent(&wait(&mut [&mut sender], 1)[0], 1, Status::Ok);
        assert!(shared("no such device").is_err());
    });
}

#[test]
fn the_payload_is_gathered_from_registered_user_memory() {
    with_device(|device| {
        let (mut a, mut b) = (open(&device), open(&device));
        let to = destination(&mut a, &b);
        let memory = a.allocate(5000).unwrap();
        a.write_user(memory.address, &[0xA5; 5000]).unwrap();
        let region = a.register(memory, Access::empty()).unwrap();
        post_receive(&mut b);
        let buffer = a.acquire_buffer().unwrap();
        a.buffer_mut(buffer)[..8].copy_from_slice(b"header..");
        let payload = UserSlice {
            length: 4000,
            ..memory
        };
        let request = SendRequest {
            payload: Some((payload, region.local_key)),
            ..packet(to, buffer, 8, 9)
        };
        a.post_send(&request, Doorbell::Ring).unwrap();
        let received = wait(&mut [&mut b], 1);
        let mut expected = b"header..".to_vec();
        expected.extend([0xA5; 4000]);
        expect_received(&b, &received[0], &expected, None);
        expect_sent(&wait(&mut [&mut a], 1)[0], 9, Status::Ok);
        a.deregister(region).unwrap();
        assert!(a.deregister(region).is_err());
    });
}

#[test]
fn senders_are_named_once_in_the_address_book() {
    with_device(|device| {
        let (mut a, mut b) = (open(&device), open(&device));
        let to = destination(&mut a, &b);
        assert_eq!(a.create_address_handle(b.address().gid).unwrap(), to.ahn);
        a.destroy_address_handle(to.ahn).unwrap();
        for _ in 0..2 {
            post_receive(&mut b);
        }
        // Each protection domain has a separate address book, and `b` has its own protection
        // domain.
        send(&mut a, to, b"unknown", None, 1);
        let received = wait(&mut [&mut b], 1);
        let source = expect_received(&b, &received[0], b"unknown", None);
        assert_eq!(source.ahn, None);
        if device.attributes().caps.contains(DeviceCaps::CQ_WITH_SGID) {
            assert_eq!(source.gid, Some(a.address().gid));
        }
        let name = b.create_address_handle(a.address().gid).unwrap();
        send(&mut a, to, b"known", None, 2);
        let received = wait(&mut [&mut b], 1);
        let source = expect_received(&b, &received[0], b"known", None);
        assert_eq!((source.ahn, source.gid), (Some(name), None));

        a.destroy_address_handle(to.ahn).unwrap();
        assert!(a.destroy_address_handle(to.ahn).is_err());
        let gone = packet(to, a.acquire_buffer().unwrap(), 1, 3);
        expect_invalid(a.post_send(&gone, Doorbell::Ring), "address handle number");
    });
}

/// Writes with immediate data consume no receive at the target that asked for that, if the device
/// supports it.
#[test]
fn immediates_arrive_with_and_without_a_receive() {
    with_device(|device| {
        if !device.attributes().caps.contains(DeviceCaps::RDMA_WRITE) {
            efa_testing::skip(format_args!("{} has no RDMA writes", device.name()));
            return;
        }
        for unsolicited_write_recv in [false, true] {
            let config = NicConfig {
                packet_buffers: 64,
                unsolicited_write_recv,
                ..NicConfig::default()
            };
            let (mut a, mut b) = (open(&device), device.open_nic(config).unwrap());
            let granted = b.queue_pair().attributes().caps;
            let to = destination(&mut a, &b);
            b.create_address_handle(a.address().gid).unwrap();
            let length = 3 << 20;
            let (local, remote) = (a.allocate(length).unwrap(), b.allocate(length).unwrap());
            let pattern = efa_testing::pattern(length, 0);
            a.write_user(local.address, &pattern).unwrap();
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let request = RdmaRequest {
                destination: to,
                local,
                local_key: a.register(local, Access::empty()).unwrap().local_key,
                remote_address: remote.address,
                remote_key: b.register(remote, access).unwrap().remote_key,
                immediate: Some(77),
                context: 2,
            };
            post_receive(&mut b);
            a.post_write(&request, Doorbell::Ring).unwrap();
            let arrived = wait(&mut [&mut b], 1)[0];
            let CompletionKind::RecvRdmaWithImmediate {
                buffer,
                length: bytes,
                immediate,
                source,
            } = arrived.kind
            else {
                panic!("not a write with immediate: {arrived:?}");
            };
            let unsolicited = granted.contains(DeviceCaps::UNSOLICITED_WRITE_RECV);
            assert_eq!(buffer.is_none(), unsolicited);
            let expected = (length, 77, a.address().qpn);
            assert_eq!((bytes, immediate, source.qpn), expected);
            let written = wait(&mut [&mut a], 1)[0];
            assert_eq!((written.context, written.status), (2, Status::Ok));
            assert_eq!(written.kind, CompletionKind::RdmaWrite);
            assert!(b.read(remote).unwrap() == pattern, "other data was written");
        }
    });
}

/// After `revoke_user` a peer that has the memory's key can no longer access the memory.
#[test]
fn revoked_memory_is_out_of_reach_of_peers() {
    with_device(|device| {
        let caps = device.attributes().caps;
        if !caps.contains(DeviceCaps::RDMA_WRITE) {
            efa_testing::skip(format_args!(
                "{} has no RDMA write ({caps:?})",
                device.name()
            ));
            return;
        }
        let (mut a, mut b) = (open(&device), open(&device));
        let to = destination(&mut a, &b);
        b.create_address_handle(a.address().gid).unwrap();
        let local = a.allocate(4096).unwrap();
        a.write_user(local.address, &[0x5A; 4096]).unwrap();
        let local_region = a.register(local, Access::LOCAL_WRITE).unwrap();
        let bytes: Box<[Cell<u8>]> = vec![Cell::new(0); 4096].into();
        let remote = UserSlice::new(bytes.as_ptr() as u64, bytes.len());
        // SAFETY: `bytes` outlives the operations below, and may change through cells.
        unsafe { b.allow_user(remote) }.unwrap();
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let remote_region = b.register(remote, all).unwrap();
        let write = |a: &mut HwNic, b: &mut HwNic, context| {
            let request = RdmaRequest {
                destination: to,
                local,
                local_key: local_region.local_key,
                remote_address: remote.address,
                remote_key: remote_region.remote_key,
                immediate: None,
                context,
            };
            a.post_write(&request, Doorbell::Ring).unwrap();
            wait(&mut [a, b], 1)[0].status
        };
        assert_eq!(write(&mut a, &mut b, 1), Status::Ok);
        assert!(bytes.iter().all(|byte| byte.get() == 0x5A));
        bytes.iter().for_each(|byte| byte.set(0));
        b.revoke_user(remote.address).unwrap();
        assert_ne!(write(&mut a, &mut b, 2), Status::Ok);
        assert!(bytes.iter().all(|byte| byte.get() == 0));
        // Its registration has ended as well, so the region is no longer known to the domain.
        b.deregister(remote_region).unwrap_err();
        b.revoke_user(remote.address).unwrap_err();
        // The caller cannot revoke memory that the domain owns.
        a.revoke_user(local.address).unwrap_err();
    });
}

#[test]
fn buffers_that_are_added_carry_packets_too() {
    with_device(|device| {
        // One buffer is in the first registration, and another two are in a separate one.
        let config = NicConfig {
            packet_buffers: 1,
            ..NicConfig::default()
        };
        let [mut a, mut b] = [0; 2].map(|_| device.open_nic(config).unwrap());
        let to = destination(&mut a, &b);
        for nic in [&mut a, &mut b] {
            nic.add_packet_buffers(2).unwrap();
            assert_eq!(nic.packet_buffers(), 3);
        }
        for _ in 0..3 {
            post_receive(&mut b);
        }
        assert_eq!(b.acquire_buffer(), None);
        let large = vec![7; a.attributes().mtu];
        for (context, bytes) in [&b"first"[..], b"second", &large].into_iter().enumerate() {
            send(&mut a, to, bytes, None, context as u64);
        }
        let mut received = wait(&mut [&mut b], 3);
        let length = |completion: &Completion| match completion.kind {
            CompletionKind::Recv { length, .. } => length,
            _ => panic!("{completion:?}"),
        };
        received.sort_by_key(length);
        for (completion, bytes) in received.iter().zip([&b"first"[..], b"second", &large]) {
            expect_received(&b, completion, bytes, None);
        }
        for completion in wait(&mut [&mut a], 3) {
            assert_eq!(completion.status, Status::Ok);
        }
    });
}

#[test]
fn full_queues_and_pools_push_back() {
    with_device(|device| {
        let config = NicConfig {
            send_queue_depth: 4,
            recv_queue_depth: 4,
            packet_buffers: 16,
            ..NicConfig::default()
        };
        let mut a = device.open_nic(config).unwrap();
        let mut b = device.open_nic(config).unwrap();
        let to = destination(&mut a, &b);
        for _ in 0..4 {
            post_receive(&mut b);
        }
        let extra = b.acquire_buffer().unwrap();
        assert_eq!(b.post_recv(extra), Err(NicError::QueueFull));
        b.release_buffer(extra);

        for context in 0..4 {
            send(&mut a, to, &[context as u8], None, context);
        }
        let fifth = a.acquire_buffer().unwrap();
        let request = packet(to, fifth, 1, 4);
        assert_eq!(
            a.post_send(&request, Doorbell::Ring),
            Err(NicError::QueueFull)
        );
        assert!(
            !a.buffer(fifth).is_empty(),
            "a refused buffer stays the caller's"
        );

        let mut contexts: Vec<u64> = wait(&mut [&mut a], 4)
            .iter()
            .map(|completion| completion.context)
            .collect();
        contexts.sort_unstable();
        assert_eq!(contexts, [0, 1, 2, 3]);
        assert_eq!(wait(&mut [&mut b], 4).len(), 4);
        post_receive(&mut b);
        a.post_send(&request, Doorbell::Ring).unwrap();
        expect_sent(&wait(&mut [&mut a], 1)[0], 4, Status::Ok);

        while a.acquire_buffer().is_some() {}
        assert_eq!(a.acquire_buffer(), None);
    });
}

#[test]
fn memory_that_nobody_handed_over_is_an_error() {
    with_device(|device| {
        let mut nic = open(&device);
        let buffer = nic.acquire_buffer().unwrap();
        let nowhere = UserSlice::new(0xdead_0000, 16);
        let fault = NicError::MemoryFault {
            address: 0xdead_0000,
            length: 16,
        };
        assert_eq!(nic.copy_from_user(buffer, 0, nowhere), Err(fault));
        assert_eq!(nic.copy_to_user(buffer, 0, 16, nowhere.address), Err(fault));
        assert_eq!(nic.register(nowhere, Access::LOCAL_WRITE), Err(fault));
        let memory = nic.allocate(16).unwrap();
        let too_far = nic.buffer(buffer).len() - 8;
        assert!(nic.copy_from_user(buffer, too_far, memory).is_err());
        assert!(
            nic.copy_to_user(buffer, usize::MAX, 16, memory.address)
                .is_err()
        );
        nic.write_user(memory.address, b"0123456789abcdef").unwrap();
        nic.copy_from_user(buffer, 4, memory).unwrap();
        assert_eq!(&nic.buffer(buffer)[4..20], b"0123456789abcdef");
    });
}
