//! Sizes and offsets of the ABI: the numbers of x86-64, corrected for the length of the C library's
//! mutex, and compared with the installed headers.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use crate::abi::*;

/// The difference in bytes between `pthread_mutex_t` here and on x86-64, where it has 40. Fields
/// after a mutex are shifted by the same number.
const M: usize = if cfg!(target_arch = "aarch64") { 8 } else { 0 };

/// A size or an offset.
struct LayoutFact {
    /// The C expression for it.
    c: String,
    /// The value here.
    found: usize,
    /// The value in the C header.
    expected: usize,
    /// Whether the headers of rdma-core 44 (Debian 12) have it.
    in_44: bool,
}

/// Facts about a structure: its size and offsets. Headers of rdma-core 44 do not have the fields
/// after `newer`, nor a size that is marked as `newer`. `field as "path"` specifies a field's name
/// in C where it differs.
macro_rules! layout {
    ($facts:ident, $type:ident [newer $size:expr] $($fields:tt)*) => {
        $facts.push(size_of_fact!($type, $size, false));
        offsets!($facts, $type, $($fields)*);
    };
    ($facts:ident, $type:ident [$size:expr] $($fields:tt)*) => {
        $facts.push(size_of_fact!($type, $size, true));
        offsets!($facts, $type, $($fields)*);
    };
}

macro_rules! size_of_fact {
    ($type:ident, $size:expr, $in_44:literal) => {
        LayoutFact {
            c: concat!("sizeof(struct ", stringify!($type), ")").to_owned(),
            found: size_of::<$type>(),
            expected: $size,
            in_44: $in_44,
        }
    };
}

macro_rules! offsets {
    ($facts:ident, $type:ident, $({ $($old:tt)* })? $(newer { $($new:tt)* })?) => {
        $(offset_list!($facts, $type, true, $($old)*);)?
        $(offset_list!($facts, $type, false, $($new)*);)?
    };
}

macro_rules! offset_list {
    ($facts:ident, $type:ident, $in_44:literal,
     $($field:ident $(. $inner:ident)* $(as $c:literal)? : $offset:expr),* $(,)?) => {
        $({
            let path = [stringify!($field) $(, stringify!($inner))*].join(".");
            $(let path = { drop(path); $c };)?
            $facts.push(LayoutFact {
                c: format!("offsetof(struct {}, {path})", stringify!($type)),
                found: core::mem::offset_of!($type, $field $(. $inner)*),
                expected: $offset,
                in_44: $in_44,
            });
        })*
    };
}

fn facts() -> Vec<LayoutFact> {
    let mut facts = Vec::new();
    layout!(facts, ibv_device [664] { node_type: 16, transport_type: 20, name: 24, dev_name: 88,
        dev_path: 152, ibdev_path: 408 });
    layout!(facts, ibv_context [328 + M] { device: 0, ops: 8, ops.alloc_mw: 64, ops.poll_cq: 96,
        ops.req_notify_cq: 104, ops.post_srq_recv: 168, ops.post_send: 208, ops.post_recv: 216,
        cmd_fd: 264, async_fd: 268, num_comp_vectors: 272, mutex: 280, abi_compat: 320 + M });
    layout!(facts, ibv_gid_entry [32] { gid_index: 16, port_num: 20, gid_type: 24, ndev_ifindex:
        28 });
    layout!(facts, ibv_device_attr [232] { node_guid: 64, max_mr_size: 80, vendor_id: 96, max_qp:
        108, max_ah: 200, max_pkeys: 224, phys_port_cnt: 227 });
    layout!(facts, ibv_device_attr_ex [400] { comp_mask: 232, tm_caps: 348,
        tm_caps.max_sge as "tm_caps.max_sge": 364, phys_port_cnt_ex: 396 });
    layout!(facts, ibv_srq [128 + M] { srq_context: 8, pd: 16, handle: 24, mutex: 32,
        events_completed: 120 + M });
    layout!(facts, ibv_srq_init_attr [24] { attr: 8 });
    layout!(facts, ibv_srq_init_attr_ex [64] { attr: 8, comp_mask: 20, srq_type: 24, pd: 32, cq: 48,
        tm_cap: 56 });
    layout!(facts, ibv_ops_wr [72] { next: 8, opcode: 16, flags: 20, tm.unexpected_cnt: 24,
        tm.handle: 28, tm.add.recv_wr_id: 32, tm.add.sg_list: 40, tm.add.num_sge: 48, tm.add.tag:
        56, tm.add.mask: 64 });
    layout!(facts, ibv_wc_tm_info [16] { tag: 0, priv_ as "priv": 8 });
    layout!(facts, ibv_port_attr [newer 56] { max_msg_sz: 20, pkey_tbl_len: 32, lmc: 38,
        active_width: 43, link_layer: 46, flags: 47, port_cap_flags2: 48 } newer {
        active_speed_ex: 52 });
    layout!(facts, ibv_global_route [24] { sgid_index: 20 });
    layout!(facts, ibv_grh [40] { sgid: 8, dgid: 24 });
    layout!(facts, ibv_ah_attr [32] { dlid: 24, is_global: 29, port_num: 30 });
    layout!(facts, ibv_qp_cap [20] { max_inline_data: 16 });
    layout!(facts, ibv_qp_init_attr [64] { srq: 24, cap: 32, qp_type: 52, sq_sig_all: 56 });
    layout!(facts, ibv_qp_init_attr_ex [136] { srq: 24, cap: 32, qp_type: 52, sq_sig_all: 56,
        comp_mask: 60, pd: 64, create_flags: 80, rwq_ind_tbl: 88, source_qpn: 120,
        send_ops_flags: 128 });
    layout!(facts, ibv_qp_attr [144] { qkey: 16, sq_psn: 24, cap: 36, ah_attr: 56, pkey_index:
        120, port_num: 129, rnr_retry: 132, rate_limit: 136 });
    layout!(facts, ibv_cq_init_attr_ex [56] { cq_context: 8, channel: 16, comp_vector: 24,
        wc_flags: 32, comp_mask: 40, flags: 44, parent_domain: 48 });
    layout!(facts, ibv_parent_domain_init_attr [48] { td: 8, comp_mask: 16, pd_context: 40 });
    layout!(facts, ibv_pd [16] { handle: 8 });
    layout!(facts, ibv_td[8]);
    layout!(facts, ibv_mr [48] { pd: 8, addr: 16, length: 24, handle: 32, lkey: 36, rkey: 40 });
    layout!(facts, ibv_mr_init_attr [newer 72] newer { access: 8, comp_mask: 16, addr: 32, fd: 40,
        buf: 64 });
    layout!(facts, ibv_ah [24] { pd: 8, handle: 16 });
    layout!(facts, ibv_comp_channel [16] { fd: 8, refcnt: 12 });
    layout!(facts, ibv_cq [128 + M] { channel: 8, cq_context: 16, handle: 24, cqe: 28, mutex: 32,
        cond: 72 + M, async_events_completed: 124 + M });
    layout!(facts, ibv_cq_ex [288 + M] { base.cqe as "cqe": 28, comp_mask: 128 + M, status: 132 + M,
        wr_id: 136 + M, start_poll: 144 + M, next_poll: 152 + M, end_poll: 160 + M, read_opcode: 168
        + M, read_vendor_err: 176 + M, read_byte_len: 184 + M, read_imm_data: 192 + M, read_qp_num:
        200 + M, read_src_qp: 208 + M, read_wc_flags: 216 + M, read_slid: 224 + M, read_sl: 232 + M,
        read_dlid_path_bits: 240 + M, read_tm_info: 272 + M });
    layout!(facts, ibv_qp [160 + M] { pd: 16, recv_cq: 32, qp_num: 52, state: 56, qp_type: 60,
        events_completed: 152 + M });
    layout!(facts, ibv_qp_ex [newer 360 + M] { wr_id: 168 + M, wr_flags: 176 + M,
        wr_atomic_cmp_swp: 184 + M, wr_atomic_fetch_add: 192 + M, wr_rdma_read: 216
        + M, wr_rdma_write: 224 + M, wr_rdma_write_imm: 232 + M, wr_send: 240 + M, wr_send_imm: 248
        + M, wr_set_ud_addr: 272 + M, wr_set_inline_data: 288 + M, wr_set_inline_data_list: 296 + M,
        wr_set_sge: 304 + M, wr_set_sge_list: 312 + M, wr_start: 320 + M, wr_complete: 328 + M,
        wr_abort: 336 + M });
    layout!(facts, ibv_async_event [16] { event_type: 8 });
    layout!(facts, ibv_sge [16] { length: 8, lkey: 12 });
    layout!(facts, ibv_data_buf [16] { length: 8 });
    layout!(facts, ibv_send_wr [128] { sg_list: 16, num_sge: 24, opcode: 28, send_flags: 32,
        imm_data: 36, ud.ah as "wr.ud.ah": 40, ud.remote_qpn as "wr.ud.remote_qpn": 48,
        ud.remote_qkey as "wr.ud.remote_qkey": 52 });
    layout!(facts, ibv_recv_wr [32] { sg_list: 16, num_sge: 24 });
    layout!(facts, ibv_wc [48] { status: 8, opcode: 12, vendor_err: 16, byte_len: 20, imm_data:
        24, qp_num: 28, src_qp: 32, wc_flags: 36, slid: 42 });
    layout!(facts, ibv_comp_cntr [newer 16] {} newer { context: 0, handle: 8 });
    layout!(facts, ibv_comp_cntr_caps [newer 16] {} newer { max_value: 0, max_counters: 8, supported_qp_attach_ops: 12 });
    layout!(facts, ibv_comp_cntr_init_attr [newer 12] {} newer { comp_mask: 0, flags: 8 });
    layout!(facts, ibv_qp_attach_comp_cntr_attr [newer 8] {} newer { comp_mask: 0, op_mask: 4 });
    layout!(facts, efadv_comp_cntr_init_attr [newer 80] {} newer { flags: 8, comp_cntr_ext_mem: 16, err_cntr_ext_mem: 48 });
    layout!(facts, efadv_device_attr [32] { max_sq_sge: 16, inline_buf_size: 20, device_caps: 24,
        max_rdma_size: 28 } newer { inline_buf_size_ex: 22 });
    layout!(facts, efadv_ah_attr [16] { ahn: 8 });
    layout!(facts, efadv_sq_depth_attr [newer 24] newer { max_inline_data: 20 });
    layout!(facts, efadv_rq_depth_attr [newer 16] newer { max_recv_sge: 8 });
    layout!(facts, efadv_qp_init_attr [newer 24] { driver_qp_type: 8 } newer { flags: 12, sl: 14,
        wr_flags: 16 });
    layout!(facts, efadv_wq_attr [newer 40] newer { buffer: 8, entry_size: 16, num_entries: 20,
        doorbell: 24, max_batch: 32, caps: 36 });
    layout!(facts, efadv_cq_init_attr [newer 56] { wc_flags: 8 } newer { flags: 16,
        ext_mem_dmabuf: 24 });
    layout!(facts, efadv_cq_attr [newer 32] newer { doorbell: 24 });
    layout!(facts, efadv_cq [newer 24] { wc_read_sgid: 8 } newer { wc_is_unsolicited: 16 });
    layout!(facts, efadv_qp [newer 16] newer { wr_set_processing_hints: 8 });
    layout!(facts, efadv_mr_attr [newer 16] newer { ic_id_validity: 8, rdma_recv_ic_id: 14 });
    facts
}

/// Structures of `driver.h`, which no package installs: the layouts of rdma-core 33 to 65.
fn driver_facts() -> Vec<LayoutFact> {
    let mut facts = Vec::new();
    layout!(facts, verbs_device [712] { device: 0, ops: 664, refcount: 672, entry: 680, sysfs: 696,
        core_support: 704 });
    layout!(facts, verbs_device_ops [72] { name: 0 });
    layout!(facts, verbs_mr [56] { ibv_mr: 0, mr_type: 48, access: 52 });
    layout!(facts, ibv_buf [newer 32] newer { addr: 0, size: 8, pd: 16, dmabuf_fd: 24 });
    layout!(facts, verbs_qp [newer 376 + M] newer { qp_ex: 0, comp_mask: 360 + M, xrcd: 368 + M });
    facts
}

/// Slots of `verbs_context`. Clients compute their positions from the end of the structure, because
/// it grows at its start. The context with its mutex is at the end.
fn slots() -> Vec<LayoutFact> {
    macro_rules! slot {
        ($field:ident, $expected:literal) => {
            LayoutFact {
                c: concat!(
                    "sizeof(struct verbs_context) - offsetof(struct verbs_context, ",
                    stringify!($field),
                    ")"
                )
                .to_owned(),
                found: size_of::<verbs_context>() - core::mem::offset_of!(verbs_context, $field),
                expected: $expected + M,
                in_44: true,
            }
        };
    }
    vec![
        slot!(query_port, 648),
        slot!(alloc_parent_domain, 536),
        slot!(dealloc_td, 528),
        slot!(alloc_td, 520),
        slot!(post_srq_ops, 504),
        slot!(create_cq_ex, 448),
        slot!(query_device_ex, 432),
        slot!(create_qp_ex, 384),
        slot!(create_srq_ex, 368),
        slot!(sz, 336),
        slot!(context, 328),
    ]
}

#[test]
fn structures_are_laid_out_as_in_c() {
    for fact in facts().iter().chain(&driver_facts()).chain(&slots()) {
        assert_eq!(fact.found, fact.expected, "{}", fact.c);
    }
    assert_eq!(size_of::<verbs_context>(), 696 + M);
    assert_eq!(COMPAT_PORT_ATTR_SIZE, 48);
}

/// A C compiler confirms the facts for the installed headers, which may be older or newer.
#[test]
fn installed_headers_agree() {
    if !Path::new("/usr/include/infiniband/efadv.h").exists() {
        efa_testing::skip("/usr/include/infiniband/efadv.h is not installed (libibverbs-dev)");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("layout.c");
    let program = directory.path().join("layout");
    let mut c = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n\
         #include <infiniband/efadv.h>\nint main(void) {\n",
    );
    let known: Vec<_> = facts()
        .into_iter()
        .chain(slots())
        .filter(|fact| fact.in_44)
        .collect();
    for fact in &known {
        writeln!(c, "printf(\"%zu\\n\", (size_t)({}));", fact.c).unwrap();
    }
    c += "return 0; }\n";
    std::fs::write(&source, c).unwrap();
    let compiled = Command::new("cc")
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .output();
    let compiled = match compiled {
        Ok(compiled) => compiled,
        Err(error) => {
            efa_testing::skip(format_args!("cannot run the C compiler cc: {error}"));
            return;
        }
    };
    let messages = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{messages}");
    let output = Command::new(&program).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let values: Vec<usize> = output.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(values.len(), known.len());
    for (fact, value) in known.iter().zip(values) {
        assert_eq!(value, fact.expected, "{}", fact.c);
    }
}
