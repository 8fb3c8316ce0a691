//! The program that plays an endpoint.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::libfabric::Provider;

/// A program that speaks the driver protocol.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Program {
    /// This program, with the protocol engine.
    Core,
    /// This program, with stock libfabric.
    Libfabric {
        /// The library: a path, or a name for the dynamic linker.
        library: PathBuf,
        /// The provider of that library to use.
        provider: Provider,
    },
    /// Another program.
    Exec {
        /// The program, then its arguments.
        words: Vec<String>,
    },
}

impl Program {
    /// The program and its arguments; `own` is this program's own file.
    pub fn words(&self, own: &Path) -> Vec<OsString> {
        let own = || vec![own.as_os_str().to_owned(), "drive".into()];
        match self {
            Program::Core => [own(), vec!["core".into()]].concat(),
            Program::Libfabric { library, provider } => {
                let named = ["libfabric".into(), "--libfabric".into(), library.into()];
                [own(), named.to_vec(), provider.words()].concat()
            }
            Program::Exec { words } => words.iter().map(OsString::from).collect(),
        }
    }
}

/// A program in the directory of this one, or else in `PATH`.
pub(super) fn find_beside(own: &Path, name: &str) -> Option<PathBuf> {
    let beside = own.with_file_name(name);
    if beside.is_file() {
        return Some(beside);
    }
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_external_providers_are_named() {
        let words = |provider| {
            let library = "libfabric.so.1".into();
            let words = Program::Libfabric { library, provider }.words(Path::new("own"));
            words.join(" ".as_ref()).into_string().unwrap()
        };
        let stock = "own drive libfabric --libfabric libfabric.so.1";
        assert_eq!(words(Provider::efa()), stock);
        let other = Provider {
            name: "efa_rs".into(),
            directory: Some("plug-ins".into()),
        };
        assert_eq!(other.software(), "libfabric:efa_rs");
        assert_eq!(
            words(other),
            format!("{stock} --provider efa_rs --provider-path plug-ins")
        );
    }
}
