//! Changes each event of a run once, in separate runs.
//!
//! Random networks that change many events find errors that need many changes at once. Here each
//! request and each completion of a run is changed in turn: it is late, it is refused because its
//! receiver is not ready, or it fails. A late or refused event must not change the results of the
//! application. After a failure, operations may fail too or stay open, but the application must get
//! an error, and operations that complete must complete correctly.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use efa_core::nic::Status;
use efa_core::wire::PacketType;
use efa_device_model::fault::{Action, Errno, Fault, HostName, Match, PacketTypes, Point};
use efa_device_model::link::Operation;
use efa_play::trace::Trace;
use efa_replay::replay::backend::BackendError;
use efa_replay::replay::emu::Emu;
use efa_replay::replay::{Opener, Strictness, live, replay};
use serde::{Deserialize, Serialize};

/// The change of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// It is delayed until all other events have happened.
    Delay,
    /// Its receiver is not ready, so often that its sender must send it again.
    Refuse,
    /// It is lost, or completes with an error at the application that started it.
    Fail,
}

impl Change {
    /// All changes.
    pub const ALL: [Change; 3] = [Change::Delay, Change::Refuse, Change::Fail];

    const fn name(self) -> &'static str {
        match self {
            Change::Delay => "delay",
            Change::Refuse => "refuse",
            Change::Fail => "fail",
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The changes that `--each-event` names.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Changes(pub Vec<Change>);

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0[..] {
            [change] => f.write_str(change.name()),
            _ => f.write_str("all"),
        }
    }
}

/// A text that does not name [`Changes`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("write `delay`, `refuse`, `fail` or `all`")]
pub struct UnknownChange;

impl FromStr for Changes {
    type Err = UnknownChange;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "all" {
            return Ok(Changes(Change::ALL.to_vec()));
        }
        let found = Change::ALL.into_iter().find(|change| change.name() == text);
        let changes = found.map(|change| Changes(vec![change]));
        changes.ok_or(UnknownChange)
    }
}

/// The results of the runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunResults {
    /// The number of runs: one for each event and each change.
    pub runs: usize,
    /// Failures, each with its event.
    pub texts: Vec<String>,
}

/// Longer than any other event in a network without changes.
const LATE: Duration = Duration::from_millis(1);

/// More than the three retries of the device itself.
const REFUSALS: u32 = 8;

/// Events of one type, and how they are changed.
struct ChangedEvents {
    change: Change,
    /// The description of the events.
    events: &'static str,
    when: Match,
    then: Action,
    strictness: Strictness,
}

fn kinds(change: Change, dut: &str) -> Vec<ChangedEvents> {
    let dut = || Some(HostName::Name(dut.to_owned()));
    let abort = Action::Answer(Status::RemoteAbort);
    let kind = |events, when, then, strictness| ChangedEvents {
        change,
        events,
        when,
        then,
        strictness,
    };
    let told = |is_told| Strictness::Survival { is_told };
    match change {
        Change::Delay => {
            let late = || Action::Delay(LATE.into());
            vec![
                kind(
                    "request",
                    Match::any(Point::Request),
                    late(),
                    Strictness::Outcome,
                ),
                kind(
                    "completion",
                    Match::any(Point::Answer),
                    late(),
                    Strictness::Outcome,
                ),
            ]
        }
        Change::Refuse => {
            let when = Match {
                operation: Some(Operation::Send),
                ..Match::any(Point::Request)
            };
            vec![kind(
                "packet",
                when,
                Action::NotReady(REFUSALS),
                Strictness::Outcome,
            )]
        }
        Change::Fail => {
            // A request is an operation of the endpoint's application, which must get an error at
            // its end. The peer detects a missing packet of another type.
            let codes = |is_req: bool| {
                let types = PacketType::ALL.iter().filter(|it| it.is_req() == is_req);
                PacketTypes(types.map(|packet_type| packet_type.code()).collect())
            };
            let sent = |on, is_req| Match {
                sender: dut(),
                packet: codes(is_req),
                ..Match::any(on)
            };
            let rdma = |operation| Match {
                sender: dut(),
                operation: Some(operation),
                ..Match::any(Point::Request)
            };
            let to_dut = Match {
                receiver: dut(),
                ..Match::any(Point::Request)
            };
            let registration = Match {
                host: dut(),
                ..Match::any(Point::Registration)
            };
            let (request, answer) = (Point::Request, Point::Answer);
            let refusal = Action::Fail(Errno(libc::ENOMEM));
            let failed = |events, when, is_told| kind(events, when, abort.clone(), told(is_told));
            vec![
                failed("own request", sent(request, true), true),
                failed("completion of an own request", sent(answer, true), true),
                failed("own answer", sent(request, false), false),
                failed("completion of an own answer", sent(answer, false), false),
                failed("own RDMA read", rdma(Operation::RdmaRead), true),
                failed("own RDMA write", rdma(Operation::RdmaWrite), true),
                failed("request of a peer", to_dut, false),
                kind("registration", registration, refusal, told(false)),
            ]
        }
    }
}

/// Runs `trace` with each of `changes` applied to every `every`-th event of its run.
pub fn run_with_changes(
    trace: &Trace,
    role: usize,
    opener: &mut dyn Opener<Emu>,
    changes: &[Change],
    every: usize,
) -> Result<RunResults, BackendError> {
    let mut turns = RunResults::default();
    let dut = &trace.scenario.endpoints[role].name;
    for kind in changes.iter().flat_map(|change| kinds(*change, dut)) {
        for number in (1_u64..).step_by(every) {
            let fault = Fault::new(kind.when.clone(), kind.then.clone()).nth(number);
            let mut emu = Emu::orderly().with_fault(fault);
            let verdict = match replay(trace, role, kind.strictness, &mut emu, opener, None) {
                Ok(verdict) => verdict,
                // A device without memory for its internal buffers cannot be opened.
                Err(BackendError::Nic { .. }) => continue,
                Err(error) => return Err(error),
            };
            if !emu.has_met_fault() {
                break;
            }
            turns.runs += 1;
            let is_outcome = kind.strictness == Strictness::Outcome;
            let texts = match verdict.departed {
                None => verdict.texts(),
                Some(_) if is_outcome && !trace.scenario.is_written() => {
                    live::play_with_engine(&trace.scenario, role, &mut emu, opener, None)?
                }
                // The trace has no answer to the packets of another subprotocol.
                Some(_) => Vec::new(),
            };
            let ChangedEvents { change, events, .. } = kind;
            let of_event = |text| format!("{change} of {events} {number}: {text}");
            turns.texts.extend(texts.into_iter().map(of_event));
        }
    }
    Ok(turns)
}
