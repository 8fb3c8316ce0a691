//! Shared memory that killed ranks of MPICH leave behind, with or without a device.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use efa_shm::SHARED_MEMORY;

/// The prefix of the names of MPICH's objects.
const PREFIX: &str = "mpich_shm_";

/// The objects that existed at some time.
pub(crate) struct Segments(BTreeSet<PathBuf>);

impl Segments {
    pub(crate) fn now() -> Segments {
        let entries = fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten();
        Segments(
            entries
                .filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX))
                .map(|entry| entry.path())
                .collect(),
        )
    }

    /// Removes the objects that are newer and that no process uses, and returns their number.
    pub(crate) fn remove_new(&self) -> usize {
        let new: Vec<PathBuf> = Segments::now().0.difference(&self.0).cloned().collect();
        // Read after the directory was listed: by now the creator of each listed object has mapped
        // it.
        let used = mapped();
        new.iter()
            .filter(|path| !used.contains(*path) && fs::remove_file(path).is_ok())
            .count()
    }
}

/// MPICH's objects that processes have mapped.
fn mapped() -> BTreeSet<PathBuf> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|process| fs::read(process.path().join("maps")).ok())
        .flat_map(|maps| {
            String::from_utf8_lossy(&maps)
                .lines()
                .filter_map(|line| Some(PathBuf::from(&line[line.find('/')?..])))
                .filter(|path| path.to_string_lossy().contains(PREFIX))
                .collect::<Vec<_>>()
        })
        .collect()
}
