//! Traces for tests: the engine plays both sides of a scenario in the emulator.
//!
//! The corpus in `traces/` is recorded from stock libfabric. The tests make these traces to test
//! the suite itself.

use std::time::Duration;

use efa_check::capture::Capture;
use efa_play::scenario::Scenario;
use efa_play::trace::Trace;
use efa_replay::replay::backend::Backend;
use efa_replay::replay::emu::Emu;
use efa_replay::replay::{Engine, live};

/// Plays a scenario with the engine on all sides and returns the trace.
pub(crate) fn rehearse(scenario: &Scenario) -> Trace {
    let mut emu = Emu::orderly();
    emu.capture_next();
    let mut comments: Vec<(Duration, String)> = Vec::new();
    let mut annotate = |emu: &mut Emu, text: String| {
        // Steps differ in time, so that each packet belongs to one step.
        emu.fabric().advance(Duration::from_micros(1));
        comments.push((emu.fabric().now(), text));
    };
    let engine = &mut Engine::default();
    let mut problems =
        live::play_with_engine(scenario, 0, &mut emu, engine, Some(&mut annotate)).unwrap();
    // If requests fail permanently, endpoints may report that too.
    problems.retain(|text| scenario.faults.is_empty() || !text.contains(" reported "));
    assert_eq!(problems, [""; 0], "{}", scenario.name);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(format!("{}.pcapng", scenario.name));
    std::fs::write(&path, emu.take_capture().unwrap()).unwrap();
    let mut capture = Capture::load(&path).unwrap();
    for (time, text) in comments {
        if let Some(frame) = capture.frames.iter_mut().find(|frame| frame.time >= time) {
            frame.comments.push(text);
        }
    }
    Trace::new(scenario.clone(), capture).unwrap_or_else(|error| panic!("{error}"))
}
