//! Group `engine`: the protocol engine over verbs with four generations of stock libfabric; every
//! subprotocol, initiated by each side.
//!
//! A cell plays a scenario that forces its subprotocol. The data is verified on both sides. The capture must
//! contain the packets of the subprotocol, from the side that has to send them, and break no rule of the
//! protocol. The scenario stays beside the capture, so that `efa-conformance record` can play it again.

mod capture;
mod play;
mod release;
mod script;
mod subprotocol;
mod zero_copy;

use std::time::Duration;

use super::harness::{Bench, Cell, CellResult, Lab, Unmet};

use play::{CELL, Played, Tally, play_staged};
use release::{RELEASES, Release};
pub(super) use zero_copy::HEADERLESS;

use subprotocol::{Fault, Instead, Operations, SUBPROTOCOLS, Subprotocol};

const GROUP: &str = "engine";

/// The emulated hosts of all cells, so that those of a cell are not both at even, or both at odd places.
pub(super) const HOSTS: [&str; 3] = [script::ENGINE, script::STOCK, zero_copy::PEER];

/// The time limit of a whole scenario; each of its waits has a limit of its own.
const LIMIT: Duration = Duration::from_secs(90);

/// The side that starts the operations.
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
                if let Some(Instead::Nothing) = subprotocol.instead(release, initiator) {
                    continue;
                }
                let name = match initiator {
                    Initiator::Engine => format!("{} to {}", subprotocol.name, release.name),
                    Initiator::Stock => format!("{} from {}", subprotocol.name, release.name),
                };
                cells.push(Cell::new(GROUP, name, LIMIT, move |bench| {
                    cell(bench, release, subprotocol, initiator)
                }));
            }
        }
        cells.extend(zero_copy::cells(release));
    }
    Ok(cells)
}

/// Plays a subprotocol's scenario. The sides must send the packets of the subprotocol, or those that replace
/// it with a release that lacks it.
fn cell(
    bench: &Bench,
    release: &Release,
    subprotocol: &Subprotocol,
    initiator: Initiator,
) -> CellResult {
    let fetched = release.fetch(bench)?;
    let (first, second) = match initiator {
        Initiator::Engine => (script::ENGINE, script::STOCK),
        Initiator::Stock => (script::STOCK, script::ENGINE),
    };
    let text = script::write(release, &fetched, subprotocol, initiator);
    let mut played = play_staged(bench, &fetched, &text, &subprotocol.staged.rules(second))?;
    let mut tally = Tally::default();
    match subprotocol.instead(release, initiator) {
        Some(Instead::Refusal(text)) => {
            match played.stopped.take() {
                Some(error) if error.contains(text) => tally.seen.push(format!("refused: {error}")),
                other => {
                    tally.missing.push("it was not refused".into());
                    played.stopped = other;
                }
            }
            tally.forbid(&played, first, subprotocol.initiator);
        }
        Some(Instead::Packets(initiator, responder)) => {
            tally.require(&played, first, initiator);
            tally.require(&played, second, responder);
            let own = [subprotocol.initiator, subprotocol.responder].concat();
            let new: Vec<&str> = own
                .into_iter()
                .filter(|kind| !initiator.contains(kind) && !responder.contains(kind))
                .collect();
            for host in [first, second] {
                tally.forbid(&played, host, &new);
            }
            if let Some(seen) = tally.seen.first_mut() {
                seen.insert_str(0, "instead: ");
            }
        }
        Some(Instead::Nothing) | None => {
            tally.require(&played, first, subprotocol.initiator);
            if let Some(fault) = subprotocol.fault_of(release, initiator) {
                return excuse(bench, &played, &tally, fault);
            }
            tally.require(&played, second, subprotocol.responder);
            if matches!(subprotocol.operations, Operations::Write { data: true, .. }) {
                for host in [first, second] {
                    tally.unsolicited(&played, host, subprotocol.unsolicited);
                }
            }
        }
    }
    played.judge(tally.seen, tally.missing)
}

/// Judges a cell with a known fault. The failure is the fault if the named operation did not end and the
/// engine sent what it had to, but the packet that stock owes is not in the capture.
fn excuse(bench: &Bench, played: &Played, tally: &Tally, fault: &Fault) -> CellResult {
    let stopped = played.stopped.as_deref().unwrap_or("nothing stopped it");
    let is_fault = stopped.contains(fault.shows)
        && tally.missing.is_empty()
        && !played.sent_by(script::STOCK).contains_key(fault.withholds);
    Err(if is_fault {
        Unmet::Known {
            reason: fault.reason.into(),
            capture: bench.capture(CELL),
        }
    } else {
        Unmet::Failed(format!(
            "{stopped}; but this is listed as a fault of stock libfabric: {}\n{}",
            fault.reason,
            [&played.problems[..], &tally.missing[..]]
                .concat()
                .join("\n")
        ))
    })
}
