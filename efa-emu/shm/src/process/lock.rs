//! File locks that the kernel releases when a process ends, however it ends.
//!
//! They are POSIX record locks (`fcntl(F_SETLK)`), which belong to the process: a child made by
//! `fork` does not inherit them, so a surviving child never makes its dead parent look alive, and
//! `F_GETLK` names the holder in the caller's pid namespace. Their known trap is that a process
//! loses its lock when it closes *any* descriptor of the file. Therefore a process never opens a
//! file on which it holds a lock. It identifies such a file by its time of modification, which is
//! set to the [mark](own_mark) of the process. A table in memory would not be sufficient: several
//! copies of this code can be in one process, the verbs library and a program that uses this
//! package.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::fork::{ForkSafeGuard, ForkSafeMutex};
use super::layout::damaged;
use super::opening;
use crate::error::FabricError;

/// A time that identifies this process, the same in all copies of this code.
fn own_mark() -> SystemTime {
    /// The process that has the mark: a forked child has another one.
    static KNOWN: ForkSafeMutex<Option<(u32, SystemTime)>> = ForkSafeMutex::new(None);
    let pid = std::process::id();
    let mut known = KNOWN.lock();
    match *known {
        Some((of, mark)) if of == pid => mark,
        _ => known.insert((pid, make_mark(pid))).1,
    }
}

/// Creates the mark of the process `pid`, which is this one, from its number, its start time, and
/// the random number that the kernel gives to each program that it executes.
fn make_mark(pid: u32) -> SystemTime {
    // SAFETY: returns a number, which is the address of 16 bytes that are never freed, or 0.
    let random = unsafe { libc::getauxval(libc::AT_RANDOM) } as *const [u8; 16];
    let random = match random.is_null() {
        true => [0; 16],
        // SAFETY: see above; the address need not be aligned.
        false => unsafe { random.read_unaligned() },
    };
    let status = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field, a name, may contain anything; the time is the 20th field after it.
    let fields = status.rsplit_once(')').map_or("", |(_, fields)| fields);
    let began = fields.split_whitespace().nth(19).unwrap_or_default();
    let bytes = random.into_iter().chain(pid.to_le_bytes());
    let number = bytes
        .chain(began.bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            // FNV-1a, with the high bits mixed in.
            let hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            hash ^ hash >> 29
        });
    // Both parts are in the range of file systems, and the result differs from the time of any
    // other file here.
    let (seconds, nanos) = (1 + (number >> 33), number as u32 % 1_000_000_000);
    SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos)
}

/// Names a file as long as it is open.
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

/// A request about the lock of one byte of a file, which need not be there.
fn byte(at: libc::off_t) -> libc::flock {
    // SAFETY: `flock` is a plain C struct for which all zeroes is a valid value.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = libc::F_WRLCK as libc::c_short;
    request.l_whence = libc::SEEK_SET as libc::c_short;
    request.l_start = at;
    request.l_len = 1;
    request
}

/// Tries to acquire the exclusive lock for the process; `Ok(false)` if another process has it.
fn try_lock(file: &File) -> io::Result<bool> {
    try_lock_byte(file, libc::F_SETLK, PROCESS)
}

/// The byte whose lock belongs to a process.
const PROCESS: libc::off_t = 0;

/// The byte whose lock belongs to an open file. It also excludes other threads of the same process.
const OPEN_FILE: libc::off_t = 1;

fn try_lock_byte(file: &File, command: libc::c_int, at: libc::off_t) -> io::Result<bool> {
    let request = byte(at);
    // SAFETY: the descriptor is open and `request` is a valid `flock` for the whole call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const request) };
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
/// The number belongs to this process's pid namespace; 0 if the holder has none there. A returned
/// process has not completed its exit (locks are released before the pid).
fn holder(file: &File) -> io::Result<Option<i32>> {
    let mut request = byte(PROCESS);
    // SAFETY: the descriptor is open and `request` is a valid `flock` that the call may write to.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((request.l_type != libc::F_UNLCK as libc::c_short).then_some(request.l_pid))
}

/// A file whose lock shows that this process is alive.
#[derive(Debug)]
pub(crate) struct OwnLock {
    /// Kept open, since closing it releases the lock.
    file: File,
    path: PathBuf,
    mark: SystemTime,
}

impl OwnLock {
    /// Creates `path` and locks it. The caller holds the registry lock, so that no other process
    /// considers the file stale between the two steps.
    pub(crate) fn create(path: &Path) -> Result<OwnLock, FabricError> {
        // The name is unknown to other processes, so none opens the file before it is marked and
        // locked.
        let draft = path.with_extension("draft");
        let file = opening::options()
            .create_new(true)
            .open(&draft)
            .map_err(FabricError::io("create", &draft))?;
        let mark = own_mark();
        file.set_modified(mark)
            .map_err(FabricError::io("mark", &draft))?;
        if !is_own(&file.metadata().map_err(FabricError::io("stat", &draft))?) {
            let what = "its file system does not keep the time of a change";
            return Err(damaged(path, what));
        }
        match try_lock(&file) {
            Ok(true) => {}
            Ok(false) => return Err(damaged(path, "a new file is locked")),
            Err(source) => return Err(FabricError::io("lock", &draft)(source)),
        }
        std::fs::rename(&draft, path).map_err(FabricError::io("rename", &draft))?;
        Ok(OwnLock {
            file,
            path: path.to_owned(),
            mark,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for OwnLock {
    fn drop(&mut self) {
        // The lock is released when the file is closed, after this. In a forked child both belong
        // to the parent.
        if self.mark == own_mark() {
            let _ = self.file.set_modified(SystemTime::UNIX_EPOCH);
        }
    }
}

/// Detects whether the process that locked a file is still alive.
#[derive(Debug)]
pub(crate) struct Liveness(Watch);

#[derive(Debug)]
enum Watch {
    /// The lock is this process's own; asking the file would lose it.
    Own(PathBuf),
    Other(File),
}

/// Returns whether a lock file was made by this process, and not released.
fn is_own(metadata: &std::fs::Metadata) -> bool {
    metadata.modified().is_ok_and(|time| time == own_mark())
}

impl Liveness {
    /// Starts to watch `path`; `None` if the file does not exist, or if [`OwnLock::create`] cannot
    /// have made it: a directory, a link.
    pub(crate) fn open(path: &Path) -> io::Result<Option<Liveness>> {
        let metadata = match std::fs::symlink_metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if !metadata.is_file() {
            return Ok(None);
        }
        if is_own(&metadata) {
            return Ok(Some(Liveness(Watch::Own(path.to_owned()))));
        }
        let found = opening::existing(path)?;
        Ok(found.map(|file| Liveness(Watch::Other(file))))
    }

    /// The live process that holds the lock, in this process's pid namespace (0 if it has no number
    /// there); `None` once it has ended.
    pub(crate) fn process(&self) -> Option<i32> {
        match &self.0 {
            Watch::Own(path) => std::fs::symlink_metadata(path)
                .is_ok_and(|metadata| is_own(&metadata))
                .then(|| std::process::id() as i32),
            // A lock that cannot be queried (out of lock memory) counts as held: if a live peer
            // were considered dead, its memory would be lost.
            Watch::Other(file) => holder(file).unwrap_or(Some(0)),
        }
    }
}

/// Serialises the use of registry locks by this copy of the code: closing one descriptor of the
/// lock file would otherwise release the process's lock, by which others identify the holder.
static REGISTRY: ForkSafeMutex<()> = ForkSafeMutex::new(());

/// The time that a process waits for the registry lock before it reports the holder. The lock is
/// held for a few file operations only, so this long a wait means a stopped process.
pub(crate) const REGISTRY_PATIENCE: Duration = Duration::from_secs(20);

/// The exclusive lock on a fabric's registry, held until dropped.
pub(crate) struct RegistryLock {
    file: File,
    // After `file`, so that no other thread opens the file before this thread closed it.
    _process: ForkSafeGuard<'static, ()>,
}

impl RegistryLock {
    /// Waits up to `patience` for the lock on the file `path`, which is created if `creates`. Does
    /// not nest.
    pub(crate) fn acquire(
        path: &Path,
        creates: bool,
        patience: Duration,
    ) -> Result<RegistryLock, FabricError> {
        let process = REGISTRY.lock();
        let started = Instant::now();
        loop {
            let file = opening::options()
                .create(creates)
                .truncate(false)
                .open(path)
                .map_err(FabricError::io("open", path))?;
            // The first lock identifies the owner of the registry to other processes; the second
            // excludes all others, also within this process.
            let try_both =
                || Ok(try_lock(&file)? && try_lock_byte(&file, libc::F_OFD_SETLK, OPEN_FILE)?);
            while !try_both().map_err(FabricError::io("lock", path))? {
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

    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the lock of `path` is held from the view of another process.
    fn is_locked_for_others(path: &Path) -> bool {
        // SAFETY: the child makes system calls and ends without running the test harness's
        // handlers.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let sees = File::options().read(true).write(true).open(path);
            let sees = sees.is_ok_and(|file| holder(&file).is_ok_and(|pid| pid.is_some()));
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(sees)) };
        }
        let mut status = 0;
        // SAFETY: `child` is a child of this process and `status` is valid for the write.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "{status}");
        libc::WEXITSTATUS(status) == 1
    }

    #[test]
    fn querying_own_locks_does_not_release_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("1.lock");
        assert!(Liveness::open(&path).unwrap().is_none());
        let lock = OwnLock::create(&path).unwrap();
        let watched = Liveness::open(&path).unwrap().unwrap();
        assert_eq!(watched.process(), Some(std::process::id() as i32));
        drop(Liveness::open(&path).unwrap().unwrap());
        assert!(is_locked_for_others(&path));
        drop(lock);
        assert_eq!(watched.process(), None);
        assert!(!is_locked_for_others(&path));
        // The file of a process that has ended.
        File::create(&path).unwrap();
        assert_eq!(Liveness::open(&path).unwrap().unwrap().process(), None);
    }

    #[test]
    fn a_child_is_not_its_parent() {
        let mark = own_mark();
        assert_eq!(
            make_mark(std::process::id()),
            mark,
            "in any copy of this code"
        );
        assert_ne!(make_mark(std::process::id() + 1), mark);
    }

    #[test]
    fn registry_locks_separate_copies_of_the_code() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("registry");
        let lock = RegistryLock::acquire(&path, true, Duration::ZERO).unwrap();
        // Another copy of the library has a different mutex.
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let take = || try_lock_byte(&file, libc::F_OFD_SETLK, OPEN_FILE).unwrap();
        assert!(!take());
        drop(lock);
        assert!(take());
    }
}
