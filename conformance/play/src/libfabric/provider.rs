//! The libfabric provider of an endpoint, and the directory where libfabric finds it.

use std::ffi::OsString;
use std::path::PathBuf;

use efa_commands::installation::Installation;
use serde::{Deserialize, Serialize};

/// A provider of libfabric.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Provider {
    /// Its name, as libfabric lists it.
    pub name: String,
    /// The directory of its plug-in. Without one, a plug-in is searched by
    /// [`Provider::search_path`].
    pub directory: Option<PathBuf>,
}

impl Provider {
    /// The name of libfabric's own provider for EFA.
    pub const EFA: &'static str = "efa";

    /// The name of the protocol engine as a provider, a plug-in of this project.
    pub const ENGINE: &'static str = "efa_rs";

    /// libfabric's variable for the directories of plug-ins. libfabric reads it once, before it
    /// first looks for a provider.
    pub const SEARCH_PATH: &'static str = "FI_PROVIDER_PATH";

    /// libfabric's variable for the permitted providers: a list or, after a `^`, those not
    /// permitted.
    pub const CHOICE: &'static str = "FI_PROVIDER";

    /// libfabric's own provider for EFA.
    pub fn efa() -> Self {
        Provider {
            name: Self::EFA.into(),
            directory: None,
        }
    }

    /// The name in results of libfabric with this provider.
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

    /// The value that [`Provider::SEARCH_PATH`] needs before libfabric is loaded: the provider's
    /// directory, or, unless the variable is set, the directory of this installation that has the
    /// plug-in. `None`: the variable does not change.
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

    /// The value that [`Provider::CHOICE`] needs before libfabric is loaded, if its present value
    /// `choice` excludes this provider. A parallel job's choice for its MPI library, such as that
    /// of `efa-emu cluster`, does not overrule a provider that is named. But libfabric's own
    /// provider for EFA is also the default if none is named, so a choice against it is respected,
    /// and the user gets the message that there is no such provider.
    pub fn instead_of_choice(&self, choice: &str) -> Option<&str> {
        let names = |list: &str| list.split([',', ';']).any(|name| name.trim() == self.name);
        let is_left_out = match choice.strip_prefix('^') {
            Some(others) => names(others),
            None => !choice.is_empty() && !names(choice),
        };
        (is_left_out && self.name != Self::EFA).then_some(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_of_others_is_replaced() {
        let engine = Provider {
            name: Provider::ENGINE.into(),
            directory: None,
        };
        for (choice, is_replaced) in [
            ("", false),
            ("efa", true),
            ("efa_rs", false),
            ("shm, efa_rs", false),
            ("tcp;ofi_rxm", true),
            ("^efa", false),
            ("^shm,efa_rs", true),
        ] {
            let instead = engine.instead_of_choice(choice);
            let expected = is_replaced.then_some(Provider::ENGINE);
            assert_eq!(instead, expected, "{choice}");
            assert_eq!(Provider::efa().instead_of_choice(choice), None, "{choice}");
        }
    }
}
