//! Completion status codes of a device.

crate::enumerated! {
    /// The device's completion status, in the numbers of the EFA device (`efa_io_comp_status`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[repr(u8)]
    #[expect(
        missing_docs,
        reason = "the names are the device's own; `Status::describe` explains them"
    )]
    pub enum Status {
        Ok = 0,
        Flushed = 1,
        LocalQpInternalError = 2,
        LocalUnsupportedOp = 3,
        LocalInvalidAh = 4,
        LocalInvalidLkey = 5,
        LocalBadLength = 6,
        RemoteBadAddress = 7,
        RemoteAbort = 8,
        RemoteBadDestQpn = 9,
        RemoteRnr = 10,
        RemoteBadLength = 11,
        RemoteBadStatus = 12,
        LocalUnresponsiveRemote = 13,
        RemoteUnknownPeer = 14,
        LocalUnreachableRemote = 15,
        RemoteFeatureMismatch = 18,
    }
}

impl Status {
    /// The device's code.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The status of a device's code, if the code is known.
    pub fn from_code(code: u8) -> Option<Status> {
        Self::ALL.into_iter().find(|status| status.code() == code)
    }

    /// A description of the status in words.
    pub const fn describe(self) -> &'static str {
        match self {
            Status::Ok => "success",
            Status::Flushed => "flushed when the queue pair was destroyed or failed",
            Status::LocalQpInternalError => "internal error of the local queue pair",
            Status::LocalUnsupportedOp => "operation not supported by the local device",
            Status::LocalInvalidAh => "the address handle is not valid",
            Status::LocalInvalidLkey => "the local key is not valid for this memory",
            Status::LocalBadLength => "the local length is not valid",
            Status::RemoteBadAddress => "the peer refused the remote key, address or access",
            Status::RemoteAbort => "the peer aborted the operation",
            Status::RemoteBadDestQpn => "the peer has no such queue pair, or another Q-key",
            Status::RemoteRnr => "the peer had no receive posted",
            Status::RemoteBadLength => "the peer's receive is too short",
            Status::RemoteBadStatus => "the peer answered with an unknown status",
            Status::LocalUnresponsiveRemote => "the peer does not respond",
            Status::RemoteUnknownPeer => "the peer has no address handle for us",
            Status::LocalUnreachableRemote => "the peer cannot be reached",
            Status::RemoteFeatureMismatch => "the peer's device lacks the feature",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_status_codes_round_trip() {
        for status in Status::ALL {
            assert_eq!(Status::from_code(status.code()), Some(status));
        }
        assert_eq!(Status::from_code(16), None);
        assert_eq!(Status::from_code(255), None);
    }
}
