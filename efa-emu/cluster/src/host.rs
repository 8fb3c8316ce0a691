//! Emulated hosts with this process as a participant, and the environment for programs on them.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use efa_device_model::numa;
use efa_device_model::profile::Profile;
use efa_device_model::sysfs::{self, Rail};
use efa_shm::{Fabric, FabricError, Host, HostConfig, PortRules};

use crate::device_view::DeviceView;
use crate::live_sysfs::LiveSysfs;

/// The longest path in `ibv_device`.
const LONGEST_DEVICE_PATH: usize = 255;

/// The time that a program waits for the recorders of the fabric, which check for new hosts ten
/// times a second.
const RECORDER_PATIENCE: Duration = Duration::from_secs(3);

/// Maximum time that a program waits for a live bridge to announce its hosts. On a busy machine, a
/// bridge that needs longer would cost the program its first messages, which have no destination.
const BRIDGE_PATIENCE: Duration = Duration::from_secs(10);

/// The reason why a host has no sysfs tree.
#[derive(Debug, thiserror::Error)]
pub enum SysfsError {
    /// The path of the tree, which programs copy to fields of limited length.
    #[error(
        "{} is too long for a device path, which has room for {LONGEST_DEVICE_PATH} bytes: set TMPDIR to a shorter \
         directory",
        .0.display()
    )]
    TooLong(PathBuf),
    /// A file or directory of the tree cannot be written.
    #[error("cannot write below {}: {source}", root.display())]
    Write {
        /// The directory of the tree.
        root: PathBuf,
        /// The reason of the system.
        source: io::Error,
    },
}

/// The variables that make programs load the emulated libraries, and the named provider.
pub struct Injection {
    /// Names and values.
    pub variables: Vec<(&'static str, OsString)>,
    /// The directory of marks about the use of devices.
    pub marks: PathBuf,
}

/// Hosts with this process as a participant, which it leaves together.
pub struct EmulatedHosts(Vec<EmulatedHost>);

impl std::ops::Deref for EmulatedHosts {
    type Target = [EmulatedHost];

    fn deref(&self) -> &[EmulatedHost] {
        &self.0
    }
}

impl Drop for EmulatedHosts {
    fn drop(&mut self) {
        Host::leave_all(self.0.drain(..).flat_map(|host| host.devices));
    }
}

impl FromIterator<EmulatedHost> for EmulatedHosts {
    fn from_iter<I: IntoIterator<Item = EmulatedHost>>(hosts: I) -> Self {
        EmulatedHosts(hosts.into_iter().collect())
    }
}

impl EmulatedHosts {
    /// The devices of all hosts.
    pub fn devices(&self) -> impl Iterator<Item = &Host> {
        self.iter().flat_map(|host| &host.devices)
    }

    /// Waits until these hosts are announced to the other machines. Returns a message if they are
    /// not.
    ///
    /// # Errors
    /// The fabric cannot be read.
    pub fn wait_for_bridges(&self, fabric: &Fabric) -> Result<Option<String>, FabricError> {
        let unknown = fabric.wait_for_bridges(self.devices(), BRIDGE_PATIENCE)?;
        Ok(unknown.map(|device| {
            format!(
                "the bridge of the fabric {} does not answer: other machines may not know of {} yet",
                fabric.name(),
                device.name()
            )
        }))
    }

    /// Waits until all recorders of the fabric also record these hosts. Returns a message if one
    /// does not.
    ///
    /// # Errors
    /// The fabric cannot be read.
    pub fn wait_for_recorders(&self, fabric: &Fabric) -> Result<Option<String>, FabricError> {
        let unknown = fabric.wait_for_recorders(self.devices(), RECORDER_PATIENCE)?;
        Ok(unknown.map(|device| {
            format!(
                "whoever records the fabric {} does not answer: the capture may lack the first frames of {}",
                fabric.name(),
                device.name()
            )
        }))
    }
}

/// A host with this process as a participant.
pub struct EmulatedHost {
    /// At least one.
    pub devices: Vec<Host>,
    /// The profile of all its devices.
    pub profile: Profile,
    /// The rules for the state of ports; `None` if they cannot be read.
    pub port_rules: Option<PortRules>,
    /// The configuration that its programs find in their environment.
    pub config: HostConfig,
}

impl EmulatedHost {
    /// The host's name.
    pub fn name(&self) -> &str {
        &self.config.host
    }

    /// Writes the sysfs tree of the host's devices into an empty directory.
    ///
    /// # Errors
    /// The directory's path is too long, or it is not writable.
    pub fn generate_sysfs(&self, root: &Path) -> Result<(), SysfsError> {
        let gids = &self.config.gids;
        let longest = Rail::all(gids.len() as u32)
            .flat_map(|rail| {
                [
                    rail.verbs_class_path(root),
                    rail.infiniband_class_path(root),
                ]
            })
            .map(|path| path.as_os_str().len())
            .max()
            .unwrap_or(0);
        if longest > LONGEST_DEVICE_PATH {
            return Err(SysfsError::TooLong(root.to_owned()));
        }
        sysfs::generate(root, &self.profile, gids, &numa::of_machine()).map_err(|source| {
            SysfsError::Write {
                root: root.to_owned(),
                source,
            }
        })
    }

    /// Makes the command find the host's devices, with the sysfs tree in this directory.
    pub fn prepare(&self, command: &mut Command, sysfs_root: &Path, injection: &Injection) {
        let injected = injection
            .variables
            .iter()
            .map(|(name, value)| (name, value));
        command
            .envs(self.config.to_env())
            .env(sysfs::ENV_SYSFS_PATH, sysfs_root)
            .envs(injected);
    }

    /// The devices for programs that read `/sys` directly, with the sysfs tree in this directory.
    pub fn device_view(&self, sysfs_root: &Path) -> DeviceView {
        DeviceView::new(sysfs_root, self.devices.len() as u32)
    }

    /// The changing files of the sysfs tree in this directory.
    pub fn live_sysfs(&self, sysfs_root: &Path) -> LiveSysfs<'_> {
        LiveSysfs::open(sysfs_root, &self.devices, self.port_rules.as_ref())
    }
}
