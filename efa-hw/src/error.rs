//! Why a device, or an object of it, could not be opened.

use efa_core::nic::NicError;
use std::io;

/// A device, domain, completion queue or queue pair could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A library of rdma-core is not installed, or too old.
    #[error(
        "cannot load {library}: {source}; install rdma-core's libraries (Debian package ibverbs-providers), or \
         run the program under `efa-emu run --`"
    )]
    Library {
        /// Its SONAME.
        library: &'static str,
        /// The dynamic linker's message.
        source: libloading::Error,
    },
    /// The list of devices could not be read.
    #[error("cannot list RDMA devices: {0}; is the ib_uverbs kernel module loaded?")]
    DeviceList(#[source] io::Error),
    /// There is no EFA device.
    #[error(
        "no EFA device among {found} RDMA device(s){names}; without EFA hardware, run the program \
         under `efa-emu run --`"
    )]
    NoDevice {
        /// The number of RDMA devices.
        found: usize,
        /// Their names, in parentheses, or nothing.
        names: String,
    },
    /// No device has the given name.
    #[error("no RDMA device named {wanted:?}; there are {found:?}")]
    NoSuchDevice {
        /// The name that was asked for.
        wanted: String,
        /// The names that exist.
        found: Vec<String>,
    },
    /// A verbs call failed.
    #[error("{call} failed on {device}: {source}")]
    Verbs {
        /// The call.
        call: &'static str,
        /// The device's name.
        device: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The device lacks such an object, or has no room for another one.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// A configured number is beyond what the device offers.
    #[error("{what} {value} is not between 1 and the device's limit {limit}")]
    Config {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The largest value.
        limit: usize,
    },
}

const ENOMEM: i32 = 12;

/// The error of a verbs call that has just failed to create `what`, from errno.
pub(crate) fn last_nic_error(what: &'static str) -> NicError {
    match io::Error::last_os_error().raw_os_error() {
        Some(ENOMEM) => NicError::Exhausted(what),
        errno => NicError::Device(errno.unwrap_or(0)),
    }
}
