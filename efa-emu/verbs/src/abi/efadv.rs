//! The structures of `<infiniband/efadv.h>`. Those that clients pass in have grown over time; the
//! caller's size travels with every call.

use core::ffi::c_int;

use super::ibv_gid;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct efadv_device_attr {
    pub(crate) comp_mask: u64,
    pub(crate) max_sq_wr: u32,
    pub(crate) max_rq_wr: u32,
    pub(crate) max_sq_sge: u16,
    pub(crate) max_rq_sge: u16,
    pub(crate) inline_buf_size: u16,
    pub(crate) inline_buf_size_ex: u16,
    pub(crate) device_caps: u32,
    pub(crate) max_rdma_size: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct efadv_ah_attr {
    pub(crate) comp_mask: u64,
    pub(crate) ahn: u16,
    pub(crate) reserved: [u8; 6],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct efadv_sq_depth_attr {
    pub(crate) comp_mask: u64,
    pub(crate) flags: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_rdma_sge: u32,
    pub(crate) max_inline_data: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct efadv_rq_depth_attr {
    pub(crate) comp_mask: u64,
    pub(crate) max_recv_sge: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct efadv_qp_init_attr {
    pub(crate) comp_mask: u64,
    pub(crate) driver_qp_type: u32,
    pub(crate) flags: u16,
    pub(crate) sl: u8,
    pub(crate) reserved: u8,
    pub(crate) wr_flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct efadv_wq_attr {
    pub(crate) comp_mask: u64,
    pub(crate) buffer: *mut u8,
    pub(crate) entry_size: u32,
    pub(crate) num_entries: u32,
    pub(crate) doorbell: *mut u32,
    pub(crate) max_batch: u32,
    pub(crate) caps: u16,
    pub(crate) reserved: [u8; 2],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct efadv_cq_init_attr {
    pub(crate) comp_mask: u64,
    pub(crate) wc_flags: u64,
    pub(crate) flags: u64,
    /// Completion queue memory given by the caller, which needs a capability that no profile has.
    pub(crate) ext_mem_dmabuf: [u64; 4],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct efadv_cq_attr {
    pub(crate) comp_mask: u64,
    pub(crate) buffer: *mut u8,
    pub(crate) entry_size: u32,
    pub(crate) num_entries: u32,
    pub(crate) doorbell: *mut u32,
}

#[repr(C)]
pub(crate) struct efadv_cq {
    pub(crate) comp_mask: u64,
    pub(crate) wc_read_sgid: Option<unsafe extern "C" fn(*mut efadv_cq, *mut ibv_gid) -> c_int>,
    pub(crate) wc_is_unsolicited: Option<unsafe extern "C" fn(*mut efadv_cq) -> bool>,
}

#[repr(C)]
pub(crate) struct efadv_qp {
    pub(crate) comp_mask: u64,
    pub(crate) wr_set_processing_hints: Option<unsafe extern "C" fn(*mut efadv_qp, u32)>,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct efadv_mr_attr {
    pub(crate) comp_mask: u64,
    pub(crate) ic_id_validity: u16,
    pub(crate) recv_ic_id: u16,
    pub(crate) rdma_read_ic_id: u16,
    pub(crate) rdma_recv_ic_id: u16,
}
