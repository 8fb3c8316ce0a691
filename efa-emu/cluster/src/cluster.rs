//! The shared state of a cluster's processes.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use efa_commands::{RunDirectory, RunDirectoryError, shared_memory};
use efa_shm::{ENV_FABRICS, Fabric};

use crate::files::{AGENT, ENV_CLUSTER, FABRIC_FILE, OPEN_MPI_FILE};
use crate::host::{EmulatedHost, Injection};
use crate::launchers::{self, CommunicationLibrary, Environment, LauncherInputs, Provider};
use crate::layout::Layout;
use crate::members::Members;
use crate::names::{HostListError, HostLists};
use crate::namespaces::{self, UserNamespace, Views};
use crate::node::NodeContext;
use crate::nodes::{Nodes, NodesError};

/// The reason why a cluster cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The cluster's directory, which its files are in, cannot be created.
    #[error(transparent)]
    Directory(#[from] RunDirectoryError),
    /// A file that lists the hosts cannot be written.
    #[error(transparent)]
    HostList(#[from] HostListError),
    /// `--sysfs` was given, and the hosts share the namespaces of this process.
    #[error("--sysfs shows the devices in namespaces of the hosts, and there are none")]
    NoNamespaces,
    /// The directory of the launchers cannot be put in front of `PATH`.
    #[error("{} cannot be in PATH ({source}): set TMPDIR to another directory", path.display())]
    SearchPath {
        /// The directory of the launchers.
        path: PathBuf,
        /// It contains the character that separates directories in `PATH`.
        source: env::JoinPathsError,
    },
    /// A call of the system failed.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// How programs are started on the hosts of a cluster.
#[derive(Debug)]
pub struct ClusterOptions {
    /// The library through which MPI libraries use the device.
    pub middleware: CommunicationLibrary,
    /// The libfabric provider for all programs, if one is named.
    pub provider: Option<Provider>,
    /// The number of consecutive processes on a host; `None` to place one on each host in turn.
    pub slots: Option<u32>,
    /// Whether each host has a separate name and separate shared memory, if the system permits it.
    pub isolated: bool,
    /// Whether to fail if programs on a host would not find its devices in `/sys` and `/dev`.
    pub requires_view: bool,
}

/// A cluster's directory, and the configuration of its hosts and of the launcher's command.
pub struct Cluster {
    directory: RunDirectory,
    environment: Environment,
    /// `None`: the hosts share the machine's name and shared memory.
    namespace: Option<Arc<UserNamespace>>,
    views: Views,
    requires_view: bool,
    shortcoming: Option<String>,
}

impl Cluster {
    /// Creates the cluster's directory and its user namespace. The process must have no other
    /// thread.
    ///
    /// # Errors
    /// The directory cannot be created, or its path cannot be in `PATH`.
    pub fn create(
        options: &ClusterOptions,
        layout: &Layout,
        fabric: &Fabric,
    ) -> Result<Cluster, ClusterError> {
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
            return Err(ClusterError::NoNamespaces);
        }
        let mut variables = LauncherInputs {
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

    /// The reason why its hosts share more than intended, if any.
    pub fn shortcoming(&self) -> Option<String> {
        self.shortcoming.clone()
    }

    /// A note about permissions that only the cluster grants, if any were used.
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

    /// Whether programs on the hosts can create files in the directory of POSIX shared memory.
    pub fn has_shared_memory(&self) -> bool {
        match self.namespace {
            Some(_) => namespaces::has_shared_memory(),
            None => shared_memory().is_some(),
        }
    }

    /// Its directory, which is removed with it.
    pub fn directory(&self) -> &RunDirectory {
        &self.directory
    }

    /// Starts the processes of the hosts, and waits until they are ready.
    ///
    /// # Errors
    /// One of them cannot be started.
    pub fn start_hosts(
        &self,
        hosts: &[EmulatedHost],
        members: &Members<'_>,
        injection: &Injection,
    ) -> Result<Nodes, NodesError> {
        let common = NodeContext {
            injection,
            environment: &self.environment,
            namespace: self.namespace.as_deref(),
            views: &self.views,
            requires_view: self.requires_view,
        };
        Nodes::start(hosts, members, &self.directory, &common)
    }

    /// The command that starts programs on the hosts. It runs outside of the hosts.
    ///
    /// Hydra passes the command's variables to the ranks, in place of their hosts' variables. If
    /// the user has set LD_PRELOAD, that would replace the emulated libraries, so the command gets
    /// both. Without a host they have no device.
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
            // SAFETY: this process has one thread, so the child may run any code.
            unsafe { command.pre_exec(enter) };
        }
        command
    }
}

/// `PATH` with this directory first.
fn search_path(first: &Path) -> Result<OsString, ClusterError> {
    let inherited = env::var_os("PATH").unwrap_or_default();
    let directories = std::iter::once(first.to_owned()).chain(env::split_paths(&inherited));
    env::join_paths(directories).map_err(|source| ClusterError::SearchPath {
        path: first.to_owned(),
        source,
    })
}
