//! An emulated host as a process: it has the host's namespaces, starts what clients ask for, and is the parent of
//! everything that runs there. The host is there as long as this process is.

use std::ffi::{CStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use efa_emu::command::Failure;
use efa_emu::command::signals::Signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::launchers;
use super::namespaces::{UserNamespace, Views};
use super::process;
use super::session::{self, Reply, Request, STREAMS};
use crate::cli::run::host::{EmulatedHost, Injection};

/// How long a command goes on whose client has gone: it is told at once, and killed after this time.
const GRACE: Duration = Duration::from_secs(1);

/// How long a client may take to say what it wants.
const REQUEST_PATIENCE: Duration = Duration::from_secs(1);

/// What the processes of all hosts have in common.
pub(super) struct Common<'a> {
    pub(super) injection: &'a Injection,
    pub(super) variables: &'a [(&'static str, OsString)],
    /// `None`: the system permits none.
    pub(super) namespace: Option<&'a UserNamespace>,
    pub(super) views: &'a Views,
}

/// The process of a host, while it serves.
struct Node<'a> {
    host: &'a EmulatedHost,
    common: &'a Common<'a>,
    sysfs_root: PathBuf,
    /// Variables of this host.
    variables: Vec<(&'static str, OsString)>,
    user: User,
    /// Closed when the cluster has ended.
    cluster: UnixStream,
    listener: UnixListener,
    signals: Signals,
    children: OwnedFd,
    sessions: Vec<Session>,
}

/// A command that runs for a client.
struct Session {
    client: UnixStream,
    /// The command's process, which leads a group.
    process: i32,
    /// When it is killed, since its client has gone.
    killed_at: Option<Instant>,
}

/// Is the host until the cluster ends. Tells `cluster` when it is ready, or why it cannot be.
pub(super) fn serve(
    host: &EmulatedHost,
    directory: &Path,
    common: &Common<'_>,
    mut cluster: UnixStream,
) {
    match Node::begin(host, directory, common, &cluster) {
        Ok(node) => {
            Reply::Started.send(&mut cluster);
            node.serve();
        }
        Err(Failure(reason)) => Reply::Refused(reason).send(&mut cluster),
    }
}

impl<'a> Node<'a> {
    fn begin(
        host: &'a EmulatedHost,
        directory: &Path,
        common: &'a Common<'a>,
        cluster: &UnixStream,
    ) -> Result<Node<'a>, Failure> {
        // What the terminal sends is for the command that the cluster was made for.
        rustix::process::setsid()?;
        process::adopt_orphans();
        let sysfs_root = directory.join("sysfs");
        std::fs::create_dir(&sysfs_root)?;
        host.generate_sysfs(&sysfs_root)?;
        let variables = match common.namespace {
            Some(namespace) => {
                namespace
                    .enter_as_host(host.name(), common.views)
                    .map_err(|error| {
                        let name = host.name();
                        Failure(format!("cannot make {name} a machine of its own: {error}"))
                    })?;
                Vec::new()
            }
            None => {
                let own = directory.join("tmp");
                std::fs::create_dir(&own)?;
                launchers::of_unnamed_host(&own)
            }
        };
        let signals = Signals::take(&[libc::SIGCHLD, libc::SIGTERM]);
        Ok(Node {
            host,
            common,
            sysfs_root,
            variables,
            user: User::current(),
            cluster: cluster.try_clone()?,
            listener: session::listen(directory)?,
            children: signals.descriptor()?,
            signals,
            sessions: Vec::new(),
        })
    }

    fn serve(mut self) {
        let mut live = self.host.live_sysfs(&self.sysfs_root);
        let mut watches = self.host.watches(&self.sysfs_root);
        loop {
            let until_update = live.update(watches.turn());
            let until_kill = self
                .sessions
                .iter()
                .filter_map(|session| session.killed_at)
                .map(|time| time.saturating_duration_since(Instant::now()))
                .min();
            let time = until_kill.map_or(until_update, |time| time.min(until_update));
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
                self.accept();
            }
            let now = Instant::now();
            self.sessions.retain(|session| !session.is_over_at(now));
        }
        for session in &mut self.sessions {
            Reply::ClusterEnds.send(&mut session.client);
        }
        process::end_descendants(GRACE);
    }

    /// Waits for something to do; `None` if the wait was interrupted.
    fn wait(&self, time: Duration) -> Option<Events> {
        let mut descriptors = vec![
            PollFd::new(&self.cluster, PollFlags::IN),
            PollFd::new(&self.children, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        let sessions = self.sessions.iter().map(|session| match session.killed_at {
            // A closed connection would be reported again and again.
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

    /// Tells clients of commands that have ended. Orphans end here too, and nobody asks for their status.
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
                // What the command has started goes with it.
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

    fn accept(&mut self) {
        let Ok((mut client, _)) = self.listener.accept() else {
            return;
        };
        let _ = client.set_read_timeout(Some(REQUEST_PATIENCE));
        let started = Request::receive(&mut client)
            .map_err(|error| format!("cannot receive a request: {error}"))
            .and_then(|(request, streams)| self.start(&request, streams));
        match started {
            Ok(process) => {
                Reply::Started.send(&mut client);
                self.sessions.push(Session {
                    client,
                    process,
                    killed_at: None,
                });
            }
            Err(reason) => Reply::Refused(reason).send(&mut client),
        }
    }

    /// Starts a command as sshd does: by the user's shell, in the home directory, in a session of its own.
    fn start(&self, request: &Request, streams: [OwnedFd; STREAMS]) -> Result<i32, String> {
        let mut command = Command::new(&self.user.shell);
        match &request.command {
            Some(text) => command.arg("-c").arg(text),
            // By this name it takes itself for a login shell.
            None => command.arg0(self.user.login_name()),
        };
        let [input, output, errors] = streams.map(Stdio::from);
        command
            .stdin(input)
            .stdout(output)
            .stderr(errors)
            .current_dir(&self.user.home)
            .env("HOME", &self.user.home)
            .env("SHELL", &self.user.shell)
            .env("HOSTNAME", self.host.name())
            .envs(
                self.common
                    .variables
                    .iter()
                    .chain(&self.variables)
                    .map(|(name, value)| (name, value)),
            );
        if let Some(name) = &self.user.name {
            command.env("USER", name).env("LOGNAME", name);
        }
        self.host
            .prepare(&mut command, &self.sysfs_root, self.common.injection);
        if let Some(text) = &request.command {
            command.envs(launchers::remedies(text));
        }
        command.envs(request.variables.iter().map(|(name, value)| (name, value)));
        self.signals.unblock_in(&mut command);
        // SAFETY: between `fork` and `exec` it makes one system call, which is allowed there.
        unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
        match command.spawn() {
            // It is waited for with all other children.
            Ok(child) => Ok(child.id() as i32),
            Err(error) => Err(format!(
                "cannot start {}: {error}",
                self.user.shell.display()
            )),
        }
    }
}

/// What there is to do.
struct Events {
    ended: bool,
    child: bool,
    client: bool,
    /// The sessions whose clients have gone.
    gone: Vec<usize>,
}

impl Session {
    /// The client has gone: tells the command.
    fn end(&mut self) {
        for signal in [libc::SIGHUP, libc::SIGCONT] {
            process::signal(-self.process, signal);
        }
        self.killed_at = Some(Instant::now() + GRACE);
    }

    /// Kills the command if it is time to. Returns whether it was.
    fn is_over_at(&self, now: Instant) -> bool {
        let over = self.killed_at.is_some_and(|time| time <= now);
        if over {
            process::signal(-self.process, libc::SIGKILL);
        }
        over
    }
}

/// The user, as the system's list of users has him.
struct User {
    name: Option<OsString>,
    home: PathBuf,
    shell: PathBuf,
}

impl User {
    fn current() -> User {
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
        if home.is_dir() {
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
