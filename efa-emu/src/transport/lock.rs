//! File locks that the kernel releases when a process ends, however it ends.
//!
//! They are POSIX record locks (`fcntl(F_SETLK)`), which belong to the process: a child made by
//! `fork` does not inherit them, so a child that lives on never makes its dead parent look alive,
//! and `F_GETLK` names the holder in the caller's own pid namespace. Their known trap is that a
//! process loses its lock when it closes *any* descriptor of the file. Therefore a process never
//! opens a file that it holds a lock on: [`HELD`] remembers those.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::error::FabricError;
use super::fork::{ForkSafeGuard, ForkSafeMutex};

/// The files that this process holds a lock on. A forked child finds the entries of its parent here,
/// which say nothing about itself; hence the pid.
static HELD: ForkSafeMutex<Vec<(u32, FileId)>> = ForkSafeMutex::new(Vec::new());

fn is_held(held: &[(u32, FileId)], id: FileId) -> bool {
    held.contains(&(std::process::id(), id))
}

/// Names a file as long as somebody has it open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(metadata: &std::fs::Metadata) -> FileId {
        FileId {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

fn whole_file(kind: libc::c_int) -> libc::flock {
    // SAFETY: `flock` is a plain C struct for which all zeroes is a valid value.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = kind as libc::c_short;
    request.l_whence = libc::SEEK_SET as libc::c_short;
    request
}

/// Tries to take the exclusive lock; `Ok(false)` if another process has it.
fn try_lock(file: &File) -> io::Result<bool> {
    let request = whole_file(libc::F_WRLCK);
    // SAFETY: the descriptor is open and `request` is a valid `flock` for the whole call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const request) };
    if result == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EAGAIN)) => Ok(false),
        error => Err(error),
    }
}

/// The process that holds the lock of `file`, `None` if no other process does.
///
/// The number is that of this process's pid namespace, 0 if the holder has none there. While the
/// answer is a process, that process has not yet passed its end (locks go before the pid does).
fn holder(file: &File) -> io::Result<Option<i32>> {
    let mut request = whole_file(libc::F_WRLCK);
    // SAFETY: the descriptor is open and `request` is a valid `flock` that the call may write to.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((request.l_type != libc::F_UNLCK as libc::c_short).then_some(request.l_pid))
}

/// A file whose lock says that this process lives.
#[derive(Debug)]
pub(super) struct OwnLock {
    /// Kept open, since closing it gives up the lock.
    _file: File,
    path: PathBuf,
    id: FileId,
}

impl OwnLock {
    /// Creates `path` anew and locks it. The caller holds the registry lock, so that nobody takes
    /// the file for stale between the two steps.
    pub(super) fn create(path: &Path) -> Result<OwnLock, FabricError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
            .open(path)
            .map_err(FabricError::io("create", path))?;
        let metadata = file.metadata().map_err(FabricError::io("stat", path))?;
        let id = FileId::of(&metadata);
        match try_lock(&file) {
            Ok(true) => {}
            Ok(false) => {
                return Err(FabricError::Damaged {
                    path: path.to_owned(),
                    what: "a new file is locked",
                });
            }
            Err(source) => return Err(FabricError::io("lock", path)(source)),
        }
        HELD.lock().push((std::process::id(), id));
        Ok(OwnLock {
            _file: file,
            path: path.to_owned(),
            id,
        })
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for OwnLock {
    fn drop(&mut self) {
        // The file closes after this; in between, nobody can be led to ask it and close it.
        HELD.lock().retain(|(_, id)| *id != self.id);
    }
}

/// Watches whether the process that locked a file still lives.
#[derive(Debug)]
pub(super) struct Liveness(Watch);

#[derive(Debug)]
enum Watch {
    /// The lock is this process's own; asking the file would lose it.
    Own(FileId),
    Other(File),
}

impl Liveness {
    /// Starts to watch `path`; `None` if there is no such file, or if it is none that
    /// [`OwnLock::create`] makes: a directory, a link.
    pub(super) fn open(path: &Path) -> io::Result<Option<Liveness>> {
        // The table of own locks stays locked while the file is open here and may yet be closed
        // again: otherwise another thread could create and lock it in between.
        let held = HELD.lock();
        let metadata = match std::fs::symlink_metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if !metadata.is_file() {
            return Ok(None);
        }
        let id = FileId::of(&metadata);
        if is_held(&held, id) {
            return Ok(Some(Liveness(Watch::Own(id))));
        }
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
            .open(path);
        match opened {
            Ok(file) => Ok(Some(Liveness(Watch::Other(file)))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The live process that holds the lock, in this process's pid namespace (0 if it has no
    /// number there); `None` once it is gone.
    pub(super) fn process(&self) -> Option<i32> {
        match &self.0 {
            Watch::Own(id) => is_held(&HELD.lock(), *id).then(|| std::process::id() as i32),
            // A lock that cannot be asked for (out of lock memory) is taken for held: believing a
            // live peer dead would lose its memory.
            Watch::Other(file) => holder(file).unwrap_or(Some(0)),
        }
    }
}

/// Serialises, within this process, the use of registry locks: closing one descriptor of the lock
/// file would otherwise give up the lock that another thread holds through a second one.
static REGISTRY: ForkSafeMutex<()> = ForkSafeMutex::new(());

/// How long a process waits for the registry lock before it names the culprit. The lock is held for
/// a few file operations only, so this much means a stopped process.
pub(super) const REGISTRY_PATIENCE: Duration = Duration::from_secs(20);

/// The exclusive lock on a fabric's registry, held until dropped.
pub(super) struct RegistryLock {
    file: File,
    // After `file`, so that no other thread opens the file before this thread closed it.
    _process: ForkSafeGuard<'static, ()>,
}

impl RegistryLock {
    /// Waits up to `patience` for the lock on the file `path`, creating the file if needed. Does not
    /// nest.
    pub(super) fn acquire(path: &Path, patience: Duration) -> Result<RegistryLock, FabricError> {
        let process = REGISTRY.lock();
        let started = Instant::now();
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
                .open(path)
                .map_err(FabricError::io("open", path))?;
            while !try_lock(&file).map_err(FabricError::io("lock", path))? {
                let waited = started.elapsed();
                if waited > patience {
                    return Err(FabricError::Locked {
                        path: path.to_owned(),
                        holder: holder(&file).ok().flatten().unwrap_or(0),
                        waited_ms: waited.as_millis() as u64,
                    });
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            // The last process to leave removes the file; a lock on a removed file guards nothing.
            let locked = file.metadata().map_err(FabricError::io("stat", path))?;
            match std::fs::symlink_metadata(path) {
                Ok(named) if FileId::of(&named) == FileId::of(&locked) => {
                    return Ok(RegistryLock {
                        file,
                        _process: process,
                    });
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(FabricError::io("stat", path)(error)),
            }
        }
    }

    /// The registry file.
    pub(super) fn file(&self) -> &File {
        &self.file
    }
}
