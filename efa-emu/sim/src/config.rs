//! The configuration of fabrics and hosts.

use efa_core::address::Gid;
use efa_device_model::network::NetworkConfig;
use efa_device_model::profile::Profile;
use efa_device_model::qpn_policy::QpnPolicy;

/// The configuration of a fabric.
#[derive(Clone, Debug)]
pub struct FabricConfig {
    /// The seed of everything random.
    pub seed: u64,
    /// The configuration of the network.
    pub network: NetworkConfig,
    /// How queue pair numbers are reused.
    pub qpn_policy: QpnPolicy,
    /// A poll picks its completion at random from this number of the oldest; 1 keeps the order of
    /// the completion queue.
    pub completion_window: usize,
    /// Whether the event log is kept. It grows by about 100 bytes per event.
    pub log: bool,
}

impl Default for FabricConfig {
    /// Seed 0, the default network, numbers reused as soon as possible, completions reordered, log
    /// kept.
    fn default() -> Self {
        FabricConfig {
            seed: 0,
            network: NetworkConfig::default(),
            qpn_policy: QpnPolicy::default(),
            completion_window: 8,
            log: true,
        }
    }
}

impl FabricConfig {
    /// The default with another seed.
    pub fn seeded(seed: u64) -> Self {
        FabricConfig {
            seed,
            ..FabricConfig::default()
        }
    }
}

/// The configuration of a host.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Its name in captures; `None` for `host0`, `host1`, ...
    pub name: Option<String>,
    /// The GID of its device; `None` for the next unused one of `fe80::efa:0:0/96`.
    pub gid: Option<Gid>,
    /// The generation of its device.
    pub profile: Profile,
    /// The bytes that can be allocated on it, packet buffers included.
    pub memory: u64,
}

impl Default for HostConfig {
    /// The default profile and 4 GiB.
    fn default() -> Self {
        let profile = Profile::by_name(Profile::DEFAULT).expect("the default profile exists");
        HostConfig {
            name: None,
            gid: None,
            profile: profile.clone(),
            memory: 4 << 30,
        }
    }
}
