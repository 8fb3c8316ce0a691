//! Statements of the protocol that no other theme covers; `docs/protocol-coverage.md` names them.

use efa_core::endpoint::*;
use efa_core::nic::Domain;
use efa_core::wire::{
    AtomRsp, AtomicDatatype, AtomicOp, Connid, Cts, CtsData, EagerRtm, EagerRtw, ExtraFeatures,
    ExtraInfo, Handshake, Header, LongctsRtm, MediumRtm, MsgId, PacketType, RawAddressHeader,
    ReadNack, Receipt, Repr, ReqFlags, ReqOptions, RmaIov, RmaIovs, Rta, RtaKind, RuntreadRtm,
    SendId,
};

use crate::script::{
    MODERN, Script, announced, config, connected, connected_with, memory, peer_memory, sum, traits,
};
use efa_testing::nic::{DeviceTraits, MEMORY};

#[test]
fn extra_info_may_have_any_number_of_words() {
    for count in [0, 1, 2, 4, 100] {
        let mut script = Script::new();
        let peer = script.insert_peer();
        let mut words = vec![u64::MAX << 9; count];
        if let Some(first) = words.first_mut() {
            // Undefined feature bits have no effect.
            *first = MODERN.bits() | u64::MAX << 40;
        }
        script.send(
            &Handshake {
                extra_info: ExtraInfo::new(&words).unwrap(),
                connid: script.connid(),
                ..Handshake::default()
            },
            &[],
        );
        script.expect_handshake();
        let sent = script.try_send(peer, 8, OperationFlags::DELIVERY_COMPLETE, 1);
        let expected = match count {
            0 => Err(EndpointError::Unsupported("delivery complete")),
            _ => Ok(()),
        };
        assert_eq!(sent, expected, "{count} words");
    }
}

#[test]
fn raw_addresses_of_any_size_are_stepped_over() {
    for size in [32, 36, 40, 64] {
        let mut script = Script::new();
        script.recv(0, 100, 1);
        let address = script.peer_address();
        let message = EagerRtm {
            options: ReqOptions {
                raw_address: RawAddressHeader::with_size(address, size),
                ..ReqOptions::default()
            },
            ..script.eager(0)
        };
        script.send(&message, b"behind the address");
        assert_eq!(script.completion().length, 18, "size {size}");
        let place = efa_testing::nic::MEMORY;
        assert_eq!(script.network.memory(0, place, 18), b"behind the address");
        assert!(script.dut.find_address(&address).is_some());
    }
}

#[test]
fn closing_with_a_handshake_in_flight_works() {
    let mut script = Script::new();
    script.recv(0, 100, 1);
    let message = script.eager(0);
    script.send(&message, b"the only message");
    assert_eq!(script.completion().context, 1);
    assert!(script.dut.has_packets_in_flight());
    let nic = script.dut.close();
    assert_eq!(script.network.flights(), 1);
    drop(nic);
    // The peer receives it although the endpoint is closed.
    let handshake = script.network.swallow(0);
    assert_eq!(PacketType::peek(&handshake), Some(PacketType::Handshake));
}

#[test]
fn delivery_complete_is_served_before_any_handshake() {
    let mut script = Script::new();
    script.recv(0, 100, 1);
    let message = EagerRtm {
        receipt: Some(SendId(77)),
        ..script.eager(0)
    };
    script.send(&message, b"8 bytes.");
    assert_eq!(script.completion().context, 1);
    script.expect_handshake();
    let receipt = script.expect_header::<Receipt>();
    assert_eq!((receipt.send_id, receipt.msg_id), (SendId(77), MsgId(0)));
    let write = EagerRtw {
        receipt: Some(SendId(78)),
        options: script.raw_address(),
        ..EagerRtw::default()
    };
    script.send(&write, &[]);
    assert_eq!(script.expect_header::<Receipt>().send_id, SendId(78));
}

#[test]
fn a_receipt_follows_the_receives_data() {
    let (mut script, _) = connected();
    let message = EagerRtm {
        receipt: Some(SendId(77)),
        ..script.eager(0)
    };
    script.send(&message, b"8 bytes.");
    script.expect_silence();
    script.recv(0, 100, 1);
    assert_eq!(script.expect_header::<Receipt>().send_id, SendId(77));
    assert_eq!(script.network.memory(0, MEMORY, 8), b"8 bytes.");
}

/// A message without a place in the sequence has no `msg_id` to match.
#[test]
fn a_receipt_is_matched_by_its_id_alone() {
    for msg_id in [0, 1, 77] {
        let (mut script, peer) = connected();
        script
            .try_send(peer, 8, OperationFlags::DELIVERY_COMPLETE, 1)
            .unwrap();
        let send_id = script.expect_header::<EagerRtm>().receipt.unwrap();
        script.expect_no_completion();
        let receipt = Receipt {
            send_id,
            msg_id: MsgId(msg_id),
            connid: script.connid(),
            ..Receipt::default()
        };
        script.send(&receipt, &[]);
        assert_eq!(script.completion().context, 1, "{msg_id}");
    }
}

/// Stock libfabric 2.6 sends READ_NACK also before it has received our HANDSHAKE.
#[test]
fn read_nack_is_served_before_handshake_arrives() {
    let mut script = Script::new();
    let peer = script.insert_peer();
    script.shake_hands(MODERN | ExtraFeatures::RDMA_READ);
    script.send_message(peer, 20_000, 1);
    script.progress();
    assert_eq!(script.network.flights(), 2);
    let handshake = script.network.in_flight().remove(0).bytes;
    assert_eq!(PacketType::peek(&handshake), Some(PacketType::Handshake));
    let request = script.network.in_flight().remove(1).bytes;
    let Header::LongreadRtm(request) = efa_core::wire::Packet::parse(&request).unwrap().header
    else {
        panic!("{request:?}");
    };
    let nack = ReadNack {
        connid: script.connid(),
        send_id: request.send_id,
        ..ReadNack::default()
    };
    script.send(&nack, &[]);
    let answer = script.network.in_flight().remove(2).bytes;
    match efa_core::wire::Packet::parse(&answer).unwrap().header {
        Header::LongctsRtm(answer) => {
            assert_eq!(answer.msg_id, request.msg_id);
            assert!(answer.options.flags.contains(ReqFlags::READ_NACK));
        }
        other => panic!("{other:?}"),
    }
}

/// Stock libfabric 1.17 to 2.5 take RDMA read for it.
#[test]
fn runts_need_only_announced_rdma_read() {
    let (mut script, _) = announced(
        config(),
        traits(),
        ExtraFeatures::RDMA_READ | ExtraFeatures::CONNID_HEADER,
    );
    script.recv(0, 20_000, 1);
    let source = [RmaIov::new(MEMORY, 20_000, 9)];
    for seg_offset in [0, 300] {
        let runt = RuntreadRtm {
            msg_length: 20_000,
            send_id: SendId(5),
            seg_offset,
            runt_length: 600,
            read_iov: RmaIovs::new(&source).unwrap(),
            options: script.by_connid(),
            ..RuntreadRtm::default()
        };
        script.send(&runt, &[seg_offset as u8; 300]);
    }
    assert_eq!(script.dut.poll_event(), None);
    assert_eq!(script.network.memory(0, MEMORY, 300), [0; 300]);
    assert_eq!(script.network.memory(0, MEMORY + 300, 300), [44; 300]);
    // The rest is being read.
    script.progress();
    assert!(script.network.flights() > 0);
    assert_eq!(script.dut.usage().inbound, 1);
}

/// The specification has a flag for it, which stock libfabric does not set.
#[test]
fn a_write_may_be_marked_as_one() {
    let (mut script, _) = connected();
    let mut options = script.by_connid();
    options.flags = ReqFlags::RMA;
    let write = EagerRtw {
        receipt: Some(SendId(78)),
        options,
        ..EagerRtw::default()
    };
    script.send(&write, &[]);
    assert_eq!(script.expect_header::<Receipt>().send_id, SendId(78));
}

/// In one packet or in several, and whether or not it waited for its receive.
#[test]
fn all_64_bits_of_cq_data_arrive() {
    const DATA: u64 = 0xDEAD_BEEF_0000_0001;
    for (length, posted) in [(8, false), (8, true), (600, false), (600, true)] {
        let mut script = Script::new();
        if posted {
            script.recv(0, 1000, 1);
        }
        let mut options = script.raw_address();
        options.cq_data = Some(DATA);
        if length == 8 {
            let message = EagerRtm::new(MsgId(0), options);
            script.send(&message, &[1; 8]);
        } else {
            for seg_offset in [0, 300] {
                let segment = MediumRtm {
                    options,
                    ..script.medium(0, 600, seg_offset)
                };
                script.send(&segment, &[1; 300]);
            }
        }
        if !posted {
            script.recv(0, 1000, 1);
        }
        let entry = script.completion();
        assert_eq!(
            (entry.length, entry.data),
            (length, DATA),
            "posted: {posted}"
        );
        assert!(entry.flags.contains(CompletionFlags::REMOTE_CQ_DATA));
    }
}

/// By section 4.3 a receiver that requested constant headers may fail a message with another
/// header. Our endpoint makes no such request, and moves the data to its destination.
#[test]
fn data_lands_after_headers_of_any_length() {
    let (mut script, _) = connected();
    let address = script.peer_address();
    let with_address = |size| ReqOptions {
        raw_address: RawAddressHeader::with_size(address, size),
        ..ReqOptions::default()
    };
    let with_data = ReqOptions {
        cq_data: Some(7),
        ..script.by_connid()
    };
    let headers = [
        with_address(36),
        script.by_connid(),
        with_data,
        with_address(32),
        ReqOptions::default(),
        with_address(64),
    ];
    for (msg_id, options) in headers.into_iter().enumerate() {
        script.recv(100, 16, 1);
        let message = EagerRtm::new(MsgId(msg_id as u32), options);
        let text = format!("the same place {msg_id}");
        script.send(&message, text.as_bytes());
        assert_eq!(script.completion().length, 16, "{options:?}");
        assert_eq!(script.network.memory(0, MEMORY + 100, 16), text.as_bytes());
    }
}

/// libfabric 1.11 leaves the id of its operation in a word that has no meaning.
#[test]
fn old_values_come_whatever_the_reserved_word_is() {
    let (mut script, peer) = connected();
    let remote = peer_memory(0x1000, 8, 1);
    let result = [memory(100, 8)];
    let fetch = script.dut.atomic(AtomicArgs {
        kind: AtomicKind::Fetch { result: &result },
        ..sum(peer, &[memory(0, 8)], &[remote])
    });
    fetch.unwrap();
    let recv_id = script.expect(|packet| match packet.header {
        Header::Rta(Rta {
            kind: RtaKind::Fetch(recv_id),
            ..
        }) => recv_id,
        other => panic!("{other:?}"),
    });
    let response = AtomRsp {
        connid: script.connid(),
        recv_id,
        seg_length: 8,
        ..AtomRsp::default()
    };
    let mut packet = response.to_packet(b"8 bytes.");
    packet[8..12].copy_from_slice(&[1, 2, 3, 4]);
    script.inject(&packet);
    assert_eq!(script.completion().context, 1);
    assert_eq!(script.network.memory(0, MEMORY + 100, 8), b"8 bytes.");
}

#[test]
fn undefined_atomics_are_refused_on_both_sides() {
    let (mut script, peer) = connected();
    let undefined = [
        (AtomicDatatype::FLOAT, AtomicOp::BOR),
        (AtomicDatatype::FLOAT_COMPLEX, AtomicOp::MIN),
        (AtomicDatatype(77), AtomicOp::SUM),
    ];
    let slice = memory(0, 64).memory;
    let region = script.dut.register(slice, efa_core::nic::Access::all());
    let target = [RmaIov::new(MEMORY, 8, region.unwrap().remote_key.0)];
    for (msg_id, (datatype, operation)) in undefined.into_iter().enumerate() {
        let posted = script.dut.atomic(AtomicArgs {
            datatype,
            operation,
            flags: OperationFlags::empty(),
            ..sum(peer, &[memory(0, 8)], &[peer_memory(0x1000, 8, 1)])
        });
        assert!(
            matches!(posted, Err(EndpointError::Unsupported(_))),
            "{posted:?}"
        );
        script.expect_silence();
        let request = Rta {
            kind: RtaKind::Write,
            msg_id: MsgId(msg_id as u32),
            atomic_datatype: datatype,
            atomic_op: operation,
            rma_iov: RmaIovs::new(&target).unwrap(),
            options: script.by_connid(),
        };
        script.send(&request, &[0xFF; 8]);
        let event = script.dut.poll_event();
        assert!(
            matches!(event, Some(Event::RemoteOperationFailed { .. })),
            "{operation} of {datatype}: {event:?}"
        );
        assert_eq!(script.network.memory(0, MEMORY, 8), [0; 8]);
    }
}

#[test]
fn medium_segments_go_as_the_device_has_room() {
    let small = DeviceTraits {
        send_depth: 1,
        mtu: 512,
        ..traits()
    };
    let (mut script, peer) = connected_with(config(), small);
    script.send_message(peer, 1900, 1);
    let mut offsets = Vec::new();
    for _ in 0..4 {
        script.progress();
        assert_eq!(script.network.flights(), 1);
        script.expect_no_completion();
        offsets.push(script.expect_header::<MediumRtm>().seg_offset);
    }
    assert_eq!(offsets, [0, 480, 960, 1440]);
    assert_eq!(script.completion().context, 1);
}

fn long(script: &Script, number: u32) -> LongctsRtm {
    LongctsRtm {
        msg_id: MsgId(number),
        msg_length: 10_000,
        send_id: SendId(100 + number),
        credit_request: 1000,
        options: script.raw_address(),
        ..LongctsRtm::default()
    }
}

#[test]
fn many_long_messages_share_their_windows_fairly() {
    let (mut script, _) = connected();
    for number in 0..5 {
        script.recv(u64::from(number) * 10_000, 10_000, number.into());
        let request = long(&script, number);
        script.send(&request, &[7; 100]);
    }
    let mut left = [9900_u64; 5];
    // Each message gets a window of two packets in its turn, and the peer sends the granted data.
    while left.iter().any(|left| *left > 0) {
        for (number, left) in left.iter_mut().enumerate() {
            let Cts {
                send_id,
                recv_id,
                recv_length: granted,
                ..
            } = script.expect_header();
            assert_eq!(send_id, SendId(100 + number as u32));
            assert_eq!(granted, (*left).min(2 * (1024 - 32)));
            let mut rest = granted;
            while rest > 0 {
                let length = rest.min(900);
                script.send_data(recv_id, 10_000 - *left, &vec![7; length as usize]);
                *left -= length;
                rest -= length;
            }
        }
    }
    let contexts: Vec<u64> = (0..5).map(|_| script.completion().context).collect();
    assert_eq!(contexts, [0, 1, 2, 3, 4]);
    script.expect_silence();
}

#[test]
fn granted_data_waits_for_the_handshake() {
    let mut script = Script::new();
    let peer = script.insert_peer();
    script.send_message(peer, 3000, 1);
    let send_id = script.expect_header::<LongctsRtm>().send_id;
    script.grant(send_id, 3, 1000);
    script.expect_handshake();
    script.expect_silence();
    script.shake_hands(ExtraFeatures::CONNID_HEADER);
    assert_eq!(
        script.expect_header::<CtsData>().connid,
        Some(Connid(0x1111_1111))
    );
}

#[test]
fn oversized_runts_may_end_the_receive() {
    let (mut script, _) = connected();
    script.recv(0, 20_000, 1);
    let source = [efa_core::wire::RmaIov::new(0x5000, 20_000, 9)];
    let runt = |script: &Script, seg_offset| efa_core::wire::RuntreadRtm {
        msg_length: 20_000,
        send_id: SendId(5),
        seg_offset,
        runt_length: 100,
        read_iov: efa_core::wire::RmaIovs::new(&source).unwrap(),
        options: script.raw_address(),
        ..efa_core::wire::RuntreadRtm::default()
    };
    let first = runt(&script, 0).to_packet(&[1; 100]);
    script.inject(&first);
    let surplus = runt(&script, 100).to_packet(&[2; 500]);
    script.inject(&surplus);
    script.expect_refusal(PacketError::SizeMismatch);
    // The device has reads of the message, whose memory it keeps until they are done.
    script.expect_no_completion();
    script.swallow_all();
    assert_eq!(script.error().failure.errno, Errno::EIO);
    assert_eq!(script.dut.usage().inbound, 0);
    assert_eq!(script.network.regions(0), 0);
}

#[test]
fn a_packet_limits_an_atomics_length() {
    let (mut script, peer) = connected();
    let size = script.dut.atomic_size(AtomicKind::Write);
    let compared = script.dut.atomic_size(AtomicKind::Compare {
        result: &[],
        comparand: &[],
    });
    // Room for the longest header of a request, as stock libfabric reckons.
    assert_eq!((size, compared), (1024 - 152, (1024 - 152) / 2));
    let add = |script: &mut Script, length: usize| {
        let remote = [peer_memory(0x1000, length as u64, 1)];
        script.dut.atomic(AtomicArgs {
            datatype: AtomicDatatype::UINT8,
            ..sum(peer, &[memory(0, length)], &remote)
        })
    };
    assert!(matches!(
        add(&mut script, size + 1),
        Err(EndpointError::OutOfRange { .. })
    ));
    add(&mut script, size).unwrap();
    assert!(script.sent().len() <= script.dut.nic().attributes().mtu);
}
