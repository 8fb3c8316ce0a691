//! The options that name a libfabric provider.

use std::path::PathBuf;

use efa_play::libfabric::Provider;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ProviderOptions {
    /// The provider of libfabric with which its endpoints are opened.
    #[arg(long, value_name = "NAME", default_value = Provider::EFA, help_heading = "Software")]
    provider: String,
    /// The directory of the provider's plug-in, if it is one: the value of FI_PROVIDER_PATH.
    /// Without it, a plug-in is found in the directory of that variable, else among the libraries
    /// that belong to this program.
    #[arg(long, value_name = "DIRECTORY", help_heading = "Software")]
    provider_path: Option<PathBuf>,
}

impl ProviderOptions {
    pub(crate) fn provider(&self) -> Provider {
        Provider {
            name: self.provider.clone(),
            directory: self.provider_path.clone(),
        }
    }
}
