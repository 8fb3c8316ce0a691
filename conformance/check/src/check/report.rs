//! The result of checking a capture.

use std::collections::BTreeMap;
use std::fmt;

use efa_wire::rules::{self, Evidence, Rule, Severity};

/// A violation of a rule in a capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The rule.
    pub rule: &'static Rule,
    /// The rule's severity, or a note if the capture does not prove the violation.
    pub severity: Severity,
    /// The number of the packet in the capture at which the violation was found.
    pub packet: u64,
    /// The packet's type.
    pub kind: String,
    /// The interface of the host whose endpoint violated the rule.
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
pub struct CheckResult {
    /// RDM packets that were checked, each counted once.
    pub packets: u64,
    /// Pairs of endpoints that used the RDM protocol v4.
    pub conversations: u64,
    /// Sends that are not RDM packets.
    pub foreign: u64,
    /// Packets of reliable connections between hosts that send messages with tags.
    pub tagged: u64,
    /// Findings in the order of the capture, so that a cause precedes its consequences: missing
    /// packets at the end are the last findings, with any packet number. Only the first
    /// [`CheckResult::MOST_FINDINGS`].
    pub findings: Vec<Finding>,
    /// The number of findings of each severity, including dropped ones.
    pub counts: BTreeMap<Severity, u64>,
    /// The number of findings that were dropped because frames are missing from the capture.
    pub unproven: u64,
    /// The packets that could not be checked.
    pub not_judged: NotJudged,
}

/// The rules that need the order in which an end sent and received packets. Frames without a
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

/// The packets that `check` could not check, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NotJudged {
    /// Packets whose header was truncated by a snap length.
    pub cut_headers: u64,
    /// Packets whose data was truncated by a snap length, so that it was not compared.
    pub cut_data: u64,
    /// Ends of conversations with missing frames or truncated headers: rules that need the history
    /// were not applied.
    pub without_direction: u64,
    /// Conversations whose frames have no directions: the rules in [`NEED_ORDER`] were not applied,
    /// or only produce notes.
    pub without_order: u64,
    /// Ends of conversations that had begun before the capture, as far as known: rules that need
    /// their beginning were not applied.
    pub without_beginning: u64,
    /// Packets of reliable connections between hosts that are not known to send messages with tags.
    pub untagged: u64,
}

impl NotJudged {
    /// Whether the whole capture could be checked.
    pub fn is_nothing(&self) -> bool {
        *self == NotJudged::default()
    }
}

impl CheckResult {
    /// The maximum number of stored findings.
    pub const MOST_FINDINGS: usize = 1000;

    /// The number of findings of at least this severity.
    pub fn at_least(&self, severity: Severity) -> u64 {
        self.counts.range(severity..).map(|(_, count)| count).sum()
    }

    /// The findings of higher severity.
    pub fn worse_than(&self, severity: Severity) -> impl Iterator<Item = &Finding> {
        let findings = self.findings.iter();
        findings.filter(move |finding| finding.severity > severity)
    }

    /// Whether nothing in the capture could be checked.
    pub fn is_empty(&self) -> bool {
        self.packets == 0 && self.tagged == 0
    }
}

/// The time of findings about missing packets at the end of the capture.
pub(super) const AT_THE_END: u64 = u64::MAX;

/// A finding, and the number of frames of the capture until it.
#[derive(Debug)]
pub(super) struct LocatedFinding {
    pub(super) finding: Finding,
    pub(super) at: u64,
}

/// Findings. Only the most severe ones are kept.
#[derive(Debug, Default)]
pub(super) struct Findings {
    kept: Vec<LocatedFinding>,
    counts: BTreeMap<(Severity, Evidence, usize), u64>,
}

impl Findings {
    pub(super) fn add(&mut self, found: LocatedFinding) {
        self.count(&found.finding, 1);
        self.keep(found);
    }

    fn count(&mut self, found: &Finding, count: u64) {
        let key = (found.severity, found.rule.evidence, found.interface);
        *self.counts.entry(key).or_default() += count;
    }

    /// More severe findings replace less severe ones: a thousand notes must not hide an error.
    fn keep(&mut self, found: LocatedFinding) {
        if self.kept.len() >= CheckResult::MOST_FINDINGS {
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

    /// Splits off the findings at the frame `at`, which is the latest one.
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

    /// Drops the findings whose evidence is not in the capture, by `is_proven`. Returns their
    /// number.
    pub(super) fn retain(&mut self, is_proven: impl Fn(Evidence, usize) -> bool) -> u64 {
        let mut dropped = 0;
        self.counts.retain(|&(_, evidence, interface), count| {
            let is_proven = is_proven(evidence, interface);
            dropped += if is_proven { 0 } else { *count };
            is_proven
        });
        self.kept.retain(|LocatedFinding { finding, .. }| {
            is_proven(finding.rule.evidence, finding.interface)
        });
        dropped
    }

    /// Adds the findings of another.
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
    pub(super) checked: CheckResult,
}

impl Report {
    pub(super) fn finish(mut self) -> CheckResult {
        for ((severity, ..), count) in self.findings.counts {
            *self.checked.counts.entry(severity).or_default() += count;
        }
        let mut found = self.findings.kept;
        // Many findings at the end of the capture have the same time.
        found.sort_by_key(|found| {
            let is_at_the_end = found.at == AT_THE_END;
            (found.at, is_at_the_end.then_some(found.finding.packet))
        });
        self.checked.findings = found.into_iter().map(|found| found.finding).collect();
        self.checked
    }
}
