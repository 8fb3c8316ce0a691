//! Constants of the headers that the library interprets.

use core::ffi::c_int;

pub const IBV_NODE_UNSPECIFIED: c_int = 7;
pub const IBV_TRANSPORT_UNSPECIFIED: c_int = 4;

/// A channel adapter, as InfiniBand and RoCE devices are.
pub const IBV_NODE_CA: c_int = 1;
pub const IBV_TRANSPORT_IB: c_int = 0;

pub const IBV_FORK_UNNEEDED: c_int = 2;

pub const IBV_GID_TYPE_IB: u32 = 0;
pub const IBV_GID_TYPE_ROCE_V2: u32 = 2;
/// The value in sysfs (`enum ibv_gid_type_sysfs`).
pub const IBV_GID_TYPE_SYSFS_ROCE_V2: c_int = 1;

pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;

pub const IBV_DEVICE_RC_RNR_NAK_GEN: u32 = 1 << 12;
pub const IBV_DEVICE_SRQ_RESIZE: u32 = 1 << 13;

/// Atomic operations are atomic among those of the device.
pub const IBV_ATOMIC_HCA: c_int = 1;

pub const IBV_PORT_DOWN: c_int = 1;
pub const IBV_PORT_ACTIVE: c_int = 4;
/// Physical state "Disabled".
pub const PHYS_STATE_DISABLED: u8 = 3;
/// Physical state "LinkUp".
pub const PHYS_STATE_LINK_UP: u8 = 5;

pub const IBV_WC_EX_WITH_BYTE_LEN: u64 = 1 << 0;
pub const IBV_WC_EX_WITH_IMM: u64 = 1 << 1;
pub const IBV_WC_EX_WITH_QP_NUM: u64 = 1 << 2;
pub const IBV_WC_EX_WITH_SRC_QP: u64 = 1 << 3;
pub const IBV_WC_EX_WITH_SLID: u64 = 1 << 4;
pub const IBV_WC_EX_WITH_SL: u64 = 1 << 5;
pub const IBV_WC_EX_WITH_DLID_PATH_BITS: u64 = 1 << 6;
/// All of these.
pub const IBV_WC_STANDARD_FLAGS: u64 = 0x7f;

pub const IBV_WC_EX_WITH_TM_INFO: u64 = 1 << 10;

pub const IBV_CQ_INIT_ATTR_MASK_FLAGS: u32 = 1 << 0;
pub const IBV_CQ_INIT_ATTR_MASK_PD: u32 = 1 << 1;
pub const IBV_CREATE_CQ_ATTR_SINGLE_THREADED: u32 = 1 << 0;

pub const IBV_ACCESS_LOCAL_WRITE: u32 = 1 << 0;
pub const IBV_ACCESS_REMOTE_WRITE: u32 = 1 << 1;
pub const IBV_ACCESS_REMOTE_READ: u32 = 1 << 2;
pub const IBV_ACCESS_REMOTE_ATOMIC: u32 = 1 << 3;
/// Flags that a device may ignore, relaxed ordering among them.
pub const IBV_ACCESS_OPTIONAL_RANGE: u32 = 0x3ff0_0000;

pub const IBV_QPT_RC: u32 = 2;
pub const IBV_QPT_UD: u32 = 4;
pub const IBV_QPT_DRIVER: u32 = 0xff;

pub const IBV_QP_INIT_ATTR_PD: u32 = 1 << 0;
pub const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;

pub const IBV_QP_EX_WITH_RDMA_WRITE: u64 = 1 << 0;
pub const IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
pub const IBV_QP_EX_WITH_SEND: u64 = 1 << 2;
pub const IBV_QP_EX_WITH_SEND_WITH_IMM: u64 = 1 << 3;
pub const IBV_QP_EX_WITH_RDMA_READ: u64 = 1 << 4;
pub const IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
pub const IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;

pub const IBV_QP_STATE: u32 = 1 << 0;
pub const IBV_QP_CUR_STATE: u32 = 1 << 1;
pub const IBV_QP_EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
pub const IBV_QP_PKEY_INDEX: u32 = 1 << 4;
pub const IBV_QP_PORT: u32 = 1 << 5;
pub const IBV_QP_QKEY: u32 = 1 << 6;
pub const IBV_QP_RNR_RETRY: u32 = 1 << 11;
pub const IBV_QP_SQ_PSN: u32 = 1 << 16;
pub const IBV_QP_CAP: u32 = 1 << 19;

pub const IBV_QPS_RESET: c_int = 0;
pub const IBV_QPS_INIT: c_int = 1;
pub const IBV_QPS_RTR: c_int = 2;
pub const IBV_QPS_RTS: c_int = 3;
pub const IBV_QPS_SQD: c_int = 4;
pub const IBV_QPS_ERR: c_int = 6;

pub const IBV_WR_RDMA_WRITE: u32 = 0;
pub const IBV_WR_RDMA_WRITE_WITH_IMM: u32 = 1;
pub const IBV_WR_SEND: u32 = 2;
pub const IBV_WR_SEND_WITH_IMM: u32 = 3;
pub const IBV_WR_RDMA_READ: u32 = 4;
pub const IBV_WR_ATOMIC_CMP_AND_SWP: u32 = 5;
pub const IBV_WR_ATOMIC_FETCH_AND_ADD: u32 = 6;

pub const IBV_SEND_FENCE: u32 = 1 << 0;
pub const IBV_SEND_SIGNALED: u32 = 1 << 1;
pub const IBV_SEND_SOLICITED: u32 = 1 << 2;
pub const IBV_SEND_INLINE: u32 = 1 << 3;

pub const IBV_SRQT_BASIC: u32 = 0;
pub const IBV_SRQT_TM: u32 = 2;

pub const IBV_SRQ_INIT_ATTR_TYPE: u32 = 1 << 0;
pub const IBV_SRQ_INIT_ATTR_PD: u32 = 1 << 1;
pub const IBV_SRQ_INIT_ATTR_CQ: u32 = 1 << 3;
pub const IBV_SRQ_INIT_ATTR_TM: u32 = 1 << 4;

pub const IBV_SRQ_MAX_WR: c_int = 1 << 0;
pub const IBV_SRQ_LIMIT: c_int = 1 << 1;

pub const IBV_WR_TAG_ADD: u32 = 0;
pub const IBV_WR_TAG_DEL: u32 = 1;
pub const IBV_WR_TAG_SYNC: u32 = 2;

pub const IBV_OPS_SIGNALED: c_int = 1 << 0;
pub const IBV_OPS_TM_SYNC: c_int = 1 << 1;

pub const IBV_TM_CAP_RC: u32 = 1 << 0;

pub const IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: u32 = 1 << 1;

pub const IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS: u32 = 1 << 0;

pub const IBV_REG_MR_MASK_IOVA: u64 = 1 << 0;
pub const IBV_REG_MR_MASK_ADDR: u64 = 1 << 1;
pub const IBV_REG_MR_MASK_FD: u64 = 1 << 2;
pub const IBV_REG_MR_MASK_FD_OFFSET: u64 = 1 << 3;
pub const IBV_REG_MR_MASK_BUF: u64 = 1 << 5;

pub const IBV_REREG_MR_ERR_CMD: c_int = -4;

pub const EFADV_DEVICE_ATTR_CAPS_RDMA_READ: u32 = 1 << 0;
pub const EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE: u32 = 1 << 3;
pub const EFADV_DEVICE_ATTR_CAPS_COMP_CNTR: u32 = 1 << 6;
pub const EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF: u64 = 1 << 0;
pub const EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM: u32 = 1 << 0;
pub const EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM: u32 = 1 << 1;
pub const EFADV_MEMORY_LOCATION_VA: u8 = 0;

pub const IBV_COMP_CNTR_TYPE_WRS: c_int = 0;

pub const EFADV_QP_DRIVER_TYPE_SRD: u32 = 0;
pub const EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV: u16 = 1 << 0;
pub const EFADV_QP_FLAGS_INLINE_WRITE: u16 = 1 << 1;
/// In [`efadv_wq_attr`](crate::efadv_wq_attr): request ids of the queue have 64 bits.
pub const EFADV_WQ_CAPS_64_BIT_REQ_ID: u16 = 1 << 0;
pub const EFADV_SQ_DEPTH_ATTR_INLINE_WRITE: u32 = 1 << 0;
pub const EFADV_WC_EX_WITH_SGID: u64 = 1 << 0;
pub const EFADV_WC_EX_WITH_IS_UNSOLICITED: u64 = 1 << 1;
pub const EFADV_WR_EX_WITH_PROCESSING_HINTS: u64 = 1 << 0;
