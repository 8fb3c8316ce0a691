//! Playing a cell's scenario, and judging its traffic.

use std::collections::BTreeMap;
use std::path::PathBuf;

use efa_core::rules::Severity;
use efa_core::wire::{ExtraFeatures, Header};

use super::capture::{packets, sent_by};
use super::script::ENGINE;
use crate::harness::{Bench, CellResult, NotMeasured};
use efa_check::capture::Capture;
use efa_check::check::{self, Finding};
use efa_check::merge::merge;
use efa_play::process_runner::RunError;
use efa_play::record::{self, Stock};
use efa_play::scenario::Scenario;

/// The name of the capture of all hosts, and of the scenario beside it.
pub(super) const CELL: &str = "cell";

/// A scenario that was played, completely or not.
pub(super) struct Played {
    /// The traffic of all hosts.
    pub(super) capture: Capture,
    /// The reason why it was not played completely.
    pub(super) stopped: Option<String>,
    /// Differences between the applications' results and the scenario, and rules of the protocol
    /// that the traffic violates.
    pub(super) problems: Vec<String>,
}

/// Plays a scenario with the fault rules in `faults`. The file is stored next to the captures, so
/// that `efa-conformance record` can play it again.
pub(super) fn play_script(
    bench: &Bench,
    stock: &Stock,
    text: &str,
    faults: &str,
) -> Result<Played, NotMeasured> {
    let path = bench.directory().join(CELL).with_extension("toml");
    std::fs::write(&path, text).map_err(NotMeasured::failed)?;
    let scenario = Scenario::parse(&path, text).map_err(NotMeasured::failed)?;
    let directory = bench.directory();
    let file = directory.join("faults.toml");
    let mut rules = None;
    if !faults.is_empty() {
        std::fs::write(&file, faults).map_err(NotMeasured::failed)?;
        rules = Some(file.as_path());
    }
    let launcher = bench.launcher()?;
    let (stopped, mut problems) =
        match record::run(&scenario, launcher, stock, Some(directory), rules) {
            Ok((transcript, _)) => (None, transcript.problems),
            // The machine has another release than this cell needs.
            Err(error @ RunError::Version { .. }) => {
                return Err(NotMeasured::Skipped(error.to_string()));
            }
            Err(error) => (Some(error.to_string()), Vec::new()),
        };
    let hosts: Vec<PathBuf> = scenario
        .endpoints
        .iter()
        .map(|endpoint| bench.capture(&endpoint.name))
        .collect();
    let merged = bench.capture(CELL);
    let comments = std::slice::from_ref(&scenario.description);
    let loaded = merge(&hosts, comments, &[], &merged)
        .map_err(|error| error.to_string())
        .and_then(|_| Capture::load(&merged).map_err(|error| error.to_string()));
    let capture = loaded.map_err(|error| {
        // Without a capture, only the reason can be shown.
        NotMeasured::Failed(Vec::from_iter(stopped.clone().into_iter().chain([error])).join("\n"))
    })?;
    problems.extend(capture.damage.iter().cloned());
    let checked = check::check(&capture);
    // Warnings about stock software are known properties of its releases. The engine must cause no
    // warning.
    let counts = |finding: &&Finding| {
        finding.severity == Severity::Error || capture.interfaces[finding.interface] == ENGINE
    };
    let findings = checked.worse_than(Severity::Note).filter(counts);
    problems.extend(findings.map(ToString::to_string));
    Ok(Played {
        capture,
        stopped,
        problems,
    })
}

impl Played {
    /// The number of packets or device operations of each kind that a host sent.
    pub(super) fn sent_by(&self, host: &str) -> BTreeMap<String, usize> {
        sent_by(&self.capture, host)
    }

    /// The cell's result, with the differences in `tally`.
    pub(super) fn judge(self, tally: PacketTally) -> CellResult {
        let seen = tally.seen.join(", ");
        let problems = self.stopped.into_iter().chain(self.problems);
        let mut problems: Vec<String> = problems.chain(tally.missing).collect();
        if problems.is_empty() {
            return Ok(seen);
        }
        problems.push(format!("seen: {seen}"));
        Err(NotMeasured::Failed(problems.join("\n")))
    }
}

/// Compares the packets that a host sent with the required ones.
#[derive(Default)]
pub(super) struct PacketTally {
    pub(super) seen: Vec<String>,
    pub(super) missing: Vec<String>,
}

impl PacketTally {
    /// The host must have sent packets of these kinds.
    pub(super) fn require(&mut self, played: &Played, host: &str, kinds: &[impl AsRef<str>]) {
        let sent = played.sent_by(host);
        for kind in kinds.iter().map(AsRef::as_ref) {
            match sent.get(kind) {
                Some(count) => self.seen.push(format!("{count} {kind}")),
                None => self
                    .missing
                    .push(format!("{host} sent no {kind}, only {sent:?}")),
            }
        }
    }

    /// The host must not have sent packets of these kinds.
    pub(super) fn forbid(&mut self, played: &Played, host: &str, kinds: &[impl AsRef<str>]) {
        let sent = played.sent_by(host);
        for kind in kinds.iter().map(AsRef::as_ref) {
            if let Some(count) = sent.get(kind) {
                self.missing.push(format!("{host} sent {count} {kind}"));
            }
        }
    }

    /// A host's HANDSHAKE must announce that its device accepts writes with immediate data without
    /// a receive, or must not.
    pub(super) fn unsolicited(&mut self, played: &Played, host: &str, expected: bool) {
        let features = packets(&played.capture, host).find_map(|packet| match packet.header {
            Header::Handshake(handshake) => Some(handshake.extra_info.features()),
            _ => None,
        });
        let found =
            features.map(|features| features.contains(ExtraFeatures::UNSOLICITED_WRITE_RECV));
        if found != Some(expected) {
            self.missing.push(format!(
                "{host}: unsolicited write receive in its HANDSHAKE: expected {expected}, actual \
                 {found:?}"
            ));
        }
    }
}
