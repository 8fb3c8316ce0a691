//! The handshake, the identification of senders, and their effect on the headers of requests.

use efa_core::address::{Qkey, Qpn, RawAddress};
use efa_core::endpoint::*;
use efa_core::nic::{DeviceCaps, Nic, Source, Status};
use efa_core::wire::{
    Connid, EagerRtm, EagerRtw, ExtraFeatures, Handshake, Header, MsgId, Packet, PacketType,
    RawAddressHeader, ReadNack, Repr, ReqOptions,
};

use crate::script::{
    Script, announced, config, config_with, memory, peer_memory, traits, traits_with,
};
use efa_testing::nic::{DeviceTraits, MEMORY};

const MODERN: ExtraFeatures = ExtraFeatures::DELIVERY_COMPLETE.union(ExtraFeatures::CONNID_HEADER);

#[test]
fn handshake_bytes_follow_table_2_2() {
    let mut script = Script::with(
        config(),
        DeviceTraits {
            caps: DeviceCaps::RDMA_READ
                | DeviceCaps::RDMA_WRITE
                | DeviceCaps::UNSOLICITED_WRITE_RECV,
            part_id: 0xEFA2,
            ..DeviceTraits::default()
        },
    );
    script.send(&script.eager(0), b"x");
    #[rustfmt::skip]
    let expected = [
        9, 4, 0x02, 0x80,               // HANDSHAKE, version 4, connid and device version follow
        4, 0, 0, 0,                     // nextra_p3: one word
        0b0111_1011, 0b11, 0, 0, 0, 0, 0, 0, // features 0, 1, 3, 4, 5, 6, 8 and 9
        0x11, 0x11, 0x11, 0x11, 0, 0, 0, 0, // connid
        0xA2, 0xEF, 0, 0, 0, 0, 0, 0,   // device version
    ];
    assert_eq!(script.sent(), expected);
    script.expect_silence();
}

#[test]
fn capabilities_that_are_switched_off_are_not_announced() {
    let mut script = Script::with(
        config_with(|config| config.use_device_rdma = false),
        traits(),
    );
    script.send(&script.eager(0), b"x");
    let features = script.expect_header::<Handshake>().extra_info.features();
    assert_eq!(
        features,
        MODERN | ExtraFeatures::RUNTING_READ | ExtraFeatures::READ_NACK | ExtraFeatures::PEER_ERROR
    );
}

#[test]
fn any_first_packet_gets_one_handshake() {
    let (mut script, _) = announced(config(), traits(), MODERN);
    script.send(&script.eager(0), b"x");
    script.send(&script.eager(1), b"y");
    script.expect_silence();

    // A control packet out of the blue is answered as well.
    let mut script = Script::new();
    script.insert_peer();
    script.send(
        &ReadNack {
            connid: script.connid(),
            ..ReadNack::default()
        },
        &[],
    );
    script.expect_handshake();
    assert!(matches!(
        script.refusal(),
        PacketError::StaleOperation { id: 0 }
    ));
}

#[test]
fn both_sides_may_start_at_once() {
    let mut script = Script::new();
    let peer = script.insert_peer();
    script.send_message(peer, 10, 1);
    script.send(&script.eager(0), b"x");
    let kinds = [
        script.expect(|packet| packet.base.packet_type),
        script.expect(|packet| packet.base.packet_type),
    ];
    assert_eq!(kinds, [PacketType::EagerMsgRtm, PacketType::Handshake]);
    script.shake_hands(MODERN);
    script.expect_silence();
    assert_eq!(script.completion().context, 1);
}

#[test]
fn a_handshake_without_buffer_is_sent_later() {
    let mut script = Script::new();
    script.send(&script.eager(0), b"x");
    for round in 0..6 {
        assert_eq!(script.network.flights(), 1, "round {round}");
        script.network.fail(0, Status::RemoteRnr);
        script.progress();
        if let Some(timeout) = script.dut.next_timeout() {
            script.now = timeout;
            script.progress();
        }
    }
    script.expect_handshake();
    assert_eq!(script.dut.poll_event(), None);
    assert_eq!(script.dut.statistics().receiver_not_ready, 6);
}

#[test]
fn a_handshake_to_a_removed_peer_is_ignored() {
    for status in [
        Status::RemoteBadDestQpn,
        Status::LocalUnresponsiveRemote,
        Status::LocalUnreachableRemote,
    ] {
        let mut script = Script::new();
        script.send(&script.eager(0), b"x");
        script.network.fail(0, status);
        script.progress();
        assert_eq!(script.dut.poll_event(), None, "{status:?}");
        script.expect_no_completion();
        assert!(!script.dut.has_packets_in_flight());
    }
    let mut script = Script::new();
    script.send(&script.eager(0), b"x");
    script.network.fail(0, Status::LocalInvalidAh);
    script.progress();
    assert!(matches!(
        script.dut.poll_event(),
        Some(Event::ControlSendFailed { packet_type: 9, .. })
    ));
}

#[test]
fn a_handshake_refused_with_rnr_is_resent() {
    for status in [Status::RemoteAbort, Status::RemoteBadAddress] {
        let mut script = Script::new();
        script.send(&script.eager(0), b"x");
        for _ in 0..3 {
            script.network.fail(0, status);
            script.progress();
        }
        script.expect_handshake();
        assert_eq!(script.dut.poll_event(), None, "{status:?}");
    }
}

#[test]
fn a_lost_handshake_is_reported_and_repeated() {
    for (status, is_reported) in [
        (Status::RemoteAbort, true),
        (Status::RemoteBadLength, true),
        (Status::LocalUnresponsiveRemote, false),
    ] {
        let mut script = Script::new();
        script.send(&script.eager(0), b"x");
        while script.network.flights() > 0 {
            script.network.fail(0, status);
            script.progress();
        }
        let event = script.dut.poll_event();
        let reported = matches!(event, Some(Event::ControlSendFailed { packet_type: 9, .. }));
        assert_eq!(
            (reported, event.is_some()),
            (is_reported, is_reported),
            "{status:?}"
        );
        script.send(&script.eager(1), b"y");
        script.expect_handshake();
        script.send(&script.eager(2), b"z");
        script.expect_silence();
    }
}

fn options_sent(script: &mut Script, peer: PeerId) -> ReqOptions {
    script.send_message(peer, 1, 0);
    script.expect(|packet| *packet.header.req_options().unwrap())
}

#[test]
fn requests_identify_their_sender_as_needed() {
    let address = |script: &Script| Some(RawAddressHeader::new(script.dut.address()));
    let connid = Some(Connid(0x1111_1111));

    let mut script = Script::new();
    let peer = script.insert_peer();
    let before = options_sent(&mut script, peer);
    assert_eq!(before.raw_address, address(&script));
    assert_eq!(before.raw_address.unwrap().wire_len(), 40);
    assert_eq!(before.connid, None);

    script.shake_hands(MODERN);
    script.expect_handshake();
    let after = options_sent(&mut script, peer);
    assert_eq!((after.raw_address, after.connid), (None, connid));

    // A peer that requests constant headers always gets the address.
    let (mut script, peer) = announced(
        config(),
        traits(),
        MODERN | ExtraFeatures::CONSTANT_HEADER_LENGTH,
    );
    let constant = options_sent(&mut script, peer);
    assert_eq!(constant.raw_address, address(&script));
    assert_eq!(constant.connid, None);

    // libfabric 1.11 takes a connid for data.
    let (mut script, peer) = announced(config(), traits(), ExtraFeatures::RDMA_READ);
    let old = options_sent(&mut script, peer);
    assert_eq!((old.raw_address, old.connid), (None, None));
}

#[test]
fn an_unknown_sender_introduces_itself_with_its_address() {
    let mut script = Script::new();
    assert_eq!(script.source().ahn, None);
    script.recv(0, 64, 5);
    for size in [36, 32, 64] {
        let mut script = Script::new();
        script.recv(0, 64, 5);
        let address = script.peer_address();
        let mut eager = script.eager(0);
        eager.options.raw_address = RawAddressHeader::with_size(address, size);
        script.send(&eager, b"hello");
        let peer = script.dut.find_address(&address).unwrap();
        let entry = script.completion();
        assert_eq!((entry.context, entry.length), (5, 5), "size {size}");
        assert_eq!(entry.source, Some(peer));
        assert_eq!(script.network.memory(0, MEMORY, 5), b"hello");
        script.expect_handshake();
        // The application inserts the peer later: the same entry.
        assert_eq!(script.insert_peer(), peer);
    }
}

#[test]
fn packets_of_unknown_senders_are_counted_and_dropped() {
    let mut script = Script::new();
    let anonymous = EagerRtm::default();
    script.send(&anonymous, b"who am I?");
    script.shake_hands(MODERN);
    assert_eq!(script.dut.statistics().unknown_senders, 2);
    assert_eq!(script.dut.usage().peers, 0);
    script.expect_silence();

    // A known host, but an unknown queue pair.
    let mut script = Script::new();
    script.insert_peer();
    let mut source = script.source();
    source.qpn = Qpn(99);
    script.inject_from(source, &anonymous.to_packet(b"?"));
    assert_eq!(script.dut.statistics().unknown_senders, 1);
}

#[test]
fn gid_identifies_a_sender_without_handle() {
    let mut script = Script::new();
    script.insert_peer();
    script.recv(0, 64, 5);
    let source = Source {
        ahn: None,
        qpn: Qpn(20),
        gid: Some(script.peer_address().gid),
    };
    let eager = |connid| EagerRtm {
        options: ReqOptions {
            connid,
            ..ReqOptions::default()
        },
        ..EagerRtm::default()
    };
    script.inject_from(source, &eager(Some(Connid(7))).to_packet(b"old"));
    script.inject_from(source, &eager(None).to_packet(b"anonymous"));
    assert_eq!(script.dut.statistics().unknown_senders, 2);
    let connid = script.connid();
    script.inject_from(source, &eager(connid).to_packet(b"new"));
    assert_eq!(script.completion().length, 3);
}

#[test]
fn an_address_of_somebody_else_is_refused() {
    let foreign = |script: &Script, change: fn(&mut RawAddress)| {
        let mut address = script.peer_address();
        change(&mut address);
        EagerRtm::new(MsgId(0), ReqOptions::with_raw_address(address))
    };
    let mut script = Script::new();
    // The address in the packet differs from the queue pair that the device reports.
    script.send(&foreign(&script, |address| address.qpn = Qpn(21)), b"x");
    script.expect_refusal(PacketError::ForeignAddress);
    // Another host than the AHN's.
    script.insert_peer();
    let packet = foreign(&script, |address| {
        address.gid.0[15] = 77;
        address.qkey = Qkey(1);
    });
    script.send(&packet, b"x");
    script.expect_refusal(PacketError::ForeignAddress);
    assert_eq!(script.dut.usage().peers, 1);
}

#[test]
fn self_introduced_peers_are_bounded() {
    let mut script = Script::with(
        config_with(|config| config.max_implicit_peers = 3),
        traits(),
    );
    for qkey in 0..10 {
        let mut address = script.peer_address();
        address.qkey = Qkey(qkey);
        let eager = EagerRtm::new(MsgId(0), ReqOptions::with_raw_address(address));
        script.send(&eager, b"x");
    }
    // Messages of the first three wait for receives.
    assert_eq!(script.dut.usage().peers, 3);
    assert_eq!(script.dut.statistics().unknown_senders, 7);
    script.expect_refusal(PacketError::TooManyPeers);
}

/// A server that has seen as many clients as it may remember serves the next one all the same.
#[test]
fn the_longest_silent_peer_is_evicted() {
    let mut script = Script::with(
        config_with(|config| config.max_implicit_peers = 3),
        traits(),
    );
    let from = |script: &mut Script, client: u16, msg_id| {
        let address = RawAddress {
            qpn: Qpn(100 + client),
            qkey: Qkey(client.into()),
            ..script.peer_address()
        };
        let eager = EagerRtm::new(MsgId(msg_id), ReqOptions::with_raw_address(address));
        let source = Source {
            qpn: address.qpn,
            ..script.source()
        };
        script.recv(0, 10, client.into());
        script.inject_from(source, &eager.to_packet(b"x"));
        script.completion().source.unwrap()
    };
    // The HANDSHAKEs arrive.
    let settle = |script: &mut Script| {
        script.swallow_all();
    };
    let mut ids: Vec<PeerId> = (0..3).map(|client| from(&mut script, client, 0)).collect();
    // All have sent a packet since the last check: the first is evicted.
    ids.push(from(&mut script, 3, 0));
    // Then the next one that has not sent another packet.
    from(&mut script, 1, 1);
    ids.push(from(&mut script, 4, 0));
    settle(&mut script);
    // One for which something is under way stays.
    script
        .try_send(ids[3], 10, OperationFlags::empty(), 9)
        .unwrap();
    for client in 5..7 {
        ids.push(from(&mut script, client, 0));
    }
    let forgotten: Vec<PeerId> = core::iter::from_fn(|| script.dut.poll_event())
        .map(|event| match event {
            Event::PeerForgotten { peer, .. } => peer,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(forgotten, [ids[0], ids[2], ids[1], ids[4]]);
    for (client, id) in ids.iter().enumerate() {
        let is_known = script.dut.lookup_address(*id).is_some();
        assert_eq!(is_known, !forgotten.contains(id), "{client}");
    }
}

/// However many connection ids one sender makes up, other peers can introduce themselves, and
/// inserted addresses stay.
#[test]
fn queue_pair_owners_do_not_displace_others() {
    let mut script = Script::with(
        config_with(|config| config.max_implicit_peers = 9),
        traits(),
    );
    let inserted = script.insert_peer();
    let introduce = |script: &mut Script, qpn, qkey| {
        let address = RawAddress {
            qpn: Qpn(qpn),
            qkey: Qkey(qkey),
            ..script.peer_address()
        };
        let eager = EagerRtm::new(MsgId(0), ReqOptions::with_raw_address(address));
        let source = Source {
            qpn: Qpn(qpn),
            ..script.source()
        };
        script.inject_from(source, &eager.to_packet(b"x"));
        address
    };
    let addresses: Vec<RawAddress> = (0..100)
        .map(|qkey| introduce(&mut script, 20, qkey))
        .collect();
    let other = introduce(&mut script, 21, 5);
    assert!(script.dut.find_address(&other).is_some());
    assert_eq!(script.dut.statistics().unknown_senders, 0);
    let known = |script: &Script| -> Vec<u32> {
        let known = addresses
            .iter()
            .filter(|address| script.dut.find_address(address).is_some());
        known.map(|address| address.qkey.0).collect()
    };
    assert_eq!(known(&script), [92, 93, 94, 95, 96, 97, 98, 99]);
    assert!(script.dut.lookup_address(inserted).is_some());
    // The packets of evicted peers are dropped with them.
    assert_eq!(script.dut.usage().unexpected, 9);
}

/// A queue pair is destroyed, its number taken by a new one, and packets of the old one are still
/// under way.
#[test]
fn packets_never_reach_a_later_incarnation() {
    let mut script = Script::new();
    let old = script.insert_peer();
    let mut address = script.peer_address();
    let eager = |address: RawAddress, msg_id, connid: bool| {
        let options = match connid {
            true => ReqOptions::with_connid(address.qkey.into()),
            false => ReqOptions::with_raw_address(address),
        };
        EagerRtm::new(MsgId(msg_id), options)
    };
    script.send(&eager(address, 0, false), b"old 0");
    // The new owner of the number speaks first ...
    let old_address = address;
    address.qkey = Qkey(0x3333_3333);
    script.send(&eager(address, 0, false), b"new 0");
    // ... then late packets of the old one arrive, and more of the new one.
    script.send(&eager(old_address, 1, true), b"old 1");
    script.send(&eager(address, 1, true), b"new 1");
    // One of an incarnation that we never knew.
    let unknown = RawAddress {
        qkey: Qkey(0x4444_4444),
        ..address
    };
    script.send(&eager(unknown, 0, true), b"ghost");
    let new = script.dut.find_address(&address).unwrap();
    assert_ne!(new, old);
    for (offset, source, data) in [
        (0, old, b"old 0"),
        (16, new, b"new 0"),
        (32, old, b"old 1"),
        (48, new, b"new 1"),
    ] {
        script
            .post_recv(
                SourceFilter::Peer(source),
                None,
                crate::script::memory(offset, 16),
                offset,
            )
            .unwrap();
        let entry = script.completion();
        assert_eq!((entry.context, entry.source), (offset, Some(source)));
        assert_eq!(script.network.memory(0, MEMORY + offset, 5), data);
    }
    assert_eq!(script.dut.statistics().unknown_senders, 1);
    assert_eq!(script.dut.usage().unexpected, 0);
}

#[test]
fn features_await_the_handshake_an_empty_write_requests() {
    let mut script = Script::new();
    let peer = script.insert_peer();
    let dc = OperationFlags::DELIVERY_COMPLETE;
    assert_eq!(
        script.try_send(peer, 4, dc, 1),
        Err(EndpointError::TryAgain)
    );
    assert_eq!(
        script.try_send(peer, 4, dc, 1),
        Err(EndpointError::TryAgain)
    );
    // Asked for once, by 48 bytes as stock libfabric does it.
    let bytes = script.sent();
    assert_eq!(bytes.len(), 48);
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!(
        packet.header,
        Header::EagerRtw(EagerRtw {
            options: ReqOptions::with_raw_address(script.dut.address()),
            ..EagerRtw::default()
        })
    );
    script.expect_silence();
    script.shake_hands(MODERN);
    script.expect_handshake();
    script.try_send(peer, 4, dc, 1).unwrap();
    let (packet_type, msg_id) = script.expect(|packet| match packet.header {
        Header::EagerRtm(eager) => (packet.base.packet_type, eager.msg_id),
        other => panic!("{other:?}"),
    });
    // The attempts before used no message id.
    assert_eq!((packet_type, msg_id), (PacketType::DcEagerMsgRtm, MsgId(0)));
}

/// The first of the two requests also requests the HANDSHAKE. If it is lost, no other packet does.
#[test]
fn a_lost_request_asks_for_no_handshake() {
    let mut script = Script::new();
    let peer = script.insert_peer();
    let (plain, dc) = (OperationFlags::empty(), OperationFlags::DELIVERY_COMPLETE);
    script.try_send(peer, 4, plain, 1).unwrap();
    assert_eq!(
        script.try_send(peer, 4, dc, 2),
        Err(EndpointError::TryAgain)
    );
    script.network.fail(0, Status::RemoteBadLength);
    script.progress();
    assert_eq!(script.error().context, 1);
    script.expect_silence();
    assert_eq!(
        script.try_send(peer, 4, dc, 2),
        Err(EndpointError::TryAgain)
    );
    let packet = script.expect(|packet| packet.base.packet_type);
    assert_eq!(packet, PacketType::EagerRtw);
}

#[test]
fn memory_unreachable_by_device_is_accessed_by_packets() {
    // Starts an operation with a peer that announces all features. Returns the type of the packet
    // that is sent, or none if the device accesses the peer's memory by RDMA.
    let first = |hmem_p2p, start: &dyn Fn(&mut Script, PeerId)| {
        let mut script = Script::new();
        let peer = script.insert_peer();
        let features = MODERN | ExtraFeatures::RDMA_READ | ExtraFeatures::RDMA_WRITE;
        script.send(
            &Handshake {
                extra_info: features.into(),
                connid: script.connid(),
                device_version: Some(0xEFA1),
                hmem_p2p,
                ..Handshake::default()
            },
            &[],
        );
        script.expect_handshake();
        start(&mut script, peer);
        script.progress();
        let flights = script.network.in_flight();
        assert_eq!(flights.len(), 1);
        // A read by the device carries nothing, and a write by it the data alone: zeros, which no
        // type of packet has.
        PacketType::peek(&flights[0].bytes)
    };
    let remote = |length: usize| [peer_memory(0x7000, length as u64, 5)];
    let write = |length| {
        move |script: &mut Script, peer| {
            script
                .write(peer, memory(0, length), &remote(length), 1)
                .unwrap();
        }
    };
    let read = |length| {
        move |script: &mut Script, peer| {
            script
                .read(peer, memory(0, length), &remote(length), 1)
                .unwrap();
        }
    };
    for hmem_p2p in [None, Some(1)] {
        for length in [100, 2000, 5000] {
            assert_eq!(first(hmem_p2p, &write(length)), None);
            assert_eq!(first(hmem_p2p, &read(length)), None);
        }
    }
    let no = Some(0);
    assert_eq!(first(no, &write(100)), Some(PacketType::EagerRtw));
    assert_eq!(first(no, &write(5000)), Some(PacketType::LongreadRtw));
    assert_eq!(first(no, &read(100)), Some(PacketType::ShortRtr));
    assert_eq!(first(no, &read(20_000)), Some(PacketType::LongctsRtr));
}

#[test]
fn a_failed_handshake_request_can_be_repeated() {
    let mut script = Script::new();
    let peer = script.insert_peer();
    let dc = OperationFlags::DELIVERY_COMPLETE;
    for _ in 0..2 {
        assert_eq!(
            script.try_send(peer, 4, dc, 1),
            Err(EndpointError::TryAgain)
        );
        script.network.fail(0, Status::RemoteBadDestQpn);
        script.progress();
        let error = script.try_send(peer, 4, dc, 1).unwrap_err();
        assert_eq!(error.errno(), Errno::ENOTCONN);
    }
    script.expect_no_completion();
    assert_eq!(script.dut.poll_event(), None);

    // A message that failed does not count as having asked.
    let mut script = Script::new();
    let peer = script.insert_peer();
    script.send_message(peer, 4, 1);
    script.network.fail(0, Status::RemoteBadDestQpn);
    script.progress();
    assert_eq!(script.error().failure.errno, Errno::ENOTCONN);
    assert_eq!(
        script.try_send(peer, 4, dc, 1),
        Err(EndpointError::TryAgain)
    );
    let packet_type = script.expect(|packet| packet.base.packet_type);
    assert_eq!(packet_type, PacketType::EagerRtw);
}

#[test]
fn missing_delivery_complete_is_reported_to_the_application() {
    let (mut script, peer) = announced(config(), traits(), ExtraFeatures::CONNID_HEADER);
    let error = script
        .try_send(peer, 4, OperationFlags::DELIVERY_COMPLETE, 1)
        .unwrap_err();
    assert_eq!(error.errno(), Errno::EOPNOTSUPP);
    script.send_message(peer, 4, 1);
    let eager = script.expect_header::<EagerRtm>();
    assert_eq!(eager.msg_id, MsgId(0), "the refused message left no gap");
}

#[test]
fn address_handles_are_given_back() {
    let mut script = Script::new();
    let gid = script.peer_address().gid;
    let peer = script.insert_peer();
    assert!(script.network.ahn(0, gid).is_some());
    script.dut.remove_address(peer).unwrap();
    assert_eq!(script.network.ahn(0, gid), None);
    assert_eq!(
        script.dut.remove_address(peer),
        Err(EndpointError::UnknownPeer(peer))
    );
    script.insert_peer();
    let nic = script.dut.close();
    assert_eq!(nic.address().qpn, Qpn(10));
    assert_eq!(script.network.ahn(0, gid), None);
}

#[test]
fn a_handshake_that_waits_at_removal_follows_reinsertion() {
    let mut script = Script::with(config(), traits_with(|traits| traits.send_depth = 1));
    let (peer, other) = (script.insert_peer(), script.insert_other_peer());
    // The device has no room for the answer to the peer's first packet.
    script.send_message(other, 1, 7);
    script.send(&script.eager(0), b"x");
    assert_eq!(script.network.flights(), 1);
    script.dut.remove_address(peer).unwrap();
    let first = script.expect(|packet| packet.base.packet_type);
    assert_eq!(first, PacketType::EagerMsgRtm);
    script.expect_silence();
    // It was never sent: the next packet has the answer, once.
    script.insert_peer();
    script.send(&script.eager(1), b"y");
    script.expect_handshake();
    script.send(&script.eager(2), b"z");
    script.expect_silence();
}
