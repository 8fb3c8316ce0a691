//! `efa-emu run`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Args;
use efa_core::address::Gid;
use efa_emu::capture;
use efa_emu::device::QpnPolicy;
use efa_emu::network::Reliability;
use efa_emu::numa;
use efa_emu::profile::Profile;
use efa_emu::sysfs::{self, Rail};
use efa_emu::transport::{
    DEFAULT_FABRIC, Fabric, Host, HostConfig, NetworkOptions, check_limits, parse_duration,
};

use super::hw_counters::HwCounters;
use super::injection::Libraries;
use super::state::RunDirectory;
use super::{Failure, child, fault, leftovers, profiles};

/// `ibv_device` has room for paths of this length.
const LONGEST_DEVICE_PATH: usize = 255;

/// How long the program waits for those who record the fabric. They look for new hosts ten times a
/// second.
const RECORDER_PATIENCE: Duration = Duration::from_secs(3);

#[derive(Args)]
#[command(override_usage = "efa-emu run [OPTIONS] -- COMMAND [ARG]...")]
pub(super) struct RunArguments {
    /// Join this host, or be the first on it. Without it, every run is a host of its own.
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// How many devices the host has, up to 32: 1, or as many as the host has that is joined.
    #[arg(long, value_name = "N")]
    devices: Option<u32>,
    /// The network that the host is on.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_FABRIC)]
    fabric: String,
    /// The generation of the device; `efa-emu profiles` lists them.
    #[arg(long, value_name = "NAME", default_value = Profile::DEFAULT)]
    profile: String,
    /// Write what the host's devices send and receive to this file (pcapng).
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Arm the rules in this file (TOML) while the program runs; see docs/faults.md.
    #[arg(long, value_name = "FILE")]
    faults: Option<PathBuf>,
    /// Serve RDMA of hosts that this one has no address handle for. The device refuses it: status 14,
    /// unknown peer.
    #[arg(long)]
    serve_unknown_peers: bool,
    #[command(flatten)]
    network: NetworkArguments,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
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
    /// How often a packet is sent before its request fails.
    #[arg(long, value_name = "N", default_value_t = Reliability::default().attempts)]
    attempts: u32,
    /// Which free queue pair number the next queue pair gets.
    #[arg(long, value_name = "lowest|oldest|random", default_value_t = QpnPolicy::default())]
    qpn_reuse: QpnPolicy,
}

/// A parser whose errors name the option.
fn duration(
    option: &'static str,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| parse_duration(option, text).map_err(|error| error.to_string())
}

impl NetworkArguments {
    /// Goes through the options' text form, which checks their ranges.
    fn options(&self) -> Result<NetworkOptions, Failure> {
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
            qpn_reuse: self.qpn_reuse,
        };
        Ok(options.to_string().parse()?)
    }
}

impl RunArguments {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        let profile = profiles::by_name(&self.profile)?;
        let network = self.network.options()?;
        let rules = match &self.faults {
            Some(file) => fault::read_rules(file)?,
            None => Vec::new(),
        };
        let libraries = Libraries::find()?;
        check_limits()?;
        let devices = Fabric::open(&self.fabric)?.enter_devices(
            self.host.as_deref(),
            self.devices,
            profile.max_qp,
        )?;
        for device in &devices {
            device.announce_profile(profile.name)?;
        }
        let first = &devices[0];
        let mut config = HostConfig::new(&self.fabric, first.name().host());
        config.gids = devices.iter().map(Host::gid).collect();
        config.profile = profile.name.to_owned();
        config.network = network;
        config.serve_unknown_peers = self.serve_unknown_peers;
        for rule in &rules {
            first.arm(rule)?;
        }

        Fabric::remove_dead();
        leftovers::remove();
        let directory = RunDirectory::create()?;
        let sysfs_root = directory.subdirectory("sysfs")?;
        generate_sysfs(&sysfs_root, profile, &config.gids)?;
        let links = directory.subdirectory("lib")?;

        for device in &devices {
            if !device.wait_for_recorders(RECORDER_PATIENCE)? {
                eprintln!(
                    "efa-emu: whoever records the fabric {} does not answer: the capture may lack the first \
                     frames of {}",
                    self.fabric,
                    device.name()
                );
                break;
            }
        }

        let (program, arguments) = self.command.split_first().expect("clap requires a command");
        let mut command = Command::new(program);
        let (preload, libraries_first) = libraries.preload();
        let (search_path, links_first) = libraries.search_path(&links)?;
        command
            .args(arguments)
            .envs(config.to_env())
            .env(sysfs::ENV_SYSFS_PATH, &sysfs_root)
            .env(preload, libraries_first)
            .env(search_path, links_first);
        match &self.pcap {
            Some(file) => {
                command.env(
                    capture::ENVIRONMENT,
                    create_capture(file, profile, &devices)?,
                );
            }
            // A run inside a run is a host of its own.
            None => {
                command.env_remove(capture::ENVIRONMENT);
            }
        }
        let mut counters = HwCounters::open(&sysfs_root, &devices);
        let status = child::run(&mut command, || counters.update())
            .map_err(|error| cannot_start(program, &error))?;
        if !status.success() {
            leftovers::remove();
        }
        // What this run has made goes before it does.
        drop((counters, directory));
        drop(devices);
        Ok(child::end_as(status))
    }
}

fn generate_sysfs(root: &Path, profile: &Profile, gids: &[Gid]) -> Result<(), Failure> {
    let longest = Rail::all(gids.len() as u32)
        .flat_map(|rail| {
            [
                rail.verbs_class_path(root),
                rail.infiniband_class_path(root),
            ]
        })
        .map(|path| path.as_os_str().len())
        .max()
        .unwrap_or(0);
    if longest > LONGEST_DEVICE_PATH {
        return Err(Failure(format!(
            "{} is too long for a device path, which has room for {LONGEST_DEVICE_PATH} bytes: set \
             TMPDIR to a shorter directory",
            root.display()
        )));
    }
    sysfs::generate(root, profile, gids, &numa::of_machine())
        .map_err(|error| Failure(format!("cannot write below {}: {error}", root.display())))
}

fn create_capture(file: &Path, profile: &Profile, devices: &[Host]) -> Result<PathBuf, Failure> {
    let interfaces: Vec<_> = devices
        .iter()
        .map(|device| capture::Interface {
            host: device.name().to_string(),
            profile: profile.name.to_owned(),
            gid: device.gid(),
        })
        .collect();
    capture::create_shared(file, &interfaces).map_err(|error| {
        Failure(format!(
            "cannot create the capture {}: {error}",
            file.display()
        ))
    })
}

fn cannot_start(program: &OsString, error: &std::io::Error) -> Failure {
    let name = program.to_string_lossy();
    let by_path = program.as_bytes().contains(&b'/');
    Failure(match error.kind() {
        std::io::ErrorKind::NotFound if by_path => {
            format!("cannot run {name}: there is no such file: check the path")
        }
        std::io::ErrorKind::NotFound => {
            format!("cannot run {name}: no directory of PATH has it: install it, or give its path")
        }
        std::io::ErrorKind::PermissionDenied => {
            format!("cannot run {name}: it is not an executable file: check it with `ls -l`")
        }
        _ => format!("cannot run {name}: {error}"),
    })
}
