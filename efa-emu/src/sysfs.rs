//! The part of sysfs that EFA clients read, written into a directory.
//!
//! rdma-core and libfabric look below the directory that `SYSFS_PATH` names. libfabric finds the
//! device's version, driver and PCI address there, UCX its PCI attributes, monitoring tools the
//! port. The tree has the kernel's shape:
//!
//! ```text
//! class/infiniband/NAME           -> ../../devices/pci0000:00/BDF/infiniband/NAME
//! class/infiniband_verbs/uverbs0  -> ../../devices/pci0000:00/BDF/infiniband_verbs/uverbs0
//! class/infiniband_verbs/abi_version
//! bus/pci/devices/BDF             -> ../../../devices/pci0000:00/BDF
//! devices/pci0000:00/BDF/driver   -> ../../../bus/pci/drivers/efa
//! ```

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use efa_core::address::Gid;

use crate::counters::Statistics;
use crate::profile::{Profile, VENDOR_ID};

/// The variable that makes rdma-core and libfabric look below another directory than `/sys`.
pub const ENV_SYSFS_PATH: &str = "SYSFS_PATH";

/// Name of the device, as udev would name the one at [`PCI_ADDRESS`].
pub const DEVICE_NAME: &str = "rdmap0s0";

/// Name of the device's character device.
pub const UVERBS_NAME: &str = "uverbs0";

/// PCI domain, bus, device and function.
///
/// The address of a host bridge. No device of a real machine can be in its place, so nobody mistakes
/// the emulated device for one; libraries that look up where a device sits among processors and
/// memory take this address for "not known" (MPICH 5), or find the bridge that most machines have.
/// MPICH aborts if a device claims any other place that its topology library cannot find.
pub const PCI_ADDRESS: &str = "0000:00:00.0";

/// Version of the verbs kernel interface, `class/infiniband_verbs/abi_version`.
pub const VERBS_ABI_VERSION: u32 = 6;

const PCI_ROOT: &str = "pci0000:00";

/// PCI class of an EFA device: network controller, Ethernet.
const PCI_CLASS: u32 = 0x02_00_00;

/// The verbs class directory of the device below `root`; it goes into `ibv_device.dev_path`.
pub fn verbs_class_path(root: &Path) -> PathBuf {
    root.join("class/infiniband_verbs").join(UVERBS_NAME)
}

/// The infiniband class directory of the device below `root`; it goes into
/// `ibv_device.ibdev_path`.
pub fn infiniband_class_path(root: &Path) -> PathBuf {
    root.join("class/infiniband").join(DEVICE_NAME)
}

/// Writes the tree of a device of this profile whose port has this GID.
///
/// `root` must exist and be empty.
pub fn generate(root: &Path, profile: &Profile, gid: Gid) -> io::Result<()> {
    let tree = Tree { root };
    let pci = format!("devices/{PCI_ROOT}/{PCI_ADDRESS}");
    tree.pci_device(&pci, profile)?;
    tree.verbs_device(&format!("{pci}/infiniband_verbs/{UVERBS_NAME}"))?;
    tree.infiniband_device(&format!("{pci}/infiniband/{DEVICE_NAME}"), profile, gid)?;

    tree.file("class/infiniband_verbs/abi_version", VERBS_ABI_VERSION)?;
    tree.link(
        &format!("class/infiniband_verbs/{UVERBS_NAME}"),
        &format!("../../{pci}/infiniband_verbs/{UVERBS_NAME}"),
    )?;
    tree.link(
        &format!("class/infiniband/{DEVICE_NAME}"),
        &format!("../../{pci}/infiniband/{DEVICE_NAME}"),
    )?;
    tree.directory("bus/pci/drivers/efa")?;
    tree.link(
        &format!("bus/pci/devices/{PCI_ADDRESS}"),
        &format!("../../../{pci}"),
    )
}

struct Tree<'a> {
    root: &'a Path,
}

impl Tree<'_> {
    fn directory(&self, path: &str) -> io::Result<()> {
        fs::create_dir_all(self.root.join(path))
    }

    fn make_parent(&self, path: &str) -> io::Result<PathBuf> {
        let path = self.root.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        Ok(path)
    }

    /// Attributes end with a newline, as the kernel's do.
    fn file(&self, path: &str, value: impl std::fmt::Display) -> io::Result<()> {
        fs::write(self.make_parent(path)?, format!("{value}\n"))
    }

    fn link(&self, path: &str, target: &str) -> io::Result<()> {
        symlink(target, self.make_parent(path)?)
    }

    fn pci_device(&self, pci: &str, profile: &Profile) -> io::Result<()> {
        let attribute = |name: &str, value: String| self.file(&format!("{pci}/{name}"), value);
        attribute("vendor", format!("{VENDOR_ID:#06x}"))?;
        attribute("device", format!("{:#06x}", profile.part_id))?;
        attribute("subsystem_vendor", format!("{VENDOR_ID:#06x}"))?;
        attribute("subsystem_device", format!("{:#06x}", profile.hw_version))?;
        attribute("class", format!("{PCI_CLASS:#08x}"))?;
        attribute("revision", "0x00".to_owned())?;
        attribute("numa_node", "-1".to_owned())?;
        attribute("enable", "1".to_owned())?;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        attribute("local_cpus", cpu_mask(cpus))?;
        attribute("local_cpulist", cpu_list(cpus))?;
        self.link(&format!("{pci}/driver"), "../../../bus/pci/drivers/efa")?;
        self.link(&format!("{pci}/subsystem"), "../../../bus/pci")
    }

    fn verbs_device(&self, directory: &str) -> io::Result<()> {
        self.file(&format!("{directory}/ibdev"), DEVICE_NAME)?;
        self.file(&format!("{directory}/abi_version"), 1)?;
        self.link(
            &format!("{directory}/device"),
            &format!("../../../{PCI_ADDRESS}"),
        )
    }

    fn infiniband_device(&self, directory: &str, profile: &Profile, gid: Gid) -> io::Result<()> {
        let attribute =
            |name: &str, value: String| self.file(&format!("{directory}/{name}"), value);
        attribute("node_type", "7: unspecified".to_owned())?;
        attribute("node_guid", guid_text(node_guid(gid)))?;
        attribute("sys_image_guid", guid_text(0))?;
        attribute("node_desc", "EFA (emulated)".to_owned())?;
        attribute("fw_ver", profile.firmware.to_owned())?;
        attribute("hw_rev", format!("{:#x}", profile.hw_version))?;
        attribute("ports/1/state", "4: ACTIVE".to_owned())?;
        attribute("ports/1/phys_state", "5: LinkUp".to_owned())?;
        attribute("ports/1/link_layer", "Unspecified".to_owned())?;
        attribute("ports/1/rate", "100 Gb/sec (4X EDR)".to_owned())?;
        attribute("ports/1/lid", "0x0".to_owned())?;
        attribute("ports/1/sm_lid", "0x0".to_owned())?;
        attribute("ports/1/lid_mask_count", "1".to_owned())?;
        attribute("ports/1/cap_mask", "0x00000000".to_owned())?;
        attribute("ports/1/gids/0", gid_text(gid))?;
        attribute("ports/1/pkeys/0", "0xffff".to_owned())?;
        let zero = Statistics::default();
        for directory in [COMMAND_COUNTERS, PORT_COUNTERS] {
            // Milliseconds for which the kernel would keep a value.
            attribute(&format!("{directory}/lifespan"), "10".to_owned())?;
        }
        for (path, value) in counter_paths(&zero) {
            attribute(&path, value.to_string())?;
        }
        self.link(
            &format!("{directory}/device"),
            &format!("../../../{PCI_ADDRESS}"),
        )
    }
}

/// Where the counters are, in the device's directory.
const COMMAND_COUNTERS: &str = "hw_counters";
const PORT_COUNTERS: &str = "ports/1/hw_counters";

/// The counters, by their places in the device's directory.
fn counter_paths(statistics: &Statistics) -> impl Iterator<Item = (String, u64)> + use<> {
    let commands = statistics.commands.iter();
    let commands = commands.map(|(name, value)| (format!("{COMMAND_COUNTERS}/{name}"), value));
    let port = statistics.port.iter();
    commands.chain(port.map(|(name, value)| (format!("{PORT_COUNTERS}/{name}"), value)))
}

/// The directories of a tree below `root` that have counters.
pub fn counter_directories(root: &Path) -> [PathBuf; 2] {
    [COMMAND_COUNTERS, PORT_COUNTERS].map(|directory| infiniband_class_path(root).join(directory))
}

/// The files of a tree that tell what the device counts.
///
/// They are plain files that whoever made the tree writes again and again. A file system in user space
/// would make each value as it is read, but it takes a device node and the right to mount, which containers
/// and test machines rarely give.
#[derive(Debug)]
pub struct CounterFiles {
    /// With the value that the file has.
    files: Vec<(File, u64)>,
}

impl CounterFiles {
    /// Those of the tree that [`generate`] has made below `root`.
    pub fn open(root: &Path) -> io::Result<CounterFiles> {
        let device = infiniband_class_path(root);
        let files = counter_paths(&Statistics::default()).map(|(path, value)| {
            let file = OpenOptions::new().write(true).open(device.join(path))?;
            Ok((file, value))
        });
        Ok(CounterFiles {
            files: files.collect::<io::Result<_>>()?,
        })
    }

    /// Writes what has changed. A value never gets shorter, so a reader sees the old one or the new one.
    pub fn write(&mut self, statistics: &Statistics) -> io::Result<()> {
        for ((file, known), value) in self.files.iter_mut().zip(statistics.values()) {
            if *known != value {
                file.write_all_at(format!("{value}\n").as_bytes(), 0)?;
                *known = value;
            }
        }
        Ok(())
    }
}

/// The node GUID of a host: its GID's interface id.
pub fn node_guid(gid: Gid) -> u64 {
    u64::from_be_bytes(gid.0[8..].try_into().expect("half of 16 bytes is 8"))
}

/// Four groups of four hexadecimal digits.
fn guid_text(guid: u64) -> String {
    let groups: Vec<_> = guid
        .to_be_bytes()
        .chunks(2)
        .map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]))
        .collect();
    groups.join(":")
}

/// Eight groups of four hexadecimal digits, without the abbreviations of IPv6.
fn gid_text(gid: Gid) -> String {
    let groups: Vec<_> = gid
        .0
        .chunks(2)
        .map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]))
        .collect();
    groups.join(":")
}

/// A CPU mask in groups of 32 bits, highest first.
fn cpu_mask(cpus: usize) -> String {
    let groups: Vec<_> = (0..cpus.div_ceil(32))
        .rev()
        .map(|group| match (cpus - group * 32).min(32) {
            32 => format!("{:08x}", u32::MAX),
            bits => format!("{:08x}", (1u32 << bits) - 1),
        })
        .collect();
    groups.join(",")
}

fn cpu_list(cpus: usize) -> String {
    match cpus {
        0 | 1 => "0".to_owned(),
        _ => format!("0-{}", cpus - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(root: &Path, path: &str) -> String {
        fs::read_to_string(root.join(path)).unwrap()
    }

    /// The reads that libfabric and UCX do, in their way: through the class directory.
    #[test]
    fn clients_find_driver_pci_address_and_identity() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let profile = Profile::by_name("efa1").unwrap();
        generate(root, profile, gid).unwrap();

        assert_eq!(read(root, "class/infiniband_verbs/abi_version"), "6\n");
        let device = infiniband_class_path(root);
        let driver = fs::canonicalize(device.join("device/driver")).unwrap();
        assert_eq!(driver.file_name().unwrap(), "efa");
        let pci = fs::canonicalize(device.join("device")).unwrap();
        assert_eq!(pci.file_name().unwrap(), PCI_ADDRESS);
        // UCX: the PCI directory is two above the resolved infiniband directory.
        let resolved = fs::canonicalize(&device).unwrap();
        assert_eq!(resolved.parent().unwrap().parent().unwrap(), pci);
        assert_eq!(fs::read_to_string(pci.join("vendor")).unwrap(), "0x1d0f\n");
        assert_eq!(fs::read_to_string(pci.join("device")).unwrap(), "0xefa1\n");
        let verbs = verbs_class_path(root);
        assert_eq!(
            fs::read_to_string(verbs.join("ibdev")).unwrap().trim(),
            DEVICE_NAME
        );
        assert_eq!(fs::canonicalize(verbs.join("device")).unwrap(), pci);
        assert_eq!(
            fs::read_to_string(device.join("ports/1/gids/0")).unwrap(),
            "fe80:0000:0000:0000:0102:0304:0506:0708\n"
        );
        assert_eq!(
            fs::read_to_string(device.join("node_guid")).unwrap(),
            "0102:0304:0506:0708\n"
        );
    }

    #[test]
    fn cpu_masks_have_groups_of_32_bits() {
        assert_eq!(cpu_mask(2), "00000003");
        assert_eq!(cpu_mask(32), "ffffffff");
        assert_eq!(cpu_mask(33), "00000001,ffffffff");
        assert_eq!(cpu_list(1), "0");
        assert_eq!(cpu_list(33), "0-32");
    }
}
