//! Which function is exported under which name and version.
//!
//! A versioned symbol is a jump in front of the Rust function: the assembler's `.symver` must stand
//! in the same object file as the symbol that it names, and nobody promises that of a function and
//! the assembly beside it. The calls of the data path do not come through here (see [`crate::abi`]:
//! they go through pointers in the context, the queue pair and the completion queue).

use crate::unsupported::{no_pointer, not_supported, not_supported_nothing};
use crate::{
    address_handle, async_event, buffer, channel, comp_counter, comp_queue, context, device,
    domain, efadv, memory_region, query, queue_pair, strings, sysfs_files, unsupported,
};

/// The jump to a function of this library, the template's `{function}`.
#[cfg(all(target_arch = "x86_64", not(test)))]
macro_rules! jump {
    () => {
        "jmp {function}"
    };
}

/// As on x86-64.
#[cfg(all(target_arch = "aarch64", not(test)))]
macro_rules! jump {
    () => {
        "b {function}"
    };
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the exported symbols are written for x86-64 and arm64");

/// Defines `NAME@@VERSION` (the version that new programs link to) or `NAME@VERSION` as a jump.
#[cfg(not(test))]
macro_rules! export {
    ($name:ident, $at:literal, $version:literal, $function:path) => {
        core::arch::global_asm!(
            ".text",
            concat!(".globl __", $version, ".", stringify!($name)),
            concat!(".type __", $version, ".", stringify!($name), ", @function"),
            concat!("__", $version, ".", stringify!($name), ":"),
            jump!(),
            concat!(
                ".size __", $version, ".", stringify!($name), ", . - __", $version, ".",
                stringify!($name)
            ),
            concat!(
                ".symver __", $version, ".", stringify!($name), ", ", stringify!($name), $at,
                $version, ", remove"
            ),
            function = sym $function,
        );
    };
}

/// Test programs cannot have symbol versions.
#[cfg(test)]
macro_rules! export {
    ($name:ident, $at:literal, $version:literal, $function:path) => {
        const _: () = {
            let _function = $function;
        };
    };
}

macro_rules! exports {
    ($($version:literal { $($name:ident = $function:path),+ $(,)? })+) => {
        $($(export!($name, "@@", $version, $function);)+)+
    };
}

/// As `exports!`, for versions that only programs of that time ask for.
macro_rules! old_exports {
    ($($version:literal { $($name:ident = $function:path),+ $(,)? })+) => {
        $($(export!($name, "@", $version, $function);)+)+
    };
}

exports! {
    "IBVERBS_1.0" {
        ibv_copy_path_rec_from_kern = not_supported_nothing,
        ibv_copy_path_rec_to_kern = not_supported_nothing,
        ibv_copy_qp_attr_from_kern = not_supported_nothing,
        ibv_create_comp_channel = channel::ibv_create_comp_channel,
        ibv_destroy_comp_channel = channel::ibv_destroy_comp_channel,
        ibv_get_sysfs_path = sysfs_files::ibv_get_sysfs_path,
        ibv_rate_to_mult = strings::ibv_rate_to_mult,
        ibv_read_sysfs_file = sysfs_files::ibv_read_sysfs_file,
        mult_to_ibv_rate = strings::mult_to_ibv_rate,
    }
    "IBVERBS_1.1" {
        ibv_ack_async_event = async_event::ibv_ack_async_event,
        ibv_ack_cq_events = comp_queue::ibv_ack_cq_events,
        ibv_alloc_pd = domain::ibv_alloc_pd,
        ibv_attach_mcast = not_supported,
        ibv_close_device = context::ibv_close_device,
        ibv_copy_ah_attr_from_kern = not_supported_nothing,
        ibv_create_ah = address_handle::ibv_create_ah,
        ibv_create_ah_from_wc = address_handle::ibv_create_ah_from_wc,
        ibv_create_cq = comp_queue::ibv_create_cq,
        ibv_create_qp = queue_pair::ibv_create_qp,
        ibv_create_srq = no_pointer,
        ibv_dealloc_pd = domain::ibv_dealloc_pd,
        ibv_dereg_mr = memory_region::ibv_dereg_mr,
        ibv_destroy_ah = address_handle::ibv_destroy_ah,
        ibv_destroy_cq = comp_queue::ibv_destroy_cq,
        ibv_destroy_qp = queue_pair::ibv_destroy_qp,
        ibv_destroy_srq = not_supported,
        ibv_detach_mcast = not_supported,
        ibv_dofork_range = unsupported::success,
        ibv_dontfork_range = unsupported::success,
        ibv_event_type_str = strings::ibv_event_type_str,
        ibv_fork_init = unsupported::success,
        ibv_free_device_list = device::ibv_free_device_list,
        ibv_get_async_event = async_event::ibv_get_async_event,
        ibv_get_cq_event = channel::ibv_get_cq_event,
        ibv_get_device_guid = device::ibv_get_device_guid,
        ibv_get_device_list = device::ibv_get_device_list,
        ibv_get_device_name = device::ibv_get_device_name,
        ibv_init_ah_from_wc = address_handle::ibv_init_ah_from_wc,
        ibv_modify_qp = queue_pair::ibv_modify_qp,
        ibv_modify_srq = not_supported,
        ibv_node_type_str = strings::ibv_node_type_str,
        ibv_open_device = context::ibv_open_device,
        ibv_port_state_str = strings::ibv_port_state_str,
        ibv_query_device = query::ibv_query_device,
        ibv_query_gid = query::ibv_query_gid,
        ibv_query_pkey = query::ibv_query_pkey,
        ibv_query_port = query::ibv_query_port,
        ibv_query_qp = queue_pair::ibv_query_qp,
        ibv_query_srq = not_supported,
        ibv_rate_to_mbps = strings::ibv_rate_to_mbps,
        ibv_reg_mr = memory_region::ibv_reg_mr,
        ibv_register_driver = not_supported_nothing,
        ibv_rereg_mr = memory_region::ibv_rereg_mr,
        ibv_resize_cq = not_supported,
        ibv_resolve_eth_l2_from_gid = unsupported::minus_one,
        ibv_wc_status_str = strings::ibv_wc_status_str,
        mbps_to_ibv_rate = strings::mbps_to_ibv_rate,
    }
    "IBVERBS_1.5" { ibv_get_pkey_index = query::ibv_get_pkey_index }
    "IBVERBS_1.6" { ibv_qp_to_qp_ex = queue_pair::ibv_qp_to_qp_ex }
    "IBVERBS_1.7" { ibv_reg_mr_iova = memory_region::ibv_reg_mr_iova }
    "IBVERBS_1.8" { ibv_reg_mr_iova2 = memory_region::ibv_reg_mr_iova2 }
    "IBVERBS_1.9" { ibv_get_device_index = device::ibv_get_device_index }
    "IBVERBS_1.10" {
        ibv_import_device = no_pointer,
        ibv_import_mr = no_pointer,
        ibv_import_pd = no_pointer,
        ibv_query_ece = not_supported,
        ibv_set_ece = not_supported,
        ibv_unimport_mr = not_supported_nothing,
        ibv_unimport_pd = not_supported_nothing,
    }
    "IBVERBS_1.11" {
        _ibv_query_gid_ex = query::ibv_query_gid_ex,
        _ibv_query_gid_table = query::ibv_query_gid_table,
    }
    "IBVERBS_1.12" { ibv_reg_dmabuf_mr = memory_region::ibv_reg_dmabuf_mr }
    "IBVERBS_1.13" {
        ibv_import_dm = no_pointer,
        ibv_is_fork_initialized = device::ibv_is_fork_initialized,
        ibv_unimport_dm = not_supported_nothing,
    }
    "IBVERBS_1.14" { ibv_query_qp_data_in_order = queue_pair::ibv_query_qp_data_in_order }
    "IBVERBS_1.15" {
        ibv_alloc_dmah = no_pointer,
        ibv_dealloc_dmah = not_supported,
        ibv_reg_mr_ex = memory_region::ibv_reg_mr_ex,
    }
    "IBVERBS_1.16" {
        ibv_dm_export_dmabuf_fd = unsupported::minus_one,
        ibv_query_port_speed = query::ibv_query_port_speed,
    }
    "IBVERBS_1.17" {
        ibv_alloc_buf = buffer::ibv_alloc_buf,
        ibv_free_buf = buffer::ibv_free_buf,
        ibv_reg_buf_mr = buffer::ibv_reg_buf_mr,
    }
    "IBVERBS_1.18" {
        _ibv_query_comp_cntr_caps = comp_counter::ibv_query_comp_cntr_caps,
        ibv_create_comp_cntr = comp_counter::ibv_create_comp_cntr,
        ibv_destroy_comp_cntr = comp_counter::ibv_destroy_comp_cntr,
        ibv_export_buf_dmabuf_fd = buffer::ibv_export_buf_dmabuf_fd,
        ibv_inc_comp_cntr = comp_counter::ibv_inc_comp_cntr,
        ibv_inc_err_comp_cntr = comp_counter::ibv_inc_err_comp_cntr,
        ibv_qp_attach_comp_cntr = comp_counter::ibv_qp_attach_comp_cntr,
        ibv_read_comp_cntr = comp_counter::ibv_read_comp_cntr,
        ibv_read_err_comp_cntr = comp_counter::ibv_read_err_comp_cntr,
        ibv_set_comp_cntr = comp_counter::ibv_set_comp_cntr,
        ibv_set_err_comp_cntr = comp_counter::ibv_set_err_comp_cntr,
    }
    "EFA_EMU_1" {
        efa_emu_efadv_create_comp_cntr = comp_counter::efadv_create_comp_cntr,
        efa_emu_efadv_create_cq = efadv::efadv_create_cq,
        efa_emu_efadv_create_driver_qp = efadv::efadv_create_driver_qp,
        efa_emu_efadv_create_qp_ex = efadv::efadv_create_qp_ex,
        efa_emu_efadv_cq_from_ibv_cq_ex = efadv::efadv_cq_from_ibv_cq_ex,
        efa_emu_efadv_get_max_rq_depth = efadv::efadv_get_max_rq_depth,
        efa_emu_efadv_get_max_sq_depth = efadv::efadv_get_max_sq_depth,
        efa_emu_efadv_qp_from_ibv_qp_ex = efadv::efadv_qp_from_ibv_qp_ex,
        efa_emu_efadv_query_ah = efadv::efadv_query_ah,
        efa_emu_efadv_query_cq = efadv::efadv_query_cq,
        efa_emu_efadv_query_device = efadv::efadv_query_device,
        efa_emu_efadv_query_mr = efadv::efadv_query_mr,
        efa_emu_efadv_query_qp_wqs = efadv::efadv_query_qp_wqs,
    }
}

// Programs that were linked against libibverbs 1.0, before 2008, pass structures of another layout.
// They find no device, and so have nothing to call the others with.
old_exports! {
    "IBVERBS_1.0" {
        ibv_ack_async_event = not_supported_nothing,
        ibv_ack_cq_events = not_supported_nothing,
        ibv_alloc_pd = no_pointer,
        ibv_attach_mcast = not_supported,
        ibv_close_device = not_supported,
        ibv_create_ah = no_pointer,
        ibv_create_cq = no_pointer,
        ibv_create_qp = no_pointer,
        ibv_create_srq = no_pointer,
        ibv_dealloc_pd = not_supported,
        ibv_dereg_mr = not_supported,
        ibv_destroy_ah = not_supported,
        ibv_destroy_cq = not_supported,
        ibv_destroy_qp = not_supported,
        ibv_destroy_srq = not_supported,
        ibv_detach_mcast = not_supported,
        ibv_free_device_list = not_supported_nothing,
        ibv_get_async_event = unsupported::minus_one,
        ibv_get_cq_event = unsupported::minus_one,
        ibv_get_device_guid = unsupported::zero,
        ibv_get_device_list = no_pointer,
        ibv_get_device_name = no_pointer,
        ibv_modify_qp = not_supported,
        ibv_modify_srq = not_supported,
        ibv_open_device = no_pointer,
        ibv_query_device = not_supported,
        ibv_query_gid = unsupported::minus_one,
        ibv_query_pkey = unsupported::minus_one,
        ibv_query_port = not_supported,
        ibv_query_qp = not_supported,
        ibv_query_srq = not_supported,
        ibv_reg_mr = no_pointer,
        ibv_resize_cq = not_supported,
    }
}

// The private interface between rdma-core's libibverbs and its libraries for the devices of other vendors,
// which programs such as perftest are linked to. With these definitions each of them loads, of whatever
// release. They register their drivers, find no device, and so call nothing else. Some tools call
// `ibv_query_gid_type` and `ibv_read_ibdev_sysfs_file`.
macro_rules! private_exports {
    ($exports:ident $at:literal $($version:literal $register:ident)+) => { $(
        $exports! { $version {
            $register = not_supported_nothing,
            __ioctl_final_num_attrs = unsupported::none,
            __verbs_log = not_supported_nothing,
            _verbs_init_and_alloc_context = no_pointer,
            execute_ioctl = not_supported,
            ibv_cmd_advise_mr = not_supported,
            ibv_cmd_alloc_dm = not_supported,
            ibv_cmd_alloc_dmah = not_supported,
            ibv_cmd_alloc_mw = not_supported,
            ibv_cmd_alloc_pd = not_supported,
            ibv_cmd_attach_mcast = not_supported,
            ibv_cmd_close_xrcd = not_supported,
            ibv_cmd_create_ah = not_supported,
            ibv_cmd_create_comp_cntr = not_supported,
            ibv_cmd_create_counters = not_supported,
            ibv_cmd_create_cq = not_supported,
            ibv_cmd_create_cq_ex = not_supported,
            ibv_cmd_create_cq_ex2 = not_supported,
            ibv_cmd_create_flow = not_supported,
            ibv_cmd_create_flow_action_esp = not_supported,
            ibv_cmd_create_qp = not_supported,
            ibv_cmd_create_qp_ex = not_supported,
            ibv_cmd_create_qp_ex2 = not_supported,
            ibv_cmd_create_rwq_ind_table = not_supported,
            ibv_cmd_create_srq = not_supported,
            ibv_cmd_create_srq_ex = not_supported,
            ibv_cmd_create_wq = not_supported,
            ibv_cmd_dealloc_mw = not_supported,
            ibv_cmd_dealloc_pd = not_supported,
            ibv_cmd_dereg_mr = not_supported,
            ibv_cmd_destroy_ah = not_supported,
            ibv_cmd_destroy_comp_cntr = not_supported,
            ibv_cmd_destroy_counters = not_supported,
            ibv_cmd_destroy_cq = not_supported,
            ibv_cmd_destroy_flow = not_supported,
            ibv_cmd_destroy_flow_action = not_supported,
            ibv_cmd_destroy_qp = not_supported,
            ibv_cmd_destroy_rwq_ind_table = not_supported,
            ibv_cmd_destroy_srq = not_supported,
            ibv_cmd_destroy_wq = not_supported,
            ibv_cmd_detach_mcast = not_supported,
            ibv_cmd_export_dmabuf_fd = not_supported,
            ibv_cmd_free_dm = not_supported,
            ibv_cmd_free_dmah = not_supported,
            ibv_cmd_get_context = not_supported,
            ibv_cmd_inc_comp_cntr = not_supported,
            ibv_cmd_inc_err_comp_cntr = not_supported,
            ibv_cmd_modify_cq = not_supported,
            ibv_cmd_modify_flow_action_esp = not_supported,
            ibv_cmd_modify_qp = not_supported,
            ibv_cmd_modify_qp_ex = not_supported,
            ibv_cmd_modify_srq = not_supported,
            ibv_cmd_modify_wq = not_supported,
            ibv_cmd_open_qp = not_supported,
            ibv_cmd_open_xrcd = not_supported,
            ibv_cmd_poll_cq = not_supported,
            ibv_cmd_post_recv = not_supported,
            ibv_cmd_post_send = not_supported,
            ibv_cmd_post_srq_recv = not_supported,
            ibv_cmd_qp_attach_comp_cntr = not_supported,
            ibv_cmd_query_comp_cntr_caps = not_supported,
            ibv_cmd_query_context = not_supported,
            ibv_cmd_query_device = not_supported,
            ibv_cmd_query_device_any = not_supported,
            ibv_cmd_query_device_ex = not_supported,
            ibv_cmd_query_mr = not_supported,
            ibv_cmd_query_port = not_supported,
            ibv_cmd_query_port_speed = not_supported,
            ibv_cmd_query_qp = not_supported,
            ibv_cmd_query_srq = not_supported,
            ibv_cmd_read_comp_cntr = not_supported,
            ibv_cmd_read_counters = not_supported,
            ibv_cmd_read_err_comp_cntr = not_supported,
            ibv_cmd_reg_dm_mr = not_supported,
            ibv_cmd_reg_dmabuf_mr = not_supported,
            ibv_cmd_reg_mr = not_supported,
            ibv_cmd_reg_mr_ex = not_supported,
            ibv_cmd_req_notify_cq = not_supported,
            ibv_cmd_rereg_mr = not_supported,
            ibv_cmd_resize_cq = not_supported,
            ibv_cmd_set_comp_cntr = not_supported,
            ibv_cmd_set_err_comp_cntr = not_supported,
            ibv_dmabuf_heap_alloc = no_pointer,
            ibv_dmabuf_heap_cc_shared_init = no_pointer,
            ibv_dmabuf_heap_destroy = not_supported_nothing,
            ibv_dmabuf_heap_free = not_supported_nothing,
            ibv_query_gid_type = query::ibv_query_gid_type,
            ibv_read_ibdev_sysfs_file = sysfs_files::ibv_read_ibdev_sysfs_file,
            ibv_wr_opcode_str = strings::ibv_wr_opcode_str,
            verbs_init_cq = not_supported_nothing,
            verbs_open_device = no_pointer,
            verbs_set_ops = not_supported_nothing,
            verbs_uninit_context = not_supported_nothing,
        } }
        export_false!(verbs_allow_disassociate_destroy, $at, $version);
    )+ };
}

/// Defines `NAME@VERSION` as a C `bool` that is false.
#[cfg(not(test))]
macro_rules! export_false {
    ($name:ident, $at:literal, $version:literal) => {
        core::arch::global_asm!(
            ".pushsection .bss",
            concat!(".globl __", $version, ".", stringify!($name)),
            concat!(".type __", $version, ".", stringify!($name), ", @object"),
            concat!("__", $version, ".", stringify!($name), ": .zero 1"),
            concat!(".size __", $version, ".", stringify!($name), ", 1"),
            concat!(
                ".symver __",
                $version,
                ".",
                stringify!($name),
                ", ",
                stringify!($name),
                $at,
                $version,
                ", remove"
            ),
            ".popsection",
        );
    };
}

#[cfg(test)]
macro_rules! export_false {
    ($($unused:tt)*) => {};
}

private_exports! { exports "@@" "IBVERBS_PRIVATE_65" verbs_register_driver_65 }
private_exports! {
    old_exports "@"
    "IBVERBS_PRIVATE_25" verbs_register_driver_25
    "IBVERBS_PRIVATE_33" verbs_register_driver_33
    "IBVERBS_PRIVATE_34" verbs_register_driver_34
    "IBVERBS_PRIVATE_57" verbs_register_driver_57
    "IBVERBS_PRIVATE_59" verbs_register_driver_59
    "IBVERBS_PRIVATE_64" verbs_register_driver_64
}
