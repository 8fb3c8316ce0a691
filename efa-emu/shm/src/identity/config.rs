//! Settings that `efa-emu run` passes to programs, in environment variables.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use efa_core::address::Gid;

use super::device_name::DeviceName;
use crate::error::FabricError;
use efa_device_model::duration;
use efa_device_model::network::{Network, NetworkConfig, Probability, Reliability};
use efa_device_model::qpn_policy::QpnPolicy;
use efa_lock_free::qpn::ParticipantId;

/// Name of the fabric; `default` if unset.
pub const ENV_FABRIC: &str = "EFA_EMU_FABRIC";
/// The directory in which the fabrics are, by an absolute path. A run names it to its programs,
/// which may have another `TMPDIR` or another `/dev/shm`.
pub const ENV_FABRICS: &str = "EFA_EMU_FABRICS";
/// Name of the emulated host that the process belongs to.
pub const ENV_HOST: &str = "EFA_EMU_HOST";
/// GIDs of that host's devices, as IPv6 addresses with commas between them.
pub const ENV_GID: &str = "EFA_EMU_GID";
/// Name of the device profile, or the path of its file.
pub const ENV_PROFILE: &str = "EFA_EMU_PROFILE";
/// Network options in the form of [`NetworkOptions`]'s `Display`.
pub const ENV_NETWORK: &str = "EFA_EMU_NETWORK";
/// How RDMA moves data between processes: `auto` (the default) or `rings`.
pub const ENV_RDMA: &str = "EFA_EMU_RDMA";
/// Names the variable that controls RDMA by hosts without an address handle: `refuse` or `serve`.
pub const ENV_UNKNOWN_PEERS: &str = "EFA_EMU_UNKNOWN_PEERS";
/// The run that started the process: the numbers of its participation in each device of the host.
pub const ENV_RUN: &str = "EFA_EMU_RUN";

/// The default name of the fabric.
pub const DEFAULT_FABRIC: &str = "default";
/// The default name of the device profile.
pub const DEFAULT_PROFILE: &str = "efa2";

/// How the emulated network treats packets. The default is a perfect network: no added delay, one
/// path, no loss.
///
/// `Display` and `FromStr` are inverse: `seed=1,latency=10000ns,jitter=0ns,paths=4,loss=0.001,
/// rnr=0,retransmit-timeout=500000ns,attempts=12,qpn-reuse=oldest`; options may be omitted.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct NetworkOptions {
    /// Seed of every random choice.
    pub seed: u64,
    /// Added to the delivery of every packet.
    pub latency: Duration,
    /// Upper bound of a random delay added on top, drawn per packet.
    pub jitter: Duration,
    /// Number of paths that packets are spread over, at least 1. With more than one, packets of a
    /// burst arrive out of order.
    pub paths: u16,
    /// Probability that a packet is lost each time that it is on the wire. In `0.0..1.0`.
    pub loss: f64,
    /// Probability that a send finds the receiver not ready although a receive is posted.
    /// In `0.0..=1.0`.
    pub rnr: f64,
    /// The times of retransmissions, and the time at which a request fails.
    pub reliability: Reliability,
    /// The order in which queue pair numbers are assigned.
    pub qpn_reuse: QpnPolicy,
}

impl Default for NetworkOptions {
    fn default() -> Self {
        NetworkOptions {
            seed: 0,
            latency: Duration::ZERO,
            jitter: Duration::ZERO,
            paths: 1,
            loss: 0.0,
            rnr: 0.0,
            reliability: Reliability::default(),
            qpn_reuse: QpnPolicy::default(),
        }
    }
}

impl NetworkOptions {
    /// The least excess of the longest path over the shortest: enough for a packet to overtake
    /// packets that were sent just before it.
    const SHORTEST_SPREAD: Duration = Duration::from_micros(10);

    /// The network that these options describe.
    pub fn config(&self) -> NetworkConfig {
        let probability = |value| Probability::new(value).unwrap_or(Probability::NEVER);
        NetworkConfig {
            paths: self.paths,
            latency: self.latency,
            path_spread: self.latency.max(Self::SHORTEST_SPREAD),
            jitter: self.jitter,
            loss: probability(self.loss),
            rnr: probability(self.rnr),
            reliability: self.reliability,
            ..NetworkConfig::perfect()
        }
    }

    /// The network of each packet in a fabric that inverts these bits of GIDs.
    pub(crate) fn network(&self, inverted: u128) -> Network {
        Network::new(self.config(), self.seed).for_inverted_gids(inverted)
    }
}

impl fmt::Display for NetworkOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed={},latency={}ns,jitter={}ns,paths={},loss={},rnr={},retransmit-timeout={}ns,\
             attempts={},qpn-reuse={}",
            self.seed,
            self.latency.as_nanos(),
            self.jitter.as_nanos(),
            self.paths,
            self.loss,
            self.rnr,
            self.reliability.timeout.as_nanos(),
            self.reliability.attempts,
            self.qpn_reuse
        )
    }
}

impl FromStr for NetworkOptions {
    type Err = FabricError;

    fn from_str(text: &str) -> Result<Self, FabricError> {
        let mut options = NetworkOptions::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| option_error(part, "", "an option has the form name=value"))?;
            match name {
                "seed" => options.seed = number(name, value, "a number of 64 bits")?,
                "latency" => options.latency = parse_duration(name, value)?,
                "jitter" => options.jitter = parse_duration(name, value)?,
                "paths" => {
                    options.paths = number(name, value, "a number from 1 to 1024")?;
                    if !(1..=1024).contains(&options.paths) {
                        return Err(option_error(name, value, "a number from 1 to 1024"));
                    }
                }
                "loss" => {
                    options.loss = number(name, value, "a probability below 1")?;
                    if !(0.0..1.0).contains(&options.loss) {
                        return Err(option_error(name, value, "a probability below 1"));
                    }
                }
                "rnr" => {
                    options.rnr = number(name, value, "a probability from 0 to 1")?;
                    if !(0.0..=1.0).contains(&options.rnr) {
                        return Err(option_error(name, value, "a probability from 0 to 1"));
                    }
                }
                "retransmit-timeout" => {
                    options.reliability.timeout = parse_duration(name, value)?;
                    if options.reliability.timeout.is_zero() {
                        return Err(option_error(name, value, "a time above zero"));
                    }
                }
                "attempts" => {
                    const EXPECTED: &str = "a number from 1 to 16";
                    let attempts = number(name, value, EXPECTED)?;
                    if !(1..=Reliability::MOST_ATTEMPTS).contains(&attempts) {
                        return Err(option_error(name, value, EXPECTED));
                    }
                    options.reliability.attempts = attempts;
                }
                "qpn-reuse" => {
                    options.qpn_reuse = number(name, value, "lowest, oldest or random")?;
                }
                _ => {
                    return Err(option_error(
                        name,
                        value,
                        "known are seed, latency, jitter, paths, loss, rnr, retransmit-timeout, \
                         attempts and qpn-reuse",
                    ));
                }
            }
        }
        Ok(options)
    }
}

fn option_error(option: &str, value: &str, expected: &'static str) -> FabricError {
    FabricError::NetworkOption {
        option: option.to_owned(),
        value: value.to_owned(),
        expected,
    }
}

fn number<T: FromStr>(name: &str, value: &str, expected: &'static str) -> Result<T, FabricError> {
    value
        .parse()
        .map_err(|_| option_error(name, value, expected))
}

/// Reads a duration of the command line: a whole or decimal number with the unit `ns`, `us`, `ms`
/// or `s`, at most one minute. `option` names it in errors.
pub fn parse_duration(option: &str, value: &str) -> Result<Duration, FabricError> {
    duration::parse(value).ok_or_else(|| option_error(option, value, duration::EXPECTED))
}

/// How RDMA moves data between two processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RdmaPath {
    /// The target copies straight between the two address spaces (`process_vm_readv`,
    /// `process_vm_writev`) where the system permits it, else through the rings.
    #[default]
    Auto,
    /// Always through the rings.
    Rings,
}

/// The emulated host that a process belongs to, and how its device and network behave.
#[derive(Clone, PartialEq, Debug)]
pub struct HostConfig {
    /// The name of the fabric.
    pub fabric: String,
    /// The name of the host.
    pub host: String,
    /// GIDs of the host's devices; none: one device, whose GID is derived from the name.
    pub gids: Vec<Gid>,
    /// The index of the opened device among those of the host.
    pub device: u32,
    /// Name of the device profile, or the path of its file.
    pub profile: String,
    /// The delays and losses of all its frames.
    pub network: NetworkOptions,
    /// How the data of RDMA operations is moved.
    pub rdma: RdmaPath,
    /// The device serves RDMA of hosts for which it has no address handle, which it refuses else
    /// (`Profile::unknown_peer_check`).
    pub serve_unknown_peers: bool,
    /// The number of the run's participation in each device of the host, if a run started the
    /// process: captures that the run requests are of its processes
    /// ([`Host::participant`](crate::Host::participant)).
    pub run: Vec<u32>,
    /// Bytes of each ring to a peer process; rounded to whole pages and limited to 64 KiB .. 1 MiB.
    pub ring_bytes: usize,
}

impl HostConfig {
    /// Default size of a ring in bytes: about 100 full packets.
    pub const DEFAULT_RING_BYTES: usize = 1 << 20;

    /// A host on a fabric, everything else at its default.
    pub fn new(fabric: &str, host: &str) -> HostConfig {
        HostConfig {
            fabric: fabric.to_owned(),
            host: host.to_owned(),
            gids: Vec::new(),
            device: 0,
            profile: DEFAULT_PROFILE.to_owned(),
            network: NetworkOptions::default(),
            rdma: RdmaPath::default(),
            serve_unknown_peers: false,
            run: Vec::new(),
            ring_bytes: Self::DEFAULT_RING_BYTES,
        }
    }

    /// The name of the device that is opened.
    pub fn device_name(&self) -> DeviceName {
        DeviceName::new(&self.host, self.device, self.gids.len().max(1) as u32)
    }

    /// The run's participation in the device that is opened.
    pub(crate) fn run(&self) -> Option<ParticipantId> {
        self.run
            .get(self.device as usize)
            .copied()
            .map(ParticipantId)
    }

    /// The GID of the device that is opened; `None`: derived from the name.
    pub fn gid(&self) -> Option<Gid> {
        self.gids.get(self.device as usize).copied()
    }

    /// Reads the configuration that `efa-emu run` left in the environment, for the host's first
    /// device.
    pub fn from_env() -> Result<HostConfig, FabricError> {
        Self::from_lookup(|variable| match std::env::var(variable) {
            Ok(value) => Ok(Some(value)),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(error) => Err(FabricError::Environment {
                variable,
                problem: error.to_string(),
            }),
        })
    }

    /// As [`HostConfig::from_env`], from any source of variables.
    fn from_lookup(
        lookup: impl Fn(&'static str) -> Result<Option<String>, FabricError>,
    ) -> Result<HostConfig, FabricError> {
        let host = lookup(ENV_HOST)?.ok_or_else(|| FabricError::Environment {
            variable: ENV_HOST,
            problem: "is not set".to_owned(),
        })?;
        let fabric = lookup(ENV_FABRIC)?.unwrap_or_else(|| DEFAULT_FABRIC.to_owned());
        let mut config = HostConfig::new(&fabric, &host);
        if let Some(text) = lookup(ENV_GID)? {
            let gids = text.split(',').map(str::parse::<std::net::Ipv6Addr>);
            let gids: Result<Vec<_>, _> = gids.map(|gid| gid.map(Gid::from)).collect();
            config.gids = gids.map_err(|_| FabricError::Environment {
                variable: ENV_GID,
                problem: format!("is {text:?}, not IPv6 addresses with commas between them"),
            })?;
        }
        if let Some(profile) = lookup(ENV_PROFILE)? {
            config.profile = profile;
        }
        if let Some(network) = lookup(ENV_NETWORK)? {
            config.network = network.parse()?;
        }
        let run = lookup(ENV_RUN)?.unwrap_or_default();
        let participants = run.split_terminator(',').map(str::parse);
        config.run =
            participants
                .collect::<Result<_, _>>()
                .map_err(|_| FabricError::Environment {
                    variable: ENV_RUN,
                    problem: format!("is {run:?}, not numbers with commas between them"),
                })?;
        match lookup(ENV_UNKNOWN_PEERS)?.as_deref() {
            None | Some("refuse") => {}
            Some("serve") => config.serve_unknown_peers = true,
            Some(other) => {
                return Err(FabricError::Environment {
                    variable: ENV_UNKNOWN_PEERS,
                    problem: format!("is {other:?}, not `refuse` or `serve`"),
                });
            }
        }
        match lookup(ENV_RDMA)?.as_deref() {
            None | Some("auto") => {}
            Some("rings") => config.rdma = RdmaPath::Rings,
            Some(other) => {
                return Err(FabricError::Environment {
                    variable: ENV_RDMA,
                    problem: format!("is {other:?}, not `auto` or `rings`"),
                });
            }
        }
        Ok(config)
    }

    /// The environment variables from which [`HostConfig::from_env`] in a started program reads
    /// this configuration.
    pub fn to_env(&self) -> Vec<(&'static str, String)> {
        let mut variables = vec![
            (ENV_FABRIC, self.fabric.clone()),
            (ENV_HOST, self.host.clone()),
            (ENV_PROFILE, self.profile.clone()),
            (ENV_NETWORK, self.network.to_string()),
        ];
        // Always set, so that a run inside a run does not inherit it.
        let unknown_peers = match self.serve_unknown_peers {
            true => "serve",
            false => "refuse",
        };
        variables.push((ENV_UNKNOWN_PEERS, unknown_peers.to_owned()));
        if !self.gids.is_empty() {
            let gids: Vec<_> = self.gids.iter().map(Gid::to_string).collect();
            variables.push((ENV_GID, gids.join(",")));
        }
        let run: Vec<_> = self.run.iter().map(u32::to_string).collect();
        variables.push((ENV_RUN, run.join(",")));
        if self.rdma == RdmaPath::Rings {
            variables.push((ENV_RDMA, "rings".to_owned()));
        }
        variables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_options_round_trip() {
        let options = NetworkOptions {
            seed: 7,
            latency: Duration::from_nanos(10_001),
            jitter: Duration::from_millis(3),
            paths: 16,
            loss: 0.001,
            rnr: 1.0,
            reliability: Reliability {
                timeout: Duration::from_millis(20),
                attempts: 4,
            },
            qpn_reuse: QpnPolicy::Random,
        };
        assert_eq!(
            options.to_string().parse::<NetworkOptions>().unwrap(),
            options
        );
        let defaults: NetworkOptions = "".parse().unwrap();
        assert!(defaults.config().is_immediate() && !options.config().is_immediate());
    }

    #[test]
    fn bad_network_options_name_the_option() {
        for text in [
            "loss=1",
            "loss=-0.1",
            "loss=nan",
            "paths=0",
            "paths=1025",
            "latency=5",
            "latency=5m",
            "latency=61s",
            "latency=-1s",
            "seed=x",
            "rnr=1.1",
            "qpn-reuse=newest",
            "retransmit-timeout=0s",
            "attempts=0",
            "attempts=17",
            "speed=1",
            "seed",
        ] {
            let error = text.parse::<NetworkOptions>().unwrap_err().to_string();
            let name = text.split('=').next().unwrap();
            assert!(error.contains(name), "{text}: {error}");
        }
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(
            parse_duration("x", "1.5ms").unwrap(),
            Duration::from_micros(1500)
        );
        assert_eq!(parse_duration("x", "1ns").unwrap(), Duration::from_nanos(1));
        assert_eq!(parse_duration("x", "0s").unwrap(), Duration::ZERO);
        for longest in ["60s", "60000000000ns"] {
            assert_eq!(
                parse_duration("x", longest).unwrap(),
                Duration::from_secs(60)
            );
        }
    }

    #[test]
    fn configuration_survives_the_environment() {
        let mut config = HostConfig::new("lab", "alpha");
        let gid = |last| Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, last]);
        config.gids = vec![gid(7), gid(8)];
        config.network.paths = 4;
        config.rdma = RdmaPath::Rings;
        config.run = vec![3, 5];
        let variables = config.to_env();
        let found = HostConfig::from_lookup(|name| {
            Ok(variables
                .iter()
                .find(|(variable, _)| *variable == name)
                .map(|(_, value)| value.clone()))
        });
        let mut found = found.unwrap();
        assert_eq!(found, config);
        assert_eq!(found.device_name().to_string(), "alpha:0");
        found.device = 1;
        assert_eq!(found.device_name().to_string(), "alpha:1");
        assert_eq!(found.gid(), Some(gid(8)));
        let error = HostConfig::from_lookup(|_| Ok(None))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(ENV_HOST) && error.contains("efa-emu run"),
            "{error}"
        );
    }
}
