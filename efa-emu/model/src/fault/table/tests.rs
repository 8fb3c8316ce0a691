use efa_core::address::Qkey;

use super::super::AdminCommand;
use super::super::rule::Point;
use super::*;
use crate::link::{Operation, RequestHeader};

const HEADER: RequestHeader = RequestHeader {
    operation: Operation::Send,
    source_qpn: Qpn(1),
    destination_qpn: Qpn(2),
    qkey: Qkey(3),
    sequence: 0,
    retries: 0,
    immediate: None,
    remote: None,
    length: 8,
};

const ALPHA: Gid = Gid([1; 16]);
const BETA: Gid = Gid([2; 16]);

fn frame(data: &[u8]) -> Frame<'_> {
    Frame {
        stage: Stage::Request,
        initiator: ALPHA,
        responder: BETA,
        header: &HEADER,
        lost: 0,
        status: None,
        data,
    }
}

fn is_named(gid: Gid, name: &str) -> bool {
    matches!((gid, name), (ALPHA, "alpha") | (BETA, "beta"))
}

#[derive(Default)]
struct ArmedRules {
    faults: Faults,
    tally: LocalTally,
}

impl ArmedRules {
    fn with(rules: &[&str]) -> ArmedRules {
        let mut armed = ArmedRules::default();
        for (index, rule) in rules.iter().enumerate() {
            armed
                .faults
                .arm(FaultId(index as u64), rule.parse().unwrap());
        }
        armed
    }

    fn decide(&mut self, frame: Frame<'_>) -> Verdict {
        self.faults
            .decide(&Event::Frame(frame), &is_named, &self.tally)
    }

    fn outcome(&mut self, frame: Frame<'_>) -> Option<EventOutcome> {
        self.decide(frame).outcome.map(|(_, outcome)| outcome)
    }
}

const EAGER: [u8; 8] = [64, 4, 0, 0, 7, 0, 0, 0];

#[test]
fn occurrences_are_chosen() {
    for (occurrence, expected) in [
        ("", "xxxxxxxx"),
        ("nth = 3", "..x....."),
        ("nth = 3, count = 2, every = 1", "..xx...."),
        ("count = 2", "xx......"),
        ("every = 3", "x..x..x."),
        ("nth = 2, every = 3, count = 2", ".x..x..."),
    ] {
        let rule = format!("when = {{ {occurrence} }}, then = \"drop\"");
        let mut armed = ArmedRules::with(&[&rule]);
        let hits: String = (0..8)
            .map(|_| match armed.outcome(frame(&EAGER)) {
                Some(_) => 'x',
                None => '.',
            })
            .collect();
        assert_eq!(hits, expected, "{occurrence}");
        let applied = expected.matches('x').count() as u64;
        assert_eq!(armed.tally.applied(FaultId(0)), applied);
    }
}

#[test]
fn builders_choose_occurrences_too() {
    let any = || Match::any(Point::Request);
    let numbers = |fault: Fault| -> Vec<u64> {
        let when = fault.when.unwrap();
        (1..6).filter(|number| when.selects(*number)).collect()
    };
    assert_eq!(numbers(Fault::new(any(), Action::Drop).nth(2)), [2]);
    assert_eq!(numbers(Fault::new(any(), Action::Drop).skip(3)), [4, 5]);
    let some = Fault::new(any(), Action::Drop).skip(1).times(2);
    assert_eq!(numbers(some), [2, 3]);
}

#[test]
fn every_key_is_looked_at() {
    let all = r#"packet = "EAGER_MSGRTM", msg-id = 7, operation = "send", sender = "alpha",
        receiver = "beta", source-qpn = 1, destination-qpn = 2, min-length = 8, max-length = 8,
        repeated = false"#;
    let hit = |when: &str| {
        let rule = format!("when = {{ {when} }}, then = \"drop\"");
        ArmedRules::with(&[&rule]).outcome(frame(&EAGER)).is_some()
    };
    assert!(hit(all));
    assert!(hit(r#"packet = ["CTS", "EAGER_MSGRTM"]"#));
    for other in [
        r#"on = "answer""#,
        r#"packet = "CTS""#,
        r#"packet = ["CTS", "EOR"]"#,
        "msg-id = 8",
        r#"operation = "read""#,
        r#"sender = "beta""#,
        r#"receiver = "alpha""#,
        r#"receiver = "fe80::1""#,
        "source-qpn = 2",
        "destination-qpn = 1",
        "min-length = 9",
        "max-length = 7",
        "repeated = true",
        r#"on = "registration""#,
    ] {
        let then = if other.contains("registration") {
            "{ fail = \"ENOMEM\" }"
        } else {
            "\"drop\""
        };
        let rule = format!("when = {{ {other} }}, then = {then}");
        assert_eq!(
            ArmedRules::with(&[&rule]).outcome(frame(&EAGER)),
            None,
            "{other}"
        );
    }
    let answer = Frame {
        stage: Stage::Answer,
        status: Some(Status::RemoteRnr),
        ..frame(&EAGER)
    };
    for (status, expected) in [("remote-rnr", true), ("ok", false)] {
        let rule =
            format!("when = {{ on = \"answer\", status = \"{status}\" }}, then = \"duplicate\"");
        assert_eq!(
            ArmedRules::with(&[&rule]).outcome(answer).is_some(),
            expected
        );
    }
}

/// Events without a packet are not counted: number 1 is the first packet.
#[test]
fn only_packets_are_repeated() {
    let mut armed = ArmedRules::with(&[r#"when = { nth = 1 }, then = "repeat""#]);
    let header = frame(&EAGER).header;
    for operation in [Operation::RdmaRead, Operation::RdmaWrite] {
        let header = RequestHeader {
            operation,
            ..*header
        };
        let other = Frame {
            header: &header,
            ..frame(&EAGER)
        };
        assert_eq!(armed.outcome(other), None, "{operation:?}");
    }
    assert_eq!(armed.outcome(frame(&EAGER)), Some(EventOutcome::Repeat));
    assert_eq!(armed.outcome(frame(&EAGER)), None);
}

#[test]
fn short_packets_have_no_msg_id() {
    for length in 0..8 {
        assert_eq!(frame(&EAGER[..length]).msg_id(), None);
    }
    assert_eq!(frame(&EAGER).msg_id(), Some(7));
    // A CTS has none, a RECEIPT has it elsewhere.
    assert_eq!(frame(&[3; 32]).msg_id(), None);
    let receipt = [10, 4, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(frame(&receipt).msg_id(), Some(9));
}

#[test]
fn the_first_matching_rule_decides_and_triggers_continue() {
    let mut armed = ArmedRules::with(&[
        r#"label = "k", when = { nth = 1 }, then = "hold""#,
        r#"when = { count = 2 }, then = { release = "k" }"#,
        r#"when = {}, then = "drop""#,
    ]);
    let first = armed.decide(frame(&EAGER));
    assert_eq!(
        first.outcome,
        Some((FaultId(0), EventOutcome::Hold { packets: None }))
    );
    assert_eq!(first.triggers, []);
    let second = armed.decide(frame(&EAGER));
    assert_eq!(second.outcome, Some((FaultId(2), EventOutcome::Drop)));
    assert_eq!(second.triggers, [Trigger::Release(vec![FaultId(0)])]);
}

#[test]
fn refusals_follow_the_retries_of_their_request_only() {
    let mut armed = ArmedRules::with(&[r#"when = { nth = 1 }, then = { not-ready = 3 }"#]);
    let rnr = Some(EventOutcome::Answer(Status::RemoteRnr));
    let again = RequestHeader {
        retries: 1,
        ..HEADER
    };
    let retry = Frame {
        header: &again,
        ..frame(&EAGER)
    };
    let other = RequestHeader {
        sequence: 1,
        ..again
    };
    assert_eq!(armed.outcome(frame(&EAGER)), rnr);
    let other = Frame {
        header: &other,
        ..retry
    };
    assert_eq!(armed.outcome(other), None);
    assert_eq!(armed.outcome(retry), rnr);
    assert_eq!(armed.outcome(retry), rnr);
    assert_eq!(armed.outcome(retry), None);
}

#[test]
fn cuts_are_triggered_and_healed() {
    let mut armed = ArmedRules::with(&[
        r#"when = { msg-id = 1, every = 1 }, then = { cut = ["beta", "alpha"] }"#,
        r#"then = { heal = ["alpha", "beta"] }"#,
        r#"when = { msg-id = 2 }, then = { heal = ["alpha", "beta"] }"#,
    ]);
    assert_eq!(armed.outcome(frame(&EAGER)), None);
    let mut trigger = EAGER;
    trigger[4] = 1;
    assert_eq!(armed.outcome(frame(&trigger)), None, "it was on its way");
    assert_eq!(armed.outcome(frame(&EAGER)), Some(EventOutcome::Drop));
    let within = Frame {
        responder: ALPHA,
        ..frame(&EAGER)
    };
    assert_eq!(armed.outcome(within), None);
    armed.faults.begin(FaultId(1), &armed.tally);
    assert_eq!(armed.outcome(frame(&EAGER)), None);
    // Packets of others heal a cut, too.
    armed.outcome(frame(&trigger));
    assert_eq!(armed.outcome(frame(&EAGER)), Some(EventOutcome::Drop));
    trigger[4] = 2;
    armed.outcome(Frame {
        data: &trigger,
        ..within
    });
    assert_eq!(armed.outcome(frame(&EAGER)), None);
}

#[test]
fn the_last_port_speed_holds_until_disarmed() {
    let mut armed = ArmedRules::with(&[
        r#"when = { nth = 2 }, then = { port-speed = { host = "beta", gbps = 25 } }"#,
        r#"then = { port-speed = { host = "beta", gbps = 400 } }"#,
        r#"then = { port-speed = { host = "alpha", gbps = 200 } }"#,
    ]);
    let speeds = |armed: &ArmedRules| {
        [ALPHA, BETA].map(|gid| armed.faults.port(gid, &is_named, &armed.tally).speed.gbps)
    };
    assert_eq!(speeds(&armed), [100, 100]);
    for id in [1, 2] {
        assert_eq!(armed.faults.begin(FaultId(id), &armed.tally), []);
    }
    assert_eq!(speeds(&armed), [200, 400]);
    for expected in [[200, 400], [200, 25], [200, 25]] {
        assert_eq!(armed.outcome(frame(&EAGER)), None, "it loses nothing");
        assert_eq!(speeds(&armed), expected);
    }
    // This fault was armed first, and has been in force since.
    armed.faults.disarm(FaultId(0));
    assert_eq!(speeds(&armed), [200, 100]);
}

#[test]
fn queue_errors_trigger_at_once_or_by_events() {
    let mut armed = ArmedRules::with(&[
        r#"then = { cq-error = "beta" }"#,
        r#"when = { nth = 2 }, then = { qp-error = { host = "alpha", qpn = 7 } }"#,
    ]);
    let of = |host: &str, kind, qpn: Option<u16>| {
        let error = QueueError {
            kind,
            qpn: qpn.map(Qpn),
        };
        Trigger::Queues(HostName::Name(host.to_owned()), error)
    };
    let begun = armed.faults.begin(FaultId(0), &armed.tally);
    assert_eq!(begun, [of("beta", QueueKind::CompletionQueue, None)]);
    assert_eq!(armed.decide(frame(&EAGER)), Verdict::default());
    let second = armed.decide(frame(&EAGER));
    assert_eq!(second.outcome, None, "the event itself goes on");
    assert_eq!(
        second.triggers,
        [of("alpha", QueueKind::QueuePair, Some(7))]
    );
    assert_eq!(armed.decide(frame(&EAGER)), Verdict::default());
}

#[test]
fn registrations_queue_pairs_and_commands_are_by_host() {
    let mut armed = ArmedRules::with(&[
        r#"when = { on = "registration", host = "beta", min-length = 4096 }, then = { fail = "EAGAIN" }"#,
        r#"when = { on = "queue-pair", host = "beta", nth = 2 }, then = { qpn = 9 }"#,
        r#"then = { kill = "alpha" }"#,
        r#"when = { on = "command", host = "beta", command = "reg-mr" }, then = "lose""#,
    ]);
    let mut decide = |event| {
        let verdict = armed.faults.decide(&event, &is_named, &armed.tally);
        verdict.outcome.map(|(_, outcome)| outcome)
    };
    let register = |host, length| Event::Registration { host, length };
    assert_eq!(decide(register(ALPHA, 4096)), None);
    assert_eq!(decide(register(BETA, 4095)), None);
    assert_eq!(
        decide(register(BETA, 4096)),
        Some(EventOutcome::Fail(libc::EAGAIN))
    );
    let make = Event::QueuePair { host: BETA };
    assert_eq!(decide(make), None);
    assert_eq!(decide(make), Some(EventOutcome::Qpn(Qpn(9))));
    let command = |host, command| Event::Command { host, command };
    assert_eq!(decide(command(ALPHA, AdminCommand::RegMr)), None);
    assert_eq!(decide(command(BETA, AdminCommand::DeregMr)), None);
    assert_eq!(
        decide(command(BETA, AdminCommand::RegMr)),
        Some(EventOutcome::Lose)
    );
    let kill = armed.faults.begin(FaultId(2), &armed.tally);
    assert_eq!(kill, [Trigger::Kill(HostName::Name("alpha".into()))]);
}
