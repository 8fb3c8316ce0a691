//! Whether a machine is fit for EFA: what is there, what is wrong with it, and how it is mended.
//!
//! [`examine`] looks at a [`Machine`]. Everything that it reads as files lies below a root, so that tests, and a
//! person with the files of another machine, can have it look elsewhere. What can only be asked of
//! the running system (libraries, devices) is asked by a process of its own ([`probe`]), because a
//! library that does not fit may end the process that loads it.

mod device;
mod driver;
mod instance;
mod libraries;
mod machine;
mod metadata;
mod peer;
pub mod probe;
mod process;

use efa_play::drive::Opening;
use efa_play::libfabric::Version;
use efa_play::scenario::{Capability, Settings};
use serde::Serialize;

pub use machine::Machine;
pub use peer::reach;

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// Works, but slowly or not for every program.
    Warning,
    /// EFA does not work.
    Error,
}

impl Level {
    /// All levels, from the least.
    pub const ALL: [Level; 4] = [Level::Ok, Level::Note, Level::Warning, Level::Error];

    /// The level's name.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }
}

/// What is looked at: the name of each check, and its meaning.
pub const CHECKS: [(&str, &str); 18] = [
    (
        "machine",
        "the EC2 instance type, from DMI or the instance metadata",
    ),
    ("kernel", "release of the kernel, and the distribution"),
    (
        "metadata",
        "whether the instance metadata service answers (IMDSv2)",
    ),
    ("emulator", "whether the devices are those of `efa-emu run`"),
    (
        "device",
        "the EFA devices, and whether there are as many as the instance type can have",
    ),
    ("port", "state and GID of each device"),
    (
        "generation",
        "part id of each device, against that of the instance type",
    ),
    (
        "driver",
        "version of the kernel driver, against what device and capabilities need",
    ),
    (
        "capabilities",
        "RDMA and the other capabilities of each device, against the instance type and the \
         generation's profile",
    ),
    (
        "packet-size",
        "the largest packet (`max_msg_sz`) of each device",
    ),
    (
        "permissions",
        "whether this user may open the character devices in `/dev/infiniband`",
    ),
    ("memlock", "the limit of locked memory"),
    (
        "hugepages",
        "huge pages, which libfabric takes for its packet buffers",
    ),
    (
        "ptrace",
        "whether processes of a user may read each other's memory",
    ),
    (
        "gpu",
        "whether the device can reach the memory of GPUs and accelerators",
    ),
    ("rdma-core", "every libibverbs and libefa that is found"),
    (
        "libfabric",
        "every libfabric that is found, its release, and whether its EFA provider works",
    ),
    (
        "peer",
        "whether another host can be reached over EFA (`--peer`)",
    ),
];

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What was looked at: a name of [`CHECKS`].
    pub check: &'static str,
    /// Which one, if there may be several: a device, a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// What was found.
    pub value: String,
    /// What mends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    fn new(level: Level, check: &'static str, value: impl Into<String>) -> Finding {
        debug_assert!(CHECKS.iter().any(|(name, _)| *name == check));
        Finding {
            level,
            check,
            subject: None,
            value: value.into(),
            remedy: None,
        }
    }

    fn ok(check: &'static str, value: impl Into<String>) -> Finding {
        Finding::new(Level::Ok, check, value)
    }

    fn note(check: &'static str, value: impl Into<String>) -> Finding {
        Finding::new(Level::Note, check, value)
    }

    fn warning(check: &'static str, value: impl Into<String>) -> Finding {
        Finding::new(Level::Warning, check, value)
    }

    fn error(check: &'static str, value: impl Into<String>) -> Finding {
        Finding::new(Level::Error, check, value)
    }

    fn of(mut self, subject: impl Into<String>) -> Finding {
        self.subject = Some(subject.into());
        self
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Finding {
        self.remedy = Some(remedy.into());
        self
    }
}

/// Looks at a machine. The findings are in the order of [`CHECKS`].
pub fn examine(machine: &Machine) -> Vec<Finding> {
    let mut findings = Vec::new();
    let metadata = metadata::ask(machine);
    let instance = instance::examine(machine, metadata.as_ref(), &mut findings);
    machine.examine_system(&mut findings);
    metadata::examine(metadata.as_ref(), &mut findings);
    let devices = device::find(machine);
    device::examine(machine, instance, &devices, &mut findings);
    driver::examine(machine, instance, &devices, &mut findings);
    device::examine_open(machine, instance, &devices, &mut findings);
    device::examine_permissions(machine, &devices, &mut findings);
    process::examine(machine, &mut findings);
    driver::examine_accelerators(machine, &devices, &mut findings);
    libraries::examine(machine, &mut findings);
    let place = |finding: &Finding| CHECKS.iter().position(|(name, _)| *name == finding.check);
    findings.sort_by_key(place);
    findings
}

/// The worst level of some findings.
pub fn worst(findings: &[Finding]) -> Level {
    let levels = findings.iter().map(|finding| finding.level);
    levels.max().unwrap_or(Level::Ok)
}

/// What an application opens that sends and receives messages.
fn messages() -> Opening {
    Opening {
        api: Version::BASELINE_API,
        capabilities: vec![Capability::Msg, Capability::Tagged, Capability::Source],
        register_local: false,
        max_message: None,
        device: None,
        settings: Settings::default(),
    }
}
