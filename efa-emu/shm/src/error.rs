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
    /// A fabric or host cannot have this name, because files are called by it.
    #[error(
        "{what} name {name:?} is not valid: use 1 to {max} letters, digits, '-', '_' or '.', \
         not starting with '.'"
    )]
    InvalidName {
        /// `"fabric"` or `"host"`.
        what: &'static str,
        /// The name that was given.
        name: String,
        /// Longest allowed name in bytes.
        max: usize,
    },
    /// A directory belongs to another user.
    #[error(
        "{} belongs to user {owner}, this process runs as user {user}, and fabrics are never shared \
         between users: let user {owner} or root remove it{}", .path.display(), .holds.remedy()
    )]
    ForeignOwner {
        /// The directory.
        path: PathBuf,
        /// What it is for.
        holds: DirectoryContent,
        /// User id of its owner.
        owner: u32,
        /// Effective user id of this process.
        user: u32,
    },
    /// A directory is not private to its owner.
    #[error(
        "{} can be written by other users (mode {mode:03o}): run `chmod 700` on it, or remove it",
        .path.display()
    )]
    WritableByOthers {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// There is a file in the place of a directory.
    #[error("{} is not a directory: remove it{}", .path.display(), .holds.remedy())]
    NotADirectory {
        /// The path of that file.
        path: PathBuf,
        /// What the directory is for.
        holds: DirectoryContent,
    },
    /// Another version of the emulator has made the fabric.
    #[error(
        "{} has layout {found:?}, this program knows only {expected:?}: use one of the two for all \
         programs, choose another --fabric name, or end the programs that use the fabric and remove the \
         directory", .path.display()
    )]
    UnknownLayout {
        /// The fabric's directory, or the file in it.
        path: PathBuf,
        /// The layout that the file states.
        found: String,
        /// The layout that this version reads.
        expected: String,
    },
    /// A file of the fabric cannot be right.
    #[error("{} is damaged ({what}): remove {} while no program uses the fabric", .path.display(), .path.display())]
    Damaged {
        /// The damaged file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A lock was not released in time.
    #[error(
        "{} has been locked by process {holder} for {waited_ms} ms: continue or end that process",
        .path.display()
    )]
    Locked {
        /// The locked file.
        path: PathBuf,
        /// The process that holds the lock, 0 if unknown.
        holder: i32,
        /// The time after which this process gave up, in milliseconds.
        waited_ms: u64,
    },
    /// The configured GID of a new host is in use.
    #[error(
        "GID {gid} belongs to the live host {owner:?}: choose another --host name, or end that host"
    )]
    GidTaken {
        /// The configured GID.
        gid: Gid,
        /// The name of the host that uses it.
        owner: String,
    },
    /// The host would be on this machine and on another one.
    #[error(
        "{device} is a device of {}: choose another --host name", .machine.as_deref().map_or_else(
            || "this machine".to_owned(), |machine| format!("the machine {machine}"))
    )]
    OnTwoMachines {
        /// The name of the first device.
        device: String,
        /// The machine that it is on; `None`: this one.
        machine: Option<String>,
    },
    /// The command is for hosts of this machine only.
    #[error("{host} is on the machine {machine}: run this command there")]
    Elsewhere {
        /// The name of the host.
        host: String,
        /// The name of the machine that the host is on.
        machine: String,
    },
    /// The requested number of devices is 0, or greater than that of any host.
    #[error("a host cannot have {wanted} devices: choose a number from 1 to {most}")]
    DeviceCount {
        /// The requested number.
        wanted: u32,
        /// The greatest possible number.
        most: u32,
    },
    /// The host exists with another number of devices.
    #[error(
        "host {host:?} has {has} devices, not {wanted}: leave out --devices to join it, or choose another \
         --host name"
    )]
    OtherDevices {
        /// The name of the host.
        host: String,
        /// The number of its devices.
        has: u32,
        /// The requested number.
        wanted: u32,
    },
    /// A fault has removed the device, and nothing has restored it.
    #[error(
        "device {device} was removed from its host: `efa-emu fault --fabric {fabric} restore {device}` gives \
         it back, and so does the end of the host's programs"
    )]
    Removed {
        /// The name of the fabric.
        fabric: String,
        /// The name of the device.
        device: String,
    },
    /// A variable that `efa-emu run` sets is missing or cannot be read.
    #[error(
        "environment variable {variable} {problem}: start the program with `efa-emu run -- COMMAND`"
    )]
    Environment {
        /// The name of the variable.
        variable: &'static str,
        /// What is wrong with it; follows the name in the message.
        problem: String,
    },
    /// The environment names a directory by a relative path, which differs in each directory.
    #[error("environment variable {variable} is {path:?}: it has to be an absolute path")]
    RelativePath {
        /// The name of the variable.
        variable: &'static str,
        /// Its value.
        path: PathBuf,
    },
    /// An option of the network has a value that cannot be read.
    #[error("option {option}={value} is not valid: {expected}")]
    NetworkOption {
        /// The name of the option.
        option: String,
        /// The value as it was given.
        value: String,
        /// A description of the values that are valid.
        expected: &'static str,
    },
    /// The profile of the device does not exist, or its file cannot be read.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// All queue pair numbers of the host are in use.
    #[error("host has no queue pair number left ({limit} are in use): destroy queue pairs")]
    QpnsExhausted {
        /// The number of queue pair numbers of a host.
        limit: u32,
    },
    /// A rule of faults does not fit in its place on the board.
    #[error("fault {label:?} takes {length} bytes as text, the limit is {limit}: say it shorter")]
    FaultTooLong {
        /// The name of the rule.
        label: String,
        /// The length of the rule as text in bytes.
        length: usize,
        /// The greatest length in bytes.
        limit: usize,
    },
    /// The board has no place for another rule of faults.
    #[error("{limit} faults are armed, which is the limit: remove some with `efa-emu fault clear`")]
    TooManyFaults {
        /// The number of its places.
        limit: usize,
    },
    /// The fabric has no live host.
    #[error(
        "no host runs in fabric {fabric:?}: start one with `efa-emu run --fabric {fabric}`, or give \
         the rules to it with --faults"
    )]
    NoHosts {
        /// The name of the fabric.
        fabric: String,
    },
    /// The fabric has no live host of this name.
    #[error(
        "no host {host:?} runs in fabric {fabric:?}: `efa-emu ps --fabric {fabric}` lists them"
    )]
    NoSuchHost {
        /// The name of the fabric.
        fabric: String,
        /// The name of the host.
        host: String,
    },
    /// The process was forked after it opened the device.
    #[error("a device is not usable in a forked child: open the device in the child")]
    Forked,
    /// A call of the system failed.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// What failed, as a verb: `create`, for example.
        action: &'static str,
        /// The file that it was done to.
        path: PathBuf,
        /// The reason of the system.
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
    /// The device or its provider refused it.
    #[error(transparent)]
    Device(#[from] efa_device_model::device::Error),
    /// The fabric cannot be used.
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
