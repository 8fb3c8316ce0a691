//! Findings of a comparison.

use std::fmt;

use efa_check::check;
use efa_core::rules::{Rule, Severity};
use efa_core::wire::fields::Source;
use serde::{Deserialize, Serialize};

use super::words;

/// A difference between a run and the recording, or a violation of the protocol.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// Notes are legal differences from the recording; warnings are violations of recommendations.
    #[serde(with = "words::severity")]
    pub severity: Severity,
    /// The violated rule; `None`: the finding is a difference from the recording or the scenario.
    #[serde(with = "words::rule")]
    pub rule: Option<&'static Rule>,
    /// The number of the packet in the trace.
    pub packet: Option<u64>,
    /// The type of the packet; empty if there is no packet.
    pub packet_type: String,
    /// The field; empty if there is no single field.
    pub field: String,
    /// The source of the definition of that field; `None` if there is no single field.
    #[serde(with = "words::source")]
    pub source: Option<Source>,
    /// What was expected and what was found.
    pub text: String,
}

impl Finding {
    /// A finding without a packet.
    pub fn plain(severity: Severity, text: impl Into<String>) -> Self {
        Finding {
            severity,
            rule: None,
            packet: None,
            packet_type: String::new(),
            field: String::new(),
            source: None,
            text: text.into(),
        }
    }

    /// A finding of the passive checker in the capture of a run.
    pub fn of_capture(found: &check::Finding) -> Self {
        let check::Finding {
            rule,
            severity,
            packet,
            ref kind,
            ref text,
            ..
        } = *found;
        Finding {
            severity,
            packet_type: kind.clone(),
            ..Finding::of(
                rule,
                format!("{}: {text}, in packet {packet} of the run", rule.breach),
            )
        }
    }

    /// A finding about a violation of `rule`.
    pub fn of(rule: &'static Rule, text: impl Into<String>) -> Self {
        Finding {
            rule: Some(rule),
            ..Finding::plain(rule.severity, text)
        }
    }

    /// The id of the violated statement, such as `v4/3.2/cts-window`.
    pub fn statement(&self) -> Option<&'static str> {
        self.rule.map(|rule| rule.statement)
    }

    fn write_source(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.source, self.statement()) {
            (None, None) => Ok(()),
            (Some(source), None) => write!(f, " ({source})"),
            (None, Some(statement)) => write!(f, " ({statement})"),
            (Some(source), Some(statement)) => write!(f, " ({source}; {statement})"),
        }
    }

    /// The common part of findings with the same cause: the text without numbers and values.
    pub fn cause(&self) -> String {
        if self.packet_type.is_empty() {
            let text = without_names(self.text.lines().next().unwrap_or_default());
            // The step at which it was noticed differs from case to case.
            let what = text.split(" until the end of ").next().unwrap_or_default();
            let cause = without_numbers(what);
            return match self.statement() {
                Some(statement) => format!("{cause} ({statement})"),
                None => cause,
            };
        }
        let mut cause = self.packet_type.clone();
        if !self.field.is_empty() {
            // Entries of an array have the same cause.
            let name = self.field.split('[').next().unwrap_or(&self.field);
            cause = format!("{cause}, field `{name}`");
        }
        match self.rule {
            Some(rule) => format!("{cause}: {} ({})", rule.breach, rule.statement),
            None => cause,
        }
    }
}

/// The text with each number, decimal or hexadecimal, replaced by `#`.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, number) = rest.split_at(start);
        let length = match number.strip_prefix("0x") {
            Some(digits) => {
                2 + digits
                    .find(|c: char| !c.is_ascii_hexdigit())
                    .unwrap_or(digits.len())
            }
            None => number
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(number.len()),
        };
        out.push_str(before);
        out.push('#');
        rest = &number[length..];
    }
    out + rest
}

/// The text without the names of endpoints, and without the operation at its start.
fn without_names(text: &str) -> String {
    const NAME: &str = "endpoint `";
    let operation = text
        .strip_prefix('`')
        .and_then(|rest| rest.split_once('`'))
        .map(|(_, rest)| format!("an operation{rest}"));
    let text = operation.as_deref().unwrap_or(text);
    let mut parts = text.split(NAME);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (_, rest) = part.split_once('`').unwrap_or(("", part));
        out.push_str("an endpoint");
        out.push_str(rest);
    }
    out
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(packet) = self.packet {
            write!(f, "packet {packet} ({})", self.packet_type)?;
            if !self.field.is_empty() {
                write!(f, ", field `{}`", self.field)?;
            }
            self.write_source(f)?;
            return write!(f, ": {}", self.text);
        }
        f.write_str(&self.text)?;
        self.write_source(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use efa_core::rules;

    #[test]
    fn one_cause_in_two_cases_is_the_same() {
        let pairs = [
            (
                "`question-arrives`: tag: expected 0x12b6, actual 0x1237",
                "`answer-arrives`: tag: expected 0x9, actual 0xfe00",
                "an operation: tag: expected #, actual # (ofi/outcome)",
            ),
            (
                "`one` did not complete until the end of step 4: b waits",
                "`two` did not complete until the end of step 12: all make progress",
                "an operation did not complete (ofi/outcome)",
            ),
            (
                "the process of endpoint `a` ended early (exit status: 3)",
                "the process of endpoint `under-test` ended early (exit status: 17)",
                "the process of an endpoint ended early (exit status: #) (ofi/outcome)",
            ),
        ];
        for (one, other, cause) in pairs {
            for text in [one, other] {
                assert_eq!(Finding::of(&rules::OUTCOME, text).cause(), cause);
            }
        }
        let other = Finding::of(&rules::OUTCOME, "`one` failed");
        assert_eq!(other.cause(), "an operation failed (ofi/outcome)");
    }
}
