//! Programs that were built against older headers: their structures are shorter. The memory after
//! them, here a page without access, must not be touched.

use std::mem::offset_of;
use std::ptr::null_mut;

use libc::EINVAL;

use crate::on_emulated_host;
use efa_testing::verbs::*;
use efa_verbs_abi::*;

const PAGE: usize = 4096;

/// The first `length` bytes of a structure, directly before a page without access.
fn at_the_edge<T>(value: T, length: usize) -> *mut T {
    assert!(length <= size_of::<T>() && length.is_multiple_of(align_of::<T>()));
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory.
    let start = unsafe { libc::mmap(null_mut(), 2 * PAGE, access, kind, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    let edge = start.wrapping_byte_add(PAGE);
    let place = edge.wrapping_byte_sub(length);
    // SAFETY: the second of the pages; `length` bytes fit the first one.
    unsafe {
        assert_eq!(libc::mprotect(edge, PAGE, libc::PROT_NONE), 0);
        std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), place.cast(), length);
    }
    place.cast()
}

#[test]
fn fields_beyond_the_mask_are_not_accessed() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let extended = verbs_context_of(endpoint.context);

        let mut attributes: ibv_cq_init_attr_ex = zeroed();
        attributes.cqe = 10;
        let request = at_the_edge(attributes, offset_of!(ibv_cq_init_attr_ex, parent_domain));
        // SAFETY: a live context, and a structure as an older program has it.
        let (queue, entries) = unsafe {
            let create = (*extended).create_cq_ex.unwrap();
            (create(endpoint.context, request), (*request).cqe)
        };
        assert!(!queue.is_null() && entries >= 10);
        let queue: *mut ibv_cq = queue.cast();

        let (mut attributes, _) = endpoint.srd_request(queue, 0);
        attributes.qp_type = IBV_QPT_UD;
        attributes.comp_mask = IBV_QP_INIT_ATTR_PD;
        let request = at_the_edge(attributes, offset_of!(ibv_qp_init_attr_ex, xrcd));
        // SAFETY: as above.
        let (pair, cap) = unsafe {
            let create = (*extended).create_qp_ex.unwrap();
            (create(endpoint.context, request), (*request).cap)
        };
        assert!(!pair.is_null() && cap.max_send_wr >= 16);

        let mut attributes: ibv_qp_attr = zeroed();
        attributes.qp_state = IBV_QPS_INIT;
        attributes.port_num = 1;
        attributes.qkey = QKEY;
        let request = at_the_edge(attributes, offset_of!(ibv_qp_attr, rate_limit));
        let mask = IDENTITY;
        // SAFETY: as above.
        unsafe {
            assert_eq!(ibv_modify_qp(pair, request, mask as i32), 0);
            let mut initial = zeroed();
            let state = IBV_QP_STATE as i32;
            assert_eq!(ibv_query_qp(pair, request, state, &raw mut initial), 0);
            assert_eq!(((*request).qp_state, (*request).qkey), (IBV_QPS_INIT, QKEY));
        }
        change_state(pair, IBV_QPS_RTR, IBV_QP_STATE);
        change_state(pair, IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN);

        let domain = ibv_parent_domain_init_attr {
            pd: endpoint.pd,
            ..zeroed()
        };
        let request = at_the_edge(domain, offset_of!(ibv_parent_domain_init_attr, alloc));
        // SAFETY: as above.
        unsafe {
            let parent = (*extended).alloc_parent_domain.unwrap()(endpoint.context, request);
            assert!(!parent.is_null());
            assert_eq!(ibv_dealloc_pd(parent), 0);
        }

        // Up to the union with the address handle, as it was before rdma-core.
        let mut request = send_request(&endpoint, pair, 7, &mut []);
        request.sg_list = null_mut();
        let request = at_the_edge(request, 80);
        let mut bad = null_mut();
        // SAFETY: as above.
        unsafe {
            let post = (*(*pair).context).ops.post_send.unwrap();
            assert_eq!(post(pair, request, &raw mut bad), 0);
        }
        wait_for(queue, 1);
    });
}

#[test]
fn a_list_that_is_null_is_no_list() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(16);
        let pair = endpoint.srd(queue, 0);
        let mut request = send_request(&endpoint, pair, 1, &mut []);
        request.sg_list = null_mut();
        for flags in [0, IBV_SEND_INLINE] {
            request.send_flags = IBV_SEND_SIGNALED | flags;
            request.num_sge = 1;
            assert_eq!(post_send(pair, &mut request).0, EINVAL);
            request.num_sge = 0;
            assert_eq!(post_recv(pair, 2, &mut []), 0);
            assert_eq!(post_send(pair, &mut request).0, 0);
            wait_for(queue, 2);
        }
        let builders: u64 = IBV_QP_EX_WITH_SEND;
        let pair = endpoint.srd(queue, builders);
        assert_eq!(post_recv(pair, 2, &mut []), 0);
        // SAFETY: a live queue pair with these builders.
        unsafe {
            let builders = ibv_qp_to_qp_ex(pair);
            for (count, expected) in [(1, EINVAL), (0, 0)] {
                (*builders).wr_start.unwrap()(builders);
                (*builders).wr_flags = IBV_SEND_SIGNALED;
                (*builders).wr_send.unwrap()(builders);
                let (to, qpn) = (endpoint.handle, (*pair).qp_num);
                (*builders).wr_set_ud_addr.unwrap()(builders, to, qpn, QKEY);
                (*builders).wr_set_inline_data_list.unwrap()(builders, count, std::ptr::null());
                let completed = (*builders).wr_complete.unwrap()(builders);
                assert_eq!(completed, expected, "{count} entries");
            }
        }
        wait_for(queue, 2);
    });
}
