//! Descriptions of the provider's error numbers, each with a remedy.

use std::ffi::c_int;

use efa_core::endpoint::ProviderError;

/// The longest text about the peer of a failed operation, in bytes with the end (`max_err_data`).
pub(crate) const MAX_DETAIL: usize = 128;

/// The meaning of a provider's error number, and the remedy.
pub(crate) fn explain(provider_errno: c_int) -> (&'static str, &'static str) {
    use ProviderError as E;
    let mut known = E::ALL.into_iter();
    let found = known.find(|error| i64::from(error.code()) == i64::from(provider_errno));
    let Some(error) = found else {
        return ("a number of another release", "see its release notes");
    };
    match error {
        E::None => ("no further detail", "the error number says all"),
        E::Flushed => (
            "the endpoint was closed before",
            "wait for operations before closing",
        ),
        E::LocalQpInternalError => (
            "the queue pair failed",
            "close the endpoint and open another",
        ),
        E::LocalUnsupportedOp => ("the device cannot do it", "ask fi_getinfo what it can do"),
        E::LocalInvalidAh => (
            "the device does not know the address",
            "insert the peer again",
        ),
        E::LocalInvalidLkey => (
            "the memory is not registered, or for other uses",
            "keep it registered until the operation completes",
        ),
        E::LocalBadLength => (
            "the length is more than the device takes",
            "send less at once",
        ),
        E::RemoteBadAddress => (
            "the peer's device refused key, address or access",
            "compare them with what the peer has registered",
        ),
        E::RemoteAbort => ("the peer's device gave up", "look at the peer"),
        E::RemoteBadDestQpn => (
            "the peer's endpoint is closed, or was opened anew",
            "remove its address and insert the new one",
        ),
        E::RemoteRnr => (
            "the peer does not take packets out of its receive queue",
            "let it read its completion queue more often",
        ),
        E::RemoteBadLength => ("the peer's receive is shorter", "post a longer one"),
        E::RemoteBadStatus => (
            "the peer's device answered with an unknown status",
            "look at the peer",
        ),
        E::LocalUnresponsiveRemote | E::EstablishedUnresponsive => (
            "the peer does not respond any more",
            "look whether its process and its host are there",
        ),
        E::UnestablishedUnresponsive => (
            "the peer never responded",
            "look whether it runs, and whether the security group lets EFA through both ways",
        ),
        E::RemoteUnknownPeer => (
            "the peer's device does not know this one",
            "let the peer insert this endpoint's address",
        ),
        E::LocalUnreachableRemote => (
            "the peer cannot be reached",
            "look whether both are in one subnet and the security group permits it",
        ),
        E::RemoteFeatureMismatch => ("the peer's device lacks it", "ask for less"),
        E::DeprecatedPacketType => (
            "a packet of protocol version 3 arrived",
            "use libfabric 1.10 or newer at the peer",
        ),
        E::InvalidPacketType | E::UnknownPacketType => (
            "a packet of a type arrived that is not known here",
            "use releases that know each other",
        ),
        E::PacketPost => (
            "the device refused a packet",
            "look at EFA_LOG=efa_core=debug",
        ),
        E::PacketSend => (
            "a packet could not be sent",
            "look at EFA_LOG=efa_core=debug",
        ),
        E::MessageProcessing | E::TaggedProcessing => (
            "a message of the peer could not be processed",
            "look at EFA_LOG=efa_core=debug",
        ),
        E::PacketAlreadyProcessed => ("a packet arrived twice", "look at the peer's release"),
        E::OutOfMemory => ("there is no memory left", "have fewer operations at once"),
        E::Deregistration => ("a registration could not be ended", "look at the device"),
        E::ReceiveCopy => (
            "the data could not be copied to the receive",
            "keep its memory mapped until it completes",
        ),
        E::ReceivePoolExhausted | E::SendPoolExhausted => (
            "too many operations at once",
            "read completions between them",
        ),
        E::AddressInsertion => ("the peer's address was refused", "insert it before"),
        E::RmaAddress => (
            "the operation names memory that the target does not lend",
            "compare key, address and length with its registration",
        ),
        E::ReceivePost => ("a receive buffer was refused", "look at the device"),
        E::Handshake => ("the HANDSHAKE could not be sent", "look at the peer"),
        E::RequestSizeMismatch => (
            "the sizes in a packet of the peer contradict each other",
            "look at the peer's release",
        ),
        E::RdmaReadPost => (
            "the device refused an RDMA read",
            "register the memory for it",
        ),
        E::InvalidDatatype => (
            "an atomic of an unknown type or operation arrived",
            "ask fi_query_atomic at both ends",
        ),
        E::HeaderAtZeroCopyReceiver => (
            "a message with a header came to an endpoint that receives without copies",
            "set FI_EFA_USE_ZCPY_RX=0 here, or have the peer receive likewise",
        ),
        E::PeerAborted => ("the peer has given up the operation", "look at the peer"),
        _ => ("no further detail", "the error number says all"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_a_cause_and_a_remedy() {
        let unknown = explain(4000);
        for error in ProviderError::ALL {
            let (what, remedy) = explain(error.code() as c_int);
            assert_ne!((what, remedy), unknown, "{error:?}");
            let nothing = what == explain(0).0;
            assert_eq!(nothing, error == ProviderError::None, "{error:?}");
            assert!(what.len() > 10 && remedy.len() > 10, "{error:?}");
        }
        assert_eq!(explain(-1), unknown);
    }
}
