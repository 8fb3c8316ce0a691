//! The endpoints of a scenario.

use std::collections::BTreeMap;

use efa_device_model::profile::Profile;
use serde::{Deserialize, Serialize};

use super::error::{Result, Source, suggest};
use super::keys::{Keys, RawTable};
use crate::libfabric::{Version, ffi};
use crate::operation::{EndpointIndex, names};

/// The implementation of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Software {
    /// Stock libfabric.
    Libfabric,
    /// The protocol engine of `efa-core`.
    Core,
    /// None: the endpoint's packets are written by hand.
    Script,
}

/// One endpoint.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointSpec {
    /// Its name in the scenario; also the name of its emulated host.
    pub name: String,
    /// The implementation.
    pub software: Software,
    /// The release that the recording needs, such as `1.17`.
    pub version: Option<Version>,
    /// The version of the programming interface that its application requests.
    #[serde(default = "baseline_api")]
    pub api: Version,
    /// The capabilities that its application requests.
    pub capabilities: Vec<Capability>,
    /// The profile of its emulated device; `None` is the emulator's default.
    pub profile: Option<String>,
    /// Whether its application registers every buffer (`FI_MR_LOCAL`).
    #[serde(default)]
    pub register_local: bool,
    /// The largest message that its application promises to send and receive, in bytes, so that
    /// stock libfabric may receive into the application's buffers; `None` promises nothing.
    pub max_message: Option<usize>,
    /// The endpoints that its application knows from the start; by default all others. An endpoint
    /// that is not known is met through the raw address in its first packet.
    #[serde(skip)]
    pub address_vector: Vec<EndpointIndex>,
    /// The reason why no other implementation can replace it in a replay, if there is one: it uses
    /// a choice of the protocol that others make differently.
    pub not_under_test: Option<String>,
    /// Environment variables of its process.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// The settings of the protocol engine with which it chooses like this endpoint.
    #[serde(default, with = "FileSettings")]
    pub settings: Settings,
}

fn baseline_api() -> Version {
    Version::BASELINE_API
}

impl EndpointSpec {
    /// Whether the application requested `capability`.
    pub fn has(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }
}

/// A capability that an application requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Capability {
    /// Untagged messages (`FI_MSG`).
    Msg,
    /// Tagged messages (`FI_TAGGED`).
    Tagged,
    /// Reads and writes of remote memory (`FI_RMA`).
    Rma,
    /// Atomics (`FI_ATOMIC`).
    Atomic,
    /// Completions name the sender (`FI_SOURCE`).
    Source,
    /// Receives accept one sender only (`FI_DIRECTED_RECV`).
    DirectedRecv,
}

impl Capability {
    /// Their names in scenarios and in the driver protocol.
    pub const NAMES: [(&'static str, Capability); 6] = [
        ("msg", Capability::Msg),
        ("tagged", Capability::Tagged),
        ("rma", Capability::Rma),
        ("atomic", Capability::Atomic),
        ("source", Capability::Source),
        ("directed-recv", Capability::DirectedRecv),
    ];

    /// libfabric's bit.
    pub fn bits(self) -> u64 {
        match self {
            Capability::Msg => ffi::FI_MSG,
            Capability::Tagged => ffi::FI_TAGGED,
            Capability::Rma => ffi::FI_RMA,
            Capability::Atomic => ffi::FI_ATOMIC,
            Capability::Source => ffi::FI_SOURCE,
            Capability::DirectedRecv => ffi::FI_DIRECTED_RECV,
        }
    }
}

names::by_name!(Capability);

/// Settings for the choice of subprotocols; the others keep their defaults. Names and units are
/// those of the protocol engine's configuration.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Settings {
    /// Messages up to this many bytes are sent by medium packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_medium_size: Option<usize>,
    /// Messages from this many bytes on are read by the receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_read_message_size: Option<usize>,
    /// Writes from this many bytes on are read by the receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_read_write_size: Option<usize>,
    /// The bytes that a runting read sends ahead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runt_size: Option<usize>,
    /// The packets in a window of a CTS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cts_window_packets: Option<u32>,
    /// Whether RDMA of the device is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_device_rdma: Option<bool>,
    /// Whether messages wait for the handshake.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handshake_before_messages: Option<bool>,
    /// Whether the queue pair is made for unsolicited writes.
    // A setting of `efa_hw::NicConfig`; the simulated device does not use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsolicited_write_recv: Option<bool>,
}

impl Settings {
    pub(crate) fn is_default(&self) -> bool {
        *self == Settings::default()
    }
}

/// [`Settings`] as in a file. A driver ignores unknown ones; a file must not have any.
#[derive(Deserialize)]
#[serde(remote = "Settings", deny_unknown_fields)]
struct FileSettings {
    max_medium_size: Option<usize>,
    min_read_message_size: Option<usize>,
    min_read_write_size: Option<usize>,
    runt_size: Option<usize>,
    cts_window_packets: Option<u32>,
    use_device_rdma: Option<bool>,
    handshake_before_messages: Option<bool>,
    unsolicited_write_recv: Option<bool>,
}

/// Reads all endpoints.
pub(super) fn endpoints(source: &Source<'_>, tables: Vec<RawTable>) -> Result<Vec<EndpointSpec>> {
    let mut endpoints: Vec<EndpointSpec> = Vec::new();
    let mut known = Vec::new();
    for table in tables {
        let mut keys = Keys::new(source, "an endpoint", table);
        let names: Option<Vec<String>> = keys.optional("address_vector")?;
        let endpoint: EndpointSpec = keys.rest()?;
        check(&keys, &endpoint)?;
        if endpoints.iter().any(|e| e.name == endpoint.name) {
            return Err(keys.error(
                "name",
                format!("there are two endpoints `{}`", endpoint.name),
                "give each its own name",
            ));
        }
        endpoints.push(endpoint);
        known.push((keys.line_of("address_vector"), names));
    }
    if endpoints.len() < 2 {
        return Err(source.error(
            1,
            "endpoint",
            format!("{} endpoints", endpoints.len()),
            "add [[endpoint]] tables until there are at least two",
        ));
    }
    for (at, (line, names)) in known.into_iter().enumerate() {
        let index = |name| endpoint_named(source, &endpoints, line, "address_vector", name);
        endpoints[at].address_vector = match names {
            None => (0..endpoints.len()).filter(|&peer| peer != at).collect(),
            Some(names) => names
                .iter()
                .map(String::as_str)
                .map(index)
                .collect::<Result<_>>()?,
        };
    }
    Ok(endpoints)
}

/// The endpoint that a key names.
pub(super) fn endpoint_named(
    source: &Source<'_>,
    endpoints: &[EndpointSpec],
    line: usize,
    key: &str,
    name: &str,
) -> Result<EndpointIndex> {
    let found = endpoints.iter().position(|endpoint| endpoint.name == name);
    found.ok_or_else(|| {
        source.error(
            line,
            key,
            format!("unknown endpoint `{name}`"),
            suggest(name, endpoints.iter().map(|e| e.name.as_str())),
        )
    })
}

/// Checks the names of an endpoint and of its device.
fn check(keys: &Keys<'_>, endpoint: &EndpointSpec) -> Result<()> {
    // The name becomes a host name, a file name and a capture interface.
    let name = &endpoint.name;
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Err(keys.error(
            "name",
            format!("`{name}` is not a name"),
            "use letters, digits and `-`",
        ));
    }
    match &endpoint.profile {
        Some(name) if Profile::by_name(name).is_none() => Err(keys.error(
            "profile",
            format!("unknown device profile `{name}`"),
            suggest(name, Profile::all().iter().map(|profile| profile.name)),
        )),
        _ => Ok(()),
    }
}
