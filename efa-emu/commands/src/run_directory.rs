//! The directory of one `run`, which contains the generated sysfs tree and is removed with the run.
//!
//! A run that is killed cannot remove its directory. So each run holds a lock on a file in it,
//! which the program inherits; the next run removes the directories whose lock is free.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use efa_shm::SHARED_MEMORY;
use rustix::fs::{Access, FlockOperation, Mode, OFlags, access, flock, open};

const LOCK: &str = "lock";

/// The number of attempts of a run to create its directory while others remove the parent
/// directory.
const MOST_ATTEMPTS: u32 = 1000;

const PREFIX: &str = "run-";

/// The program of these runs, unless another one is named. It is not `efa-emu`, because the fabrics
/// are in that directory of shared memory.
const RUNS: &str = "efa-emu-runs";

/// The program with a separate directory for each user.
const EMULATOR: &str = "efa-emu";

/// The reason why a run has no directory.
#[derive(Debug, thiserror::Error)]
pub enum RunDirectoryError {
    /// The directory of all runs cannot be created.
    #[error("cannot create {}: {source}: set TMPDIR to a directory that you can write to", path.display())]
    Parent {
        /// The directory of all runs of this user.
        path: PathBuf,
        /// The reason of the system.
        source: io::Error,
    },
    /// The file that is locked while directories of runs are created or removed cannot be created.
    #[error("cannot create a file in {}: {source}", path.display())]
    Guard {
        /// The directory that it would be in.
        path: PathBuf,
        /// The reason of the system.
        source: io::Error,
    },
    /// The directory of the run cannot be created.
    #[error("cannot create {}: {source}", path.display())]
    Create {
        /// The directory of the run.
        path: PathBuf,
        /// The reason of the system.
        source: io::Error,
    },
    /// The directory of all runs belongs to another user, or others can write to it.
    #[error(
        "{} is not a directory that only user {user} can write to: remove it, or set TMPDIR to another directory",
        path.display()
    )]
    NotPrivate {
        /// The directory of all runs.
        path: PathBuf,
        /// The id of the user of this process.
        user: u32,
    },
    /// The directory of all runs disappeared after each attempt to create it.
    #[error(
        "other processes remove {} as often as it is made: end them, or set TMPDIR to another directory",
        .0.display()
    )]
    Removed(PathBuf),
    /// Each name that this process can choose for its run exists already in this directory.
    #[error("{} is full", .0.display())]
    Full(PathBuf),
    /// Any other reason of the system.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// The directory of one run.
pub struct RunDirectory {
    path: PathBuf,
    /// Open in this process, and inherited by the program.
    _lock: OwnedFd,
}

impl RunDirectory {
    /// Creates a new directory below the user's directory, and removes the directories of ended
    /// runs: in the directory of `TMPDIR`, else in shared memory, else in the directory for
    /// temporary files.
    pub fn create() -> Result<RunDirectory, RunDirectoryError> {
        RunDirectory::create_below(&place_of_runs(), RUNS)
    }

    /// As [`RunDirectory::create`], for another program, below this directory.
    pub fn create_below(
        temporary: &Path,
        program: &str,
    ) -> Result<RunDirectory, RunDirectoryError> {
        let (parent, _guard) = guarded_parent(temporary, program)?;
        remove_dead(&parent);
        let path = (0..u32::MAX)
            .map(|attempt| parent.join(format!("{PREFIX}{}-{attempt}", std::process::id())))
            .find_map(|path| match fs::create_dir(&path) {
                Ok(()) => Some(Ok(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
                Err(source) => Some(Err(RunDirectoryError::Create { path, source })),
            })
            .ok_or(RunDirectoryError::Full(parent))??;
        // Not close-on-exec: the lock is held until all processes of the run have ended.
        let lock = open(
            path.join(LOCK),
            OFlags::CREATE | OFlags::RDWR,
            Mode::RUSR | Mode::WUSR,
        )
        .map_err(io::Error::from)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(io::Error::from)?;
        Ok(RunDirectory { path, _lock: lock })
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates an empty directory in it.
    pub fn subdirectory(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir(&path)?;
        Ok(path)
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        // The guard prevents another run from getting the same name before this directory is
        // removed. The next run removes the files that cannot be removed now.
        let parent = self.path.parent().unwrap_or(&self.path);
        let path = parent.join(LOCK);
        let guard = File::open(&path).ok();
        let guard = guard.filter(|guard| flock(guard, FlockOperation::LockExclusive).is_ok());
        let _ = fs::remove_dir_all(&self.path);
        if guard.as_ref().is_some_and(|guard| is_at(guard, &path)) {
            remove_if_empty(parent);
        }
    }
}

/// The directory of this user's runs of a program, and the lock that is held while directories are
/// created and removed in it: otherwise a new directory could be removed as a dead one before its
/// lock is held.
fn guarded_parent(temporary: &Path, program: &str) -> Result<(PathBuf, File), RunDirectoryError> {
    for _ in 0..MOST_ATTEMPTS {
        let parent = directory_of_user(temporary, program)?;
        let path = parent.join(LOCK);
        let guard = match File::create(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => {
                return Err(RunDirectoryError::Guard {
                    path: parent,
                    source,
                });
            }
            Ok(guard) => guard,
        };
        flock(&guard, FlockOperation::LockExclusive).map_err(io::Error::from)?;
        // The last run may have removed the directory while this one waited for the lock.
        if is_at(&guard, &path) {
            return Ok((parent, guard));
        }
    }
    Err(RunDirectoryError::Removed(temporary.to_owned()))
}

/// Returns whether the open file is still the one at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let found = fs::symlink_metadata(path).map(identity);
    found.is_ok_and(|found| file.metadata().is_ok_and(|open| identity(open) == found))
}

/// Removes the guarded directory of a user's runs if it is empty.
fn remove_if_empty(parent: &Path) {
    let is_empty = fs::read_dir(parent).is_ok_and(|mut entries| {
        entries.all(|entry| entry.is_ok_and(|entry| entry.file_name() == LOCK))
    });
    if is_empty {
        let _ = fs::remove_file(parent.join(LOCK));
        let _ = fs::remove_dir(parent);
    }
}

/// The parent of the directories of runs, unless a program has a separate one. A sysfs tree has a
/// hundred small files; creating and removing them on a disk is several times slower than in
/// memory.
pub fn place_of_runs() -> PathBuf {
    let named = env::var_os("TMPDIR").filter(|path| !path.is_empty());
    named
        .and_then(|path| path_for_lists(&path))
        .or_else(shared_memory)
        .unwrap_or_else(temporary_directory)
}

/// The directory of POSIX shared memory, if files can be created in it.
pub fn shared_memory() -> Option<PathBuf> {
    let path = PathBuf::from(SHARED_MEMORY);
    let can_make_files = access(&path, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    (path.is_dir() && can_make_files).then_some(path)
}

/// The directory for temporary files, as a path that is valid in every directory and in every list
/// of paths. It is the one that `TMPDIR` names, unless it has no such path.
pub fn temporary_directory() -> PathBuf {
    path_for_lists(env::temp_dir().as_os_str()).unwrap_or_else(|| PathBuf::from("/tmp"))
}

/// The absolute path, unless it has a character that ends an entry in the lists of dynamic linkers,
/// libfabric and MPI launchers, or that a shell interprets.
fn path_for_lists(path: &OsStr) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let is_plain =
        |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+=@%~".contains(byte) || !byte.is_ascii();
    let is_listable = path.as_os_str().as_bytes().iter().all(is_plain);
    is_listable.then_some(path)
}

/// The directory of this user's files, which no other user can change, below the directory for
/// temporary files.
pub fn user_directory_below(temporary: &Path) -> Result<PathBuf, RunDirectoryError> {
    directory_of_user(temporary, EMULATOR)
}

fn directory_of_user(temporary: &Path, program: &str) -> Result<PathBuf, RunDirectoryError> {
    let user = rustix::process::geteuid().as_raw();
    let path = parent_below(temporary, program, user);
    private_directory(&path, user)?;
    Ok(path)
}

/// Checks that `path` is a directory of this user that no other user can change.
fn private_directory(path: &Path, user: u32) -> Result<(), RunDirectoryError> {
    let made_or_found = || {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                return Err(RunDirectoryError::Parent {
                    path: path.to_owned(),
                    source,
                });
            }
            _ => {}
        }
        match fs::symlink_metadata(path) {
            // The last run removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            metadata => Ok(Some(metadata?)),
        }
    };
    let attempts = (0..MOST_ATTEMPTS).map(|_| made_or_found());
    let found = attempts.filter_map(Result::transpose).next();
    let metadata = found.ok_or_else(|| RunDirectoryError::Removed(path.to_owned()))??;
    if !metadata.is_dir() || metadata.uid() != user || metadata.mode() & 0o022 != 0 {
        return Err(RunDirectoryError::NotPrivate {
            path: path.to_owned(),
            user,
        });
    }
    Ok(())
}

/// The directories of the user's runs that have not ended.
pub fn living_directories() -> Vec<PathBuf> {
    living_directories_below(&place_of_runs(), RUNS)
}

/// As [`living_directories`], for another program, below this directory.
pub fn living_directories_below(temporary: &Path, program: &str) -> Vec<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let parent = parent_below(temporary, program, user);
    let own = fs::symlink_metadata(&parent)
        .is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == user);
    let guard = File::open(parent.join(LOCK)).ok().filter(|_| own);
    // The guard ensures that new directories are locked before they are checked.
    match guard.map(|guard| flock(&guard, FlockOperation::LockShared).map(|()| guard)) {
        Some(Ok(_guard)) => directories(&parent).filter(|path| is_alive(path)).collect(),
        _ => Vec::new(),
    }
}

/// The parent of the directories of a user's runs.
fn parent_below(temporary: &Path, program: &str, user: u32) -> PathBuf {
    temporary.join(format!("{program}-{user}"))
}

/// Removes the directories of runs that ended without removing them.
fn remove_dead(parent: &Path) {
    for path in directories(parent).filter(|path| !is_alive(path)) {
        let _ = fs::remove_dir_all(&path);
    }
}

fn directories(parent: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX))
        .map(|entry| entry.path())
}

/// Returns whether a process that the run has started holds its lock.
fn is_alive(run: &Path) -> bool {
    File::open(run.join(LOCK))
        .is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_for_lists_are_absolute_without_separators() {
        let here = env::current_dir().unwrap();
        assert_eq!(path_for_lists("t/u".as_ref()), Some(here.join("t/u")));
        let foreign = OsStr::from_bytes(b"/tmp/caf\xe9");
        assert_eq!(path_for_lists(foreign), Some(PathBuf::from(foreign)));
        for character in [
            ':', ';', ',', ' ', '\t', '\n', '"', '\'', '\\', '$', '*', '`',
        ] {
            let path = format!("/tmp/x{character}y");
            assert_eq!(path_for_lists(path.as_ref()), None, "{character:?}");
        }
    }

    #[test]
    fn directories_end_with_their_run_or_the_next() {
        let temporary = tempfile::tempdir().unwrap();
        let first = RunDirectory::create_below(temporary.path(), RUNS).unwrap();
        let parent = first.path.parent().unwrap().to_owned();
        fs::write(first.subdirectory("sysfs").unwrap().join("file"), "").unwrap();
        let dead = parent.join("run-1-0");
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join(LOCK), "").unwrap();

        let second = RunDirectory::create_below(temporary.path(), RUNS).unwrap();
        assert!(first.path.is_dir() && second.path.is_dir() && first.path != second.path);
        assert!(!dead.exists());
        let path = first.path.clone();
        drop(first);
        assert!(!path.exists() && second.path.is_dir());
        drop(second);
        assert!(!parent.exists());
    }

    #[test]
    fn runs_begin_while_the_last_one_ends() {
        let temporary = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let run = RunDirectory::create_below(temporary.path(), RUNS).unwrap();
                        fs::write(run.subdirectory("sysfs").unwrap().join("file"), "").unwrap();
                    }
                });
            }
        });
    }

    #[test]
    fn a_directory_writable_by_others_is_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let parent = temporary.path().join(format!("{RUNS}-{user}"));
        fs::create_dir(&parent).unwrap();
        let open_to_all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(&parent, open_to_all).unwrap();
        let Err(error) = RunDirectory::create_below(temporary.path(), RUNS) else {
            panic!("a directory that others can write to was used");
        };
        assert!(
            matches!(&error, RunDirectoryError::NotPrivate { path, .. } if *path == parent),
            "{error:?}"
        );
        assert!(error.to_string().contains("TMPDIR"), "{error}");
    }
}
