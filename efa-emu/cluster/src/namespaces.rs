//! The Linux namespaces that make an emulated host look like a separate machine.
//!
//! All hosts of a cluster are in one user namespace, so that the system lets their processes copy
//! from each other's memory, as the device does for RDMA. Inside, each host has separate namespaces
//! for its name (UTS), for System V shared memory and queues (IPC), and for mounts: `/dev/shm` is
//! separate except for the directories of fabrics and runs, and `/etc/hosts` contains all hosts.
//! They share the machine's network and processes.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use efa_shm::SHARED_MEMORY;

use crate::mounts::{self, Writable, check};
use crate::names::SYSTEM_HOSTS;
use crate::process::{self, Forked};

/// The random id of the machine's last boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The user namespace of a cluster, which exists as long as this value or any process in it.
#[derive(Debug)]
pub(crate) struct UserNamespace(OwnedFd);

/// The files and directories that hosts see at other paths than the machine.
#[derive(Clone, Debug)]
pub(crate) struct Views {
    /// The file mounted over `/etc/hosts`.
    pub(crate) hosts: PathBuf,
    /// The directories in `/dev/shm` that they share.
    pub(crate) common: Vec<PathBuf>,
}

impl Views {
    /// The views of a cluster with this list of hosts, which share the parents of `directories`.
    pub(crate) fn new(hosts: &Path, directories: &[&Path]) -> Views {
        let parents = directories.iter().filter_map(|path| path.parent());
        Views {
            hosts: hosts.to_owned(),
            common: parents
                .filter(|path| path.starts_with(SHARED_MEMORY))
                .map(Path::to_owned)
                .collect(),
        }
    }
}

impl UserNamespace {
    /// Creates a user namespace, after trying the calls of a host in it. The inner error is the
    /// call that the system does not permit.
    ///
    /// The process must have no other thread.
    ///
    /// # Errors
    /// The trial itself failed.
    pub(crate) fn create(views: &Views) -> io::Result<io::Result<UserNamespace>> {
        let (mut ours, mut theirs) = UnixStream::pair()?;
        let trial = match process::fork()? {
            Forked::Child => {
                drop(ours);
                let made = unshare(libc::CLONE_NEWUSER);
                report(&mut theirs, &made);
                let mapped = theirs.read_exact(&mut [0]);
                if made.is_ok() && mapped.is_ok() {
                    report(&mut theirs, &isolate("trial", views));
                }
                process::leave(0);
            }
            Forked::Parent(trial) => trial,
        };
        drop(theirs);
        let made = outcome(&mut ours).and_then(|()| {
            map_users(trial)?;
            let namespace = File::open(format!("/proc/{trial}/ns/user"))?;
            ours.write_all(&[0])?;
            outcome(&mut ours)?;
            Ok(UserNamespace(namespace.into()))
        });
        drop(ours);
        process::wait_for(trial);
        Ok(made)
    }

    /// Makes the calling process a host with this name.
    pub(crate) fn enter_as_host(&self, name: &str, views: &Views) -> io::Result<()> {
        self.enter()?;
        isolate(name, views)
    }

    /// Makes host names resolvable for the calling process, which is not a host.
    pub(crate) fn enter_beside_hosts(&self, views: &Views) -> io::Result<()> {
        self.enter()?;
        unshare(libc::CLONE_NEWNS)?;
        mounts::keep_private()?;
        show_hosts(&views.hosts)
    }

    fn enter(&self) -> io::Result<()> {
        // SAFETY: the call takes no pointers.
        check(unsafe { libc::setns(self.0.as_raw_fd(), libc::CLONE_NEWUSER) })
    }
}

/// Moves the calling process, which has all capabilities in its user namespace, to the other
/// namespaces of a host.
fn isolate(name: &str, views: &Views) -> io::Result<()> {
    unshare(libc::CLONE_NEWNS | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC)?;
    mounts::keep_private()?;
    // SAFETY: the pointer and the length belong to the name.
    check(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) })?;
    show_hosts(&views.hosts)?;
    if !has_shared_memory() {
        return Ok(());
    }
    let shared_memory = Path::new(SHARED_MEMORY);
    // Opened before the mount hides it.
    let opened: io::Result<Vec<File>> = views.common.iter().map(File::open).collect();
    let opened = opened?;
    mounts::memory(shared_memory, Writable::ByAll)?;
    for (path, directory) in views.common.iter().zip(&opened) {
        fs::DirBuilder::new().mode(0o700).create(path)?;
        let visible = format!("/proc/self/fd/{}", directory.as_raw_fd());
        mounts::bind(Path::new(&visible), path)?;
    }
    Ok(())
}

/// Whether hosts have separate shared memory, which is mounted over an existing directory.
pub(crate) fn has_shared_memory() -> bool {
    Path::new(SHARED_MEMORY).is_dir()
}

fn show_hosts(list: &Path) -> io::Result<()> {
    match Path::new(SYSTEM_HOSTS).exists() {
        true => mounts::bind(list, Path::new(SYSTEM_HOSTS)),
        // There is no file to mount over; such a machine resolves names in another way.
        false => Ok(()),
    }
}

/// Sets a separate boot id for the calling process, which is the host with this name: NCCL, UCX and
/// Dragon identify machines by it. `directory` is the host's directory.
pub(crate) fn show_boot_id(name: &str, directory: &Path) -> io::Result<()> {
    let machines = fs::read_to_string(BOOT_ID)?;
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    let (beginning, _) = machines
        .trim()
        .rsplit_once('-')
        .ok_or(io::ErrorKind::InvalidData)?;
    let own = directory.join("boot_id");
    let number = hasher.finish() >> 16;
    fs::write(&own, format!("{beginning}-{number:012x}\n"))?;
    mounts::bind(&own, Path::new(BOOT_ID))
}

fn unshare(namespaces: i32) -> io::Result<()> {
    // SAFETY: the call takes no pointers. The process's descriptors are not shared.
    check(unsafe { libc::unshare(namespaces) })
}

/// Maps the users of the process's namespace: all users of this namespace if the system permits it,
/// otherwise only the caller. All keep their numbers.
fn map_users(process: i32) -> io::Result<()> {
    let write = |file: &str, text: &str| fs::write(format!("/proc/{process}/{file}"), text);
    let all = |file: &str| -> io::Result<String> {
        let map = fs::read_to_string(format!("/proc/self/{file}"))?;
        let lines = map.lines().filter_map(|line| {
            let mut numbers = line.split_whitespace();
            let (first, count) = (numbers.next()?, numbers.nth(1)?);
            Some(format!("{first} {first} {count}\n"))
        });
        Ok(lines.collect())
    };
    let everybody = write("uid_map", &all("uid_map")?);
    if everybody.is_ok() {
        return write("gid_map", &all("gid_map")?);
    }
    map_user(&process.to_string(), Caller::current())
}

/// The user and the group of a process.
#[derive(Clone, Copy)]
struct Caller {
    user: u32,
    group: u32,
}

impl Caller {
    fn current() -> Caller {
        Caller {
            user: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
        }
    }
}

/// Maps one user and one group in the namespace of a process.
fn map_user(process: &str, Caller { user, group }: Caller) -> io::Result<()> {
    let write = |file: &str, text: &str| fs::write(format!("/proc/{process}/{file}"), text);
    write("uid_map", &format!("{user} {user} 1\n"))?;
    write("setgroups", "deny")?;
    write("gid_map", &format!("{group} {group} 1\n"))
}

/// Moves the calling process to a new mount namespace; without the required capability, inside of a
/// user namespace that maps only the caller.
pub(crate) fn enter_own_mounts() -> io::Result<()> {
    if unshare(libc::CLONE_NEWNS).is_err() {
        // The user is not known in the new namespace before it is mapped.
        let caller = Caller::current();
        unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)?;
        map_user("self", caller)?;
    }
    mounts::keep_private()
}

/// Executes `work` in a forked child, to check whether the system permits it. The process must have
/// no other thread.
pub(crate) fn try_in_child(work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let (mut ours, mut theirs) = UnixStream::pair()?;
    let child = match process::fork()? {
        Forked::Child => {
            report(&mut theirs, &work());
            process::leave(0);
        }
        Forked::Parent(child) => child,
    };
    drop(theirs);
    let result = outcome(&mut ours);
    process::wait_for(child);
    result
}

/// Reports a result to the other process, by its error number.
fn report(stream: &mut UnixStream, result: &io::Result<()>) {
    let number = match result {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    };
    let _ = stream.write_all(&number.to_ne_bytes());
}

fn outcome(stream: &mut UnixStream) -> io::Result<()> {
    let mut number = [0; 4];
    stream.read_exact(&mut number)?;
    match i32::from_ne_bytes(number) {
        0 => Ok(()),
        number => Err(io::Error::from_raw_os_error(number)),
    }
}
