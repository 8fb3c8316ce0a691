//! Messages and RDMA between guests, and between a guest and a process.

use std::path::Path;

use efa_core::address::Qpn;
use efa_core::nic::Status;
use efa_device_model::device::queue::{CompletionSize, ReceiveDescriptor, ReceiveRing, WqeSize};
use efa_device_model::profile::Profile;
use efa_device_model::provider::{Completion, SendData, UdAddress, WcOpcode};
use efa_pci::admin::{CqMade, QpMade};
use efa_pci::function::Bars;
use efa_pci::vfio::Server;
use efa_pci::vfio::message::Command;
use efa_testing::device::RdmaOperation;
use efa_testing::pattern;

use super::fake::{Driver, EVENT_VECTOR, Endpoint, Memory};
use super::guest::{FABRIC, Guest, function, function_of};
use super::process::Process;

/// A guest with an endpoint and memory.
struct Host {
    driver: Driver,
    memory: Memory,
    endpoint: Endpoint,
    eqn: u16,
    events: u64,
}

impl Host {
    fn new(root: &Path, name: &str, wqe: WqeSize) -> Host {
        Host::of(Driver::probe(root, name), wqe)
    }

    /// A host with a driver that is ready.
    fn of(mut driver: Driver, wqe: WqeSize) -> Host {
        let memory = Memory::new(&mut driver);
        let (eqn, events) = driver.create_eq();
        let endpoint = Endpoint::new(&mut driver, wqe, Some(eqn));
        Host {
            driver,
            memory,
            endpoint,
            eqn,
            events,
        }
    }

    /// The address of another guest's endpoint.
    fn address_of(&mut self, other: &mut Host) -> UdAddress {
        let ahn = self.driver.address(other.driver.gid());
        other.endpoint.address(ahn)
    }

    fn post_recv(&mut self, wr_id: u64, offset: u64, length: u32) {
        let buffer = self.memory.buffer(offset, length);
        self.endpoint.post_recv(&mut self.driver, wr_id, buffer);
    }

    fn post_send(&mut self, wr_id: u64, to: UdAddress, offset: u64, bytes: &[u8]) {
        self.memory.put(&self.driver, offset, bytes);
        let buffer = self.memory.buffer(offset, bytes.len() as u32);
        self.endpoint
            .post_send(&mut self.driver, wr_id, to, SendData::Buffers(&[buffer]));
    }

    fn post_rdma(
        &mut self,
        wr_id: u64,
        to: UdAddress,
        operation: RdmaOperation,
        (offset, length): (u64, u32),
        remote: (u64, u32),
    ) {
        let local = self.memory.buffer(offset, length);
        self.endpoint
            .post_rdma(&mut self.driver, wr_id, to, operation, local, remote);
    }

    /// Waits for the next completion, which must be a success.
    fn success(&mut self) -> Completion {
        let completion = self.endpoint.completion();
        assert_eq!(completion.status(), Some(Status::Ok));
        completion
    }
}

fn pair(root: &Path) -> (Host, Host, UdAddress, UdAddress) {
    let mut a = Host::new(root, "a", WqeSize::Bytes64);
    let mut b = Host::new(root, "b", WqeSize::Bytes128);
    let (to_b, to_a) = (a.address_of(&mut b), b.address_of(&mut a));
    (a, b, to_b, to_a)
}

#[test]
fn guests_send_to_each_other() {
    let root = tempfile::tempdir().unwrap();
    let (mut a, mut b, to_b, to_a) = pair(root.path());
    // Several laps of the rings, with buffers across pages.
    for round in 0..150u64 {
        let bytes = pattern(1 + (round as usize * 97) % 8000, round as u8);
        b.post_recv(round, 9000, 8200);
        a.post_send(round, to_b, 100, &bytes);
        assert_eq!(a.success().wr_id, round);
        let received = b.success();
        assert_eq!(
            (received.wr_id, received.byte_len()),
            (round, bytes.len() as u32)
        );
        assert_eq!(received.ahn().map(|ahn| ahn.0), Some(to_a.ahn));
        assert_eq!(b.memory.bytes(&b.driver, 9000, bytes.len()), bytes);
        a.post_recv(round, 20_000, 64);
        let inline = SendData::Inline(&[b"pong"]);
        b.endpoint.post_send(&mut b.driver, round, to_a, inline);
        assert_eq!(b.success().wr_id, round);
        assert_eq!(a.success().byte_len(), 4);
        assert_eq!(a.memory.bytes(&a.driver, 20_000, 4), b"pong");
    }
    assert!(b.driver.statistics(1)[3] >= 150, "messages were counted");
}

/// The network options of `efa-emu run`, such as `--loss`, also apply to the device of a guest.
#[test]
fn a_bad_network_costs_guests_no_message() {
    let root = tempfile::tempdir().unwrap();
    let guest = |name| {
        let mut config = efa_shm::HostConfig::new(FABRIC, name);
        config.network = "loss=0.3,rnr=0.3,latency=20us,paths=4".parse().unwrap();
        let function = function_of(root.path(), config, &Profile::default());
        Host::of(Driver::ready(Guest::with(function)), WqeSize::Bytes64)
    };
    let (mut a, mut b) = (guest("a"), guest("b"));
    let to_b = a.address_of(&mut b);
    for round in 0..50u64 {
        let bytes = pattern(3000, round as u8);
        b.post_recv(round, 0, 4096);
        a.post_send(round, to_b, 4096, &bytes);
        assert_eq!(b.success().wr_id, round);
        assert_eq!(b.memory.bytes(&b.driver, 0, 3000), bytes);
        assert_eq!(a.success().wr_id, round);
    }
    let [_, packets, ..] = a.driver.statistics(4)[..] else {
        panic!("there are statistics of the network");
    };
    assert!(packets > 0, "receivers were not ready");
}

#[test]
fn guests_read_and_write_each_other() {
    let root = tempfile::tempdir().unwrap();
    let (mut a, mut b, to_b, _) = pair(root.path());
    let bytes = pattern(20_000, 3);
    b.memory.put(&b.driver, 5000, &bytes);
    let remote = |memory: &Memory, offset| (memory.iova + offset, memory.rkey);
    let from = remote(&b.memory, 5000);
    a.post_rdma(1, to_b, RdmaOperation::Read, (123, 20_000), from);
    assert_eq!(a.success().opcode(), WcOpcode::RdmaRead);
    assert_eq!(a.memory.bytes(&a.driver, 123, 20_000), bytes);
    let bytes = pattern(12_345, 9);
    a.memory.put(&a.driver, 0, &bytes);
    let to = remote(&b.memory, 77);
    a.post_rdma(2, to_b, RdmaOperation::Write(None), (0, 12_345), to);
    assert_eq!(a.success().opcode(), WcOpcode::RdmaWrite);
    assert_eq!(b.memory.bytes(&b.driver, 77, 12_345), bytes);
    let [reads, read_bytes, ..] = a.driver.statistics(2)[..] else {
        panic!("there are statistics of reads");
    };
    assert_eq!((reads, read_bytes), (1, 20_000));
    assert_eq!(a.driver.statistics(3)[..2], [1, 12_345]);
    assert_eq!(b.driver.statistics(3)[3], 12_345);
    // Beyond the end of the region, and with a wrong key.
    for (offset, key) in [(8 * 4096 - 1, 0), (0, 1)] {
        let (address, rkey) = remote(&b.memory, offset);
        let remote = (address, rkey ^ key);
        a.post_rdma(3, to_b, RdmaOperation::Read, (0, 2), remote);
        let failed = a.endpoint.completion();
        assert_eq!(failed.status(), Some(Status::RemoteBadAddress));
    }
}

#[test]
fn a_completion_raises_the_requested_interrupt() {
    let root = tempfile::tempdir().unwrap();
    let (mut a, mut b, to_b, _) = pair(root.path());
    for round in 0..3u64 {
        b.post_recv(round, 0, 64);
        b.endpoint.request_event(&mut b.driver);
        assert_eq!(b.driver.interrupts(EVENT_VECTOR), 0);
        a.post_send(round, to_b, 0, b"wake up");
        b.driver.wait_for_interrupt(EVENT_VECTOR);
        let event = b.driver.bytes(b.events + 16 * round, 12);
        assert_eq!(
            event,
            [1, 0, 0, 0, 0, 0, 0, 0, b.endpoint.cq as u8, 0, 0, 0]
        );
        b.driver.arm(b.eqn);
        // An interrupt may have been repeated before.
        b.driver.interrupts(EVENT_VECTOR);
        assert_eq!(b.success().wr_id, round);
        a.success();
    }
}

#[test]
fn short_completions_are_written() {
    for depth in [1, 2, 256] {
        write_short_completions(depth);
    }
}

fn write_short_completions(depth: u16) {
    let root = tempfile::tempdir().unwrap();
    let (mut a, mut b, _, _) = pair(root.path());
    // A separate queue pair with short completions.
    let mut queue = b.driver.cq_request(CompletionSize::Bytes16, None);
    queue.depth = depth.into();
    let cq = b.driver.make::<CqMade>(9, &queue).unwrap().cq.get();
    let request = b.driver.qp_request(cq, WqeSize::Bytes64);
    let made = b.driver.make::<QpMade>(1, &request).unwrap();
    b.driver.bring_up(made.handle.get());
    let ring = b.driver.lend(request.recv_base.get(), 2048);
    let ring = ReceiveRing::over(ring, 128).unwrap();
    let ahn = a.driver.address(b.driver.gid());
    let to = UdAddress {
        qpn: Qpn(made.qpn.get()),
        ..b.endpoint.address(ahn)
    };
    for round in 0..300u16 {
        let buffer = b.memory.buffer(0, 16);
        let descriptor = ReceiveDescriptor {
            request_id: round % 128,
            first: true,
            last: true,
            buffer,
        };
        ring.write(round, &descriptor);
        let doorbell = made.recv_doorbell.get().into();
        b.driver
            .write(Bars::Doorbells, doorbell, u32::from(round) + 1);
        a.post_send(round.into(), to, 0, b"0123456789");
        a.success();
        // The receiver's entry is written before the sender's.
        let (index, phase) = (
            u64::from(round % depth),
            u8::from((round / depth).is_multiple_of(2)),
        );
        let entry = b.driver.bytes(queue.base.get() + 16 * index, 16);
        assert_eq!(
            entry[..4],
            [(round % 128) as u8, 0, 0, 0x04 | phase],
            "{round}"
        );
        assert_eq!(
            entry[4..8],
            [made.qpn.get() as u8, (made.qpn.get() >> 8) as u8, 10, 0]
        );
    }
    let end = 16 * usize::from(depth);
    let page = b.driver.bytes(queue.base.get(), 4096);
    assert!(
        page[end..].iter().all(|byte| *byte == 0),
        "nothing is written behind the queue"
    );
}

#[test]
fn a_guest_and_a_process_are_peers() {
    let root = tempfile::tempdir().unwrap();
    let mut guest = Host::new(root.path(), "guest", WqeSize::Bytes64);
    let mut process = Process::new(root.path(), "process");
    let to_process = process.address(guest.driver.address(process.gid()));
    let ahn = process.connect(guest.driver.gid());
    let to_guest = guest.endpoint.address(ahn);
    for round in 0..50u64 {
        let bytes = pattern(4000, round as u8);
        process.post_recv(round, 0, 4096);
        guest.post_send(round, to_process, 40, &bytes);
        assert_eq!(process.completion().byte_len(), 4000);
        assert_eq!(process.memory.bytes[..4000], bytes);
        assert_eq!(guest.success().wr_id, round);
        guest.post_recv(round, 8000, 4096);
        process.post_send(round, to_guest, 1, 3000);
        assert_eq!(guest.success().byte_len(), 3000);
        assert_eq!(
            guest.memory.bytes(&guest.driver, 8000, 3000),
            bytes[1..3001]
        );
        assert_eq!(process.completion().status(), Some(Status::Ok));
    }
    // Each accesses the other's memory.
    let bytes = pattern(20_000, 1);
    guest.memory.put(&guest.driver, 999, &bytes);
    let remote = (guest.memory.iova + 999, guest.memory.rkey);
    process.post_rdma(1, to_guest, RdmaOperation::Read, 20_000, remote);
    assert_eq!(process.completion().status(), Some(Status::Ok));
    assert_eq!(process.memory.bytes[..20_000], bytes);
    let from = process.remote(300);
    guest.post_rdma(1, to_process, RdmaOperation::Read, (0, 500), from);
    while guest
        .endpoint
        .poll()
        .map(|completion| completion.status())
        .is_none()
    {
        process.progress();
    }
    assert_eq!(guest.memory.bytes(&guest.driver, 0, 500), bytes[300..800]);
}

#[test]
fn departed_guests_leave_the_fabric() {
    let root = tempfile::tempdir().unwrap();
    let (mut a, b, to_b, _) = pair(root.path());
    b.driver.leave();
    a.post_send(1, to_b, 0, b"is anybody there?");
    let status = a.endpoint.completion().status();
    assert!(
        status.is_some_and(|status| status != Status::Ok),
        "{status:?}"
    );
}

/// An interruption of a guest's device in use.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Interruption {
    /// The driver is unbound or unloaded, and loaded again.
    Rebind,
    /// The bus resets the device.
    BusReset,
    /// The guest reboots.
    Reboot,
    /// The device is unplugged and plugged in again.
    Replug,
}

impl Interruption {
    /// Returns the driver after it has found the device again.
    fn of(self, mut driver: Driver, socket: &Path) -> Driver {
        match self {
            // The driver's start begins with a reset.
            Interruption::Rebind => {}
            Interruption::BusReset => drop(driver.request(Command::Reset, &[], &[]).unwrap()),
            Interruption::Reboot => driver.reboot(),
            Interruption::Replug => {
                drop(driver);
                driver = Driver::new(Guest::connect(socket));
            }
        }
        driver.start();
        driver
    }
}

/// A peer's outstanding requests fail, and it has no other effects.
fn interrupted(interruption: Interruption) {
    const SENDS: u64 = 10;
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let mut function = function(root.path(), "guest");
    std::thread::spawn(move || Server::new(listener).run(&mut function));
    let mut guest = Host::of(Driver::ready(Guest::connect(&socket)), WqeSize::Bytes64);
    let mut peer = Process::new(root.path(), "peer");
    let mut other = Process::new(root.path(), "other");
    let to_other = other.address(peer.connect(other.gid()));
    let gid = guest.driver.gid();
    let ahn = peer.connect(gid);
    let to_guest = guest.endpoint.address(ahn);
    // Messages without receives in both directions, and copies from the guest's memory.
    let to_peer = peer.address(guest.driver.address(peer.gid()));
    for wr_id in 0..SENDS {
        peer.post_send(wr_id, to_guest, 0, 8000);
        guest.post_send(wr_id, to_peer, 0, &pattern(8000, 1));
    }
    let old = (guest.memory.iova, guest.memory.rkey);
    peer.post_rdma(SENDS, to_guest, RdmaOperation::Read, 30_000, old);
    other.post_recv(0, 0, 4096);
    peer.post_send(SENDS + 1, to_other, 5, 4000);

    let Host { driver, memory, .. } = guest;
    let driver = interruption.of(driver, &socket);

    let mut failed = 0;
    for _ in 0..SENDS + 2 {
        let completion = peer.completion();
        let is_ok = completion.status() == Some(Status::Ok);
        match completion.wr_id {
            // The copy may have been finished before.
            SENDS => {}
            wr_id if wr_id > SENDS => assert!(is_ok, "it did not go to the guest"),
            _ => failed += u64::from(!is_ok),
        }
    }
    assert_eq!(failed, SENDS, "no message has arrived");
    assert_eq!(other.completion().byte_len(), 4000);
    // The guest still has the memory, but the device does not.
    peer.post_rdma(20, to_guest, RdmaOperation::Write(None), 16, old);
    assert_ne!(peer.completion().status(), Some(Status::Ok));
    if interruption != Interruption::Replug {
        let kept = memory.bytes(&driver, 0, 16);
        assert_eq!(kept, pattern(16, 1), "nobody has written");
    }
    let mut guest = Host::of(driver, WqeSize::Bytes128);
    assert_eq!(guest.driver.gid(), gid, "it is the same device");
    let to_guest = guest.endpoint.address(ahn);
    let to_peer = peer.address(guest.driver.address(peer.gid()));
    for round in 0..20u64 {
        guest.post_recv(round, 0, 4096);
        peer.post_send(round, to_guest, 0, 1000 + round as usize);
        assert_eq!(guest.success().byte_len(), 1000 + round as u32);
        assert_eq!(peer.completion().status(), Some(Status::Ok));
    }
    guest.memory.put(&guest.driver, 0, b"hello again");
    let remote = (guest.memory.iova, guest.memory.rkey);
    peer.post_rdma(21, to_guest, RdmaOperation::Read, 11, remote);
    assert_eq!(peer.completion().status(), Some(Status::Ok));
    assert_eq!(peer.memory.bytes[..11], *b"hello again");
    let buffer = guest.memory.buffer(0, 11);
    let data = SendData::Buffers(&[buffer]);
    guest
        .endpoint
        .post_send(&mut guest.driver, 22, to_peer, data);
    // Earlier messages that had reached the peer may come first.
    peer.post_recv(0, 0, 8192);
    while peer.completion().byte_len() != 11 {
        peer.post_recv(0, 0, 8192);
    }
    assert_eq!(guest.success().wr_id, 22);
}

#[test]
fn a_rebind_during_traffic_is_harmless() {
    interrupted(Interruption::Rebind);
}

#[test]
fn a_bus_reset_during_traffic_is_harmless() {
    interrupted(Interruption::BusReset);
}

#[test]
fn a_reboot_during_traffic_is_harmless() {
    interrupted(Interruption::Reboot);
}

#[test]
fn a_replug_during_traffic_is_harmless() {
    interrupted(Interruption::Replug);
}
