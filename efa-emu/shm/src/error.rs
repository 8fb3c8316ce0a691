//! Errors of a fabric, which name the object, the value and the remedy.

use std::io;
use std::path::{Path, PathBuf};

use efa_core::address::Gid;

use efa_device_model::profile::ProfileError;

/// The content of a directory, which is lost if the directory is not usable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirectoryContent {
    /// All fabrics of the user.
    AllFabrics,
    /// One fabric, or a part of it.
    OneFabric,
}

impl DirectoryContent {
    /// The remedy besides removing the directory.
    fn remedy(self) -> &'static str {
        match self {
            DirectoryContent::AllFabrics => {
                " (another --fabric name does not help: all are kept there)"
            }
            DirectoryContent::OneFabric => ", or choose another --fabric name",
        }
    }
}

/// The reason why a fabric, a host or a device on it could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    #[error(
        "{what} name {name:?} is not valid: use 1 to {max} letters, digits, '-', '_' or '.', \
         not starting with '.'"
    )]
    InvalidName {
        /// `"fabric"` or `"host"`.
        what: &'static str,
        name: String,
        /// Longest allowed name in bytes.
        max: usize,
    },
    #[error(
        "{} belongs to user {owner}, this process runs as user {user}, and fabrics are never shared \
         between users: let user {owner} or root remove it{}", .path.display(), .holds.remedy()
    )]
    ForeignOwner {
        path: PathBuf,
        holds: DirectoryContent,
        /// User id of its owner.
        owner: u32,
        /// Effective user id of this process.
        user: u32,
    },
    #[error(
        "{} can be written by other users (mode {mode:03o}): run `chmod 700` on it, or remove it",
        .path.display()
    )]
    WritableByOthers {
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    #[error("{} is not a directory: remove it{}", .path.display(), .holds.remedy())]
    NotADirectory {
        path: PathBuf,
        holds: DirectoryContent,
    },
    #[error(
        "{} has layout {found:?}, this program knows only {expected:?}: use one of the two for all \
         programs, choose another --fabric name, or end the programs that use the fabric and remove the \
         directory", .path.display()
    )]
    UnknownLayout {
        /// The fabric's directory, or the file in it.
        path: PathBuf,
        found: String,
        expected: String,
    },
    #[error("{} is damaged ({what}): remove {} while no program uses the fabric", .path.display(), .path.display())]
    Damaged { path: PathBuf, what: &'static str },
    #[error(
        "{} has been locked by process {holder} for {waited_ms} ms: continue or end that process",
        .path.display()
    )]
    Locked {
        path: PathBuf,
        /// The process that holds the lock, 0 if unknown.
        holder: i32,
        waited_ms: u64,
    },
    #[error(
        "GID {gid} belongs to the live host {owner:?}: choose another --host name, or end that host"
    )]
    GidTaken { gid: Gid, owner: String },
    #[error(
        "{device} is a device of {}: choose another --host name", .machine.as_deref().map_or_else(
            || "this machine".to_owned(), |machine| format!("the machine {machine}"))
    )]
    OnTwoMachines {
        device: String,
        /// The machine that it is on; `None`: this one.
        machine: Option<String>,
    },
    #[error("{host} is on the machine {machine}: run this command there")]
    Elsewhere { host: String, machine: String },
    #[error("a host cannot have {wanted} devices: choose a number from 1 to {most}")]
    DeviceCount { wanted: u32, most: u32 },
    #[error(
        "host {host:?} has {has} devices, not {wanted}: leave out --devices to join it, or choose another \
         --host name"
    )]
    OtherDevices { host: String, has: u32, wanted: u32 },
    #[error(
        "device {device} was removed from its host: `efa-emu fault --fabric {fabric} restore {device}` gives \
         it back, and so does the end of the host's programs"
    )]
    Removed { fabric: String, device: String },
    #[error(
        "environment variable {variable} {problem}: start the program with `efa-emu run -- COMMAND`"
    )]
    Environment {
        variable: &'static str,
        problem: String,
    },
    /// The environment names a directory by a relative path, which differs in each directory.
    #[error("environment variable {variable} is {path:?}: it has to be an absolute path")]
    RelativePath {
        variable: &'static str,
        path: PathBuf,
    },
    #[error("option {option}={value} is not valid: {expected}")]
    NetworkOption {
        option: String,
        value: String,
        expected: &'static str,
    },
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error("host has no queue pair number left ({limit} are in use): destroy queue pairs")]
    QpnsExhausted {
        /// Maximum number of devices of a host.
        limit: u32,
    },
    #[error("fault {label:?} takes {length} bytes as text, the limit is {limit}: say it shorter")]
    FaultTooLong {
        label: String,
        length: usize,
        limit: usize,
    },
    #[error("{limit} faults are armed, which is the limit: remove some with `efa-emu fault clear`")]
    TooManyFaults { limit: usize },
    #[error(
        "no host runs in fabric {fabric:?}: start one with `efa-emu run --fabric {fabric}`, or give \
         the rules to it with --faults"
    )]
    NoHosts { fabric: String },
    #[error(
        "no host {host:?} runs in fabric {fabric:?}: `efa-emu ps --fabric {fabric}` lists them"
    )]
    NoSuchHost { fabric: String, host: String },
    #[error("a device is not usable in a forked child: open the device in the child")]
    Forked,
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

impl FabricError {
    /// For `map_err`: wraps an I/O error with the attempted action and its path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FabricError {
        let path = path.to_owned();
        move |source| FabricError::Io {
            action,
            path,
            source,
        }
    }

    /// Whether a file or directory is missing.
    pub(crate) fn is_not_found(&self) -> bool {
        let kind = io::ErrorKind::NotFound;
        matches!(self, FabricError::Io { source, .. } if source.kind() == kind)
    }

    /// The `errno` that a verbs call reports for this error.
    pub fn errno(&self) -> i32 {
        match self {
            FabricError::InvalidName { .. }
            | FabricError::DeviceCount { .. }
            | FabricError::OtherDevices { .. }
            | FabricError::Environment { .. }
            | FabricError::RelativePath { .. }
            | FabricError::Profile(_)
            | FabricError::NetworkOption { .. } => libc::EINVAL,
            FabricError::ForeignOwner { .. } | FabricError::WritableByOthers { .. } => libc::EPERM,
            FabricError::NotADirectory { .. } => libc::ENOTDIR,
            FabricError::UnknownLayout { .. } | FabricError::Damaged { .. } => libc::EPROTO,
            FabricError::Locked { .. } => libc::ETIMEDOUT,
            FabricError::GidTaken { .. } | FabricError::OnTwoMachines { .. } => libc::EADDRINUSE,
            FabricError::QpnsExhausted { .. } => libc::ENOMEM,
            FabricError::FaultTooLong { .. } => libc::E2BIG,
            FabricError::TooManyFaults { .. } => libc::ENOSPC,
            FabricError::Removed { .. } => libc::ENODEV,
            FabricError::NoHosts { .. }
            | FabricError::NoSuchHost { .. }
            | FabricError::Elsewhere { .. } => libc::ENOENT,
            FabricError::Forked => libc::EIO,
            FabricError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// The reason why a verb of an opened device failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Device(#[from] efa_device_model::device::Error),
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

impl EngineError {
    /// The `errno` that a verbs call reports for this error.
    pub fn errno(&self) -> i32 {
        match self {
            EngineError::Device(error) => error.errno(),
            EngineError::Fabric(error) => error.errno(),
        }
    }
}
