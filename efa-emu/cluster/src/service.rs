//! A process that starts commands for clients, like sshd, and is the parent of all their processes.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use efa_commands::signals::Signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::process;
use crate::session::{self, CommandRequest, Reply, STREAMS};

/// The time that a command may continue after its client has disconnected: it gets SIGHUP
/// immediately, and SIGKILL after this time.
const GRACE: Duration = Duration::from_secs(1);

/// Time limit for a client's request.
const REQUEST_PATIENCE: Duration = Duration::from_secs(1);

/// The reason why a client's command does not start, which is sent to the client.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error("cannot receive a request: {0}")]
    Receive(io::Error),
    #[error("cannot start {}: {source}", program.display())]
    Start {
        program: OsString,
        source: io::Error,
    },
}

/// The state of a host's process.
pub(crate) struct Service {
    /// Closed when the cluster has ended.
    cluster: UnixStream,
    listener: UnixListener,
    signals: Signals,
    children: OwnedFd,
    sessions: Vec<Session>,
}

/// A running command of a client.
struct Session {
    client: UnixStream,
    /// The command's process, the leader of a process group.
    process: i32,
    /// The time at which it is killed, because its client has disconnected.
    killed_at: Option<Instant>,
}

/// Makes the calling process a service: in a new session, because signals of the terminal are for
/// the cluster's command; as the reaper of orphans; and with its open descriptors hidden from
/// children.
pub(crate) fn detach() -> io::Result<()> {
    rustix::process::setsid()?;
    process::adopt_orphans();
    process::keep_descriptors()
}

impl Service {
    /// Listens in the host's directory.
    pub(crate) fn begin(directory: &Path, cluster: &UnixStream) -> io::Result<Service> {
        let signals = Signals::take(&[libc::SIGCHLD, libc::SIGTERM]);
        Ok(Service {
            cluster: cluster.try_clone()?,
            listener: session::listen(directory)?,
            children: signals.descriptor()?,
            signals,
            sessions: Vec::new(),
        })
    }

    /// Serves until the cluster ends. `command` makes the command for a request; `meanwhile` is
    /// called repeatedly, after the returned time or earlier.
    pub(crate) fn run(
        mut self,
        command: impl Fn(&CommandRequest) -> Command,
        mut meanwhile: impl FnMut() -> Duration,
    ) {
        loop {
            let until_turn = meanwhile();
            let until_kill = self
                .sessions
                .iter()
                .filter_map(|session| session.killed_at)
                .map(|time| time.saturating_duration_since(Instant::now()))
                .min();
            let time = until_kill.map_or(until_turn, |time| time.min(until_turn));
            let Some(events) = self.wait(time) else {
                continue;
            };
            if events.ended {
                break;
            }
            for index in events.gone {
                self.sessions[index].end();
            }
            if events.child {
                let ended = std::iter::from_fn(|| self.signals.wait_for(Duration::ZERO));
                if ended
                    .map(|signal| signal.number)
                    .any(|number| number == libc::SIGTERM)
                {
                    break;
                }
                self.reap();
            }
            if events.client {
                self.accept(&command);
            }
            let now = Instant::now();
            self.sessions.retain(|session| !session.is_over_at(now));
        }
        for session in &mut self.sessions {
            Reply::ClusterEnds.send(&mut session.client);
        }
        process::end_descendants(GRACE);
    }

    /// Waits for events; `None` if the wait was interrupted.
    fn wait(&self, time: Duration) -> Option<Events> {
        let mut descriptors = vec![
            PollFd::new(&self.cluster, PollFlags::IN),
            PollFd::new(&self.children, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        let sessions = self.sessions.iter().map(|session| match session.killed_at {
            // A closed connection would be reported repeatedly.
            Some(_) => PollFd::from_borrowed_fd(self.children.as_fd(), PollFlags::empty()),
            None => PollFd::new(&session.client, PollFlags::IN),
        });
        descriptors.extend(sessions);
        let time = Timespec::try_from(time).ok()?;
        poll(&mut descriptors, Some(&time)).ok()?;
        let is_ready = |descriptor: &PollFd<'_>| !descriptor.revents().is_empty();
        Some(Events {
            ended: is_ready(&descriptors[0]),
            child: is_ready(&descriptors[1]),
            client: is_ready(&descriptors[2]),
            gone: (0..self.sessions.len())
                .filter(|index| {
                    self.sessions[*index].killed_at.is_none() && is_ready(&descriptors[3 + index])
                })
                .collect(),
        })
    }

    /// Reports commands that have exited to their clients. Orphans are reaped here too, and their
    /// status is ignored.
    fn reap(&mut self) {
        while let Some((process, status)) = process::ended_child() {
            let Some(index) = self
                .sessions
                .iter()
                .position(|session| session.process == process)
            else {
                continue;
            };
            let mut session = self.sessions.swap_remove(index);
            if session.killed_at.is_some() {
                // Kills children that the command has left behind.
                process::signal(-process, libc::SIGKILL);
                continue;
            }
            let reply = match libc::WIFSIGNALED(status) {
                true => Reply::Killed(libc::WTERMSIG(status) as u8),
                false => Reply::Exited(libc::WEXITSTATUS(status) as u8),
            };
            reply.send(&mut session.client);
        }
    }

    fn accept(&mut self, command: &impl Fn(&CommandRequest) -> Command) {
        let Ok((mut client, _)) = self.listener.accept() else {
            return;
        };
        let _ = client.set_read_timeout(Some(REQUEST_PATIENCE));
        let started = CommandRequest::receive(&client)
            .map_err(RequestError::Receive)
            .and_then(|(request, streams)| self.start(command(&request), streams));
        match started {
            Ok(process) => {
                Reply::Started.send(&mut client);
                self.sessions.push(Session {
                    client,
                    process,
                    killed_at: None,
                });
            }
            Err(error) => Reply::Refused(error.to_string()).send(&mut client),
        }
    }

    /// Starts a command with a client's streams, in a new session.
    fn start(
        &self,
        mut command: Command,
        streams: [OwnedFd; STREAMS],
    ) -> Result<i32, RequestError> {
        let [input, output, errors] = streams.map(Stdio::from);
        command.stdin(input).stdout(output).stderr(errors);
        self.signals.unblock_in(&mut command);
        // SAFETY: between `fork` and `exec` it only makes one system call.
        unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
        match command.spawn() {
            // It is reaped with all other children.
            Ok(child) => Ok(child.id() as i32),
            Err(source) => Err(RequestError::Start {
                program: command.get_program().to_owned(),
                source,
            }),
        }
    }
}

/// The file descriptors that are ready.
struct Events {
    ended: bool,
    child: bool,
    client: bool,
    /// The sessions whose clients have disconnected.
    gone: Vec<usize>,
}

impl Session {
    /// The client has disconnected: sends SIGHUP to the command.
    fn end(&mut self) {
        for signal in [libc::SIGHUP, libc::SIGCONT] {
            process::signal(-self.process, signal);
        }
        self.killed_at = Some(Instant::now() + GRACE);
    }

    /// Kills the command if its time is over. Returns whether it was.
    fn is_over_at(&self, now: Instant) -> bool {
        let over = self.killed_at.is_some_and(|time| time <= now);
        if over {
            process::signal(-self.process, libc::SIGKILL);
        }
        over
    }
}
