//! Finding the libraries that a command preloads into programs.

use std::fs;
use std::path::PathBuf;

use super::Failure;

/// The first of `directories` that has all of `files`. `variable` names a directory that takes
/// precedence, and `remedies` describes how to get the libraries.
///
/// # Errors
/// None of the directories has the files, or its path is not allowed in `LD_PRELOAD`.
pub fn directory_of(
    files: &[&str],
    directories: &[PathBuf],
    remedies: &str,
    variable: &str,
) -> Result<PathBuf, Failure> {
    let names = files.join(" and ");
    let found = directories
        .iter()
        .find(|directory| files.iter().all(|file| directory.join(file).is_file()))
        .ok_or_else(|| {
            let searched: Vec<_> = directories
                .iter()
                .map(|directory| directory.display().to_string())
                .collect();
            Failure(format!(
                "cannot find {names} in {}: {remedies}, or set {variable} to their directory",
                searched.join(" or ")
            ))
        })?;
    let found = fs::canonicalize(found)?;
    // The dynamic linker splits LD_PRELOAD at these characters, and has no escape for them.
    if found.to_string_lossy().contains([' ', ':']) {
        return Err(Failure(format!(
            "{} contains a space or a colon, which LD_PRELOAD cannot carry: copy {names} elsewhere and set \
             {variable} to that directory",
            found.display()
        )));
    }
    Ok(found)
}
