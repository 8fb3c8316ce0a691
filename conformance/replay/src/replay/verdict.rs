//! What comes of a replay.

use efa_core::rules::Severity;

use super::exchange::Exchanged;
use crate::compare::Finding;

/// After so many failures a replay tells nothing new.
const ENOUGH: usize = 20;

/// What came of a replay.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// Packets of the endpoint under test that were compared.
    pub compared: usize,
    /// Packets that the scripted peers sent.
    pub played: usize,
    /// What passed, in the order of time, if packets were compared field by field.
    pub exchanged: Vec<Exchanged>,
    /// Everything that went otherwise than recorded, legal or not.
    pub findings: Vec<Finding>,
    /// What the endpoint under test or its device lacks, so that nothing can be said.
    pub unsupported: Option<String>,
    /// The endpoint under test started an operation by another subprotocol than the recorded one,
    /// so that the recorded answers are of no use.
    pub departed: Option<String>,
    /// Whether the endpoint under test was not even opened, so that nothing was sent.
    pub never_opened: bool,
    /// What the endpoints' devices said of requests that failed, which a recording may have
    /// foreseen.
    pub device_errors: Vec<String>,
}

impl Verdict {
    /// What breaks a statement of at least this weight.
    pub fn failures(&self, from: Severity) -> impl Iterator<Item = &Finding> {
        let findings = self.findings.iter();
        findings.filter(move |finding| finding.severity >= from)
    }

    /// Whether everything went as the protocol and the scenario say.
    pub fn passed(&self) -> bool {
        self.unsupported.is_none()
            && self.departed.is_none()
            && self.failures(Severity::Error).next().is_none()
    }

    /// All failures, one text each.
    pub fn texts(&self) -> Vec<String> {
        self.failures(Severity::Error)
            .map(ToString::to_string)
            .collect()
    }

    /// Whether going on would tell nothing new.
    pub fn is_enough(&self) -> bool {
        self.failures(Severity::Error).count() >= ENOUGH
    }

    /// Adds findings, each once.
    pub fn add(&mut self, findings: impl IntoIterator<Item = Finding>) {
        for finding in findings {
            // Every packet says the same of the sender's choices.
            let is_known = finding.severity < Severity::Error
                && self
                    .findings
                    .iter()
                    .any(|known| known.cause() == finding.cause());
            if !is_known {
                self.findings.push(finding);
            }
        }
    }
}
