//! The result of a replay.

use efa_core::rules::Severity;

use super::exchange::ExchangedEvent;
use crate::compare::Finding;

/// Number of failures after which a replay ends.
const ENOUGH: usize = 20;

/// The result of a replay.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// Packets of the endpoint under test that were compared.
    pub compared: usize,
    /// Packets that the scripted peers sent.
    pub played: usize,
    /// The traffic, in the order of time, if packets were compared field by field.
    pub exchanged: Vec<ExchangedEvent>,
    /// All differences from the recording, legal or not.
    pub findings: Vec<Finding>,
    /// The feature that the endpoint under test or its device lacks, so that there is no result.
    pub unsupported: Option<String>,
    /// A description of an operation that the endpoint under test started by another subprotocol
    /// than the recorded one, so that the recorded answers do not fit.
    pub departed: Option<String>,
    /// Whether the endpoint under test was not even opened, so that nothing was sent.
    pub never_opened: bool,
    /// The devices' messages about failed requests, which may be in the recording too.
    pub device_errors: Vec<String>,
}

impl Verdict {
    /// There is no result, because a feature is missing.
    pub(super) fn without(feature: String) -> Self {
        Verdict {
            unsupported: Some(feature),
            ..Verdict::default()
        }
    }

    /// Nothing was played, because of an error.
    pub(super) fn of_error(error: impl std::fmt::Display) -> Self {
        Verdict {
            findings: vec![Finding::plain(Severity::Error, error.to_string())],
            ..Verdict::default()
        }
    }

    /// The violations of statements of at least this severity.
    pub fn failures(&self, from: Severity) -> impl Iterator<Item = &Finding> {
        let findings = self.findings.iter();
        findings.filter(move |finding| finding.severity >= from)
    }

    /// Whether the run conformed to the protocol and the scenario.
    pub fn passed(&self) -> bool {
        self.unsupported.is_none()
            && self.departed.is_none()
            && self.failures(Severity::Error).next().is_none()
    }

    /// The texts of all failures.
    pub fn texts(&self) -> Vec<String> {
        self.failures(Severity::Error)
            .map(ToString::to_string)
            .collect()
    }

    /// Whether there are enough failures to end the replay.
    pub fn is_enough(&self) -> bool {
        self.failures(Severity::Error).count() >= ENOUGH
    }

    /// Adds findings without duplicates.
    pub fn add(&mut self, findings: impl IntoIterator<Item = Finding>) {
        for finding in findings {
            // The same choice of the sender shows in every packet.
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
