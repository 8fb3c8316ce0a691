//! The checks, their findings and their severities.

use serde::Serialize;

/// The severity of a finding.
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
    /// All levels, the least first.
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

/// The checks: name and meaning.
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

/// A finding.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// The check: a name of [`CHECKS`].
    pub check: &'static str,
    /// The object, if there may be several: a device, a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// What was found.
    pub value: String,
    /// What mends it; `None` if nothing has to be mended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    pub(super) fn new(level: Level, check: &'static str, value: impl Into<String>) -> Finding {
        debug_assert!(CHECKS.iter().any(|(name, _)| *name == check));
        Finding {
            level,
            check,
            subject: None,
            value: value.into(),
            remedy: None,
        }
    }

    pub(super) fn ok(check: &'static str, value: impl Into<String>) -> Finding {
        Finding::new(Level::Ok, check, value)
    }

    pub(super) fn note(check: &'static str, value: impl Into<String>) -> Finding {
        Finding::new(Level::Note, check, value)
    }

    pub(super) fn warning(check: &'static str, value: impl Into<String>) -> Finding {
        Finding::new(Level::Warning, check, value)
    }

    pub(super) fn error(check: &'static str, value: impl Into<String>) -> Finding {
        Finding::new(Level::Error, check, value)
    }

    pub(super) fn of(mut self, subject: impl Into<String>) -> Finding {
        self.subject = Some(subject.into());
        self
    }

    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Finding {
        self.remedy = Some(remedy.into());
        self
    }
}

/// The worst level of some findings.
pub fn worst(findings: &[Finding]) -> Level {
    let levels = findings.iter().map(|finding| finding.level);
    levels.max().unwrap_or(Level::Ok)
}
