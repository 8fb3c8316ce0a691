//! The subprotocols: how each is forced, and its packets, as in
//! `conformance/interop/cells/engine.toml`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::Initiator;
use super::script::{ENGINE, REGISTERED, STOCK, Script, StockEndpoint, variables};
use crate::harness::CellsError;
use crate::libfabric::release::Release;
use crate::table::{Variables, fill};
use efa_play::libfabric::Version;

const TEXT: &str = include_str!("../../cells/engine.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    operations: BTreeMap<String, Operations>,
    subprotocol: Vec<Subprotocol>,
}

/// The operations of a cell.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Operations {
    capabilities: Vec<String>,
    steps: String,
}

/// A subprotocol for an operation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Subprotocol {
    pub(super) name: String,
    /// The first release of libfabric that has it; `None` if all have it.
    #[serde(default, deserialize_with = "version")]
    since: Option<Version>,
    /// The expectation for releases that lack it.
    #[serde(default)]
    without: Without,
    /// The devices of both hosts.
    #[serde(default = "default_profile")]
    profile: String,
    #[serde(default)]
    rdma: bool,
    /// The environment in which stock libfabric chooses it.
    #[serde(default)]
    environment: BTreeMap<String, String>,
    /// The settings with which the engine chooses it.
    #[serde(default)]
    settings: Vec<String>,
    /// The name of its operations.
    operations: String,
    /// Their length in bytes.
    #[serde(default)]
    length: usize,
    #[serde(default)]
    delivery_complete: bool,
    /// For writes with completion data: whether the device accepts them without a receive, which
    /// both HANDSHAKEs must announce.
    pub(super) unsolicited_data: Option<bool>,
    #[serde(default)]
    faults: String,
    /// Whether stock's application registers its memory (`FI_MR_LOCAL`) or leaves that to the
    /// provider.
    #[serde(default = "yes")]
    register_local: bool,
    /// The packets that each side must send.
    pub(super) initiator: Vec<String>,
    #[serde(default)]
    pub(super) responder: Vec<String>,
}

/// The expectation for a release that lacks a subprotocol. Without one there is no cell.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Without {
    /// When the engine initiates.
    engine: Option<Instead>,
    /// When the release initiates.
    stock: Option<Instead>,
}

/// The expectation instead of a subprotocol.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Instead {
    /// A part of the error, if the operation is refused.
    pub(super) refusal: Option<String>,
    /// The packets of each side.
    #[serde(default)]
    pub(super) initiator: Vec<String>,
    #[serde(default)]
    pub(super) responder: Vec<String>,
}

fn version<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Version>, D::Error> {
    let version = String::deserialize(value)?.parse();
    version.map(Some).map_err(D::Error::custom)
}

fn default_profile() -> String {
    "efa2".into()
}

fn yes() -> bool {
    true
}

fn file() -> Result<&'static File, CellsError> {
    static FILE: LazyLock<Result<File, toml::de::Error>> = LazyLock::new(|| toml::from_str(TEXT));
    FILE.as_ref().map_err(|error| CellsError::Toml {
        file: "cells/engine.toml".into(),
        source: error.clone(),
    })
}

pub(super) fn all() -> Result<&'static [Subprotocol], CellsError> {
    Ok(&file()?.subprotocol)
}

fn operations(name: &str) -> Result<&'static Operations, CellsError> {
    let found = file()?.operations.get(name);
    found.ok_or_else(|| CellsError::UnknownOperations(name.to_owned()))
}

/// The key of operations with completion data.
const DATA: &str = ", data = 0x12345678";

/// The values of `{NAME}` in operations.
fn values([first, second]: [&str; 2], length: usize) -> Variables {
    variables([
        ("first", first),
        ("second", second),
        ("length", &length.to_string()),
        ("twice", &(2 * length).to_string()),
        ("dc", ""),
        ("data", ""),
    ])
}

pub(super) fn writes_with_data(
    script: &mut Script,
    hosts: [&str; 2],
    length: usize,
) -> Result<(), CellsError> {
    let mut values = values(hosts, length);
    values.insert("data".into(), DATA.into());
    script.steps(&operations("write")?.steps, &values);
    Ok(())
}

impl Subprotocol {
    /// Returns whether a release has it.
    pub(super) fn is_in(&self, release: &Release) -> bool {
        self.since.is_none_or(|since| release.version >= since)
            && (release.unsolicited || self.unsolicited_data != Some(true))
    }

    /// Returns the expectation for a release that lacks it.
    pub(super) fn instead(&self, initiator: Initiator) -> Option<&Instead> {
        match initiator {
            Initiator::Engine => self.without.engine.as_ref(),
            Initiator::Stock => self.without.stock.as_ref(),
        }
    }

    /// The fault rules for the responder.
    pub(super) fn faults(&self, initiator: Initiator) -> String {
        let [first, second] = initiator.hosts();
        fill(
            &self.faults,
            &variables([("first", first), ("second", second)]),
        )
    }

    /// The scenario that forces it.
    pub(super) fn scenario(
        &self,
        release: &Release,
        initiator: Initiator,
    ) -> Result<String, CellsError> {
        let [first, second] = initiator.hosts();
        let Operations {
            capabilities,
            steps,
        } = operations(&self.operations)?;
        let description = format!(
            "{}: {first} to {second}, libfabric {}",
            self.name, release.full_name
        );
        let mut script = Script::new(description, &self.profile, capabilities);
        let mut settings = self.settings.clone();
        if !self.rdma {
            settings.push("use_device_rdma = false".into());
        }
        // The engine's device is configured like the release's, unless the subprotocol depends on a
        // difference.
        let unsolicited = self.unsolicited_data.unwrap_or(release.unsolicited);
        script.engine(unsolicited, &settings);
        let mut environment = vec![("FI_EFA_USE_DEVICE_RDMA", if self.rdma { "1" } else { "0" })];
        let own = self.environment.iter();
        environment.extend(own.map(|(variable, value)| (variable.as_str(), value.as_str())));
        script.stock(&StockEndpoint {
            name: STOCK,
            release,
            environment,
            keys: if self.register_local { REGISTERED } else { "" },
        });
        let mut values = values([first, second], self.length);
        if self.delivery_complete {
            values.insert("dc".into(), "-dc".into());
        }
        if self.unsolicited_data.is_some() {
            values.insert("data".into(), DATA.into());
        }
        script.steps(&operations("greeting")?.steps, &values);
        script.steps(steps, &values);
        Ok(script.finish())
    }
}

impl Initiator {
    /// The hosts of the initiator and of the responder.
    pub(super) fn hosts(self) -> [&'static str; 2] {
        match self {
            Initiator::Engine => [ENGINE, STOCK],
            Initiator::Stock => [STOCK, ENGINE],
        }
    }
}
