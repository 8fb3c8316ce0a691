//! The processes of the hosts.

use std::ffi::OsStr;
use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use efa_commands::RunDirectory;
use efa_shm::ENV_HOST;
use rustix::net::RecvFlags;

use crate::complain;
use crate::files::ENV_CLUSTER;
use crate::gateway;
use crate::host::EmulatedHost;
use crate::members::Members;
use crate::node::{self, NodeContext};
use crate::process::{self, Forked};
use crate::session::Reply;

/// Interval of checks whether all hosts are alive.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The reason why the processes of the hosts do not start.
#[derive(Debug, thiserror::Error)]
pub enum NodesError {
    /// The reason of a host's process, as it has sent it.
    #[error("{0}")]
    Refused(String),
    /// The process of a host has ended without a reason.
    #[error("{host} has ended while it started")]
    Ended {
        /// The name of the host.
        host: String,
    },
    /// A call of the system failed.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// The processes of the hosts. They end when this is dropped.
pub struct Nodes {
    processes: Vec<NodeProcess>,
    directory: PathBuf,
    shortcoming: Option<String>,
}

struct NodeProcess {
    name: String,
    process: i32,
    /// Closed when either side exits.
    connection: UnixStream,
    has_ended: bool,
}

impl Nodes {
    pub(crate) fn start(
        hosts: &[EmulatedHost],
        members: &Members<'_>,
        directory: &RunDirectory,
        common: &NodeContext<'_>,
    ) -> Result<Nodes, NodesError> {
        let mut nodes = Nodes {
            processes: Vec::new(),
            directory: directory.path().to_owned(),
            shortcoming: None,
        };
        for host in hosts {
            nodes.fork(host.name(), directory, |own, cluster| {
                node::serve(host, own, common, cluster);
            })?;
        }
        for gateway in members.gateways() {
            nodes.fork(&gateway.host, directory, |own, cluster| {
                gateway::serve(&gateway, own, cluster);
            })?;
        }
        for node in &mut nodes.processes {
            match Reply::receive(&mut BufReader::new(&node.connection))? {
                Some(Reply::Started) => {}
                Some(Reply::StartedWithout(lack)) => nodes.shortcoming = Some(lack),
                Some(Reply::Refused(reason)) => return Err(NodesError::Refused(reason)),
                _ => {
                    return Err(NodesError::Ended {
                        host: node.name.clone(),
                    });
                }
            }
        }
        Ok(nodes)
    }

    /// The namespaces or files that the hosts lack, if any.
    pub fn shortcoming(&self) -> Option<String> {
        self.shortcoming.clone()
    }

    /// Starts the process of a host, which calls `serve` with its directory and a connection to
    /// this process.
    pub(crate) fn fork(
        &mut self,
        name: &str,
        directory: &RunDirectory,
        serve: impl FnOnce(&Path, UnixStream),
    ) -> io::Result<()> {
        let own: PathBuf = directory.subdirectory(name)?;
        let (ours, theirs) = UnixStream::pair()?;
        match process::fork()? {
            Forked::Child => {
                // Otherwise the hosts that were started before would not notice the end of the
                // cluster.
                self.processes.clear();
                drop(ours);
                let served = catch_unwind(AssertUnwindSafe(|| serve(&own, theirs)));
                process::leave(i32::from(served.is_err()));
            }
            Forked::Parent(process) => self.processes.push(NodeProcess {
                name: name.to_owned(),
                process,
                connection: ours,
                has_ended: false,
            }),
        }
        Ok(())
    }

    /// Reports the hosts that have exited since the last call. Returns the time until the next
    /// call.
    pub fn look(&mut self) -> Duration {
        for node in self.processes.iter_mut().filter(|node| !node.has_ended) {
            let received = rustix::net::recv(&node.connection, &mut [0; 1], RecvFlags::DONTWAIT);
            if received.is_ok_and(|(_, bytes)| bytes == 0) {
                node.has_ended = true;
                process::kill_where(&[
                    (ENV_CLUSTER, self.directory.as_os_str()),
                    (ENV_HOST, OsStr::new(&node.name)),
                ]);
                complain(&format!("{} has ended, and what ran there", node.name));
            }
        }
        POLL_INTERVAL
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        let processes: Vec<_> = self.processes.drain(..).map(|node| node.process).collect();
        for process in processes {
            process::wait_for(process);
        }
    }
}
