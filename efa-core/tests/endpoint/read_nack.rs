//! Data that was to be read by RDMA and cannot be (spec section 4.7).

use efa_core::endpoint::*;
use efa_core::nic::{Access, NicError};
use efa_core::wire::{
    Cts, CtsData, CtsFlags, ExtraFeatures, Header, LongctsRtm, LongctsRtw, LongreadRtm,
    LongreadRtw, MsgId, PacketType, ReadNack, ReadRsp, Receipt, RecvId, ReqFlags, ReqOptions,
    RmaIov, RmaIovs, Rtr, RuntreadRtm, SendId,
};

use crate::script::{
    MODERN, Script, announced, config, config_with, connected_with, memory, peer_memory, traits,
    traits_with,
};
use efa_testing::nic::{DeviceTraits, MEMORY};

const LENGTH: usize = 20_000;
const SOURCE: [RmaIov; 1] = [RmaIov::new(0x5000, LENGTH as u64, 9)];

/// A device that registers no memory.
fn unable() -> DeviceTraits {
    traits_with(|traits| traits.max_regions = 0)
}

fn long_read(options: ReqOptions) -> LongreadRtm {
    LongreadRtm {
        msg_length: LENGTH as u64,
        send_id: SendId(77),
        read_iov: RmaIovs::new(&SOURCE).unwrap(),
        options,
        ..LongreadRtm::default()
    }
}

fn expect_nack(script: &mut Script) -> RecvId {
    let nack = script.expect_header::<ReadNack>();
    assert_eq!(nack.send_id, SendId(77));
    nack.recv_id
}

/// Grants all missing data and returns the packets that arrived, each with offset and length.
fn take_data(script: &mut Script, send_id: SendId, recv_length: u64) -> Vec<(u64, u64)> {
    script.grant(send_id, 3, recv_length);
    let mut parts = Vec::new();
    let mut left = recv_length;
    while left > 0 {
        let part = script.expect_header::<CtsData>();
        left -= part.seg_length;
        parts.push((part.seg_offset, part.seg_length));
    }
    parts
}

fn expect_contiguous(parts: &[(u64, u64)], from: u64) {
    let mut at = from;
    for (offset, length) in parts {
        assert_eq!(*offset, at);
        at += length;
    }
    assert_eq!(at, LENGTH as u64);
}

#[test]
fn the_answer_to_a_nack_takes_no_turn() {
    let (mut script, _) = connected_with(config(), unable());
    script.recv(0, LENGTH, 1);
    let request = long_read(script.raw_address());
    script.send(&request, &[]);
    let recv_id = expect_nack(&mut script);
    // Messages that come before the answer are not held up by it.
    script.recv(30_000, 8, 2);
    let next = script.eager(1);
    script.send(&next, b"next");
    assert_eq!(script.completion().context, 2);
    let mut options = script.by_connid();
    options.flags = ReqFlags::READ_NACK;
    let answer = LongctsRtm {
        msg_length: LENGTH as u64,
        send_id: SendId(78),
        options,
        ..LongctsRtm::default()
    };
    script.send(&answer, &[]);
    let mut offset = 0;
    while offset < LENGTH {
        let cts = script.expect_header::<Cts>();
        assert_eq!(cts.send_id, SendId(78));
        let (id, granted) = (cts.recv_id, cts.recv_length as usize);
        assert_eq!(id, recv_id);
        for part in vec![5; granted].chunks(900) {
            script.send_data(recv_id, offset as u64, part);
            offset += part.len();
        }
    }
    assert_eq!(script.completion().context, 1);
    assert_eq!(script.network.memory(0, MEMORY, LENGTH), [5; LENGTH]);
    // The answer comes once more, without a READ_NACK.
    script.send(&answer, &[]);
    script.expect_refusal(PacketError::AlreadyProcessed { msg_id: 0 });
    script.expect_silence();
}

#[test]
fn the_nack_follows_data_packets_and_handshake() {
    for is_known in [false, true] {
        let mut script = Script::with(config(), unable());
        script.insert_peer();
        script.recv(0, LENGTH, 1);
        if is_known {
            script.shake_hands(MODERN);
            script.expect_handshake();
        }
        let options = script.raw_address();
        let part = |seg_offset| RuntreadRtm {
            msg_length: LENGTH as u64,
            send_id: SendId(77),
            seg_offset,
            runt_length: 600,
            read_iov: RmaIovs::new(&SOURCE).unwrap(),
            options,
            ..RuntreadRtm::default()
        };
        script.send(&part(300), &[1; 300]);
        if !is_known {
            script.expect_handshake();
        }
        script.expect_silence();
        script.send(&part(0), &[1; 300]);
        if !is_known {
            script.expect_silence();
            script.shake_hands(MODERN);
        }
        expect_nack(&mut script);
        script.expect_silence();
    }
}

#[test]
fn a_peer_that_knows_no_nack_gets_none() {
    for early in [false, true] {
        let mut script = Script::with(config(), unable());
        script.insert_peer();
        let old = ExtraFeatures::RDMA_READ | ExtraFeatures::CONNID_HEADER;
        script.recv(0, LENGTH, 1);
        let request = long_read(script.raw_address());
        if early {
            script.send(&request, &[]);
            script.expect_handshake();
            script.expect_no_completion();
            script.shake_hands(old);
        } else {
            script.shake_hands(old);
            script.expect_handshake();
            script.send(&request, &[]);
        }
        assert_eq!(script.error().failure.errno, Errno::ENOMEM);
        script.expect_silence();
        assert_eq!(script.dut.usage().inbound, 0);
        assert_eq!(script.dut.usage().assemblies, 0);
    }
}

/// The packets of a runt are valid, whatever happens to the rest.
#[test]
fn a_runt_without_its_rest_fails() {
    let (mut script, _) = announced(
        config(),
        unable(),
        ExtraFeatures::RDMA_READ | ExtraFeatures::RUNTING_READ,
    );
    script.recv(0, LENGTH, 1);
    for seg_offset in [300, 0] {
        script.expect_no_completion();
        let runt = RuntreadRtm {
            msg_length: LENGTH as u64,
            send_id: SendId(77),
            seg_offset,
            runt_length: 600,
            read_iov: RmaIovs::new(&SOURCE).unwrap(),
            options: script.raw_address(),
            ..RuntreadRtm::default()
        };
        script.send(&runt, &[1; 300]);
    }
    assert_eq!(script.error().failure.errno, Errno::ENOMEM);
    assert_eq!(script.dut.poll_event(), None);
    assert_eq!(script.dut.usage().assemblies, 0);
}

/// A peer writes memory of an endpoint whose only registration is the target's, so that it cannot
/// read the data. Each call of the second value makes the peer send one request.
fn refused_writer() -> (Script, impl Fn(&mut Script)) {
    let one = traits_with(|traits| traits.max_regions = 1);
    let (mut script, _) = connected_with(config(), one);
    let memory = memory(0, LENGTH).memory;
    let region = script.dut.register(memory, Access::REMOTE_WRITE).unwrap();
    let target = [RmaIov::new(MEMORY, LENGTH as u64, region.remote_key.0)];
    let request = move |script: &mut Script| {
        let request = LongreadRtw {
            rma_iov: RmaIovs::new(&target).unwrap(),
            msg_length: LENGTH as u64,
            send_id: SendId(77),
            read_iov: RmaIovs::new(&SOURCE).unwrap(),
            options: script.raw_address(),
        };
        script.send(&request, &[]);
    };
    (script, request)
}

#[test]
fn a_refused_write_is_forgotten_until_restarted() {
    let (mut script, request) = refused_writer();
    request(&mut script);
    expect_nack(&mut script);
    assert_eq!(script.dut.usage().inbound, 0);
    script.expect_silence();
}

/// The device refuses the READ_NACK itself: the transfer ends once, and later requests of the peer
/// are served.
#[test]
fn an_unsendable_nack_ends_its_transfer_once() {
    let (mut script, request) = refused_writer();
    script.network.fail_next_send(
        0,
        NicError::Device {
            call: "post",
            errno: 5,
        },
    );
    request(&mut script);
    script.expect_silence();
    assert_eq!(script.dut.usage().inbound, 0);
    request(&mut script);
    expect_nack(&mut script);
    assert_eq!(script.dut.usage().inbound, 0);
    script.expect_silence();
}

fn sender(features: ExtraFeatures, runt_size: usize) -> (Script, PeerId) {
    let settings = config_with(|config| config.runt_size = runt_size);
    announced(
        settings,
        traits(),
        MODERN | ExtraFeatures::RDMA_READ | features,
    )
}

fn refuse(script: &mut Script, send_id: SendId) {
    let nack = ReadNack {
        connid: script.connid(),
        send_id,
        recv_id: RecvId(3),
        ..ReadNack::default()
    };
    script.send(&nack, &[]);
}

/// The answer to READ_NACK: its `send_id`.
fn expect_answer(script: &mut Script, expected: PacketType) -> SendId {
    script.expect(|packet| match &packet.header {
        Header::LongctsRtm(long) => {
            assert_eq!(packet.base.packet_type, expected);
            assert!(long.options.flags.contains(ReqFlags::READ_NACK));
            assert_eq!((long.msg_id, long.msg_length), (MsgId(0), LENGTH as u64));
            assert_eq!(packet.payload.length, 0);
            long.send_id
        }
        other => panic!("{other:?}"),
    })
}

#[test]
fn a_refused_send_continues_without_request_data() {
    let (mut script, peer) = sender(ExtraFeatures::empty(), 0);
    script.send_message(peer, LENGTH, 1);
    let send_id = script.expect_header::<LongreadRtm>().send_id;
    refuse(&mut script, send_id);
    let send_id = expect_answer(&mut script, PacketType::LongctsMsgRtm);
    // It is answered once.
    refuse(&mut script, send_id);
    script.expect_refusal(PacketError::StaleOperation { id: send_id.0 });
    expect_contiguous(&take_data(&mut script, send_id, LENGTH as u64), 0);
    assert_eq!(script.completion().context, 1);
    assert_eq!(script.network.regions(0), 0);
}

#[test]
fn a_refused_send_goes_on_behind_its_runt() {
    let (mut script, peer) = sender(ExtraFeatures::RUNTING_READ, 1500);
    script.send_message(peer, LENGTH, 1);
    let mut runt = 0;
    let mut send_id = SendId(0);
    while runt < 1500 {
        let (header, length) = script.expect_carrying::<RuntreadRtm>();
        assert_eq!((header.seg_offset, header.runt_length), (runt, 1500));
        (send_id, runt) = (header.send_id, runt + length);
    }
    refuse(&mut script, send_id);
    let send_id = expect_answer(&mut script, PacketType::LongctsMsgRtm);
    let left = LENGTH as u64 - 1500;
    expect_contiguous(&take_data(&mut script, send_id, left), 1500);
    assert_eq!(script.completion().context, 1);
}

#[test]
fn a_refused_delivery_complete_send_awaits_its_receipt() {
    let (mut script, peer) = sender(ExtraFeatures::empty(), 0);
    script
        .try_send(peer, LENGTH, OperationFlags::DELIVERY_COMPLETE, 1)
        .unwrap();
    let send_id = script.expect_header::<LongreadRtm>().send_id;
    refuse(&mut script, send_id);
    let send_id = expect_answer(&mut script, PacketType::DcLongctsMsgRtm);
    take_data(&mut script, send_id, LENGTH as u64);
    script.expect_no_completion();
    let receipt = Receipt {
        connid: script.connid(),
        send_id,
        ..Receipt::default()
    };
    script.send(&receipt, &[]);
    assert_eq!(script.completion().context, 1);
}

fn remote(length: usize) -> [RemoteIoVec; 1] {
    [peer_memory(0x1000, length as u64, 1)]
}

#[test]
fn a_refused_write_starts_afresh_with_data() {
    let (mut script, peer) = sender(ExtraFeatures::empty(), 0);
    script
        .dut
        .write(WriteArgs {
            peer,
            data: &[memory(0, LENGTH)],
            remote: &remote(LENGTH),
            cq_data: Some(7),
            flags: OperationFlags::COMPLETION,
            context: 1,
        })
        .unwrap();
    let send_id = script.expect_header::<LongreadRtw>().send_id;
    refuse(&mut script, send_id);
    let (long, sent) = script.expect_carrying::<LongctsRtw>();
    assert!(!long.options.flags.contains(ReqFlags::READ_NACK));
    assert_eq!(long.options.cq_data, Some(7));
    assert_eq!(long.msg_length, LENGTH as u64);
    assert!(sent > 0);
    let left = LENGTH as u64 - sent;
    expect_contiguous(&take_data(&mut script, long.send_id, left), sent);
    assert_eq!(script.completion().context, 1);
}

/// A read into a buffer that cannot be registered is emulated; a flag in its CTS marks it.
#[test]
fn windows_of_an_emulated_read_are_marked() {
    let (mut script, peer) = announced(config(), unable(), MODERN | ExtraFeatures::RDMA_READ);
    script
        .read(peer, memory(0, LENGTH), &remote(LENGTH), 1)
        .unwrap();
    let rtr = script.expect_header::<Rtr>();
    let (recv_id, window) = (rtr.recv_id, u64::from(rtr.recv_length));
    assert_eq!(window, 2 * (1024 - 32));
    let first = ReadRsp {
        connid: script.connid(),
        recv_id,
        send_id: SendId(9),
        seg_length: 1000,
        ..ReadRsp::default()
    };
    script.send(&first, &[1; 1000]);
    script.send_data(recv_id, 1000, &vec![1; window as usize - 1000]);
    let cts = script.expect_header::<Cts>();
    assert_eq!(cts.flags & CtsFlags::EMULATED_READ, CtsFlags::EMULATED_READ);
    assert_eq!((cts.send_id, cts.recv_id), (SendId(9), recv_id));
}
