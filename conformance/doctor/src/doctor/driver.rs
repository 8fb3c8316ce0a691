//! Checks the kernel driver, and the device's access to the memory of accelerators.

use std::fmt;
use std::str::FromStr;

use super::device::EfaDevice;
use super::finding::Finding;
use super::instance::Instance;
use super::machine::Machine;

/// The version of a driver. Parts after the third are ignored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Version([u32; 3]);

impl FromStr for Version {
    type Err = ();

    /// Parses a module's version, such as `2.13.0g`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut numbers = [0; 3];
        for (number, part) in numbers.iter_mut().zip(text.split('.')) {
            let end = part.find(|letter: char| !letter.is_ascii_digit());
            *number = part[..end.unwrap_or(part.len())].parse().map_err(|_| ())?;
        }
        Ok(Version(numbers))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// The first version that supports a device, by part id, from the driver's release notes
/// (amzn-drivers, `kernel/linux/efa/RELEASENOTES.md`).
const KNOWS: [(u32, Version); 3] = [
    (0xefa1, Version([1, 9, 0])),
    (0xefa2, Version([2, 1, 0])),
    (0xefa3, Version([2, 12, 0])),
];

/// The first versions with RDMA read and write, and with memory of accelerators by dmabuf, from the
/// release notes.
const RDMA_READ: Version = Version([1, 5, 0]);
const RDMA_WRITE: Version = Version([2, 4, 0]);
const DMABUF: Version = Version([1, 16, 0]);

/// The first kernel whose RDMA core supports dmabuf.
const DMABUF_KERNEL: (u32, u32) = (5, 12);

const UPDATE: &str =
    "install a newer driver: sudo ./efa_installer.sh -y, then reboot (docs/ec2.md)";

fn version(machine: &Machine) -> Option<String> {
    machine.text("/sys/module/efa/version")
}

/// Reports the driver, and whether it is new enough.
pub(super) fn examine(
    machine: &Machine,
    instance: Option<&Instance>,
    devices: &[EfaDevice],
    findings: &mut Vec<Finding>,
) {
    let is_loaded = machine.path("/sys/module/efa").is_dir();
    let Some(text) = version(machine) else {
        findings.push(match (is_loaded, machine.emulated(), devices.is_empty()) {
            (true, ..) => Finding::note("driver", "the kernel's own: it states no version"),
            (false, Some(_), _) => {
                Finding::ok("driver", "none, and the emulated device needs none")
            }
            (false, None, true) => Finding::note("driver", "not loaded"),
            (false, None, false) => Finding::ok("driver", "built into the kernel"),
        });
        return;
    };
    let Ok(version) = text.parse::<Version>() else {
        findings.push(Finding::note("driver", format!("{text}, not a version")));
        return;
    };
    let newest = devices.iter().map(|device| device.part_id).max();
    let known = newest.and_then(|id| KNOWS.iter().find(|(known, _)| *known == id));
    let wants =
        |capability: Option<bool>, first: Version| capability == Some(true) && version < first;
    let read = instance.and_then(|instance| instance.rdma_read);
    let write = instance.and_then(|instance| instance.rdma_write);
    findings.push(
        if let Some((id, first)) = known.filter(|(_, first)| version < *first) {
            let value = format!("{text}; devices {id:#06x} are supported from {first} on");
            Finding::error("driver", value).remedy(UPDATE)
        } else if wants(read, RDMA_READ) {
            let value = format!("{text}; RDMA read came with {RDMA_READ}");
            Finding::warning("driver", value).remedy(UPDATE)
        } else if wants(write, RDMA_WRITE) {
            let value = format!("{text}; RDMA write came with {RDMA_WRITE}");
            Finding::warning("driver", value).remedy(UPDATE)
        } else {
            Finding::ok("driver", text)
        },
    );
}

/// Modules of accelerators, and modules that give other drivers access to their memory.
const ACCELERATORS: [(&str, &str); 3] = [
    ("nvidia", "NVIDIA"),
    ("neuron", "Neuron"),
    ("amdgpu", "AMD"),
];
const PEER_MEMORY: [&str; 3] = ["efa_nv_peermem", "nvidia_peermem", "nv_peer_mem"];

/// Reports whether devices can access the memory of accelerators.
pub(super) fn examine_accelerators(
    machine: &Machine,
    devices: &[EfaDevice],
    findings: &mut Vec<Finding>,
) {
    let is_loaded = |module: &str| machine.path(&format!("/sys/module/{module}")).is_dir();
    let mut found = ACCELERATORS.iter().filter(|(module, _)| is_loaded(module));
    let Some((module, name)) = found.next() else {
        findings.push(Finding::ok("gpu", "no driver of an accelerator is loaded"));
        return;
    };
    let release = machine.text(&format!("/sys/module/{module}/version"));
    let accelerator = match release {
        Some(release) => format!("{name} {release}"),
        None => (*name).to_owned(),
    };
    let driver = version(machine).and_then(|text| text.parse::<Version>().ok());
    let by_dmabuf = driver.is_none_or(|version| version >= DMABUF)
        && machine
            .kernel()
            .is_some_and(|kernel| kernel >= DMABUF_KERNEL);
    // The driver of EC2's installer names the method that it uses; older ones have 0 or 1.
    let by_driver = devices.iter().find_map(|device| {
        let way = ["device/p2p", "device/gdr"].map(|name| device.attribute(name));
        way.into_iter()
            .flatten()
            .find(|way| way != "0" && !way.is_empty())
    });
    let peer = PEER_MEMORY.iter().find(|module| is_loaded(module));
    let ways: Vec<String> = [
        by_dmabuf.then(|| "dmabuf".to_owned()),
        by_driver.map(|way| format!("the driver ({way})")),
        peer.map(|module| (*module).to_owned()),
    ]
    .into_iter()
    .flatten()
    .collect();
    findings.push(match ways.is_empty() {
        false => Finding::ok("gpu", format!("{accelerator}, by {}", ways.join(", "))),
        true => Finding::warning(
            "gpu",
            format!("{accelerator}, whose memory cannot be reached"),
        )
        .remedy(
            "a kernel from 5.12 on with the newest EFA driver (dmabuf), or the module \
                 efa_nv_peermem",
        ),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        let version = |text: &str| text.parse::<Version>().unwrap();
        assert!(version("2.12.0") > version("2.4.1"));
        assert_eq!(version("2.6.0g"), Version([2, 6, 0]));
        assert_eq!(version("2.6").to_string(), "2.6.0");
        assert!("g".parse::<Version>().is_err());
    }
}
