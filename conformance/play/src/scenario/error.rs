//! Errors in scenarios: place, problem and remedy.

use std::ops::Range;
use std::path::{Path, PathBuf};

/// The reason why a scenario cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("cannot read the scenario {file}: {source}")]
    Unreadable {
        /// The path of the scenario.
        file: PathBuf,
        /// The reason of the system.
        source: std::io::Error,
    },
    /// A key of the file is not valid.
    #[error("{file}:{line}: {key}: {problem}; {remedy}")]
    Invalid {
        /// The path of the scenario.
        file: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// The key, as written.
        key: String,
        /// What is wrong with the key.
        problem: String,
        /// What the author can write instead.
        remedy: String,
    },
}

impl ScenarioError {
    pub(crate) fn invalid(
        file: &Path,
        line: usize,
        key: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        ScenarioError::Invalid {
            file: file.to_owned(),
            line,
            key: key.into(),
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }
}

pub(super) type Result<T> = std::result::Result<T, ScenarioError>;

/// The text of a file.
pub(super) fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).map_err(|source| ScenarioError::Unreadable {
        file: file.to_owned(),
        source,
    })
}

/// Finds lines and makes errors for one file.
pub(super) struct Source<'a> {
    path: &'a Path,
    text: &'a str,
    /// Byte offsets of all newlines, ascending. Each key of a scenario needs its line number.
    newlines: Vec<usize>,
}

impl<'a> Source<'a> {
    pub(super) fn new(path: &'a Path, text: &'a str) -> Self {
        let newlines = text.match_indices('\n').map(|(offset, _)| offset);
        Source {
            path,
            text,
            newlines: newlines.collect(),
        }
    }

    /// The line of a byte offset, counted from 1.
    pub(super) fn line(&self, offset: usize) -> usize {
        1 + self.newlines.partition_point(|&newline| newline < offset)
    }

    pub(super) fn error(
        &self,
        line: usize,
        key: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> ScenarioError {
        ScenarioError::invalid(self.path, line, key, problem, remedy)
    }

    pub(super) fn toml(&self, error: &toml::de::Error) -> ScenarioError {
        let span = error.span().unwrap_or(0..0);
        self.explain(self.line(span.start), &self.key_at(&span), error.message())
    }

    pub(super) fn explain(&self, line: usize, key: &str, message: &str) -> ScenarioError {
        let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
        let (problem, remedy) = match *quoted.as_slice() {
            [field, ref known @ ..] if message.starts_with("unknown field") => {
                let remedy = suggest(field, known.iter().copied());
                return self.error(line, field, "unknown key", remedy);
            }
            [field, ..] if message.starts_with("missing field") => {
                let remedy = format!("add `{field} = ...`");
                return self.error(line, field, "this key is missing", remedy);
            }
            [name, ref known @ ..] if message.starts_with("unknown variant") && key == "do" => (
                format!("unknown step `{name}`"),
                suggest(name, known.iter().copied()),
            ),
            [name, ref known @ ..] if message.starts_with("unknown ") => (
                format!("`{name}` is not known"),
                suggest(name, known.iter().copied()),
            ),
            _ => {
                let remedy = "correct the value (docs/scenarios.md lists the keys)";
                (
                    message.lines().collect::<Vec<_>>().join(", "),
                    remedy.into(),
                )
            }
        };
        self.error(line, key, problem, remedy)
    }

    /// The key to the left of a value.
    fn key_at(&self, span: &Range<usize>) -> String {
        let before = self.text.get(..span.start).unwrap_or("");
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = self.text[line_start..].lines().next().unwrap_or("");
        match line.split_once('=') {
            Some((key, _)) => key.trim().to_owned(),
            None => line.trim().to_owned(),
        }
    }
}

/// Whether `given` looks like a misspelt `known`.
pub(super) fn resembles(given: &str, known: &str) -> bool {
    strsim::damerau_levenshtein(given, known) <= 1 + known.len() / 3
}

/// "did you mean `x`?" if one of `known` looks like `given`, otherwise the list of them.
pub fn suggest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    let closest = known
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(given, candidate), *candidate))
        .min();
    match closest {
        Some((_, candidate)) if resembles(given, candidate) => {
            format!("did you mean `{candidate}`?")
        }
        _ if known.is_empty() => "there are none to name".into(),
        _ => {
            let list: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
            format!("known are {}", list.join(", "))
        }
    }
}
