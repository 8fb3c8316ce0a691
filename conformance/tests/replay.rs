//! Replaying: what was played passes, whatever is changed in it fails and is named.

mod support;

use efa_conformance::compare::policy::{Rule, rule};
use efa_conformance::replay::emu::Emu;
use efa_conformance::replay::{Engine, Strictness, Verdict, replay};
use efa_conformance::scenario::Scenario;
use efa_conformance::suite::{self, Outcome};
use efa_conformance::trace::Trace;
use efa_core::wire::fields::{Kind, fields_of};
use efa_emu::capture::Direction;

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
    support::rehearse(&Scenario::parse(path, SCENARIO).unwrap_or_else(|e| panic!("{e}")))
}

fn verdict(trace: &Trace, role: usize) -> Verdict {
    let mut emu = Emu::orderly();
    let mut engine = Engine::default();
    replay(trace, role, Strictness::Fields, &mut emu, &mut engine).unwrap()
}

#[test]
fn what_the_engine_played_it_plays_again_in_either_role() {
    let trace = conversation();
    let cases = suite::run_engine(&trace, &mut Emu::orderly(), 20).unwrap();
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

/// Every packet of the endpoint under test, every byte of its header: a change of a byte that has a
/// meaning makes the replay fail, and the message names packet, field, section and both values.
#[test]
fn a_changed_byte_fails_and_is_named() {
    let trace = conversation();
    let mut changes = 0;
    for role in 0..2 {
        let sent: Vec<usize> = trace.recorded(role, Direction::Outbound).collect();
        // Long messages repeat CTSDATA; a few of them say it all.
        for place in sent.into_iter().take(9) {
            let packet = trace.capture.frames[place].payload.clone();
            for field in fields_of(&packet).unwrap() {
                if field.descriptor.kind == Kind::Data {
                    continue;
                }
                for offset in field.offset..field.offset + field.bytes.len() {
                    changes += check_change(&trace, role, place, offset);
                }
            }
        }
    }
    assert!(changes > 300, "{changes}");
}

/// Changes one byte at both ends' copies of a packet, replays, and returns 1 if that had to fail.
fn check_change(trace: &Trace, role: usize, place: usize, offset: usize) -> usize {
    let packet = &trace.capture.frames[place].payload;
    let field = fields_of(packet)
        .unwrap()
        .find(|field| (field.offset..field.offset + field.bytes.len()).contains(&offset))
        .unwrap();
    let policy = rule(field.packet_type, field.descriptor, &[]);
    let mut changed = trace.clone();
    let original = &trace.capture.frames[place];
    for frame in &mut changed.capture.frames {
        if frame.source == original.source && frame.header.sequence == original.header.sequence {
            frame.payload[offset] ^= 0x01;
        }
    }
    let verdict = verdict(&changed, role);
    let what = format!("packet {} byte {offset} ({field})", original.number);
    match policy {
        Rule::Ignored | Rule::Constant => {
            assert_eq!(verdict.texts(), Vec::<String>::new(), "{what}");
            return 0;
        }
        // Bits that an implementation may choose; ids that are its own.
        Rule::Masked(_) | Rule::Introduces(_) if verdict.passed() => return 0,
        _ => {}
    }
    assert!(!verdict.passed(), "{what} was not noticed");
    if verdict.mismatches.is_empty() {
        // A peer's packet names the id as well: it is the one that does not fit any more.
        assert!(
            matches!(policy, Rule::Introduces(_)),
            "{what}: {:?}",
            verdict.problems
        );
        return 1;
    }
    let text = verdict.mismatches[0].to_string();
    assert!(
        text.starts_with(&format!("packet {} (", original.number)),
        "{what}: {text}"
    );
    // A HANDSHAKE may leave optional fields out: what shows then is that they are there.
    let is_optional = matches!(policy, Rule::Masked(_)) && text.contains("field `trailing`");
    assert!(
        is_optional || text.contains(&format!("field `{}`", field.name())),
        "{what}: {text}"
    );
    assert!(
        text.contains("spec section") || text.contains("stock libfabric"),
        "{what}: {text}"
    );
    assert!(
        text.contains(": expected ") && text.contains(", actual "),
        "{what}: {text}"
    );
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
    assert_eq!(verdict.mismatches.len(), 1, "{:?}", verdict.texts());
    let text = verdict.mismatches[0].to_string();
    assert!(text.starts_with(&format!("packet {number} (")), "{text}");
    assert!(
        text.contains("field `data`") && text.contains(" at byte "),
        "{text}"
    );
}

#[test]
fn a_packet_too_many_or_too_few_is_named() {
    let trace = conversation();
    let handshake = trace
        .recorded(1, Direction::Outbound)
        .find(|&place| trace.capture.frames[place].kind() == "HANDSHAKE")
        .unwrap();
    let removed = &trace.capture.frames[handshake];

    // The trace lacks the HANDSHAKE that the endpoint under test sends.
    let mut fewer = trace.clone();
    let (source, sequence) = (removed.source, removed.header.sequence);
    let steps = fewer.step_of.clone();
    let mut kept = Vec::new();
    for (frame, step) in fewer.capture.frames.drain(..).zip(steps) {
        if frame.source != source || frame.header.sequence != sequence {
            kept.push((frame, step));
        }
    }
    (fewer.capture.frames, fewer.step_of) = kept.into_iter().unzip();
    assert!(!verdict(&fewer, 1).passed());

    // The trace has a message more than the application sends.
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
        ["`answer-arrives`: bytes that did not fit: expected 15, actual 14"]
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

/// What cannot be played is looked at, and says so.
#[test]
fn a_trace_beyond_the_script_is_never_a_plain_pass() {
    let mut trace = conversation();
    let place = trace.recorded(0, Direction::Outbound).next().unwrap();
    let mut refusal = trace.capture.frames[place].clone();
    refusal.header.kind = efa_emu::frame::Kind::Response(efa_core::nic::Status::RemoteBadLength);
    refusal.payload.clear();
    // It refuses something that the trace does not have.
    refusal.header.sequence += 1000;
    refusal.comments.clear();
    let number = refusal.number;
    trace.step_of.push(trace.step_of[place]);
    trace.capture.frames.push(refusal);

    let cases = suite::run_engine(&trace, &mut Emu::orderly(), 0).unwrap();
    assert_eq!(cases.len(), 1);
    let text = cases[0].to_string();
    let reason = format!(": codec only: in packet {number} the device refuses a request");
    assert!(text.starts_with("CODEC conversation"), "{text}");
    assert!(text.contains(&reason), "{text}");
    let summary = suite::Summary::of(&cases);
    assert_eq!((summary.passed, summary.codec_only), (0, 1));

    // A packet without form fails there as well.
    let frame = &mut trace.capture.frames[place];
    frame.payload[1] = 5;
    let cases = suite::run_engine(&trace, &mut Emu::orderly(), 0).unwrap();
    let text = cases[0].to_string();
    assert!(text.starts_with("FAIL "), "{text}");
    assert!(text.contains("version"), "{text}");
}
