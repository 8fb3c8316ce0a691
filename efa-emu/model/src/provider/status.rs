//! The verbs' names for the device's completion status codes.

use efa_core::nic::Status;

/// The `ibv_wc_status` that rdma-core reports for a completion status code of the device.
#[inline]
pub fn ibv_wc_status(code: u8) -> u32 {
    match code == Status::Ok.code() {
        true => SUCCESS,
        false => of_failure(code),
    }
}

const SUCCESS: u32 = 0;

#[cold]
fn of_failure(code: u8) -> u32 {
    const LOC_LEN_ERR: u32 = 1;
    const LOC_QP_OP_ERR: u32 = 2;
    const LOC_PROT_ERR: u32 = 4;
    const WR_FLUSH_ERR: u32 = 5;
    const BAD_RESP_ERR: u32 = 7;
    const REM_INV_REQ_ERR: u32 = 9;
    const REM_ACCESS_ERR: u32 = 10;
    const REM_OP_ERR: u32 = 11;
    const RNR_RETRY_EXC_ERR: u32 = 13;
    const REM_INV_RD_REQ_ERR: u32 = 15;
    const REM_ABORT_ERR: u32 = 16;
    const RESP_TIMEOUT_ERR: u32 = 20;
    const GENERAL_ERR: u32 = 21;
    let Some(status) = Status::from_code(code) else {
        return GENERAL_ERR;
    };
    match status {
        Status::Ok => SUCCESS,
        Status::Flushed => WR_FLUSH_ERR,
        Status::LocalQpInternalError | Status::LocalUnsupportedOp | Status::LocalInvalidAh => {
            LOC_QP_OP_ERR
        }
        Status::LocalInvalidLkey => LOC_PROT_ERR,
        Status::LocalBadLength => LOC_LEN_ERR,
        Status::RemoteBadAddress => REM_ACCESS_ERR,
        Status::RemoteAbort => REM_ABORT_ERR,
        Status::RemoteBadDestQpn => REM_INV_RD_REQ_ERR,
        Status::RemoteRnr => RNR_RETRY_EXC_ERR,
        Status::RemoteBadLength | Status::RemoteFeatureMismatch => REM_INV_REQ_ERR,
        Status::RemoteBadStatus => BAD_RESP_ERR,
        Status::LocalUnresponsiveRemote | Status::LocalUnreachableRemote => RESP_TIMEOUT_ERR,
        Status::RemoteUnknownPeer => REM_OP_ERR,
    }
}
