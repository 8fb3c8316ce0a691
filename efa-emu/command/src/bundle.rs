//! The pair of libraries that the executable carries if it was built with the feature `bundled`, as
//! it is for `cargo install`, which installs executables and nothing else.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The libraries: their file names and contents.
const FILES: [(&str, &[u8]); 2] = [
    (
        super::injection::VERBS,
        include_bytes!(concat!(env!("EFA_EMU_BUNDLE"), "/libefa_emu_verbs.so")),
    ),
    (
        super::injection::EFADV,
        include_bytes!(concat!(env!("EFA_EMU_BUNDLE"), "/libefa_emu_efadv.so")),
    ),
];

/// Writes the libraries into a directory of their own below `parent`, which is the user's own,
/// unless they are there. All runs of one build share it.
pub(super) fn unpack_below(parent: &Path) -> io::Result<PathBuf> {
    let directory = parent.join(concat!("lib-", env!("EFA_EMU_BUNDLE_HASH")));
    fs::create_dir_all(&directory)?;
    for (name, content) in FILES {
        let path = directory.join(name);
        // A file has its name only when it is whole.
        if fs::metadata(&path).is_ok_and(|found| found.len() == content.len() as u64) {
            continue;
        }
        let draft = directory.join(format!("{name}.{}", std::process::id()));
        fs::write(&draft, content)?;
        fs::rename(&draft, &path)?;
    }
    Ok(directory)
}
