//! The files of a corpus.

use std::path::{Path, PathBuf};

use efa_play::scenario::Scenario;
use efa_replay::tagged::TagTrace;

/// The arguments contain no traces or scenarios.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// A directory or one of its entries cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The directory.
        path: PathBuf,
        /// The reason of the system.
        source: std::io::Error,
    },
    /// The argument is a directory without such files.
    #[error("{} holds no {what}; make traces with `efa-conformance record`", path.display())]
    Empty {
        /// The directory.
        path: PathBuf,
        /// The type of the searched files, such as `traces`.
        what: &'static str,
    },
    /// There is nothing at the path of an argument.
    #[error("{} is neither a file nor a directory", .0.display())]
    Absent(PathBuf),
    /// A scenario without packets, which has not been recorded.
    #[error(
        "{} has no packets, and no capture {} is beside it: \
         make one with `efa-conformance record {} -o {}`",
        scenario.display(), capture.display(), scenario.display(), capture.display()
    )]
    NotRecorded {
        /// The file of the scenario.
        scenario: PathBuf,
        /// The path at which its capture was expected.
        capture: PathBuf,
    },
    /// The filter accepts no trace of those that the arguments name.
    #[error("no name contains `{0}`; `efa-conformance list` shows them")]
    Filtered(String),
}

/// Finds the traces that arguments name: files, or directories and the directories in them. Traces
/// are recordings, `.pcapng`, and scenarios whose packets are written by hand. Traces of tag
/// matching are not included, because no libfabric endpoint participates in them.
///
/// # Errors
/// If an argument names no trace, or no trace passes the filter.
pub fn find_traces(
    arguments: &[PathBuf],
    filter: Option<&str>,
) -> Result<Vec<PathBuf>, CorpusError> {
    find(
        arguments,
        |path| is_trace(path) && !TagTrace::is_one(path),
        filter,
    )
}

/// As [`find_traces`], including those of tag matching.
///
/// # Errors
/// As [`find_traces`].
pub fn find_cases(
    arguments: &[PathBuf],
    filter: Option<&str>,
) -> Result<Vec<PathBuf>, CorpusError> {
    find(arguments, is_trace, filter)
}

fn find(
    arguments: &[PathBuf],
    is_one: impl Fn(&Path) -> bool,
    filter: Option<&str>,
) -> Result<Vec<PathBuf>, CorpusError> {
    let holds_one = |directory: &Path| {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).any(|path| is_one(&path))
    };
    let mut all = Vec::new();
    for argument in arguments {
        all.push(recording(argument)?);
        let entries = std::fs::read_dir(argument).into_iter().flatten().flatten();
        let mut inside: Vec<PathBuf> = entries
            .map(|entry| entry.path())
            .filter(|path| path.is_dir() && holds_one(path))
            .collect();
        inside.sort();
        all.extend(inside);
    }
    find_files(&all, "traces", is_one, filter)
}

/// The recording of a scenario without packets; any other path as it is.
fn recording(path: &Path) -> Result<PathBuf, CorpusError> {
    if !has_extension(path, "toml") || !path.is_file() || is_trace(path) {
        return Ok(path.to_owned());
    }
    let capture = path.with_extension("pcapng");
    if capture.is_file() {
        return Ok(capture);
    }
    // A file that is not a scenario has another error, which loading it reports.
    if Scenario::load(path).is_err() && !TagTrace::is_one(path) {
        return Ok(path.to_owned());
    }
    Err(CorpusError::NotRecorded {
        scenario: path.to_owned(),
        capture,
    })
}

fn is_trace(path: &Path) -> bool {
    has_extension(path, "pcapng") || (has_extension(path, "toml") && Scenario::has_packets(path))
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|known| known == extension)
}

/// Finds the scenarios that arguments name: files, or in directories.
///
/// # Errors
/// If an argument names no scenario, or no scenario passes the filter.
pub fn find_scenarios(
    arguments: &[PathBuf],
    filter: Option<&str>,
) -> Result<Vec<PathBuf>, CorpusError> {
    let is_played = |path: &Path| {
        has_extension(path, "toml") && !Scenario::has_packets(path) && !TagTrace::is_one(path)
    };
    find_files(arguments, "scenarios", is_played, filter)
}

fn find_files(
    arguments: &[PathBuf],
    what: &'static str,
    is_one: impl Fn(&Path) -> bool,
    filter: Option<&str>,
) -> Result<Vec<PathBuf>, CorpusError> {
    let mut traces = Vec::new();
    for argument in arguments {
        if argument.is_dir() {
            let entries =
                std::fs::read_dir(argument).map_err(|source| CorpusError::Unreadable {
                    path: argument.clone(),
                    source,
                })?;
            let mut found: Vec<PathBuf> = entries
                .filter_map(|entry| Some(entry.ok()?.path()))
                .filter(|path| is_one(path))
                .collect();
            if found.is_empty() {
                return Err(CorpusError::Empty {
                    path: argument.clone(),
                    what,
                });
            }
            found.sort();
            traces.extend(found);
        } else if argument.is_file() {
            traces.push(argument.clone());
        } else {
            return Err(CorpusError::Absent(argument.clone()));
        }
    }
    let Some(filter) = filter else {
        return Ok(traces);
    };
    traces.retain(|path| name_of(path).contains(filter));
    if traces.is_empty() {
        return Err(CorpusError::Filtered(filter.to_owned()));
    }
    Ok(traces)
}

/// A trace's name: its file's, without the extension.
pub fn name_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or(path.as_os_str());
    stem.to_string_lossy().into_owned()
}
