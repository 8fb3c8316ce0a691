//! Finding the libraries that a command preloads into programs.

use std::fs;
use std::io;
use std::path::PathBuf;

/// The reason why libraries cannot be preloaded.
#[derive(Debug, thiserror::Error)]
pub enum LibrariesError {
    /// The libraries are in none of the directories where they are searched.
    #[error(
        "cannot find {names} in {}: {remedies}, or set {variable} to their directory",
        alternatives(directories)
    )]
    NotFound {
        /// The file names of all libraries, as text.
        names: String,
        /// The searched directories.
        directories: Vec<PathBuf>,
        /// What the user can do, without naming the variable.
        remedies: String,
        /// The environment variable that names a directory to search.
        variable: &'static str,
    },
    /// The libraries were found, but their directory contains a character that ends an entry of
    /// `LD_PRELOAD`.
    #[error(
        "{} contains a space or a colon, which LD_PRELOAD cannot carry: copy {names} elsewhere and set {variable} to \
         that directory",
        directory.display()
    )]
    Separator {
        /// The directory that they were found in.
        directory: PathBuf,
        /// The file names of all libraries, as text.
        names: String,
        /// The environment variable that names a directory to search.
        variable: &'static str,
    },
    /// The path of the libraries cannot be resolved.
    #[error(transparent)]
    System(#[from] io::Error),
}

fn alternatives(directories: &[PathBuf]) -> String {
    let paths = directories.iter().map(|path| path.display().to_string());
    Vec::from_iter(paths).join(" or ")
}

/// The first of `directories` that has all of `files`. `variable` names a directory that takes
/// precedence, and `remedies` describes how to get the libraries.
///
/// # Errors
/// None of the directories has the files, or its path is not allowed in `LD_PRELOAD`.
pub fn directory_of(
    files: &[&str],
    directories: &[PathBuf],
    remedies: &str,
    variable: &'static str,
) -> Result<PathBuf, LibrariesError> {
    let names = files.join(" and ");
    let found = directories
        .iter()
        .find(|directory| files.iter().all(|file| directory.join(file).is_file()))
        .ok_or_else(|| LibrariesError::NotFound {
            names: names.clone(),
            directories: directories.to_owned(),
            remedies: remedies.to_owned(),
            variable,
        })?;
    let found = fs::canonicalize(found)?;
    // The dynamic linker splits LD_PRELOAD at these characters, and has no escape for them.
    if found.to_string_lossy().contains([' ', ':']) {
        return Err(LibrariesError::Separator {
            directory: found,
            names,
            variable,
        });
    }
    Ok(found)
}
