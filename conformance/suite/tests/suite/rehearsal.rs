//! Traces for tests: the engine plays both sides of a scenario in the emulator.
//!
//! The corpus in `traces/` is recorded from stock libfabric. The tests make these traces to test
//! the suite itself.

use std::collections::HashMap;
use std::time::Duration;

use efa_check::capture::Capture;
use efa_play::application::checked::{CheckedApplication, LocalApplication};
use efa_play::application::engine::{CoreApplication, configuration};
use efa_play::application::{Report, RequestError, Started, Token};
use efa_play::operation::Remote;
use efa_play::scenario::{Action, Capability, Scenario};
use efa_play::trace::{END_OF_STEPS, Trace, region_comment};
use efa_play::verify;
use efa_replay::replay::backend::Backend;
use efa_replay::replay::emu::Emu;
use efa_sim::CaptureConfig;

/// Plays a scenario with the engine on all sides and returns the trace.
pub(crate) fn rehearse(scenario: &Scenario) -> Trace {
    let mut emu = Emu::orderly();
    let nics: Vec<_> = scenario
        .endpoints
        .iter()
        .map(|endpoint| emu.open(endpoint).unwrap())
        .collect();
    let fabric = emu.fabric().clone();
    for fault in &scenario.faults {
        fabric.install(fault.clone());
    }
    let recording = fabric
        .capture(Vec::new(), CaptureConfig::default())
        .unwrap();
    let mut subjects: Vec<LocalApplication> = scenario
        .endpoints
        .iter()
        .zip(nics)
        .map(|(endpoint, nic)| {
            let config = configuration(&endpoint.settings);
            let sources = endpoint.has(Capability::Source);
            let application = CoreApplication::open(nic, config, sources, emu.clock()).unwrap();
            LocalApplication::new(Box::new(application))
        })
        .collect();
    let addresses: Vec<Vec<u8>> = subjects.iter().map(|s| s.address().unwrap()).collect();
    for (subject, endpoint) in subjects.iter_mut().zip(&scenario.endpoints) {
        for &peer in &endpoint.address_vector {
            subject.insert(peer, &addresses[peer]).unwrap();
        }
    }
    let mut marks: Vec<(Duration, String)> = Vec::new();
    let mut tokens: HashMap<&str, Token> = HashMap::new();
    let mut regions: HashMap<&str, Remote> = HashMap::new();
    let mut reports: HashMap<Token, Report> = HashMap::new();
    for (index, step) in scenario.steps.iter().enumerate() {
        // Steps differ in time, so that each packet belongs to one step.
        fabric.advance(Duration::from_micros(1));
        marks.push((fabric.now(), step.describe(index, scenario)));
        let (waited, progress) = match &step.action {
            Action::Start {
                at, id, operation, ..
            } => {
                let token = index as Token;
                tokens.insert(id, token);
                let request =
                    operation.with_remote(|place| place.within(regions[place.region.as_str()]));
                let seed = verify::expected_seed(scenario, id);
                let mut started = subjects[*at].start(token, &request, seed);
                // The engine may have to wait for its peer's HANDSHAKE.
                while let Err(RequestError::TryAgain) = started {
                    for subject in &mut subjects {
                        assert_eq!(subject.poll().unwrap(), [], "{}", scenario.name);
                    }
                    fabric.run_until_idle();
                    started = subjects[*at].start(token, &request, seed);
                }
                if let Started::Region(remote) = started.unwrap() {
                    marks.push((fabric.now(), region_comment(id, remote)));
                    regions.insert(id, remote);
                }
                fabric.run_until_idle();
                continue;
            }
            Action::Wait {
                operations,
                progress,
            } => (operations.clone(), progress.clone()),
            Action::Settle { progress } => (Vec::new(), progress.clone()),
            Action::Check {
                at,
                region,
                offset,
                message,
            } => {
                let payload = scenario.operation(message).unwrap().1.payload().unwrap();
                let checked = subjects[*at].check(tokens[region.as_str()], *offset, payload);
                assert_eq!(checked.unwrap(), None, "{}", scenario.name);
                continue;
            }
        };
        let mut quiet = 0;
        while quiet < 3 {
            let mut busy = fabric.run_until_idle() > 0;
            for (at, subject) in subjects.iter_mut().enumerate() {
                if !progress.is_empty() && !progress.contains(&at) {
                    continue;
                }
                for report in subject.poll().unwrap() {
                    busy = true;
                    // A completion without a token is a peer's write to our memory.
                    if let Some(token) = report.token {
                        reports.insert(token, report);
                    }
                }
                let events = subject.events().unwrap();
                // If requests fail permanently, endpoints may report that too.
                assert!(
                    events.is_empty() || !scenario.faults.is_empty(),
                    "{events:?}"
                );
            }
            quiet = if busy { 0 } else { quiet + 1 };
        }
        for id in waited {
            let (_, operation, _) = scenario.operation(&id).unwrap();
            if operation.completes() {
                let report = reports
                    .get(&tokens[id.as_str()])
                    .unwrap_or_else(|| panic!("{}: `{id}` did not complete", scenario.name));
                assert_eq!(
                    verify::completion(scenario, &id, report),
                    Vec::<String>::new(),
                    "{}",
                    scenario.name
                );
            }
        }
    }
    fabric.advance(Duration::from_micros(1));
    marks.push((fabric.now(), END_OF_STEPS.into()));
    let bytes = recording.finish().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(format!("{}.pcapng", scenario.name));
    std::fs::write(&path, bytes).unwrap();
    let mut capture = Capture::load(&path).unwrap();
    capture.interfaces = scenario.endpoints.iter().map(|e| e.name.clone()).collect();
    for (time, text) in marks {
        if let Some(frame) = capture.frames.iter_mut().find(|frame| frame.time >= time) {
            frame.comments.push(text);
        }
    }
    Trace::new(scenario.clone(), capture).unwrap_or_else(|error| panic!("{error}"))
}
