//! A cell's scenario, as TOML text.

use crate::harness::{Bench, NotMeasured};
use crate::libfabric::release::Release;
use crate::table::{Variables, fill};
use efa_play::libfabric::Provider;
use efa_play::record::Stock;

/// The name of the engine's endpoint and host.
pub(super) const ENGINE: &str = "engine";
/// The name of the stock endpoint and its host.
pub(super) const STOCK: &str = "stock";

/// The key of endpoints whose application registers its memory.
pub(super) const REGISTERED: &str = ", register_local = true";

pub(super) struct StockEndpoint<'a> {
    pub(super) name: &'a str,
    pub(super) release: &'a Release,
    pub(super) environment: Vec<(&'a str, &'a str)>,
    /// Further keys, each after a comma.
    pub(super) keys: &'a str,
}

/// A scenario under construction. All endpoints have the same device and request the same
/// capabilities.
pub(super) struct Script<'a> {
    description: String,
    profile: &'a str,
    capabilities: &'a [String],
    endpoints: Vec<String>,
    steps: String,
}

impl<'a> Script<'a> {
    pub(super) fn new(description: String, profile: &'a str, capabilities: &'a [String]) -> Self {
        Script {
            description,
            profile,
            capabilities,
            endpoints: Vec::new(),
            steps: String::new(),
        }
    }

    fn endpoint(&mut self, name: &str, keys: &str) {
        let Script {
            profile,
            capabilities,
            ..
        } = self;
        self.endpoints.push(format!(
            "{{ name = {name:?}, profile = {profile:?}, capabilities = {capabilities:?}, {keys} }},\n"
        ));
    }

    pub(super) fn engine(&mut self, unsolicited: bool, settings: &[String]) {
        let own = format!("unsolicited_write_recv = {unsolicited}");
        let settings = [&[own], settings].concat().join(", ");
        let keys = format!(r#"software = "core", settings = {{ {settings} }}"#);
        self.endpoint(ENGINE, &keys);
    }

    pub(super) fn stock(&mut self, endpoint: &StockEndpoint) {
        let fixed = [("FI_PROVIDER", "efa"), ("FI_EFA_ENABLE_SHM_TRANSFER", "0")];
        let variables = fixed.iter().chain(&endpoint.environment);
        let environment: Vec<String> = variables
            .map(|(variable, value)| format!("{variable} = {value:?}"))
            .collect();
        let keys = format!(
            r#"software = "libfabric", version = "{}", environment = {{ {} }}{}"#,
            endpoint.release.version,
            environment.join(", "),
            endpoint.keys
        );
        self.endpoint(endpoint.name, &keys);
    }

    /// Adds steps, one per line.
    pub(super) fn steps(&mut self, steps: &str, variables: &Variables) {
        self.steps += fill(steps, variables).trim_end();
        self.steps.push('\n');
    }

    pub(super) fn finish(self) -> String {
        format!(
            "description = {:?}\nspec = []\nendpoint = [\n{}]\nstep = [\n{}]\n",
            self.description,
            self.endpoints.concat(),
            self.steps
        )
    }
}

/// Values by their names.
pub(super) fn variables<const N: usize>(values: [(&str, &str); N]) -> Variables {
    let values = values.map(|(name, value)| (name.to_owned(), value.to_owned()));
    values.into()
}

/// A release for the stock endpoints of a scenario. If this machine's libfabric is another release,
/// the driver reports that after loading it.
pub(super) fn fetch(bench: &Bench, release: &Release) -> Result<Stock, NotMeasured> {
    let userland = release.fetched(bench)?;
    Ok(Stock {
        library: release.library(userland.as_ref()),
        provider: Provider::efa(),
        runner: userland.map(|userland| userland.runner()),
        ..Stock::default()
    })
}
