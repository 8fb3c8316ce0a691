//! Errors of opening devices and their objects, of verbs, and of work requests.

use std::io;
use std::path::PathBuf;

use efa_core::address::Qpn;
use efa_core::nic::{NicError, Status};

/// A device, domain, completion queue or queue pair could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A library of rdma-core is not installed.
    #[error(
        "cannot load {library}: {}; install rdma-core's libraries (Debian package ibverbs-providers), or \
         run the program under `efa-emu run --`",
        message(source)
    )]
    Library {
        /// Its SONAME.
        library: &'static str,
        /// The dynamic linker's message.
        source: libloading::Error,
    },
    /// A library of rdma-core lacks a function.
    #[error(
        "{library} has no {symbol}: {}; install rdma-core 43 or later (Debian package ibverbs-providers), and \
         look whether LD_LIBRARY_PATH or LD_PRELOAD names another library of this name",
        message(source)
    )]
    Symbol {
        /// The library's SONAME.
        library: &'static str,
        /// The function.
        symbol: &'static str,
        /// The dynamic linker's message, which has the library's path.
        source: libloading::Error,
    },
    /// The list of devices could not be read.
    #[error("ibv_get_device_list failed: {0}; is the ib_uverbs kernel module loaded?")]
    DeviceList(#[source] io::Error),
    /// There is no EFA device.
    #[error(
        "no EFA device among {found} RDMA device(s){names}; without EFA hardware, run the program \
         under `efa-emu run --`"
    )]
    NoDevice {
        /// The number of RDMA devices.
        found: usize,
        /// Their names, in parentheses, or empty.
        names: String,
    },
    /// No device has the given name.
    #[error("no RDMA device named {wanted:?}; there are {found:?}")]
    NoSuchDevice {
        /// The requested name.
        wanted: String,
        /// The existing names.
        found: Vec<String>,
    },
    /// This user may not use the device.
    #[error(
        "ibv_open_device failed on {device}: {source}; this user needs read and write access to {}, which the udev \
         rules of rdma-core give to everybody, and in a container the file has to be passed on \
         (`docker run --device {}`)",
        file.display(), file.display()
    )]
    Permission {
        /// The device's name.
        device: String,
        /// The file of the device.
        file: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The limit of locked memory is below the memory that the program needs to register.
    #[error(
        "ibv_reg_mr failed on {device}: {source}; {needed} bytes of packet buffers have to stay in memory, and the \
         limit of locked memory is {limit} bytes: raise it (`ulimit -l unlimited`, or `memlock` in \
         /etc/security/limits.conf), or use fewer packet buffers"
    )]
    LockedMemory {
        /// The device's name.
        device: String,
        /// Bytes to register.
        needed: usize,
        /// The soft limit `RLIMIT_MEMLOCK` in bytes.
        limit: u64,
        /// The cause.
        #[source]
        source: io::Error,
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
    /// The device has no such object, or no room for another one.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// A configured number exceeds the device's limit.
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

/// The dynamic linker's message, which `libloading` provides as the cause of its error.
fn message(error: &libloading::Error) -> String {
    let cause = std::error::Error::source(error);
    cause.map_or_else(|| error.to_string(), ToString::to_string)
}

/// The error of a verb that has just failed, from errno.
///
/// `full` describes the exhausted resource of the device, if errno is `ENOMEM`.
pub(crate) fn last_nic_error(call: &'static str, full: &'static str) -> NicError {
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOMEM) => NicError::Exhausted(full),
        errno => refused(call, errno.unwrap_or(0)),
    }
}

/// The error of a call that the device refused with a positive or negative errno.
#[cold]
pub(crate) fn refused(call: &'static str, errno: i32) -> NicError {
    let errno = errno.abs();
    tracing::debug!(call, errno, "request refused");
    NicError::Device { call, errno }
}

/// The error of a call that failed on a device.
#[cold]
pub(crate) fn failed(call: &'static str, device: &str, source: io::Error) -> OpenError {
    tracing::debug!(device, call, error = %source, "call failed");
    OpenError::Verbs {
        call,
        device: device.to_owned(),
        source,
    }
}

/// A work request that ended with an error, as the device reported it.
///
/// The [`Completion`](efa_core::nic::Completion) of the request has the same [`Status`], unless the
/// device's code is unknown: then it is `RemoteBadStatus`, and only this error has the code itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompletionError {
    /// Requested operation: `send`, `receive`, `RDMA read`, `RDMA write`.
    pub verb: &'static str,
    /// The queue pair of the work request.
    pub queue_pair: Qpn,
    /// The device's code (`ibv_wc_read_vendor_err`).
    pub vendor_status: u32,
    /// The coarser status of libibverbs (`enum ibv_wc_status`).
    pub wc_status: u32,
}

impl CompletionError {
    /// The device's status, if its code is known.
    pub fn status(&self) -> Option<Status> {
        let code = u8::try_from(self.vendor_status).ok()?;
        Status::from_code(code).filter(|status| *status != Status::Ok)
    }

    /// The meaning of the device's code.
    pub fn meaning(&self) -> &'static str {
        self.status()
            .map_or("the device reported an unknown code", Status::describe)
    }
}

impl std::fmt::Display for CompletionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} on queue pair {} failed: {} (vendor status {}, ibv_wc_status {})",
            self.verb,
            self.queue_pair.0,
            self.meaning(),
            self.vendor_status,
            self.wc_status
        )
    }
}

impl std::error::Error for CompletionError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_errors_have_verb_code_and_meaning() {
        let known = CompletionError {
            verb: "RDMA write",
            queue_pair: Qpn(5),
            vendor_status: 7,
            wc_status: 10,
        };
        assert_eq!(
            known.to_string(),
            "RDMA write on queue pair 5 failed: the peer refused the remote key, address or access (vendor \
             status 7, ibv_wc_status 10)"
        );
        for vendor_status in [0, 16, 200, 0x107] {
            let unknown = CompletionError {
                vendor_status,
                ..known
            };
            assert_eq!(unknown.status(), None);
            let expected = format!("an unknown code (vendor status {vendor_status}, ");
            assert!(unknown.to_string().contains(&expected), "{unknown}");
        }
    }
}
