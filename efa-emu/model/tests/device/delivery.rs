//! The responder's handling of failed transfers, and of RDMA in parts.

use efa_core::address::Qpn;
use efa_core::nic::Status;
use efa_device_model::device::Service;
use efa_device_model::device::queue::Buffer;
use efa_device_model::link::{HostSegment, Operation, RemoteRange, RequestHeader, Transfer};
use efa_device_model::provider::WcOpcode;

use crate::harness::{MEMORY, Net, QKEY, Setup, gid};

/// A transfer without data that records its calls.
struct Recorder {
    outcome: Result<(), Status>,
    last: bool,
    put_off: bool,
    calls: Vec<(&'static str, u32, HostSegment)>,
}

impl Recorder {
    fn new(outcome: Result<(), Status>) -> Self {
        Recorder {
            outcome,
            last: true,
            put_off: false,
            calls: Vec::new(),
        }
    }
}

impl Transfer for Recorder {
    fn fetch(&mut self, offset: u32, to: HostSegment) -> Result<(), Status> {
        self.calls.push(("fetch", offset, to));
        self.outcome
    }

    fn store(&mut self, offset: u32, from: HostSegment) -> Result<(), Status> {
        self.calls.push(("store", offset, from));
        self.outcome
    }

    fn fill(&mut self, to: u64, bytes: &[u8]) -> Result<(), Status> {
        let length = bytes.len() as u32;
        let segment = HostSegment::new(to, length);
        self.calls.push(("fill", 0, segment));
        self.outcome
    }

    fn is_last(&self) -> bool {
        self.last
    }

    fn is_deferred(&self) -> bool {
        self.put_off
    }
}

fn request(net: &Net, operation: Operation, immediate: Option<u32>) -> RequestHeader {
    let is_rdma = matches!(operation, Operation::RdmaRead | Operation::RdmaWrite);
    RequestHeader {
        operation,
        source_qpn: Qpn(100),
        destination_qpn: Qpn(101),
        qkey: QKEY,
        sequence: 0,
        retries: 0,
        immediate,
        remote: is_rdma.then_some(RemoteRange::new(MEMORY + 500, net.hosts[1].keys.rkey.0)),
        length: 50,
    }
}

fn deliver(net: &mut Net, header: &RequestHeader, transfer: &mut Recorder) -> Status {
    net.hosts[1].device.deliver(gid(0), header, transfer)
}

fn segment(offset: u64, length: u32) -> HostSegment {
    HostSegment::new(MEMORY + offset, length)
}

#[test]
fn a_message_without_data_keeps_the_receive_posted() {
    let mut net = Net::pair(Setup::default());
    net.hosts[1].post_recv(1, &[(0, 20), (100, 100)]);
    let header = request(&net, Operation::Send, None);
    for status in [Status::LocalUnresponsiveRemote, Status::RemoteAbort] {
        let mut transfer = Recorder::new(Err(status));
        assert_eq!(deliver(&mut net, &header, &mut transfer), status);
        assert_eq!(transfer.calls, [("fetch", 0, segment(0, 20))]);
        assert_eq!(net.hosts[1].poll(), None);
    }
    let mut transfer = Recorder::new(Ok(()));
    assert_eq!(deliver(&mut net, &header, &mut transfer), Status::Ok);
    let parts = [
        ("fetch", 0, segment(0, 20)),
        ("fetch", 20, segment(100, 30)),
    ];
    assert_eq!(transfer.calls, parts);
    assert_eq!(net.hosts[1].outcome(), Some((1, Status::Ok)));
}

#[test]
fn unreachable_local_memory_fails_the_receive() {
    for service in [Service::Srd, Service::Ud] {
        let mut net = Net::pair(Setup::with(|setup| setup.service = service));
        net.hosts[1].post_recv(1, &[(0, 100)]);
        let operation = match service {
            Service::Srd => Operation::Send,
            Service::Ud => Operation::Datagram,
        };
        let header = request(&net, operation, None);
        let mut transfer = Recorder::new(Err(Status::LocalInvalidLkey));
        let status = deliver(&mut net, &header, &mut transfer);
        assert_eq!(status, Status::RemoteAbort);
        let outcome = net.hosts[1].outcome();
        assert_eq!(outcome, Some((1, Status::LocalInvalidLkey)));
        let again = deliver(&mut net, &header, &mut transfer);
        assert_eq!(again, Status::RemoteRnr);
    }
}

#[test]
fn rdma_to_unmapped_memory_is_a_bad_address() {
    let mut net = Net::pair(Setup::default());
    net.hosts[1].post_recv(1, &[(0, 100)]);
    for (operation, call) in [
        (Operation::RdmaRead, "store"),
        (Operation::RdmaWrite, "fetch"),
    ] {
        let header = request(&net, operation, None);
        let mut transfer = Recorder::new(Err(Status::LocalInvalidLkey));
        let status = deliver(&mut net, &header, &mut transfer);
        assert_eq!(status, Status::RemoteBadAddress);
        assert_eq!(transfer.calls, [(call, 0, segment(500, 50))]);
        let mut transfer = Recorder::new(Err(Status::LocalUnresponsiveRemote));
        let status = deliver(&mut net, &header, &mut transfer);
        assert_eq!(status, Status::LocalUnresponsiveRemote);
    }
    assert_eq!(net.hosts[1].poll(), None);
}

#[test]
fn split_requests_complete_and_count_once() {
    let mut net = Net::pair(Setup::default());
    net.hosts[1].post_recv(1, &[]);
    for (operation, immediate) in [
        (Operation::RdmaRead, None),
        (Operation::RdmaWrite, None),
        (Operation::RdmaWrite, Some(7)),
    ] {
        let before = *net.hosts[1].device.counters();
        let header = request(&net, operation, immediate);
        for part in 0..3 {
            let mut transfer = Recorder::new(Ok(()));
            transfer.last = part == 2;
            assert_eq!(net.hosts[1].poll(), None);
            let status = deliver(&mut net, &header, &mut transfer);
            assert_eq!(status, Status::Ok);
            assert_eq!(transfer.calls.len(), 1);
        }
        let after = net.hosts[1].device.counters();
        assert_eq!(after.rx_pkts - before.rx_pkts, 1);
        let moved = after.rdma_read_resp_bytes + after.rdma_write_recv_bytes
            - before.rdma_read_resp_bytes
            - before.rdma_write_recv_bytes;
        assert_eq!(moved, 50);
        let completion = net.hosts[1].poll();
        let opcode = completion.map(|completion| completion.opcode());
        let expected = immediate.map(|_| WcOpcode::RecvRdmaWithImmediate);
        assert_eq!(opcode, expected);
    }
}

#[test]
fn a_deferred_request_is_not_dropped() {
    let mut net = Net::pair(Setup::default());
    for operation in [Operation::RdmaRead, Operation::RdmaWrite] {
        let header = request(&net, operation, None);
        for put_off in [true, false] {
            let before = net.hosts[1].device.counters().rx_drops;
            let mut transfer = Recorder::new(Err(Status::RemoteAbort));
            transfer.put_off = put_off;
            deliver(&mut net, &header, &mut transfer);
            let after = net.hosts[1].device.counters().rx_drops;
            assert_eq!(after - before, u64::from(!put_off));
        }
    }
}

#[test]
fn withdrawing_a_key_midway_stops_the_request() {
    let mut net = Net::pair(Setup::default());
    let header = request(&net, Operation::RdmaWrite, None);
    let mut transfer = Recorder::new(Ok(()));
    transfer.last = false;
    assert_eq!(deliver(&mut net, &header, &mut transfer), Status::Ok);
    let lkey = net.hosts[1].keys.lkey;
    net.hosts[1].device.deregister_memory(lkey).unwrap();
    let status = deliver(&mut net, &header, &mut transfer);
    assert_eq!(status, Status::RemoteBadAddress);
    assert_eq!(transfer.calls.len(), 1);
}

#[test]
fn requests_that_no_device_sends_are_refused() {
    let mut net = Net::pair(Setup::default());
    net.hosts[1].post_recv(1, &[(0, 10_000)]);
    let send = request(&net, Operation::Send, None);
    let read = request(&net, Operation::RdmaRead, None);
    let write = request(&net, Operation::RdmaWrite, None);
    let too_long = net.hosts[1].device.profile().mtu + 1;
    let cases = [
        (
            RequestHeader {
                length: too_long,
                ..send
            },
            Status::RemoteBadLength,
        ),
        (
            RequestHeader {
                length: u32::MAX,
                ..read
            },
            Status::RemoteBadLength,
        ),
        (
            RequestHeader {
                remote: None,
                ..read
            },
            Status::RemoteBadAddress,
        ),
        (
            RequestHeader {
                remote: None,
                ..write
            },
            Status::RemoteBadAddress,
        ),
        (
            RequestHeader {
                operation: Operation::Datagram,
                ..send
            },
            Status::RemoteBadDestQpn,
        ),
    ];
    for (header, expected) in cases {
        let mut transfer = Recorder::new(Ok(()));
        let status = deliver(&mut net, &header, &mut transfer);
        assert_eq!(status, expected, "{header:?}");
        assert_eq!(transfer.calls, [], "{header:?}");
    }
    assert_eq!(net.hosts[1].poll(), None);
}

/// The memory that the device prefetches for the next messages.
fn looked_at(net: &mut Net) -> Vec<HostSegment> {
    let mut found = Vec::new();
    net.hosts[1].device.look_ahead(|memory| found.push(memory));
    found
}

#[test]
fn a_device_looks_ahead_once_for_each_receive() {
    let mut net = Net::pair(Setup::default());
    for receive in 0..10 {
        net.hosts[1].post_recv(receive, &[(1000 * receive, 100)]);
    }
    let header = RequestHeader {
        length: 70,
        ..request(&net, Operation::Send, None)
    };
    let send = |net: &mut Net| {
        assert_eq!(
            deliver(net, &header, &mut Recorder::new(Ok(()))),
            Status::Ok
        );
    };
    assert_eq!(looked_at(&mut net), [], "nothing came yet");
    send(&mut net);
    // As much of the next two buffers as the last message had.
    assert_eq!(looked_at(&mut net), [segment(1000, 70), segment(2000, 70)]);
    assert_eq!(looked_at(&mut net), []);
    send(&mut net);
    assert_eq!(looked_at(&mut net), [segment(3000, 70)]);
    // Messages arrive without prefetching, and no further receives are posted.
    for _ in 0..6 {
        send(&mut net);
    }
    assert_eq!(looked_at(&mut net), [segment(8000, 70), segment(9000, 70)]);
    send(&mut net);
    assert_eq!(looked_at(&mut net), []);
    net.hosts[1].post_recv(10, &[(10_000, 100)]);
    net.hosts[1].post_recv(11, &[(11_000, 30)]);
    send(&mut net);
    assert_eq!(
        looked_at(&mut net),
        [segment(10_000, 70), segment(11_000, 30)]
    );
}

#[test]
fn devices_look_only_at_the_receives_memory() {
    let mut net = Net::pair(Setup::default());
    let outside = Buffer {
        lkey: net.hosts[1].keys.lkey.0 ^ 1,
        ..net.hosts[1].buffer(0, 100)
    };
    net.hosts[1].post_recv(0, &[(0, 100)]);
    net.hosts[1].client.recv.post(1, &[outside]).unwrap();
    net.hosts[1].post_recv(2, &[(2000, 100)]);
    let header = request(&net, Operation::Send, None);
    let status = deliver(&mut net, &header, &mut Recorder::new(Ok(())));
    assert_eq!(status, Status::Ok);
    assert_eq!(looked_at(&mut net), [segment(2000, 64)]);
}

#[test]
fn peeking_leaves_a_bad_doorbell_for_later() {
    let mut net = Net::pair(Setup::default());
    net.hosts[1].post_recv(0, &[(0, 100)]);
    let header = request(&net, Operation::Send, None);
    let arrive = |net: &mut Net| deliver(net, &header, &mut Recorder::new(Ok(())));
    assert_eq!(arrive(&mut net), Status::Ok);
    net.hosts[1].client.recv.ring().doorbell().write(1 << 14);
    assert_eq!(looked_at(&mut net), []);
    assert_eq!(net.hosts[1].outcome(), Some((0, Status::Ok)));
    assert_eq!(arrive(&mut net), Status::RemoteAbort);
}
