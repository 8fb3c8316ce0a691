//! Events that overtake each other: the peer's answer comes before the completion of the request,
//! or packets of one message are held.

use efa_core::endpoint::{EndpointConfig, OperationFlags, Usage};
use efa_core::wire::PacketType;
use efa_sim::{Action, Fault, FaultId, Match, Point};

use crate::rig::{Program, Rig, config, orderly, pattern};

/// Operations, each with the device profile and the settings that make the packet type appear.
struct Case {
    answered: PacketType,
    answer: PacketType,
    profile: &'static str,
    config: EndpointConfig,
    operation: Operation,
    length: usize,
}

enum Operation {
    Send(OperationFlags),
    Write(OperationFlags),
    Read,
    Fetch,
}

fn cases() -> Vec<Case> {
    use Operation::*;
    use PacketType::*;
    let dc = OperationFlags::DELIVERY_COMPLETE;
    let none = OperationFlags::empty();
    let case = |answered, answer, profile, operation, length| Case {
        answered,
        answer,
        profile,
        config: config(),
        operation,
        length,
    };
    let runting = Case {
        config: EndpointConfig {
            runt_size: 10_000,
            ..config()
        },
        ..case(RuntreadMsgRtm, Eor, "efa2", Send(none), 150_000)
    };
    vec![
        case(DcEagerMsgRtm, Receipt, "efa0", Send(dc), 100),
        case(DcMediumMsgRtm, Receipt, "efa0", Send(dc), 18_000),
        case(LongctsMsgRtm, Cts, "efa0", Send(none), 60_000),
        case(DcLongctsMsgRtm, Receipt, "efa0", Send(dc), 60_000),
        case(LongreadMsgRtm, Eor, "efa2", Send(none), 150_000),
        runting,
        case(DcEagerRtw, Receipt, "efa0", Write(dc), 100),
        case(LongctsRtw, Cts, "efa0", Write(none), 60_000),
        case(DcLongctsRtw, Receipt, "efa0", Write(dc), 60_000),
        case(LongreadRtw, Eor, "efa1", Write(none), 150_000),
        case(ShortRtr, ReadRsp, "efa0", Read, 100),
        case(LongctsRtr, ReadRsp, "efa0", Read, 60_000),
        case(FetchRta, AtomRsp, "efa0", Fetch, 8),
    ]
}

impl Case {
    fn start(&self, rig: &mut Rig, peer: efa_core::endpoint::PeerId) {
        let target = rig.program(1).remote(0, self.length);
        let length = self.length;
        rig.program(0).fill(0, &pattern(length, 5));
        rig.program(1).fill(0, &pattern(length, 9));
        if let Operation::Send(_) = self.operation {
            rig.program(1).recv(0, length, 70);
        }
        rig.start_operation(0, |program| match self.operation {
            Operation::Send(flags) => program.send_with(peer, 0, length, flags, 7),
            Operation::Write(flags) => program.write(peer, 0, target, flags, 7),
            Operation::Read => program.read(peer, 0, target, 7),
            Operation::Fetch => program.fetch_add(peer, 0, target, 7),
        });
    }

    fn check_data(&self, rig: &mut Rig) {
        let length = self.length;
        let (here, there) = (
            rig.program(0).bytes(0, length),
            rig.program(1).bytes(0, length),
        );
        match self.operation {
            Operation::Send(_) | Operation::Write(_) => assert_eq!(there, pattern(length, 5)),
            Operation::Read => assert_eq!(here, pattern(length, 9)),
            Operation::Fetch => {
                assert_eq!(rig.program(0).bytes(8, 8), pattern(8, 9));
                let (a, b) = (pattern(8, 5), pattern(8, 9));
                let word = |bytes: Vec<u8>| u64::from_le_bytes(bytes.try_into().unwrap());
                assert_eq!(word(there), word(a).wrapping_add(word(b)));
            }
        }
    }
}

fn idle(program: &Program) -> Usage {
    Usage {
        peers: program.endpoint.usage().peers,
        ..Usage::default()
    }
}

/// No operation has left anything, at either program.
fn assert_idle(rig: &mut Rig, name: &str) {
    for number in 0..2 {
        let program = rig.program(number);
        assert_eq!(program.endpoint.usage(), idle(program), "{name}");
        assert_eq!(program.events, [], "{name}");
    }
}

/// The device of program 0 gets the acknowledgements of its packets late.
fn hold_completions(rig: &mut Rig) -> FaultId {
    let mut answers = Match::any(Point::Answer);
    answers.sender = Some(rig.address(0).gid.into());
    rig.fabric.install(Fault::new(answers, Action::Hold))
}

#[test]
fn answers_may_precede_send_completions() {
    for case in cases() {
        let mut rig = Rig::pair(orderly(), case.profile, &case.config);
        let (peer, _) = rig.exchange_handshakes(0, 1);
        let name = case.answered.name();
        let used = rig.count(case.answered);
        let hold = hold_completions(&mut rig);
        let answered = rig.count(case.answer);
        case.start(&mut rig, peer);
        rig.settle();
        assert!(rig.fabric.applied(used) > 0, "{name} was not used");
        assert!(rig.fabric.held(hold) > 0, "{name}");
        assert!(rig.fabric.applied(answered) > 0, "{name}: no answer");
        match case.operation {
            // A read's data is complete without its request's completion.
            Operation::Read | Operation::Fetch => {
                assert_eq!(rig.program(0).contexts(), [7], "{name}");
            }
            // The memory of a send belongs to the device until then.
            _ => assert_eq!(rig.program(0).completions, [], "{name}"),
        }
        rig.fabric.remove(hold);
        rig.settle();
        match case.operation {
            Operation::Read | Operation::Fetch => {}
            _ => assert_eq!(rig.program(0).contexts(), [7], "{name}"),
        }
        case.check_data(&mut rig);
        assert_idle(&mut rig, name);
    }
}

#[test]
fn peer_removed_between_answer_and_completion() {
    for case in cases() {
        let mut rig = Rig::pair(orderly(), case.profile, &case.config);
        let (peer, _) = rig.exchange_handshakes(0, 1);
        let name = case.answered.name();
        let hold = hold_completions(&mut rig);
        case.start(&mut rig, peer);
        rig.settle();
        rig.program(0).endpoint.remove_address(peer).unwrap();
        rig.fabric.remove(hold);
        rig.settle();
        let completions = core::mem::take(&mut rig.program(0).completions);
        assert_eq!(completions.len(), 1, "{name}: {completions:?}");
        let program = rig.program(0);
        assert_eq!(program.endpoint.usage(), Usage::default(), "{name}");
    }
}

#[test]
fn every_packet_may_find_the_receiver_not_ready() {
    for case in cases() {
        for refused in [case.answered, case.answer] {
            for times in [1, 3] {
                let mut rig = Rig::pair(orderly(), case.profile, &case.config);
                let (peer, _) = rig.exchange_handshakes(0, 1);
                let name = refused.name();
                let fault = Fault::new(
                    Match::packet(refused.code()),
                    Action::Answer(efa_core::nic::Status::RemoteRnr),
                );
                let fault = rig.fabric.install(fault.times(times));
                case.start(&mut rig, peer);
                rig.settle();
                assert_eq!(rig.fabric.applied(fault), times, "{name}");
                assert_eq!(rig.program(0).contexts(), [7], "{name}");
                case.check_data(&mut rig);
                assert_idle(&mut rig, name);
            }
        }
    }
}

/// A message is held. Its sender stops before it is further ahead than a stock receiver's window,
/// and continues when the message has arrived.
#[test]
fn one_message_may_be_delayed_for_long() {
    const MESSAGES: usize = 20_000;
    let mut rig = Rig::pair(orderly(), "efa2", &config());
    let (peer, _) = rig.exchange_handshakes(0, 1);
    let eager = PacketType::EagerMsgRtm.code();
    let hold = Fault::new(Match::packet(eager), Action::Hold).nth(3);
    let hold = rig.fabric.install(hold);
    let send = |rig: &mut Rig, number: usize| {
        let slot = (number % 256) as u64 * 8;
        rig.program(0).fill(slot, &number.to_le_bytes());
        let sent = rig.program(0).send(peer, slot, 8, number as u64);
        rig.poll();
        sent
    };
    let mut sent = 0;
    while send(&mut rig, sent).is_ok() || {
        // The reason is not a full queue of the device.
        rig.settle();
        send(&mut rig, sent).is_ok()
    } {
        sent += 1;
    }
    assert!((4096..=8192).contains(&sent), "{sent}");
    rig.settle();
    // All but the held one have completed, and only two are received.
    assert_eq!(rig.program(0).completions.len(), sent - 1);
    assert_eq!(rig.program(1).endpoint.usage().unexpected, 2);
    assert_eq!(rig.fabric.held(hold), 1);
    rig.fabric.remove(hold);
    rig.settle();
    for number in sent..MESSAGES {
        if send(&mut rig, number).is_err() {
            rig.settle();
            send(&mut rig, number).unwrap();
        }
    }
    rig.settle();
    for number in 0..MESSAGES {
        rig.program(1).recv(0, 8, 1);
        rig.poll();
        assert_eq!(rig.program(1).bytes(0, 8), number.to_le_bytes());
    }
    assert_eq!(rig.program(1).contexts().len(), MESSAGES);
    let program = rig.program(1);
    assert_eq!(program.endpoint.usage(), idle(program));
}

/// One message is bad; the next ones must still arrive.
#[test]
fn a_message_that_does_not_fit_stops_nothing() {
    for length in [100, 18_000, 60_000, 150_000] {
        let mut rig = Rig::pair(orderly(), "efa2", &config());
        let (peer, back) = rig.exchange_handshakes(0, 1);
        rig.program(1).recv(0, 50, 1);
        rig.program(1).recv(1000, 200_000, 2);
        rig.program(0).fill(0, &pattern(length, 3));
        for context in 0..2 {
            rig.start_operation(0, |program| program.send(peer, 0, length, context));
        }
        rig.settle();
        assert_eq!(rig.program(0).contexts(), [0, 1], "{length}");
        let program = rig.program(1);
        let mut completions = core::mem::take(&mut program.completions);
        completions.sort_by_key(|entry| entry.is_ok());
        let error = completions[0].unwrap_err();
        assert_eq!(error.failure.errno, efa_core::endpoint::Errno::ETRUNC);
        assert_eq!(error.overflow_length as usize, length - 50);
        assert_eq!(program.bytes(0, 51)[..50], pattern(50, 3));
        assert_eq!(program.bytes(50, 1), [0]);
        let whole = completions[1].unwrap();
        assert_eq!((whole.context, whole.source), (2, Some(back)));
        assert_eq!(program.bytes(1000, length), pattern(length, 3));
    }
}
