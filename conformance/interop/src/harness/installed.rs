//! Programs of this machine.

use std::path::PathBuf;

use super::not_measured::NotMeasured;

/// The path of an installed program. If it is not installed, the cell is skipped.
pub(crate) fn installed(program: &str, package: &str) -> Result<PathBuf, NotMeasured> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
        .ok_or_else(|| {
            NotMeasured::Skipped(format!(
                "{program} is not installed (Debian package {package})"
            ))
        })
}
