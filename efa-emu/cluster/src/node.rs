//! An emulated host as a process: it has the host's namespaces, executes clients' requests, and is
//! the parent of all processes of the host. The host exists as long as this process.

use std::ffi::{CStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Access, access};

use crate::files::OPEN_MPI_FILE;
use crate::host::{EmulatedHost, Injection, SysfsError};
use crate::launchers::{self, Environment};
use crate::namespaces::{self, UserNamespace, Views};
use crate::service::{self, Service};
use crate::session::{CommandRequest, Reply};

/// The common state of all hosts' processes.
pub(crate) struct NodeContext<'a> {
    pub(crate) injection: &'a Injection,
    pub(crate) environment: &'a Environment,
    /// `None`: the system does not permit one.
    pub(crate) namespace: Option<&'a UserNamespace>,
    pub(crate) views: &'a Views,
    /// Whether to fail if a host's devices are not in its `/sys` and `/dev`.
    pub(crate) requires_view: bool,
}

/// The reason why a host's process cannot serve, which it sends to the cluster.
#[derive(Debug, thiserror::Error)]
enum NodeError {
    #[error(transparent)]
    Sysfs(#[from] SysfsError),
    #[error("cannot make {host} a machine of its own: {source}")]
    Namespaces { host: String, source: io::Error },
    #[error("--sysfs: {}", not_shown(.0))]
    View(io::Error),
    #[error(transparent)]
    System(#[from] io::Error),
}

fn not_shown(error: &io::Error) -> String {
    format!("the devices are not in /sys and /dev of the hosts: {error}")
}

/// The serving process of a host.
struct Node<'a> {
    host: &'a EmulatedHost,
    common: &'a NodeContext<'a>,
    directory: &'a Path,
    sysfs_root: PathBuf,
    /// Additional variables of this host.
    variables: Vec<(&'static str, OsString)>,
    /// The reason why its devices are not in `/sys` and `/dev`, if any.
    shortcoming: Option<String>,
    user: User,
}

/// Serves as the host until the cluster ends. Reports to `cluster` that it is ready, or the error.
pub(crate) fn serve(
    host: &EmulatedHost,
    directory: &Path,
    common: &NodeContext<'_>,
    mut cluster: UnixStream,
) {
    match Node::begin(host, directory, common, &cluster) {
        Ok((node, service)) => {
            let started = node.shortcoming.clone();
            started
                .map_or(Reply::Started, Reply::StartedWithout)
                .send(&mut cluster);
            let mut live = host.live_sysfs(&node.sysfs_root);
            service.run(|request| node.command(request), || live.update());
        }
        Err(error) => Reply::Refused(error.to_string()).send(&mut cluster),
    }
}

impl<'a> Node<'a> {
    fn begin(
        host: &'a EmulatedHost,
        directory: &'a Path,
        common: &'a NodeContext<'a>,
        cluster: &UnixStream,
    ) -> Result<(Node<'a>, Service), NodeError> {
        service::detach()?;
        let sysfs_root = directory.join("sysfs");
        std::fs::create_dir(&sysfs_root)?;
        host.generate_sysfs(&sysfs_root)?;
        let own = directory.join("tmp");
        std::fs::create_dir(&own)?;
        let mut shortcoming = None;
        if let Some(namespace) = common.namespace {
            namespace
                .enter_as_host(host.name(), common.views)
                .map_err(|source| NodeError::Namespaces {
                    host: host.name().to_owned(),
                    source,
                })?;
            if let Err(error) = namespaces::show_boot_id(host.name(), directory) {
                shortcoming = Some(format!(
                    "the hosts share one boot_id, so programs that compare it take them for one machine: {error}"
                ));
            }
            if let Err(error) = host.device_view(&sysfs_root).show() {
                match common.requires_view {
                    true => return Err(NodeError::View(error)),
                    false => shortcoming = Some(not_shown(&error)),
                }
            }
        }
        let service = Service::begin(directory, cluster)?;
        let node = Node {
            host,
            common,
            directory,
            sysfs_root,
            variables: launchers::of_host(&own),
            shortcoming,
            user: User::current(),
        };
        Ok((node, service))
    }

    /// A command, started as by sshd: by the user's shell, in the home directory.
    fn command(&self, request: &CommandRequest) -> Command {
        let mut command = Command::new(&self.user.shell);
        match &request.command {
            Some(text) => command.arg("-c").arg(text),
            // With this name it starts as a login shell.
            None => command.arg0(self.user.login_name()),
        };
        command
            .current_dir(&self.user.home)
            .env("HOME", &self.user.home)
            .env("SHELL", &self.user.shell)
            .env("HOSTNAME", self.host.name());
        self.common.environment.apply(&mut command);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if let Some(name) = &self.user.name {
            command.env("USER", name).env("LOGNAME", name);
        }
        self.host
            .prepare(&mut command, &self.sysfs_root, self.common.injection);
        if let Some(text) = &request.command {
            command.envs(launchers::remedies(text));
            if launchers::is_open_mpi(text) {
                // Only used for a message of the cluster, so errors are ignored.
                let _ = std::fs::write(self.directory.join(OPEN_MPI_FILE), "");
            }
        }
        command.envs(request.variables.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// The user, from the system's user database.
pub(crate) struct User {
    pub(crate) name: Option<OsString>,
    home: PathBuf,
    shell: PathBuf,
}

impl User {
    pub(crate) fn current() -> User {
        let mut user = User {
            name: None,
            home: "/".into(),
            shell: "/bin/sh".into(),
        };
        // SAFETY: the process has one thread; the strings are copied before the next call.
        let entry = unsafe { libc::getpwuid(rustix::process::geteuid().as_raw()).as_ref() };
        let Some(entry) = entry else {
            return user;
        };
        let text = |pointer| {
            // SAFETY: fields of an entry are strings.
            let bytes = unsafe { CStr::from_ptr(pointer) }.to_bytes();
            OsString::from_vec(bytes.to_vec())
        };
        user.name = Some(text(entry.pw_name));
        let home = PathBuf::from(text(entry.pw_dir));
        // The home directory may be inaccessible, for example the system root's for root of a user
        // namespace. sshd ignores it in this case as well.
        if access(&home, Access::EXEC_OK).is_ok() && home.is_dir() {
            user.home = home;
        }
        let shell = PathBuf::from(text(entry.pw_shell));
        let refuses = shell.ends_with("nologin") || shell.ends_with("false");
        if shell.is_file() && !refuses {
            user.shell = shell;
        }
        user
    }

    fn login_name(&self) -> OsString {
        let mut name = OsString::from("-");
        name.push(self.shell.file_name().unwrap_or_default());
        name
    }
}
