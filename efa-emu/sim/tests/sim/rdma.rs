//! One-sided operations.

use efa_core::nic::{
    Access, Domain, Doorbell, Nic, NicError, RdmaRequest, Region, RemoteKey, Status, UserSlice,
};
use efa_device_model::profile::Profile;
use efa_sim::{Fabric, FabricConfig, HostConfig, NicConfig, ScriptedPeer};
use efa_testing::pattern;

use super::{Pair, finished, orderly, packets};

/// Alice has local memory, Bob has registered memory with a pattern; each knows the other.
struct Setup {
    pair: Pair,
    local: UserSlice,
    local_region: Region,
    remote: UserSlice,
    remote_region: Region,
}

const LENGTH: usize = 100_000;

fn setup_with(config: FabricConfig, nic: NicConfig, access: Access) -> Setup {
    let mut pair = Pair::with(config, nic);
    let local = pair.alice.nic().host().allocate(LENGTH).unwrap();
    let remote = pair
        .bob
        .nic()
        .host()
        .allocate_from(&pattern(LENGTH, 0))
        .unwrap();
    let local_region = pair
        .alice
        .nic()
        .register(local, Access::LOCAL_WRITE)
        .unwrap();
    let remote_region = pair.bob.nic().register(remote, access).unwrap();
    pair.bob.know(pair.alice.address().gid).unwrap();
    Setup {
        pair,
        local,
        local_region,
        remote,
        remote_region,
    }
}

fn setup(access: Access) -> Setup {
    setup_with(FabricConfig::default(), NicConfig::default(), access)
}

const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE);

impl Setup {
    fn request(&mut self) -> RdmaRequest {
        let to = self.pair.bob.address();
        RdmaRequest {
            destination: self.pair.alice.destination(to).unwrap(),
            local: self.local,
            local_key: self.local_region.local_key,
            remote_address: self.remote.address,
            remote_key: self.remote_region.remote_key,
            immediate: None,
            context: 5,
        }
    }

    fn start_read(&mut self, request: &RdmaRequest) {
        let nic = self.pair.alice.nic();
        nic.post_read(request, Doorbell::Ring).unwrap();
    }

    fn read(&mut self, request: &RdmaRequest) -> Status {
        self.start_read(request);
        self.outcome()
    }

    fn write(&mut self, request: &RdmaRequest) -> Status {
        let nic = self.pair.alice.nic();
        nic.post_write(request, Doorbell::Ring).unwrap();
        self.outcome()
    }

    fn outcome(&mut self) -> Status {
        self.pair.fabric.run_until_idle();
        let finished = finished(&mut self.pair.alice);
        assert_eq!(finished.len(), 1);
        assert_eq!(finished[0].0, 5);
        finished[0].1
    }

    fn local_bytes(&mut self) -> Vec<u8> {
        self.pair.alice.nic().host().read(self.local).unwrap()
    }

    fn remote_bytes(&mut self) -> Vec<u8> {
        self.pair.bob.nic().host().read(self.remote).unwrap()
    }
}

#[test]
fn a_read_brings_the_peers_bytes() {
    let mut setup = setup(ALL);
    let request = setup.request();
    assert_eq!(setup.read(&request), Status::Ok);
    assert_eq!(setup.local_bytes(), pattern(LENGTH, 0));
}

#[test]
fn a_part_can_be_read_to_a_part() {
    let mut setup = setup(ALL);
    let mut request = setup.request();
    request.remote_address += 500;
    request.local.address += 10;
    request.local.length = 90;
    assert_eq!(setup.read(&request), Status::Ok);
    let local = setup.local_bytes();
    assert_eq!(local[10..100], pattern(LENGTH, 0)[500..590]);
    assert!(
        local[..10]
            .iter()
            .chain(&local[100..])
            .all(|byte| *byte == 0)
    );
}

#[test]
fn writes_need_no_action_of_the_peer() {
    let mut setup = setup(ALL);
    let bytes = vec![0xab; LENGTH];
    let host = setup.pair.alice.nic().host().clone();
    host.write(setup.local.address, &bytes).unwrap();
    let request = setup.request();
    assert_eq!(setup.write(&request), Status::Ok);
    assert_eq!(setup.remote_bytes(), bytes);
    assert!(packets(&mut setup.pair.bob).is_empty());
}

#[test]
fn a_write_with_immediate_notifies_the_peer() {
    for unsolicited in [false, true] {
        let nic = NicConfig {
            unsolicited_write_recv: unsolicited,
            ..NicConfig::default()
        };
        let mut setup = setup_with(orderly(), nic, ALL);
        let receives = setup.pair.bob.nic().posted_receives();
        let mut request = setup.request();
        request.immediate = Some(77);
        assert_eq!(setup.write(&request), Status::Ok);
        let left = setup.pair.bob.nic().posted_receives();
        let buffers = setup.pair.bob.nic().free_buffers();
        let told = packets(&mut setup.pair.bob);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].immediate, Some(77));
        assert_eq!(setup.pair.bob.nic().free_buffers(), buffers);
        // The receive is removed when its completion is polled, and posted again.
        assert_eq!(
            (left, setup.pair.bob.nic().posted_receives()),
            (receives, receives)
        );
    }
}

/// Runs both operations with a changed request; neither side's memory may change.
fn refused(access: Access, expected: Status, change: impl Fn(&mut RdmaRequest)) {
    for write in [false, true] {
        let mut setup = setup(access);
        let mut request = setup.request();
        change(&mut request);
        let status = match write {
            true => setup.write(&request),
            false => setup.read(&request),
        };
        assert_eq!(status, expected, "write: {write}");
        assert_eq!(setup.remote_bytes(), pattern(LENGTH, 0));
        assert_eq!(setup.local_bytes(), [0; LENGTH]);
    }
}

#[test]
fn a_bad_remote_key_touches_nothing() {
    refused(ALL, Status::RemoteBadAddress, |request| {
        request.remote_key = RemoteKey(request.remote_key.0 ^ 0x10);
    });
}

#[test]
fn bounds_are_checked_at_both_ends() {
    refused(ALL, Status::RemoteBadAddress, |request| {
        request.remote_address += 1
    });
    refused(ALL, Status::RemoteBadAddress, |request| {
        request.remote_address -= 1
    });
    refused(ALL, Status::RemoteBadAddress, |request| {
        request.remote_address = u64::MAX
    });
}

#[test]
fn access_is_checked() {
    refused(Access::LOCAL_WRITE, Status::RemoteBadAddress, |_| {});
}

#[test]
fn a_bad_local_key_or_range_touches_nothing() {
    refused(ALL, Status::LocalInvalidLkey, |request| {
        request.local_key.0 ^= 0x10
    });
    refused(ALL, Status::LocalInvalidLkey, |request| {
        request.local.address += 1
    });
}

#[test]
fn peers_without_our_address_handle_refuse() {
    let mut setup = setup(ALL);
    let gid = setup.pair.alice.address().gid;
    setup.pair.bob.forget(gid).unwrap();
    let request = setup.request();
    assert_eq!(setup.read(&request), Status::RemoteUnknownPeer);
}

#[test]
fn read_data_misses_deregistered_memory() {
    let mut setup = setup(ALL);
    let request = setup.request();
    setup.start_read(&request);
    let region = setup.local_region;
    setup.pair.alice.nic().deregister(region).unwrap();
    assert_eq!(setup.outcome(), Status::LocalInvalidLkey);
    assert_eq!(setup.local_bytes(), [0; LENGTH]);
}

#[test]
fn read_data_does_not_outlive_its_queue_pair() {
    let mut setup = setup(ALL);
    let request = setup.request();
    setup.start_read(&request);
    let host = setup.pair.alice.nic().host().clone();
    drop(setup.pair.alice);
    setup.pair.fabric.run_until_idle();
    assert_eq!(host.read(setup.local).unwrap(), [0; LENGTH]);
}

#[test]
fn the_first_generation_has_no_rdma() {
    let fabric = Fabric::new(FabricConfig::default());
    let host = fabric.add_host(HostConfig {
        profile: Profile::by_name("efa0").unwrap().clone(),
        ..HostConfig::default()
    });
    let mut peer = ScriptedPeer::open(&host, NicConfig::default()).unwrap();
    let memory = host.allocate(64).unwrap();
    let to = peer.address();
    let destination = peer.destination(to).unwrap();
    let region = peer.nic().register(memory, Access::LOCAL_WRITE).unwrap();
    let request = RdmaRequest {
        destination,
        local: memory,
        local_key: region.local_key,
        remote_address: memory.address,
        remote_key: region.remote_key,
        immediate: None,
        context: 0,
    };
    let nic = peer.nic();
    assert!(matches!(
        nic.post_read(&request, Doorbell::Ring),
        Err(NicError::Unsupported(_))
    ));
    assert!(matches!(
        nic.post_write(&request, Doorbell::Ring),
        Err(NicError::Unsupported(_))
    ));
    let remote_read = nic.register(memory, Access::REMOTE_READ);
    assert!(matches!(remote_read, Err(NicError::Unsupported(_))));
}
