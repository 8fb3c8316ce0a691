//! Wrong addresses are errors.

use efa_core::nic::{Access, Domain, Doorbell, Nic, NicError, SendRequest, Status, UserSlice};
use efa_sim::{Fabric, FabricConfig, HostConfig, NicConfig};

use super::{Pair, finished, packets};

#[test]
fn only_allocated_memory_can_be_registered() {
    let fabric = Fabric::new(FabricConfig::default());
    let host = fabric.add_host(HostConfig::default());
    let other = fabric.add_host(HostConfig::default());
    let mut nic = host.open_nic(NicConfig::default()).unwrap();
    let memory = host.allocate(1000).unwrap();
    assert!(nic.register(memory, Access::LOCAL_WRITE).is_ok());
    let beyond = UserSlice {
        length: 1001,
        ..memory
    };
    let fault = |slice: UserSlice| {
        Err(NicError::MemoryFault {
            address: slice.address,
            length: slice.length,
        })
    };
    assert_eq!(nic.register(beyond, Access::LOCAL_WRITE), fault(beyond));
    let foreign = other.allocate(1000).unwrap();
    assert_eq!(nic.register(foreign, Access::LOCAL_WRITE), fault(foreign));
    host.free(memory.address).unwrap();
    assert_eq!(nic.register(memory, Access::LOCAL_WRITE), fault(memory));
}

#[test]
fn copies_between_buffers_and_memory_are_checked() {
    let fabric = Fabric::new(FabricConfig::default());
    let host = fabric.add_host(HostConfig::default());
    let mut nic = host.open_nic(NicConfig::default()).unwrap();
    let memory = host.allocate_from(b"0123456789").unwrap();
    let buffer = nic.acquire_buffer().unwrap();
    nic.copy_from_user(buffer, 3, memory).unwrap();
    assert_eq!(&nic.buffer(buffer)[..13], b"\0\0\x000123456789");
    nic.copy_to_user(buffer, 4, 5, memory.address + 5).unwrap();
    assert_eq!(host.read(memory).unwrap(), b"0123412345");

    let beyond = UserSlice {
        length: 11,
        ..memory
    };
    let result = nic.copy_from_user(buffer, 0, beyond);
    assert!(matches!(result, Err(NicError::MemoryFault { .. })));
    let result = nic.copy_to_user(buffer, 0, 6, memory.address + 5);
    assert!(matches!(result, Err(NicError::MemoryFault { .. })));
    let end = nic.attributes().mtu;
    let result = nic.copy_from_user(buffer, end, memory);
    assert!(matches!(result, Err(NicError::Invalid { .. })));
    let result = nic.copy_to_user(buffer, usize::MAX, 2, memory.address);
    assert!(matches!(result, Err(NicError::Invalid { .. })));
}

#[test]
fn a_buffer_cannot_be_given_away_twice() {
    let mut pair = Pair::orderly();
    let to = pair.bob.address();
    let destination = pair.alice.destination(to).unwrap();
    let nic = pair.alice.nic();
    let buffer = nic.acquire_buffer().unwrap();
    let request = SendRequest {
        destination,
        buffer,
        header_length: 8,
        payload: None,
        immediate: None,
        context: 0,
    };
    nic.post_send(&request, Doorbell::Ring).unwrap();
    assert!(matches!(
        nic.post_send(&request, Doorbell::Ring),
        Err(NicError::Invalid { .. })
    ));
    assert!(matches!(
        nic.post_recv(buffer),
        Err(NicError::Invalid { .. })
    ));
    pair.fabric.run_until_idle();
    assert_eq!(finished(&mut pair.alice), [(0, Status::Ok)]);
    assert_eq!(packets(&mut pair.bob).len(), 1);
}

#[test]
#[should_panic(expected = "which the caller does not own")]
fn reading_a_posted_buffer_is_a_bug() {
    let fabric = Fabric::new(FabricConfig::default());
    let host = fabric.add_host(HostConfig::default());
    let mut nic = host.open_nic(NicConfig::default()).unwrap();
    let buffer = nic.acquire_buffer().unwrap();
    nic.post_recv(buffer).unwrap();
    nic.buffer(buffer);
}

#[test]
fn a_freed_registered_payload_fails_the_send() {
    let mut pair = Pair::orderly();
    let to = pair.bob.address();
    let destination = pair.alice.destination(to).unwrap();
    let host = pair.alice.nic().host().clone();
    let memory = host.allocate(100).unwrap();
    let nic = pair.alice.nic();
    let region = nic.register(memory, Access::empty()).unwrap();
    host.free(memory.address).unwrap();
    let buffer = nic.acquire_buffer().unwrap();
    nic.post_send(
        &SendRequest {
            destination,
            buffer,
            header_length: 8,
            payload: Some((memory, region.local_key)),
            immediate: None,
            context: 4,
        },
        Doorbell::Ring,
    )
    .unwrap();
    pair.fabric.run_until_idle();
    assert_eq!(finished(&mut pair.alice), [(4, Status::LocalInvalidLkey)]);
    assert!(packets(&mut pair.bob).is_empty());
}

#[test]
fn header_and_payload_make_one_packet() {
    let mut pair = Pair::orderly();
    let to = pair.bob.address();
    let destination = pair.alice.destination(to).unwrap();
    let host = pair.alice.nic().host().clone();
    let memory = host.allocate_from(b"..payload..").unwrap();
    let nic = pair.alice.nic();
    let region = nic.register(memory, Access::empty()).unwrap();
    let payload = UserSlice::new(memory.address + 2, 7);
    for header_length in [7, 0] {
        let buffer = nic.acquire_buffer().unwrap();
        nic.buffer_mut(buffer)[..7].copy_from_slice(b"header+");
        nic.post_send(
            &SendRequest {
                destination,
                buffer,
                header_length,
                payload: Some((payload, region.local_key)),
                immediate: None,
                context: 0,
            },
            Doorbell::Ring,
        )
        .unwrap();
    }
    pair.fabric.run_until_idle();
    let arrived = packets(&mut pair.bob);
    assert_eq!(arrived[0].bytes, b"header+payload");
    assert_eq!(arrived[1].bytes, b"payload");
}

#[test]
fn the_hosts_memory_is_limited() {
    let fabric = Fabric::new(FabricConfig::default());
    let host = fabric.add_host(HostConfig {
        memory: 1 << 20,
        ..HostConfig::default()
    });
    let error = host.allocate(1 << 40).unwrap_err();
    assert_eq!(error.free, 1 << 20);
    let error = host.open_nic(NicConfig::default()).err().unwrap();
    assert!(matches!(error, NicError::Exhausted(_)), "{error}");
    let few = NicConfig {
        packet_buffers: 8,
        ..NicConfig::default()
    };
    assert!(
        host.open_nic(few).is_ok(),
        "the failed attempt left nothing behind"
    );
}

#[test]
fn registrations_can_be_made_to_fail() {
    let fabric = Fabric::new(FabricConfig::default());
    let host = fabric.add_host(HostConfig::default());
    let mut nic = host.open_nic(NicConfig::default()).unwrap();
    let memory = host.allocate(64).unwrap();
    host.fail_registrations(1, 2);
    let results = [0; 4].map(|_| nic.register(memory, Access::LOCAL_WRITE).is_ok());
    assert_eq!(results, [true, false, false, true]);
}
