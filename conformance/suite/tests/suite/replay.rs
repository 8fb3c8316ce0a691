//! Replay of a scenario passes; every change in it fails, and the failure names the change.

use efa_capture::Direction;
use efa_core::rules::Severity;
use efa_core::wire::PacketType;
use efa_core::wire::fields::{FieldKind, fields_of};
use efa_play::scenario::Scenario;
use efa_play::trace::Trace;
use efa_replay::compare::policy::{Rule, rule};
use efa_replay::replay::emu::Emu;
use efa_replay::replay::operations::number;
use efa_replay::replay::{Engine, Strictness, Verdict, replay};
use efa_suite::{Options, Outcome};

const SCENARIO: &str = r#"
description = "Messages in both directions, expected, unexpected and too long."
spec = ["3.2"]

[[endpoint]]
name = "a"
software = "core"
capabilities = ["msg", "tagged", "source"]

[[endpoint]]
name = "b"
software = "core"
capabilities = ["msg", "tagged", "source"]

[[step]]
at = "a"
do = "tsend"
id = "unexpected"
to = "b"
length = 100
tag = 0x1f
data = 0xabcdef

[[step]]
do = "settle"

[[step]]
at = "b"
do = "trecv"
id = "unexpected-arrives"
length = 100
tag = 0x10
ignore = 0xf
expect = { message = "unexpected" }

[[step]]
do = "wait"
for = ["unexpected", "unexpected-arrives"]

[[step]]
at = "a"
do = "recv"
id = "answer-arrives"
length = 50
expect = { message = "answer", error = "FI_ETRUNC", overflow = 14 }

[[step]]
at = "b"
do = "send"
id = "answer"
to = "a"
length = 64

[[step]]
do = "wait"
for = ["answer", "answer-arrives"]

[[step]]
at = "b"
do = "recv"
id = "medium-arrives"
length = 30000
expect = { message = "medium" }

[[step]]
at = "a"
do = "send"
id = "medium"
to = "b"
length = 20000

[[step]]
do = "wait"
for = ["medium", "medium-arrives"]

[[step]]
at = "b"
do = "recv"
id = "long-arrives"
length = 90000
expect = { message = "long" }

[[step]]
at = "a"
do = "send"
id = "long"
to = "b"
length = 90000

[[step]]
do = "wait"
for = ["long", "long-arrives"]

[[step]]
do = "settle"
"#;

fn conversation() -> Trace {
    let path = std::path::Path::new("traces/conversation.toml");
    crate::rehearsal::rehearse(&Scenario::parse(path, SCENARIO).unwrap_or_else(|e| panic!("{e}")))
}

fn verdict(trace: &Trace, role: usize) -> Verdict {
    let mut emu = Emu::orderly();
    let mut engine = Engine::default();
    replay(trace, role, Strictness::Fields, &mut emu, &mut engine, None).unwrap()
}

/// The engine with a change in the packets that it sends.
fn hooked(trace: &Trace, role: usize, mut hook: impl FnMut(Vec<u8>) -> Vec<Vec<u8>>) -> Verdict {
    let mut emu = Emu::orderly();
    replay(
        trace,
        role,
        Strictness::Fields,
        &mut emu,
        &mut Engine::default(),
        Some(&mut hook),
    )
    .unwrap()
}

#[test]
fn engine_traces_replay_in_both_roles() {
    let trace = conversation();
    let options = Options {
        seeds: 20,
        ..Options::default()
    };
    let cases = efa_suite::run_engine(&trace, &mut Emu::orderly(), &options).unwrap();
    assert_eq!(cases.len(), 2);
    for case in cases {
        let Outcome::Passed {
            compared, seeds, ..
        } = case.outcome
        else {
            panic!("{case}");
        };
        assert!(compared >= 3, "{compared}");
        assert_eq!(seeds, 20);
    }
}

/// For every packet of the endpoint under test and every byte of its header: a change of a byte
/// that has a meaning makes the replay fail, and the message names packet, field, section and both
/// values.
#[test]
fn a_changed_byte_fails_and_is_named() {
    let trace = conversation();
    let mut changes = 0;
    for role in 0..2 {
        let sent: Vec<usize> = trace.recorded(role, Direction::Outbound).collect();
        // Long messages repeat CTSDATA; a few of them are enough.
        for (nth, place) in sent.into_iter().take(9).enumerate() {
            let packet = trace.capture.frames[place].payload.clone();
            for field in fields_of(&packet).unwrap() {
                if field.descriptor.kind == FieldKind::Data {
                    continue;
                }
                for offset in field.range() {
                    changes += check_change(&trace, role, (nth, place), offset);
                }
            }
        }
    }
    assert!(changes > 200, "{changes}");
}

/// Changes one byte of the `nth` packet of the endpoint under test, and returns 1 if the change had
/// to fail.
fn check_change(trace: &Trace, role: usize, (nth, place): (usize, usize), offset: usize) -> usize {
    let original = &trace.capture.frames[place];
    let field = fields_of(&original.payload)
        .unwrap()
        .find(|field| field.range().contains(&offset))
        .unwrap();
    let policy = rule(field.packet_type, field.descriptor, &[]);
    let mut count = 0;
    let verdict = hooked(trace, role, |mut packet| {
        if count == nth {
            packet[offset] ^= 0x01;
        }
        count += 1;
        vec![packet]
    });
    let what = format!("packet {} byte {offset} ({field})", original.number);
    match policy {
        Rule::Ignored => {
            assert_eq!(verdict.texts(), Vec::<String>::new(), "{what}");
            return 0;
        }
        // The implementation may choose these values; they include its own ids, which its peers
        // repeat.
        Rule::Free | Rule::Masked(_) | Rule::AtLeast(_) | Rule::Constant | Rule::Introduces(_) => {
            return 0;
        }
        _ => {}
    }
    assert!(!verdict.passed(), "{what} was not noticed");
    let texts = verdict.texts();
    let start = format!("packet {} (", original.number);
    let is_named = texts.iter().any(|text| {
        let names = policy == Rule::Segment || text.contains(&format!("field `{}`", field.name()));
        names
            && text.starts_with(&start)
            && (text.contains("spec section") || text.contains("stock libfabric"))
    });
    assert!(is_named, "{what}: {texts:?}");
    1
}

#[test]
fn data_that_differs_is_found() {
    let trace = conversation();
    let mut changed = trace.clone();
    let place = trace
        .recorded(0, Direction::Outbound)
        .find(|&place| trace.capture.frames[place].payload.len() > 5000)
        .unwrap();
    let number = trace.capture.frames[place].number;
    let last = changed.capture.frames[place].payload.len() - 1;
    changed.capture.frames[place].payload[last] ^= 0x10;
    let verdict = verdict(&changed, 0);
    let texts = verdict.texts();
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert!(
        texts[0].starts_with(&format!("packet {number} (")),
        "{texts:?}"
    );
    assert!(
        texts[0].contains("field `data`") && texts[0].contains(" at byte "),
        "{texts:?}"
    );
}

/// The trace without a packet, at its sender and at its receiver.
fn without(trace: &Trace, place: usize) -> Trace {
    let removed = trace.capture.frames[place].clone();
    let mut fewer = trace.clone();
    let steps = trace.step_of.iter().copied();
    let kept = fewer
        .capture
        .frames
        .drain(..)
        .zip(steps)
        .filter(|(frame, _)| {
            frame.source != removed.source || frame.header.sequence != removed.header.sequence
        });
    (fewer.capture.frames, fewer.step_of) = kept.unzip();
    fewer
}

fn corpus(name: &str) -> Trace {
    let path = efa_testing::workspace::traces().join(format!("{name}.pcapng"));
    Trace::load(&path).unwrap_or_else(|error| panic!("{error}"))
}

fn last(trace: &Trace, role: usize, kind: &str) -> usize {
    trace
        .recorded(role, Direction::Outbound)
        .filter(|&place| trace.capture.frames[place].kind() == kind)
        .last()
        .unwrap()
}

#[test]
fn a_surplus_answer_is_found_at_the_end() {
    for (name, kind) in [("long-read", "EOR"), ("delivery-complete", "RECEIPT")] {
        let trace = corpus(name);
        let fewer = without(&trace, last(&trace, 1, kind));
        let texts = verdict(&fewer, 1).texts();
        let named = format!("sent {kind} (16 bytes)");
        assert!(
            texts.iter().any(|text| text.contains(&named)
                && text.contains("nothing asks for it (spec section 4.")),
            "{name}: {texts:?}"
        );
    }
}

#[test]
fn a_headerless_message_must_carry_application_data() {
    let trace = corpus("releases/headerless-2.5-2.5");
    let role = trace.scenario.endpoint("a").unwrap();
    let right = verdict(&trace, role);
    assert!(right.passed(), "{:?}", right.texts());
    let messages = trace
        .recorded(role, Direction::Outbound)
        .filter(|&place| trace.capture.frames[place].headerless);
    let places: Vec<usize> = messages.collect();
    assert_eq!(places.len(), 11);

    // Each in turn with another byte, shortened, with a header, lost, or sent twice.
    for (nth, &place) in places.iter().enumerate() {
        let original = trace.capture.frames[place].payload.clone();
        let number = trace.capture.frames[place].number;
        type Change = fn(Vec<u8>) -> Vec<Vec<u8>>;
        let changes: [(&str, Change); 5] = [
            ("byte", |mut bytes| {
                if let Some(last) = bytes.last_mut() {
                    *last ^= 1;
                } else {
                    bytes.push(0);
                }
                vec![bytes]
            }),
            ("length", |mut bytes| {
                bytes.push(0);
                vec![bytes]
            }),
            ("header", |bytes| {
                vec![[&[64, 4, 4, 0, 0, 0, 0, 0], &bytes[..]].concat()]
            }),
            ("lost", |_| vec![]),
            ("twice", |bytes| vec![bytes.clone(), bytes]),
        ];
        for (what, change) in changes {
            let mut done = false;
            let mut hook = |bytes: Vec<u8>| {
                let is_it = bytes == original && !done;
                done |= is_it;
                if is_it { change(bytes) } else { vec![bytes] }
            };
            let found = hooked(&trace, role, &mut hook);
            let texts = found.texts();
            let named = format!("packet {number} (message without header)");
            let is_named = match what {
                "twice" => texts
                    .iter()
                    .any(|text| text.contains("nothing asks for it")),
                _ => texts.iter().any(|text| text.starts_with(&named)),
            };
            assert!(!found.passed() && is_named, "{what} of {nth}: {texts:?}");
        }
    }

    // The completion data of one differs.
    let mut other = trace.clone();
    let with_data = |frame: &&mut efa_check::capture::CapturedPacket| {
        frame.headerless && frame.header.immediate.is_some()
    };
    let mut frames = other.capture.frames.iter_mut();
    let frame = frames.find(with_data).unwrap();
    let number = frame.number;
    frame.header.immediate = Some(7);
    let found = verdict(&other, role);
    let named = format!("packet {number} (message without header), field `immediate`");
    let texts = found.texts();
    assert!(
        texts.iter().any(|text| text.starts_with(&named)),
        "{texts:?}"
    );
    // The engine cannot receive messages without a header.
    let unsupported = verdict(&trace, 1 - role).unsupported.unwrap();
    assert!(unsupported.contains("user recv qp"), "{unsupported}");
}

/// The endpoint under test reads more, less, or elsewhere than the recorded one.
#[test]
fn rdma_reads_under_test_are_compared() {
    for (name, role) in [("long-read", 1), ("read-direct", 0)] {
        let trace = corpus(name);
        assert_eq!(verdict(&trace, role).texts(), Vec::<String>::new());
        let mut changed = trace.clone();
        for frame in &mut changed.capture.frames {
            if let efa_capture::frame::FrameKind::RdmaReadRequest(rdma) = &mut frame.header.kind {
                rdma.total_length -= 100;
            }
        }
        let texts = verdict(&changed, role).texts();
        assert!(
            texts
                .iter()
                .any(|text| text.contains("for which nothing asks (spec section 4.1; ")),
            "{name}: {texts:?}"
        );
        for frame in &mut changed.capture.frames {
            if let efa_capture::frame::FrameKind::RdmaReadRequest(rdma) = &mut frame.header.kind {
                rdma.total_length += 120;
            }
        }
        let texts = verdict(&changed, role).texts();
        assert!(
            texts.iter().any(|text| text.contains("were not read")),
            "{name}: {texts:?}"
        );
    }
}

/// An implementation chooses windows, segments and thresholds: differences are remarks, and the
/// case passes.
#[test]
fn a_legal_choice_is_a_remark() {
    let trace = conversation();
    for (windows, medium) in [(Some(3), None), (None, Some(8000))] {
        for role in 0..2 {
            let mut other = trace.clone();
            let settings = &mut other.scenario.endpoints[role].settings;
            settings.cts_window_packets = windows;
            settings.max_medium_size = medium;
            let cases =
                efa_suite::run_engine(&other, &mut Emu::orderly(), &Options::default()).unwrap();
            let Outcome::Passed { remarks, .. } = &cases[role].outcome else {
                panic!("{}", cases[role]);
            };
            let expected = match (windows, medium, role) {
                (Some(_), _, 1) => "field `recv_length`",
                (_, Some(_), 0) => "it sent LONGCTS_MSGRTM where packet",
                _ => continue,
            };
            assert!(
                remarks
                    .iter()
                    .any(|remark| remark.to_string().contains(expected)),
                "{remarks:?}"
            );
        }
    }
}

#[test]
fn device_limits_are_unsupported_and_named() {
    let mut trace = corpus("long-read");
    for endpoint in &mut trace.scenario.endpoints {
        endpoint.profile = Some("efa0".into());
    }
    let cases = efa_suite::run_engine(&trace, &mut Emu::orderly(), &Options::default()).unwrap();
    for case in cases {
        assert_eq!(
            case.outcome,
            Outcome::Unsupported {
                reason: "the device has no RDMA read".into()
            }
        );
    }
}

#[test]
fn unannounced_features_are_unsupported_and_named() {
    let trace = corpus("delivery-complete");
    let verdict = hooked(&trace, 1, |mut packet| {
        if PacketType::peek(&packet) == Some(PacketType::Handshake) {
            // All features except delivery complete.
            packet[8] &= !0x2;
        }
        vec![packet]
    });
    let reason = verdict.unsupported.unwrap();
    assert!(
        reason.contains("does not announce delivery complete"),
        "{reason}"
    );
}

/// An implementation that knows connection ids should use them; `--strict` requires that.
#[test]
fn recommendations_are_weighed_by_the_caller() {
    let trace = corpus("long-cts");
    let verdict = hooked(&trace, 1, |mut packet| {
        if PacketType::peek(&packet) == Some(PacketType::Cts) && number(&packet, "flags") != Some(0)
        {
            packet[3] &= !0x80;
        }
        vec![packet]
    });
    assert!(verdict.passed(), "{:?}", verdict.texts());
    let should: Vec<String> = verdict
        .failures(Severity::Warning)
        .map(ToString::to_string)
        .collect();
    assert_eq!(should.len(), 1, "{should:?}");
    assert!(
        should[0].contains("(spec section 4.4; v4/4.4/connid-given)"),
        "{should:?}"
    );
}

#[test]
fn missing_and_surplus_packets_are_named() {
    let trace = conversation();
    let handshake = trace
        .recorded(1, Direction::Outbound)
        .find(|&place| trace.capture.frames[place].kind() == "HANDSHAKE")
        .unwrap();

    // The trace lacks the HANDSHAKE that the endpoint under test sends.
    let fewer = without(&trace, handshake);
    assert!(!verdict(&fewer, 1).passed());

    // The trace has one message more than the application sends.
    let mut more = trace.clone();
    let last = trace.recorded(1, Direction::Outbound).last().unwrap();
    let mut extra = trace.capture.frames[last].clone();
    extra.header.sequence += 1000;
    let number = extra.number;
    let step = trace.step_of[last];
    more.capture.frames.push(extra);
    more.step_of.push(step);
    let texts = verdict(&more, 1).texts();
    assert!(
        texts
            .iter()
            .any(|text| text.starts_with(&format!("packet {number} ("))
                && text.contains("was not sent")),
        "{texts:?}"
    );
}

#[test]
fn an_application_that_sees_something_else_fails() {
    let trace = conversation();
    let mut changed = trace.clone();
    let text = SCENARIO.replace("overflow = 14", "overflow = 15");
    changed.scenario = Scenario::parse(&trace.scenario.path, &text).unwrap();
    let texts = verdict(&changed, 0).texts();
    assert_eq!(
        texts,
        ["`answer-arrives`: bytes that did not fit: expected 15, actual 14 (ofi/outcome)"]
    );
}

#[test]
fn a_scenario_that_was_not_played_is_refused() {
    let trace = conversation();
    let text = SCENARIO.replace("length = 64", "length = 65");
    let scenario = Scenario::parse(&trace.scenario.path, &text).unwrap();
    let error = Trace::new(scenario, trace.capture).unwrap_err().to_string();
    assert!(
        error.contains("sends answer of 64 bytes") && error.contains("of 65 bytes"),
        "{error}"
    );
}

/// A trace that cannot be played is only checked, and the result says so.
#[test]
fn an_unscripted_trace_never_simply_passes() {
    let mut trace = conversation();
    let place = trace.recorded(0, Direction::Outbound).next().unwrap();
    let mut refusal = trace.capture.frames[place].clone();
    refusal.header.kind =
        efa_capture::frame::FrameKind::Response(efa_core::nic::Status::RemoteBadLength);
    refusal.payload.clear();
    // The trace does not contain the refused packet.
    refusal.header.sequence += 1000;
    refusal.comments.clear();
    let number = refusal.number;
    trace.step_of.push(trace.step_of[place]);
    trace.capture.frames.push(refusal);

    let cases = efa_suite::run_engine(&trace, &mut Emu::orderly(), &Options::default()).unwrap();
    assert_eq!(cases.len(), 1);
    let text = cases[0].to_string();
    let reason = format!(": codec only: in packet {number} the device refuses a request");
    assert!(text.starts_with("CODEC conversation"), "{text}");
    assert!(text.contains(&reason), "{text}");
    let summary = efa_suite::Summary::of(&cases);
    assert_eq!((summary.passed, summary.codec_only), (0, 1));

    // A malformed packet fails there too.
    let frame = &mut trace.capture.frames[place];
    frame.payload[1] = 5;
    let cases = efa_suite::run_engine(&trace, &mut Emu::orderly(), &Options::default()).unwrap();
    let text = cases[0].to_string();
    assert!(text.starts_with("FAIL "), "{text}");
    assert!(text.contains("version"), "{text}");
}
