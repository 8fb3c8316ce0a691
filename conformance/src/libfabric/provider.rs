//! Which of libfabric's providers an endpoint is opened with, and where libfabric finds it.

use std::ffi::OsString;
use std::path::PathBuf;

use efa_emu::installation::Installation;
use serde::{Deserialize, Serialize};

/// A provider of libfabric.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Provider {
    /// Its name, as libfabric lists it.
    pub name: String,
    /// The directory of its plug-in. Without one, a plug-in is looked for by [`Provider::search_path`].
    pub directory: Option<PathBuf>,
}

impl Provider {
    /// The name of libfabric's own provider for EFA.
    pub const EFA: &'static str = "efa";

    /// The name of the protocol engine as a provider, a plug-in of this project.
    pub const ENGINE: &'static str = "efa_rs";

    /// The variable by which libfabric knows directories of plug-ins. It reads the variable once, before it first
    /// looks for a provider.
    pub const SEARCH_PATH: &'static str = "FI_PROVIDER_PATH";

    /// libfabric's own provider for EFA.
    pub fn efa() -> Self {
        Provider {
            name: Self::EFA.into(),
            directory: None,
        }
    }

    /// What libfabric with this provider is called in results.
    pub fn software(&self) -> String {
        match &self.name[..] {
            Self::EFA => "libfabric".into(),
            name => format!("libfabric:{name}"),
        }
    }

    /// The options that name it.
    pub fn words(&self) -> Vec<OsString> {
        let mut words = Vec::new();
        if self.name != Self::EFA {
            words.extend(["--provider".into(), self.name.clone().into()]);
        }
        if let Some(directory) = &self.directory {
            words.extend(["--provider-path".into(), directory.into()]);
        }
        words
    }

    /// The value that [`Provider::SEARCH_PATH`] has to get before libfabric is loaded: the provider's directory, or,
    /// unless the variable is set, the directory of this installation that has the plug-in. `None`: the variable
    /// stays as it is.
    pub fn search_path(&self) -> Option<PathBuf> {
        if self.directory.is_some() {
            return self.directory.clone();
        }
        if std::env::var_os(Self::SEARCH_PATH).is_some() {
            return None;
        }
        Installation::of_this_program()
            .ok()?
            .provider_directory(&self.name)
    }
}
