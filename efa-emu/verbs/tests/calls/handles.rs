//! Every exported function with invalid handles: null, foreign, freed, of another type.
//!
//! rdma-core follows such pointers, and mostly crashes. The expected result here is an error:
//! rdma-core's error where it returns one.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::ptr::null_mut;

use libc::{EINVAL, ENODEV, EOPNOTSUPP};

use crate::on_emulated_host;
use efa_testing::programs::exported::{EFADV, PRIVATE_IN_USE, VERBS};
use efa_testing::verbs::*;
use efa_verbs_abi::*;

/// The expected result of a call.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// The errno.
    Errno(i32),
    /// -1, and `errno`.
    MinusOne(i32),
    /// `NULL`, and `errno`.
    Null(i32),
    /// The negative errno.
    Negative(i32),
    /// This number; `errno` is not checked.
    Value(i32),
    /// Any result.
    Returns,
}

use Answer::{Errno, MinusOne, Negative, Null, Returns, Value};

/// Function, arguments, answer. Arguments: `h` is the handle, `o` a pointer to writable zeros, `s`
/// the size 64; digits are numbers.
type Row = (&'static str, &'static str, Answer);

const ROWS: &[Row] = &[
    // devices
    ("ibv_open_device", "h", Null(ENODEV)),
    ("ibv_get_device_name", "h", Null(ENODEV)),
    ("ibv_get_device_guid", "h", Value(0)),
    ("ibv_get_device_index", "h", Value(-1)),
    ("ibv_read_ibdev_sysfs_file", "osho", MinusOne(ENODEV)),
    // contexts
    ("ibv_close_device", "h", Errno(EINVAL)),
    ("ibv_query_device", "ho", Errno(EINVAL)),
    ("ibv_query_port", "h1o", Errno(EINVAL)),
    ("ibv_query_port_speed", "h1o", Errno(EINVAL)),
    ("ibv_query_gid", "h10o", MinusOne(EINVAL)),
    ("ibv_query_gid_type", "h10o", MinusOne(EINVAL)),
    ("_ibv_query_gid_ex", "h10o0s", Errno(EINVAL)),
    ("_ibv_query_gid_table", "ho10s", Negative(EINVAL)),
    ("ibv_query_pkey", "h10o", MinusOne(EINVAL)),
    ("ibv_get_pkey_index", "h11", MinusOne(EINVAL)),
    ("ibv_alloc_pd", "h", Null(EINVAL)),
    ("ibv_create_comp_channel", "h", Null(EINVAL)),
    ("ibv_create_cq", "h1000", Null(EINVAL)),
    ("ibv_get_async_event", "ho", MinusOne(EINVAL)),
    ("ibv_ack_async_event", "h", Returns),
    ("ibv_init_ah_from_wc", "h1ooo", MinusOne(EINVAL)),
    ("efadv_query_device", "hos", Errno(EOPNOTSUPP)),
    ("efadv_create_cq", "hoos", Null(EINVAL)),
    ("efadv_create_qp_ex", "hoos", Null(EINVAL)),
    ("efadv_get_max_sq_depth", "hos", Negative(EOPNOTSUPP)),
    ("efadv_get_max_rq_depth", "hos", Negative(EOPNOTSUPP)),
    // protection domains
    ("ibv_dealloc_pd", "h", Errno(EINVAL)),
    ("ibv_reg_mr", "hos1", Null(EINVAL)),
    ("ibv_reg_mr_iova", "hos01", Null(EINVAL)),
    ("ibv_reg_mr_iova2", "hos01", Null(EINVAL)),
    ("ibv_reg_mr_ex", "ho", Null(EINVAL)),
    ("ibv_reg_dmabuf_mr", "h0s001", Null(EINVAL)),
    ("ibv_create_ah", "ho", Null(EINVAL)),
    ("ibv_create_ah_from_wc", "hoo1", Null(EINVAL)),
    ("ibv_create_qp", "ho", Null(EOPNOTSUPP)),
    ("efadv_create_driver_qp", "ho0", Null(EINVAL)),
    // memory regions
    ("ibv_dereg_mr", "h", Errno(EINVAL)),
    ("ibv_rereg_mr", "h00000", Value(-4)),
    ("efadv_query_mr", "hos", Errno(EINVAL)),
    ("ibv_alloc_buf", "hso", Null(EINVAL)),
    ("ibv_free_buf", "h", Returns),
    ("ibv_reg_buf_mr", "hh0s1", Null(EINVAL)),
    ("ibv_export_buf_dmabuf_fd", "h", MinusOne(EINVAL)),
    // address handles
    ("ibv_destroy_ah", "h", Errno(EINVAL)),
    ("efadv_query_ah", "hos", Errno(EINVAL)),
    // completion queues and channels
    ("ibv_destroy_cq", "h", Errno(EINVAL)),
    ("ibv_ack_cq_events", "h1", Returns),
    ("ibv_resize_cq", "h1", Errno(EOPNOTSUPP)),
    ("efadv_query_cq", "hos", Errno(EINVAL)),
    ("efadv_cq_from_ibv_cq_ex", "h", Returns),
    ("ibv_destroy_comp_channel", "h", Errno(EINVAL)),
    ("ibv_get_cq_event", "hoo", MinusOne(EINVAL)),
    // queue pairs
    ("ibv_destroy_qp", "h", Errno(EINVAL)),
    ("ibv_modify_qp", "ho1", Errno(EINVAL)),
    ("ibv_query_qp", "ho1o", Errno(EINVAL)),
    ("ibv_qp_to_qp_ex", "h", Value(0)),
    ("ibv_query_qp_data_in_order", "h01", Value(0)),
    ("ibv_set_ece", "ho", Errno(EOPNOTSUPP)),
    ("ibv_query_ece", "ho", Errno(EOPNOTSUPP)),
    ("ibv_attach_mcast", "ho0", Errno(EOPNOTSUPP)),
    ("ibv_detach_mcast", "ho0", Errno(EOPNOTSUPP)),
    ("efadv_query_qp_wqs", "hoos", Errno(EINVAL)),
    ("efadv_qp_from_ibv_qp_ex", "h", Returns),
    // not supported by EFA
    ("ibv_create_srq", "ho", Null(EOPNOTSUPP)),
    ("ibv_modify_srq", "ho0", Errno(EOPNOTSUPP)),
    ("ibv_query_srq", "ho", Errno(EOPNOTSUPP)),
    ("ibv_destroy_srq", "h", Errno(EOPNOTSUPP)),
    ("ibv_import_device", "0", Null(EOPNOTSUPP)),
    ("ibv_import_pd", "h0", Null(EOPNOTSUPP)),
    ("ibv_import_mr", "h0", Null(EOPNOTSUPP)),
    ("ibv_import_dm", "h0", Null(EOPNOTSUPP)),
    ("ibv_unimport_pd", "h", Returns),
    ("ibv_unimport_mr", "h", Returns),
    ("ibv_unimport_dm", "h", Returns),
    ("ibv_alloc_dmah", "ho", Null(EOPNOTSUPP)),
    ("ibv_dealloc_dmah", "h", Errno(EOPNOTSUPP)),
    ("ibv_dm_export_dmabuf_fd", "h", MinusOne(EOPNOTSUPP)),
    ("_ibv_query_comp_cntr_caps", "hos", Errno(EINVAL)),
    ("ibv_create_comp_cntr", "ho", Null(EINVAL)),
    ("efadv_create_comp_cntr", "hoos", Null(EOPNOTSUPP)),
    ("ibv_destroy_comp_cntr", "h", Errno(EINVAL)),
    ("ibv_inc_comp_cntr", "h1", Errno(EINVAL)),
    ("ibv_inc_err_comp_cntr", "h1", Errno(EINVAL)),
    ("ibv_qp_attach_comp_cntr", "hho", Errno(EINVAL)),
    ("ibv_read_comp_cntr", "ho", Errno(EINVAL)),
    ("ibv_read_err_comp_cntr", "ho", Errno(EINVAL)),
    ("ibv_set_comp_cntr", "h1", Errno(EINVAL)),
    ("ibv_set_err_comp_cntr", "h1", Errno(EINVAL)),
    ("ibv_copy_ah_attr_from_kern", "ho", Returns),
    ("ibv_copy_path_rec_from_kern", "ho", Returns),
    ("ibv_copy_path_rec_to_kern", "ho", Returns),
    ("ibv_copy_qp_attr_from_kern", "ho", Returns),
    ("ibv_register_driver", "h0", Returns),
    ("ibv_resolve_eth_l2_from_gid", "hooo", MinusOne(EOPNOTSUPP)),
    // without handles
    ("ibv_get_device_list", "o", Returns),
    ("ibv_free_device_list", "0", Returns),
    ("ibv_fork_init", "", Value(0)),
    ("ibv_is_fork_initialized", "", Value(2)),
    ("ibv_dofork_range", "os", Value(0)),
    ("ibv_dontfork_range", "os", Value(0)),
    ("ibv_get_sysfs_path", "", Returns),
    ("ibv_read_sysfs_file", "00os", MinusOne(EINVAL)),
    ("ibv_node_type_str", "9", Returns),
    ("ibv_port_state_str", "9", Returns),
    ("ibv_event_type_str", "9", Returns),
    ("ibv_wc_status_str", "9", Returns),
    ("ibv_rate_to_mult", "0", Value(-1)),
    ("mult_to_ibv_rate", "0", Value(0)),
    ("ibv_rate_to_mbps", "0", Value(-1)),
    ("mbps_to_ibv_rate", "0", Value(0)),
];

/// Calls a function with up to six integers or pointers.
///
/// # Safety
/// The function takes these arguments, or fewer.
unsafe fn call(name: &str, arguments: [usize; 6]) -> usize {
    type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize;
    // SAFETY: all arguments of the functions go in integer registers, of which there are six, and
    // all results come in one.
    let function: Function = unsafe { std::mem::transmute(symbol(name)) };
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: by contract.
    unsafe { function(a, b, c, d, e, f) }
}

#[track_caller]
fn check(row: &Row, handle: *mut c_void, what: &str) {
    let (name, arguments, answer) = *row;
    let mut room = [[0u64; 128]; 6];
    let mut values = [0usize; 6];
    for (index, argument) in arguments.chars().enumerate() {
        values[index] = match argument {
            'h' => handle.expose_provenance(),
            'o' => room[index].as_mut_ptr().expose_provenance(),
            's' => 64,
            digit => digit.to_digit(10).expect("a digit") as usize,
        };
    }
    // SAFETY: the arguments are right except for the handle, which the library promises to notice.
    let result = unsafe {
        *libc::__errno_location() = 0;
        call(name, values)
    };
    let (low, errno) = (result as u32 as i32, errno());
    let fits = match answer {
        Errno(expected) => low == expected,
        MinusOne(expected) => (low, errno) == (-1, expected),
        Null(expected) => (result, errno) == (0, expected),
        Negative(expected) => low == -expected,
        Value(expected) => low == expected,
        Returns => true,
    };
    assert!(
        fits,
        "{name} of {what}: {result:#x} with errno {errno} instead of {answer:?}"
    );
}

/// The table has all exported functions.
#[test]
fn every_exported_function_is_in_the_table() {
    let exported: BTreeSet<&str> = [VERBS, EFADV]
        .concat()
        .iter()
        .flat_map(|(_, names)| names.split_whitespace())
        .chain(PRIVATE_IN_USE.split_whitespace())
        .collect();
    let listed: BTreeSet<&str> = ROWS.iter().map(|(name, ..)| *name).collect();
    let missing: Vec<_> = exported.symmetric_difference(&listed).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_function_refuses_invalid_handles() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let mut memory = [0u8; 64];
        let queue = endpoint.cq(4);
        let pair = endpoint.srd(queue, 0);
        let region = endpoint.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
        let channel = ibv_create_comp_channel(endpoint.context);
        for row in ROWS {
            check(row, null_mut(), "null");
            check(row, foreign(), "memory of the program");
        }
        // Live objects of a type that no function of the table expects. SAFETY: a live context.
        let thread_domain = unsafe {
            let alloc = (*verbs_context_of(endpoint.context)).alloc_td.unwrap();
            alloc(endpoint.context, [0u64; 2].as_mut_ptr().cast())
        };
        assert!(!thread_domain.is_null());
        for row in ROWS {
            check(row, thread_domain.cast(), "a thread domain");
        }
        assert_eq!(ibv_dereg_mr(region), 0);
        assert_eq!(ibv_destroy_qp(pair), 0);
        assert_eq!(ibv_destroy_cq(queue), 0);
        assert_eq!(ibv_destroy_comp_channel(channel), 0);
        assert_eq!(ibv_destroy_ah(endpoint.handle), 0);
        assert_eq!(ibv_dealloc_pd(endpoint.pd), 0);
        assert_eq!(ibv_close_device(endpoint.context), 0);

        let freed: [*mut c_void; 7] = [
            region.cast(),
            pair.cast(),
            queue.cast(),
            channel.cast(),
            endpoint.handle.cast(),
            endpoint.pd.cast(),
            endpoint.context.cast(),
        ];
        for row in ROWS {
            for handle in freed {
                check(row, handle, "something that was freed");
            }
        }
    });
}

/// Objects of one opened device are foreign to another one, even for the same device.
#[test]
fn of_another_context_are_refused() {
    on_emulated_host("efa2", || {
        let (one, two) = (Endpoint::new(), Endpoint::new());
        let queue = one.cq(4);
        // SAFETY: live objects, combined wrongly on purpose.
        unsafe {
            let (mut request, mut efa) = two.srd_request(queue, 0);
            let pair = efadv_create_qp_ex(two.context, &raw mut request, &raw mut efa, 24);
            expect_null(pair, EINVAL, "a queue pair on another's completion queue");
            let (mut request, mut efa) = one.srd_request(queue, 0);
            let pair = efadv_create_qp_ex(two.context, &raw mut request, &raw mut efa, 24);
            expect_null(pair, EINVAL, "a queue pair of another's protection domain");
            let channel = ibv_create_comp_channel(one.context);
            let got = ibv_create_cq(two.context, 4, null_mut(), channel, 0);
            expect_null(got, EINVAL, "a completion queue with another's channel");
            let alloc = |context: *mut ibv_context, pd: *mut ibv_pd| {
                let mut attributes: ibv_parent_domain_init_attr = zeroed();
                attributes.pd = pd;
                let slots = verbs_context_of(context);
                (*slots).alloc_parent_domain.unwrap()(context, &raw mut attributes)
            };
            let got = alloc(two.context, one.pd);
            expect_null(got, EINVAL, "a parent domain of another's");
            let parent = alloc(one.context, one.pd);
            assert!(!parent.is_null());
            let mut attributes = ibv_cq_init_attr_ex {
                cqe: 4,
                comp_mask: IBV_CQ_INIT_ATTR_MASK_PD,
                parent_domain: parent,
                ..zeroed()
            };
            let mut efa = efadv_cq_init_attr::default();
            let queue = efadv_create_cq(two.context, &raw mut attributes, &raw mut efa, 16);
            expect_null(queue, EINVAL, "a completion queue in another's domain");
            let queue = efadv_create_cq(one.context, &raw mut attributes, &raw mut efa, 16);
            assert!(!queue.is_null());
        }
    });
}
