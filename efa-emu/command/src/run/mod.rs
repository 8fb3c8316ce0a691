//! `efa-emu run`.

pub(super) mod host;
mod uplink;

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use clap::Args;
use efa_commands::{Failure, RunDirectory, child, shared_memory};
use efa_shm::Fabric;

use self::host::HostOptions;
use self::uplink::UplinkOptions;
use super::leftovers;
use efa_cluster::memory;
use efa_cluster::uplink::turn;

#[derive(Args)]
#[command(override_usage = "efa-emu run [OPTIONS] -- COMMAND [ARG]...")]
pub(super) struct RunArguments {
    /// Join this host, or be the first on it. Without it, every run is a host of its own; with
    /// --uplink, the host has this machine's name, as `uname -n` prints it.
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    #[command(flatten)]
    options: HostOptions,
    #[command(flatten)]
    uplink: UplinkOptions,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl RunArguments {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        let settings = self.options.checked()?;
        let (devices, queue_pairs) = (settings.devices(), settings.queue_pairs());
        memory::check_room(1, devices, queue_pairs, settings.fabric())?;
        let name = match self.host {
            None if self.uplink.is_wanted() => Some(name_of_machine()?),
            name => name,
        };
        // An unneeded bridge would run for a while.
        if let Some(name) = &name {
            Fabric::check_host_name(name)?;
        }
        // Before a host is created, so that its name can be one that no other machine has.
        let mut uplink = self.uplink.start(settings.fabric(), settings.is_quiet())?;
        let hosts = settings.enter(name.as_deref())?;
        let host = &hosts[0];
        let rules = settings.arm(host)?;

        Fabric::remove_dead();
        leftovers::remove();
        let directory = RunDirectory::create()?;
        let sysfs_root = directory.subdirectory("sysfs")?;
        host.generate_sysfs(&sysfs_root)?;
        let injection = settings.inject(&directory)?;
        settings.tell(hosts.wait_for_recorders(settings.fabric())?);
        settings.tell(hosts.wait_for_bridges(settings.fabric())?);

        let mut recording = settings.record(&hosts)?;
        let (program, arguments) = self.command.split_first().expect("clap requires a command");
        let mut command = Command::new(program);
        command.args(arguments);
        host.prepare(&mut command, &sysfs_root, &injection);
        if settings.shows_devices() {
            host.device_view(&sysfs_root).prepare(&mut command)?;
        }
        let mut live = host.live_sysfs(&sysfs_root);
        let meanwhile = || {
            let told = turn(&mut uplink);
            let pause = live.update();
            told.min(pause.min(super::capture::turn(&mut recording)))
        };
        let status = child::run(&mut command, meanwhile)
            .map_err(|error| child::cannot_start(program, error))?;
        let unused = settings.unused(&hosts, &injection, shared_memory().is_some(), status);
        if !status.success() {
            leftovers::remove();
        }
        let surviving = settings.surviving(&injection);
        let recorded = recording.map_or_else(Vec::new, super::capture::RunRecording::end);
        let idle_rules = settings.idle_rules(&rules);
        // Files that depend on the run are removed before it.
        drop((live, directory));
        drop(hosts);
        settings.tell(
            unused
                .into_iter()
                .chain(idle_rules)
                .chain(surviving)
                .chain(recorded),
        );
        Ok(child::end_as(status))
    }
}

/// The name of a host that is named after its machine. Launchers expand a command line where a job
/// is submitted, so it cannot include the name of the machine on which it runs.
fn name_of_machine() -> Result<String, Failure> {
    let system = rustix::system::uname();
    let name = system.nodename().to_string_lossy().into_owned();
    match Fabric::check_host_name(&name) {
        Ok(()) => Ok(name),
        Err(error) => Err(Failure(format!(
            "this machine's name cannot be that of a host, which --host gives another one: {error}"
        ))),
    }
}
