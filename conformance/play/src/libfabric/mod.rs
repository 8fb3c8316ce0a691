//! Stock libfabric, loaded at run time from any path.
//!
//! [`ffi`] declares the C interface. [`Library`] and [`Endpoint`] wrap the part that the suite
//! needs: one reliable-datagram endpoint of one provider with its queues and address vector.
//! Buffers are passed by value and returned with their completions, so that no caller can touch
//! memory that the library still uses.

mod bare;
mod completion;
mod endpoint;
mod library;
mod operation;
mod provider;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

pub use efa_libfabric_sys as ffi;
use serde::{Deserialize, Serialize};

pub use bare::BareBuffer;
pub use completion::{Completion, Failure};
pub use endpoint::{Address, Endpoint, RegionId, Settings};
pub use library::Library;
pub use operation::{AtomicCall, Destination, RemoteMemory, Token};
pub use provider::Provider;

/// The result of a call that has nothing to report now, or no room.
const TRY_AGAIN: isize = -(ffi::FI_EAGAIN as isize);
/// The result of reading a queue that has an error entry.
const ERROR_AVAILABLE: isize = -(ffi::FI_EAVAIL as isize);

/// A release of libfabric, or a version of its programming interface: `major.minor`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Version {
    /// The number before the point.
    pub major: u16,
    /// The number after the point.
    pub minor: u16,
}

impl Version {
    /// The version that applications of the first protocol v4 releases request. The EFA provider
    /// derives defaults from it: from 1.18 on, RDMA is used whenever the device has it.
    pub const BASELINE_API: Version = Version {
        major: 1,
        minor: 11,
    };

    /// libfabric's encoding: the major number is in the upper half.
    pub const fn to_raw(self) -> u32 {
        (self.major as u32) << 16 | self.minor as u32
    }

    /// The version of libfabric's encoding.
    pub const fn from_raw(raw: u32) -> Self {
        Version {
            major: (raw >> 16) as u16,
            minor: raw as u16,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl From<Version> for String {
    fn from(version: Version) -> Self {
        version.to_string()
    }
}

impl TryFrom<String> for Version {
    type Error = VersionError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// Text that is not a [`Version`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is not a version: write it as major.minor, such as \"1.17\"")]
pub struct VersionError(String);

impl FromStr for Version {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.split_once('.').and_then(|(major, minor)| {
            Some(Version {
                major: major.parse().ok()?,
                minor: minor.parse().ok()?,
            })
        });
        parsed.ok_or_else(|| VersionError(text.to_owned()))
    }
}

/// The reason why a call into libfabric failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The library is not there, or the dynamic linker refuses it.
    #[error("cannot load libfabric from {path}: {reason}; name the library with --libfabric PATH")]
    Load {
        /// The library as it was named.
        path: PathBuf,
        /// What the dynamic linker says.
        reason: String,
    },
    /// A function of libfabric returned an error.
    #[error("libfabric's {call} failed: {text} (error {code})")]
    Call {
        /// The name of the function.
        call: &'static str,
        /// The positive error number.
        code: i32,
        /// libfabric's text for the error number.
        text: String,
    },
    /// A function or a resource that this release does not have.
    #[error("this libfabric does not offer {0}")]
    Missing(&'static str),
    /// `fi_getinfo` returns nothing for the requested provider and capabilities.
    #[error(
        "libfabric {version} finds no endpoint of its provider {provider} for reliable datagrams with the \
         requested capabilities: {text}; `fi_info -l` shows its providers ({} has plug-ins); run under \
         `efa-emu run -- ...` or on a host with EFA, and set FI_LOG_LEVEL=info for the provider's reason",
        Provider::SEARCH_PATH
    )]
    NoEndpoint {
        /// The requested provider, by libfabric's name.
        provider: String,
        /// The release of the library.
        version: Version,
        /// libfabric's text for the error number.
        text: String,
    },
    /// The requested device is not among those that the provider lists.
    #[error(
        "libfabric's provider {provider} lists no device {device}; `fi_info -p {provider}` shows those that it has"
    )]
    NoDevice {
        /// The requested provider, by libfabric's name.
        provider: String,
        /// The requested device, by libfabric's name of its domain.
        device: String,
    },
    /// A caller's mistake.
    #[error("{0}")]
    Usage(String),
}

impl Error {
    /// Returns whether the same call may succeed after completions were read.
    pub fn is_try_again(&self) -> bool {
        matches!(self, Error::Call { code, .. } if *code == libc::EAGAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_libfabrics_encoding_and_order() {
        let version: Version = "1.17".parse().unwrap();
        assert_eq!(version.to_raw(), 0x0001_0011);
        assert_eq!(Version::from_raw(0x0002_0005).to_string(), "2.5");
        assert!(version > Version::BASELINE_API);
        assert!("1".parse::<Version>().is_err());
        assert!("1.x".parse::<Version>().is_err());
    }
}
