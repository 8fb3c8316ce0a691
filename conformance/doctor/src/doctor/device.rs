//! The EFA devices of a machine, as the kernel and the devices themselves report them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use efa_core::nic::DeviceCaps;
use efa_device_model::profile::{Profile, VENDOR_ID};

use super::finding::Finding;
use super::instance::Instance;
use super::machine::{Machine, hexadecimal, text_of};
use super::probe::{self, Answer, DeviceAnswer, Question};

/// The range of the part ids of EFA devices.
const PART_IDS: std::ops::RangeInclusive<u32> = 0xefa0..=0xefaf;

/// An EFA device of the kernel's RDMA core.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct EfaDevice {
    pub(super) name: String,
    pub(super) part_id: u32,
    /// The PCI address, such as `0000:00:1e.0`.
    address: String,
    directory: PathBuf,
    /// The name of its character device.
    node: Option<String>,
}

impl EfaDevice {
    /// An attribute that the device's driver has in sysfs.
    pub(super) fn attribute(&self, name: &str) -> Option<String> {
        text_of(&self.directory.join(name))
    }

    /// The built-in profile of its generation.
    fn profile(&self) -> Option<&'static Profile> {
        let mut profiles = Profile::all().iter();
        profiles.find(|profile| profile.part_id == self.part_id)
    }
}

/// The part id of a PCI function, if it is an EFA device.
fn part_id(function: &Path) -> Option<u32> {
    let read = |name: &str| hexadecimal(&text_of(&function.join(name))?);
    let id = read("device")?;
    (read("vendor")? == VENDOR_ID && PART_IDS.contains(&id)).then_some(id)
}

/// The entries of a directory in the order of their names; none if it cannot be read.
fn entries(directory: &Path) -> Vec<(String, PathBuf)> {
    let read = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut entries: Vec<_> = read
        .map(|entry| {
            (
                entry.file_name().to_string_lossy().into_owned(),
                entry.path(),
            )
        })
        .collect();
    entries.sort();
    entries
}

/// The devices, found where rdma-core looks for them.
pub(super) fn find(machine: &Machine) -> Vec<EfaDevice> {
    let sysfs = machine.sysfs();
    let nodes = entries(&sysfs.join("class/infiniband_verbs"));
    let class = entries(&sysfs.join("class/infiniband"));
    let device = |(name, directory): (String, PathBuf)| {
        let function = directory.join("device");
        let part_id = part_id(&function)?;
        let node = nodes
            .iter()
            .find(|(_, node)| text_of(&node.join("ibdev")).as_deref() == Some(&name));
        let address = fs::canonicalize(&function).ok();
        let address = address.as_deref().and_then(Path::file_name);
        Some(EfaDevice {
            part_id,
            address: address.map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            node: node.map(|(name, _)| name.clone()),
            name,
            directory,
        })
    };
    class.into_iter().filter_map(device).collect()
}

/// The PCI addresses of the EFA devices without a driver.
fn without_driver(machine: &Machine) -> Vec<String> {
    let functions = entries(&machine.sysfs().join("bus/pci/devices"));
    functions
        .into_iter()
        .filter(|(_, function)| part_id(function).is_some() && !function.join("driver").exists())
        .map(|(address, _)| address)
        .collect()
}

/// Reports the devices, and the state of their ports.
pub(super) fn examine(
    machine: &Machine,
    instance: Option<&Instance>,
    devices: &[EfaDevice],
    findings: &mut Vec<Finding>,
) {
    const NO_INTERFACE: &str = "stop the instance and attach an interface of type `efa` or \
        `efa-only` (aws ec2 create-network-interface --interface-type efa), or launch one with it; \
        not every size of a family can have one: aws ec2 describe-instance-types --instance-types \
        TYPE --query 'InstanceTypes[].NetworkInfo.[EfaSupported,EfaInfo]'";
    let orphans = without_driver(machine);
    if !orphans.is_empty() {
        let value = format!("no driver has {}", orphans.join(", "));
        findings.push(Finding::error("device", value).remedy(
            "load the driver: modprobe efa; if there is none, or it does not know the device, install \
             it: sudo ./efa_installer.sh -y (docs/ec2.md)",
        ));
    }
    if devices.is_empty() && orphans.is_empty() {
        let finding = Finding::error("device", "there is no EFA device");
        findings.push(match (instance, machine.is_ec2()) {
            (None, false) => finding.remedy(
                "take an EC2 instance with EFA (docs/ec2.md), or an emulated one: efa-emu run -- \
                 COMMAND",
            ),
            _ => finding.remedy(NO_INTERFACE),
        });
    }
    let possible = instance.and_then(|instance| instance.devices);
    if let Some(possible) = possible
        && !devices.is_empty()
        && (devices.len() as u32) < possible
    {
        let value = format!("{} of {possible} that the type can have", devices.len());
        findings.push(Finding::note("device", value).remedy(
            "as many interfaces as were asked for at the launch: one for each network card \
             (docs/ec2.md)",
        ));
    }
    for device in devices {
        let firmware = device
            .attribute("fw_ver")
            .unwrap_or_else(|| "unknown".to_owned());
        let value = format!("{}, firmware {firmware}", device.address);
        findings.push(Finding::ok("device", value).of(&device.name));
        findings.push(port(device).of(&device.name));
        findings.push(generation(instance, device).of(&device.name));
    }
}

fn port(device: &EfaDevice) -> Finding {
    let attribute = |name: &str| device.attribute(&format!("ports/1/{name}"));
    let Some(state) = attribute("state") else {
        return Finding::error("port", "has no port in sysfs")
            .remedy("reload the driver: modprobe -r efa; modprobe efa; then see dmesg");
    };
    let gid = attribute("gids/0").unwrap_or_default();
    let is_null = gid.chars().all(|letter| matches!(letter, '0' | ':'));
    if !state.contains("ACTIVE") {
        return Finding::error("port", format!("{state}, not ACTIVE")).remedy(
            "see dmesg; stop and start the instance, which may then be on another machine",
        );
    }
    match is_null {
        true => Finding::error("port", format!("{state}, without a GID"))
            .remedy("reload the driver: modprobe -r efa; modprobe efa; then see dmesg"),
        false => Finding::ok("port", format!("{state}, GID {gid}")),
    }
}

fn generation(instance: Option<&Instance>, device: &EfaDevice) -> Finding {
    let part_id = device.part_id;
    let name = match device.profile() {
        Some(profile) => format!("{part_id:#06x}, profile {}", profile.name),
        None => format!("{part_id:#06x}, for which the emulator has no profile"),
    };
    match instance.and_then(|instance| Some((instance.name, instance.part_id?))) {
        Some((type_name, known)) if known != part_id => Finding::note(
            "generation",
            format!("{name}; known of {type_name}: {known:#06x}"),
        )
        .remedy("report it: the table of instance types is wrong, or out of date"),
        _ if device.profile().is_none() => Finding::note("generation", name)
            .remedy("measure it: efa-conformance survey (docs/hardware-checklist.md)"),
        _ => Finding::ok("generation", name),
    }
}

/// Opens the devices and reports their capabilities.
pub(super) fn examine_open(
    machine: &Machine,
    instance: Option<&Instance>,
    devices: &[EfaDevice],
    findings: &mut Vec<Finding>,
) {
    for device in devices {
        match probe::ask(machine, &Question::Device(device.name.clone())) {
            Some(Answer::Device(answer)) => {
                findings.push(capabilities(instance, device, &answer).of(&device.name));
                findings.push(packet_size(device, &answer).of(&device.name));
            }
            Some(Answer::Error(problem)) => {
                let finding =
                    Finding::error("capabilities", format!("cannot be opened: {problem}"));
                let remedy = "mend what `rdma-core`, `permissions` and `memlock` say";
                findings.push(finding.of(&device.name).remedy(remedy));
            }
            Some(Answer::Library(_)) | None => {}
        }
    }
}

fn names(caps: DeviceCaps) -> String {
    let names: Vec<_> = caps.iter_names().map(|(name, _)| name).collect();
    match names.is_empty() {
        true => "none".to_owned(),
        false => names.join(", "),
    }
}

fn capabilities(instance: Option<&Instance>, device: &EfaDevice, answer: &DeviceAnswer) -> Finding {
    let caps = DeviceCaps::from_bits_truncate(answer.capabilities);
    let value = names(caps);
    let wanted = |wanted: Option<bool>, cap| match wanted {
        Some(true) => cap,
        _ => DeviceCaps::empty(),
    };
    let expected = instance.map_or(DeviceCaps::empty(), |instance| {
        wanted(instance.rdma_read, DeviceCaps::RDMA_READ)
            | wanted(instance.rdma_write, DeviceCaps::RDMA_WRITE)
    });
    let missing = expected - caps;
    if !missing.is_empty() {
        let value = format!("{value}; the instance type should have {}", names(missing));
        return Finding::warning("capabilities", value).remedy(
            "update driver and rdma-core together: sudo ./efa_installer.sh -y (docs/ec2.md)",
        );
    }
    match device.profile() {
        Some(profile) if profile.caps != caps => {
            let value = format!(
                "{value}; profile {} has {}",
                profile.name,
                names(profile.caps)
            );
            Finding::note("capabilities", value).remedy(
                "have the emulator do as this device does: efa-conformance survey -o FILE, efa-emu \
                 run --profile FILE",
            )
        }
        _ => Finding::ok("capabilities", value),
    }
}

fn packet_size(device: &EfaDevice, answer: &DeviceAnswer) -> Finding {
    let size = answer.packet_size;
    let value = format!("{size} bytes");
    match device.profile() {
        Some(profile) if profile.mtu as usize != size => Finding::note(
            "packet-size",
            format!("{value}; profile {} has {}", profile.name, profile.mtu),
        ),
        _ => Finding::ok("packet-size", value),
    }
}

/// The reason why a character device cannot be opened.
enum Refusal {
    Missing,
    Denied(String),
}

/// Reports whether the devices' character devices may be opened.
pub(super) fn examine_permissions(
    machine: &Machine,
    devices: &[EfaDevice],
    findings: &mut Vec<Finding>,
) {
    for device in devices {
        let Some(node) = &device.node else {
            let finding = Finding::error("permissions", "has no entry in class/infiniband_verbs");
            findings.push(finding.of(&device.name).remedy("modprobe ib_uverbs"));
            continue;
        };
        let path = format!("/dev/infiniband/{node}");
        let refused = match machine.program() {
            Some(_) => may_open(&path),
            None => would_open(machine, &path),
        };
        findings.push(
            match refused {
                Ok(()) => Finding::ok("permissions", format!("{path} can be opened")),
                Err(Refusal::Missing) => Finding::error(
                    "permissions",
                    format!("{path} is missing"),
                )
                .remedy(
                    "modprobe ib_uverbs; in a container: docker run --device=/dev/infiniband, in \
                     Kubernetes the EFA device plugin and the resource vpc.amazonaws.com/efa",
                ),
                Err(Refusal::Denied(why)) => Finding::error(
                    "permissions",
                    format!("{path}: {why}"),
                )
                .remedy(
                    "rdma-core's udev rules give it mode 0666: install rdma-core and run udevadm \
                     trigger; for now: sudo chmod 666 /dev/infiniband/uverbs*",
                ),
            }
            .of(&device.name),
        );
    }
}

/// Checks with the kernel whether the file may be opened.
fn may_open(path: &str) -> Result<(), Refusal> {
    let Ok(name) = std::ffi::CString::new(path) else {
        return Err(Refusal::Missing);
    };
    // SAFETY: the path is a string that ends with zero.
    if unsafe { libc::access(name.as_ptr(), libc::R_OK | libc::W_OK) } == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(match error.kind() {
        std::io::ErrorKind::NotFound => Refusal::Missing,
        _ => Refusal::Denied(error.to_string()),
    })
}

/// Compares the mode of the file with the user in `/proc/self/status`, as the kernel would.
fn would_open(machine: &Machine, path: &str) -> Result<(), Refusal> {
    let file = fs::metadata(machine.path(path)).map_err(|_| Refusal::Missing)?;
    let status = machine.text("/proc/self/status").unwrap_or_default();
    let ids = |name: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let numbers = line.unwrap_or_default().split_whitespace();
        numbers.filter_map(|number| number.parse().ok()).collect()
    };
    // The ids are: real, effective, saved, and of the file system.
    let user = ids("Uid:").get(1).copied().unwrap_or(0);
    let mut groups = ids("Groups:");
    groups.extend(ids("Gid:").get(1));
    let mode = file.mode();
    let bits = match () {
        () if user == 0 => return Ok(()),
        () if user == file.uid() => mode >> 6,
        () if groups.contains(&file.gid()) => mode >> 3,
        () => mode,
    };
    match bits & 0o6 {
        0o6 => Ok(()),
        _ => Err(Refusal::Denied(format!(
            "mode {:04o}, and user {user} may not read and write",
            mode & 0o7777
        ))),
    }
}
