//! Group `engine`: the protocol engine over verbs with four generations of stock libfabric, with
//! every subprotocol initiated by each side.
//!
//! A cell plays a scenario that forces its subprotocol. The data is verified on both sides. The
//! capture must contain the packets of the subprotocol from the right side, and violate no rule of
//! the protocol. The scenario is stored next to the capture, so that `efa-conformance record` can
//! play it again.

mod capture;
mod play;
mod script;
mod subprotocol;
mod zero_copy;

use std::time::Duration;

use super::harness::{Bench, Cell, CellResult, CellsError, Lab};
use super::libfabric::release::{RELEASES, Release};

use play::{PacketTally, play_script};
use subprotocol::{Instead, Subprotocol};

const GROUP: &str = "engine";

/// The emulated hosts of all cells, in an order that gives the two hosts of a cell an even and an
/// odd index.
pub(super) const HOSTS: [&str; 3] = [script::ENGINE, script::STOCK, zero_copy::PEER];

/// The time limit of a whole scenario; each of its waits has a separate limit.
const LIMIT: Duration = Duration::from_secs(90);

/// The side that starts the operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Initiator {
    Engine,
    Stock,
}

pub(super) fn cells(_: &Lab) -> Result<Vec<Cell>, CellsError> {
    let mut cells = Vec::new();
    for release in &RELEASES {
        for subprotocol in subprotocol::all()? {
            for (initiator, way) in [(Initiator::Engine, "to"), (Initiator::Stock, "from")] {
                let instead = match subprotocol.is_in(release) {
                    true => None,
                    false => match subprotocol.instead(initiator) {
                        Some(instead) => Some(instead),
                        None => continue,
                    },
                };
                let name = format!("{} {way} {}", subprotocol.name, release.full_name);
                cells.push(Cell::new(GROUP, name, LIMIT, move |bench| {
                    cell(bench, release, subprotocol, initiator, instead)
                }));
            }
        }
        cells.extend(zero_copy::cells(release));
    }
    Ok(cells)
}

/// Plays a subprotocol's scenario. The sides must send the packets of the subprotocol, or their
/// replacement with a release that lacks it.
fn cell(
    bench: &Bench,
    release: &Release,
    subprotocol: &Subprotocol,
    initiator: Initiator,
    instead: Option<&Instead>,
) -> CellResult {
    let stock = script::fetch(bench, release)?;
    let [first, second] = initiator.hosts();
    let scenario = subprotocol.scenario(release, initiator);
    let faults = subprotocol.faults(initiator);
    let mut played = play_script(bench, &stock, &scenario?, &faults)?;
    let mut tally = PacketTally::default();
    match instead {
        Some(Instead {
            refusal: Some(text),
            ..
        }) => {
            match played.stopped.take() {
                Some(error) if error.contains(text) => tally.seen.push(format!("refused: {error}")),
                other => {
                    tally.missing.push("it was not refused".into());
                    played.stopped = other;
                }
            }
            tally.forbid(&played, first, &subprotocol.initiator);
        }
        Some(Instead {
            initiator,
            responder,
            ..
        }) => {
            tally.require(&played, first, initiator);
            tally.require(&played, second, responder);
            let mut new = [&subprotocol.initiator[..], &subprotocol.responder].concat();
            new.retain(|kind| !initiator.contains(kind) && !responder.contains(kind));
            for host in [first, second] {
                tally.forbid(&played, host, &new);
            }
            if let Some(seen) = tally.seen.first_mut() {
                seen.insert_str(0, "instead: ");
            }
        }
        None => {
            tally.require(&played, first, &subprotocol.initiator);
            tally.require(&played, second, &subprotocol.responder);
            if let Some(expected) = subprotocol.unsolicited_data {
                for host in [first, second] {
                    tally.unsolicited(&played, host, expected);
                }
            }
        }
    }
    played.judge(tally)
}
