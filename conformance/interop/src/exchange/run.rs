//! A complete exchange.

use std::path::PathBuf;

use super::pair::Pair;
use super::party::Party;
use super::topic::Topic;
use super::verified::Verified;
use crate::harness::{Bench, NotMeasured, failed};

/// Exchanges `topic` between the first party and the second, in each size of `sizes` in bytes.
pub(crate) fn exchange(
    bench: &Bench,
    parties: [&Party; 2],
    topic: Topic,
    sizes: &[usize],
) -> Result<Verified, NotMeasured> {
    let mut pair = Pair::open(bench, parties)?;
    let result = pair.exchange(topic, sizes).and_then(|()| pair.reported());
    match result {
        Ok(()) => {
            let Pair {
                players,
                verified,
                captures,
                ..
            } = pair;
            for (player, capture) in players.into_iter().zip(captures) {
                keep(&player.end()?, capture)?;
            }
            Ok(verified)
        }
        Err(NotMeasured::Failed(text)) => {
            let failed = pair.explained(text);
            for (player, capture) in pair.players.into_iter().zip(pair.captures) {
                keep(&player.salvage(), capture)?;
            }
            Err(failed)
        }
        Err(not_measured) => Err(not_measured),
    }
}

/// Stores a capture from another host. Emulated hosts write theirs directly.
fn keep(bytes: &[u8], capture: Option<PathBuf>) -> Result<(), NotMeasured> {
    match capture {
        Some(path) if !bytes.is_empty() => std::fs::write(&path, bytes)
            .map_err(|error| failed!("cannot write {}: {error}", path.display())),
        _ => Ok(()),
    }
}
