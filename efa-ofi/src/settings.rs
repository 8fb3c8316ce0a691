//! Settings of the environment: the variables of libfabric's own efa provider, for what both have.

use std::env;
use std::str::FromStr;

use efa_core::endpoint::EndpointConfig;

use crate::host::{Part, warn};

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
    let mut rdma = u8::from(config.use_device_rdma);
    read("FI_EFA_USE_DEVICE_RDMA", &mut rdma);
    config.use_device_rdma = rdma != 0;
    config
}

/// Reads a variable. What cannot be its value is told, and changes nothing.
fn read<T: FromStr>(name: &str, value: &mut T) {
    let Some(text) = env::var_os(name) else {
        return;
    };
    match text.to_str().and_then(|text| text.parse().ok()) {
        Some(wanted) => *value = wanted,
        None => warn(
            Part::Endpoint,
            &format!("{name} is no number in range: {}", text.display()),
        ),
    }
}
