//! The requests of our operations on the wire: the bytes of their headers, their ids, and their
//! data.

use efa_core::endpoint::*;
use efa_core::nic::Domain;
use efa_core::wire::{
    AtomicDatatype, CtsData, ExtraFeatures, Header, LongctsRtm, MsgId, PacketType, RecvId, Rtr,
    RtrKind, SendId,
};

use crate::script::{
    Script, announced, config, config_with, connected, connected_with, memory, peer_memory, sum,
    traits,
};
use efa_testing::nic::{DeviceTraits, MEMORY};

fn remote(length: usize) -> RemoteIoVec {
    peer_memory(0x5000, length as u64, 9)
}

#[test]
fn requests_are_header_optional_headers_and_data() {
    let mut script = Script::new();
    let peer = script.insert_peer();
    script.network.fill(0, MEMORY, b"data");
    script
        .dut
        .send(SendArgs {
            peer,
            data: &[memory(0, 4)],
            tag: Some(0x1122_3344_5566_7788),
            cq_data: Some(0xDEAD_BEEF_0000_0001),
            flags: OperationFlags::empty(),
            context: 0,
        })
        .unwrap();
    #[rustfmt::skip]
    let mut expected = vec![
        65, 4, 0x0F, 0x00,                  // EAGER_TAGRTM, version 4; raw address, CQ data, message, tagged
        0, 0, 0, 0,                         // msg_id
        0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, // tag
        36, 0, 0, 0,                        // size of the raw address
    ];
    expected.extend(script.dut.address().to_bytes());
    expected.extend([0; 4]);
    expected.extend([1, 0, 0, 0, 0xEF, 0xBE, 0xAD, 0xDE]); // CQ data
    expected.extend(b"data");
    assert_eq!(script.sent(), expected);
}

#[test]
fn messages_and_atomics_count_with_one_counter() {
    // The second time, an atomic has the last id before the wrap-around.
    for (ordered, first) in [(true, 0), (true, u32::MAX - 1), (false, 0)] {
        let settings = EndpointConfig {
            ordered,
            first_msg_id: first,
            ..config()
        };
        let (mut script, peer) = connected_with(settings, traits());
        let mut ids = Vec::new();
        for turn in 0..6 {
            if turn % 3 == 1 {
                let add = script.dut.atomic(AtomicArgs {
                    datatype: AtomicDatatype::UINT8,
                    flags: OperationFlags::empty(),
                    context: 0,
                    ..sum(peer, &[memory(0, 1)], &[remote(1)])
                });
                add.unwrap();
            } else {
                // Eager, and of several packets, which have one id.
                let length = 900 * (turn % 3);
                let none = OperationFlags::empty();
                script.try_send(peer, length, none, 0).unwrap();
            }
            script.progress();
            while script.network.flights() > 0 {
                ids.push(script.expect(|packet| match packet.header {
                    Header::EagerRtm(eager) => eager.msg_id.0,
                    Header::MediumRtm(medium) => medium.msg_id.0,
                    Header::Rta(rta) => rta.msg_id.0,
                    other => panic!("{other:?}"),
                }));
            }
        }
        ids.dedup();
        let expected: Vec<u32> = (0..6).map(|turn| first.wrapping_add(turn)).collect();
        assert_eq!(ids, expected, "ordered: {ordered}");
    }
}

#[test]
fn messages_go_in_one_packet_or_in_segments() {
    let (mut script, peer) = connected();
    let whole = efa_testing::pattern(2000, 0);
    script.network.fill(0, MEMORY, &whole);
    let mtu = script.dut.nic().attributes().mtu;
    let header = 12; // with the connection id
    let none = OperationFlags::empty();
    script.try_send(peer, mtu - header, none, 1).unwrap();
    let packet = script.sent();
    assert_eq!(packet.len(), mtu);
    assert_eq!(PacketType::peek(&packet), Some(PacketType::EagerMsgRtm));
    assert_eq!(packet[header..], whole[..mtu - header]);

    script.try_send(peer, 2000, none, 2).unwrap();
    script.progress();
    // All are sent although the peer has answered none of them.
    let mut came = vec![0; 2000];
    let mut packets = 0;
    while script.network.flights() > 0 {
        let bytes = script.sent();
        assert!(bytes.len() <= mtu);
        let packet = efa_core::wire::Packet::parse(&bytes).unwrap();
        let Header::MediumRtm(medium) = packet.header else {
            panic!("{:?}", packet.header);
        };
        assert_eq!((medium.msg_id, medium.msg_length), (MsgId(1), 2000));
        let data = packet.payload.of(&bytes);
        came[medium.seg_offset as usize..][..data.len()].copy_from_slice(data);
        packets += 1;
    }
    assert_eq!(packets, 3);
    assert_eq!(came, whole);
}

/// Grants `recv_length` bytes of the send, and returns where its data comes: offset and length of
/// each packet.
fn grant(script: &mut Script, send_id: SendId, recv_length: u64) -> Vec<CtsData> {
    script.grant(send_id, 0x8123_4567, recv_length);
    let mut came = Vec::new();
    while script.network.flights() > 0 {
        came.push(script.expect_header::<CtsData>());
    }
    came
}

#[test]
fn long_messages_fill_exactly_the_peers_windows() {
    let (mut script, peer) = connected();
    let whole = efa_testing::pattern(5000, 0);
    script.network.fill(0, MEMORY, &whole);
    script.send_message(peer, 5000, 1);
    let request = script.sent();
    let packet = efa_core::wire::Packet::parse(&request).unwrap();
    let Header::LongctsRtm(long) = packet.header else {
        panic!("{:?}", packet.header);
    };
    assert_eq!(long.msg_length, 5000);
    let first = packet.payload.of(&request);
    assert_eq!(request.len(), script.dut.nic().attributes().mtu);
    assert_eq!(first, &whole[..first.len()]);
    script.expect_silence();

    let mut at = first.len() as u64;
    for window in [1, 2500, 999, 5000 - at - 3500] {
        let mut left = window;
        for data in grant(&mut script, long.send_id, window) {
            assert_eq!((data.recv_id, data.seg_offset), (RecvId(0x8123_4567), at));
            at += data.seg_length;
            left -= data.seg_length;
        }
        assert_eq!(left, 0, "of a window of {window}");
    }
    assert_eq!(at, 5000);
    assert_eq!(script.completion().context, 1);
}

/// The request for a read of `length` bytes by an endpoint whose windows have this many packets.
fn read(window: u32, length: usize) -> (Rtr, u64) {
    let settings = config_with(|config| config.cts_window_packets = window);
    let (mut script, peer) = connected_with(settings, DeviceTraits::default());
    script
        .read(peer, memory(0, length), &[remote(length)], 1)
        .unwrap();
    let response = script.dut.nic().attributes().mtu as u64 - 24;
    let request = script.expect_header::<Rtr>();
    (request, response)
}

#[test]
fn short_reads_get_responses_long_ones_open_windows() {
    let (_, response) = read(2, 1);
    for window in [1, 2, 10] {
        for length in [1, response - 1] {
            let (request, _) = read(window, length as usize);
            assert_eq!(request.kind, RtrKind::Short, "{length}");
            // The word is padding in the specification.
            assert_eq!(
                (request.msg_length, request.recv_length),
                (length, length as u32)
            );
        }
        for length in [response, response + 1, 50_000] {
            let (request, _) = read(window, length as usize);
            assert_eq!(request.kind, RtrKind::Longcts, "{length}");
            let packets = u64::from(window) * (response - 8);
            let granted = length.min(packets.max(response));
            assert_eq!(u64::from(request.recv_length), granted, "{length}");
        }
    }
}

#[test]
fn ctsdata_has_a_connid_only_on_request() {
    for (features, expected) in [
        (ExtraFeatures::empty(), false),
        (ExtraFeatures::CONNID_HEADER, true),
    ] {
        let (mut script, peer) = announced(config(), traits(), features);
        let none = OperationFlags::empty();
        script.try_send(peer, 3000, none, 1).unwrap();
        let send_id = script.expect_header::<LongctsRtm>().send_id;
        let came = grant(&mut script, send_id, 100);
        assert_eq!(came.len(), 1);
        assert_eq!(came[0].connid.is_some(), expected);
    }
}

#[test]
fn requests_name_at_most_four_memory_pieces() {
    let (mut script, peer) = connected();
    let pieces = [remote(8); 5];
    let buffer = [memory(0, 40)];
    let too_many = |result: Result<(), EndpointError>| {
        let is_refused = matches!(result, Err(EndpointError::OutOfRange { limit: 4, .. }));
        assert!(is_refused, "{result:?}");
    };
    too_many(script.dut.write(WriteArgs {
        peer,
        data: &buffer,
        remote: &pieces,
        cq_data: None,
        flags: OperationFlags::empty(),
        context: 1,
    }));
    too_many(script.dut.read(ReadArgs {
        peer,
        buffer: &buffer,
        remote: &pieces,
        flags: OperationFlags::empty(),
        context: 1,
    }));
    too_many(script.dut.atomic(AtomicArgs {
        flags: OperationFlags::empty(),
        ..sum(peer, &buffer, &pieces)
    }));
    script.expect_silence();
}
