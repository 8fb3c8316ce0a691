//! The emulated host that a program is started on: its options, and the environment of the program.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use clap::Args;
use efa_cluster::{EmulatedHost, EmulatedHosts, Injection};
use efa_commands::{Failure, RunDirectory};
use efa_device_model::fault::{Fault, FaultId, Match};
use efa_device_model::network::Reliability;
use efa_device_model::profile::{self, Profile};
use efa_device_model::qpn_policy::QpnPolicy;
use efa_options::capture_output::CaptureOptions;
use efa_shm::usage;
use efa_shm::{
    DEFAULT_FABRIC, ENV_FABRICS, Fabric, Host, HostConfig, NetworkOptions, PortRules, check_limits,
    parse_duration,
};

use crate::capture::RunRecording;
use crate::injection::{Libraries, Provider};
use crate::output::complain;
use crate::unused::{self, RunFacts};
use crate::{fault, survivors};

/// The options of a host, or of each of several hosts.
#[derive(Args)]
pub(crate) struct HostOptions {
    /// The number of devices of the host, up to 32: by default 1, or the number of the joined host.
    #[arg(long, value_name = "N")]
    devices: Option<u32>,
    /// The network that the host is on.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_FABRIC)]
    fabric: String,
    /// The generation of the device; `efa-emu profiles` lists them. Or the path of a profile's file
    /// (TOML), as `efa-conformance survey` writes it.
    #[arg(long, value_name = "NAME", default_value = Profile::DEFAULT)]
    profile: OsString,
    /// Write the frames that the programs send and receive over the devices to this file (pcapng).
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    #[command(flatten)]
    capture: CaptureOptions,
    /// Arm the rules in this file (TOML) while the program runs; see docs/faults.md.
    #[arg(long, value_name = "FILE")]
    faults: Option<PathBuf>,
    /// Have libfabric find this provider, a plug-in that belongs to efa-emu, and use no other: sets
    /// FI_PROVIDER and FI_PROVIDER_PATH.
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// Serve RDMA of hosts that this one has no address handle for. The device refuses it: status
    /// 14, unknown peer.
    #[arg(long)]
    serve_unknown_peers: bool,
    /// Have programs find the devices in /sys/class/infiniband, among the PCI devices there and in
    /// /dev/infiniband, for those that look themselves. They get mounts of their own, and users
    /// other than root a user namespace.
    #[arg(long)]
    sysfs: bool,
    /// Do not report conditions that would go unnoticed: that no process used the device, or that a
    /// capture is incomplete.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    network: NetworkArguments,
}

#[derive(Args)]
#[command(next_help_heading = "Network options")]
struct NetworkArguments {
    /// Seed of every random choice of this host.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Time that every packet takes: 500ns, 10us, 1.5ms, 1s.
    #[arg(long, value_name = "DUR", default_value = "0ns", value_parser = duration("latency"))]
    latency: Duration,
    /// Upper bound of a random time on top of the latency.
    #[arg(long, value_name = "DUR", default_value = "0ns", value_parser = duration("jitter"))]
    jitter: Duration,
    /// Paths that packets are spread over; with more than one they arrive out of order.
    #[arg(long, value_name = "N", default_value_t = 1)]
    paths: u16,
    /// Probability that a packet is lost and sent again below the reliability layer.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    loss: f64,
    /// Probability that a send finds the receiver not ready.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    rnr: f64,
    /// Time after which a lost packet is sent again; doubled after each loss of it.
    #[arg(long, value_name = "DUR", default_value = "500us", value_parser = duration("retransmit-timeout"))]
    retransmit_timeout: Duration,
    /// The number of times that a packet is sent before its request fails.
    #[arg(long, value_name = "N", default_value_t = Reliability::default().attempts)]
    attempts: u32,
    /// The free queue pair number that the next queue pair gets, if not as the profile says.
    #[arg(long, value_name = "lowest|oldest|random")]
    qpn_reuse: Option<QpnPolicy>,
}

/// A parser whose errors name the option.
pub(crate) fn duration(
    option: &'static str,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| parse_duration(option, text).map_err(|error| error.to_string())
}

impl NetworkArguments {
    /// Uses the options' text form, which checks their ranges.
    fn options(&self, profile: &Profile) -> Result<NetworkOptions, Failure> {
        let options = NetworkOptions {
            seed: self.seed,
            latency: self.latency,
            jitter: self.jitter,
            paths: self.paths,
            loss: self.loss,
            rnr: self.rnr,
            reliability: Reliability {
                timeout: self.retransmit_timeout,
                attempts: self.attempts,
            },
            qpn_reuse: self.qpn_reuse.unwrap_or(profile.qpn_reuse),
        };
        Ok(options.to_string().parse()?)
    }
}

/// The name of a profile or the path of its file, for an environment variable.
fn text_of_profile(profile: OsString) -> Result<String, Failure> {
    profile.into_string().map_err(|profile| {
        Failure(format!(
            "--profile {}: the path of a profile has to be text: rename the file or its directory",
            profile.display()
        ))
    })
}

impl HostOptions {
    /// Checks everything that can be checked before a host exists.
    pub(crate) fn checked(self) -> Result<HostSettings, Failure> {
        match &self.pcap {
            None if self.capture.are_given() => {
                return Err(Failure(
                    "--snaplen and -b say how a capture is written: name its file with --pcap"
                        .into(),
                ));
            }
            Some(file) if file == Path::new("-") => {
                return Err(Failure(
                    "--pcap needs a file, for standard output is the program's: name one, or let \
                     `efa-emu capture` write into a pipe"
                        .into(),
                ));
            }
            _ => {}
        }
        let profile_name = text_of_profile(self.profile)?;
        let profile = Profile::named(&profile_name)?;
        let network = self.network.options(&profile)?;
        let profile_name =
            match profile::is_path(&profile_name) && Profile::by_name(&profile_name).is_none() {
                // Programs may run in another directory.
                true => text_of_profile(std::fs::canonicalize(profile_name)?.into())?,
                false => profile_name,
            };
        let rules = match &self.faults {
            Some(file) => fault::read_rules(file)?,
            None => Vec::new(),
        };
        let libraries = Libraries::find()?;
        let provider = self.provider.map(Provider::find).transpose()?;
        check_limits()?;
        Ok(HostSettings {
            fabric: Fabric::open(&self.fabric)?,
            devices: self.devices,
            profile,
            profile_name,
            network,
            serve_unknown_peers: self.serve_unknown_peers,
            rules,
            libraries,
            provider,
            pcap: self.pcap,
            capture: self.capture,
            sysfs: self.sysfs,
            quiet: self.quiet,
        })
    }
}

/// The checked options of a host.
pub(crate) struct HostSettings {
    fabric: Fabric,
    devices: Option<u32>,
    profile: Profile,
    /// The name by which programs find the profile.
    profile_name: String,
    network: NetworkOptions,
    serve_unknown_peers: bool,
    rules: Vec<Fault>,
    libraries: Libraries,
    provider: Option<Provider>,
    pcap: Option<PathBuf>,
    capture: CaptureOptions,
    sysfs: bool,
    quiet: bool,
}

impl HostSettings {
    /// The network of the host.
    pub(crate) fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The number of devices of a new host.
    pub(crate) fn devices(&self) -> u32 {
        self.devices.unwrap_or(1)
    }

    /// The number of queue pairs of a device.
    pub(crate) fn queue_pairs(&self) -> u32 {
        self.profile.max_qp
    }

    /// Whether programs find the devices in `/sys` and `/dev`.
    pub(crate) fn shows_devices(&self) -> bool {
        self.sysfs
    }

    /// Whether warnings are suppressed.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Whether the hosts' traffic is captured.
    pub(crate) fn is_recorded(&self) -> bool {
        self.pcap.is_some()
    }

    /// The libfabric provider that programs have to use, if one is named.
    pub(crate) fn provider(&self) -> Option<&Provider> {
        self.provider.as_ref()
    }

    /// Enters the host of this name, which is created if needed, or a new one.
    pub(crate) fn enter(&self, name: Option<&str>) -> Result<EmulatedHosts, Failure> {
        let entered = self
            .fabric
            .enter_devices(name, self.devices, &self.profile)?;
        Ok(self.hosts([entered]))
    }

    /// Enters the hosts of these names, which are created if needed.
    pub(crate) fn enter_all(&self, names: &[String]) -> Result<EmulatedHosts, Failure> {
        let entered = self
            .fabric
            .enter_hosts(names, self.devices, &self.profile)?;
        Ok(self.hosts(entered))
    }

    /// Hosts with these devices each.
    fn hosts(&self, entered: impl IntoIterator<Item = Vec<Host>>) -> EmulatedHosts {
        // The rules are read once for all hosts: with more hosts, the processes would wait longer
        // for each other at the registry.
        let port_rules = PortRules::of(&self.fabric).ok();
        let host = |devices: Vec<Host>| {
            let mut config = HostConfig::new(self.fabric.name(), devices[0].name().host());
            config.gids = devices.iter().map(Host::gid).collect();
            config.profile = self.profile_name.clone();
            config.run = devices.iter().map(Host::participant).collect();
            config.network = self.network;
            config.serve_unknown_peers = self.serve_unknown_peers;
            EmulatedHost {
                devices,
                profile: self.profile.clone(),
                port_rules: port_rules.clone(),
                config,
            }
        };
        entered.into_iter().map(host).collect()
    }

    /// Arms the rules of `--faults` as long as `host` exists.
    pub(crate) fn arm(&self, host: &EmulatedHost) -> Result<Vec<FaultId>, Failure> {
        let arm = |rule| host.devices[0].arm(rule).map_err(Failure::from);
        self.rules.iter().map(arm).collect()
    }

    /// A warning for each rule that never matched because it names a host that does not exist.
    pub(crate) fn idle_rules(&self, rules: &[FaultId]) -> Vec<String> {
        // Without an answer there is no warning.
        let armed = self.fabric.armed().unwrap_or_default();
        let idle = armed
            .iter()
            .filter(|rule| rules.contains(&rule.id) && rule.seen == 0);
        idle.filter_map(|rule| {
            let mut hosts = rule.fault.when.iter().flat_map(Match::hosts);
            let missing = hosts.find(|host| self.fabric.find_devices(host).is_err())?;
            Some(format!(
                "no event matched the rule {}, and no host of the fabric {} is called {missing}: `efa-emu ps` lists the \
                 hosts while they run",
                rule.fault,
                self.fabric.name()
            ))
        })
        .collect()
    }

    /// Begins to record to the file of `--pcap`, in which each device of the hosts is an interface.
    pub(crate) fn record<'a>(
        &self,
        hosts: &'a [EmulatedHost],
    ) -> Result<Option<RunRecording<'a>>, Failure> {
        let Some(file) = &self.pcap else {
            return Ok(None);
        };
        let devices = hosts.iter().flat_map(|host| &host.devices);
        RunRecording::begin(file, &self.capture, self.profile.name, devices).map(Some)
    }

    /// The warning about a device that the finished programs did not use.
    pub(crate) fn unused(
        &self,
        hosts: &[EmulatedHost],
        injection: &Injection,
        has_shared_memory: bool,
        status: ExitStatus,
    ) -> Option<String> {
        let mut devices = hosts.iter().flat_map(|host| &host.devices);
        unused::explain(&RunFacts {
            has_received: devices.any(|device| device.statistics().port.rx_pkts > 0),
            has_failed: !status.success(),
            marks: &injection.marks,
            has_shared_memory,
            shows_devices: self.sysfs,
            fabrics: self.fabric.root(),
        })
    }

    /// The warning about programs that outlive the run.
    pub(crate) fn surviving(&self, injection: &Injection) -> Option<String> {
        match self.quiet {
            true => None,
            false => survivors::explain(&injection.marks),
        }
    }

    /// Prints conditions that would otherwise go unnoticed, one line each: the reasons why devices
    /// or rules were not used, and the recorded frames.
    pub(crate) fn tell(&self, lines: impl IntoIterator<Item = String>) {
        if !self.quiet {
            lines.into_iter().for_each(|line| complain(&line));
        }
    }

    /// Creates the links by which programs find the libraries, and the directory of their marks, in
    /// a directory of the run.
    pub(crate) fn inject(&self, directory: &RunDirectory) -> Result<Injection, Failure> {
        let links = directory.subdirectory("lib")?;
        let marks = directory.subdirectory("usage")?;
        usage::mark_run_inside();
        let mut variables = vec![
            self.libraries.preload(),
            self.libraries.search_path(&links)?,
            Libraries::sanitizer_options(),
            (usage::ENVIRONMENT, marks.clone().into()),
            (ENV_FABRICS, self.fabric.root().into()),
        ];
        variables.extend(self.provider.iter().flat_map(Provider::variables));
        Ok(Injection { variables, marks })
    }
}
