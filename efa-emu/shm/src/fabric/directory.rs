//! A fabric: the directory in which the devices of one emulated network meet. Which of them make a
//! host together is told by their names ([`DeviceName`]).
//!
//! ```text
//! /dev/shm/efa-emu-<uid>/            mode 0700
//!   <fabric>/                        mode 0700
//!     registry                       versions of the layout and of frames, and who made it; its lock guards every change below
//!     faults                         armed faults (module `board`)
//!     hosts/<gid, 32 hex digits>/
//!       table                        name, queue pair numbers (module `qpn`)
//!       <n>.lock                     locked by the process that is participant n as long as it lives
//!       <n>.device                   the shared segment of participant n, if it opened a device
//!       <n>.switchboard              where participant n, a bridge with many such devices, is woken (module `switchboard`)
//!       profile                      name of the devices' profile
//!       <n>.capture                  where the host's devices record if participant n asked for it
//!       <n>.run-capture              likewise, the devices of the processes that participant n started
//!       <n>.recording                into which captures the device of participant n records
//!       known.<n>                    other machines know of the host, says the bridge n
//!     recorders/<n>.lock             locked by a process that records all hosts (module `recorder`)
//!     bridges/<n>.lock               locked by a process that tells other machines of all hosts
//! ```
//!
//! Nothing in here needs a daemon. A process announces itself by a lock that the kernel releases
//! when the process ends. What the dead left behind is removed by whoever next lists the hosts,
//! makes one or is the last to leave one. Programs come to hosts that are there and go again
//! without a look at other devices than their own: the time that a job takes to start and to end
//! would grow with the square of its size.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use efa_core::address::Gid;

use super::board::{Board, board_path, draft_path};
use super::host::{self, Host, HostStatus, Known, Listed, Remains};
use super::recorder;
use super::version;
use crate::error::{FabricError, Holds};
use crate::identity::config::NetworkOptions;
use crate::identity::device_name::DeviceName;
use crate::identity::qpn::{HostTable, ParticipantId, Purview};
use crate::process::lock::{REGISTRY_PATIENCE, RegistryLock};
use crate::transport::segment;
use efa_capture::file_size;
use efa_capture::frame::header;
use efa_device_model::profile::Profile;

/// Another layout of anything below the fabric's directory gets another number.
pub const LAYOUT: u32 = 7;

/// The longest registry file that is read, in bytes.
const LONGEST_REGISTRY: u64 = 4096;

/// First line of the registry file: what builds have to agree on that meet in a fabric. The second
/// tells which build made it.
fn layout_line() -> String {
    let header = header::VERSION;
    format!("efa-emu fabric layout {LAYOUT}, transport header {header}\n")
}

/// Longest name of a fabric or host.
const MAX_NAME: usize = 63;

/// Refuses names that cannot be file names or that would be hard to read in messages.
pub(crate) fn check_name(what: &'static str, name: &str) -> Result<(), FabricError> {
    let valid = !name.is_empty()
        && name.len() <= MAX_NAME
        && !name.starts_with('.')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    if valid {
        Ok(())
    } else {
        Err(FabricError::InvalidName {
            what,
            name: name.to_owned(),
            max: MAX_NAME,
        })
    }
}

/// A fabric of the calling user on this machine.
#[derive(Clone, Debug)]
pub struct Fabric {
    name: String,
    directory: PathBuf,
}

impl Fabric {
    /// Opens the fabric `name`, creating it if needed, below the machine's shared memory directory
    /// (`/dev/shm`, else `$XDG_RUNTIME_DIR`, else `$TMPDIR`, else `/tmp`).
    pub fn open(name: &str) -> Result<Fabric, FabricError> {
        Fabric::open_below(&shared_memory_root(), name)
    }

    /// As [`Fabric::open`], below another directory.
    pub fn open_below(root: &Path, name: &str) -> Result<Fabric, FabricError> {
        check_name("fabric", name)?;
        let directory = user_directory_below(root).join(name);
        let fabric = Fabric {
            name: name.to_owned(),
            directory,
        };
        fabric.with_lock(|_| Ok(()))?;
        Ok(fabric)
    }

    /// Removes what dead processes left in any of the calling user's fabrics. A fabric that cannot
    /// be looked at now, because another process changes it or because it is damaged, stays as it
    /// is.
    pub fn remove_dead() {
        Fabric::remove_dead_below(&shared_memory_root());
    }

    /// As [`Fabric::remove_dead`], below another directory.
    pub fn remove_dead_below(root: &Path) {
        for fabric in Fabric::all_below(root) {
            let _ = fabric.with_lock_within(Duration::ZERO, host::remove_dead);
        }
    }

    /// The calling user's fabrics that have hosts, ordered by name. One that cannot be looked at
    /// now counts as having none.
    pub fn running() -> Vec<Fabric> {
        Fabric::running_below(&shared_memory_root())
    }

    /// As [`Fabric::running`], below another directory.
    pub fn running_below(root: &Path) -> Vec<Fabric> {
        let mut running: Vec<_> = Fabric::all_below(root)
            .filter(|fabric| fabric.hosts().is_ok_and(|hosts| !hosts.is_empty()))
            .collect();
        running.sort_by(|a, b| a.name.cmp(&b.name));
        running
    }

    fn all_below(root: &Path) -> impl Iterator<Item = Fabric> {
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

    /// The fabric's directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Makes the caller a participant of the device `name`, which is that of a host unless it has
    /// an index behind its name (see [`DeviceName`]): an existing live one, or a new one. `None`
    /// picks a new host `host-1`, `host-2`, ... With a `gid`, a new device gets exactly that one.
    ///
    /// `queue_pairs` is the most queue pairs that the device may have at a time, which a device
    /// keeps from its first participant on.
    pub fn enter_host(
        &self,
        name: Option<&str>,
        gid: Option<Gid>,
        queue_pairs: u32,
    ) -> Result<Host, FabricError> {
        let Some(text) = name else {
            let mut entered = self.enter_all(&[None], Some(1), queue_pairs, None)?;
            return Ok(entered.remove(0).remove(0));
        };
        let invalid = || FabricError::InvalidName {
            what: "device",
            name: text.to_owned(),
            max: MAX_NAME,
        };
        self.enter_device(
            &DeviceName::parse(text).ok_or_else(invalid)?,
            gid,
            queue_pairs,
        )
    }

    /// As [`Fabric::enter_host`], for a device that is known by all parts of its name.
    pub fn enter_device(
        &self,
        name: &DeviceName,
        gid: Option<Gid>,
        queue_pairs: u32,
    ) -> Result<Host, FabricError> {
        check_name("host", name.host())?;
        self.with_lock(|hosts| {
            // A job has many programs: each looks at the device that it is told, and at no other
            // one.
            if let Some(gid) = gid
                && let Some(host) = Host::join(self, name, gid)?
            {
                return Ok(host);
            }
            host::remove_dead(hosts)?;
            let purview = Purview::Own(queue_pairs);
            Host::enter(&mut Known::read(hosts)?, self, name, gid, purview)
        })
    }

    /// Makes the caller stand for devices of another machine, which must not be known yet: for
    /// each, its participation or why there is none.
    ///
    /// # Errors
    /// The registry cannot be changed.
    pub(crate) fn enter_remotes(
        &self,
        devices: &[(&DeviceName, Gid)],
        machine: &str,
    ) -> Result<Vec<Result<Host, FabricError>>, FabricError> {
        check_name("machine", machine)?;
        self.with_registry(|hosts| {
            let mut known = Known::read(hosts)?;
            let enter = |(name, gid): &(&DeviceName, Gid)| {
                check_name("host", name.host())?;
                let purview = Purview::Remote(machine);
                Host::enter(&mut known, self, name, Some(*gid), purview)
            };
            Ok(devices.iter().map(enter).collect())
        })
    }

    /// Refuses names that a host cannot have.
    ///
    /// # Errors
    /// [`FabricError::InvalidName`]
    pub fn check_host_name(name: &str) -> Result<(), FabricError> {
        check_name("host", name)
    }

    /// Makes the caller a participant of all devices of the host `name`, in their order: of an
    /// existing live host, or of a new one with so many devices (`None`: one). `None` for a name
    /// picks a new one. Whoever sees the new devices sees that they are of this profile.
    ///
    /// # Errors
    /// The number is not possible, or the host is there and has another one.
    pub fn enter_devices(
        &self,
        name: Option<&str>,
        devices: Option<u32>,
        profile: &Profile,
    ) -> Result<Vec<Host>, FabricError> {
        let mut entered = self.enter_all(&[name], devices, profile.max_qp, Some(profile.name))?;
        Ok(entered.remove(0))
    }

    /// As [`Fabric::enter_devices`], for several hosts: about as fast as for one.
    ///
    /// # Errors
    /// The caller takes part in none of them then.
    pub fn enter_hosts(
        &self,
        names: &[String],
        devices: Option<u32>,
        profile: &Profile,
    ) -> Result<Vec<Vec<Host>>, FabricError> {
        let names: Vec<_> = names.iter().map(|name| Some(name.as_str())).collect();
        self.enter_all(&names, devices, profile.max_qp, Some(profile.name))
    }

    fn enter_all(
        &self,
        names: &[Option<&str>],
        devices: Option<u32>,
        queue_pairs: u32,
        profile: Option<&str>,
    ) -> Result<Vec<Vec<Host>>, FabricError> {
        for name in names.iter().flatten() {
            Self::check_host_name(name)?;
        }
        let most = DeviceName::MOST;
        if let Some(wanted) = devices.filter(|wanted| !(1..=most).contains(wanted)) {
            return Err(FabricError::DeviceCount { wanted, most });
        }
        let mut all = Vec::new();
        let entered = self.with_registry(|hosts| {
            let mut known = Known::read(hosts)?;
            for name in names {
                all.push(Vec::new());
                let entered = all.last_mut().expect("it was just put there");
                Host::enter_all(
                    entered,
                    &mut known,
                    self,
                    *name,
                    devices,
                    queue_pairs,
                    profile,
                )?;
            }
            Ok(())
        });
        match entered {
            Ok(()) => Ok(all),
            Err(error) => {
                Host::leave_all(all.into_iter().flatten());
                Err(error)
            }
        }
    }

    /// The devices of all live hosts, ordered by name.
    pub fn hosts(&self) -> Result<Vec<HostStatus>, FabricError> {
        self.list(Listed::All)
    }

    /// As [`Fabric::hosts`], without those of other machines.
    pub fn hosts_of_this_machine(&self) -> Result<Vec<HostStatus>, FabricError> {
        self.list(Listed::OfThisMachine)
    }

    fn list(&self, listed: Listed) -> Result<Vec<HostStatus>, FabricError> {
        self.with_registry(|hosts| {
            let mut list = host::list(hosts, listed)?;
            list.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(list)
        })
    }

    /// How many bytes a device takes in the fabric's directory whose profile has so many queue
    /// pairs, before a program opens it.
    pub fn bytes_of_device(queue_pairs: u32) -> u64 {
        /// The file with the name of the profile.
        const PROFILE: usize = 4096;
        (HostTable::bytes(queue_pairs) + PROFILE) as u64
    }

    /// How many bytes a program that opens a device takes there, if one other sends to it.
    pub fn bytes_of_program() -> u64 {
        segment::BYTES_WITH_ONE_RING as u64
    }

    /// When a host last came or went, as far as the directories tell; `None` if there is none.
    pub fn changed(&self) -> Option<SystemTime> {
        std::fs::metadata(self.directory.join("hosts"))
            .ok()?
            .modified()
            .ok()
    }

    /// What the network does to what a live device sends; `None` before a process has opened it.
    pub fn network_of(&self, gid: Gid) -> Option<NetworkOptions> {
        host::network_of(&self.host_directory(gid), gid)
    }

    /// All live participants.
    pub(crate) fn participants(&self) -> Result<Vec<(Gid, ParticipantId)>, FabricError> {
        self.with_registry(host::live_participants)
    }

    /// The directory of the host with the GID `gid`, whether or not there is one.
    pub(crate) fn host_directory(&self, gid: Gid) -> PathBuf {
        self.directory.join("hosts").join(gid_name(gid))
    }

    /// Runs `work` on the hosts' directory while no other process changes the registry, after
    /// removing what dead processes left. Removes the fabric afterwards if no host and no recorder
    /// is left in it. Takes the longer the more devices there are.
    pub(crate) fn with_registry<T>(
        &self,
        work: impl FnOnce(&Path) -> Result<T, FabricError>,
    ) -> Result<T, FabricError> {
        self.with_lock(|hosts| {
            host::remove_dead(hosts)?;
            work(hosts)
        })
    }

    /// As [`Fabric::with_registry`], for work that does not mind what dead processes left of hosts:
    /// takes the same time however many devices there are.
    pub(crate) fn with_lock<T>(
        &self,
        work: impl FnOnce(&Path) -> Result<T, FabricError>,
    ) -> Result<T, FabricError> {
        self.with_lock_within(REGISTRY_PATIENCE, work)
    }

    /// As [`Fabric::with_lock`], waiting no longer than `patience` for other processes.
    fn with_lock_within<T>(
        &self,
        patience: Duration,
        work: impl FnOnce(&Path) -> Result<T, FabricError>,
    ) -> Result<T, FabricError> {
        let registry = self.lock_registry(patience)?;
        check_layout(registry.file(), &self.directory)?;
        let hosts = self.directory.join("hosts");
        private_directory(&hosts, Holds::OneFabric)?;
        recorder::remove_dead(&self.directory);
        if let Ok(Some(board)) = Board::open_existing(&self.directory) {
            board.disarm_orphans(|owner| host::is_alive(&self.host_directory(owner.gid), owner.id));
        }
        let result = work(&hosts);
        if std::fs::remove_dir(&hosts).is_ok() {
            let _ = std::fs::remove_file(board_path(&self.directory));
            let _ = std::fs::remove_file(draft_path(&self.directory));
            if recorder::are_any(&self.directory) {
                return result;
            }
            let _ = std::fs::remove_file(self.directory.join("registry"));
            let _ = std::fs::remove_dir(&self.directory);
            let _ = std::fs::remove_dir(self.user_directory());
        }
        result
    }

    /// Removes hosts without participants, and the fabric with the last of them. What fails here,
    /// the next change of the registry does.
    pub(crate) fn sweep(&self) {
        let _ = self.with_registry(|_| Ok(()));
    }

    /// As [`Fabric::sweep`], for a participant of a device that has left: as long as the device has
    /// others, nothing else is looked at.
    pub(crate) fn sweep_after(&self, gid: Gid) {
        let _ =
            self.with_lock(
                |hosts| match host::remove_dead_of(&self.host_directory(gid), gid)? {
                    Remains::Device => Ok(()),
                    Remains::Nothing => host::remove_dead(hosts),
                },
            );
    }

    fn user_directory(&self) -> &Path {
        self.directory.parent().expect("a fabric has a parent")
    }

    fn lock_registry(&self, patience: Duration) -> Result<RegistryLock, FabricError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let locked = private_directory(self.user_directory(), Holds::AllFabrics)
                .and_then(|()| private_directory(&self.directory, Holds::OneFabric))
                .and_then(|()| RegistryLock::acquire(&self.directory.join("registry"), patience));
            match locked {
                // The last participant to leave removes the directories, perhaps between our steps.
                Err(FabricError::Io { ref source, .. })
                    if source.kind() == io::ErrorKind::NotFound && attempts < 1000 => {}
                result => return result,
            }
        }
    }
}

/// Where the fabrics of the calling user are.
fn user_directory_below(root: &Path) -> PathBuf {
    root.join(format!("efa-emu-{}", effective_user()))
}

/// The effective user id.
fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Checks that this process may open a device, as far as the system's limits go.
///
/// # Errors
/// The limit on the size of its files is too low.
pub fn check_limits() -> Result<(), FabricError> {
    file_size::check(segment::LENGTH as u64).map_err(FabricError::io(
        "make a device's file in",
        &shared_memory_root(),
    ))
}

fn shared_memory_root() -> PathBuf {
    let candidates = ["XDG_RUNTIME_DIR", "TMPDIR"].map(std::env::var_os);
    std::iter::once(PathBuf::from("/dev/shm"))
        .chain(candidates.into_iter().flatten().map(PathBuf::from))
        .find(|path| {
            // A relative one would be another fabric in each directory.
            path.is_absolute()
                && path.is_dir()
                && rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
        })
        .unwrap_or_else(|| PathBuf::from("/tmp"))
}

/// Makes sure that `path` is a directory of this user that no other user can write to.
pub(crate) fn private_directory(path: &Path, holds: Holds) -> Result<(), FabricError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(FabricError::io("create", path)(error)),
    }
    let metadata = std::fs::symlink_metadata(path).map_err(FabricError::io("stat", path))?;
    if !metadata.is_dir() {
        return Err(FabricError::NotADirectory {
            path: path.to_owned(),
            holds,
        });
    }
    let user = effective_user();
    if metadata.uid() != user {
        return Err(FabricError::ForeignOwner {
            path: path.to_owned(),
            holds,
            owner: metadata.uid(),
            user,
        });
    }
    let mode = metadata.mode() & 0o777;
    if mode & 0o022 != 0 {
        return Err(FabricError::WritableByOthers {
            path: path.to_owned(),
            mode,
        });
    }
    Ok(())
}

/// Compares the first line of the locked registry file with that of this build, or writes it into a
/// new one.
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

/// What a new registry file says.
fn registry_text() -> String {
    format!("{}made by {}\n", layout_line(), version::identity())
}

/// The name of a host's directory.
pub(crate) fn gid_name(gid: Gid) -> String {
    use std::fmt::Write as _;
    gid.0.iter().fold(String::new(), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    })
}

/// The inverse of [`gid_name`].
pub(crate) fn gid_from_name(name: &str) -> Option<Gid> {
    if name.len() != 32
        || !name
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    {
        return None;
    }
    u128::from_str_radix(name, 16)
        .ok()
        .map(|value| Gid(value.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

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
    fn what_is_dead_is_removed_from_all_fabrics() {
        let root = tempfile::tempdir().unwrap();
        let living = open(&root).unwrap();
        let user = living.fabric().user_directory().to_owned();
        let dead = user.join("forgotten/hosts").join(gid_name(Gid([1; 16])));
        std::fs::create_dir_all(&dead).unwrap();
        std::fs::write(dead.join("1.lock"), "").unwrap();
        let running = Fabric::running_below(root.path());
        let names: Vec<_> = running.iter().map(Fabric::name).collect();
        assert_eq!(names, ["lab"]);
        Fabric::remove_dead_below(root.path());
        assert!(!user.join("forgotten").exists());
        assert_eq!(living.fabric().hosts().unwrap().len(), 1);
        drop(living);
        Fabric::remove_dead_below(root.path());
        assert!(!user.exists());
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
        for (path, holds) in [(&fabric, Holds::OneFabric), (&all, Holds::AllFabrics)] {
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
            // The message is right about what helps.
            let elsewhere = Fabric::open_below(root.path(), "elsewhere");
            assert_eq!(elsewhere.is_ok(), holds == Holds::OneFabric, "{error}");
            let advised = error.to_string().contains("or choose another --fabric");
            assert_eq!(advised, holds == Holds::OneFabric, "{error}");
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
        // As builds wrote it that did not compare the header.
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
            // Both builds, and where they are.
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

    #[test]
    fn gid_names_round_trip() {
        let gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 0xab, 0xff]);
        assert_eq!(gid_name(gid), "fe80000000000000010203040506abff");
        assert_eq!(gid_from_name(&gid_name(gid)), Some(gid));
        for name in [
            "",
            "fe80",
            "FE80000000000000010203040506ABFF",
            "+e80000000000000010203040506abff",
        ] {
            assert_eq!(gid_from_name(name), None);
        }
    }
}
