//! What a comparison has to say.

use std::fmt;

use efa_core::wire::fields::Source;
use serde::{Deserialize, Serialize};

/// How much a finding weighs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Severity {
    /// A legal difference from the recording.
    Remark,
    /// A statement of the protocol that an implementation should follow but need not.
    Should,
    /// A statement that every implementation must follow.
    Must,
}

/// A difference between what happened and what was recorded, or what the protocol says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// How much it weighs.
    pub severity: Severity,
    /// The number in the trace of the packet that it is about.
    pub packet: Option<u64>,
    /// The type of the packet that it is about; empty if it is about none.
    pub packet_type: String,
    /// The field; empty if it is about no single field.
    pub field: String,
    /// The statement of the protocol.
    #[serde(with = "source")]
    pub source: Option<Source>,
    /// What was found.
    pub text: String,
}

impl Finding {
    /// A finding about no particular packet.
    pub fn plain(severity: Severity, text: impl Into<String>) -> Self {
        Finding {
            severity,
            packet: None,
            packet_type: String::new(),
            field: String::new(),
            source: None,
            text: text.into(),
        }
    }

    /// The id of the statement that it is about, such as `v4/3.2/table-3.6`.
    pub fn statement(&self) -> Option<String> {
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

/// [`Source`] from one process to another.
mod source {
    use std::collections::BTreeSet;
    use std::sync::{Mutex, PoisonError};

    use efa_core::wire::fields::Source;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    enum Words {
        Spec(String, Option<String>),
        Stock(String),
    }

    pub(super) fn serialize<S: Serializer>(
        source: &Option<Source>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let words = source.map(|source| match source {
            Source::Spec { section, table } => {
                Words::Spec(section.to_owned(), table.map(str::to_owned))
            }
            Source::Stock { since } => Words::Stock(since.to_owned()),
        });
        words.serialize(serializer)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(
        deserializer: D,
    ) -> Result<Option<Source>, D::Error> {
        let words = Option::<Words>::deserialize(deserializer)?;
        Ok(words.map(|words| match words {
            Words::Spec(section, table) => Source::Spec {
                section: constant(section),
                table: table.map(constant),
            },
            Words::Stock(since) => Source::Stock {
                since: constant(since),
            },
        }))
    }

    /// The text as the constant that it is in the other process. Each different text is kept once;
    /// there are as many as the protocol has sections, tables and releases.
    fn constant(text: String) -> &'static str {
        static KNOWN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = known.get(text.as_str()) {
            return text;
        }
        let text = text.leak();
        known.insert(text);
        text
    }
}
