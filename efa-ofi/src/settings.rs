//! Settings from environment variables. Settings that libfabric's own efa provider has too use its
//! variables.

use std::env;
use std::str::FromStr;

use efa_core::endpoint::EndpointConfig;

use crate::ffi::host::log_warn;

/// Numeric settings: the variable's name after `FI_EFA_`, the field of the engine's settings, and a
/// description.
macro_rules! numbers {
    ($($name:literal $field:ident $help:literal)*) => {
        /// The settings of an endpoint.
        pub(crate) fn of_environment() -> EndpointConfig {
            let mut config = EndpointConfig {
                seed: rand::random(),
                ..EndpointConfig::default()
            };
            $(read(concat!("FI_EFA_", $name), &mut config.$field);)*
            config.use_device_rdma = is_on("FI_EFA_USE_DEVICE_RDMA", config.use_device_rdma);
            config
        }

        /// The variables that are numbers, with their defaults.
        fn numbers() -> impl IntoIterator<Item = Parameter> {
            let defaults = EndpointConfig::default();
            [$(Parameter {
                name: $name,
                help: $help,
                default: DefaultValue::Number(defaults.$field as u64),
            },)*]
        }
    };
}

numbers! {
    "INTER_MAX_MEDIUM_MESSAGE_SIZE" max_medium_size
        "the longest message in bytes that is sent in several packets at once"
    "INTER_MIN_READ_MESSAGE_SIZE" min_read_message_size
        "the shortest message in bytes that its receiver reads by RDMA"
    "INTER_MIN_READ_WRITE_SIZE" min_read_write_size
        "the shortest write in bytes that its target reads by RDMA"
    "RUNT_SIZE" runt_size
        "bytes of a message that travel ahead of its RDMA read"
    "INTER_READ_SEGMENT_SIZE" read_segment_size
        "the most bytes of an RDMA read"
    "TX_MIN_CREDITS" cts_window_packets
        "packets that a receiver permits at once"
}

/// A variable of the environment, as `fi_info -e` lists it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameter {
    /// Its name after `FI_EFA_`.
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) default: DefaultValue,
}

/// The value of a variable that is not set.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DefaultValue {
    Number(u64),
    Switch(bool),
}

/// All variables.
pub(crate) fn parameters() -> impl Iterator<Item = Parameter> {
    let rdma = EndpointConfig::default().use_device_rdma;
    let switches = [
        ("USE_DEVICE_RDMA", "use RDMA of the device", rdma),
        (
            "ENABLE_SHM_TRANSFER",
            "permit shared memory, which is never used: 0 for receiving without copies",
            true,
        ),
        (
            "USE_ZCPY_RX",
            "receive into the application's buffers where that is possible",
            true,
        ),
        (
            "FORK_SAFE",
            "keep registered memory from children of the process",
            false,
        ),
    ];
    let switches = switches.map(|(name, help, default)| Parameter {
        name,
        help,
        default: DefaultValue::Switch(default),
    });
    numbers().into_iter().chain(switches)
}

/// Whether libfabric's own efa provider would use shared memory to peers on the same host. This
/// provider does not, but applications that receive into their own buffers turn it off
/// (`objects::zero_copy`).
pub(crate) fn shared_memory() -> bool {
    is_on("FI_EFA_ENABLE_SHM_TRANSFER", true)
}

/// Whether endpoints receive into the application's buffers if they can.
pub(crate) fn zero_copy() -> bool {
    is_on("FI_EFA_USE_ZCPY_RX", true)
}

/// A boolean setting, in one of the forms that libfabric's variables accept. Another value changes
/// nothing, and is logged.
pub(crate) fn is_on(name: &str, default: bool) -> bool {
    let Some(text) = env::var_os(name) else {
        return default;
    };
    match text.to_str().map(str::to_ascii_lowercase).as_deref() {
        Some("0" | "no" | "false" | "off") => false,
        Some("1" | "yes" | "true" | "on") => true,
        _ => {
            log_warn!(Core, "{name} is neither on nor off: {}", text.display());
            default
        }
    }
}

/// Reads a variable. A value that it cannot have changes nothing, and is in the log.
fn read<T: FromStr>(name: &str, value: &mut T) {
    let Some(text) = env::var_os(name) else {
        return;
    };
    match text.to_str().and_then(|text| text.parse().ok()) {
        Some(wanted) => *value = wanted,
        None => log_warn!(
            Endpoint,
            "{name} is not a number in range: {}",
            text.display()
        ),
    }
}
