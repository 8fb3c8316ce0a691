//! Constants of the headers that the library interprets.

use core::ffi::c_int;

pub(crate) const IBV_NODE_UNSPECIFIED: c_int = 7;
pub(crate) const IBV_TRANSPORT_UNSPECIFIED: c_int = 4;

pub(crate) const IBV_FORK_UNNEEDED: c_int = 2;

pub(crate) const IBV_GID_TYPE_IB: u32 = 0;

pub(crate) const IBV_PORT_ACTIVE: c_int = 4;
/// Physical state "LinkUp".
pub(crate) const PHYS_STATE_LINK_UP: u8 = 5;

pub(crate) const IBV_WC_SUCCESS: c_int = 0;
pub(crate) const IBV_WC_LOC_LEN_ERR: c_int = 1;
pub(crate) const IBV_WC_LOC_QP_OP_ERR: c_int = 2;
pub(crate) const IBV_WC_LOC_PROT_ERR: c_int = 4;
pub(crate) const IBV_WC_WR_FLUSH_ERR: c_int = 5;
pub(crate) const IBV_WC_BAD_RESP_ERR: c_int = 7;
pub(crate) const IBV_WC_REM_INV_REQ_ERR: c_int = 9;
pub(crate) const IBV_WC_REM_ACCESS_ERR: c_int = 10;
pub(crate) const IBV_WC_REM_OP_ERR: c_int = 11;
pub(crate) const IBV_WC_RNR_RETRY_EXC_ERR: c_int = 13;
pub(crate) const IBV_WC_REM_INV_RD_REQ_ERR: c_int = 15;
pub(crate) const IBV_WC_REM_ABORT_ERR: c_int = 16;
pub(crate) const IBV_WC_RESP_TIMEOUT_ERR: c_int = 20;
pub(crate) const IBV_WC_GENERAL_ERR: c_int = 21;

pub(crate) const IBV_WC_SEND: c_int = 0;
pub(crate) const IBV_WC_RDMA_WRITE: c_int = 1;
pub(crate) const IBV_WC_RDMA_READ: c_int = 2;
pub(crate) const IBV_WC_RECV: c_int = 128;
pub(crate) const IBV_WC_RECV_RDMA_WITH_IMM: c_int = 129;

pub(crate) const IBV_WC_WITH_IMM: u32 = 1 << 1;

/// Byte length, immediate, QP number, source QP, SLID, SL and DLID path bits.
pub(crate) const IBV_WC_STANDARD_FLAGS: u64 = 0x7f;

pub(crate) const IBV_CQ_INIT_ATTR_MASK_FLAGS: u32 = 1 << 0;
pub(crate) const IBV_CQ_INIT_ATTR_MASK_PD: u32 = 1 << 1;
pub(crate) const IBV_CREATE_CQ_ATTR_SINGLE_THREADED: u32 = 1 << 0;

pub(crate) const IBV_ACCESS_LOCAL_WRITE: u32 = 1 << 0;
pub(crate) const IBV_ACCESS_REMOTE_WRITE: u32 = 1 << 1;
pub(crate) const IBV_ACCESS_REMOTE_READ: u32 = 1 << 2;
/// Flags that a device may ignore, relaxed ordering among them.
pub(crate) const IBV_ACCESS_OPTIONAL_RANGE: u32 = 0x3ff0_0000;

pub(crate) const IBV_QPT_UD: u32 = 4;
pub(crate) const IBV_QPT_DRIVER: u32 = 0xff;

pub(crate) const IBV_QP_INIT_ATTR_PD: u32 = 1 << 0;
pub(crate) const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;

pub(crate) const IBV_QP_EX_WITH_RDMA_WRITE: u64 = 1 << 0;
pub(crate) const IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
pub(crate) const IBV_QP_EX_WITH_SEND: u64 = 1 << 2;
pub(crate) const IBV_QP_EX_WITH_SEND_WITH_IMM: u64 = 1 << 3;
pub(crate) const IBV_QP_EX_WITH_RDMA_READ: u64 = 1 << 4;

pub(crate) const IBV_QP_STATE: u32 = 1 << 0;
pub(crate) const IBV_QP_CUR_STATE: u32 = 1 << 1;
pub(crate) const IBV_QP_EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
pub(crate) const IBV_QP_PKEY_INDEX: u32 = 1 << 4;
pub(crate) const IBV_QP_PORT: u32 = 1 << 5;
pub(crate) const IBV_QP_QKEY: u32 = 1 << 6;
pub(crate) const IBV_QP_RNR_RETRY: u32 = 1 << 11;
pub(crate) const IBV_QP_SQ_PSN: u32 = 1 << 16;
pub(crate) const IBV_QP_CAP: u32 = 1 << 19;

pub(crate) const IBV_QPS_RESET: c_int = 0;
pub(crate) const IBV_QPS_INIT: c_int = 1;
pub(crate) const IBV_QPS_RTR: c_int = 2;
pub(crate) const IBV_QPS_RTS: c_int = 3;
pub(crate) const IBV_QPS_SQD: c_int = 4;
pub(crate) const IBV_QPS_SQE: c_int = 5;
pub(crate) const IBV_QPS_ERR: c_int = 6;

pub(crate) const IBV_WR_SEND: u32 = 2;
pub(crate) const IBV_WR_SEND_WITH_IMM: u32 = 3;

pub(crate) const IBV_SEND_SIGNALED: u32 = 1 << 1;
pub(crate) const IBV_SEND_INLINE: u32 = 1 << 3;

pub(crate) const IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: u32 = 1 << 1;

pub(crate) const IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS: u32 = 1 << 0;

pub(crate) const EFADV_QP_DRIVER_TYPE_SRD: u32 = 0;
pub(crate) const EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV: u16 = 1 << 0;
pub(crate) const EFADV_QP_FLAGS_INLINE_WRITE: u16 = 1 << 1;
pub(crate) const EFADV_SQ_DEPTH_ATTR_INLINE_WRITE: u32 = 1 << 0;
pub(crate) const EFADV_WC_EX_WITH_SGID: u64 = 1 << 0;
pub(crate) const EFADV_WC_EX_WITH_IS_UNSOLICITED: u64 = 1 << 1;
