//! A fabric: the directory of the devices of one emulated network. The names of devices show which
//! of them belong to one host ([`DeviceName`](crate::DeviceName)).
//!
//! ```text
//! /dev/shm/efa-emu-<uid>/            mode 0700
//!   <fabric>/                        mode 0700
//!     registry                       versions of the layout and of frames, and the program that created it; its lock guards every change below
//!     faults                         armed faults (module `board`)
//!     hosts/<gid, 32 hex digits>/
//!       table                        name, queue pair numbers (module `qpn`)
//!       <n>.lock                     locked by the process that is participant n as long as it lives
//!       <n>.device                   the shared segment of participant n, if it opened a device
//!       <n>.switchboard              the wake word of participant n, a bridge with many such devices (module `doorbell_page`)
//!       profile                      name of the devices' profile
//!       <n>.capture                  the capture of the host's devices, if participant n requested one
//!       <n>.run-capture              the same for the devices of the processes that participant n started
//!       <n>.recording                the captures into which the device of participant n records
//!       known.<n>                    the bridge n has announced the host to other machines
//!     recorders/<n>.lock             locked by a process that records all hosts (module `recorder`)
//!     bridges/<n>.lock               locked by a process that announces all hosts to other machines
//! ```
//!
//! The fabric needs no daemon. A process announces itself by a lock that the kernel releases when
//! the process ends. The next process that lists the hosts, creates one or is the last to leave one
//! removes the files of dead processes. Programs join and leave existing hosts without a scan of
//! other devices: otherwise the start and the end of a job would take time proportional to the
//! square of its size.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use efa_core::address::Gid;

use super::board::{FaultBoard, board_path, draft_path};
use super::gids;
use super::participants::{self, CleanupResult};
use super::paths::{check_name, effective_user, gid_name, private_directory};
use super::recorder_locks;
use super::version;
use crate::error::{DirectoryContent, FabricError};
use crate::identity::config::{ENV_FABRICS, HostConfig};
use crate::process::lock::{REGISTRY_PATIENCE, RegistryLock};
use crate::transport::segment;
use efa_capture::file_size;
use efa_capture::frame::header;

/// The directory of `shm_open`.
pub const SHARED_MEMORY: &str = "/dev/shm";

/// A change of the layout of any file or directory below the fabric's directory needs a new number.
pub const LAYOUT: u32 = 7;

/// The longest registry file that is read, in bytes.
const LONGEST_REGISTRY: u64 = 4096;

/// First line of the registry file: the versions that builds must agree on to share a fabric. The
/// second line identifies the build that made it.
fn layout_line() -> String {
    let header = header::VERSION;
    format!("efa-emu fabric layout {LAYOUT}, transport header {header}\n")
}

/// A fabric of the calling user on this machine.
#[derive(Clone, Debug)]
pub struct Fabric {
    name: String,
    directory: PathBuf,
}

impl Fabric {
    /// Opens the fabric `name`, creating it if needed, below the directory that [`ENV_FABRICS`]
    /// names, else the machine's shared memory directory (`/dev/shm`, else `$XDG_RUNTIME_DIR`, else
    /// `$TMPDIR`, else `/tmp`).
    pub fn open(name: &str) -> Result<Fabric, FabricError> {
        Fabric::open_below(&absolute_root()?, name)
    }

    /// As [`Fabric::open`], but creates nothing: the fabric may not exist.
    pub fn find(name: &str) -> Result<Fabric, FabricError> {
        Fabric::find_below(&absolute_root()?, name)
    }

    /// As [`Fabric::open`], below another directory.
    pub fn open_below(root: &Path, name: &str) -> Result<Fabric, FabricError> {
        let fabric = Fabric::find_below(root, name)?;
        fabric.with_lock(|_| Ok(()))?;
        Ok(fabric)
    }

    fn find_below(root: &Path, name: &str) -> Result<Fabric, FabricError> {
        check_name("fabric", name)?;
        Ok(Fabric {
            name: name.to_owned(),
            directory: user_directory_below(root).join(name),
        })
    }

    /// Removes the files of dead processes in all fabrics of the calling user. A fabric that cannot
    /// be scanned now, because another process changes it or because it is damaged, remains
    /// unchanged.
    pub fn remove_dead() {
        Fabric::remove_dead_below(&shared_memory_root());
    }

    /// As [`Fabric::remove_dead`], below another directory.
    pub fn remove_dead_below(root: &Path) {
        for fabric in Fabric::all_below(root) {
            let swept = fabric.with_existing(Duration::ZERO, participants::remove_dead);
            if swept.is_err_and(|error| error.is_not_found()) {
                // Its last process was killed while it removed the fabric, or is about to end that.
                fabric.remove_empty_directories();
            }
        }
    }

    pub(super) fn all_below(root: &Path) -> impl Iterator<Item = Fabric> {
        let entries = std::fs::read_dir(user_directory_below(root));
        entries.into_iter().flatten().flatten().filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            check_name("fabric", &name).ok()?;
            let directory = entry.path();
            Some(Fabric { name, directory })
        })
    }

    /// The fabric's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The bits in which its hosts' GIDs differ from those of the same hosts in the fabric
    /// `default`.
    pub(crate) fn inverted_gid_bits(&self) -> u128 {
        gids::inverted_bits(&self.name).into()
    }

    /// The fabric's directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The directory of the user's fabrics, which [`ENV_FABRICS`] sets.
    pub fn root(&self) -> &Path {
        self.user_directory().parent().expect("it is below another")
    }

    /// Whether the run that started the process, according to `config`, is in this fabric. A
    /// process in a container may find another directory under the fabric's path.
    pub(crate) fn has_run_of(&self, config: &HostConfig) -> bool {
        let (Some(gid), Some(run)) = (config.gid(), config.run()) else {
            return true;
        };
        participants::is_alive(&self.host_directory(gid), run)
    }

    /// The last time that a host was added or removed, by the directory's modification time; `None`
    /// if the directory does not exist.
    pub fn changed(&self) -> Option<SystemTime> {
        std::fs::metadata(self.directory.join("hosts"))
            .ok()?
            .modified()
            .ok()
    }

    /// The directory of the host with the GID `gid`, whether or not there is one.
    pub(crate) fn host_directory(&self, gid: Gid) -> PathBuf {
        self.directory.join("hosts").join(gid_name(gid))
    }

    /// Runs `work` on the hosts' directory under the lock of the registry, after removing the files
    /// of dead processes. Removes the fabric afterwards if it contains no host and no recorder. The
    /// time grows with the number of devices.
    pub(crate) fn with_registry<T>(
        &self,
        work: impl FnOnce(&Path) -> Result<T, FabricError>,
    ) -> Result<T, FabricError> {
        self.with_lock(|hosts| {
            participants::remove_dead(hosts)?;
            work(hosts)
        })
    }

    /// As [`Fabric::with_registry`], but a fabric without a process is not created: returns the
    /// default of `T` then.
    pub(crate) fn with_existing_registry<T: Default>(
        &self,
        work: impl FnOnce(&Path) -> Result<T, FabricError>,
    ) -> Result<T, FabricError> {
        let done = self.with_existing(REGISTRY_PATIENCE, |hosts| {
            participants::remove_dead(hosts)?;
            work(hosts)
        });
        match done {
            Err(error) if error.is_not_found() => {
                // A process may have ended while it removed the fabric.
                self.remove_empty_directories();
                Ok(T::default())
            }
            done => done,
        }
    }

    /// As [`Fabric::with_registry`], but without removing the files of dead processes: the time
    /// does not depend on the number of devices.
    pub(crate) fn with_lock<T>(
        &self,
        work: impl FnOnce(&Path) -> Result<T, FabricError>,
    ) -> Result<T, FabricError> {
        self.with_registry_lock(self.lock_registry()?, work)
    }

    /// As [`Fabric::with_lock`], waiting no longer than `patience` for other processes. A fabric
    /// that another process has removed is not created again.
    pub(super) fn with_existing<T>(
        &self,
        patience: Duration,
        work: impl FnOnce(&Path) -> Result<T, FabricError>,
    ) -> Result<T, FabricError> {
        let registry = RegistryLock::acquire(&self.directory.join("registry"), false, patience)?;
        self.with_registry_lock(registry, work)
    }

    fn with_registry_lock<T>(
        &self,
        registry: RegistryLock,
        work: impl FnOnce(&Path) -> Result<T, FabricError>,
    ) -> Result<T, FabricError> {
        check_layout(registry.file(), &self.directory)?;
        let hosts = self.directory.join("hosts");
        private_directory(&hosts, DirectoryContent::OneFabric)?;
        recorder_locks::remove_dead(&self.directory);
        if let Ok(Some(board)) = FaultBoard::open_existing(&self.directory) {
            board.disarm_orphans(|owner| {
                participants::is_alive(&self.host_directory(owner.gid), owner.id)
            });
        }
        let result = work(&hosts);
        if std::fs::remove_dir(&hosts).is_ok() {
            let _ = std::fs::remove_file(board_path(&self.directory));
            let _ = std::fs::remove_file(draft_path(&self.directory));
            if recorder_locks::are_any(&self.directory) {
                return result;
            }
            let _ = std::fs::remove_file(self.directory.join("registry"));
            self.remove_empty_directories();
        }
        result
    }

    /// Fails where another process is creating the fabric again, or has another one.
    fn remove_empty_directories(&self) {
        let _ = std::fs::remove_dir(&self.directory);
        let _ = std::fs::remove_dir(self.user_directory());
    }

    /// Removes hosts without participants, and an empty fabric. A failure is ignored, because the
    /// next change of the registry tries again.
    pub(crate) fn sweep(&self) {
        let _ = self.with_existing_registry(|_| Ok(()));
    }

    /// As [`Fabric::sweep`], for a participant of a device that has left: as long as the device has
    /// others, no other device is checked.
    pub(crate) fn sweep_after(&self, gid: Gid) {
        let _ = self.with_existing(
            REGISTRY_PATIENCE,
            |hosts| match participants::remove_dead_of(&self.host_directory(gid), gid)? {
                CleanupResult::Device => Ok(()),
                CleanupResult::Nothing => participants::remove_dead(hosts),
            },
        );
    }

    fn user_directory(&self) -> &Path {
        self.directory.parent().expect("a fabric has a parent")
    }

    fn lock_registry(&self) -> Result<RegistryLock, FabricError> {
        let registry = self.directory.join("registry");
        let mut attempts = 0;
        loop {
            attempts += 1;
            let locked = private_directory(self.user_directory(), DirectoryContent::AllFabrics)
                .and_then(|()| private_directory(&self.directory, DirectoryContent::OneFabric))
                .and_then(|()| RegistryLock::acquire(&registry, true, REGISTRY_PATIENCE));
            match locked {
                // The last participant to leave removes the directories, perhaps between two steps
                // of this call.
                Err(ref error) if error.is_not_found() && attempts < 1000 => {}
                result => return result,
            }
        }
    }
}

/// The directory of the calling user's fabrics.
fn user_directory_below(root: &Path) -> PathBuf {
    root.join(format!("efa-emu-{}", effective_user()))
}

/// Checks that the system's limits permit this process to open a device.
///
/// # Errors
/// The limit on the size of its files is too low.
pub fn check_limits() -> Result<(), FabricError> {
    file_size::check(segment::LENGTH as u64).map_err(FabricError::io(
        "make a device's file in",
        &shared_memory_root(),
    ))
}

fn absolute_root() -> Result<PathBuf, FabricError> {
    let root = shared_memory_root();
    match root.is_absolute() {
        true => Ok(root),
        false => Err(FabricError::RelativePath {
            variable: ENV_FABRICS,
            path: root,
        }),
    }
}

pub(super) fn shared_memory_root() -> PathBuf {
    let named = std::env::var_os(ENV_FABRICS).filter(|path| !path.is_empty());
    named.map_or_else(usual_root, PathBuf::from)
}

fn usual_root() -> PathBuf {
    let candidates = ["XDG_RUNTIME_DIR", "TMPDIR"].map(std::env::var_os);
    std::iter::once(PathBuf::from(SHARED_MEMORY))
        .chain(candidates.into_iter().flatten().map(PathBuf::from))
        .find(|path| {
            // A relative one would be another fabric in each directory.
            path.is_absolute()
                && path.is_dir()
                && rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
        })
        .unwrap_or_else(|| PathBuf::from("/tmp"))
}

/// Compares the first line of the locked registry file with this build's, or writes it to a new
/// one.
fn check_layout(mut registry: &File, directory: &Path) -> Result<(), FabricError> {
    let mut found = Vec::new();
    registry
        .take(LONGEST_REGISTRY)
        .read_to_end(&mut found)
        .map_err(FabricError::io("read", directory))?;
    let own = layout_line();
    if found.starts_with(own.as_bytes()) {
        return Ok(());
    }
    // A process may have been killed after it created the file, or in the middle of the line.
    if own.as_bytes().starts_with(&found) {
        registry
            .rewind()
            .and_then(|()| registry.write_all(registry_text().as_bytes()))
            .map_err(FabricError::io("write", directory))?;
        return Ok(());
    }
    let in_one_line = |text: &str| text.trim_end().replace('\n', ", ");
    Err(FabricError::UnknownLayout {
        path: directory.to_owned(),
        found: in_one_line(&String::from_utf8_lossy(&found)),
        expected: in_one_line(&registry_text()),
    })
}

/// The text of a new registry file.
fn registry_text() -> String {
    format!("{}made by {}\n", layout_line(), version::identity())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use crate::fabric::host::Host;

    fn open(root: &tempfile::TempDir) -> Result<Host, FabricError> {
        Fabric::open_below(root.path(), "lab")?.enter_host(None, None, 64)
    }

    #[test]
    fn directories_are_private() {
        let root = tempfile::tempdir().unwrap();
        let host = open(&root).unwrap();
        for directory in [
            host.fabric().directory(),
            host.fabric().user_directory(),
            &host.fabric().host_directory(host.gid()),
        ] {
            let mode = std::fs::metadata(directory).unwrap().mode() & 0o077;
            assert_eq!(mode & 0o022, 0, "{}", directory.display());
        }
    }

    #[test]
    fn dead_hosts_are_removed_from_all_fabrics() {
        let root = tempfile::tempdir().unwrap();
        let living = open(&root).unwrap();
        let user = living.fabric().user_directory().to_owned();
        let dead = user.join("forgotten/hosts").join(gid_name(Gid([1; 16])));
        std::fs::create_dir_all(&dead).unwrap();
        std::fs::write(dead.join("1.lock"), "").unwrap();
        std::fs::write(user.join("forgotten/registry"), "").unwrap();
        let half_removed = user.join("half-removed");
        std::fs::create_dir(&half_removed).unwrap();
        let running = Fabric::running_below(root.path());
        let names: Vec<_> = running.iter().map(Fabric::name).collect();
        assert_eq!(names, ["lab"]);
        Fabric::remove_dead_below(root.path());
        assert!(!user.join("forgotten").exists());
        assert!(!half_removed.exists());
        assert_eq!(living.fabric().hosts().unwrap().len(), 1);
        drop(living);
        Fabric::remove_dead_below(root.path());
        assert!(!user.exists());
    }

    /// A process that sweeps looks at fabrics that others remove meanwhile.
    #[test]
    fn sweeping_or_listing_creates_no_removed_fabric() {
        let root = tempfile::tempdir().unwrap();
        let living = open(&root).unwrap();
        let user = living.fabric().user_directory();
        let removed = Fabric {
            name: "removed".into(),
            directory: user.join("removed"),
        };
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        File::open(user).unwrap().set_modified(long_ago).unwrap();
        removed.sweep();
        removed.sweep_after(living.gid());
        assert!(removed.hosts().unwrap().is_empty());
        let changed = std::fs::metadata(user).unwrap().modified().unwrap();
        assert_eq!(changed, long_ago);
    }

    #[test]
    fn a_fabric_writable_by_others_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let host = open(&root).unwrap();
        let directory = host.fabric().directory().to_owned();
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o770)).unwrap();
        let error = open(&root).unwrap_err();
        assert!(
            matches!(error, FabricError::WritableByOthers { mode: 0o770, .. }),
            "{error}"
        );
        assert!(error.to_string().contains("lab"), "{error}");
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700)).unwrap();
        open(&root).unwrap();
    }

    #[test]
    fn a_fabric_of_another_user_is_refused() {
        if effective_user() != 0 {
            efa_testing::skip("only root can give a directory to another user");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let host = open(&root).unwrap();
        let fabric = host.fabric().directory().to_owned();
        let all = host.fabric().user_directory().to_owned();
        let give = |path: &Path, user| std::os::unix::fs::chown(path, Some(user), None).unwrap();
        for (path, holds) in [
            (&fabric, DirectoryContent::OneFabric),
            (&all, DirectoryContent::AllFabrics),
        ] {
            give(path, 12345);
            let error = open(&root).unwrap_err();
            assert!(
                matches!(
                    &error,
                    FabricError::ForeignOwner {
                        path: found,
                        holds: held,
                        owner: 12345,
                        user: 0,
                    } if found == path && *held == holds
                ),
                "{error}"
            );
            // The remedy in the message is correct.
            let elsewhere = Fabric::open_below(root.path(), "elsewhere");
            assert_eq!(
                elsewhere.is_ok(),
                holds == DirectoryContent::OneFabric,
                "{error}"
            );
            let advised = error.to_string().contains("or choose another --fabric");
            assert_eq!(advised, holds == DirectoryContent::OneFabric, "{error}");
            give(path, 0);
            open(&root).unwrap();
        }
        drop(host);
        // So is it about removing the directory.
        std::fs::create_dir(&all).unwrap();
        give(&all, 12345);
        let error = open(&root).unwrap_err().to_string();
        let removed = format!("{} belongs to user 12345", all.display());
        assert!(
            error.starts_with(&removed) && error.contains("or root remove it"),
            "{error}"
        );
        std::fs::remove_dir_all(&all).unwrap();
        open(&root).unwrap();
    }

    #[test]
    fn other_layouts_are_refused_unfinished_ones_completed() {
        let root = tempfile::tempdir().unwrap();
        let host = open(&root).unwrap();
        let registry = host.fabric().directory().join("registry");
        for unfinished in ["", "efa-emu fab", &layout_line()] {
            std::fs::write(&registry, unfinished).unwrap();
            open(&root).unwrap();
            let completed = std::fs::read_to_string(&registry).unwrap();
            assert!(completed.starts_with(&layout_line()), "{completed}");
        }
        let own = std::env::current_exe().unwrap().display().to_string();
        let next = header::VERSION + 1;
        // The same directory, and other frames in it.
        let of_header = format!("efa-emu fabric layout {LAYOUT}, transport header {next}\n");
        // As written by builds that did not compare the header.
        let of_layout = format!("efa-emu fabric layout {LAYOUT}\nmade by efa-emu 0.1.0\n");
        for foreign in [
            &of_header,
            &of_layout,
            "efa-emu fabric layout 1\n",
            "efa-emu fabric layout 40\nmade by efa-emu 9.0.0 (commit f00), /opt/lib/theirs.so\n",
            "something else entirely, and longer than ours",
        ] {
            std::fs::write(&registry, foreign).unwrap();
            let error = open(&root).unwrap_err();
            assert!(
                matches!(error, FabricError::UnknownLayout { .. }),
                "{error}"
            );
            // The text names both builds and their paths.
            let text = error.to_string();
            for line in foreign.lines().chain([version::PACKAGE, own.as_str()]) {
                assert!(text.contains(line), "{text}");
            }
        }
        std::fs::write(&registry, registry_text()).unwrap();
    }

    #[test]
    fn obstructing_files_and_links_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let in_the_way = root.path().join(format!("efa-emu-{}", effective_user()));
        std::fs::write(&in_the_way, "").unwrap();
        let error = open(&root).unwrap_err();
        assert!(
            matches!(error, FabricError::NotADirectory { .. }),
            "{error}"
        );
        std::fs::remove_file(&in_the_way).unwrap();
        std::os::unix::fs::symlink("/", &in_the_way).unwrap();
        let error = open(&root).unwrap_err();
        assert!(
            matches!(error, FabricError::NotADirectory { .. }),
            "{error}"
        );
    }
}
