//! Reasons why a device refuses a request.

/// The reason why a device refused a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NicError {
    /// The queue or pool is full; the same call may succeed after completions were polled.
    #[error("the device's queue is full: poll completions, then try again")]
    QueueFull,
    /// The device has no resources for another object.
    #[error("the device has no resources left for another {0}")]
    Exhausted(&'static str),
    /// An argument is not valid for this device.
    #[error("{what} {value:#x} is not valid for this device")]
    Invalid {
        /// The argument.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The device lacks the capability.
    #[error("the device does not support {0}")]
    Unsupported(&'static str),
    /// User memory could not be reached.
    #[error("memory {address:#x} + {length} cannot be reached")]
    MemoryFault {
        /// The first byte.
        address: u64,
        /// The length in bytes.
        length: usize,
    },
    /// A call of the device's interface failed.
    #[error("{call} failed: {}", std::io::Error::from_raw_os_error(*errno))]
    Device {
        /// The call, such as `ibv_dereg_mr`.
        call: &'static str,
        /// Its errno.
        errno: i32,
    },
}

impl NicError {
    /// An argument that is not valid for this device.
    #[inline]
    pub fn invalid(what: &'static str, value: impl Into<u64>) -> NicError {
        let value = value.into();
        NicError::Invalid { what, value }
    }
}
