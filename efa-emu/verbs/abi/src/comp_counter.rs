//! Completion counters (rdma-core 65).

use core::ffi::c_int;

use crate::ibv_context;

#[repr(C)]
pub struct ibv_comp_cntr {
    pub context: *mut ibv_context,
    pub handle: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_comp_cntr_caps {
    pub max_value: u64,
    pub max_counters: u32,
    pub supported_qp_attach_ops: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_comp_cntr_init_attr {
    pub comp_mask: u32,
    pub r#type: c_int,
    pub flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_qp_attach_comp_cntr_attr {
    pub comp_mask: u32,
    pub op_mask: u32,
}

/// `ptr` is an address here: the library checks it before it becomes a pointer.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_memory_location {
    pub ptr: usize,
    pub dmabuf_offset: u64,
    pub dmabuf_fd: i32,
    pub dmabuf_reserved: u32,
    pub r#type: u8,
    pub reserved: [u8; 7],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_comp_cntr_init_attr {
    pub comp_mask: u64,
    pub flags: u32,
    pub reserved: u32,
    pub comp_cntr_ext_mem: efadv_memory_location,
    pub err_cntr_ext_mem: efadv_memory_location,
}
