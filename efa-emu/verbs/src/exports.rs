//! The exported functions, with their names and versions.
//!
//! A versioned symbol is a jump to the Rust function: the assembler's `.symver` must be in the same
//! object file as the symbol that it names, which is not guaranteed for a function and the assembly
//! beside it. The calls of the data path do not pass these jumps: they go through pointers in the
//! context, the queue pair and the completion queue.

use crate::calls::{
    address_handle, async_event, buffer, channel, comp_counter, comp_queue, context, device,
    domain, efadv, memory_region, query, queue_pair, shared_queue, strings, sysfs_files,
    unsupported,
};

/// The jump to a function of this library, the template's `{function}`.
#[cfg(all(target_arch = "x86_64", not(test)))]
macro_rules! jump {
    () => {
        "jmp {function}"
    };
}

/// The same for arm64.
#[cfg(all(target_arch = "aarch64", not(test)))]
macro_rules! jump {
    () => {
        "b {function}"
    };
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the exported symbols are written for x86-64 and arm64");

/// Defines the symbol `NAME@@VERSION` (the version that new programs link to) or `NAME@VERSION`.
#[cfg(not(test))]
macro_rules! symbol {
    ($name:expr, $at:literal, $version:literal, $section:literal, $type:literal,
     $content:expr $(, $($operand:tt)+)?) => {
        core::arch::global_asm!(
            concat!(".pushsection ", $section),
            concat!(".globl __", $version, ".", $name),
            concat!(".type __", $version, ".", $name, ", @", $type),
            concat!("__", $version, ".", $name, ":"),
            $content,
            concat!(".size __", $version, ".", $name, ", . - __", $version, ".", $name),
            concat!(".symver __", $version, ".", $name, ", ", $name, $at, $version, ", remove"),
            ".popsection",
            $($($operand)+)?
        );
    };
}

/// Exports a function under a name.
#[cfg(not(test))]
macro_rules! export {
    ($name:expr, $at:literal, $version:literal, $function:path) => {
        symbol!($name, $at, $version, ".text", "function", jump!(), function = sym $function);
    };
}

/// Test programs cannot have symbol versions.
#[cfg(test)]
macro_rules! export {
    ($name:expr, $at:literal, $version:literal, $function:path) => {
        const _: () = {
            let _function = $function;
        };
    };
}

/// Exports a function of `calls` under its own name (`module::`), or one of [`unsupported`] under
/// the name of another (`function =`).
macro_rules! export_one {
    ($name:ident, $at:literal, $version:literal, $module:ident ::) => {
        export!(stringify!($name), $at, $version, $module::$name);
    };
    ($name:ident, $at:literal, $version:literal, $function:ident =) => {
        export!(stringify!($name), $at, $version, unsupported::$function);
    };
}

/// Exports for the versions that new programs link to (`"@@"`), and for the versions that only old
/// programs need (`"@"`).
macro_rules! exports {
    ($at:literal $($version:literal { $($group:ident $how:tt { $($name:ident)+ })+ })+) => {
        $($($(export_one!($name, $at, $version, $group $how);)+)+)+
    };
}

/// Exports functions as `efa_emu_NAME`.
macro_rules! implementations {
    ($version:literal $($module:ident:: { $($name:ident)+ })+) => { $($(
        export!(concat!("efa_emu_", stringify!($name)), "@@", $version, $module::$name);
    )+)+ };
}

/// Exports a C `bool` that is false.
#[cfg(not(test))]
macro_rules! export_false {
    ($at:literal, $version:literal, $name:ident) => {
        symbol!(
            stringify!($name),
            $at,
            $version,
            ".bss",
            "object",
            ".zero 1"
        );
    };
}

#[cfg(test)]
macro_rules! export_false {
    ($($unused:tt)*) => {};
}

exports! { "@@"
    "IBVERBS_1.0" {
        channel:: { ibv_create_comp_channel ibv_destroy_comp_channel }
        sysfs_files:: { ibv_get_sysfs_path ibv_read_sysfs_file }
        strings:: { ibv_rate_to_mult mult_to_ibv_rate }
        not_supported_nothing = {
            ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern ibv_copy_qp_attr_from_kern
        }
    }
    "IBVERBS_1.1" {
        async_event:: { ibv_ack_async_event ibv_get_async_event }
        comp_queue:: { ibv_ack_cq_events ibv_create_cq ibv_destroy_cq }
        domain:: { ibv_alloc_pd ibv_dealloc_pd }
        context:: { ibv_close_device ibv_open_device }
        address_handle:: { ibv_create_ah ibv_create_ah_from_wc ibv_destroy_ah ibv_init_ah_from_wc }
        queue_pair:: { ibv_create_qp ibv_destroy_qp ibv_modify_qp ibv_query_qp }
        memory_region:: { ibv_dereg_mr ibv_reg_mr ibv_rereg_mr }
        strings:: {
            ibv_event_type_str ibv_node_type_str ibv_port_state_str ibv_rate_to_mbps
            ibv_wc_status_str mbps_to_ibv_rate
        }
        device:: {
            ibv_free_device_list ibv_get_device_guid ibv_get_device_list ibv_get_device_name
        }
        channel:: { ibv_get_cq_event }
        query:: { ibv_query_device ibv_query_gid ibv_query_pkey ibv_query_port }
        shared_queue:: { ibv_create_srq ibv_destroy_srq ibv_modify_srq ibv_query_srq }
        not_supported = { ibv_attach_mcast ibv_detach_mcast ibv_resize_cq }
        not_supported_nothing = { ibv_copy_ah_attr_from_kern ibv_register_driver }
        success = { ibv_dofork_range ibv_dontfork_range ibv_fork_init }
        minus_one = { ibv_resolve_eth_l2_from_gid }
    }
    "IBVERBS_1.5" { query:: { ibv_get_pkey_index } }
    "IBVERBS_1.6" { queue_pair:: { ibv_qp_to_qp_ex } }
    "IBVERBS_1.7" { memory_region:: { ibv_reg_mr_iova } }
    "IBVERBS_1.8" { memory_region:: { ibv_reg_mr_iova2 } }
    "IBVERBS_1.9" { device:: { ibv_get_device_index } }
    "IBVERBS_1.10" {
        no_pointer = { ibv_import_device ibv_import_mr ibv_import_pd }
        not_supported = { ibv_query_ece ibv_set_ece }
        not_supported_nothing = { ibv_unimport_mr ibv_unimport_pd }
    }
    "IBVERBS_1.11" { query:: { _ibv_query_gid_ex _ibv_query_gid_table } }
    "IBVERBS_1.12" { memory_region:: { ibv_reg_dmabuf_mr } }
    "IBVERBS_1.13" {
        device:: { ibv_is_fork_initialized }
        no_pointer = { ibv_import_dm }
        not_supported_nothing = { ibv_unimport_dm }
    }
    "IBVERBS_1.14" { queue_pair:: { ibv_query_qp_data_in_order } }
    "IBVERBS_1.15" {
        memory_region:: { ibv_reg_mr_ex }
        no_pointer = { ibv_alloc_dmah }
        not_supported = { ibv_dealloc_dmah }
    }
    "IBVERBS_1.16" {
        query:: { ibv_query_port_speed }
        minus_one = { ibv_dm_export_dmabuf_fd }
    }
    "IBVERBS_1.17" { buffer:: { ibv_alloc_buf ibv_free_buf ibv_reg_buf_mr } }
    "IBVERBS_1.18" {
        comp_counter:: {
            _ibv_query_comp_cntr_caps ibv_create_comp_cntr ibv_destroy_comp_cntr ibv_inc_comp_cntr
            ibv_inc_err_comp_cntr ibv_qp_attach_comp_cntr ibv_read_comp_cntr ibv_read_err_comp_cntr
            ibv_set_comp_cntr ibv_set_err_comp_cntr
        }
        buffer:: { ibv_export_buf_dmabuf_fd }
    }
}

// The targets of libefa's own library.
implementations! { "EFA_EMU_1"
    comp_counter:: { efadv_create_comp_cntr }
    efadv:: {
        efadv_create_cq efadv_create_driver_qp efadv_create_qp_ex efadv_cq_from_ibv_cq_ex
        efadv_get_max_rq_depth efadv_get_max_sq_depth efadv_qp_from_ibv_qp_ex efadv_query_ah
        efadv_query_cq efadv_query_device efadv_query_mr efadv_query_qp_wqs
    }
}

// Programs that were linked against libibverbs 1.0, before 2008, pass structures with another
// layout. They find no device, so they cannot call the other functions.
exports! { "@"
    "IBVERBS_1.0" {
        not_supported_nothing = { ibv_ack_async_event ibv_ack_cq_events ibv_free_device_list }
        no_pointer = {
            ibv_alloc_pd ibv_create_ah ibv_create_cq ibv_create_qp ibv_create_srq
            ibv_get_device_list ibv_get_device_name ibv_open_device ibv_reg_mr
        }
        not_supported = {
            ibv_attach_mcast ibv_close_device ibv_dealloc_pd ibv_dereg_mr ibv_destroy_ah
            ibv_destroy_cq ibv_destroy_qp ibv_destroy_srq ibv_detach_mcast ibv_modify_qp
            ibv_modify_srq ibv_query_device ibv_query_port ibv_query_qp ibv_query_srq ibv_resize_cq
        }
        minus_one = { ibv_get_async_event ibv_get_cq_event ibv_query_gid ibv_query_pkey }
        zero = { ibv_get_device_guid }
    }
}

// The private interface between rdma-core's libibverbs and its libraries for the devices of other
// vendors, to which programs such as perftest are linked. With these definitions the libraries of
// every release load. They register their drivers, find no device, and call nothing else. Some
// tools call `ibv_query_gid_type` and `ibv_read_ibdev_sysfs_file`.
macro_rules! private_exports {
    ($at:literal $($version:literal $register:ident)+) => { $(
        exports! { $at $version {
            query:: { ibv_query_gid_type }
            sysfs_files:: { ibv_read_ibdev_sysfs_file }
            strings:: { ibv_wr_opcode_str }
            none = { __ioctl_final_num_attrs }
            not_supported_nothing = {
                $register __verbs_log ibv_dmabuf_heap_destroy ibv_dmabuf_heap_free verbs_init_cq
                verbs_set_ops verbs_uninit_context
            }
            no_pointer = {
                _verbs_init_and_alloc_context ibv_dmabuf_heap_alloc ibv_dmabuf_heap_cc_shared_init
                verbs_open_device
            }
            not_supported = {
                execute_ioctl ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_dmah
                ibv_cmd_alloc_mw ibv_cmd_alloc_pd ibv_cmd_attach_mcast ibv_cmd_close_xrcd
                ibv_cmd_create_ah ibv_cmd_create_comp_cntr ibv_cmd_create_counters
                ibv_cmd_create_cq ibv_cmd_create_cq_ex ibv_cmd_create_cq_ex2 ibv_cmd_create_flow
                ibv_cmd_create_flow_action_esp ibv_cmd_create_qp ibv_cmd_create_qp_ex
                ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq
                ibv_cmd_create_srq_ex ibv_cmd_create_wq ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd
                ibv_cmd_dereg_mr ibv_cmd_destroy_ah ibv_cmd_destroy_comp_cntr
                ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow
                ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table
                ibv_cmd_destroy_srq ibv_cmd_destroy_wq ibv_cmd_detach_mcast
                ibv_cmd_export_dmabuf_fd ibv_cmd_free_dm ibv_cmd_free_dmah ibv_cmd_get_context
                ibv_cmd_inc_comp_cntr ibv_cmd_inc_err_comp_cntr ibv_cmd_modify_cq
                ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex
                ibv_cmd_modify_srq ibv_cmd_modify_wq ibv_cmd_open_qp ibv_cmd_open_xrcd
                ibv_cmd_poll_cq ibv_cmd_post_recv ibv_cmd_post_send ibv_cmd_post_srq_recv
                ibv_cmd_qp_attach_comp_cntr ibv_cmd_query_comp_cntr_caps ibv_cmd_query_context
                ibv_cmd_query_device ibv_cmd_query_device_any ibv_cmd_query_device_ex
                ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_port_speed ibv_cmd_query_qp
                ibv_cmd_query_srq ibv_cmd_read_comp_cntr ibv_cmd_read_counters
                ibv_cmd_read_err_comp_cntr ibv_cmd_reg_dm_mr ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr
                ibv_cmd_reg_mr_ex ibv_cmd_req_notify_cq ibv_cmd_rereg_mr ibv_cmd_resize_cq
                ibv_cmd_set_comp_cntr ibv_cmd_set_err_comp_cntr
            }
        } }
        export_false!($at, $version, verbs_allow_disassociate_destroy);
    )+ };
}

private_exports! { "@@" "IBVERBS_PRIVATE_65" verbs_register_driver_65 }
private_exports! {
    "@"
    "IBVERBS_PRIVATE_25" verbs_register_driver_25
    "IBVERBS_PRIVATE_33" verbs_register_driver_33
    "IBVERBS_PRIVATE_34" verbs_register_driver_34
    "IBVERBS_PRIVATE_57" verbs_register_driver_57
    "IBVERBS_PRIVATE_59" verbs_register_driver_59
    "IBVERBS_PRIVATE_64" verbs_register_driver_64
}
