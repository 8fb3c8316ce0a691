//! The structures and constants of libefa, as `infiniband/efadv.h` declares them (symbol versions
//! EFA_1.1 and EFA_1.2).
//!
//! Every call has the size of the caller's structure as an argument, so these short forms stay
//! valid with every newer libefa.

use efa_verbs_sys::{ibv_gid, ibv_wc_opcode};
use std::ffi::c_int;

/// `driver_qp_type` of an SRD queue pair.
pub const QP_DRIVER_TYPE_SRD: u32 = 0;
/// `wc_flags` bit: report the GID of senders without an address handle.
pub const WC_EX_WITH_SGID: u64 = 1 << 0;
/// `wc_flags` bit: report whether a write with immediate data consumed a receive.
pub const WC_EX_WITH_IS_UNSOLICITED: u64 = 1 << 1;
/// `flags` bit of a queue pair: peers' writes with immediate data consume no receive.
pub const QP_FLAGS_UNSOLICITED_WRITE_RECV: u16 = 1 << 0;
/// Work requests of RDMA writes can include their data. Entries of the send queue then have 128
/// bytes.
pub const QP_FLAGS_INLINE_WRITE: u16 = 1 << 1;
/// Work completion opcode of a peer's RDMA write with immediate.
pub const WC_RECV_RDMA_WITH_IMM: ibv_wc_opcode::Type = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;

/// `struct efadv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "field names are those of the C structure")]
pub struct DeviceAttr {
    pub comp_mask: u64,
    pub max_sq_wr: u32,
    pub max_rq_wr: u32,
    pub max_sq_sge: u16,
    pub max_rq_sge: u16,
    pub inline_buf_size: u16,
    /// The inline size of entries of 128 bytes. 0 if libefa does not have the member.
    pub inline_buf_size_ex: u16,
    pub device_caps: u32,
    pub max_rdma_size: u32,
}

/// `struct efadv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "field names are those of the C structure")]
pub struct AhAttr {
    pub comp_mask: u64,
    pub ahn: u16,
    pub reserved: [u8; 6],
}

/// `struct efadv_qp_init_attr` of EFA_1.1.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "field names are those of the C structure")]
pub struct QpInitAttr {
    pub comp_mask: u64,
    pub driver_qp_type: u32,
    pub flags: u16,
    pub sl: u8,
    pub reserved: [u8; 1],
}

/// `struct efadv_cq_init_attr` of EFA_1.2.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "field names are those of the C structure")]
pub struct CqInitAttr {
    pub comp_mask: u64,
    pub wc_flags: u64,
}

/// The first members of `struct efadv_cq`.
#[repr(C)]
#[derive(Debug)]
#[expect(missing_docs, reason = "field names are those of the C structure")]
pub struct Cq {
    pub comp_mask: u64,
    pub wc_read_sgid: Option<unsafe extern "C" fn(cq: *mut Cq, sgid: *mut ibv_gid) -> c_int>,
    /// Set only if the queue was created with [`WC_EX_WITH_IS_UNSOLICITED`].
    pub wc_is_unsolicited: Option<unsafe extern "C" fn(cq: *mut Cq) -> bool>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn structures_have_the_layout_of_efadv_h() {
        assert_eq!(size_of::<DeviceAttr>(), 32);
        assert_eq!(offset_of!(DeviceAttr, inline_buf_size_ex), 22);
        assert_eq!(offset_of!(DeviceAttr, device_caps), 24);
        assert_eq!(size_of::<AhAttr>(), 16);
        assert_eq!(size_of::<QpInitAttr>(), 16);
        assert_eq!(size_of::<CqInitAttr>(), 16);
        assert_eq!(offset_of!(Cq, wc_read_sgid), 8);
        assert_eq!(offset_of!(Cq, wc_is_unsolicited), 16);
    }
}
