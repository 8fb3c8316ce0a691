//! `efa-emu cluster`: several emulated hosts on this machine, and programs that launchers start on
//! them through `efa-emu rsh`.

use std::ffi::OsString;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use efa_cluster::{
    Cluster, ClusterOptions, CommunicationLibrary, EmulatedHosts, Layout, Machines, memory, uplink,
};
use efa_commands::shell::RemoteShell;
use efa_commands::{Failure, child};
use efa_shm::Fabric;
use rustix::thread::set_current_timer_slack;

use crate::run::host::{HostOptions, HostSettings, duration};
use crate::{capture, leftovers};

/// With the kernel's default of 50 us, many ranks on few processors spend most of their time on
/// waking up. Programs that sleep for a moment in a cluster of few ranks hardly notice this
/// (docs/cluster.md).
const TIMER_SLACK: &str = "1ms";

#[derive(Args)]
#[command(override_usage = "efa-emu cluster N [OPTIONS] -- COMMAND [ARG]...")]
pub(super) struct ClusterArguments {
    /// The number of hosts, which are called node0, node1 and so on.
    #[arg(value_name = "N")]
    hosts: u32,
    /// The library through which MPI libraries reach the device.
    #[arg(long, value_enum, value_name = "ofi|ucx", default_value_t = MpiLibrary::Ofi)]
    mpi: MpiLibrary,
    /// The number of processes of a job on a host before the next host gets any. Without it, each
    /// host in turn gets one.
    #[arg(long, value_name = "N")]
    slots: Option<u32>,
    /// The time by which the kernel may prolong the sleeps of programs, so that ranks which wait
    /// for others, and poll again every 100 us, leave the processors to those; `0s` keeps the
    /// default.
    #[arg(long, value_name = "DURATION", value_parser = duration("timer-slack"), default_value = TIMER_SLACK)]
    timer_slack: Duration,
    /// Do without namespaces: the hosts have the machine's name and shared memory in common.
    #[arg(long, conflicts_with = "sysfs")]
    no_namespaces: bool,
    #[command(flatten)]
    options: HostOptions,
    #[command(flatten)]
    machines: MachinesOptions,
    /// The program that starts others on the hosts, and its arguments. It does not run on a host.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl ClusterArguments {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        memory::check_number(self.hosts)?;
        let machines = self.machines.into_machines();
        let layout = machines.layout(self.hosts)?;
        let settings = self.options.checked()?;
        let fabric = settings.fabric();
        memory::check(
            layout.own().len() as u32,
            settings.devices(),
            settings.queue_pairs(),
            fabric,
        )?;
        if settings.is_recorded() && !layout.others().is_empty() {
            return Err(Failure(
                "--pcap records the hosts of one machine: with --machines, run `efa-emu capture` on each of them"
                    .to_owned(),
            ));
        }
        let mut members = machines.start_others(&layout, &self.command)?;
        let mut uplink = machines.join(&layout, fabric, settings.is_quiet())?;
        let hosts = enter_hosts(&settings, &layout)?;
        let rules = match layout.is_member() {
            // The rules of one machine apply on all.
            true => Vec::new(),
            false => settings.arm(&hosts[0])?,
        };
        members.wait(&layout, fabric, &mut uplink)?;

        Fabric::remove_dead();
        leftovers::remove();
        let options = ClusterOptions {
            middleware: self.mpi.into(),
            provider: settings.provider().map(|provider| efa_cluster::Provider {
                name: provider.name().to_owned(),
                variables: provider.variables().to_vec(),
            }),
            slots: self.slots,
            isolated: !self.no_namespaces,
            requires_view: settings.shows_devices(),
        };
        let cluster = Cluster::create(&options, &layout, fabric)?;
        settings.tell(cluster.shortcoming());
        let injection = settings.inject(cluster.directory())?;
        settings.tell(hosts.wait_for_bridges(fabric)?);
        settings.tell(hosts.wait_for_recorders(fabric)?);
        let mut recording = settings.record(&hosts)?;
        inherit_timer_slack(self.timer_slack)?;
        let mut nodes = cluster.start_hosts(&hosts, &members, &injection)?;
        settings.tell(nodes.shortcoming());
        let (program, arguments) = self.command.split_first().expect("clap requires a command");
        let mut command = cluster.command(program, arguments, &injection);
        let meanwhile = || {
            let told = uplink::turn(&mut uplink);
            members.look();
            told.min(nodes.look().min(capture::turn(&mut recording)))
        };
        let status = child::run(&mut command, meanwhile)
            .map_err(|error| child::cannot_start(program, error))?;
        let idle_rules = settings.idle_rules(&rules);
        let permitted = cluster.permitted(&hosts);
        // Files that depend on the cluster are removed before it.
        drop(nodes);
        drop(members);
        let unused = match layout.is_member() {
            // The programs that may use the devices are unknown here.
            true => None,
            false => {
                let has_shared_memory = cluster.has_shared_memory();
                settings.unused(&hosts, &injection, has_shared_memory, status)
            }
        };
        let recorded = recording.map_or_else(Vec::new, capture::RunRecording::end);
        drop(cluster);
        drop(hosts);
        leftovers::remove();
        let said = unused.into_iter().chain(idle_rules).chain(recorded);
        settings.tell(said.chain(permitted));
        Ok(child::end_as(status))
    }
}

/// The library through which MPI libraries reach the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum MpiLibrary {
    /// libfabric, with its efa provider or the one of `--provider`.
    Ofi,
    /// UCX with SRD queue pairs.
    Ucx,
}

impl From<MpiLibrary> for CommunicationLibrary {
    fn from(library: MpiLibrary) -> CommunicationLibrary {
        match library {
            MpiLibrary::Ofi => CommunicationLibrary::Ofi,
            MpiLibrary::Ucx => CommunicationLibrary::Ucx,
        }
    }
}

#[derive(Args)]
#[command(next_help_heading = "Other machines (docs/machines.md)")]
struct MachinesOptions {
    /// Spread the hosts over these machines, by the names or addresses under which they reach each
    /// other; this one is the first.
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        requires = "uplink_key"
    )]
    machines: Vec<String>,
    /// The key of the bridges that join the machines, made by `efa-emu bridge key`; the same file
    /// on all of them.
    #[arg(long, value_name = "FILE", requires = "machines")]
    uplink_key: Option<PathBuf>,
    /// The port of the bridges on all machines; by default that of `efa-emu bridge`. Two clusters
    /// with a common machine need different ports.
    #[arg(long, value_name = "PORT", requires = "machines", value_parser = clap::value_parser!(u16).range(1..))]
    uplink_port: Option<u16>,
    /// The command that runs commands on other machines. It takes the arguments of ssh.
    #[arg(long, value_name = "COMMAND", default_value = RemoteShell::DEFAULT, requires = "machines")]
    rsh: RemoteShell,
    /// Run the part of a cluster on this machine; the first machine starts this on the others.
    #[arg(long, value_name = "NAME", requires = "machines", hide = true)]
    member: Option<String>,
}

impl MachinesOptions {
    fn into_machines(self) -> Machines {
        Machines {
            machines: self.machines,
            uplink_key: self.uplink_key,
            uplink_port: self.uplink_port,
            rsh: self.rsh,
            member: self.member,
        }
    }
}

/// Enters the hosts of the cluster on this machine, which are new.
fn enter_hosts(settings: &HostSettings, layout: &Layout) -> Result<EmulatedHosts, Failure> {
    let fabric = settings.fabric();
    let known = fabric.hosts()?;
    let names: Vec<_> = layout.own().map(efa_cluster::name).collect();
    if let Some(taken) = known
        .iter()
        .find(|known| names.iter().any(|name| name == known.name.host()))
    {
        return Err(Failure(format!(
            "the fabric {} has a host {} already: another cluster runs there; choose another --fabric",
            fabric.name(),
            taken.name.host()
        )));
    }
    settings.enter_all(&names)
}

/// Sets the time by which the sleeps of this thread, and of all processes that descend from it, may
/// be prolonged.
fn inherit_timer_slack(slack: Duration) -> Result<(), Failure> {
    // Durations of the command line are at most a minute.
    match NonZeroU64::new(slack.as_nanos() as u64) {
        None => Ok(()),
        some => Ok(set_current_timer_slack(some)?),
    }
}
