//! A table of a scenario file, whose keys are read one by one into typed values.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;
use toml::Spanned;

use super::error::{Result, ScenarioError, Source, resembles, suggest};

/// A parsed table. The values are those of JSON, because TOML's are limited to 2^63.
pub(super) type RawTable = Spanned<BTreeMap<Spanned<String>, Value>>;

/// The keys of a table. Keys that were read are known; the others are unknown, and reported at the
/// end.
pub(super) struct Keys<'a> {
    pub(super) source: &'a Source<'a>,
    /// The line on which the table begins.
    pub(super) line: usize,
    /// The name of the table in messages.
    table: String,
    lines: BTreeMap<String, usize>,
    values: BTreeMap<String, Value>,
    asked: Vec<&'static str>,
}

impl<'a> Keys<'a> {
    pub(super) fn new(source: &'a Source<'a>, table: &str, raw: RawTable) -> Self {
        let line = source.line(raw.span().start);
        let (mut lines, mut values) = (BTreeMap::new(), BTreeMap::new());
        for (key, value) in raw.into_inner() {
            lines.insert(key.as_ref().clone(), source.line(key.span().start));
            values.insert(key.into_inner(), value);
        }
        Keys {
            source,
            line,
            table: table.to_owned(),
            lines,
            values,
            asked: Vec::new(),
        }
    }

    /// The keys of a step, and the value of `do`, after which messages call the table.
    pub(super) fn step<N: DeserializeOwned>(
        source: &'a Source<'a>,
        raw: RawTable,
    ) -> Result<(N, Self)> {
        let mut keys = Keys::new(source, "the step", raw);
        let given = keys.values.get("do").and_then(Value::as_str);
        let table = format!("`{}`", given.unwrap_or_default());
        let name = keys.need("do")?;
        keys.asked.clear();
        Ok((name, Keys { table, ..keys }))
    }

    /// An error about a key, on its line if it is present.
    pub(super) fn error(
        &self,
        key: &str,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> ScenarioError {
        self.source.error(self.line_of(key), key, problem, remedy)
    }

    /// The line of a key, or of the table if the key is missing.
    pub(super) fn line_of(&self, key: &str) -> usize {
        *self.lines.get(key).unwrap_or(&self.line)
    }

    pub(super) fn optional<T: DeserializeOwned>(&mut self, key: &'static str) -> Result<Option<T>> {
        self.asked.push(key);
        let Some(value) = self.values.remove(key) else {
            return Ok(None);
        };
        let read = serde_path_to_error::deserialize(value);
        read.map(Some)
            .map_err(|error| self.explain(key, error.path(), error.inner()))
    }

    pub(super) fn need<T: DeserializeOwned>(&mut self, key: &'static str) -> Result<T> {
        let value = self.optional(key)?;
        value.ok_or_else(|| self.missing(key))
    }

    /// All remaining keys, of a table that is read as a structure.
    pub(super) fn rest<T: DeserializeOwned>(&mut self) -> Result<T> {
        let rest = std::mem::take(&mut self.values);
        self.read_whole(Value::Object(rest.into_iter().collect()))
    }

    /// All keys of a step that is read as a variant, which `do` names.
    pub(super) fn variant<T: DeserializeOwned>(&mut self) -> Result<T> {
        let name: String = self.need("do")?;
        self.table = format!("`{name}`");
        let rest = std::mem::take(&mut self.values);
        self.read_whole(Value::Object(
            [(name, Value::Object(rest.into_iter().collect()))]
                .into_iter()
                .collect(),
        ))
    }

    fn read_whole<T: DeserializeOwned>(&self, value: Value) -> Result<T> {
        serde_path_to_error::deserialize(value)
            .map_err(|error| self.explain("", error.path(), error.inner()))
    }

    /// The error for a missing key, which may be misspelt.
    fn missing(&self, key: &str) -> ScenarioError {
        match self.values.keys().find(|given| resembles(given, key)) {
            Some(given) => self.unknown(given, &[key]),
            None => self.error(
                key,
                format!("{} needs this key", self.table),
                format!("add `{key} = ...`"),
            ),
        }
    }

    fn unknown(&self, key: &str, known: &[&str]) -> ScenarioError {
        self.error(key, "unknown key", suggest(key, known.iter().copied()))
    }

    /// The error for a key that the table does not have, or of which it has a misspelt one.
    fn surplus(&self, key: &str, known: &[&str]) -> ScenarioError {
        if known.iter().any(|known| resembles(key, known)) {
            return self.unknown(key, known);
        }
        let takes: Vec<String> = known.iter().map(|key| format!("`{key}`")).collect();
        self.error(
            key,
            format!("{} does not take this key", self.table),
            format!("it takes {}", takes.join(", ")),
        )
    }

    /// Refuses unknown keys.
    pub(super) fn finish(self) -> Result<()> {
        let first = self.values.keys().min_by_key(|key| self.lines[*key]);
        match first {
            Some(key) => Err(self.surplus(key, &self.asked)),
            None => Ok(()),
        }
    }

    /// Explains why a value was not read. `path` is the position in the value of `key`.
    fn explain(
        &self,
        key: &str,
        path: &serde_path_to_error::Path,
        error: &serde_json::Error,
    ) -> ScenarioError {
        let mut keys: Vec<&str> = vec![key];
        keys.extend(path.iter().filter_map(|segment| match segment {
            Segment::Map { key } => Some(key.as_str()),
            _ => None,
        }));
        keys.retain(|key| !key.is_empty());
        let text = error.to_string();
        let quoted: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
        match (keys.as_slice(), quoted.as_slice()) {
            ([], [field]) if text.starts_with("missing field") => return self.missing(field),
            ([key], [field, known @ ..]) if text.starts_with("unknown field") && key == field => {
                return self.surplus(field, known);
            }
            _ => {}
        }
        // Without a place it is the name of a variant.
        let outer = keys.first().copied().unwrap_or("do");
        let inner = keys.last().copied().unwrap_or("do");
        self.source.explain(self.line_of(outer), inner, &text)
    }
}
