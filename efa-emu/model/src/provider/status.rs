//! The verbs' names for the device's completion status codes.

use efa_core::nic::Status;

use crate::device::connected::WcStatus;

/// The `ibv_wc_status` that rdma-core reports for a completion status code of the device.
#[inline]
pub fn ibv_wc_status(code: u8) -> u32 {
    match code == Status::Ok.code() {
        true => WcStatus::Success as u32,
        false => of_failure(code) as u32,
    }
}

#[cold]
fn of_failure(code: u8) -> WcStatus {
    let Some(status) = Status::from_code(code) else {
        return WcStatus::General;
    };
    match status {
        Status::Ok => WcStatus::Success,
        Status::Flushed => WcStatus::Flushed,
        Status::LocalQpInternalError | Status::LocalUnsupportedOp | Status::LocalInvalidAh => {
            WcStatus::LocalOperation
        }
        Status::LocalInvalidLkey => WcStatus::LocalProtection,
        Status::LocalBadLength => WcStatus::LocalLength,
        Status::RemoteBadAddress => WcStatus::RemoteAccess,
        Status::RemoteAbort => WcStatus::RemoteAborted,
        Status::RemoteBadDestQpn => WcStatus::UnknownQueuePair,
        Status::RemoteRnr => WcStatus::RnrRetryExceeded,
        Status::RemoteBadLength | Status::RemoteFeatureMismatch => WcStatus::RemoteInvalidRequest,
        Status::RemoteBadStatus => WcStatus::BadResponse,
        Status::LocalUnresponsiveRemote | Status::LocalUnreachableRemote => {
            WcStatus::ResponseTimeout
        }
        Status::RemoteUnknownPeer => WcStatus::RemoteOperation,
    }
}
