//! The emulated devices in `/sys` and `/dev`, for programs that read them directly, such as
//! monitoring agents: a mount namespace in which they are at the paths of real devices.
//!
//! No files can be created in `/sys`. So a directory that needs a device is replaced by one in
//! memory, which contains bind mounts of the original entries and of the device.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, DirEntry, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use efa_device_model::sysfs::Rail;

use crate::mounts::Writable;
use crate::{mounts, namespaces};

/// Directories of sysfs that other devices share. All other entries of the emulated tree replace
/// those of the machine.
const SHARED: [&str; 6] = [
    "class",
    "bus",
    "bus/pci",
    "bus/pci/devices",
    "bus/pci/drivers",
    "devices",
];

/// The directory of PCI host bridges, which devices share as well, and the prefix of their names.
const BRIDGES: (&str, &str) = ("devices", "pci");

/// The machine's `/dev` inside of its replacement, and the device for terminals, which looks for
/// `pts` next to itself in the mount in which it was opened.
const MACHINES_NODES: &str = "/dev/.machine";
const TERMINALS: &str = "ptmx";

/// The target of all character devices, which is harmless to open.
const NO_DEVICE: &str = "/dev/null";

/// The reason why the devices cannot be shown in `/sys` and `/dev`.
#[derive(Debug, thiserror::Error)]
pub enum DeviceViewError {
    /// The root directory of this process is no mount point, so that nothing can be mounted below
    /// it.
    #[error(
        "--sysfs: cannot show the devices in /sys and /dev ({0}): in a chroot, bind the directory to itself (mount \
         --bind) before"
    )]
    Chroot(io::Error),
    /// The system permits no mount namespace.
    #[error(
        "--sysfs: cannot show the devices in /sys and /dev ({0}): the system has to permit mount namespaces, or user \
         namespaces of users other than root"
    )]
    NoNamespaces(io::Error),
}

/// The devices of a host in a mount namespace.
#[derive(Clone, Debug)]
pub struct DeviceView {
    /// The sysfs tree of the host.
    tree: PathBuf,
    devices: u32,
}

impl DeviceView {
    /// The view of this many devices, with the sysfs tree in this directory.
    pub(crate) fn new(tree: &Path, devices: u32) -> DeviceView {
        DeviceView {
            tree: tree.to_owned(),
            devices,
        }
    }

    /// Makes the devices visible to the command. The process must have no other thread.
    ///
    /// # Errors
    /// The system does not permit such a namespace. The method checks this beforehand, because an
    /// error in the started process would look like an error of the program.
    pub fn prepare(&self, command: &mut Command) -> Result<(), DeviceViewError> {
        namespaces::try_in_child(|| self.enter()).map_err(
            |error| match mounts::root_is_mounted() {
                false => DeviceViewError::Chroot(error),
                true => DeviceViewError::NoNamespaces(error),
            },
        )?;
        let view = self.clone();
        // SAFETY: this process has one thread, so the child may run any code.
        unsafe { command.pre_exec(move || view.enter()) };
        Ok(())
    }

    fn enter(&self) -> io::Result<()> {
        namespaces::enter_own_mounts()?;
        self.show()
    }

    /// Shows the devices in the mount namespace of the calling process.
    pub(crate) fn show(&self) -> io::Result<()> {
        self.merge(Path::new(""))?;
        self.show_nodes()
    }

    /// Adds the entries of the tree's directory to the machine's directory.
    fn merge(&self, directory: &Path) -> io::Result<()> {
        let machines = Path::new("/sys").join(directory);
        let ours = entries(&self.tree.join(directory))?;
        let is_shared = |entry: &DirEntry| {
            let path = directory.join(entry.file_name());
            is_shared(&path) && machines.join(entry.file_name()).is_dir()
        };
        let (shared, own): (Vec<_>, Vec<_>) = ours.into_iter().partition(is_shared);
        if !own.is_empty() {
            let replaced = own.iter().map(DirEntry::file_name).collect();
            make_writable(&machines, &replaced)?;
        }
        for entry in own {
            show(&entry.path(), &machines.join(entry.file_name()))?;
        }
        let names = shared.iter().map(DirEntry::file_name);
        names
            .map(|name| directory.join(name))
            .try_for_each(|path| self.merge(&path))
    }

    fn show_nodes(&self) -> io::Result<()> {
        let nodes = Path::new("/dev/infiniband");
        if nodes.is_dir() {
            mounts::memory(nodes, Writable::ByOwner)?;
        } else {
            // The copy is made before the mount hides the original. If the copy fails, there are no
            // terminals.
            let machines = mounts::copy(Path::new("/dev")).ok();
            let copied = machines.iter().map(|_| TERMINALS.into()).collect();
            make_writable(Path::new("/dev"), &copied)?;
            if let Some(machines) = machines {
                fs::create_dir(MACHINES_NODES)?;
                mounts::attach(&machines, Path::new(MACHINES_NODES))?;
                let terminals = Path::new(MACHINES_NODES).join(TERMINALS);
                symlink(terminals, Path::new("/dev").join(TERMINALS))?;
            }
            fs::create_dir(nodes)?;
        }
        for rail in Rail::all(self.devices) {
            show(Path::new(NO_DEVICE), &nodes.join(rail.uverbs_name()))?;
        }
        Ok(())
    }
}

/// Whether this directory of sysfs contains other devices too.
fn is_shared(path: &Path) -> bool {
    let (parent, beginning) = BRIDGES;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_bridge = path.parent() == Some(Path::new(parent)) && name.starts_with(beginning);
    is_bridge || SHARED.iter().any(|shared| path == Path::new(shared))
}

fn entries(directory: &Path) -> io::Result<Vec<DirEntry>> {
    fs::read_dir(directory)?.collect()
}

/// Replaces a directory by a writable one with the same entries, except for these.
fn make_writable(directory: &Path, without: &HashSet<OsString>) -> io::Result<()> {
    // Opened before the mount hides it.
    let opened = File::open(directory)?;
    let visible = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    let kept = entries(directory)?;
    mounts::memory(directory, Writable::ByOwner)?;
    for entry in kept {
        let name = entry.file_name();
        if !without.contains(&name) {
            show(&visible.join(&name), &directory.join(&name))?;
        }
    }
    Ok(())
}

/// Shows a file, directory or symbolic link at an unused path.
fn show(source: &Path, target: &Path) -> io::Result<()> {
    let kind = match fs::symlink_metadata(source) {
        // It was removed meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata?.file_type(),
    };
    if kind.is_symlink() {
        return symlink(fs::read_link(source)?, target);
    }
    match kind.is_dir() {
        true => fs::create_dir(target)?,
        false => drop(File::create_new(target)?),
    }
    mounts::bind(source, target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_others_stay_beside() {
        for shared in ["class", "bus/pci/devices", "devices", "devices/pci0000:00"] {
            assert!(is_shared(Path::new(shared)), "{shared}");
        }
        for own in [
            "class/infiniband",
            "class/infiniband_verbs",
            "bus/pci/drivers/efa",
            "devices/pci0000:00/0000:00:00.0",
            "pci0000:00",
        ] {
            assert!(!is_shared(Path::new(own)), "{own}");
        }
    }
}
