//! The hand-written layouts of `libfabric::ffi` against the installed C headers.
//!
//! Needs a C compiler and libfabric's headers (Debian: gcc, libfabric-dev); without them the test prints a
//! message and compares nothing.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::process::Command;

use efa_play::libfabric::ffi;

/// One line of the comparison: the C expression, and its value here.
struct Fact(String, usize);

/// Offsets of members; a Rust member may have another name than the C one.
macro_rules! offsets {
    ($facts:ident; $($type:ident { $($member:ident $(as $c:literal)?),* $(,)? })*) => {
        $($($facts.push(Fact(
            format!("offsetof(struct {}, {})", stringify!($type), c_name!($member $($c)?)),
            offset_of!(ffi::$type, $member),
        ));)*)*
    };
}
macro_rules! c_name {
    ($member:ident $c:literal) => {
        $c
    };
    ($member:ident) => {
        stringify!($member)
    };
}
macro_rules! values {
    ($facts:ident; $($name:ident),* $(,)?) => {
        $($facts.push(Fact(
            format!("(unsigned long long)({})", stringify!($name)),
            ffi::$name as usize,
        ));)*
    };
}

fn facts() -> Vec<Fact> {
    let mut facts = Vec::new();
    offsets! { facts;
        fi_info { next, caps, mode, addr_format, src_addrlen, dest_addrlen, src_addr, dest_addr,
                  handle, tx_attr, rx_attr, ep_attr, domain_attr, fabric_attr, nic }
        fi_tx_attr { caps, mode, op_flags, msg_order, comp_order, inject_size, size, iov_limit,
                     rma_iov_limit }
        fi_rx_attr { caps, mode, op_flags, msg_order, comp_order, total_buffered_recv, size,
                     iov_limit }
        fi_ep_attr { type_ as "type", protocol, protocol_version, max_msg_size, msg_prefix_size,
                     max_order_raw_size, max_order_war_size, max_order_waw_size, mem_tag_format,
                     tx_ctx_cnt, rx_ctx_cnt, auth_key_size, auth_key }
        fi_domain_attr { domain, name, threading, data_progress, resource_mgmt, av_type, mr_mode,
                         mr_key_size, cq_data_size, cq_cnt, ep_cnt, tx_ctx_cnt, rx_ctx_cnt,
                         max_ep_tx_ctx, max_ep_rx_ctx, max_ep_stx_ctx, max_ep_srx_ctx, cntr_cnt,
                         mr_iov_limit, caps, mode }
        fi_fabric_attr { fabric, name, prov_name, prov_version, api_version }
        fi_av_attr { type_ as "type", rx_ctx_bits, count, ep_per_node, name, map_addr, flags }
        fi_cq_attr { size, flags, format, wait_obj, signaling_vector, wait_cond, wait_set }
        fi_eq_attr { size, flags, wait_obj, signaling_vector, wait_set }
        fi_cq_tagged_entry { op_context, flags, len, buf, data, tag }
        fi_cq_err_entry { op_context, flags, len, buf, data, tag, olen, err, prov_errno, err_data,
                          err_data_size }
        fi_eq_err_entry { fid, context, data, err, prov_errno, err_data, err_data_size }
        fi_msg { msg_iov, desc, iov_count, addr, context, data }
        fi_msg_tagged { msg_iov, desc, iov_count, addr, tag, ignore, context, data }
        fi_rma_iov { addr, len, key }
        fi_msg_rma { msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, context, data }
        fi_ioc { addr, count }
        fi_rma_ioc { addr, count, key }
        fi_msg_atomic { msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, datatype, op,
                        context, data }
        iovec { iov_base, iov_len }
        fid { fclass, context, ops }
        fid_fabric { ops, api_version }
        fid_domain { ops, mr }
        fid_av { ops }
        fid_cq { ops }
        fid_eq { ops }
        fid_mr { mem_desc, key }
        fid_ep { ops, cm, msg, rma, tagged, atomic }
        fi_ops { size, close, bind, control }
        fi_ops_fabric { size, domain, eq_open }
        fi_ops_domain { size, av_open, cq_open, endpoint }
        fi_ops_mr { size, reg }
        fi_ops_av { size, insert, remove }
        fi_ops_cq { size, read, readfrom, readerr, strerror }
        fi_ops_eq { size, read, readerr, strerror }
        fi_ops_ep { size, cancel }
        fi_ops_cm { size, getname }
        fi_ops_msg { size, recv, send, sendmsg, inject, senddata, injectdata }
        fi_ops_tagged { size, recv, send, sendmsg, inject, senddata, injectdata }
        fi_ops_rma { size, read, write, writemsg }
        fi_ops_atomic { size, write, writemsg, readwrite, compwrite }
    }
    values! { facts;
        FI_MSG, FI_RMA, FI_TAGGED, FI_ATOMIC, FI_READ, FI_WRITE, FI_RECV, FI_SEND, FI_REMOTE_READ,
        FI_REMOTE_WRITE, FI_REMOTE_CQ_DATA, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_SOURCE,
        FI_DIRECTED_RECV, FI_CONTEXT, FI_CONTEXT2, FI_MSG_PREFIX, FI_MR_LOCAL, FI_MR_VIRT_ADDR, FI_MR_ALLOCATED,
        FI_MR_PROV_KEY, FI_EP_RDM, FI_AV_TABLE, FI_CQ_FORMAT_TAGGED, FI_ENABLE, FI_ADDR_EFA,
        FI_EAGAIN, FI_EAVAIL, FI_ETRUNC, FI_ADDR_UNSPEC, FI_TYPE_VERSION,
    }
    facts
}

#[test]
fn layouts_agree_with_the_installed_headers() {
    let facts = facts();
    let mut program = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <sys/uio.h>\n#include <rdma/fabric.h>\n\
         #include <rdma/fi_domain.h>\n#include <rdma/fi_endpoint.h>\n#include <rdma/fi_eq.h>\n\
         #include <rdma/fi_cm.h>\n#include <rdma/fi_tagged.h>\n#include <rdma/fi_rma.h>\n\
         #include <rdma/fi_atomic.h>\nint main(void) {\n",
    );
    for Fact(expression, _) in &facts {
        writeln!(
            program,
            "    printf(\"%llu\\n\", (unsigned long long)({expression}));"
        )
        .unwrap();
    }
    program.push_str("    return 0;\n}\n");

    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("layout.c");
    let binary = directory.path().join("layout");
    std::fs::write(&source, program).unwrap();
    let compiled = Command::new("cc")
        .arg("-o")
        .arg(&binary)
        .arg(&source)
        .output();
    match compiled {
        Err(error) => {
            efa_testing::skip(format_args!(
                "layouts not compared, no C compiler `cc`: {error}"
            ));
            return;
        }
        Ok(output) if !output.status.success() => {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            if text.contains("rdma/fabric.h: No such file")
                || text.contains("'rdma/fabric.h' file not found")
            {
                efa_testing::skip("layouts not compared, libfabric's headers are not installed");
                return;
            }
            panic!("the comparison program does not compile:\n{text}");
        }
        Ok(_) => {}
    }
    let output = Command::new(&binary).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let values: Vec<&str> = text.lines().collect();
    assert_eq!(values.len(), facts.len());
    let differences: Vec<String> = facts
        .iter()
        .zip(values)
        .filter(|(Fact(_, ours), theirs)| ours.to_string() != **theirs)
        .map(|(Fact(expression, ours), theirs)| format!("{expression}: {theirs}, here {ours}"))
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
