//! Emulated hosts, as this process takes part in them, and what programs on them have to find.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use efa_commands::Failure;
use efa_device_model::numa;
use efa_device_model::profile::Profile;
use efa_device_model::sysfs::{self, Rail};
use efa_shm::{Fabric, Host, HostConfig, PortRules};

use crate::device_view::DeviceView;
use crate::live_sysfs::LiveSysfs;

/// `ibv_device` has room for paths of this length.
const LONGEST_DEVICE_PATH: usize = 255;

/// How long the program waits for those who record the fabric. They look for new hosts ten times a
/// second.
const RECORDER_PATIENCE: Duration = Duration::from_secs(3);

/// The variables by which programs load the emulated libraries, and the provider that is named.
pub struct Injection {
    /// Names and values.
    pub variables: Vec<(&'static str, OsString)>,
    /// Where programs leave marks of what they did with the devices.
    pub marks: PathBuf,
}

/// Hosts that this process takes part in, and leaves together.
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

    /// Waits until other machines know of these hosts. What to say if they do not.
    ///
    /// # Errors
    /// The fabric cannot be read.
    pub fn wait_for_bridges(&self, fabric: &Fabric) -> Result<Option<String>, Failure> {
        let unknown = fabric.wait_for_bridges(self.devices(), RECORDER_PATIENCE)?;
        Ok(unknown.map(|device| {
            format!(
                "the bridge of the fabric {} does not answer: other machines may not know of {} yet",
                fabric.name(),
                device.name()
            )
        }))
    }

    /// Waits until those who record the fabric record these hosts too. What to say if one does not
    /// begin.
    ///
    /// # Errors
    /// The fabric cannot be read.
    pub fn wait_for_recorders(&self, fabric: &Fabric) -> Result<Option<String>, Failure> {
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

/// A host that this process takes part in.
pub struct EmulatedHost {
    /// One at least.
    pub devices: Vec<Host>,
    /// The generation of all of them.
    pub profile: Profile,
    /// The rules by which links go up and down; `None` if they cannot be read.
    pub port_rules: Option<PortRules>,
    /// The host's settings for programs.
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
    /// The directory's path is too long, or it cannot be written into.
    pub fn generate_sysfs(&self, root: &Path) -> Result<(), Failure> {
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
            return Err(Failure(format!(
                "{} is too long for a device path, which has room for {LONGEST_DEVICE_PATH} bytes: set \
                 TMPDIR to a shorter directory",
                root.display()
            )));
        }
        sysfs::generate(root, &self.profile, gids, &numa::of_machine())
            .map_err(|error| Failure(format!("cannot write below {}: {error}", root.display())))
    }

    /// Has the command find the host's devices: those of the sysfs tree in this directory.
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

    /// The devices of the sysfs tree in this directory, where programs find them that look at `/sys`
    /// themselves.
    pub fn device_view(&self, sysfs_root: &Path) -> DeviceView {
        DeviceView::new(sysfs_root, self.devices.len() as u32)
    }

    /// The changing files of the sysfs tree in this directory.
    pub fn live_sysfs(&self, sysfs_root: &Path) -> LiveSysfs<'_> {
        LiveSysfs::open(sysfs_root, &self.devices, self.port_rules.as_ref())
    }
}
