//! Admission of operations that peers start: the limits, how they are shared among peers, and which
//! operations wait.

use efa_core::address::{Qkey, Qpn, RawAddress};
use efa_core::endpoint::*;
use efa_core::nic::{Access, Region, Source, UserSlice};
use efa_core::wire::{
    Cts, CtsData, Header, LongctsRtm, LongctsRtw, MediumRtm, MsgId, Packet, RecvId, Repr,
    ReqOptions, RmaIov, RmaIovs, Rtr, RtrKind, SendId,
};

use crate::script::{Script, config, config_with, connected_with, memory, traits};
use efa_testing::nic::MEMORY;

const LENGTH: u64 = 3000;

/// One of many peers, all on the host of the script's.
#[derive(Clone, Copy)]
struct OtherPeer(RawAddress);

impl OtherPeer {
    fn new(script: &Script, number: u16) -> Self {
        OtherPeer(RawAddress {
            qpn: Qpn(100 + number),
            qkey: Qkey(0x7000 + u32::from(number)),
            ..script.peer_address()
        })
    }

    fn options(self) -> ReqOptions {
        ReqOptions::with_raw_address(self.0)
    }

    fn send(self, script: &mut Script, header: &impl Repr, payload: &[u8]) {
        let source = Source {
            qpn: self.0.qpn,
            ..script.source()
        };
        script.inject_from(source, &header.to_packet(payload));
    }

    /// Starts to write the whole region, without any data yet.
    fn write(self, script: &mut Script, region: Region, send_id: u32) {
        let target = [RmaIov::new(MEMORY, LENGTH, region.remote_key.0)];
        let request = LongctsRtw {
            rma_iov: RmaIovs::new(&target).unwrap(),
            msg_length: LENGTH,
            send_id: SendId(send_id),
            credit_request: 1,
            options: self.options(),
            ..LongctsRtw::default()
        };
        self.send(script, &request, &[]);
    }

    fn read(self, script: &mut Script, region: Region, recv_id: u32) {
        let source = [RmaIov::new(MEMORY, 64, region.remote_key.0)];
        let request = Rtr {
            kind: RtrKind::Short,
            rma_iov: RmaIovs::new(&source).unwrap(),
            msg_length: 64,
            recv_id: RecvId(recv_id),
            recv_length: 64,
            options: self.options(),
        };
        self.send(script, &request, &[]);
    }
}

/// The replies that the endpoint sent: their ids and ours in its CTS and READRSP packets.
fn answers(script: &mut Script) -> Vec<(u32, RecvId)> {
    let mut found = Vec::new();
    script.progress();
    while script.network.flights() > 0 {
        let bytes = script.sent();
        match Packet::parse(&bytes).unwrap().header {
            Header::Cts(cts) => found.push((cts.send_id.0, cts.recv_id)),
            Header::ReadRsp(response) => found.push((response.recv_id.0, RecvId(0))),
            Header::Handshake(_) => {}
            other => panic!("{other:?}"),
        }
    }
    found
}

/// Sends the data that a CTS granted, in two packets.
fn grant(script: &mut Script, from: OtherPeer, recv_id: RecvId, length: u64) {
    for offset in (0..length).step_by(900) {
        let part = 900.min(length - offset);
        let data = CtsData {
            recv_id,
            seg_length: part,
            seg_offset: offset,
            connid: Some(from.0.qkey.into()),
            ..CtsData::default()
        };
        from.send(script, &data, &vec![7; part as usize]);
    }
}

fn crowded(remote_operations: usize) -> (Script, Region) {
    let settings = EndpointConfig {
        max_operations: 8,
        remote_operations,
        cts_window_packets: 4,
        ..config()
    };
    let (mut script, _) = connected_with(settings, traits());
    let target = UserSlice::new(MEMORY, 1 << 14);
    let region = script.dut.register(target, Access::all()).unwrap();
    (script, region)
}

fn one_receive(script: &mut Script) -> Result<ReceiveId, EndpointError> {
    script.post_recv(SourceFilter::Any, None, memory(0, 8), 8)
}

#[test]
fn sixteen_busy_peers_leave_room_for_others() {
    let (mut script, region) = crowded(34);
    let peers: Vec<OtherPeer> = (0..16)
        .map(|number| OtherPeer::new(&script, number))
        .collect();
    for turn in 0..10 {
        for (number, peer) in peers.iter().enumerate() {
            peer.write(&mut script, region, turn * 100 + number as u32);
        }
    }
    let mut granted = answers(&mut script);
    assert_eq!(granted.len(), 32, "each peer has two of its ten");
    assert_eq!(script.dut.usage().waiting, 128);
    // All that the application may have, and not more.
    for context in 0..8 {
        script.recv(0, 8, context);
    }
    assert_eq!(one_receive(&mut script), Err(EndpointError::TryAgain));
    // A late peer is served at once.
    let late = OtherPeer::new(&script, 16);
    late.write(&mut script, region, 77);
    let its = answers(&mut script);
    assert_eq!(its.len(), 1);
    assert_eq!(its[0].0, 77);
    grant(&mut script, late, its[0].1, LENGTH);
    // Everything that waited is done in the end, the data of each once.
    let mut done = 0;
    while let Some((send_id, recv_id)) = granted.pop() {
        let from = peers[send_id as usize % 100];
        grant(&mut script, from, recv_id, LENGTH);
        done += 1;
        granted.extend(answers(&mut script));
    }
    assert_eq!(done, 160);
    let one_more = one_receive(&mut script);
    assert_eq!(one_more, Err(EndpointError::TryAgain), "as before");
    let usage = script.dut.usage();
    assert_eq!(
        (usage.inbound, usage.waiting, usage.deferred_packets),
        (8, 0, 0)
    );
    assert_eq!(script.dut.poll_event(), None);
}

#[test]
fn reads_of_busy_peers_leave_room_for_sends() {
    let (mut script, region) = crowded(6);
    let main = script.dut.find_address(&script.peer_address()).unwrap();
    let peers: Vec<OtherPeer> = (0..2)
        .map(|number| OtherPeer::new(&script, number))
        .collect();
    for turn in 0..5 {
        for (number, peer) in peers.iter().enumerate() {
            peer.read(&mut script, region, turn * 100 + number as u32);
        }
    }
    // Two of each are under way; their packets are with the device.
    assert_eq!(script.dut.usage().outbound, 4);
    assert_eq!(script.dut.usage().waiting, 6);
    for context in 0..8 {
        script.send_message(main, 8, context);
    }
    let one_more = script.try_send(main, 8, OperationFlags::empty(), 8);
    assert_eq!(one_more, Err(EndpointError::TryAgain));
    let mut answered = Vec::new();
    script.progress();
    while script.network.flights() > 0 {
        let bytes = script.sent();
        if let Header::ReadRsp(response) = Packet::parse(&bytes).unwrap().header {
            answered.push(response.recv_id.0);
        }
    }
    answered.sort_unstable();
    assert_eq!(answered, [0, 1, 100, 101, 200, 201, 300, 301, 400, 401]);
    let usage = script.dut.usage();
    assert_eq!(
        (usage.outbound, usage.waiting, usage.deferred_packets),
        (0, 0, 0)
    );
    for context in 0..8 {
        script.send_message(main, 8, context);
    }
    let one_more = script.try_send(main, 8, OperationFlags::empty(), 8);
    assert_eq!(one_more, Err(EndpointError::TryAgain), "as before");
}

#[test]
fn removing_a_peer_removes_its_deferred_work() {
    let (mut script, region) = crowded(1);
    let (busy, other) = (OtherPeer::new(&script, 0), OtherPeer::new(&script, 1));
    for send_id in 0..5 {
        busy.write(&mut script, region, send_id);
    }
    other.write(&mut script, region, 9);
    assert_eq!(answers(&mut script).len(), 1);
    assert_eq!(script.dut.usage().waiting, 5);
    let peer = script.dut.find_address(&busy.0).unwrap();
    script.dut.remove_address(peer).unwrap();
    let granted = answers(&mut script);
    assert_eq!(granted.len(), 1, "the other's turn has come");
    grant(&mut script, other, granted[0].1, LENGTH);
    assert_eq!(script.dut.usage().inbound, 0);
    assert_eq!(script.dut.usage().deferred_packets, 0);
}

#[test]
fn deferred_work_skips_deregistered_memory() {
    let (mut script, region) = crowded(2);
    let busy = OtherPeer::new(&script, 0);
    for send_id in 0..3 {
        busy.write(&mut script, region, send_id);
    }
    assert_eq!(answers(&mut script).len(), 1);
    script.dut.deregister(region).unwrap();
    assert_eq!(answers(&mut script), []);
    let failures = core::iter::from_fn(|| script.dut.poll_event())
        .filter(|event| matches!(event, Event::RemoteOperationFailed { .. }));
    assert_eq!(failures.count(), 3);
    let usage = script.dut.usage();
    assert_eq!(
        (usage.inbound, usage.waiting, usage.deferred_packets),
        (0, 0, 0)
    );
}

#[test]
fn peers_exceeding_deferral_memory_are_given_up() {
    let settings = EndpointConfig {
        remote_operations: 2,
        recv_buffers: 8,
        deferred_bytes: 1024,
        ..config()
    };
    let (mut script, _) = connected_with(settings, traits());
    let target = UserSlice::new(MEMORY, 1 << 14);
    let region = script.dut.register(target, Access::all()).unwrap();
    let busy = OtherPeer::new(&script, 0);
    let mut sent = 0;
    while script.dut.poll_event().is_none() {
        busy.write(&mut script, region, sent);
        sent += 1;
        assert!(sent < 30);
    }
    // One runs, two wait in device buffers, eight in 128 bytes each.
    assert_eq!(sent, 12);
    assert_eq!(script.network.receives_posted(0), 8);
    assert_eq!(script.dut.usage().deferred_packets, 0);
}

fn long(script: &Script, number: u32) -> LongctsRtm {
    LongctsRtm {
        msg_id: MsgId(number),
        msg_length: LENGTH,
        send_id: SendId(number),
        options: script.raw_address(),
        ..LongctsRtm::default()
    }
}

fn main_peer(script: &Script) -> OtherPeer {
    OtherPeer(script.peer_address())
}

fn multi(script: &mut Script, length: usize, context: u64) -> Result<ReceiveId, EndpointError> {
    script.dut.multi_recv(MultiRecvArgs {
        source: SourceFilter::Any,
        buffer: memory(1 << 15, length),
        min_free: 100,
        context,
    })
}

#[test]
fn multi_receive_works_at_the_operation_limit() {
    let settings = config_with(|config| config.max_operations = 2);
    let (mut script, _) = connected_with(settings, traits());
    multi(&mut script, 10_000, 1).unwrap();
    let tagged =
        |script: &mut Script| script.post_recv(SourceFilter::Any, Some(1), memory(0, 8), 2);
    tagged(&mut script).unwrap();
    assert_eq!(tagged(&mut script), Err(EndpointError::TryAgain));
    assert_eq!(multi(&mut script, 100, 3), Err(EndpointError::TryAgain));
    let eager = script.eager(0);
    script.send(&eager, &[1; 40]);
    assert_eq!(script.completion().length, 40);
    let message = long(&script, 1);
    script.send(&message, &[2; 500]);
    let cts = script.expect_header::<Cts>();
    for segment in [0, 300] {
        let medium = MediumRtm {
            msg_id: MsgId(2),
            msg_length: 600,
            seg_offset: segment,
            options: script.raw_address(),
            ..MediumRtm::default()
        };
        script.send(&medium, &[3; 300]);
    }
    assert_eq!(script.completion().length, 600);
    assert_eq!(cts.send_id, SendId(1));
    assert_eq!(script.dut.usage().unexpected, 0);
}

#[test]
fn deferred_multi_receive_messages_keep_their_places() {
    let settings = EndpointConfig {
        remote_operations: 2,
        cts_window_packets: 4,
        ..config()
    };
    let (mut script, peer) = connected_with(settings, traits());
    let from = main_peer(&script);
    let buffer = multi(&mut script, 10_000, 1).unwrap();
    script.send(&long(&script, 0), &[]);
    let first = answers(&mut script);
    assert_eq!(first.len(), 1);
    // There is room for one: these wait after the first.
    script.send(&long(&script, 1), &[]);
    let medium = |script: &Script, offset| MediumRtm {
        msg_id: MsgId(2),
        msg_length: 600,
        seg_offset: offset,
        options: script.raw_address(),
        ..MediumRtm::default()
    };
    script.send(&medium(&script, 300), &[3; 300]);
    script.send(&medium(&script, 0), &[3; 300]);
    assert_eq!(answers(&mut script), []);
    assert_eq!(script.dut.usage().waiting, 2);
    // A message in one packet needs no room for an operation. It goes to the multi-receive buffer,
    // which is older than the receive.
    script.recv(0, 4000, 9);
    let eager = script.eager(3);
    script.send(&eager, &[4; 40]);
    let entry = script.completion();
    let start = MEMORY + (1 << 15);
    assert_eq!((entry.context, entry.buffer), (1, start + 2 * LENGTH + 600));
    // The application cancels the buffer; messages that already have a part of it keep that part.
    assert!(script.dut.cancel(buffer));
    let cancelled = script.error();
    assert_eq!(cancelled.failure.errno, Errno::ECANCELED);
    assert!(!cancelled.flags.contains(CompletionFlags::MULTI_RECV));
    grant(&mut script, from, first[0].1, LENGTH);
    assert_eq!(script.completion().buffer, start);
    let second = answers(&mut script);
    assert_eq!(second.len(), 1);
    assert_eq!(second[0].0, 1);
    script.expect_no_completion();
    grant(&mut script, from, second[0].1, LENGTH);
    assert_eq!(script.completion().buffer, start + LENGTH);
    script.progress();
    let last = script.completion();
    assert_eq!(last.buffer, start + 2 * LENGTH);
    assert!(last.flags.contains(CompletionFlags::MULTI_RECV));
    assert_eq!(script.network.memory(0, last.buffer, 600), vec![3; 600]);
    let usage = script.dut.usage();
    assert_eq!((usage.inbound, usage.waiting, usage.assemblies), (1, 0, 0));
    script.dut.remove_address(peer).unwrap();
}

#[test]
fn deferred_multi_receive_messages_end_with_their_peer() {
    let settings = config_with(|config| config.remote_operations = 2);
    let (mut script, peer) = connected_with(settings, traits());
    for number in 0..3 {
        script.send(&long(&script, number), &[]);
    }
    let segment = MediumRtm {
        msg_id: MsgId(3),
        msg_length: 600,
        options: script.raw_address(),
        ..MediumRtm::default()
    };
    script.send(&segment, &[3; 300]);
    assert_eq!(script.dut.usage().unexpected, 4);
    multi(&mut script, 10_000, 1).unwrap();
    assert_eq!(answers(&mut script).len(), 1);
    let usage = script.dut.usage();
    assert_eq!((usage.unexpected, usage.waiting), (0, 3));
    script.dut.remove_address(peer).unwrap();
    for _ in 0..4 {
        let ended = script.error();
        assert_eq!((ended.context, ended.failure.errno), (1, Errno::ECANCELED));
    }
    script.expect_no_completion();
    let usage = script.dut.usage();
    assert_eq!((usage.inbound, usage.waiting), (1, 0));
    assert_eq!((usage.deferred_packets, usage.assemblies), (0, 0));
}

#[test]
fn limits_beyond_packet_ids_are_refused() {
    for (max_operations, remote_operations) in [(1 << 20, 1), (usize::MAX, 1), (8, 0)] {
        let settings = EndpointConfig {
            max_operations,
            remote_operations,
            ..config()
        };
        let network = efa_testing::nic::Network::default();
        let nic = network.open(1, 10, 1, traits());
        assert!(matches!(
            Endpoint::new(nic, settings),
            Err(EndpointError::OutOfRange { .. })
        ));
    }
}
