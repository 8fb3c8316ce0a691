//! Sizes and offsets of the x86-64 ABI.

use core::mem::{offset_of, size_of};

use super::*;

macro_rules! layout {
    ($type:ident, $size:expr $(, $field:ident $(. $inner:ident)* : $offset:expr)* $(,)?) => {
        assert_eq!(size_of::<$type>(), $size, concat!("size of ", stringify!($type)));
        $(assert_eq!(
            offset_of!($type, $field $(. $inner)*),
            $offset,
            concat!(stringify!($type), ".", stringify!($field $(. $inner)*)),
        );)*
    };
}

#[test]
fn devices_and_contexts() {
    layout!(ibv_device, 664, node_type: 16, transport_type: 20, name: 24, dev_name: 88,
        dev_path: 152, ibdev_path: 408);
    layout!(ibv_context, 328, device: 0, ops: 8, ops.alloc_mw: 64, ops.poll_cq: 96,
        cmd_fd: 264, async_fd: 268, num_comp_vectors: 272, mutex: 280, abi_compat: 320);
    layout!(ibv_context_ops, 256, poll_cq: 88, req_notify_cq: 96, post_srq_recv: 160,
        post_send: 200, post_recv: 208);
}

/// Clients compute a slot's place from the end of the structure.
#[test]
fn slots_of_verbs_context_by_distance_from_the_end() {
    assert_eq!(size_of::<verbs_context>(), 696);
    let from_end = |offset: usize| size_of::<verbs_context>() - offset;
    assert_eq!(from_end(offset_of!(verbs_context, query_port)), 648);
    assert_eq!(
        from_end(offset_of!(verbs_context, alloc_parent_domain)),
        536
    );
    assert_eq!(from_end(offset_of!(verbs_context, alloc_td)), 520);
    assert_eq!(from_end(offset_of!(verbs_context, create_cq_ex)), 448);
    assert_eq!(from_end(offset_of!(verbs_context, query_device_ex)), 432);
    assert_eq!(from_end(offset_of!(verbs_context, create_qp_ex)), 384);
    assert_eq!(from_end(offset_of!(verbs_context, sz)), 336);
    assert_eq!(from_end(offset_of!(verbs_context, context)), 328);
}

#[test]
fn attributes() {
    layout!(ibv_gid_entry, 32, gid_index: 16, ndev_ifindex: 28);
    layout!(ibv_device_attr, 232, node_guid: 64, vendor_id: 96, max_qp: 108, max_pkeys: 224,
        phys_port_cnt: 227);
    layout!(ibv_device_attr_ex, 400, comp_mask: 232, phys_port_cnt_ex: 396);
    layout!(ibv_port_attr, 56, max_msg_sz: 20, pkey_tbl_len: 32, lmc: 38, link_layer: 46,
        flags: 47, port_cap_flags2: 48, active_speed_ex: 52);
    assert_eq!(COMPAT_PORT_ATTR_SIZE, 48);
    layout!(ibv_global_route, 24);
    layout!(ibv_grh, 40, sgid: 8, dgid: 24);
    layout!(ibv_ah_attr, 32, dlid: 24, port_num: 30);
    layout!(ibv_qp_cap, 20);
    layout!(ibv_qp_init_attr, 64, cap: 32, qp_type: 52, sq_sig_all: 56);
    layout!(ibv_qp_init_attr_ex, 136, comp_mask: 60, pd: 64, send_ops_flags: 128);
    layout!(ibv_qp_attr, 144, qkey: 16, cap: 36, ah_attr: 56, pkey_index: 120, port_num: 129,
        rnr_retry: 132, rate_limit: 136);
    layout!(ibv_cq_init_attr_ex, 56, channel: 16, wc_flags: 32, parent_domain: 48);
    layout!(ibv_parent_domain_init_attr, 48);
    layout!(ibv_ece, 12);
}

#[test]
fn objects() {
    layout!(ibv_pd, 16, handle: 8);
    layout!(ibv_mr, 48, addr: 16, length: 24, lkey: 36, rkey: 40);
    layout!(ibv_ah, 24, handle: 16);
    layout!(ibv_comp_channel, 16, fd: 8, refcnt: 12);
    layout!(ibv_cq, 128, channel: 8, cq_context: 16, cqe: 28);
    layout!(ibv_cq_ex, 288, comp_mask: 128, status: 132, wr_id: 136, start_poll: 144,
        next_poll: 152, end_poll: 160, read_opcode: 168, read_vendor_err: 176,
        read_byte_len: 184, read_imm_data: 192, read_qp_num: 200, read_src_qp: 208,
        read_wc_flags: 216, read_slid: 224);
    layout!(ibv_qp, 160, qp_num: 52, state: 56, qp_type: 60);
    layout!(ibv_qp_ex, 360, wr_id: 168, wr_flags: 176, wr_rdma_read: 216, wr_rdma_write: 224,
        wr_rdma_write_imm: 232, wr_send: 240, wr_send_imm: 248, wr_set_ud_addr: 272,
        wr_set_inline_data: 288, wr_set_inline_data_list: 296, wr_set_sge: 304,
        wr_set_sge_list: 312, wr_start: 320, wr_complete: 328, wr_abort: 336);
    layout!(ibv_async_event, 16, event_type: 8);
}

#[test]
fn requests_and_completions() {
    layout!(ibv_sge, 16, lkey: 12);
    layout!(ibv_send_wr, 128, num_sge: 24, opcode: 28, send_flags: 32, imm_data: 36, ud: 40,
        ud.remote_qpn: 48, ud.remote_qkey: 52);
    layout!(ibv_recv_wr, 32, sg_list: 16, num_sge: 24);
    layout!(ibv_wc, 48, status: 8, vendor_err: 16, imm_data: 24, wc_flags: 36, slid: 42);
}

#[test]
fn efadv_structures() {
    layout!(efadv_device_attr, 32, inline_buf_size: 20, device_caps: 24, max_rdma_size: 28);
    layout!(efadv_ah_attr, 16, ahn: 8);
    layout!(efadv_sq_depth_attr, 24);
    layout!(efadv_rq_depth_attr, 16);
    layout!(efadv_qp_init_attr, 24, driver_qp_type: 8, flags: 12, sl: 14, wr_flags: 16);
    layout!(efadv_wq_attr, 40, buffer: 8, entry_size: 16, num_entries: 20, doorbell: 24,
        max_batch: 32, caps: 36);
    layout!(efadv_cq_init_attr, 56, wc_flags: 8, flags: 16, ext_mem_dmabuf: 24);
    layout!(efadv_cq_attr, 32, doorbell: 24);
    layout!(efadv_cq, 24, wc_read_sgid: 8, wc_is_unsolicited: 16);
    layout!(efadv_qp, 16);
    layout!(efadv_mr_attr, 16);
}
