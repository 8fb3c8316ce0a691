//! One device of several, which programs choose by its name.

use std::time::Duration;

use efa_device_model::profile::Profile;
use efa_play::libfabric::Provider;

use super::GROUP;
use super::release::{Release, V1_11, V1_17, V2_1, V2_5};
use crate::exchange::{Party, Topic, exchange};
use crate::harness::volume::Volume;
use crate::harness::{Bench, Cell, CellResult, Unmet};

const LIMIT: Duration = Duration::from_secs(240);

/// The releases, the last one with the engine as its provider.
const SIDES: [(Release, fn() -> Provider); 5] = [
    (V1_11, Provider::efa),
    (V1_17, Provider::efa),
    (V2_1, Provider::efa),
    (V2_5, Provider::efa),
    (V1_17, engine),
];

fn engine() -> Provider {
    Provider {
        name: Provider::ENGINE.into(),
        directory: None,
    }
}

/// How many devices each host has.
const COUNT: &str = "4";
/// The name and the index of the device that the initiator opens, then of the target's.
const CHOSEN: [(&str, usize); 2] = [("rdmap28s27", 3), ("rdmap20s27", 1)];

/// What is played: messages of all subprotocols, and remote memory.
const TOPICS: [Topic; 2] = [Topic::Messages, Topic::Rma];

pub(super) fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (release, provider) in SIDES {
        for topic in TOPICS {
            let with = match provider().name.as_str() {
                Provider::ENGINE => " with efa_rs",
                _ => "",
            };
            let name = format!("{}{with}, two of {COUNT} devices: {topic}", release.name);
            let run = move |bench: &Bench| choose(bench, release, provider(), topic);
            let cell = Cell::new(GROUP, name, LIMIT, run);
            cells.push(cell.emulated_only("the names of the devices are those of emulated hosts"));
        }
    }
    cells
}

/// The exchange must succeed, and the initiator's host must have sent by the chosen device only, to the chosen one.
fn choose(bench: &Bench, release: Release, provider: Provider, topic: Topic) -> CellResult {
    let party = |name: &str| -> Result<Party, Unmet> {
        let mut party = release.party(bench, Profile::DEFAULT, provider.clone())?;
        party.opening.device = Some(name.into());
        party
            .host
            .options
            .extend(["--devices", COUNT].map(str::to_owned));
        Ok(party)
    };
    let [mut initiator, mut target] = [party(CHOSEN[0].0)?, party(CHOSEN[1].0)?];
    let captures = ["a", "b"].map(|name| bench.capture(name));
    initiator.host.capture = Some(captures[0].clone());
    target.host.capture = Some(captures[1].clone());
    let counts = exchange(bench, [&initiator, &target], topic, &Topic::SMALL)?;
    let mut sent = Vec::new();
    for (capture, (_, index)) in captures.iter().zip(CHOSEN) {
        let volumes = Volume::of_devices(capture)?;
        let used = volumes.iter().filter(|(_, volume)| volume.frames() > 0);
        let used: Vec<&String> = used.map(|(device, _)| device).collect();
        match used[..] {
            [device] if device.ends_with(&format!(":{index}")) => sent.push(device.clone()),
            _ => {
                return Err(Unmet::Failed(format!(
                    "{used:?} have sent, not only the device {index}: see {}",
                    capture.display()
                )));
            }
        }
    }
    for capture in &captures {
        std::fs::remove_file(capture).map_err(Unmet::failed)?;
    }
    Ok(format!("{counts}; only {} have sent", sent.join(" and ")))
}
