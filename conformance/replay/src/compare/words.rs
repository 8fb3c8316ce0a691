//! Serialization of the constants in findings, for other processes.

/// The severity, by its name.
pub mod severity {
    use efa_core::rules::Severity;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes the name.
    ///
    /// # Errors
    /// If the serializer fails.
    pub fn serialize<S: Serializer>(severity: &Severity, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(severity.name())
    }

    /// Reads the name.
    ///
    /// # Errors
    /// If there is no such severity.
    pub fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Severity, D::Error> {
        let name = String::deserialize(deserializer)?;
        let found = Severity::ALL.into_iter().find(|known| known.name() == name);
        found.ok_or_else(|| D::Error::custom(format!("unknown severity `{name}`")))
    }
}

/// The rule, by its id.
pub(crate) mod rule {
    use efa_core::rules::Rule;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        rule: &Option<&'static Rule>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        rule.map(|rule| rule.id).serialize(serializer)
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(
        deserializer: D,
    ) -> Result<Option<&'static Rule>, D::Error> {
        let Some(id) = Option::<String>::deserialize(deserializer)? else {
            return Ok(None);
        };
        let found = Rule::find(&id);
        found.map_or_else(
            || Err(D::Error::custom(format!("unknown rule `{id}`"))),
            |rule| Ok(Some(rule)),
        )
    }
}

/// The source of a requirement.
pub(crate) mod source {
    use std::collections::BTreeSet;
    use std::sync::{Mutex, PoisonError};

    use efa_core::wire::fields::Source;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    enum Words {
        Spec(String, Option<String>),
        Stock(String),
        Development(String),
    }

    pub(crate) fn serialize<S: Serializer>(
        source: &Option<Source>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let words = source.map(|source| match source {
            Source::Spec { section, table } => {
                Words::Spec(section.to_owned(), table.map(str::to_owned))
            }
            Source::Stock { since } => Words::Stock(since.to_owned()),
            Source::Development { state } => Words::Development(state.to_owned()),
        });
        words.serialize(serializer)
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(
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
            Words::Development(state) => Source::Development {
                state: constant(state),
            },
        }))
    }

    /// Interns the text, because sources are constants. Their number is bounded by the sections,
    /// tables and releases of the protocol.
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
