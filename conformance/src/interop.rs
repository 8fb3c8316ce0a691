//! The protocol engine and stock libfabric, live: each in a process and on an emulated host of its
//! own.

use std::path::Path;
use std::time::Instant;

use crate::conduct::ConductError;
use crate::player::Launcher;
use crate::record;
use crate::scenario::{EndpointIndex, Scenario, Software};
use crate::suite::{Case, Outcome};

/// Plays a scenario with the engine in the place of endpoint `role`. An error is the environment's.
pub fn play(
    scenario: &Scenario,
    role: EndpointIndex,
    launcher: &Launcher,
    library: Option<&Path>,
) -> Result<Case, ConductError> {
    let start = Instant::now();
    let endpoint = &scenario.endpoints[role];
    let mut cast = scenario.clone();
    cast.endpoints[role].software = Software::Core;
    // Recordings need a certain release, live runs take whatever libfabric there is.
    for endpoint in &mut cast.endpoints {
        endpoint.version = None;
    }
    let outcome = match &endpoint.not_under_test {
        Some(reason) => Outcome::NotUnderTest {
            reason: reason.clone(),
        },
        None => match record::play(&cast, launcher, library, None) {
            Ok((transcript, _)) if transcript.problems.is_empty() => Outcome::Played {
                with: transcript.versions.join(" and "),
            },
            Ok((transcript, _)) => Outcome::Failed {
                problems: transcript.problems,
            },
            Err(error) if error.is_environment() => return Err(error),
            Err(error) => Outcome::Failed {
                problems: vec![error.to_string()],
            },
        },
    };
    Ok(Case {
        trace: scenario.name.clone(),
        path: scenario.path.clone(),
        backend: "live".into(),
        dut: "core".into(),
        role: endpoint.name.clone(),
        outcome,
        duration: start.elapsed(),
    })
}
