//! Scenarios whose packets are written by hand.
//!
//! A scenario can contain the packets of an exchange that stock software does not produce: its
//! `[[packet]]` tables list the packets of both sides in order, with the field names that `show`
//! prints. Fields that are not given have the values of a correct endpoint. The result is a trace
//! like any other, although it was never recorded: replay sends the packets of the scripted side,
//! and compares those of the tested side with the given ones, under the same policy as for a
//! recording.

mod frame_writer;
mod invented;
mod named;
mod operation;
mod packet;

use std::collections::HashMap;
use std::path::Path;

use efa_check::capture::Capture;
use efa_play::scenario::{Action, Scenario};
use efa_play::trace::{Trace, TraceError};

/// Reads a trace: a recording, `NAME.pcapng`, or a scenario with packets, `NAME.toml`.
///
/// # Errors
/// If it cannot be read, or a packet is invalid.
pub fn load(path: &Path) -> Result<Trace, TraceError> {
    if path
        .extension()
        .is_some_and(|extension| extension == "toml")
    {
        return trace(Scenario::load(path)?);
    }
    Trace::load(path)
}

/// The trace that a scenario with packets describes.
///
/// # Errors
/// If a packet has an unknown type or field, or a value that its field cannot hold.
pub fn trace(scenario: Scenario) -> Result<Trace, TraceError> {
    let (frames, step_of) = frame_writer::frames(&scenario)?;
    let regions = scenario.steps.iter().enumerate();
    let regions = regions.filter_map(|(step, it)| match &it.action {
        Action::Start { id, .. } => Some((id.clone(), invented::memory(step))),
        _ => None,
    });
    Ok(Trace {
        capture: Capture {
            path: scenario.path.clone(),
            interfaces: scenario.endpoints.iter().map(|e| e.name.clone()).collect(),
            frames,
            damage: Vec::new(),
            lossy: Vec::new(),
        },
        endpoint_of: (0..scenario.endpoints.len()).collect(),
        step_of,
        regions: regions.collect(),
        refused: HashMap::new(),
        scenario,
    })
}
