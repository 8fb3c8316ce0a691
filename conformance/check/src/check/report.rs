//! The result of judging a capture.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use efa_wire::rules::{Evidence, Rule, Severity};

/// A rule that a capture breaks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The rule.
    pub rule: &'static Rule,
    /// The rule's severity, or a note if the capture does not prove the breach.
    pub severity: Severity,
    /// The number in the capture of the packet at which the breach is found.
    pub packet: u64,
    /// The packet's type.
    pub kind: String,
    /// The interface of the host whose endpoint broke the rule.
    pub interface: usize,
    /// The mistake in this packet.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rule {
            id,
            statement,
            breach,
            ..
        } = self.rule;
        write!(
            f,
            "{}: packet {} ({}): {id}: {}. {breach} ({statement})",
            self.severity, self.packet, self.kind, self.text
        )
    }
}

/// The result of checking a capture.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// RDM packets that were judged, each counted once.
    pub packets: u64,
    /// Pairs of endpoints that spoke the RDM protocol v4.
    pub conversations: u64,
    /// Sends that are no RDM packets.
    pub foreign: u64,
    /// Findings in the order of the capture; the first [`Checked::MOST_FINDINGS`].
    pub findings: Vec<Finding>,
    /// How many findings there are of each severity, those left out included.
    pub counts: BTreeMap<Severity, u64>,
    /// How many findings were dropped because frames are missing from the capture.
    pub unproven: u64,
}

impl Checked {
    /// No more findings than this are kept.
    pub const MOST_FINDINGS: usize = 1000;

    /// How many findings are at least this severe.
    pub fn at_least(&self, severity: Severity) -> u64 {
        self.counts.range(severity..).map(|(_, count)| count).sum()
    }

    /// The findings that are more severe.
    pub fn worse_than(&self, severity: Severity) -> impl Iterator<Item = &Finding> {
        let findings = self.findings.iter();
        findings.filter(move |finding| finding.severity > severity)
    }

    /// Whether nothing in the capture could be judged.
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }
}

/// The findings so far.
#[derive(Debug, Default)]
pub(super) struct Report {
    found: Vec<Finding>,
    counts: BTreeMap<(Severity, bool, usize), u64>,
    pub(super) packets: u64,
    pub(super) conversations: u64,
    pub(super) foreign: u64,
}

impl Report {
    pub(super) fn add(&mut self, found: Finding) {
        let needs_history = found.rule.evidence == Evidence::History;
        let key = (found.severity, needs_history, found.interface);
        *self.counts.entry(key).or_default() += 1;
        // What is worse displaces what is not: a thousand notes must not hide an error.
        if self.found.len() >= Checked::MOST_FINDINGS {
            let milder = self
                .found
                .iter()
                .rposition(|other| other.severity < found.severity);
            match milder {
                Some(at) => drop(self.found.remove(at)),
                None => return,
            }
        }
        self.found.push(found);
    }

    /// The result. `lossy`: the interfaces that lack frames.
    pub(super) fn finish(self, lossy: &BTreeSet<usize>) -> Checked {
        let is_proven =
            |needs_history: bool, interface: usize| !needs_history || !lossy.contains(&interface);
        let mut checked = Checked {
            packets: self.packets,
            conversations: self.conversations,
            foreign: self.foreign,
            ..Checked::default()
        };
        for ((severity, needs_history, interface), count) in self.counts {
            if is_proven(needs_history, interface) {
                *checked.counts.entry(severity).or_default() += count;
            } else {
                checked.unproven += count;
            }
        }
        checked.findings = self
            .found
            .into_iter()
            .filter(|found| {
                let needs_history = found.rule.evidence == Evidence::History;
                is_proven(needs_history, found.interface)
            })
            .collect();
        checked.findings.sort_by_key(|finding| finding.packet);
        checked
    }
}
