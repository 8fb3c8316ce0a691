//! Memory that the application deregisters while peers are at work on it.

use efa_core::endpoint::*;
use efa_core::nic::{Access, Region, Status};
use efa_core::wire::{
    Cts, LongctsRtw, LongreadRtw, PacketType, ReadRsp, RecvId, RmaIov, RmaIovs, Rtr, RtrKind,
    SendId,
};

use crate::script::{Script, connected, memory};
use efa_testing::nic::MEMORY;

fn expose(script: &mut Script) -> Region {
    let memory = memory(0, 8192).memory;
    script.dut.register(memory, Access::all()).unwrap()
}

/// The peer writes 5000 bytes by long-CTS; 100 of them have arrived.
fn begin_write(script: &mut Script, region: Region) -> RecvId {
    let target = [RmaIov::new(MEMORY, 5000, region.remote_key.0)];
    let write = LongctsRtw {
        rma_iov: RmaIovs::new(&target).unwrap(),
        msg_length: 5000,
        send_id: SendId(5),
        credit_request: 1,
        delivery_complete: true,
        options: script.raw_address(),
    };
    script.send(&write, &[1; 100]);
    script.expect_header::<Cts>().recv_id
}

fn expect_failure(script: &mut Script, request: PacketType) {
    match script.dut.poll_event() {
        Some(Event::RemoteOperationFailed {
            packet_type,
            failure,
            ..
        }) => {
            assert_eq!(packet_type, request.code());
            assert_eq!(failure.provider, ProviderError::RmaAddress);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_deregistered_target_is_not_written_any_more() {
    let (mut script, _) = connected();
    let region = expose(&mut script);
    let recv_id = begin_write(&mut script, region);
    script.dut.deregister(region).unwrap();
    expect_failure(&mut script, PacketType::DcLongctsRtw);
    script.send_data(recv_id, 100, &[2; 500]);
    script.expect_refusal(PacketError::StaleOperation { id: recv_id.0 });
    assert_eq!(script.network.memory(0, MEMORY + 100, 1), [0]);
    script.expect_silence();
    assert_eq!(script.dut.usage().inbound, 0);
}

#[test]
fn targets_covered_by_another_registration_are_written() {
    let (mut script, _) = connected();
    let region = expose(&mut script);
    let other = expose(&mut script);
    let recv_id = begin_write(&mut script, other);
    script.dut.deregister(region).unwrap();
    script.send_data(recv_id, 100, &[2; 500]);
    assert_eq!(script.dut.poll_event(), None);
    assert_eq!(script.network.memory(0, MEMORY + 100, 1), [2]);
}

#[test]
fn a_deregistered_source_is_not_read_any_more() {
    let (mut script, _) = connected();
    let region = expose(&mut script);
    let source = [RmaIov::new(MEMORY, 5000, region.remote_key.0)];
    let read = Rtr {
        kind: RtrKind::Longcts,
        rma_iov: RmaIovs::new(&source).unwrap(),
        msg_length: 5000,
        recv_id: RecvId(7),
        recv_length: 1000,
        options: script.raw_address(),
    };
    script.send(&read, &[]);
    let send_id = script.expect_header::<ReadRsp>().send_id;
    script.dut.deregister(region).unwrap();
    script.grant(send_id, 7, 1000);
    script.expect_refusal(PacketError::StaleOperation { id: send_id.0 });
    script.expect_silence();
    assert_eq!(script.dut.usage().outbound, 0);
}

#[test]
fn a_withdrawn_write_ends_with_the_devices_read() {
    let (mut script, _) = connected();
    let region = expose(&mut script);
    let target = [RmaIov::new(MEMORY, 5000, region.remote_key.0)];
    let source = [RmaIov::new(0x5000, 5000, 9)];
    let write = LongreadRtw {
        rma_iov: RmaIovs::new(&target).unwrap(),
        msg_length: 5000,
        send_id: SendId(5),
        read_iov: RmaIovs::new(&source).unwrap(),
        options: script.raw_address(),
    };
    script.send(&write, &[]);
    assert_eq!(script.network.flights(), 1);
    script.dut.deregister(region).unwrap();
    assert_eq!(script.dut.usage().inbound, 1);
    script.network.fail(0, Status::LocalInvalidLkey);
    script.progress();
    expect_failure(&mut script, PacketType::LongreadRtw);
    // No EOR: the data has not arrived.
    script.expect_silence();
    assert_eq!(script.dut.usage().inbound, 0);
}
