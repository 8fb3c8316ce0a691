//! The errors of calls to the device or its user-space half.

use efa_core::nic::NicError;

use super::queue::RingError;

/// The reason why a verb was refused. Each variant has the errno that stock rdma-core and the
/// kernel driver return in the same situation ([`Error::errno`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// `EINVAL`: the device does not accept this argument, or the state of the object does not
    /// allow the call.
    #[error("{what} {value:#x} is not valid here")]
    Invalid {
        /// The argument.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// `ENOMEM`: the queue is full; poll completions, then try again.
    #[error("the {0} queue is full: poll completions, then try again")]
    QueueFull(&'static str),
    /// `ENOMEM`: the device has no resources left for another object of this kind.
    #[error("the device has no room for another {0}: destroy one, or use a profile with more")]
    Exhausted(&'static str),
    /// `EOPNOTSUPP`: this generation of the device does not support it.
    #[error("this device does not support {0}")]
    Unsupported(&'static str),
    /// `EBUSY`: other objects still use this one.
    #[error("the {0} is still in use")]
    Busy(&'static str),
    /// `EIO`: the device was removed.
    #[error("the device was removed")]
    Removed,
    /// A staged fault fails the call with this errno.
    #[error("a staged fault fails this call with error {0}")]
    Staged(i32),
    /// `ENOENT`: the object does not exist.
    #[error("there is no {what} {value:#x}")]
    NotFound {
        /// The kind of object.
        what: &'static str,
        /// Its number.
        value: u64,
    },
}

impl Error {
    /// The positive errno.
    pub const fn errno(self) -> i32 {
        match self {
            Error::Invalid { .. } => libc::EINVAL,
            Error::QueueFull(_) | Error::Exhausted(_) => libc::ENOMEM,
            Error::Unsupported(_) => libc::EOPNOTSUPP,
            Error::Busy(_) => libc::EBUSY,
            Error::Removed => libc::EIO,
            Error::Staged(errno) => errno,
            Error::NotFound { .. } => libc::ENOENT,
        }
    }

    pub(crate) fn invalid(what: &'static str, value: impl Into<u64>) -> Self {
        let value = value.into();
        Error::Invalid { what, value }
    }

    pub(crate) fn not_found(what: &'static str, value: impl Into<u64>) -> Self {
        let value = value.into();
        Error::NotFound { what, value }
    }
}

impl From<RingError> for Error {
    fn from(error: RingError) -> Self {
        match error {
            RingError::Depth { ring, entries } => Error::invalid(ring, entries),
            RingError::Lent => Error::invalid("memory of the queue", 0u32),
            RingError::NoMemory => Error::Exhausted("queue"),
        }
    }
}

impl From<Error> for NicError {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid { what, value } | Error::NotFound { what, value } => {
                NicError::Invalid { what, value }
            }
            Error::QueueFull(_) => NicError::QueueFull,
            Error::Exhausted(what) => NicError::Exhausted(what),
            Error::Unsupported(what) => NicError::Unsupported(what),
            Error::Staged(libc::ENOMEM) => NicError::Exhausted("memory region"),
            Error::Busy(_) | Error::Removed | Error::Staged(_) => NicError::Device {
                call: "a call of the emulated device",
                errno: error.errno(),
            },
        }
    }
}
