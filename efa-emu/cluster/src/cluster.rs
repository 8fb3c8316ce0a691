//! The shared state of a cluster's processes.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use efa_commands::{Failure, RunDirectory, shared_memory};
use efa_shm::{ENV_FABRICS, Fabric};

use crate::files::{AGENT, ENV_CLUSTER, FABRIC_FILE, OPEN_MPI_FILE};
use crate::host::{EmulatedHost, Injection};
use crate::launchers::{self, Environment, Launchers, Middleware, Provider};
use crate::layout::Layout;
use crate::members::Members;
use crate::names::HostLists;
use crate::namespaces::{self, UserNamespace, Views};
use crate::node::Common;
use crate::nodes::Nodes;

/// How programs are started on the hosts of a cluster.
#[derive(Debug)]
pub struct ClusterOptions {
    /// Through which library MPI libraries reach the device.
    pub middleware: Middleware,
    /// The provider of libfabric that all programs are to use, if one is named.
    pub provider: Option<Provider>,
    /// The processes that a host takes before the next one gets any; `None`: one to each in turn.
    pub slots: Option<u32>,
    /// Each host has a name and shared memory of its own, if the system permits it.
    pub isolated: bool,
    /// There is no cluster where programs on a host do not find its devices in `/sys` and `/dev`.
    pub requires_view: bool,
}

/// A cluster's directory, and what its hosts and the command that starts programs on them find.
pub struct Cluster {
    directory: RunDirectory,
    environment: Environment,
    /// `None`: the hosts have the machine's name and shared memory in common.
    namespace: Option<Arc<UserNamespace>>,
    views: Views,
    requires_view: bool,
    shortcoming: Option<String>,
}

impl Cluster {
    /// Makes the cluster's directory and its user namespace. The process must have no other thread.
    ///
    /// # Errors
    /// The directory cannot be made, or its path cannot be in `PATH`.
    pub fn create(
        options: &ClusterOptions,
        layout: &Layout,
        fabric: &Fabric,
    ) -> Result<Cluster, Failure> {
        let directory = RunDirectory::create()?;
        let lists = HostLists::write(directory.path(), layout, options.slots)?;
        std::fs::write(directory.path().join(FABRIC_FILE), fabric.name())?;
        let programs = directory.subdirectory("bin")?;
        let temporary = directory.subdirectory("tmp")?;
        let agent = programs.join(AGENT);
        symlink(env::current_exe()?, &agent)?;

        let views = Views::new(&lists.addresses, &[fabric.directory(), directory.path()]);
        let mut shortcoming = None;
        let namespace = match options.isolated {
            false => None,
            true => UserNamespace::create(&views)?
                .map_err(|error| {
                    shortcoming = Some(format!(
                        "the system permits no user namespaces ({error}): the hosts have the machine's name and \
                         shared memory in common, and programs find them by their addresses only (node0 is 127.1.0.1)"
                    ));
                })
                .ok(),
        };
        if options.requires_view && namespace.is_none() {
            return Err(Failure(
                "--sysfs shows the devices in namespaces of the hosts, and there are none"
                    .to_owned(),
            ));
        }
        let mut variables = Launchers {
            middleware: options.middleware,
            provider: options.provider.as_ref(),
            lists: &lists,
            agent: &agent,
            slots: options.slots,
            temporary: &temporary,
            isolated: namespace.is_some(),
            is_alone: layout.others().is_empty(),
        }
        .variables();
        variables.push((ENV_CLUSTER, directory.path().into()));
        variables.push((ENV_FABRICS, fabric.root().into()));
        variables.push(("PATH", search_path(&programs)?));
        Ok(Cluster {
            directory,
            environment: Environment::new(variables),
            namespace: namespace.map(Arc::new),
            views,
            requires_view: options.requires_view,
            shortcoming,
        })
    }

    /// Why its hosts have not all that they should have of their own, if so.
    pub fn shortcoming(&self) -> Option<String> {
        self.shortcoming.clone()
    }

    /// That something was permitted that would not be elsewhere, if it was done.
    pub fn permitted(&self, hosts: &[EmulatedHost]) -> Option<String> {
        let mut directories = hosts
            .iter()
            .map(|host| self.directory.path().join(host.name()));
        let is_used = directories.any(|directory| directory.join(OPEN_MPI_FILE).exists());
        (is_used && launchers::permits_root()).then(|| {
            "Open MPI, which refuses root, was told to start a job as root (OMPI_ALLOW_RUN_AS_ROOT)"
                .to_owned()
        })
    }

    /// Whether programs on the hosts can make files in the directory of POSIX shared memory.
    pub fn has_shared_memory(&self) -> bool {
        match self.namespace {
            Some(_) => namespaces::has_shared_memory(),
            None => shared_memory().is_some(),
        }
    }

    /// Its directory, which goes with it.
    pub fn directory(&self) -> &RunDirectory {
        &self.directory
    }

    /// Starts the processes of the hosts, and waits until they are ready.
    ///
    /// # Errors
    /// Why one of them cannot be started.
    pub fn start_hosts(
        &self,
        hosts: &[EmulatedHost],
        members: &Members<'_>,
        injection: &Injection,
    ) -> Result<Nodes, Failure> {
        let common = Common {
            injection,
            environment: &self.environment,
            namespace: self.namespace.as_deref(),
            views: &self.views,
            requires_view: self.requires_view,
        };
        Nodes::start(hosts, members, &self.directory, &common)
    }

    /// The command that starts programs on the hosts; it runs beside them.
    ///
    /// Hydra hands the command's variables to the ranks, whatever those of their hosts are. Where the
    /// user has preloaded a library, the emulated ones would not be among them, so that the command
    /// gets both. Without a host they have no device.
    pub fn command(
        &self,
        program: &OsStr,
        arguments: &[OsString],
        injection: &Injection,
    ) -> Command {
        let mut command = Command::new(program);
        command.args(arguments);
        let is_users = |(name, _): &&(&'static str, _)| env::var_os(name).is_some();
        let injected = injection.variables.iter().filter(is_users);
        command.envs(injected.map(|(name, value)| (name, value)));
        self.environment.apply(&mut command);
        if let Some(namespace) = self.namespace.clone() {
            let views = self.views.clone();
            let enter = move || namespace.enter_beside_hosts(&views);
            // SAFETY: this process has one thread, so that its copy may do anything.
            unsafe { command.pre_exec(enter) };
        }
        command
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
