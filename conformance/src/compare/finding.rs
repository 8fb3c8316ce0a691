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
        let (breach, statement) = (rule.breach, rule.statement);
        Finding {
            rule: Some(rule),
            packet_type: kind.clone(),
            ..Finding::plain(
                severity,
                format!("{breach} ({statement}): {text} (packet {packet} of the run, {kind})"),
            )
        }
    }

    /// The id of the statement that it is about, such as `v4/3.2/cts-window`.
    pub fn statement(&self) -> Option<String> {
        if let Some(rule) = self.rule {
            return Some(rule.statement.to_owned());
        }
        Some(match self.source? {
            Source::Spec {
                section,
                table: Some(table),
            } => format!("v4/{section}/table-{table}"),
            Source::Spec {
                section,
                table: None,
            } => format!("v4/{section}"),
            Source::Stock { since } => format!("libfabric/{since}"),
        })
    }

    /// What findings of the same cause have in common: everything but numbers and values.
    pub fn cause(&self) -> String {
        if self.packet_type.is_empty() {
            let mut cause = String::new();
            for part in self.text.split(|c: char| c.is_ascii_digit()) {
                if !part.is_empty() {
                    cause.push_str(part);
                    cause.push('#');
                }
            }
            return cause.trim_end_matches('#').to_owned();
        }
        let mut cause = self.packet_type.clone();
        if let Some(rule) = self.rule {
            return format!("{cause}: {} ({})", rule.breach, rule.statement);
        }
        if !self.field.is_empty() {
            // Entries of an array have the same cause.
            let name = self.field.split('[').next().unwrap_or(&self.field);
            cause = format!("{cause}, field `{name}`");
        }
        match self.source {
            Some(source) => format!("{cause} ({source})"),
            None => cause,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(packet) = self.packet {
            write!(f, "packet {packet} ({})", self.packet_type)?;
            if !self.field.is_empty() {
                write!(f, ", field `{}`", self.field)?;
            }
            if let Some(source) = self.source {
                write!(f, " ({source})")?;
            }
            write!(f, ": ")?;
            return f.write_str(&self.text);
        }
        f.write_str(&self.text)?;
        if let Some(source) = self.source {
            write!(f, " ({source})")?;
        }
        Ok(())
    }
}
