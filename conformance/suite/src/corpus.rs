//! The files of a corpus.

use std::path::{Path, PathBuf};

use efa_play::scenario::Scenario;
use efa_play::trace::TraceError;

/// A trace that cannot be used at all.
#[derive(Debug)]
pub struct Unusable {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub error: TraceError,
}

/// Finds the traces that arguments name: themselves, or in directories and the directories in them.
/// Traces are recordings, `.pcapng`, and scenarios whose packets are written by hand.
pub fn find_traces(arguments: &[PathBuf], filter: Option<&str>) -> Result<Vec<PathBuf>, String> {
    let mut all = Vec::new();
    for argument in arguments {
        all.push(argument.clone());
        let entries = std::fs::read_dir(argument).into_iter().flatten().flatten();
        let mut inside: Vec<PathBuf> = entries
            .map(|entry| entry.path())
            .filter(|path| path.is_dir() && holds_trace(path))
            .collect();
        inside.sort();
        all.extend(inside);
    }
    find_files(&all, "traces", is_trace, filter)
}

fn is_trace(path: &Path) -> bool {
    has_extension(path, "pcapng") || (has_extension(path, "toml") && Scenario::has_packets(path))
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|known| known == extension)
}

fn holds_trace(directory: &Path) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .any(|path| is_trace(&path))
}

/// Finds the scenarios that arguments name: themselves, or in directories.
pub fn find_scenarios(arguments: &[PathBuf], filter: Option<&str>) -> Result<Vec<PathBuf>, String> {
    let is_played = |path: &Path| has_extension(path, "toml") && !Scenario::has_packets(path);
    find_files(arguments, "scenarios", is_played, filter)
}

fn find_files(
    arguments: &[PathBuf],
    what: &str,
    is_one: impl Fn(&Path) -> bool,
    filter: Option<&str>,
) -> Result<Vec<PathBuf>, String> {
    let mut traces = Vec::new();
    for argument in arguments {
        if argument.is_dir() {
            let entries = std::fs::read_dir(argument)
                .map_err(|error| format!("{}: {error}", argument.display()))?;
            let mut found: Vec<PathBuf> = entries
                .filter_map(|entry| Some(entry.ok()?.path()))
                .filter(|path| is_one(path))
                .collect();
            if found.is_empty() {
                return Err(format!(
                    "{} holds no {what}; make traces with `efa-conformance record`",
                    argument.display()
                ));
            }
            found.sort();
            traces.extend(found);
        } else if argument.is_file() {
            traces.push(argument.clone());
        } else {
            return Err(format!(
                "{} is neither a file nor a directory",
                argument.display()
            ));
        }
    }
    let Some(filter) = filter else {
        return Ok(traces);
    };
    traces.retain(|path| name_of(path).contains(filter));
    if traces.is_empty() {
        return Err(format!(
            "no name contains `{filter}`; `efa-conformance list` shows them"
        ));
    }
    Ok(traces)
}

/// A trace's name: its file's, without the extension.
pub fn name_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or(path.as_os_str());
    stem.to_string_lossy().into_owned()
}
