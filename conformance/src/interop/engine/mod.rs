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
use subprotocol::{Fault, SUBPROTOCOLS, Subprotocol};

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
                    let result = play(bench, release, subprotocol, initiator);
                    match subprotocol.fault_of(release, initiator) {
                        None => result,
                        Some(fault) => excuse(bench, result, subprotocol, fault),
                    }
                }));
            }
        }
    }
    Ok(cells)
}

/// Whether a failure is that of a known fault: the operation that it shows in did not end, and the
/// engine sent what it had to, but the packet that stock owes is not in the capture.
fn excuse(
    bench: &Bench,
    result: CellResult,
    subprotocol: &Subprotocol,
    fault: &Fault,
) -> CellResult {
    let text = match result {
        Err(Unmet::Failed(text)) if text.contains(fault.shows) => text,
        Ok(_) => {
            return Err(Unmet::Failed(format!(
                "this works, but is listed as a fault of stock libfabric: {}",
                fault.reason
            )));
        }
        other => return other,
    };
    let sent_by = |host| {
        let capture = Capture::load(&bench.capture(host)).map_err(Unmet::failed)?;
        Ok::<_, Unmet>(capture::sent_by(&capture, host))
    };
    let (ours, theirs) = (sent_by(script::ENGINE)?, sent_by(script::STOCK)?);
    let all_sent = subprotocol
        .initiator
        .iter()
        .all(|kind| ours.contains_key(*kind));
    if all_sent && !theirs.contains_key(fault.withholds) {
        Err(Unmet::Known {
            reason: fault.reason.into(),
            capture: bench.capture(script::STOCK),
        })
    } else {
        Err(Unmet::Failed(text))
    }
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
