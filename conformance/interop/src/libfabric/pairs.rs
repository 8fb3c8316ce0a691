//! Pairs of releases, each on its own emulated host.

use std::time::Duration;

use efa_device_model::profile::Profile;
use efa_play::libfabric::Provider;

use super::GROUP;
use super::known;
use super::release::{Release, V1_11, V1_11_RDMA, V1_17, V2_1, V2_1_SOLICITED, V2_5, V2_5_OPENMPI};
use crate::exchange::{Party, Topic, Verified, exchange};
use crate::harness::traffic::Traffic;
use crate::harness::{Bench, Cell, CellResult, Unmet};

const LIMIT: Duration = Duration::from_secs(240);

/// Releases that are paired with each other in both directions.
const RELEASES: [Release; 4] = [V1_11, V1_17, V2_1, V2_5];

/// Further pairs: another build of a release, and a release that is set to use RDMA.
const OTHERS: [(Release, Release); 13] = [
    (V2_5_OPENMPI, V1_11),
    (V2_5_OPENMPI, V1_17),
    (V2_5_OPENMPI, V2_1),
    (V1_11, V2_5_OPENMPI),
    (V1_17, V2_5_OPENMPI),
    (V2_1, V2_5_OPENMPI),
    (V2_5_OPENMPI, V2_5_OPENMPI),
    (V2_5_OPENMPI, V2_5),
    (V2_5, V2_5_OPENMPI),
    (V1_11_RDMA, V1_11_RDMA),
    (V1_11_RDMA, V1_17),
    (V1_17, V1_11_RDMA),
    (V1_11_RDMA, V2_5),
];

/// Generations of the device beside the default one.
const PROFILES: [&str; 3] = ["efa0", "efa1", "efa3"];

/// Devices of different generations: one with RDMA, one without.
const MIXED: [[&str; 2]; 2] = [["efa2", "efa0"], ["efa0", "efa2"]];

/// The topics that depend on the generation.
const ON_PROFILES: [Topic; 3] = [Topic::Messages, Topic::Rma, Topic::WriteData];

pub(super) fn cells() -> Vec<Cell> {
    let mut pairs: Vec<[Release; 2]> = Vec::new();
    for initiator in RELEASES {
        pairs.extend(RELEASES.map(|target| [initiator, target]));
    }
    pairs.extend(OTHERS.map(|(initiator, target)| [initiator, target]));
    let mut cells = Vec::new();
    for releases in pairs {
        cells.extend(Topic::ALL.map(|topic| cell(releases, [Profile::DEFAULT; 2], topic)));
    }
    for target in [V2_5, V2_5_OPENMPI] {
        let pair = [V2_1_SOLICITED, target];
        cells.push(cell(pair, [Profile::DEFAULT; 2], Topic::WriteData));
    }
    for release in RELEASES {
        let same = PROFILES.map(|profile| [profile; 2]);
        for profiles in same.into_iter().chain(MIXED) {
            cells.extend(ON_PROFILES.map(|topic| cell([release; 2], profiles, topic)));
        }
    }
    cells
}

fn cell(releases: [Release; 2], profiles: [&'static str; 2], topic: Topic) -> Cell {
    let side = |at: usize| match profiles[at] {
        Profile::DEFAULT if profiles[0] == profiles[1] => releases[at].name.to_owned(),
        profile => format!("{} {profile}", releases[at].name),
    };
    let name = format!("{} -> {}: {topic}", side(0), side(1));
    Cell::new(GROUP, name, LIMIT, move |bench| {
        let versions = releases.map(|release| release.version);
        let result = measure(bench, releases, profiles, topic);
        // This variant is set to avoid the fault.
        let fault = match releases[0].name == V2_1_SOLICITED.name {
            true => None,
            false => known::fault(versions, profiles, topic),
        };
        known::judge(bench, result, fault)
    })
}

fn measure(bench: &Bench, releases: [Release; 2], profiles: [&str; 2], topic: Topic) -> CellResult {
    let party = |at: usize| releases[at].party(bench, profiles[at], Provider::efa());
    let (counts, traffic) = verify(bench, [party(0)?, party(1)?], topic)?;
    let [from, to] = profiles;
    Ok(format!("{counts}; {from} to {to}; {traffic}"))
}

/// Lets the first party exchange the topic with the second. Small sizes are captured, large ones only counted.
pub(crate) fn verify(
    bench: &Bench,
    [mut initiator, target]: [Party; 2],
    topic: Topic,
) -> Result<(Verified, Traffic), Unmet> {
    let capture = bench.capture("a");
    initiator.host.capture = Some(capture.clone());
    let small = exchange(bench, [&initiator, &target], topic, &Topic::SMALL)?;
    let traffic = bench.traffic("a")?;
    initiator.host.capture = None;
    let large = match topic {
        Topic::Messages | Topic::Rma => {
            exchange(bench, [&initiator, &target], topic, &Topic::LARGE)?
        }
        // Larger sizes change nothing for these topics.
        _ => Verified::default(),
    };
    // The line shows that the cell works; only captures of failed cells are kept.
    match std::fs::remove_file(&capture) {
        // A host may have no recorder.
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Unmet::failed(error));
        }
        _ => {}
    }
    Ok((small + large, traffic))
}
