//! The corpus of traces that belongs to this program.

use std::path::PathBuf;

use efa_commands::installation::Installation;

/// Its name in the repository.
const TRACES: &str = "traces";

/// The files and directories that the user named, or else the corpus.
///
/// # Errors
/// The user named nothing, and no corpus is installed with this program.
pub(crate) fn or_named(named: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    if !named.is_empty() {
        return Ok(named.to_vec());
    }
    let installation = Installation::of_this_program()
        .map_err(|error| format!("cannot find this program's own file: {error}"))?;
    match installation.file(TRACES) {
        Ok(path) => Ok(vec![path]),
        Err(missing) => Err(format!("{missing}; or name traces")),
    }
}
