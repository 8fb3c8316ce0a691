//! Expected completions of operations.

use serde::{Deserialize, Deserializer};

use crate::libfabric::ffi;
use crate::operation::names;

/// The expected completion of an operation.
#[derive(Clone, Default, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// The operation of the peer whose bytes, tag, completion data and source must arrive.
    pub message: Option<String>,
    /// The error, by libfabric's name; `None` is success.
    pub error: Option<ErrorName>,
    /// Bytes that did not fit, with `FI_ETRUNC`.
    pub overflow: Option<usize>,
}

/// A libfabric error number that has a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ErrorName {
    /// Such as `FI_ETRUNC`.
    pub name: &'static str,
    /// The positive number.
    pub code: i32,
}

impl ErrorName {
    /// Any error: releases report a device's failure to their applications in different ways.
    pub const ANY: ErrorName = ErrorName::new("any", 0);

    /// The errors that a scenario may expect.
    pub const ALL: [ErrorName; 12] = [
        ErrorName::ANY,
        ErrorName::new("FI_ETRUNC", ffi::FI_ETRUNC as i32),
        ErrorName::new("FI_ECANCELED", libc::ECANCELED),
        ErrorName::new("FI_EIO", libc::EIO),
        ErrorName::new("FI_EINVAL", libc::EINVAL),
        ErrorName::new("FI_EMSGSIZE", libc::EMSGSIZE),
        ErrorName::new("FI_ENOTCONN", libc::ENOTCONN),
        ErrorName::new("FI_ECONNABORTED", libc::ECONNABORTED),
        ErrorName::new("FI_EHOSTUNREACH", libc::EHOSTUNREACH),
        ErrorName::new("FI_EOPNOTSUPP", libc::EOPNOTSUPP),
        ErrorName::new("FI_ENOMSG", libc::ENOMSG),
        ErrorName::new("FI_ENORX", ffi::FI_ENORX as i32),
    ];

    const fn new(name: &'static str, code: i32) -> Self {
        ErrorName { name, code }
    }
}

impl<'de> Deserialize<'de> for ErrorName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        names::read(ErrorName::ALL.map(|error| (error.name, error)), from)
    }
}
