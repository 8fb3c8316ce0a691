//! Null, freed and foreign pointers, and values outside of the device's ranges.

use std::ffi::CStr;
use std::ptr::null_mut;

use libc::{EBADF, EINVAL, EOPNOTSUPP};

use crate::on_emulated_host;
use efa_testing::verbs::*;
use efa_verbs_abi::*;

#[test]
fn the_device_list() {
    on_emulated_host("efa2", || {
        let mut count = -1;
        // SAFETY: as a C program does it.
        unsafe {
            *libc::__errno_location() = libc::EDOM;
            let list = ibv_get_device_list(&raw mut count);
            assert_eq!((count, errno()), (1, 0));
            let device = *list;
            assert!((*list.add(1)).is_null(), "the list ends with null");
            ibv_free_device_list(list);
            ibv_free_device_list(null_mut());
            assert_eq!(
                CStr::from_ptr(ibv_get_device_name(device))
                    .to_str()
                    .unwrap(),
                "rdmap0s0"
            );
            assert_ne!(ibv_get_device_guid(device), 0);
            assert_eq!(ibv_get_device_index(device), -1, "no kernel knows it");
            assert_eq!(((*device).node_type, (*device).transport_type), (7, 4));

            for wrong in [null_mut(), foreign()] {
                assert_eq!(ibv_get_device_name(wrong), NO_NAME);
                assert_eq!(ibv_get_device_guid(wrong), 0);
                expect_null(ibv_open_device(wrong), libc::ENODEV, "ibv_open_device");
            }
            assert_eq!((ibv_fork_init(), ibv_is_fork_initialized()), (0, 2));
        }
    });
}

/// Besides the table of [`crate::handles`]: calls that refuse its zeros whatever the handle is.
#[test]
fn invalid_domains_are_refused() {
    on_emulated_host("efa2", || {
        let context = Endpoint::new().context;
        let freed = ibv_alloc_pd(context);
        assert_eq!(ibv_dealloc_pd(freed), 0);
        let mut to: ibv_ah_attr = zeroed();
        to.port_num = 1;
        let mut request: ibv_qp_init_attr = zeroed();
        request.qp_type = IBV_QPT_UD;
        for pd in [null_mut(), foreign(), freed] {
            let region = ibv_reg_dmabuf_mr(pd, 0, 64, 0, -1, 1);
            expect_null(region, EINVAL, "ibv_reg_dmabuf_mr");
            // SAFETY: attributes on the stack.
            let (handle, pair) = unsafe {
                let handle = ibv_create_ah(pd, &raw mut to);
                (handle, ibv_create_qp(pd, &raw mut request))
            };
            expect_null(handle, EINVAL, "ibv_create_ah");
            expect_null(pair, EINVAL, "ibv_create_qp");
        }
    });
}

/// The data path follows pointers; it detects a queue that was just freed, too.
#[test]
fn freed_queues_on_the_data_path() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(4);
        let pair = endpoint.srd(queue, IBV_QP_EX_WITH_SEND);
        // SAFETY: live objects at first; afterwards wrong on purpose.
        unsafe {
            let ops = &(*endpoint.context).ops;
            let (send, receive) = (ops.post_send.unwrap(), ops.post_recv.unwrap());
            let (poll, arm) = (ops.poll_cq.unwrap(), ops.req_notify_cq.unwrap());
            assert_eq!(ibv_destroy_qp(pair), 0);
            assert_eq!(ibv_destroy_cq(queue), 0);

            let mut request: ibv_send_wr = zeroed();
            let mut receives: ibv_recv_wr = zeroed();
            let mut completion = ibv_wc::default();
            for pair in [null_mut(), pair] {
                let mut bad = null_mut();
                assert_eq!(send(pair, &raw mut request, &raw mut bad), EINVAL);
                let mut bad = null_mut();
                assert_eq!(receive(pair, &raw mut receives, &raw mut bad), EINVAL);
            }
            for queue in [null_mut(), queue] {
                assert_eq!(poll(queue, 1, &raw mut completion), -EINVAL);
            }
            assert_eq!(arm(null_mut(), 0), EINVAL);
            let builders = pair.cast::<ibv_qp_ex>();
            (*builders).wr_start.unwrap()(builders);
            (*builders).wr_send.unwrap()(builders);
            assert_eq!((*builders).wr_complete.unwrap()(builders), EINVAL);
        }
    });
}

#[test]
fn values_outside_of_the_device() {
    on_emulated_host("efa1", || {
        let endpoint = Endpoint::new();
        let Endpoint { context, pd, .. } = endpoint;
        let mut memory = [0u8; 64];
        let address = memory.as_mut_ptr().cast();
        // SAFETY: live objects, and wrong values on purpose.
        unsafe {
            let mut port: ibv_port_attr = zeroed();
            assert_eq!(ibv_query_port(context, 0, &raw mut port), EINVAL);
            assert_eq!(ibv_query_port(context, 2, &raw mut port), EINVAL);
            assert_eq!(ibv_query_port(context, 1, null_mut()), EINVAL);
            let mut gid = ibv_gid::default();
            for (port, index) in [(0, 0), (2, 0), (1, 1), (1, -1)] {
                let answer = (ibv_query_gid(context, port, index, &raw mut gid), errno());
                assert_eq!(answer, (-1, EINVAL));
            }
            let mut pkey = 0;
            assert_eq!(ibv_query_pkey(context, 1, 0, &raw mut pkey), 0);
            assert_eq!(pkey, 0xffff);
            let answer = (ibv_query_pkey(context, 1, 1, &raw mut pkey), errno());
            assert_eq!(answer, (-1, EINVAL));
            assert_eq!(ibv_get_pkey_index(context, 1, 0xffff), 0);
            assert_eq!(ibv_get_pkey_index(context, 1, 1), -1);

            let mut rows = [ibv_gid_entry::default(); 2];
            let table = ibv_query_gid_rows(context, &mut rows, 0);
            let answer = (table, rows[0].gid.raw, rows[0].port_num);
            assert_eq!(answer, (1, endpoint.gid.raw, 1));
            let answer = ibv_query_gid_rows(context, &mut rows, 1);
            assert_eq!(answer, -(EOPNOTSUPP as isize));
            assert_eq!(_ibv_query_gid_ex(context, 1, 0, &raw mut rows[1], 0, 32), 0);
            assert_eq!(rows[1].gid.raw, endpoint.gid.raw);
            let answer = _ibv_query_gid_ex(context, 1, 1, &raw mut rows[1], 0, 32);
            assert_eq!(answer, EINVAL);

            let answer = ibv_reg_mr(pd, address, 64, 1 << 3);
            expect_null(answer, EOPNOTSUPP, "atomic access");
            let answer = ibv_reg_mr(pd, address, 64, 1 << 6);
            expect_null(answer, EOPNOTSUPP, "on-demand paging");
            let answer = ibv_reg_mr(pd, address, 64, 3);
            expect_null(answer, EOPNOTSUPP, "remote write on efa1");
            expect_null(ibv_reg_mr(pd, address, 0, 1), EINVAL, "an empty region");
            let relaxed = ibv_reg_mr_iova2(pd, address, 64, address.addr() as u64, 0x10_0005);
            assert!(!relaxed.is_null(), "optional access flags are ignored");
            assert_eq!(ibv_dereg_mr(relaxed), 0);
            let answer = ibv_reg_dmabuf_mr(pd, 0, 64, 0, -1, 1);
            expect_null(answer, EBADF, "a dmabuf without descriptor");
            let answer = ibv_reg_dmabuf_mr(pd, 0, 64, 0, 0, 1);
            expect_null(answer, EINVAL, "a descriptor of something else");

            let cq =
                |entries, vector| ibv_create_cq(context, entries, null_mut(), null_mut(), vector);
            for (entries, vector) in [(0, 0), (-1, 0), (1 << 20, 0), (4, -1), (4, 1000)] {
                expect_null(cq(entries, vector), EINVAL, "ibv_create_cq");
            }
            let rounded = cq(5, 7);
            assert_eq!((*rounded).cqe, 8);
            assert_eq!(ibv_resize_cq(rounded, 16), EOPNOTSUPP);

            let mut attributes: ibv_ah_attr = zeroed();
            expect_null(ibv_create_ah(pd, &raw mut attributes), EINVAL, "port 0");
            attributes.port_num = 1;
            expect_null(ibv_create_ah(pd, &raw mut attributes), EINVAL, "no GID");
            attributes.grh.dgid = endpoint.gid;
            attributes.is_global = 1;
            attributes.grh.sgid_index = 1;
            let answer = ibv_create_ah(pd, &raw mut attributes);
            expect_null(answer, EINVAL, "GID index 1");
            attributes.is_global = 0;
            let handle = ibv_create_ah(pd, &raw mut attributes);
            assert_eq!(ibv_destroy_ah(handle), 0, "nobody looks at the index");
            expect_null(ibv_create_ah(pd, null_mut()), EINVAL, "no attributes");

            expect_null(ibv_create_srq(pd, null_mut()), EOPNOTSUPP, "ibv_create_srq");
            let mut basic: ibv_qp_init_attr = zeroed();
            basic.send_cq = rounded;
            basic.recv_cq = rounded;
            basic.qp_type = 2;
            let answer = ibv_create_qp(pd, &raw mut basic);
            expect_null(answer, EOPNOTSUPP, "an RC queue pair");
            basic.qp_type = IBV_QPT_UD;
            basic.cap.max_send_sge = 6;
            let answer = ibv_create_qp(pd, &raw mut basic);
            expect_null(answer, EINVAL, "six gather entries");
            basic.cap.max_send_sge = 1;
            basic.cap.max_send_wr = 5;
            let ud = ibv_create_qp(pd, &raw mut basic);
            assert!(!ud.is_null());
            assert_eq!((basic.cap.max_send_wr, basic.cap.max_inline_data), (8, 0));
            assert!(ibv_qp_to_qp_ex(ud).is_null(), "made without builders");
            assert_eq!(ibv_attach_mcast(ud, &raw const endpoint.gid, 0), EOPNOTSUPP);
            basic.qp_type = IBV_QPT_DRIVER;
            let answer = efadv_create_driver_qp(pd, &raw mut basic, 1);
            expect_null(answer, EOPNOTSUPP, "driver type 1");
            assert!(!efadv_create_driver_qp(pd, &raw mut basic, 0).is_null());
        }
    });
}

/// `_ibv_query_gid_table` into an array.
///
/// # Safety
/// `context` is live.
unsafe fn ibv_query_gid_rows(
    context: *mut ibv_context,
    rows: &mut [ibv_gid_entry],
    flags: u32,
) -> isize {
    let size = size_of::<ibv_gid_entry>();
    // SAFETY: room for as many rows as are asked for.
    unsafe { _ibv_query_gid_table(context, rows.as_mut_ptr(), rows.len(), flags, size) }
}
