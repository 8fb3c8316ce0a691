//! Group `efa_rs`: the protocol engine as a provider that stock libfabric loads ([ofi.md](../../../docs/ofi.md)), in four
//! releases, and on the wire with the provider of the same four.

use std::time::Duration;

use efa_commands::installation::Installation;
use efa_device_model::profile::Profile;
use efa_play::libfabric::Provider;
use efa_play::scenario::Capability;

use super::corpus;
use super::engine::HEADERLESS;
use super::exchange::{Topic, exchange};
use super::harness::{Bench, Cell, CellResult, Lab, Unmet};
use super::libfabric::release::{Release, V1_11, V1_17, V2_1, V2_5};
use super::libfabric::tools::{self, Side};
use super::libfabric::{known, pairs};

/// The group, and the provider's name.
const NAME: &str = Provider::ENGINE;

const LIMIT: Duration = Duration::from_secs(240);
const CORPUS_LIMIT: Duration = Duration::from_secs(1200);

const RELEASES: [Release; 4] = [V1_11, V1_17, V2_1, V2_5];

/// The release that loads the provider where the peer is another release with its own.
const HOST: Release = V1_17;

pub(super) fn cells(_: &Lab) -> Result<Vec<Cell>, String> {
    let mut cells = Vec::new();
    for release in RELEASES {
        let of = |what: &str| format!("in {}: {what}", release.name);
        let info = move |bench: &Bench| tools::info(bench, release, NAME);
        cells.push(Cell::new(NAME, of("fi_info"), LIMIT, info));
        let sides = [Side::with(release, NAME); 2];
        cells.push(tools::pingpong_cell(NAME, of("fi_pingpong"), sides, "rdm"));
        let corpus = move |bench: &Bench| corpus::judge(bench, release, NAME);
        let corpus = Cell::new(NAME, of("corpus"), CORPUS_LIMIT, corpus);
        cells.push(corpus.emulated_only("the peers are scripted, which only emulated devices let"));
    }
    for release in RELEASES {
        let own = Side::of(release);
        let engine = Side::with(HOST, NAME);
        for (way, sides) in [("to", [engine, own]), ("from", [own, engine])] {
            let name = format!("{way} {}: fi_pingpong", release.name);
            cells.push(tools::pingpong_cell(NAME, name, sides, "rdm"));
        }
        for topic in Topic::ALL {
            for way in ["to", "from"] {
                let name = format!("{way} {}: {topic}", release.name);
                let meet = move |bench: &Bench| meet(bench, release, way == "to", topic);
                cells.push(Cell::new(NAME, name, LIMIT, meet));
            }
        }
    }
    for release in [V2_1, V2_5] {
        for (what, engines) in [
            ("in", [true, true]),
            ("to", [true, false]),
            ("from", [false, true]),
        ] {
            let name = format!("{what} {}: zero-copy", release.name);
            let meet = move |bench: &Bench| zero_copy(bench, release, engines);
            cells.push(Cell::new(NAME, name, LIMIT, meet));
        }
    }
    Ok(cells)
}

/// Lets applications exchange messages that both receive into their buffers, over the engine where `engines` says so and
/// over the release's own provider elsewhere. Both ways the messages must have no headers.
fn zero_copy(bench: &Bench, release: Release, engines: [bool; 2]) -> CellResult {
    let mtu = Profile::by_name(Profile::DEFAULT).map_or(0, |profile| profile.mtu as usize);
    // Stock libfabric leaves room for a header of 16 bytes in a packet without one.
    let sizes = [1, 64, 4096, mtu - 16];
    // The dynamic linker of a runner is not in this installation, so the program that it runs does not find the plug-in.
    let installation = Installation::of_this_program().map_err(Unmet::failed)?;
    let directory = installation.provider_directory(NAME);
    let party = |is_engine: bool| {
        let provider = match is_engine {
            true => Provider {
                name: NAME.into(),
                directory: directory.clone(),
            },
            false => Provider::efa(),
        };
        let mut party = release.party(bench, Profile::DEFAULT, provider)?;
        party.promise_packets(mtu);
        Ok::<_, Unmet>(party)
    };
    let [mut initiator, target] = [party(engines[0])?, party(engines[1])?];
    initiator.host.capture = Some(bench.capture("a"));
    let counts = exchange(bench, [&initiator, &target], Topic::ZeroCopy, &sizes)?;
    let traffic = bench.traffic("a")?;
    // Each size as a message and delivered, all but the longest with data, and the two short ones injected.
    let messages = 3 * sizes.len() + 1;
    let without_header = traffic.count(HEADERLESS);
    let with_header = traffic.count("EAGER_MSGRTM");
    match (without_header >= messages, with_header) {
        (true, 0) => {
            // Only captures of failed cells are kept. A host may have no recorder.
            let _ = std::fs::remove_file(bench.capture("a"));
            Ok(format!("{counts}; {traffic}"))
        }
        _ => Err(Unmet::Failed(format!(
            "{without_header} messages without header, of {messages}, and {with_header} with one: {traffic}"
        ))),
    }
}

/// Lets the engine exchange the topic with the release's own provider: as the initiator, or as the target.
fn meet(bench: &Bench, release: Release, initiates: bool, topic: Topic) -> CellResult {
    let plug_in = Provider {
        name: NAME.into(),
        directory: None,
    };
    let mut engine = HOST.party(bench, Profile::DEFAULT, plug_in)?;
    let wanted = &mut engine.opening.capabilities;
    wanted.retain(|one| *one != Capability::Atomic || topic == Topic::Atomics);
    let own = release.party(bench, Profile::DEFAULT, Provider::efa())?;
    let parties = match initiates {
        true => [engine, own],
        false => [own, engine],
    };
    let verified = pairs::verify(bench, parties, topic);
    let result = verified.map(|(counts, traffic)| format!("{counts}; {traffic}"));
    // What a release gets wrong as the target of another one, it gets wrong as the engine's.
    let fault = match initiates {
        true => known::fault(
            [HOST.version, release.version],
            [Profile::DEFAULT; 2],
            topic,
        ),
        false => None,
    };
    known::judge(bench, result, fault)
}
