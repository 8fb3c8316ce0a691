//! The command: its options, and the course of a run.

use std::env;
use std::ffi::OsString;
use std::num::NonZeroU64;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Args;
use efa_commands::{Failure, RunDirectory, child};
use efa_shm::Fabric;
use rustix::thread::set_current_timer_slack;

use super::files::{AGENT, ENV_CLUSTER, FABRIC_FILE};
use super::launchers::{self, Middleware};
use super::layout::Layout;
use super::members::MachinesOptions;
use super::memory;
use super::names::{self, HostLists};
use super::namespaces::{UserNamespace, Views};
use super::node::Common;
use super::nodes::Nodes;
use crate::run::host::{EmulatedHosts, HostOptions, HostSettings, duration};
use crate::{capture, complain, leftovers, uplink};

/// Many ranks on few processors do little but end sleeps if the kernel's own 50 us hold. Programs
/// that sleep for a moment in a cluster of few ranks hardly notice this (docs/cluster.md).
const TIMER_SLACK: &str = "1ms";

#[derive(Args)]
#[command(override_usage = "efa-emu cluster N [OPTIONS] -- COMMAND [ARG]...")]
pub(crate) struct ClusterArguments {
    /// The number of hosts, which are called node0, node1 and so on.
    #[arg(value_name = "N")]
    hosts: u32,
    /// The library through which MPI libraries reach the device.
    #[arg(long, value_enum, value_name = "ofi|ucx", default_value_t = Middleware::Ofi)]
    mpi: Middleware,
    /// Processes of a job that a host gets before the next host gets any. Without it, each host in
    /// turn gets one.
    #[arg(long, value_name = "N")]
    slots: Option<u32>,
    /// How much later than a program asks the kernel may end its sleeps, so that ranks which wait
    /// for others, and look again every 100 us, leave the processors to those; `0s` leaves it as it
    /// is.
    #[arg(long, value_name = "DURATION", value_parser = duration("timer-slack"), default_value = TIMER_SLACK)]
    timer_slack: Duration,
    /// Do without namespaces: the hosts have the machine's name and shared memory in common.
    #[arg(long)]
    no_namespaces: bool,
    #[command(flatten)]
    options: HostOptions,
    #[command(flatten)]
    pub(super) machines: MachinesOptions,
    /// The program that starts others on the hosts, and its arguments. It runs beside the hosts.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

impl ClusterArguments {
    pub(crate) fn execute(self) -> Result<ExitCode, Failure> {
        memory::check_number(self.hosts)?;
        let layout = self.machines.layout(self.hosts)?;
        let settings = self.options.checked()?;
        memory::check(layout.own().len() as u32, &settings)?;
        if settings.is_recorded() && !layout.others().is_empty() {
            return Err(Failure(
                "--pcap records the hosts of one machine: with --machines, run `efa-emu capture` on each of them"
                    .to_owned(),
            ));
        }
        let mut members = self.machines.start_others(&layout, &self.command)?;
        let fabric = settings.fabric();
        let mut uplink = self.machines.join(&layout, fabric, settings.is_quiet())?;
        let hosts = enter_hosts(&settings, &layout)?;
        let rules = match layout.is_member() {
            // One machine's rules hold on all.
            true => Vec::new(),
            false => settings.arm(&hosts[0])?,
        };
        members.wait(&layout, fabric, &mut uplink)?;

        Fabric::remove_dead();
        leftovers::remove();
        let directory = RunDirectory::create()?;
        let lists = HostLists::write(directory.path(), &layout, self.slots)?;
        std::fs::write(directory.path().join(FABRIC_FILE), fabric.name())?;
        let injection = settings.inject(&directory)?;
        let programs = directory.subdirectory("bin")?;
        let agent = programs.join(AGENT);
        symlink(env::current_exe()?, &agent)?;

        let views = Views::new(&lists.addresses, &[fabric.directory(), directory.path()]);
        let namespace = match self.no_namespaces {
            true => None,
            false => UserNamespace::create(&views)
                .inspect_err(|error| {
                    complain(&format!(
                        "the system permits no user namespaces ({error}): the hosts have the machine's name and \
                         shared memory in common"
                    ));
                })
                .ok(),
        };
        let mut variables = launchers::Cluster {
            middleware: self.mpi,
            provider: settings.provider(),
            lists: &lists,
            agent: &agent,
            slots: self.slots,
            isolated: namespace.is_some(),
            is_alone: layout.others().is_empty(),
        }
        .variables();
        variables.push((ENV_CLUSTER, directory.path().into()));
        variables.push(("PATH", search_path(&programs)?));

        hosts.wait_for_bridges(fabric)?;
        hosts.wait_for_recorders(fabric)?;
        let mut recording = settings.record(&hosts)?;
        let common = Common {
            injection: &injection,
            variables: &variables,
            namespace: namespace.as_ref(),
            views: &views,
        };
        inherit_timer_slack(self.timer_slack)?;
        let mut nodes = Nodes::start(&hosts, &members, &directory, &common)?;
        let (program, arguments) = self.command.split_first().expect("clap requires a command");
        let mut command = Command::new(program);
        command
            .args(arguments)
            .envs(variables.iter().map(|(name, value)| (name, value)));
        if let Some(namespace) = namespace {
            let views = views.clone();
            let enter = move || namespace.enter_beside_hosts(&views);
            // SAFETY: this process has one thread, so that its copy may do anything.
            unsafe { command.pre_exec(enter) };
        }
        let meanwhile = || {
            let told = uplink::turn(&mut uplink);
            members.look();
            told.min(nodes.look().min(capture::turn(&mut recording)))
        };
        let status = child::run(&mut command, meanwhile)
            .map_err(|error| child::cannot_start(program, &error))?;
        let idle_rules = settings.idle_rules(&rules);
        // What the cluster has made goes before it does.
        drop(nodes);
        drop(members);
        let unused = match layout.is_member() {
            // The programs that may use the devices are not known here.
            true => None,
            false => settings.unused(&hosts, &injection),
        };
        let recorded = recording.map_or_else(Vec::new, capture::RunRecording::end);
        drop(directory);
        drop(hosts);
        leftovers::remove();
        settings.tell(unused.into_iter().chain(idle_rules).chain(recorded));
        Ok(child::end_as(status))
    }
}

/// Takes part in the hosts of the cluster on this machine, which are new.
fn enter_hosts(settings: &HostSettings, layout: &Layout) -> Result<EmulatedHosts, Failure> {
    let fabric = settings.fabric();
    let known = fabric.hosts()?;
    let names: Vec<_> = layout.own().map(names::name).collect();
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

/// Sets how much later than they ask the sleeps of this thread may end, and those of all processes
/// that descend from it.
fn inherit_timer_slack(slack: Duration) -> Result<(), Failure> {
    // Durations of the command line are at most a minute.
    match NonZeroU64::new(slack.as_nanos() as u64) {
        None => Ok(()),
        some => Ok(set_current_timer_slack(some)?),
    }
}

/// `PATH` with a directory in front.
fn search_path(first: &Path) -> Result<OsString, Failure> {
    let inherited = env::var_os("PATH").unwrap_or_default();
    let directories = std::iter::once(first.to_owned()).chain(env::split_paths(&inherited));
    env::join_paths(directories).map_err(|error| {
        Failure(format!(
            "{} cannot be in PATH ({error}): set TMPDIR to another directory",
            first.display()
        ))
    })
}
