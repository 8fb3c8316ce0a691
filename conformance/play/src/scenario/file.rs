//! The keys of a scenario file, as they are written.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) description: String,
    pub(super) spec: Vec<String>,
    #[serde(default)]
    pub(super) breaks: Vec<Spanned<String>>,
    pub(super) endpoint: Vec<Spanned<Endpoint>>,
    pub(super) step: Vec<Spanned<Step>>,
    #[serde(default)]
    pub(super) packet: Vec<Spanned<Packet>>,
    #[serde(default)]
    pub(super) fault: Vec<Spanned<toml::Value>>,
    #[serde(default)]
    pub(super) policy: Vec<Spanned<Policy>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Endpoint {
    pub(super) name: Spanned<String>,
    pub(super) software: Spanned<String>,
    pub(super) version: Option<Spanned<String>>,
    pub(super) api: Option<Spanned<String>>,
    pub(super) capabilities: Vec<Spanned<String>>,
    pub(super) profile: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) register_local: bool,
    pub(super) max_message: Option<usize>,
    pub(super) address_vector: Option<Vec<Spanned<String>>>,
    pub(super) not_under_test: Option<String>,
    #[serde(default)]
    pub(super) environment: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) settings: Settings,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    pub(super) max_medium_size: Option<usize>,
    pub(super) min_read_message_size: Option<usize>,
    pub(super) min_read_write_size: Option<usize>,
    pub(super) runt_size: Option<usize>,
    pub(super) cts_window_packets: Option<u32>,
    pub(super) use_device_rdma: Option<bool>,
    pub(super) handshake_before_messages: Option<bool>,
    pub(super) unsolicited_write_recv: Option<bool>,
}

/// One table for all kinds of steps: which keys a kind takes is checked when it is read, so that
/// the message can name the kind and the key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    #[serde(rename = "do")]
    pub(super) action: Spanned<String>,
    pub(super) at: Option<Spanned<String>>,
    pub(super) id: Option<Spanned<String>>,
    pub(super) to: Option<Spanned<String>>,
    pub(super) from: Option<Spanned<String>>,
    pub(super) length: Option<Spanned<usize>>,
    pub(super) seed: Option<Spanned<u64>>,
    pub(super) tag: Option<Spanned<u64>>,
    pub(super) ignore: Option<Spanned<u64>>,
    pub(super) data: Option<Spanned<u64>>,
    pub(super) region: Option<Spanned<String>>,
    pub(super) offset: Option<Spanned<usize>>,
    pub(super) access: Option<Spanned<Vec<Spanned<String>>>>,
    pub(super) message: Option<Spanned<String>>,
    pub(super) datatype: Option<Spanned<String>>,
    pub(super) op: Option<Spanned<String>>,
    pub(super) comparand: Option<Spanned<u64>>,
    #[serde(rename = "for")]
    pub(super) operations: Option<Spanned<Vec<Spanned<String>>>>,
    pub(super) progress: Option<Spanned<Vec<Spanned<String>>>>,
    pub(super) expect: Option<Spanned<Expect>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expect {
    pub(super) message: Option<Spanned<String>>,
    pub(super) error: Option<Spanned<String>>,
    pub(super) overflow: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Policy {
    pub(super) field: Spanned<String>,
    pub(super) policy: Spanned<String>,
    pub(super) values: Option<Vec<u64>>,
    pub(super) reason: String,
}

/// A packet that is written by hand. Which keys there are depends on its type.
pub(super) type Packet = BTreeMap<Spanned<String>, toml::Value>;
