//! Completion counters (rdma-core 65).

use core::ffi::c_int;

use super::ibv_context;

#[repr(C)]
pub(crate) struct ibv_comp_cntr {
    pub(crate) context: *mut ibv_context,
    pub(crate) handle: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_comp_cntr_caps {
    pub(crate) max_value: u64,
    pub(crate) max_counters: u32,
    pub(crate) supported_qp_attach_ops: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_comp_cntr_init_attr {
    pub(crate) comp_mask: u32,
    pub(crate) r#type: c_int,
    pub(crate) flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_qp_attach_comp_cntr_attr {
    pub(crate) comp_mask: u32,
    pub(crate) op_mask: u32,
}

/// `ptr` is an address here: the library checks it before it becomes a pointer.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct efadv_memory_location {
    pub(crate) ptr: usize,
    pub(crate) dmabuf_offset: u64,
    pub(crate) dmabuf_fd: i32,
    pub(crate) dmabuf_reserved: u32,
    pub(crate) r#type: u8,
    pub(crate) reserved: [u8; 7],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct efadv_comp_cntr_init_attr {
    pub(crate) comp_mask: u64,
    pub(crate) flags: u32,
    pub(crate) reserved: u32,
    pub(crate) comp_cntr_ext_mem: efadv_memory_location,
    pub(crate) err_cntr_ext_mem: efadv_memory_location,
}
