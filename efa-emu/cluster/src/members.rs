//! The parts of a cluster on other machines: each is an `efa-emu cluster` there, started through a
//! remote shell with the command line of this one. It ends when the remote shell's standard input
//! is closed, and so with this process.

use std::env;
use std::ffi::OsString;
use std::io::{self, Read as _};
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use efa_commands::process_group::ends_within;
use efa_commands::shell::RemoteShell;
use efa_shm::{Fabric, FabricError};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::complain;
use crate::files::ENV_CLUSTER;
use crate::gateway::Gateway;
use crate::layout::{Layout, LayoutError, OtherMachine};
use crate::names;
use crate::uplink::{Uplink, UplinkError, UplinkParameters};

/// Time limit until the hosts of all machines are ready. Remote shells, bridges and programs start
/// meanwhile.
const PATIENCE: Duration = Duration::from_secs(120);

/// Interval of checks during that time.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum time for the other parts to exit.
const END: Duration = Duration::from_secs(10);

/// The prefix of the line with which a part reports that all its hosts are ready, followed by its
/// directory. Login shells may print something before.
const READY: &str = "efa-emu cluster is ready: ";

/// Maximum length of a stored line.
const LONGEST: usize = 64 << 10;

/// The reason why the parts of a cluster on other machines are not ready.
#[derive(Debug, thiserror::Error)]
pub enum MembersError {
    /// A word of the command line, or the path of the program or its directory.
    #[error("{} cannot be sent to another machine: it is not UTF-8: use another name", .0.display())]
    Word(OsString),
    /// The program that reaches other machines does not start.
    #[error(
        "cannot run {shell} to reach the machine {machine}: {source}: name another command with --rsh"
    )]
    Shell {
        /// The program, and its options.
        shell: RemoteShell,
        /// The machine that was to be reached.
        machine: String,
        /// The reason why the program does not start.
        source: io::Error,
    },
    /// The program that reaches another machine has ended before the part there was ready.
    #[error(
        "the part of the cluster on the machine {machine} could not be started ({status}): see its output above"
    )]
    Ended {
        /// The machine that it reached.
        machine: String,
        /// How it ended.
        status: ExitStatus,
    },
    /// A host of another machine is not in the fabric of this machine in time.
    #[error(
        "{host} of the machine {machine} is not there after {PATIENCE:?}: look at what the bridges say \
         (docs/machines.md)"
    )]
    NoHost {
        /// The first of those that are missing.
        host: String,
        /// The machine that it is on.
        machine: String,
    },
    /// The part on another machine has not reported in time that it is ready.
    #[error(
        "the machine {machine} is not ready after {PATIENCE:?}: look at what the bridges say (docs/machines.md)"
    )]
    NotReady {
        /// The machine that it is on.
        machine: String,
    },
    /// There is no bridge to the other machines.
    #[error(transparent)]
    Uplink(#[from] UplinkError),
    /// The fabric of this machine cannot be read.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A call of the system failed.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// The machines over which the hosts of a cluster are distributed.
#[derive(Debug)]
pub struct Machines {
    /// The names or addresses under which they reach each other, the first one that of the machine
    /// where the cluster is started; empty if all hosts are on this machine.
    pub machines: Vec<String>,
    /// The key of their bridges.
    pub uplink_key: Option<PathBuf>,
    /// The port of the bridges; `None` for the default.
    pub uplink_port: Option<u16>,
    /// The remote shell for the other parts.
    pub rsh: RemoteShell,
    /// The name of this machine, if the first one has started this part of the cluster.
    pub member: Option<String>,
}

impl Machines {
    /// The distribution of the hosts.
    ///
    /// # Errors
    /// As `Layout::spread`.
    pub fn layout(&self, hosts: u32) -> Result<Layout, LayoutError> {
        match self.machines.is_empty() {
            true => Ok(Layout::alone(hosts)),
            false => Layout::spread(hosts, &self.machines, self.member.as_deref()),
        }
    }

    /// Starts the bridge to the other machines.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn join(
        &self,
        layout: &Layout,
        fabric: &Fabric,
        quiet: bool,
    ) -> Result<Option<Uplink>, UplinkError> {
        let (Some(key), [_, ..]) = (&self.uplink_key, layout.others()) else {
            return Ok(None);
        };
        let own = self.member.as_ref().unwrap_or(&self.machines[0]);
        let others = layout.others().iter();
        let peers: Vec<String> = others.map(|part| self.at_port(&part.machine)).collect();
        let wanted = UplinkParameters {
            key,
            listen: &self.at_port(UplinkParameters::EVERYWHERE),
            listen_option: "--uplink-port PORT, which all machines have to have free",
            peers: &peers,
            machine: Some(own),
        };
        Uplink::start(fabric, &wanted, quiet).map(Some)
    }

    /// The address and port of a machine's bridge.
    fn at_port(&self, machine: &str) -> String {
        match self.uplink_port {
            None => machine.to_owned(),
            Some(port) => match machine.parse::<Ipv6Addr>() {
                Ok(address) => format!("[{address}]:{port}"),
                Err(_) => format!("{machine}:{port}"),
            },
        }
    }

    /// Starts the other parts of the cluster, if the cluster was started on this machine. `command`
    /// is the end of this process's command line.
    ///
    /// # Errors
    /// A word of the command line is not valid text, or the remote shell cannot be run.
    pub fn start_others(
        &self,
        layout: &Layout,
        command: &[OsString],
    ) -> Result<Members<'_>, MembersError> {
        let mut members = Members {
            shell: &self.rsh,
            program: String::new(),
            all: Vec::new(),
        };
        if layout.is_member() || layout.others().is_empty() {
            return Ok(members);
        }
        members.program = text(env::current_exe()?.into_os_string())?;
        let directory = text(env::current_dir()?.into_os_string())?;
        let mut words = own_words(command)?;
        words.insert(0, members.program.clone());
        for part in layout.others() {
            members
                .all
                .push(Member::start(part, &self.rsh, &directory, &words)?);
        }
        Ok(members)
    }
}

/// The words of this process's command line before the command.
fn own_words(command: &[OsString]) -> Result<Vec<String>, MembersError> {
    let all: Vec<OsString> = env::args_os().skip(1).collect();
    let mut words = all[..all.len() - command.len()].to_vec();
    words.pop_if(|last| *last == "--");
    words.into_iter().map(text).collect()
}

fn text(word: OsString) -> Result<String, MembersError> {
    word.into_string().map_err(MembersError::Word)
}

/// The other parts of a cluster, which this process has started. They end when this is dropped.
pub struct Members<'a> {
    shell: &'a RemoteShell,
    /// The path of this program, which is the same on the other machines.
    program: String,
    all: Vec<Member>,
}

/// The part on another machine.
struct Member {
    part: OtherMachine,
    /// The remote shell.
    process: Child,
    output: ChildStdout,
    /// Its output before the line that reports readiness.
    said: Vec<u8>,
    /// The part's directory, once it is ready.
    cluster: Option<String>,
    has_ended: bool,
}

impl Member {
    fn start(
        part: &OtherMachine,
        shell: &RemoteShell,
        directory: &str,
        words: &[String],
    ) -> Result<Member, MembersError> {
        let machine = &part.machine;
        // Paths of files are the same as on this machine.
        let front = ["sh", "-c", "cd \"$0\" && exec \"$@\"", directory];
        // Reports readiness, and waits for the end of its input.
        let command = format!("echo \"$0${ENV_CLUSTER}\" && exec cat >/dev/null");
        let back = ["--member", machine, "--", "sh", "-c", &command, READY];
        let owned = |words: &[&str]| {
            words
                .iter()
                .map(|&word| word.to_owned())
                .collect::<Vec<_>>()
        };
        let words = [&owned(&front), words, &owned(&back)].concat();
        let mut process = shell
            .command(machine, &words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|source| MembersError::Shell {
                shell: shell.clone(),
                machine: machine.clone(),
                source,
            })?;
        let output = process.stdout.take().expect("it is a pipe");
        fcntl_getfl(&output)
            .and_then(|flags| fcntl_setfl(&output, flags | OFlags::NONBLOCK))
            .map_err(io::Error::from)?;
        Ok(Member {
            part: part.clone(),
            process,
            output,
            said: Vec::new(),
            cluster: None,
            has_ended: false,
        })
    }

    /// Reads its output until it is ready.
    fn listen(&mut self) -> Result<(), MembersError> {
        let mut bytes = [0; 4096];
        while self.cluster.is_none() {
            match self.output.read(&mut bytes) {
                Ok(0) => {
                    return Err(MembersError::Ended {
                        machine: self.part.machine.clone(),
                        status: self.process.wait()?,
                    });
                }
                Ok(count) => self.said.extend(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            }
            self.cluster = ready(&self.said);
            let excess = self.said.len().saturating_sub(LONGEST);
            self.said.drain(..excess);
        }
        Ok(())
    }
}

/// The directory in a part's line that reports readiness, if that was received.
fn ready(said: &[u8]) -> Option<String> {
    let said = String::from_utf8_lossy(said);
    let mut lines = said
        .split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'));
    lines.find_map(|line| line.strip_prefix(READY).map(str::to_owned))
}

impl Members<'_> {
    /// Waits until the hosts of all machines are in this machine's fabric, and those of each part
    /// in the fabric there.
    ///
    /// # Errors
    /// A part has exited, or is not ready in time.
    pub fn wait(
        &mut self,
        layout: &Layout,
        fabric: &Fabric,
        uplink: &mut Option<Uplink>,
    ) -> Result<(), MembersError> {
        if layout.others().is_empty() {
            return Ok(());
        }
        let begin = Instant::now();
        loop {
            if let Some(bridge) = uplink
                && !bridge.look()?
            {
                // Another bridge is already running.
                *uplink = None;
            }
            for member in &mut self.all {
                member.listen()?;
            }
            let missing = missing(layout, fabric)?;
            let mut members = self.all.iter();
            let silent = members.find(|member| member.cluster.is_none());
            let reason = match (missing, silent) {
                (None, None) => return Ok(()),
                (Some((host, machine)), _) => MembersError::NoHost { host, machine },
                (None, Some(member)) => MembersError::NotReady {
                    machine: member.part.machine.clone(),
                },
            };
            if begin.elapsed() > PATIENCE {
                return Err(reason);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// The hosts of other machines that commands on this machine can reach.
    pub(crate) fn gateways(&self) -> Vec<Gateway<'_>> {
        let ready = self
            .all
            .iter()
            .filter_map(|member| Some((member, member.cluster.as_ref()?)));
        ready
            .flat_map(|(member, cluster)| {
                member.part.hosts.clone().map(move |number| Gateway {
                    host: names::name(number),
                    machine: &member.part.machine,
                    cluster,
                    program: &self.program,
                    shell: self.shell,
                })
            })
            .collect()
    }

    /// Reports the parts that have exited since the last call.
    pub fn look(&mut self) {
        for member in self.all.iter_mut().filter(|member| !member.has_ended) {
            if let Ok(Some(status)) = member.process.try_wait() {
                member.has_ended = true;
                complain(&format!(
                    "the part of the cluster on the machine {} has ended ({status}), and what ran there",
                    member.part.machine
                ));
            }
        }
    }
}

/// A host whose devices are not all in the fabric yet, and its machine.
fn missing(layout: &Layout, fabric: &Fabric) -> Result<Option<(String, String)>, FabricError> {
    let known = fabric.hosts()?;
    let is_there = |name: &str| {
        let mut devices = known.iter().filter(|host| host.name.host() == name);
        let first = devices.next();
        first.is_some_and(|first| devices.count() + 1 == first.name.devices() as usize)
    };
    let mut others = layout.others().iter().flat_map(|part| {
        let machine = &part.machine;
        part.hosts
            .clone()
            .map(move |number| (names::name(number), machine.clone()))
    });
    Ok(others.find(|(host, _)| !is_there(host)))
}

impl Drop for Members<'_> {
    fn drop(&mut self) {
        for member in &mut self.all {
            drop(member.process.stdin.take());
        }
        let begin = Instant::now();
        for member in &mut self.all {
            let left = END.saturating_sub(begin.elapsed());
            if ends_within(&mut member.process, left).is_none() {
                complain(&format!(
                    "the machine {} does not end its part of the cluster: look there with `efa-emu ps`",
                    member.part.machine
                ));
                let _ = member.process.kill();
                let _ = member.process.wait();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_ready_after_a_whole_line() {
        assert_eq!(ready(b"welcome\nefa-emu cluster is ready: /tmp/a b"), None);
        assert_eq!(
            ready(b"welcome\nefa-emu cluster is ready: /tmp/a b\nmore"),
            Some("/tmp/a b".to_owned())
        );
        assert_eq!(ready(b""), None);
    }
}
