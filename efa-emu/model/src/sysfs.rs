//! The part of sysfs that EFA clients read, written into a directory.
//!
//! rdma-core and libfabric read files below the directory in `SYSFS_PATH`. libfabric finds the
//! device's version, driver and PCI address there, UCX its PCI attributes, monitoring tools the
//! port. The tree has the kernel's layout:
//!
//! ```text
//! class/infiniband/NAME           -> ../../devices/pci0000:BB/BDF/infiniband/NAME
//! class/infiniband_verbs/uverbsN  -> ../../devices/pci0000:BB/BDF/infiniband_verbs/uverbsN
//! class/infiniband_verbs/abi_version
//! bus/pci/devices/BDF             -> ../../../devices/pci0000:BB/BDF
//! devices/pci0000:BB/BDF/driver   -> ../../../bus/pci/drivers/efa
//! ```

use std::cell::RefCell;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use efa_core::address::Gid;

use crate::counters::Statistics;
use crate::numa::Node;
use crate::port::PortLink;
use crate::profile::Profile;

/// The variable that makes rdma-core and libfabric use another directory than `/sys`.
pub const ENV_SYSFS_PATH: &str = "SYSFS_PATH";

/// Name of the device of a host with one device, as udev would derive it from its PCI address.
pub const DEVICE_NAME: &str = "rdmap0s0";

/// PCI domain, bus, device and function of the device of a host with one device.
///
/// This is the address of a host bridge. No device of a real machine can have it, so the emulated
/// device is not mistaken for a real one. Libraries that look up the location of a device treat
/// this address as unknown (MPICH 5), or find the bridge that most machines have. MPICH aborts if a
/// device has any other location that its topology library cannot find.
const PCI_ADDRESS: &str = "0000:00:00.0";

/// PCI bus of the first of several devices, and the distance between two: each device is the only
/// one on its bus, below a separate host bridge.
const FIRST_BUS: u32 = 0x10;
const BUS_STEP: u32 = 4;

/// PCI device number of each of several devices.
const PCI_SLOT: u32 = 0x1b;

/// One of the devices of a host, with its names and PCI address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rail {
    index: u32,
    devices: u32,
}

impl Rail {
    /// The device with this index, from 0, of a host with `devices` devices.
    pub fn new(index: u32, devices: u32) -> Rail {
        Rail { index, devices }
    }

    /// All devices of a host with `devices` devices.
    pub fn all(devices: u32) -> impl Iterator<Item = Rail> {
        (0..devices).map(move |index| Rail { index, devices })
    }

    fn is_only(self) -> bool {
        self.devices <= 1
    }

    fn bus(self) -> u32 {
        FIRST_BUS + BUS_STEP * self.index
    }

    /// Name of the device, as udev would derive it from this PCI address.
    pub fn device_name(self) -> String {
        match self.is_only() {
            true => DEVICE_NAME.to_owned(),
            false => format!("rdmap{}s{PCI_SLOT}", self.bus()),
        }
    }

    /// Name of the device's character device.
    pub fn uverbs_name(self) -> String {
        format!("uverbs{}", self.index)
    }

    /// PCI domain, bus, device and function.
    pub fn pci_address(self) -> String {
        match self.is_only() {
            true => PCI_ADDRESS.to_owned(),
            false => format!("0000:{:02x}:{PCI_SLOT:02x}.0", self.bus()),
        }
    }

    /// The directory of the PCI device below the root of the tree.
    fn pci_directory(self) -> String {
        let address = self.pci_address();
        let (bridge, _) = address.rsplit_once(':').expect("it has a bus");
        format!("devices/pci{bridge}/{address}")
    }

    /// The device's directory in the verbs class below `root`, for `ibv_device.dev_path`.
    pub fn verbs_class_path(self, root: &Path) -> PathBuf {
        root.join("class/infiniband_verbs").join(self.uverbs_name())
    }

    /// The device's directory in the infiniband class below `root`, for `ibv_device.ibdev_path`.
    pub fn infiniband_class_path(self, root: &Path) -> PathBuf {
        root.join("class/infiniband").join(self.device_name())
    }

    /// The NUMA node of the device: neighbouring devices share one. `None` if unknown.
    fn node(self, nodes: &[Node]) -> Option<&Node> {
        let count = nodes.len() as u32;
        (!self.is_only()).then(|| nodes.get((self.index * count / self.devices) as usize))?
    }
}

/// Version of the verbs kernel interface, `class/infiniband_verbs/abi_version`.
pub const VERBS_ABI_VERSION: u32 = 6;

/// PCI class of an EFA device: network controller, Ethernet.
const PCI_CLASS: u32 = 0x02_00_00;

/// Writes the tree of a host with devices of this profile, whose ports have these GIDs. Several
/// devices are distributed over the nodes.
///
/// `root` must exist and be empty.
pub fn generate(root: &Path, profile: &Profile, gids: &[Gid], nodes: &[Node]) -> io::Result<()> {
    let tree = Tree {
        root,
        made: RefCell::default(),
    };
    tree.file("class/infiniband_verbs/abi_version", VERBS_ABI_VERSION)?;
    tree.directory("bus/pci/drivers/efa")?;
    for (rail, gid) in Rail::all(gids.len() as u32).zip(gids) {
        let (name, uverbs) = (rail.device_name(), rail.uverbs_name());
        let pci = rail.pci_directory();
        tree.pci_device(&pci, profile, rail.node(nodes))?;
        tree.verbs_device(&format!("{pci}/infiniband_verbs/{uverbs}"), rail)?;
        tree.infiniband_device(&format!("{pci}/infiniband/{name}"), rail, profile, *gid)?;
        tree.link(
            &format!("class/infiniband_verbs/{uverbs}"),
            &format!("../../{pci}/infiniband_verbs/{uverbs}"),
        )?;
        tree.link(
            &format!("class/infiniband/{name}"),
            &format!("../../{pci}/infiniband/{name}"),
        )?;
        tree.link(
            &format!("bus/pci/devices/{}", rail.pci_address()),
            &format!("../../../{pci}"),
        )?;
    }
    Ok(())
}

struct Tree<'a> {
    root: &'a Path,
    /// The directories that exist, because most files have the same parent as the previous one.
    made: RefCell<HashSet<PathBuf>>,
}

impl Tree<'_> {
    fn directory(&self, path: &str) -> io::Result<()> {
        self.make(&self.root.join(path))
    }

    fn make(&self, directory: &Path) -> io::Result<()> {
        if self.made.borrow_mut().insert(directory.to_owned()) {
            fs::create_dir_all(directory)?;
        }
        Ok(())
    }

    fn make_parent(&self, path: &str) -> io::Result<PathBuf> {
        let path = self.root.join(path);
        if let Some(parent) = path.parent() {
            self.make(parent)?;
        }
        Ok(path)
    }

    /// Writes an attribute with a newline at the end, as the kernel does.
    fn file(&self, path: &str, value: impl std::fmt::Display) -> io::Result<()> {
        fs::write(self.make_parent(path)?, format!("{value}\n"))
    }

    fn link(&self, path: &str, target: &str) -> io::Result<()> {
        symlink(target, self.make_parent(path)?)
    }

    fn pci_device(&self, pci: &str, profile: &Profile, node: Option<&Node>) -> io::Result<()> {
        let attribute = |name: &str, value: String| self.file(&format!("{pci}/{name}"), value);
        attribute("vendor", format!("{:#06x}", profile.vendor_id))?;
        attribute("device", format!("{:#06x}", profile.part_id))?;
        attribute("subsystem_vendor", format!("{:#06x}", profile.vendor_id))?;
        attribute("subsystem_device", format!("{:#06x}", profile.hw_version))?;
        attribute("class", format!("{PCI_CLASS:#08x}"))?;
        attribute("revision", "0x00".to_owned())?;
        attribute("enable", "1".to_owned())?;
        attribute("irq", "0".to_owned())?;
        // Six regions, the ROM, and those of virtual functions. None has an address.
        attribute("resource", vec![NO_REGION; 13].join("\n"))?;
        fs::write(
            self.make_parent(&format!("{pci}/config"))?,
            config_space(profile),
        )?;
        match node {
            Some(node) => {
                attribute("numa_node", node.number.to_string())?;
                attribute("local_cpus", node.cpu_mask.clone())?;
                attribute("local_cpulist", node.cpu_list.clone())?;
            }
            None => {
                let cpus = std::thread::available_parallelism().map_or(1, usize::from);
                attribute("numa_node", "-1".to_owned())?;
                attribute("local_cpus", cpu_mask(cpus))?;
                attribute("local_cpulist", cpu_list(cpus))?;
            }
        }
        self.link(&format!("{pci}/driver"), "../../../bus/pci/drivers/efa")?;
        self.link(&format!("{pci}/subsystem"), "../../../bus/pci")
    }

    fn verbs_device(&self, directory: &str, rail: Rail) -> io::Result<()> {
        self.file(&format!("{directory}/ibdev"), rail.device_name())?;
        self.file(&format!("{directory}/abi_version"), 1)?;
        self.link(
            &format!("{directory}/device"),
            &format!("../../../{}", rail.pci_address()),
        )
    }

    fn infiniband_device(
        &self,
        directory: &str,
        rail: Rail,
        profile: &Profile,
        gid: Gid,
    ) -> io::Result<()> {
        let attribute =
            |name: &str, value: String| self.file(&format!("{directory}/{name}"), value);
        // A device with connected queue pairs is a RoCE device.
        let (node_type, link_layer) = match profile.connected {
            true => ("1: CA", "Ethernet"),
            false => ("7: unspecified", "Unspecified"),
        };
        attribute("node_type", node_type.to_owned())?;
        attribute("node_guid", guid_text(node_guid(gid)))?;
        let image = match profile.connected {
            true => node_guid(gid),
            false => 0,
        };
        attribute("sys_image_guid", guid_text(image))?;
        attribute("node_desc", "EFA (emulated)".to_owned())?;
        attribute("fw_ver", profile.firmware.to_owned())?;
        attribute("hw_rev", format!("{:#x}", profile.hw_version))?;
        for (file, value) in port_files(PortLink::default()) {
            attribute(&format!("{PORT}/{file}"), value)?;
        }
        attribute("ports/1/link_layer", link_layer.to_owned())?;
        if profile.connected {
            attribute("ports/1/gid_attrs/types/0", "RoCE v2".to_owned())?;
        }
        attribute("ports/1/lid", "0x0".to_owned())?;
        attribute("ports/1/sm_lid", "0x0".to_owned())?;
        attribute("ports/1/lid_mask_count", "1".to_owned())?;
        attribute("ports/1/cap_mask", "0x00000000".to_owned())?;
        attribute("ports/1/gids/0", gid_text(gid))?;
        attribute("ports/1/pkeys/0", "0xffff".to_owned())?;
        let zero = Statistics::default();
        for directory in [COMMAND_COUNTERS, PORT_COUNTERS] {
            // Milliseconds for which the kernel caches a value.
            attribute(&format!("{directory}/lifespan"), "10".to_owned())?;
        }
        for (path, value) in counter_paths(&zero) {
            attribute(&path, value.to_string())?;
        }
        self.link(
            &format!("{directory}/device"),
            &format!("../../../{}", rail.pci_address()),
        )
    }
}

/// A line of the file `resource`: start, end and flags of a region.
const NO_REGION: &str = "0x0000000000000000 0x0000000000000000 0x0000000000000000";

/// The header of the device's configuration space, which is all that users other than root may
/// read.
fn config_space(profile: &Profile) -> [u8; 64] {
    /// Memory space and bus mastering are enabled.
    const COMMAND: u16 = 0x0006;
    let mut header = [0; 64];
    let mut put = |at: usize, value: &[u8]| header[at..at + value.len()].copy_from_slice(value);
    put(0x00, &profile.vendor_id.to_le_bytes()[..2]);
    put(0x02, &profile.part_id.to_le_bytes()[..2]);
    put(0x04, &COMMAND.to_le_bytes());
    put(0x09, &PCI_CLASS.to_le_bytes()[..3]);
    put(0x2c, &profile.vendor_id.to_le_bytes()[..2]);
    put(0x2e, &profile.hw_version.to_le_bytes()[..2]);
    header
}

/// The port's directory, relative to the device's.
const PORT: &str = "ports/1";

/// The port's files whose values depend on its link state.
fn port_files(link: PortLink) -> [(&'static str, String); 3] {
    let (state, phys_state) = match link.is_down {
        false => ("4: ACTIVE", "5: LinkUp"),
        true => ("1: DOWN", "3: Disabled"),
    };
    [
        ("state", state.to_owned()),
        ("phys_state", phys_state.to_owned()),
        ("rate", link.speed.to_string()),
    ]
}

/// The files of a tree with the link state of a device's port.
#[derive(Debug)]
pub struct PortFiles {
    port: PathBuf,
    draft: PathBuf,
    link: PortLink,
}

impl PortFiles {
    /// The files of the tree that [`generate`] has created below `root`.
    pub fn of(root: &Path, rail: Rail) -> PortFiles {
        PortFiles {
            port: rail.infiniband_class_path(root).join(PORT),
            draft: draft(root, rail),
            link: PortLink::default(),
        }
    }

    /// Writes the values that have changed.
    pub fn write(&mut self, link: PortLink) -> io::Result<()> {
        if self.link != link {
            for (file, value) in port_files(link) {
                replace(&self.port.join(file), &self.draft, value)?;
            }
            self.link = link;
        }
        Ok(())
    }
}

/// The temporary file for new values of a device's files.
fn draft(root: &Path, rail: Rail) -> PathBuf {
    root.join(format!("{}.draft", rail.device_name()))
}

/// Replaces the value of a file atomically. A process that has the file open keeps the old value.
fn replace(file: &Path, draft: &Path, value: impl std::fmt::Display) -> io::Result<()> {
    fs::write(draft, format!("{value}\n"))?;
    fs::rename(draft, file)
}

/// The directories of the counters, relative to the device's.
const COMMAND_COUNTERS: &str = "hw_counters";
const PORT_COUNTERS: &str = "ports/1/hw_counters";

/// The counters with their paths, relative to the device's directory.
fn counter_paths(statistics: &Statistics) -> impl Iterator<Item = (String, u64)> + use<> {
    let commands = statistics.commands.iter();
    let commands = commands.map(|(name, value)| (format!("{COMMAND_COUNTERS}/{name}"), value));
    let port = statistics.port.iter();
    commands.chain(port.map(|(name, value)| (format!("{PORT_COUNTERS}/{name}"), value)))
}

/// The counter files of a device.
///
/// They are plain files, and the creator of the tree updates them periodically. A file system in
/// user space could compute each value on access, but it needs a device node and the right to
/// mount, which containers and test machines rarely have.
#[derive(Debug)]
pub struct CounterFiles {
    /// Paths, with the values that the files contain.
    files: Vec<(PathBuf, u64)>,
    draft: PathBuf,
}

impl CounterFiles {
    /// The files of the tree that [`generate`] has created below `root`.
    pub fn of(root: &Path, rail: Rail) -> CounterFiles {
        let device = rail.infiniband_class_path(root);
        let files = counter_paths(&Statistics::default());
        CounterFiles {
            files: files
                .map(|(path, value)| (device.join(path), value))
                .collect(),
            draft: draft(root, rail),
        }
    }

    /// Writes the values that have changed.
    pub fn write(&mut self, statistics: &Statistics) -> io::Result<()> {
        for ((path, known), value) in self.files.iter_mut().zip(statistics.values()) {
            if *known != value {
                replace(path, &self.draft, value)?;
                *known = value;
            }
        }
        Ok(())
    }
}

/// The node GUID of a device: its GID's interface id.
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
    use crate::port::LinkSpeed;

    fn read(root: &Path, path: &str) -> String {
        fs::read_to_string(root.join(path)).unwrap()
    }

    /// The reads of libfabric and UCX, through the class directory as they do.
    #[test]
    fn clients_find_driver_pci_address_and_identity() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let profile = Profile::by_name("efa1").unwrap();
        generate(root, profile, &[gid], &[]).unwrap();

        assert_eq!(read(root, "class/infiniband_verbs/abi_version"), "6\n");
        let only = Rail::new(0, 1);
        let device = only.infiniband_class_path(root);
        let driver = fs::canonicalize(device.join("device/driver")).unwrap();
        assert_eq!(driver.file_name().unwrap(), "efa");
        let pci = fs::canonicalize(device.join("device")).unwrap();
        assert_eq!(pci.file_name().unwrap(), PCI_ADDRESS);
        // UCX: the PCI directory is two levels above the resolved infiniband directory.
        let resolved = fs::canonicalize(&device).unwrap();
        assert_eq!(resolved.parent().unwrap().parent().unwrap(), pci);
        assert_eq!(fs::read_to_string(pci.join("vendor")).unwrap(), "0x1d0f\n");
        assert_eq!(fs::read_to_string(pci.join("device")).unwrap(), "0xefa1\n");
        let header = fs::read(pci.join("config")).unwrap();
        assert_eq!(header.len(), 64);
        assert_eq!(
            header[..12],
            [0x0f, 0x1d, 0xa1, 0xef, 6, 0, 0, 0, 0, 0, 0, 2]
        );
        let regions = fs::read_to_string(pci.join("resource")).unwrap();
        assert_eq!(regions.lines().collect::<Vec<_>>(), [NO_REGION; 13]);
        let verbs = only.verbs_class_path(root);
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
    fn several_devices_are_separately_placed_rails() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let profile = Profile::by_name("efa2").unwrap();
        let gids: Vec<_> = (0..4).map(|last| Gid([last; 16])).collect();
        let nodes = [("0-1", "00000003"), ("2-3", "0000000c")];
        let nodes = [0, 1].map(|number: u32| Node {
            number,
            cpu_list: nodes[number as usize].0.to_owned(),
            cpu_mask: nodes[number as usize].1.to_owned(),
        });
        generate(root, profile, &gids, &nodes).unwrap();
        let names = ["rdmap16s27", "rdmap20s27", "rdmap24s27", "rdmap28s27"];
        let addresses = ["10", "14", "18", "1c"].map(|bus| format!("0000:{bus}:1b.0"));
        for (index, rail) in Rail::all(4).enumerate() {
            assert_eq!(rail.device_name(), names[index]);
            let device = rail.infiniband_class_path(root);
            let pci = fs::canonicalize(device.join("device")).unwrap();
            assert_eq!(pci.file_name().unwrap(), &addresses[index][..]);
            let bridge = pci.parent().unwrap().file_name().unwrap();
            assert_eq!(bridge, &format!("pci{}", &addresses[index][..7])[..]);
            let listed = root.join("bus/pci/devices").join(&addresses[index]);
            assert_eq!(fs::canonicalize(listed).unwrap(), pci);
            let attribute = |name| fs::read_to_string(pci.join(name)).unwrap();
            let node = &nodes[index / 2];
            assert_eq!(attribute("numa_node"), format!("{}\n", node.number));
            assert_eq!(attribute("local_cpulist"), format!("{}\n", node.cpu_list));
            assert_eq!(attribute("local_cpus"), format!("{}\n", node.cpu_mask));
            let verbs = rail.verbs_class_path(root);
            assert!(verbs.ends_with(format!("uverbs{index}")));
            assert_eq!(read(&verbs, "ibdev"), format!("{}\n", names[index]));
            assert_eq!(fs::canonicalize(verbs.join("device")).unwrap(), pci);
            assert_eq!(
                fs::read_to_string(device.join("ports/1/gids/0")).unwrap(),
                format!("{}\n", gid_text(gids[index]))
            );
        }
        // The last of the largest possible number of devices.
        assert_eq!(Rail::new(31, 32).pci_address(), "0000:8c:1b.0");
    }

    #[test]
    fn ports_lose_their_link_and_get_it_back() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let profile = Profile::by_name("efa2").unwrap();
        generate(root, profile, &[Gid([1; 16]), Gid([2; 16])], &[]).unwrap();
        let [first, second] = [0, 1].map(|index| Rail::new(index, 2));
        let seen = |rail: Rail| {
            let port = rail.infiniband_class_path(root).join("ports/1");
            ["state", "phys_state", "rate"].map(|file| fs::read_to_string(port.join(file)).unwrap())
        };
        const UP: [&str; 3] = ["4: ACTIVE\n", "5: LinkUp\n", "100 Gb/sec (4X EDR)\n"];
        const DOWN: [&str; 3] = ["1: DOWN\n", "3: Disabled\n", "100 Gb/sec (4X EDR)\n"];
        const FASTER: [&str; 3] = ["4: ACTIVE\n", "5: LinkUp\n", "400 Gb/sec (8X HDR)\n"];
        let mut files = PortFiles::of(root, first);
        for (is_down, gbps, expected) in [
            (false, 100, UP),
            (true, 100, DOWN),
            (true, 100, DOWN),
            (false, 400, FASTER),
            (false, 100, UP),
        ] {
            let speed = LinkSpeed::of_gbps(gbps).unwrap();
            files.write(PortLink { is_down, speed }).unwrap();
            assert_eq!(seen(first), expected);
            assert_eq!(seen(second), UP);
        }
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
