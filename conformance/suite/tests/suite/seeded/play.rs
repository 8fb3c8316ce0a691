//! Running the suite on an engine with a fault.

use std::cell::Cell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use efa_capture::Direction;
use efa_check::capture::Capture;
use efa_check::check::check;
use efa_core::rules::{self, Severity};
use efa_core::wire::PacketType;
use efa_play::application::RequestError;
use efa_play::application::checked::{CheckedApplication, LocalApplication};
use efa_play::application::engine::{CoreApplication, configuration};
use efa_play::scenario::{Capability, EndpointSpec};
use efa_play::trace::Trace;
use efa_replay::replay::backend::{Backend, BackendError};
use efa_replay::replay::emu::Emu;
use efa_replay::replay::{Engine, Opener};
use efa_replay::synthetic;
use efa_suite::{Options, Outcome, run_trace};
use efa_testing::fields::write;

use super::device::FaultyNic;
use super::fault::Fault;

/// Opens the engine, with a fault for the endpoint that has one.
struct Faulty<'t> {
    fault: Option<&'static Fault>,
    endpoint: &'t str,
    applied: Rc<Cell<usize>>,
}

impl Opener<Emu> for Faulty<'_> {
    fn open(
        &mut self,
        backend: &mut Emu,
        endpoint: &EndpointSpec,
    ) -> Result<Box<dyn CheckedApplication>, BackendError> {
        if endpoint.name != self.endpoint {
            return Engine::default().open(backend, endpoint);
        }
        let host = backend.open(endpoint)?.host().clone();
        let act = self.fault.map(|fault| fault.act);
        let nic = FaultyNic::open(&host, act, Rc::clone(&self.applied));
        let nic = nic.map_err(RequestError::from)?;
        let application = CoreApplication::open(
            nic,
            configuration(&endpoint.settings),
            endpoint.has(Capability::Source),
            backend.clock(),
        )?;
        Ok(Box::new(LocalApplication::new(Box::new(application))))
    }
}

/// The outcome of playing a trace.
pub(crate) struct Played {
    /// The number of times that the fault took effect.
    pub(crate) applied: usize,
    pub(crate) passed: bool,
    /// Statements that the failures name, in their order.
    pub(crate) statements: Vec<&'static str>,
    /// Rules of the errors that `check` finds, in their order.
    pub(crate) rules: Vec<&'static str>,
    /// The result in the form that users see.
    pub(crate) text: String,
}

/// A trace, the endpoint under test, and the features that its peers announce if they differ from
/// the recording.
pub(crate) type Play = (&'static str, usize, Option<u64>);

/// Plays traces.
#[derive(Default)]
pub(crate) struct Player {
    traces: HashMap<Play, Trace>,
}

impl Player {
    /// Plays a trace with the engine, with or without a fault, in the place of an endpoint.
    pub(crate) fn play(&mut self, fault: Option<&'static Fault>, play: Play) -> Played {
        let endpoint = play.1;
        let trace = self.traces.entry(play).or_insert_with(|| load(play));
        let role = trace.scenario.endpoints[endpoint].name.as_str();
        let applied = Rc::new(Cell::new(0));
        let mut opener = Faulty {
            fault,
            endpoint: role,
            applied: Rc::clone(&applied),
        };
        let directory = tempfile::tempdir().unwrap();
        let options = Options {
            captures: Some(directory.path().to_owned()),
            ..Options::default()
        };
        let mut emu = Emu::orderly();
        let cases = run_trace(trace, &mut emu, "core", &mut opener, None, &options).unwrap();
        let case = cases.iter().find(|case| case.role == role).unwrap();
        let mut played = Played {
            applied: applied.get(),
            passed: matches!(case.outcome, Outcome::Passed { .. }),
            statements: Vec::new(),
            rules: Vec::new(),
            text: case.to_string(),
        };
        if let Outcome::Failed { findings, capture } = &case.outcome {
            let failures = findings.iter();
            played.statements = failures.filter_map(|failure| failure.statement()).collect();
            let capture = capture.as_ref().expect("failing cases leave a capture");
            let capture = Capture::load(capture).unwrap();
            let checked = check(&capture);
            let errors = checked.worse_than(Severity::Warning);
            let its_own = errors.filter(|finding| capture.interfaces[finding.interface] == role);
            played.rules = its_own.map(|finding| finding.rule.id).collect();
            // A missing answer is reported for the request, but often follows from a wrong one.
            let never_came = rules::ANSWER_MISSING.id;
            played.rules.sort_by_key(|rule| *rule == never_came);
        }
        played
    }
}

/// A trace of the corpus, or one that exists only for a fault.
fn path_of(name: &str) -> PathBuf {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/seeded/traces");
    let beside = beside.join(format!("{name}.toml"));
    if beside.is_file() {
        return beside;
    }
    efa_testing::workspace::traces().join(format!("{name}.pcapng"))
}

fn load((name, endpoint, announced): Play) -> Trace {
    let mut trace = synthetic::load(&path_of(name)).unwrap_or_else(|error| panic!("{error}"));
    let Some(features) = announced else {
        return trace;
    };
    let peers: Vec<_> = trace.recorded(endpoint, Direction::Inbound).collect();
    for place in peers {
        let frame = &mut trace.capture.frames[place];
        if frame.packet_type() == Some(PacketType::Handshake) {
            let key = (frame.source, frame.header.sequence);
            for frame in &mut trace.capture.frames {
                if (frame.source, frame.header.sequence) == key
                    && frame.packet_type() == Some(PacketType::Handshake)
                {
                    write(&mut frame.payload, "extra_info", features);
                }
            }
        }
    }
    // The recording does not match the features that the peers announce now; this is no error of
    // theirs.
    trace.capture.lossy = (0..trace.capture.interfaces.len()).collect();
    trace
}
