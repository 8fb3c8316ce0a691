//! The files of a machine, and other facts about it.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use efa_device_model::sysfs::ENV_SYSFS_PATH;
use efa_shm::{ENV_HOST, ENV_PROFILE};

use super::finding::Finding;

/// The metadata service of an EC2 instance.
const METADATA: &str = "169.254.169.254:80";

/// Variables that make AWS's programs use another metadata service, or none.
const ENV_METADATA_DISABLED: &str = "AWS_EC2_METADATA_DISABLED";
const ENV_METADATA_ENDPOINT: &str = "AWS_EC2_METADATA_SERVICE_ENDPOINT";

/// A machine to examine.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
    environment: BTreeMap<String, String>,
    metadata: Option<SocketAddr>,
    program: Option<PathBuf>,
}

impl Machine {
    /// This machine. `program` examines libraries and devices in separate processes, which are
    /// started with the arguments that [`probe`](super::probe) describes.
    pub fn this(program: PathBuf) -> Machine {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let environment: BTreeMap<String, String> = std::env::vars_os().filter_map(text).collect();
        let is_disabled = environment
            .get(ENV_METADATA_DISABLED)
            .is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let endpoint = match environment.get(ENV_METADATA_ENDPOINT) {
            Some(url) => address_of(url),
            None => METADATA.parse().ok(),
        };
        Machine {
            root: PathBuf::from("/"),
            environment,
            metadata: endpoint.filter(|_| !is_disabled),
            program: Some(program),
        }
    }

    /// A machine whose files are below `root` and whose processes have these variables. Its
    /// libraries are not loaded, its devices are not opened, and no metadata service is queried.
    pub fn below(root: &Path, environment: BTreeMap<String, String>) -> Machine {
        Machine {
            root: root.to_owned(),
            environment,
            metadata: None,
            program: None,
        }
    }

    /// The same machine with a metadata service at this address.
    pub fn with_metadata(mut self, address: SocketAddr) -> Machine {
        self.metadata = Some(address);
        self
    }

    /// The program that examines libraries and devices, if this is the running machine.
    pub(super) fn program(&self) -> Option<&Path> {
        self.program.as_deref()
    }

    /// The address of the metadata service, if it may be queried.
    pub(super) fn metadata(&self) -> Option<SocketAddr> {
        self.metadata
    }

    /// The value of an environment variable; `None` if it is empty too.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        let value = self.environment.get(name)?;
        (!value.is_empty()).then_some(value.as_str())
    }

    /// The path in this process of an absolute path on the machine.
    pub(super) fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    /// The path on the machine of a file below its root.
    pub(super) fn shown(&self, path: &Path) -> String {
        match path.strip_prefix(&self.root) {
            Ok(inside) => format!("/{}", inside.display()),
            Err(_) => path.display().to_string(),
        }
    }

    /// The directory in which rdma-core and libfabric look for sysfs.
    pub(super) fn sysfs(&self) -> PathBuf {
        match self.variable(ENV_SYSFS_PATH) {
            Some(path) => PathBuf::from(path),
            None => self.path("/sys"),
        }
    }

    /// The text of a file without surrounding white space.
    pub(super) fn text(&self, absolute: &str) -> Option<String> {
        text_of(&self.path(absolute))
    }

    /// The emulator's host of the process, and its profile.
    pub(super) fn emulated(&self) -> Option<(&str, &str)> {
        let host = self.variable(ENV_HOST)?;
        Some((host, self.variable(ENV_PROFILE).unwrap_or("unknown")))
    }

    /// Whether the firmware reports an EC2 instance.
    pub(super) fn is_ec2(&self) -> bool {
        let vendor = self.text("/sys/devices/virtual/dmi/id/sys_vendor");
        vendor.is_some_and(|vendor| vendor == "Amazon EC2")
    }

    /// Kernel, distribution and emulator.
    pub(super) fn examine_system(&self, findings: &mut Vec<Finding>) {
        let release = self.text("/proc/sys/kernel/osrelease");
        let system = self.text("/etc/os-release").and_then(|text| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("PRETTY_NAME="));
            line.map(|name| name.trim_matches('"').to_owned())
        });
        let value = match (release, system) {
            (Some(release), Some(system)) => format!("{release}, {system}"),
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => "unknown: /proc/sys/kernel/osrelease cannot be read".to_owned(),
        };
        findings.push(Finding::ok("kernel", value));
        if let Some((host, profile)) = self.emulated() {
            // The directory of the file is private.
            let profile = profile.rsplit('/').next().unwrap_or(profile);
            let value = format!("host {host} of efa-emu, profile {profile}");
            findings.push(Finding::note("emulator", value));
        }
    }

    /// The kernel's major and minor version.
    pub(super) fn kernel(&self) -> Option<(u32, u32)> {
        let release = self.text("/proc/sys/kernel/osrelease")?;
        let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

/// The text of a file without surrounding white space; `None` if it cannot be read.
pub(super) fn text_of(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// A number with the prefix `0x`.
pub(super) fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// The address in a URL such as `http://127.0.0.1:8080/`.
fn address_of(url: &str) -> Option<SocketAddr> {
    let authority = url.strip_prefix("http://")?.split('/').next()?;
    match authority.parse() {
        Ok(address) => Some(address),
        Err(_) => format!("{authority}:80").parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_metadata_services_have_a_port() {
        let address = |url| address_of(url).map(|address| address.to_string());
        assert_eq!(
            address("http://127.0.0.1:8080/").as_deref(),
            Some("127.0.0.1:8080")
        );
        assert_eq!(
            address("http://169.254.169.254").as_deref(),
            Some("169.254.169.254:80")
        );
        assert_eq!(address("https://169.254.169.254"), None);
    }
}
