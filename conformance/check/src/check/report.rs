//! The result of judging a capture.

use std::collections::BTreeMap;
use std::fmt;

use efa_wire::rules::{self, Evidence, Rule, Severity};

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
    /// Packets of reliable connections between hosts whose messages have tags.
    pub tagged: u64,
    /// Findings in the order in which the capture shows them, so that a cause comes before its
    /// consequences: what is missing at the end comes last, whatever packet it is about. The first
    /// [`Checked::MOST_FINDINGS`].
    pub findings: Vec<Finding>,
    /// How many findings there are of each severity, those left out included.
    pub counts: BTreeMap<Severity, u64>,
    /// How many findings were dropped because frames are missing from the capture.
    pub unproven: u64,
    /// What could not be judged.
    pub not_judged: NotJudged,
}

/// The rules that need the order in which an end sent its packets and got others. Frames without a
/// direction do not show it.
pub const NEED_ORDER: [&Rule; 7] = [
    &rules::ANSWER_MISSING,
    &rules::EOR_EARLY,
    &rules::HANDSHAKE_ANSWER,
    &rules::MESSAGE_WHOLE,
    &rules::MSG_ID_FIRST,
    &rules::MSG_ID_GAP,
    &rules::MSG_ID_REFUSED,
];

/// What a capture did not let `check` judge, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NotJudged {
    /// Packets of whose header a snap length cut something off.
    pub cut_headers: u64,
    /// Packets of whose data a snap length cut something off: what is in it was not compared.
    pub cut_data: u64,
    /// Ends of conversations that lack frames which the end sent or received, or a part of their
    /// headers: no rule was applied that needs the history.
    pub without_direction: u64,
    /// Conversations whose frames have no directions: what [`NEED_ORDER`] names was not applied, or
    /// finds notes at most.
    pub without_order: u64,
    /// Ends of conversations that had begun before the capture, as far as can be known: no rule was
    /// applied that needs their beginning.
    pub without_beginning: u64,
    /// Packets of reliable connections between hosts whose messages are not known to have tags.
    pub untagged: u64,
}

impl NotJudged {
    /// Whether all could be judged.
    pub fn is_nothing(&self) -> bool {
        *self == NotJudged::default()
    }
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
        self.packets == 0 && self.tagged == 0
    }
}

/// When what is missing at the end of the capture is found.
pub(super) const AT_THE_END: u64 = u64::MAX;

/// A finding, and how many frames of the capture had come when it was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) finding: Finding,
    pub(super) at: u64,
}

/// Findings, the worst of which are kept.
#[derive(Debug, Default)]
pub(super) struct Findings {
    kept: Vec<Found>,
    counts: BTreeMap<(Severity, Evidence, usize), u64>,
}

impl Findings {
    pub(super) fn add(&mut self, found: Found) {
        self.count(&found.finding, 1);
        self.keep(found);
    }

    fn count(&mut self, found: &Finding, count: u64) {
        let key = (found.severity, found.rule.evidence, found.interface);
        *self.counts.entry(key).or_default() += count;
    }

    /// What is worse displaces what is not: a thousand notes must not hide an error.
    fn keep(&mut self, found: Found) {
        if self.kept.len() >= Checked::MOST_FINDINGS {
            let milder = self
                .kept
                .iter()
                .rposition(|other| other.finding.severity < found.finding.severity);
            match milder {
                Some(at) => drop(self.kept.remove(at)),
                None => return,
            }
        }
        self.kept.push(found);
    }

    /// Splits those off that are found at a frame, which is the latest one.
    pub(super) fn split_off(&mut self, at: u64) -> Findings {
        let mut of_frame = Findings::default();
        let first = self.kept.partition_point(|found| found.at < at);
        for found in self.kept.split_off(first) {
            let Finding {
                severity,
                rule,
                interface,
                ..
            } = found.finding;
            if let Some(count) = self.counts.get_mut(&(severity, rule.evidence, interface)) {
                *count -= 1;
            }
            of_frame.add(found);
        }
        of_frame
    }

    /// Leaves out those whose evidence the capture does not have, as it has for `is_proven`. Returns
    /// how many these are.
    pub(super) fn retain(&mut self, is_proven: impl Fn(Evidence, usize) -> bool) -> u64 {
        let mut dropped = 0;
        self.counts.retain(|&(_, evidence, interface), count| {
            let is_proven = is_proven(evidence, interface);
            dropped += if is_proven { 0 } else { *count };
            is_proven
        });
        self.kept
            .retain(|Found { finding, .. }| is_proven(finding.rule.evidence, finding.interface));
        dropped
    }

    /// Takes over the findings of another.
    pub(super) fn append(&mut self, other: Findings) {
        for (key, count) in other.counts {
            *self.counts.entry(key).or_default() += count;
        }
        for found in other.kept {
            self.keep(found);
        }
    }
}

/// The result so far.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) findings: Findings,
    pub(super) checked: Checked,
}

impl Report {
    pub(super) fn finish(mut self) -> Checked {
        for ((severity, ..), count) in self.findings.counts {
            *self.checked.counts.entry(severity).or_default() += count;
        }
        let mut found = self.findings.kept;
        // At the end of the capture many are found at once.
        found.sort_by_key(|found| {
            let is_at_the_end = found.at == AT_THE_END;
            (found.at, is_at_the_end.then_some(found.finding.packet))
        });
        self.checked.findings = found.into_iter().map(|found| found.finding).collect();
        self.checked
    }
}
