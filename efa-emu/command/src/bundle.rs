//! The pair of libraries in an executable that was built with the feature `bundled`, as `cargo
//! install` needs it, which installs only executables.

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

/// Writes the libraries to a directory below `parent` that belongs to the user, unless they exist
/// there. All runs of one build share it.
pub(super) fn unpack_below(parent: &Path) -> io::Result<PathBuf> {
    let directory = parent.join(concat!("lib-", env!("EFA_EMU_BUNDLE_HASH")));
    fs::create_dir_all(&directory)?;
    for (name, content) in FILES {
        let path = directory.join(name);
        // A file gets its name only when it is complete.
        if fs::metadata(&path).is_ok_and(|found| found.len() == content.len() as u64) {
            continue;
        }
        let draft = directory.join(format!("{name}.{}", std::process::id()));
        fs::write(&draft, content)?;
        fs::rename(&draft, &path)?;
    }
    Ok(directory)
}
