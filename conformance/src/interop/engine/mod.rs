//! Group `engine`: the protocol engine over verbs and stock libfabric, four generations of it; every
//! subprotocol, initiated by one and by the other.
//!
//! A cell plays a scenario that forces its subprotocol. The data is verified on both sides, and the
//! capture must contain the packets that the subprotocol consists of, from the side that has to send
//! them, and break no rule of the protocol. The scenario stays beside the capture, so that a cell can
//! be played again with `efa-conformance record`.

mod capture;
mod release;
mod script;
mod subprotocol;

use std::path::Path;
use std::time::Duration;

use super::{Bench, Cell, CellResult, Lab, Unmet};
use crate::check;
use crate::merge::merge;
use crate::record;
use crate::scenario::Scenario;
use crate::trace::Capture;

use release::{RELEASES, Release};
use subprotocol::{SUBPROTOCOLS, Subprotocol};

/// A scenario has bounds of its own for everything that it waits for; this is for all of it.
const LIMIT: Duration = Duration::from_secs(90);

/// Who starts the operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Initiator {
    Engine,
    Stock,
}

pub(super) fn cells(_: &Lab) -> Result<Vec<Cell>, String> {
    let mut cells = Vec::new();
    for release in RELEASES {
        for subprotocol in SUBPROTOCOLS {
            for initiator in [Initiator::Engine, Initiator::Stock] {
                let name = match initiator {
                    Initiator::Engine => format!("{} to {}", subprotocol.name, release.name),
                    Initiator::Stock => format!("{} from {}", subprotocol.name, release.name),
                };
                cells.push(Cell::new("engine", name, LIMIT, move |bench| {
                    play(bench, release, subprotocol, initiator)
                }));
            }
        }
    }
    Ok(cells)
}

fn play(
    bench: &Bench,
    release: &Release,
    subprotocol: &Subprotocol,
    initiator: Initiator,
) -> CellResult {
    if let Some(reason) = subprotocol.missing_in(release, initiator) {
        return Err(Unmet::Skipped(reason));
    }
    let fetched = release.fetch(bench)?;
    let text = script::write(release, &fetched, subprotocol, initiator);
    let path = bench.directory().join("cell.toml");
    std::fs::write(&path, &text).map_err(Unmet::failed)?;
    let scenario = Scenario::parse(&path, &text).map_err(Unmet::failed)?;
    let captures = bench.directory();
    let (transcript, files) =
        record::play(&scenario, bench.launcher(), &fetched.stock, Some(captures)).map_err(
            |error| {
                if error.is_environment() {
                    Unmet::Skipped(error.to_string())
                } else {
                    Unmet::failed(error)
                }
            },
        )?;
    let merged = bench.capture("cell");
    merge(
        &files,
        std::slice::from_ref(&scenario.description),
        &[],
        &merged,
    )
    .map_err(Unmet::failed)?;
    let problems = transcript.problems;
    let (seen, missing) = look(&merged, subprotocol, initiator)?;
    match (problems.is_empty(), missing.is_empty()) {
        (true, true) => Ok(seen),
        _ => Err(Unmet::Failed(
            [problems, missing, vec![format!("seen: {seen}")]]
                .concat()
                .join("\n"),
        )),
    }
}

/// What each side sent, in words, and what is wrong with it.
fn look(
    path: &Path,
    subprotocol: &Subprotocol,
    initiator: Initiator,
) -> Result<(String, Vec<String>), Unmet> {
    let capture = Capture::load(path).map_err(Unmet::failed)?;
    let mut problems = capture.damage.clone();
    let violations = check::check(&capture).violations;
    problems.extend(violations.iter().map(ToString::to_string));
    let (first, second) = match initiator {
        Initiator::Engine => (script::ENGINE, script::STOCK),
        Initiator::Stock => (script::STOCK, script::ENGINE),
    };
    let mut seen = Vec::new();
    for (host, needed) in [
        (first, subprotocol.initiator),
        (second, subprotocol.responder),
    ] {
        let sent = capture::sent_by(&capture, host);
        for kind in needed {
            match sent.get(*kind) {
                Some(count) => seen.push(format!("{count} {kind}")),
                None => problems.push(format!("{host} sent no {kind}, only {sent:?}")),
            }
        }
    }
    Ok((seen.join(", "), problems))
}
