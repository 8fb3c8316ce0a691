//! Findings of a comparison.

use std::fmt;

use efa_core::rules::{Rule, Severity};
use efa_core::wire::fields::Source;
use serde::{Deserialize, Serialize};

use super::words;
use crate::check;

/// A difference between what happened and what was recorded, or what the protocol says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// Notes are legal differences from the recording; warnings are about what an implementation should do
    /// but need not.
    #[serde(with = "words::severity")]
    pub severity: Severity,
    /// The rule that it breaks.
    #[serde(with = "words::rule")]
    pub rule: Option<&'static Rule>,
    /// The number in the trace of the packet that it is about.
    pub packet: Option<u64>,
    /// The type of the packet that it is about; empty if it is about none.
    pub packet_type: String,
    /// The field; empty if it is about no single field.
    pub field: String,
    /// Where the protocol says so.
    #[serde(with = "words::source")]
    pub source: Option<Source>,
    /// What was found.
    pub text: String,
}

impl Finding {
    /// A finding about no particular packet.
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

    /// What the passive judge found in the capture of a run.
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

    /// A finding about a breach of `rule`.
    pub fn of(rule: &'static Rule, text: impl Into<String>) -> Self {
        Finding {
            rule: Some(rule),
            ..Finding::plain(rule.severity, text)
        }
    }

    /// The id of the statement that it is about, such as `v4/3.2/cts-window`.
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

    /// What findings of the same cause have in common: everything but numbers and values.
    pub fn cause(&self) -> String {
        if self.packet_type.is_empty() {
            let mut cause = String::new();
            let text = without_names(self.text.lines().next().unwrap_or_default());
            for part in text.split(|c: char| c.is_ascii_digit()) {
                if !part.is_empty() {
                    cause.push_str(part);
                    cause.push('#');
                }
            }
            return cause.trim_end_matches('#').to_owned();
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

/// A text without the names of endpoints.
fn without_names(text: &str) -> String {
    const NAME: &str = "endpoint `";
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
