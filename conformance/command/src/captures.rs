//! The captures that a command line names.

use std::io;
use std::path::{Path, PathBuf};

/// The suffixes of captures.
const SUFFIXES: [&str; 3] = ["pcapng", "pcap", "cap"];
const PACKED: [&str; 4] = ["gz", "zst", "zstd", "lz4"];

/// The named captures, and those in the named directories; and whether this is a single capture
/// that is named itself.
pub(crate) fn captures(named: &[PathBuf]) -> Result<(Vec<PathBuf>, bool), String> {
    let mut captures = Vec::new();
    for path in named {
        if !path.is_dir() {
            captures.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let entries = entries.map_err(|error| format!("{}: {error}", path.display()))?;
        let mut inside: Vec<_> = entries.iter().map(std::fs::DirEntry::path).collect();
        inside.retain(|path| is_capture(path));
        if inside.is_empty() {
            let known = SUFFIXES.join(", .");
            return Err(format!("{}: no captures (.{known})", path.display()));
        }
        inside.sort();
        captures.append(&mut inside);
    }
    let is_one = named.len() == 1 && !named[0].is_dir();
    Ok((captures, is_one))
}

fn is_capture(path: &Path) -> bool {
    let ends_with = |path: &Path, suffixes: &[&str]| {
        let suffix = path.extension().and_then(|suffix| suffix.to_str());
        suffix.is_some_and(|suffix| suffixes.contains(&suffix))
    };
    match ends_with(path, &PACKED) {
        true => ends_with(&path.with_extension(""), &SUFFIXES),
        false => ends_with(path, &SUFFIXES),
    }
}
