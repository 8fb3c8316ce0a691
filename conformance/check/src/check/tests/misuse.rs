//! Misused features, flags, lengths, numbers and names.

use super::*;

/// Message `msg_id`, which arrives.
fn arrives(b: &mut Builder, msg_id: u32) {
    b.send(A, B, &A.eager(msg_id), b"");
    b.answer(A, B, Status::Ok);
}

/// Message 1, refused twice: its sender sends it again once.
fn refused_twice() -> Builder {
    let mut b = Builder::acquainted(all());
    for _ in 0..2 {
        b.send(A, B, &A.eager(1), b"refused");
        b.answer(A, B, Status::RemoteRnr);
    }
    b
}

/// Message 1 is refused and left behind.
fn left_behind() -> Builder {
    let mut b = refused_twice();
    for msg_id in 2..6 {
        arrives(&mut b, msg_id);
    }
    b
}

#[test]
fn a_refused_message_is_not_left_behind() {
    assert_eq!(left_behind().broken(), [("msg-id-refused", 11)]);
    // This few others may have been in flight.
    let mut b = refused_twice();
    for msg_id in 2..5 {
        arrives(&mut b, msg_id);
    }
    assert_eq!(
        (b.broken(), b.suspected()),
        (vec![], vec![("msg-id-refused", 11)])
    );
    // The later messages are refused too.
    let mut b = refused_twice();
    for msg_id in 2..8 {
        b.send(A, B, &A.eager(msg_id), b"");
        b.answer(A, B, Status::RemoteRnr);
    }
    assert_eq!(b.broken(), []);
}

#[test]
fn refused_messages_may_return() {
    for is_given_up in [false, true] {
        let mut b = refused_twice();
        match is_given_up {
            false => b.send(A, B, &A.eager(1), b"refused"),
            true => b.send(A, B, &A.peer_error(1, PeerError::NO_OP, OpeType::TXE), b""),
        }
        for msg_id in 2..8 {
            arrives(&mut b, msg_id);
        }
        assert_eq!((b.broken(), b.suspected()), (vec![], vec![]));
    }
    // The device repeats it, and it is refused again. The capture need not contain the answer to an
    // arrived packet.
    for last in [Some(Status::Ok), None] {
        let mut b = refused_twice();
        for status in [Some(Status::RemoteRnr), last] {
            b.sequences[A as usize] -= 1;
            b.send(A, B, &A.eager(1), b"refused");
            b.change_last(|header| header.retransmission = true);
            if let Some(status) = status {
                b.answer(A, B, status);
            }
        }
        for msg_id in 2..8 {
            arrives(&mut b, msg_id);
        }
        assert_eq!((b.broken(), b.suspected()), (vec![], vec![]));
    }
    // One of two refused packets is not sent again.
    let mut b = Builder::acquainted(all());
    for offset in [0, 100, 200] {
        b.send(A, B, &A.medium(1, offset), &[0; 100]);
        let status = match offset {
            0 => Status::Ok,
            _ => Status::RemoteRnr,
        };
        b.answer(A, B, status);
    }
    b.send(A, B, &A.medium(1, 200), &[0; 100]);
    for msg_id in 2..8 {
        arrives(&mut b, msg_id);
    }
    assert_eq!(b.broken(), [("msg-id-refused", 11)]);
}

/// Message 1, refused, as are `repetitions` repetitions by the device.
fn refused_and_repeated(repetitions: usize) -> Builder {
    let mut b = Builder::acquainted(all());
    for attempt in 0..=repetitions {
        b.sequences[A as usize] -= u32::from(attempt > 0);
        b.send(A, B, &A.eager(1), b"refused");
        b.change_last(|header| header.retransmission = attempt > 0);
        b.answer(A, B, Status::RemoteRnr);
    }
    b
}

#[test]
fn a_repetition_may_be_a_removed_frame() {
    let play = |repetitions: usize, change: fn(&mut Builder)| {
        let mut b = refused_and_repeated(repetitions);
        change(&mut b);
        for msg_id in 2..8 {
            arrives(&mut b, msg_id);
        }
        (b.broken().len(), b.suspected().len())
    };
    // The first repetition is not an equal frame, and a repetition that arrives may have no answer.
    assert_eq!(play(0, |_| ()), (1, 0));
    // The second one is, and may have been removed.
    assert_eq!(play(1, |_| ()), (0, 1));
    assert_eq!(play(2, |_| ()), (0, 1));
    // If equal frames follow each other directly, none was removed.
    assert_eq!(play(3, |_| ()), (1, 0));
    // Frames that are not judged may be between them.
    assert_eq!(
        play(3, |b| {
            for frame in &mut b.capture.frames {
                frame.number *= 2;
            }
        }),
        (0, 1)
    );
    // Repetitions on several paths are not equal.
    assert_eq!(
        play(3, |b| {
            let frames = b.capture.frames.iter_mut();
            for (at, frame) in frames.filter(|it| it.header.retransmission).enumerate() {
                frame.header.path = at as u16 / 2;
            }
        }),
        (0, 1)
    );
}

#[test]
fn features_used_early_are_judged_by_the_handshake() {
    let play = |features: ExtraFeatures| {
        let mut b = Builder::new();
        b.send(A, B, &eager(0, Some(A), None), b"first");
        b.send(A, B, &A.peer_error(0, PeerError::NO_OP, OpeType::TXE), b"");
        b.send(B, A, &B.handshake(features), b"");
        b.broken()
    };
    assert_eq!(
        play(all() - ExtraFeatures::PEER_ERROR),
        [("feature-early", 3), ("feature-lacked", 3)]
    );
    assert_eq!(play(all()), [("feature-early", 3)]);
}

#[test]
fn writes_need_no_beginning_to_be_judged() {
    let play = |features| {
        let mut b = Builder::new();
        b.send(A, B, &A.eager(41), b"");
        b.send(B, A, &B.handshake(features), b"");
        b.send_bytes(A, B, Vec::new());
        let write = rdma(RmaIov::new(0x5000, 64, 9), 64);
        b.change_last(|header| header.kind = FrameKind::RdmaWrite(write));
        for frame in &mut b.capture.frames {
            frame.header.sequence += 100;
        }
        b.broken()
    };
    assert_eq!(
        play(all() - ExtraFeatures::RDMA_WRITE),
        [("rdma-announced", 5)]
    );
    assert_eq!(play(all()), []);
}

/// The window of a message, whose CTS has these flags.
fn window_of_message(flags: CtsFlags) -> Builder {
    let mut b = Builder::acquainted(all());
    b.send(A, B, &A.long_cts(1, 3000, 7), &[0; 1000]);
    let window = Cts {
        flags,
        ..B.cts(7, 9, 2000)
    };
    b.send(B, A, &window, b"");
    b
}

/// The second window of a read.
fn window_of_read(flags: CtsFlags) -> Builder {
    let mut b = Builder::acquainted(all());
    let rtr = B.long_rtr(9, 3000, RmaIov::new(0x1000, 5000, 1));
    let response = A.read_rsp(9, 21, 3000);
    b.send(B, A, &rtr, b"");
    b.send(A, B, &response, &[0; 3000]);
    let window = Cts {
        flags,
        ..B.cts(21, 9, 2000)
    };
    b.send(B, A, &window, b"");
    b
}

#[test]
fn windows_say_what_they_are_for() {
    let (none, read) = (CtsFlags::empty(), CtsFlags::EMULATED_READ);
    assert_eq!(window_of_message(none).broken(), []);
    assert_eq!(window_of_message(read).broken(), [("cts-read-flag", 9)]);
    assert_eq!(window_of_read(read).broken(), []);
    assert_eq!(window_of_read(none).broken(), [("cts-read-flag", 11)]);
}

/// Messages to a peer that has restarted. The sender knows its new Q-key.
fn restarted(numbers: std::ops::Range<u32>) -> Builder {
    let mut b = Builder::acquainted(all());
    arrives(&mut b, 1);
    for msg_id in numbers {
        b.send(A, B, &eager(msg_id, Some(A), None), b"");
        b.change_last(|header| header.qkey = Qkey(0x7777));
        b.answer(A, B, Status::Ok);
    }
    b
}

#[test]
fn numbers_begin_anew_for_a_restarted_peer() {
    assert_eq!(restarted(2..8).broken(), [("msg-id-first", 11)]);
    assert_eq!(restarted(0..6).broken(), []);
    // If it sends to the earlier endpoint as well, there are two counts of numbers.
    let mut b = restarted(0..1);
    for msg_id in 2..8 {
        b.send(A, B, &eager(msg_id, Some(A), None), b"");
    }
    assert_eq!(b.broken(), []);
}

/// A message with 2000 bytes in segments that state `runt_length`, and the rest by RDMA read.
fn runting_read(runt_length: u64, read_from: u64) -> Builder {
    let iov = [RmaIov::new(0x1000, 5000, 1)];
    let mut b = Builder::acquainted(all());
    for seg_offset in [0, 1000] {
        let segment = RuntreadRtm {
            msg_id: MsgId(1),
            msg_length: 5000,
            runt_length,
            seg_offset,
            send_id: SendId(7),
            read_iov: RmaIovs::new(&iov).unwrap(),
            options: A.known(),
            ..RuntreadRtm::default()
        };
        b.send(A, B, &segment, &[0; 1000]);
    }
    let length = 5000 - read_from;
    let rest = RmaIov::new(0x1000 + read_from, length, 1);
    b.rdma_read(B, A, rest, length as u32);
    b.send(B, A, &B.eor(7), b"");
    b
}

#[test]
fn a_runt_has_the_stated_length() {
    assert_eq!(runting_read(2000, 2000).broken(), []);
    assert_eq!(runting_read(2100, 2000).broken(), [("runt-length", 7)]);
    // The receiver trusts it, and does not wait for the rest.
    assert_eq!(runting_read(2100, 2100).broken(), [("eor-early", 15)]);
    // The sender is to blame in the capture of either host.
    for host in [A, B] {
        let b = seen_by(runting_read(2100, 2000), host);
        assert_eq!(b.broken().len(), 1);
        assert_eq!(b.broken()[0].0, "runt-length");
    }
}

/// B ends in the middle of its message; another process gets its queue pair and its connid.
fn with_old_connid(is_another: bool) -> Builder {
    let mut b = Builder::acquainted(all());
    b.send(B, A, &eager(0, Some(B), None), b"old");
    let long = LongctsRtm {
        options: B.known(),
        ..A.long_cts(1, 3000, 7)
    };
    b.send(B, A, &long, &[0; 1000]);
    b.send(A, B, &A.cts(7, 9, 1000), b"");
    b.sequences[B as usize] = 0;
    match is_another {
        true => b.send(B, A, &eager(0, Some(B), None), b"new"),
        false => b.send(B, A, &B.handshake(all()), b""),
    }
    b.send(A, B, &A.eager(1), b"");
    b.send(B, A, &B.handshake(all()), b"");
    b.send(A, B, &A.handshake(all()), b"");
    b.send(B, A, &B.eager(1), b"");
    for msg_id in 2..8 {
        arrives(&mut b, msg_id);
    }
    b
}

#[test]
fn an_endpoint_has_a_connid_of_its_own() {
    assert_eq!(with_old_connid(true).broken(), [("connid-fresh", 13)]);
    assert_eq!(seen_by(with_old_connid(true), B).broken().len(), 1);
    // The same packet is a second copy of it.
    let b = with_old_connid(false);
    assert!(b.broken().iter().all(|(rule, _)| *rule != "connid-fresh"));
}

#[test]
fn causes_precede_their_consequences() {
    let mut b = Builder::acquainted(all());
    b.send(A, B, &A.long_cts(1, 3000, 7), &[0; 1000]);
    b.send(B, A, &B.cts(8, 9, 2000), b"");
    b.send(A, B, &A.data(9, 1000, 2000), &[0; 2000]);
    assert_eq!(
        b.found(|_| true),
        [
            ("answer-names-request", 9),
            ("ctsdata-names-cts", 11),
            ("answer-missing", 8)
        ]
    );
}

#[test]
fn a_receipt_names_its_message() {
    let play = |msg_id| {
        let mut b = Builder::acquainted(all());
        let dc = A.dc_eager(1, 4);
        b.send(A, B, &dc, b"");
        b.send(B, A, &B.receipt(4, msg_id), b"");
        b.broken()
    };
    assert_eq!(play(1), []);
    assert_eq!(play(2), [("receipt-message", 9)]);
}

#[test]
fn requests_have_no_flags_of_other_kinds() {
    let play = |flags| {
        let mut b = Builder::acquainted(all());
        let write = EagerRtw {
            options: ReqOptions { flags, ..A.known() },
            ..EagerRtw::default()
        };
        b.send(A, B, &write, b"");
        b.broken()
    };
    assert_eq!(play(ReqFlags::RMA), []);
    for wrong in [ReqFlags::MSG, ReqFlags::ATOMIC, ReqFlags::READ_NACK] {
        assert_eq!(play(wrong), [("req-flags", 7)], "{wrong:?}");
    }
}
