//! Errors in libfabric's numbers, and how the device's statuses map to them.

use core::fmt;

use crate::nic::{NicError, Status};
use crate::wire::PacketType;

/// A libfabric error number (`fi_errno`): Linux errno values below 256, libfabric's own above.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($(#[doc = $doc:literal])* $name:ident = $value:literal;)*) => {
        impl Errno {
            $($(#[doc = $doc])* pub const $name: Errno = Errno($value);)*

            /// libfabric's name of the number without its `FI_` prefix, if it is one that the
            /// engine reports.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    /// No such address.
    ENOENT = 2;
    /// The data could not be transferred.
    EIO = 5;
    /// Resources are temporarily exhausted: make progress, then retry.
    EAGAIN = 11;
    /// Memory is exhausted.
    ENOMEM = 12;
    /// User memory could not be reached.
    EFAULT = 14;
    /// An argument, key or address is not valid.
    EINVAL = 22;
    /// No message matches (peek).
    ENOMSG = 42;
    /// The message does not fit.
    EMSGSIZE = 90;
    /// The peer or the device lacks the feature.
    EOPNOTSUPP = 95;
    /// The peer no longer exists or does not respond.
    ECONNABORTED = 103;
    /// The queue pair does not exist at the peer, or the peer has no address handle for this
    /// endpoint.
    ENOTCONN = 107;
    /// The peer's host cannot be reached.
    EHOSTUNREACH = 113;
    /// The peer answered with an unknown status.
    EREMOTEIO = 121;
    /// The operation was cancelled.
    ECANCELED = 125;
    /// Another error; the provider error number identifies it.
    EOTHER = 256;
    /// The receive buffer was shorter than the message.
    ETRUNC = 265;
    /// The peer had no receive buffers.
    ENORX = 269;
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "FI_{name}"),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({self})")
    }
}

crate::wire::enumerated! {
    /// The detail behind an [`Errno`]: a device status (below 4096), or one of the numbers that
    /// stock libfabric's efa provider assigns to its errors (4096 and above, libfabric 1.17 to
    /// 2.6).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[repr(u32)]
    #[non_exhaustive]
    pub enum ProviderError {
        /// No further detail.
        None = 0,
        /// The device completed the operation with [`Status::Flushed`]. Its other
        /// statuses follow.
        Flushed = 1,
        /// [`Status::LocalQpInternalError`].
        LocalQpInternalError = 2,
        /// [`Status::LocalUnsupportedOp`].
        LocalUnsupportedOp = 3,
        /// [`Status::LocalInvalidAh`].
        LocalInvalidAh = 4,
        /// [`Status::LocalInvalidLkey`].
        LocalInvalidLkey = 5,
        /// [`Status::LocalBadLength`].
        LocalBadLength = 6,
        /// [`Status::RemoteBadAddress`].
        RemoteBadAddress = 7,
        /// [`Status::RemoteAbort`].
        RemoteAbort = 8,
        /// [`Status::RemoteBadDestQpn`].
        RemoteBadDestQpn = 9,
        /// [`Status::RemoteRnr`].
        RemoteRnr = 10,
        /// [`Status::RemoteBadLength`].
        RemoteBadLength = 11,
        /// [`Status::RemoteBadStatus`].
        RemoteBadStatus = 12,
        /// [`Status::LocalUnresponsiveRemote`].
        LocalUnresponsiveRemote = 13,
        /// [`Status::RemoteUnknownPeer`].
        RemoteUnknownPeer = 14,
        /// [`Status::LocalUnreachableRemote`].
        LocalUnreachableRemote = 15,
        /// [`Status::RemoteFeatureMismatch`].
        RemoteFeatureMismatch = 18,
        /// A packet type of protocol version 3 arrived.
        DeprecatedPacketType = 4097,
        /// A packet of a type that this endpoint does not handle arrived.
        InvalidPacketType = 4098,
        /// A packet of an unassigned type arrived.
        UnknownPacketType = 4099,
        /// The local device refused a packet.
        PacketPost = 4100,
        /// A packet could not be sent.
        PacketSend = 4101,
        /// An untagged message request could not be processed.
        MessageProcessing = 4102,
        /// A tagged message request could not be processed.
        TaggedProcessing = 4103,
        /// A packet arrived a second time, or long after its message was finished.
        PacketAlreadyProcessed = 4104,
        /// Memory of the engine is exhausted.
        OutOfMemory = 4105,
        /// A memory registration could not be ended.
        Deregistration = 4106,
        /// Received data could not be copied to the application's memory.
        ReceiveCopy = 4107,
        /// The table of receives is full.
        ReceivePoolExhausted = 4108,
        /// The table of sends is full.
        SendPoolExhausted = 4109,
        /// An address could not be inserted.
        AddressInsertion = 4110,
        /// A one-sided operation named memory that the target does not offer.
        RmaAddress = 4111,
        /// Receive buffers could not be posted.
        ReceivePost = 4112,
        /// The handshake could not be sent.
        Handshake = 4113,
        /// The sizes of a message request contradict each other.
        RequestSizeMismatch = 4115,
        /// An RDMA read could not be posted.
        RdmaReadPost = 4117,
        /// An atomic operation of an unknown data type or operation arrived.
        InvalidDatatype = 4118,
        /// The peer, known from a handshake, stopped responding.
        EstablishedUnresponsive = 4124,
        /// A message with a header arrived at an endpoint that receives into the application's
        /// buffers.
        HeaderAtZeroCopyReceiver = 4125,
        /// The peer never answered.
        UnestablishedUnresponsive = 4126,
        /// The peer abandoned its half of the operation.
        PeerAborted = 4127,
    }
}

impl ProviderError {
    /// The number that libfabric puts into `fi_cq_err_entry.prov_errno`.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The detail for a request of this type that could not be processed.
    pub(crate) const fn for_request(packet_type: PacketType) -> Self {
        match packet_type.is_tagged() {
            true => ProviderError::TaggedProcessing,
            false => ProviderError::MessageProcessing,
        }
    }
}

impl From<Status> for ProviderError {
    fn from(status: Status) -> Self {
        match status {
            Status::Ok => ProviderError::None,
            Status::Flushed => ProviderError::Flushed,
            Status::LocalQpInternalError => ProviderError::LocalQpInternalError,
            Status::LocalUnsupportedOp => ProviderError::LocalUnsupportedOp,
            Status::LocalInvalidAh => ProviderError::LocalInvalidAh,
            Status::LocalInvalidLkey => ProviderError::LocalInvalidLkey,
            Status::LocalBadLength => ProviderError::LocalBadLength,
            Status::RemoteBadAddress => ProviderError::RemoteBadAddress,
            Status::RemoteAbort => ProviderError::RemoteAbort,
            Status::RemoteBadDestQpn => ProviderError::RemoteBadDestQpn,
            Status::RemoteRnr => ProviderError::RemoteRnr,
            Status::RemoteBadLength => ProviderError::RemoteBadLength,
            Status::RemoteBadStatus => ProviderError::RemoteBadStatus,
            Status::LocalUnresponsiveRemote => ProviderError::LocalUnresponsiveRemote,
            Status::RemoteUnknownPeer => ProviderError::RemoteUnknownPeer,
            Status::LocalUnreachableRemote => ProviderError::LocalUnreachableRemote,
            Status::RemoteFeatureMismatch => ProviderError::RemoteFeatureMismatch,
        }
    }
}

/// Failure of an operation: the pair that libfabric reports in an error completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// `err` of the entry.
    pub errno: Errno,
    /// `prov_errno` of the entry.
    pub provider: ProviderError,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.errno)?;
        match self.provider {
            ProviderError::None => Ok(()),
            provider => write!(f, " ({provider:?}, {})", provider.code()),
        }
    }
}

impl Failure {
    /// The application cancelled the operation.
    pub(crate) const CANCELED: Failure = Failure::new(Errno::ECANCELED, ProviderError::None);
    /// A part of the target is not memory of the application.
    pub(crate) const COPY_FAILED: Failure = Failure::new(Errno::EFAULT, ProviderError::ReceiveCopy);
    /// A packet and the operation that it belongs to contradict each other.
    pub(crate) const SIZE_MISMATCH: Failure =
        Failure::new(Errno::EIO, ProviderError::RequestSizeMismatch);

    /// Returns whether the application cancelled the operation.
    pub(crate) fn is_cancelled(self) -> bool {
        self == Failure::CANCELED
    }

    /// The peer abandoned its half of the operation.
    pub(crate) const PEER_ABORTED: Failure =
        Failure::new(Errno::ECANCELED, ProviderError::PeerAborted);

    pub(crate) const fn new(errno: Errno, provider: ProviderError) -> Self {
        Failure { errno, provider }
    }

    /// The failure of a message that its receiver has abandoned for this reason.
    pub(crate) fn of_peer(prov_errno: u32) -> Self {
        let mut known = ProviderError::ALL.into_iter();
        let reason = known.find(|error| error.code() == prov_errno && prov_errno != 0);
        Failure::new(
            Errno::ECANCELED,
            reason.unwrap_or(ProviderError::PeerAborted),
        )
    }
}

/// The mapping of stock libfabric (`to_fi_errno` in its terms).
impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        let errno = match status {
            Status::Ok => Errno(0),
            Status::Flushed => Errno::ECANCELED,
            Status::LocalQpInternalError
            | Status::LocalUnsupportedOp
            | Status::LocalInvalidAh
            | Status::LocalInvalidLkey
            | Status::RemoteBadAddress
            | Status::RemoteFeatureMismatch => Errno::EINVAL,
            Status::LocalBadLength | Status::RemoteBadLength => Errno::EMSGSIZE,
            Status::RemoteAbort | Status::LocalUnresponsiveRemote => Errno::ECONNABORTED,
            Status::RemoteBadDestQpn | Status::RemoteUnknownPeer => Errno::ENOTCONN,
            Status::RemoteRnr => Errno::ENORX,
            Status::RemoteBadStatus => Errno::EREMOTEIO,
            Status::LocalUnreachableRemote => Errno::EHOSTUNREACH,
        };
        Failure::new(errno, status.into())
    }
}

/// The reason why a call of the application was refused. Nothing was started, and no completion
/// follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// Queues or buffers are full, or the peer is in back-off after receiver-not-ready answers.
    /// Call `progress` and try again (libfabric's `FI_EAGAIN`).
    #[error("resources are short now: make progress, then try again")]
    TryAgain,
    /// The peer is not in the address vector.
    #[error("peer {0} is not in the address vector")]
    UnknownPeer(crate::endpoint::base::ids::PeerId),
    /// The conversation with the peer has failed
    /// ([`Event::PeerFailed`](crate::endpoint::Event::PeerFailed)).
    #[error("the conversation with peer {0} was given up: remove and insert its address")]
    PeerFailed(crate::endpoint::base::ids::PeerId),
    /// The operation needs the peer's handshake, and the packet that requests it could not be
    /// delivered. A further call sends another request.
    #[error("peer {peer} could not be asked for its handshake: {failure}")]
    Unreachable {
        /// The peer.
        peer: crate::endpoint::base::ids::PeerId,
        /// The failure that the device reported.
        failure: Failure,
    },
    /// The message was not claimed, was received or discarded, or its peer was removed.
    #[error("the claim names no message")]
    UnknownClaim,
    /// An argument is out of range.
    #[error("{what} is {value}, the limit is {limit}")]
    OutOfRange {
        /// The argument.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The largest value allowed.
        limit: u64,
    },
    /// The two sides of an operation differ in length.
    #[error("local pieces of {local} bytes in all, the others of {remote} bytes")]
    LengthMismatch {
        /// Bytes of the local data.
        local: u64,
        /// Bytes of the remote memory, or of the other operand.
        remote: u64,
    },
    /// The peer or the local device lacks a feature that the operation needs.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// The device refused.
    #[error(transparent)]
    Nic(#[from] NicError),
}

impl EndpointError {
    /// libfabric's number of the error.
    pub const fn errno(self) -> Errno {
        match self {
            EndpointError::TryAgain => Errno::EAGAIN,
            EndpointError::UnknownPeer(_)
            | EndpointError::OutOfRange { .. }
            | EndpointError::LengthMismatch { .. } => Errno::EINVAL,
            EndpointError::Unreachable { failure, .. } => failure.errno,
            EndpointError::UnknownClaim => Errno::ENOENT,
            EndpointError::PeerFailed(_) => Errno::ECONNABORTED,
            EndpointError::Unsupported(_) => Errno::EOPNOTSUPP,
            EndpointError::Nic(error) => match error {
                NicError::QueueFull => Errno::EAGAIN,
                NicError::Exhausted(_) => Errno::ENOMEM,
                NicError::Invalid { .. } => Errno::EINVAL,
                NicError::Unsupported(_) => Errno::EOPNOTSUPP,
                NicError::MemoryFault { .. } => Errno::EFAULT,
                NicError::Device { errno, .. } => Errno(errno),
            },
        }
    }
}

impl Failure {
    /// The failure to report for an error of posting that no call can return.
    pub(crate) fn of_post(error: &EndpointError) -> Self {
        Failure::new(error.errno(), ProviderError::PacketPost)
    }

    /// Returns whether the failure means that the peer's endpoint no longer exists, or that the
    /// local endpoint is closing.
    pub(crate) fn is_peer_gone(self) -> bool {
        // A peer that aborts an operation still exists.
        self.provider != ProviderError::RemoteAbort
            && matches!(
                self.errno,
                Errno::ENOTCONN | Errno::ECONNABORTED | Errno::EHOSTUNREACH | Errno::ECANCELED
            )
    }

    /// Returns whether the failure means that the peer's queue pair no longer exists.
    pub(crate) fn is_queue_pair_gone(self) -> bool {
        self.provider == ProviderError::RemoteBadDestQpn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_and_errors_are_described() {
        let failure = Failure::from(Status::RemoteBadDestQpn);
        assert_eq!(failure.to_string(), "FI_ENOTCONN (RemoteBadDestQpn, 9)");
        let truncated = Failure::new(Errno::ETRUNC, ProviderError::None);
        assert_eq!(truncated.to_string(), "FI_ETRUNC");
        assert_eq!(Errno(999).to_string(), "errno 999");
        let event = crate::endpoint::Event::PacketRefused {
            peer: None,
            packet_type: 64,
            reason: crate::endpoint::PacketError::AlreadyProcessed { msg_id: 7 },
        };
        assert_eq!(
            event.to_string(),
            "EAGER_MSGRTM packet from an unknown sender refused: message 7 was already received"
        );
    }

    #[test]
    fn every_device_status_has_its_own_number() {
        for status in Status::ALL {
            assert_eq!(ProviderError::from(status).code(), u32::from(status.code()));
        }
    }
}
