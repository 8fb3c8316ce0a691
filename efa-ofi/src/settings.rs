//! Settings of the environment: the variables of libfabric's own efa provider, for what both have.

use std::env;
use std::str::FromStr;

use efa_core::endpoint::EndpointConfig;

use crate::ffi::host::log_warn;

/// The settings of an endpoint.
pub(crate) fn of_environment() -> EndpointConfig {
    let mut config = EndpointConfig {
        seed: rand::random(),
        ..EndpointConfig::default()
    };
    read(
        "FI_EFA_INTER_MAX_MEDIUM_MESSAGE_SIZE",
        &mut config.max_medium_size,
    );
    read(
        "FI_EFA_INTER_MIN_READ_MESSAGE_SIZE",
        &mut config.min_read_message_size,
    );
    read(
        "FI_EFA_INTER_MIN_READ_WRITE_SIZE",
        &mut config.min_read_write_size,
    );
    read("FI_EFA_RUNT_SIZE", &mut config.runt_size);
    read(
        "FI_EFA_INTER_READ_SEGMENT_SIZE",
        &mut config.read_segment_size,
    );
    read("FI_EFA_TX_MIN_CREDITS", &mut config.cts_window_packets);
    config.use_device_rdma = is_on("FI_EFA_USE_DEVICE_RDMA", config.use_device_rdma);
    config
}

/// Whether libfabric's own efa provider would reach peers of the same host through shared memory.
/// This one does not, but applications turn it off that want to receive into their buffers
/// (`objects::zero_copy`).
pub(crate) fn shared_memory() -> bool {
    is_on("FI_EFA_ENABLE_SHM_TRANSFER", true)
}

/// Whether endpoints receive into the application's buffers where they can.
pub(crate) fn zero_copy() -> bool {
    is_on("FI_EFA_USE_ZCPY_RX", true)
}

/// A switch, in one of the ways in which libfabric's variables have it. Another value changes
/// nothing, and is in the log.
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
