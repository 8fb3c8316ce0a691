//! Posting: refusals by the user-space half, and that a refused session posts nothing.

use efa_core::nic::Status;
use efa_device_model::device::queue::Buffer;
use efa_device_model::device::{Error, QpState};
use efa_device_model::provider::{SendData, SendOpcode, SendRequest};

use crate::harness::{MEMORY, Net, Setup};

fn posts(net: &mut Net, wr_ids: std::ops::Range<u64>) -> Result<(), Error> {
    let to = net.address(0, 1);
    let buffer = net.hosts[0].buffer(0, 8);
    let send = &mut net.hosts[0].client.send;
    send.start();
    for wr_id in wr_ids {
        send.send(wr_id, 0);
        send.set_sge_list(&[buffer]);
        send.set_ud_addr(to);
    }
    send.complete()
}

#[test]
fn a_session_posts_several_requests_at_once() {
    let mut net = Net::pair(Setup::default());
    for wr_id in 0..16 {
        net.hosts[1].post_recv(wr_id, &[(0, 8)]);
    }
    posts(&mut net, 0..16).unwrap();
    net.hosts[0].doorbell();
    net.settle();
    for wr_id in 0..16 {
        assert_eq!(net.hosts[0].outcome(), Some((wr_id, Status::Ok)));
    }
}

#[test]
fn a_session_that_overflows_the_queue_posts_nothing() {
    let mut net = Net::pair(Setup::default());
    for round in 0..3 {
        let full = posts(&mut net, 0..17).unwrap_err();
        assert_eq!(full.errno(), libc::ENOMEM);
        assert_eq!(net.hosts[0].client.send.outstanding(), 0);
        net.hosts[0].doorbell();
        net.settle();
        assert_eq!(net.hosts[0].poll(), None, "round {round}");
    }
    posts(&mut net, 0..16).unwrap();
    assert_eq!(posts(&mut net, 0..1).unwrap_err().errno(), libc::ENOMEM);
}

#[test]
fn one_error_poisons_the_session_until_the_next() {
    let (mut net, to) = Net::pair_with_address(Setup::default());
    let buffer = net.hosts[0].buffer(0, 8);
    type Builder = fn(&mut efa_device_model::provider::SendQueue, Buffer);
    let mistakes: [(&str, Builder); 9] = [
        ("three gather entries", |send, buffer| {
            send.send(1, 0);
            send.set_sge_list(&[buffer; 3]);
        }),
        ("two local entries of a read", |send, buffer| {
            send.rdma_read(1, 0, 0, 0);
            send.set_sge_list(&[buffer; 2]);
        }),
        ("33 inline bytes", |send, _| {
            send.send(1, 0);
            send.set_inline_data_list(&[&[0; 33]]);
        }),
        ("inline bytes that overflow together", |send, _| {
            send.send(1, 0);
            send.set_inline_data_list(&[&[0; 20], &[0; 13]]);
        }),
        ("inline data of a write", |send, _| {
            send.rdma_write(1, 0, 0, 0, None);
            send.set_inline_data_list(&[b"x"]);
        }),
        ("inline data of a read", |send, _| {
            send.rdma_read(1, 0, 0, 0);
            send.set_inline_data_list(&[b"x"]);
        }),
        ("a fence", |send, _| send.send(1, 1)),
        ("a solicited event", |send, _| {
            send.send_with_immediate(1, 1 << 2, 0)
        }),
        ("a setter before any request", |send, buffer| {
            send.set_sge_list(&[buffer]);
        }),
    ];
    for (mistake, build) in mistakes {
        let send = &mut net.hosts[0].client.send;
        send.start();
        if mistake != "a setter before any request" {
            send.send(0, 0);
            send.set_sge_list(&[buffer]);
            send.set_ud_addr(to);
        }
        build(send, buffer);
        send.send(2, 0);
        send.set_ud_addr(to);
        let error = send.complete().unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL, "{mistake}");
        assert_eq!(send.outstanding(), 0, "{mistake}");
        net.hosts[0].doorbell();
        net.settle();
        assert_eq!(net.hosts[0].poll(), None, "{mistake}");
    }
    net.hosts[1].post_recv(7, &[(0, 8)]);
    posts(&mut net, 7..8).unwrap();
    net.hosts[0].doorbell();
    net.settle();
    assert_eq!(net.hosts[0].outcome(), Some((7, Status::Ok)));
}

#[test]
fn an_aborted_session_posts_nothing() {
    let mut net = Net::pair(Setup::default());
    let send = &mut net.hosts[0].client.send;
    for _ in 0..40 {
        send.start();
        send.send(1, 0);
        send.send(2, 0);
        send.abort();
    }
    assert_eq!(send.outstanding(), 0);
    send.publish();
    net.hosts[0].doorbell();
    assert_eq!(net.transmit(0), 0);
    assert_eq!(net.hosts[0].poll(), None);
}

#[test]
fn the_classic_call_refuses_as_rdma_core_does() {
    let (mut net, to) = Net::pair_with_address(Setup::default());
    let buffers = [net.hosts[0].buffer(0, 8); 3];
    let good = SendRequest {
        wr_id: 1,
        opcode: SendOpcode::Send,
        flags: 0,
        to,
        data: SendData::Buffers(&buffers[..2]),
    };
    let wrong = [
        SendRequest {
            data: SendData::Buffers(&buffers),
            ..good
        },
        SendRequest {
            data: SendData::Inline(&[&[0; 33]]),
            ..good
        },
        SendRequest { flags: 1, ..good },
        SendRequest {
            flags: 1 << 5,
            ..good
        },
    ];
    let send = &mut net.hosts[0].client.send;
    for request in wrong {
        assert_eq!(send.post(&request).unwrap_err().errno(), libc::EINVAL);
    }
    for _ in 0..16 {
        send.post(&good).unwrap();
    }
    // A full queue takes precedence over all other errors of a request.
    assert_eq!(send.post(&wrong[0]).unwrap_err().errno(), libc::ENOMEM);
    assert_eq!(send.post(&good).unwrap_err().errno(), libc::ENOMEM);
}

#[test]
fn sends_need_rts_or_sqd_and_receives_init() {
    use QpState::*;
    let (mut net, to) = Net::pair_with_address(Setup::default());
    let buffer = [Buffer::new(MEMORY, 1, 0)];
    let client = &mut net.hosts[0].client;
    for (state, sends, receives) in [
        (Reset, false, false),
        (Init, false, true),
        (ReadyToReceive, false, true),
        (ReadyToSend, true, true),
        (SendQueueDrained, true, true),
        (Error, false, false),
    ] {
        client.send.set_state(state);
        client.recv.set_state(state);
        let request = SendRequest {
            wr_id: 1,
            opcode: SendOpcode::Send,
            flags: 0,
            to,
            data: SendData::Buffers(&buffer),
        };
        assert_eq!(client.send.write(&request).is_ok(), sends, "{state:?}");
        client.send.start();
        client.send.send(1, 0);
        assert_eq!(client.send.complete().is_ok(), sends, "{state:?}");
        let received = client.recv.write(1, &buffer);
        assert_eq!(received.is_ok(), receives, "{state:?}");
    }
}

#[test]
fn receives_are_limited_in_number_and_entries() {
    let mut net = Net::pair(Setup::default());
    let buffer = net.hosts[0].buffer(0, 8);
    let recv = &mut net.hosts[0].client.recv;
    assert_eq!(
        recv.post(1, &[buffer; 4]).unwrap_err().errno(),
        libc::EINVAL
    );
    // 64 descriptors hold 21 receives of up to 3.
    assert_eq!(recv.depth(), 21);
    for wr_id in 0..21 {
        recv.post(wr_id, &[buffer; 3]).unwrap();
    }
    assert_eq!(recv.post(21, &[buffer]).unwrap_err().errno(), libc::ENOMEM);
}

#[test]
fn an_extended_session_keeps_the_current_completion() {
    let (mut net, to) = Net::pair_with_address(Setup::default());
    for wr_id in 0..2 {
        net.hosts[1].post_recv(wr_id, &[(0, 8)]);
        net.hosts[0].post_send(wr_id, to, &[(0, 8)]);
    }
    let host = &mut net.hosts[1];
    assert!(host.completions.start_poll(&mut host.client).is_none());
    net.settle();
    let host = &mut net.hosts[1];
    assert!(host.completions.start_poll(&mut host.client).is_some());
    assert_eq!(host.completions.current().unwrap().wr_id, 0);
    assert!(host.completions.next_poll(&mut host.client).is_some());
    assert_eq!(host.completions.current().unwrap().wr_id, 1);
    assert!(host.completions.next_poll(&mut host.client).is_none());
    assert_eq!(host.completions.current().unwrap().wr_id, 1);
    // The next session begins without a completion.
    assert!(host.completions.start_poll(&mut host.client).is_none());
    assert_eq!(host.completions.current(), None);
}
