//! The private structures of rdma-core's `driver.h` around public ones. Its libraries reach from
//! the pointer to a public structure to the members behind it, so every object that programs get
//! has these. The layouts are the same in rdma-core 33 to 65, except that [`verbs_qp`] grows with
//! [`ibv_qp_ex`].

use core::ffi::{c_char, c_int, c_void};

use crate::{ibv_device, ibv_mr, ibv_qp_ex};

/// The first field of rdma-core's table of a driver's functions; all others are null here.
#[repr(C)]
pub struct verbs_device_ops {
    pub name: *const c_char,
    /// `match_min_abi_version` to `uninit_device`.
    pub driver: [*const c_void; 8],
}

#[repr(C)]
pub struct verbs_device {
    pub device: ibv_device,
    /// Libraries of other vendors identify their devices by the address of their own table.
    pub ops: *const verbs_device_ops,
    pub refcount: c_int,
    /// A list node: next, previous.
    pub entry: [*const c_void; 2],
    pub sysfs: *const c_void,
    pub core_support: u64,
}

/// `mr_type` of ordinary memory.
pub const IBV_MR_TYPE_MR: c_int = 0;
/// See [`IBV_MR_TYPE_MR`].
pub const IBV_MR_TYPE_DMABUF_MR: c_int = 3;

#[repr(C)]
pub struct verbs_mr {
    pub ibv_mr: ibv_mr,
    pub mr_type: c_int,
    /// The access flags that the program gave.
    pub access: c_int,
}

/// Bit of [`verbs_qp::comp_mask`]: the queue pair has builders.
pub const VERBS_QP_EX: u32 = 1 << 1;

#[repr(C)]
pub struct verbs_qp {
    pub qp_ex: ibv_qp_ex,
    pub comp_mask: u32,
    pub xrcd: *mut c_void,
}
