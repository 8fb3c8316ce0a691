//! Group `scenarios`: the protocol engine and stock libfabric, live, each in a separate process and
//! on a separate emulated host.

use std::time::Duration;

use super::harness::{Bench, Cell, CellResult, CellsError, Lab, NotMeasured};
use efa_play::operation::EndpointIndex;
use efa_play::record;
use efa_play::scenario::{Scenario, Software};

/// The time limit of a whole scenario; each of its waits has a separate limit.
const LIMIT: Duration = Duration::from_secs(120);

pub(super) fn cells(lab: &Lab) -> Result<Vec<Cell>, CellsError> {
    let mut cells = Vec::new();
    for path in efa_suite::find_scenarios(&lab.scenarios.paths, None)? {
        let scenario = Scenario::load(&path)?;
        for (role, endpoint) in scenario.endpoints.iter().enumerate() {
            let name = format!("{} core as {}", scenario.name, endpoint.name);
            let scenario = scenario.clone();
            cells.push(Cell::new("scenarios", name, LIMIT, move |bench| {
                play_scenario(bench, &scenario, role)
            }));
        }
    }
    Ok(cells)
}

/// Plays a scenario with the engine as endpoint `role`.
fn play_scenario(bench: &Bench, scenario: &Scenario, role: EndpointIndex) -> CellResult {
    if let Some(reason) = &scenario.endpoints[role].not_under_test {
        return Err(NotMeasured::Skipped(reason.clone()));
    }
    let mut live = scenario.clone();
    live.endpoints[role].software = Software::Core;
    // Recordings require a certain release; live runs use the available one.
    for endpoint in &mut live.endpoints {
        endpoint.version = None;
    }
    let stock = &bench.lab().scenarios.stock;
    match record::run(&live, bench.launcher()?, stock, None, None) {
        Ok((transcript, _)) if transcript.problems.is_empty() => {
            Ok(transcript.versions.join(" and "))
        }
        Ok((transcript, _)) => Err(NotMeasured::Failed(transcript.problems.join("\n"))),
        Err(error) => Err(NotMeasured::failed(error)),
    }
}
