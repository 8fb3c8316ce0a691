//! Statements of the document on tag matching about the queue and id of each report.

use efa_core::address::Qpn;
use efa_device_model::device::connected::{
    ConnectedConfig, ConnectionAttributes, ConnectionMask, SendOperation, SrqConfig, TMH,
    TagConfig, TagHeader, TagOperation, TagRequest, TagRequestOperation, TaggedBuffer, WcStatus,
};
use efa_device_model::device::queue::{CompletionSlot, RequestIdSize};
use efa_device_model::device::{Device, QpState};

use crate::tags::{
    ADDED, CALM, DATA_VALID, DELETED, MATCH, RECV, Receiver, SYNC_REQUESTED, SYNCED, TAGGED,
    WITHOUT_TAG,
};
use efa_testing::device::net::{Net, attributes, request};

fn eager(tag: u64, payload: &[u8]) -> Vec<u8> {
    let header = TagHeader {
        operation: TagOperation::Eager,
        data: 0xda7a,
        tag,
    };
    [&header.to_bytes()[..], payload].concat()
}

/// At the receiver's transport, messages with tags are ordinary messages.
#[test]
fn queues_without_tags_receive_headers_as_data() {
    let (mut net, srq) = Net::receiver(1, CALM, 1, 4, None);
    net.hosts[0].receive_shared(srq, 9, 0, 256).unwrap();
    let mut receiver = Receiver { net, srq };
    let message = eager(5, b"payload");
    receiver.send_from(1, &message);
    assert_eq!(receiver.net.hosts[0].completions(), [(9, 0, RECV)]);
    assert_eq!(receiver.net.hosts[0].memory[..message.len()], message);
    let add = receiver.tag(1, 5, 64);
    assert_eq!(receiver.operate(1, None, add), Err(libc::EINVAL));
}

/// Matches and plain receives are reported to the completion queue of the shared queue, and the
/// reads of a rendezvous need no room in the queue pair's send queue.
#[test]
fn completions_and_reads_are_the_shared_queues() {
    let mut receiver = Receiver::new(CALM);
    let (pd, cq, ring) = {
        let host = &mut receiver.net.hosts[0];
        let (cq, ring) = host.device.create_cq(64, RequestIdSize::Bits16).unwrap();
        (host.pd, cq, ring)
    };
    let own = Qpn(20);
    let config = ConnectedConfig {
        pd,
        send_cq: cq,
        recv_cq: cq,
        shared: Some(receiver.srq),
        max_send_wr: 0,
        max_recv_wr: 0,
        max_recv_sge: 0,
    };
    let net = &mut receiver.net;
    net.hosts[0]
        .device
        .create_connected_qp(own, config)
        .unwrap();
    let theirs = net.queue_pair(1, 21, None);
    net.bring_up(0, own, attributes(1, theirs));
    net.bring_up(1, theirs, attributes(0, own));
    net.hosts[1].receive(theirs, 50, 0xe000, 64);
    receiver.add(1, 5, 64);
    receiver.send_on(1, theirs, &eager(6, b"unexpected"));
    let rendezvous = receiver.rendezvous_message(5, 64);
    receiver.send_on(1, theirs, &rendezvous);
    let expected = [
        (1, ADDED, 0, 0),
        (100, TAGGED, 0, 0),
        (1, TAGGED, MATCH, 5),
        (1, TAGGED, DATA_VALID, 5),
    ];
    assert_eq!(receiver.completions(), expected);
    assert!(matches!(ring.read(0), CompletionSlot::Empty));
    let finished = receiver.net.hosts[1].completions();
    assert_eq!(finished.last(), Some(&(50, 0, RECV)));
}

#[test]
fn only_signaled_and_failed_operations_complete() {
    let mut receiver = Receiver::new(CALM);
    let add = receiver.tag(1, 5, 64);
    let unsignaled = |wr_id, handled, operation| TagRequest {
        wr_id,
        is_signaled: false,
        handled,
        operation,
    };
    let handle = receiver.request(&unsignaled(1, None, add)).unwrap();
    let sync = unsignaled(2, Some(0), TagRequestOperation::Sync);
    receiver.request(&sync).unwrap();
    let delete = TagRequestOperation::Delete(handle);
    receiver
        .request(&unsignaled(3, None, delete.clone()))
        .unwrap();
    assert_eq!(receiver.completions(), []);
    receiver.request(&unsignaled(4, None, delete)).unwrap();
    let failed = [(4, WcStatus::TagMatching as u8, DELETED)];
    assert_eq!(receiver.net.hosts[0].completions(), failed);
    receiver
        .operate(5, Some(0), TagRequestOperation::Sync)
        .unwrap();
    assert_eq!(receiver.completions(), [(5, SYNCED, 0, 0)]);
}

/// The operation and the buffer have separate ids.
#[test]
fn operations_and_buffers_have_their_own_names() {
    let mut receiver = Receiver::new(CALM);
    let buffer = TaggedBuffer {
        wr_id: 3,
        buffers: receiver.net.hosts[0].list(0x1000, 64),
        tag: 5,
        mask: u64::MAX,
    };
    let add = TagRequestOperation::Add(buffer);
    receiver.operate(77, None, add).unwrap();
    receiver.send(TagOperation::Eager, 5, b"x");
    let expected = [(77, ADDED, 0, 0), (3, TAGGED, MATCH | DATA_VALID, 5)];
    assert_eq!(receiver.completions(), expected);
}

/// Tag and data of the header; `ibv_wc_read_tm_info` reads them.
#[test]
fn matches_tell_tag_and_data_of_the_header() {
    let mut receiver = Receiver::new(CALM);
    receiver.add(1, 0x1122_3344_5566_7788, 64);
    receiver.send(TagOperation::Eager, 0x1122_3344_5566_7788, b"x");
    receiver.net.hosts[0].poll().unwrap();
    let entry = receiver.net.hosts[0].poll().unwrap();
    let found = (entry.connected_tag(), entry.connected_data());
    assert_eq!(found, (0x1122_3344_5566_7788, 0xda7a));
    assert_eq!(entry.connected_length(), 1, "headers do not count");
}

/// Any operation may report the count, and each completion has the flag for further reports.
#[test]
fn any_operation_reports_the_count() {
    let mut receiver = Receiver::new(CALM);
    for payload in [b"a", b"b"] {
        receiver.send(TagOperation::Eager, 9, payload);
    }
    receiver.send(TagOperation::NoTag, 9, b"c");
    let unexpected = [
        (100, TAGGED, 0, 0),
        (101, TAGGED, 0, 0),
        (102, WITHOUT_TAG, 0, 0),
    ];
    assert_eq!(receiver.completions(), unexpected);
    let add = receiver.tag(1, 5, 64);
    let handle = receiver.operate(1, Some(1), add).unwrap();
    assert_eq!(receiver.completions(), [(1, ADDED, SYNC_REQUESTED, 0)]);
    let delete = TagRequestOperation::Delete(handle);
    receiver.operate(2, Some(2), delete).unwrap();
    assert_eq!(receiver.completions(), [(2, DELETED, 0, 0)]);
}

/// Independent of how the connection ends. The program is notified where there is a completion.
#[test]
fn messages_that_break_off_do_not_count() {
    type End = fn(&mut Device);
    type Completions = &'static [(u64, u8, u8)];
    let ends: [(End, Completions); 3] = [
        (
            |device| change_state(device, QpState::Error),
            &[(100, WcStatus::Flushed as u8, TAGGED)],
        ),
        (|device| change_state(device, QpState::Reset), &[]),
        (|device| device.destroy_qp(Qpn(11)).unwrap(), &[]),
    ];
    for (end, reported) in ends {
        let mut receiver = Receiver::new(CALM);
        let message = eager(5, &[7; 600]);
        receiver.net.hosts[1].memory[..message.len()].copy_from_slice(&message);
        let list = receiver.net.hosts[1].list(0, message.len());
        let wr = request(1, SendOperation::Send(None), list);
        receiver.net.post(1, Qpn(5), wr);
        // One packet of three has arrived.
        while receiver.net.hosts[0].device.counters().rx_pkts == 0 {
            receiver.net.step();
        }
        receiver.add(1, 6, 64);
        let added = [(1, ADDED, SYNC_REQUESTED, 0)];
        assert_eq!(receiver.completions(), added, "it has begun to arrive");
        end(&mut receiver.net.hosts[0].device);
        assert_eq!(receiver.net.hosts[0].completions(), reported);
        receiver.add(2, 7, 64);
        assert_eq!(
            receiver.completions(),
            [(2, ADDED, 0, 0)],
            "none is outstanding"
        );
        receiver.send_from(2, &eager(6, b"x"));
        let both = MATCH | DATA_VALID;
        assert_eq!(receiver.completions(), [(1, TAGGED, both, 6)]);
    }
}

fn change_state(device: &mut Device, state: QpState) {
    let to = ConnectionAttributes {
        state,
        ..ConnectionAttributes::default()
    };
    let changed = device.modify_connected_qp(Qpn(11), &to, ConnectionMask::STATE);
    changed.unwrap();
}

/// According to `max_num_tags` of the queue and of the device.
#[test]
fn lists_hold_what_was_asked_for() {
    let mut receiver = Receiver::new(CALM);
    for wr_id in 0..4 {
        receiver.add(wr_id, wr_id, 64);
    }
    let fifth = receiver.tag(4, 4, 64);
    assert_eq!(receiver.operate(4, None, fifth), Err(libc::ENOMEM));
    receiver.completions();
    let message = eager(2, b"");
    assert_eq!(message.len(), TMH);
    receiver.send_from(2, &message);
    assert_eq!(receiver.completions(), [(2, TAGGED, MATCH | DATA_VALID, 2)]);
    let fifth = receiver.tag(4, 4, 64);
    assert!(receiver.operate(4, None, fifth).is_ok());
    let host = &mut receiver.net.hosts[0];
    let too_many = SrqConfig {
        pd: host.pd,
        max_wr: 4,
        max_sge: 1,
        tags: Some(TagConfig {
            cq: host.cq,
            max_tags: efa_device_model::device::connected::MAX_TAGS + 1,
        }),
    };
    let refused = host.device.create_srq(too_many);
    assert_eq!(refused.map_err(|error| error.errno()), Err(libc::EINVAL));
}
