//! How the files of a fabric are opened: for this user only, and never through a symbolic link that
//! someone left in their place.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Options for reading and writing. A file that is created belongs to this user only.
pub(crate) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW);
    options
}

/// Opens a file. `None` if there is none.
pub(crate) fn existing(path: &Path) -> io::Result<Option<File>> {
    match options().open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
