//! Attributes of objects, and the orders in which they can be destroyed.

use std::ffi::{CStr, c_int};
use std::ptr::null_mut;

use efa_device_model::profile::Profile;
use libc::{EBUSY, EINVAL, EOPNOTSUPP};

use crate::on_emulated_host;
use efa_testing::verbs::*;
use efa_verbs_abi::*;

#[test]
fn in_use_are_busy() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let (context, pd) = (endpoint.context, endpoint.pd);
        let region = endpoint.registered(64);
        // SAFETY: live objects.
        unsafe {
            let channel = ibv_create_comp_channel(context);
            let queue = ibv_create_cq(context, 4, null_mut(), channel, 0);
            assert_eq!((*channel).refcnt, 1);
            let pair = endpoint.srd(queue, 0);

            assert_eq!(ibv_destroy_comp_channel(channel), EBUSY);
            assert_eq!(ibv_destroy_cq(queue), EBUSY);
            assert_eq!(ibv_dealloc_pd(pd), EBUSY);
            assert_eq!(ibv_destroy_qp(pair), 0);
            assert_eq!(ibv_destroy_cq(queue), 0);
            assert_eq!(ibv_destroy_comp_channel(channel), 0);
            assert_eq!(ibv_dealloc_pd(pd), EBUSY);
            assert_eq!(ibv_dereg_mr(region), 0);
            assert_eq!(ibv_dealloc_pd(pd), EBUSY);
            assert_eq!(ibv_destroy_ah(endpoint.handle), 0);
            assert_eq!(ibv_dealloc_pd(pd), 0);
            assert_eq!(ibv_close_device(context), 0);
        }
    });
}

/// After an error libfabric closes the device before it frees the protection domain.
#[test]
fn outlive_their_context() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let mut memory = [0u8; 64];
        let region = endpoint.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
        let queue = endpoint.cq(4);
        let pair = endpoint.srd(queue, 0);
        assert_eq!(ibv_close_device(endpoint.context), 0);
        // Closing the device destroyed the queue pair.
        assert_eq!(ibv_destroy_qp(pair), EINVAL);
        let region_after = ibv_reg_mr(endpoint.pd, memory.as_mut_ptr().cast(), 64, 1);
        expect_null(region_after, libc::EBADF, "registration after the end");
        assert_eq!(ibv_destroy_cq(queue), 0);
        assert_eq!(ibv_dereg_mr(region), 0);
        assert_eq!(ibv_destroy_ah(endpoint.handle), 0);
        assert_eq!(ibv_dealloc_pd(endpoint.pd), 0);

        // The device can be opened again.
        Endpoint::new();
    });
}

/// `efa-emu profiles` prints what programs see.
#[test]
fn report_what_the_profiles_print() {
    for profile in Profile::built_in() {
        on_emulated_host(profile.name, || {
            let context = Endpoint::new().context;
            // SAFETY: a live context, and structures of integers on the stack.
            let (device, port, efa, is_efa) = unsafe {
                let (mut device, mut port): (ibv_device_attr, ibv_port_attr) = zeroed();
                let mut efa = efadv_device_attr::default();
                assert_eq!(ibv_query_device(context, &raw mut device), 0);
                assert_eq!(ibv_query_port(context, 1, &raw mut port), 0);
                let answer = efadv_query_device(context, &raw mut efa, 32);
                (device, port, efa, answer == 0)
            };
            // SAFETY: the text ends with a zero.
            let firmware = unsafe { CStr::from_ptr(device.fw_ver.as_ptr()) };
            let mut seen = vec![
                ("vendor_part_id", format!("{:#06x}", device.vendor_part_id)),
                ("hw_ver", format!("{:#06x}", device.hw_ver)),
                ("fw_ver", firmware.to_str().unwrap().to_owned()),
                ("max_msg_sz", port.max_msg_sz.to_string()),
                ("max_sge_rd", device.max_sge_rd.to_string()),
                ("max_qp", device.max_qp.to_string()),
                ("max_cq", device.max_cq.to_string()),
                ("max_cqe", device.max_cqe.to_string()),
                ("max_mr", device.max_mr.to_string()),
                ("max_mr_size", device.max_mr_size.to_string()),
                ("max_pd", device.max_pd.to_string()),
                ("max_ah", device.max_ah.to_string()),
            ];
            if is_efa {
                seen.extend([
                    ("device_caps", format!("{:#04x}", efa.device_caps)),
                    ("max_sq_wr", efa.max_sq_wr.to_string()),
                    ("max_rq_wr", efa.max_rq_wr.to_string()),
                    ("max_sq_sge", efa.max_sq_sge.to_string()),
                    ("max_rq_sge", efa.max_rq_sge.to_string()),
                    ("inline_buf_size", efa.inline_buf_size.to_string()),
                    ("inline_buf_size_ex", efa.inline_buf_size_ex.to_string()),
                    ("max_rdma_size", efa.max_rdma_size.to_string()),
                ]);
            }
            let part = device.vendor_part_id;
            let profile = Profile::built_in().find(|profile| profile.part_id == part);
            let profile = profile.expect("the host has a built-in profile");
            assert_eq!(is_efa, !profile.connected);
            let printed = profile.attributes();
            for (name, value) in seen {
                let row = printed.iter().find(|row| row.name == name).unwrap();
                assert_eq!(row.value, value, "{name} of {}", profile.name);
            }
        });
    }
}

#[test]
fn report_their_attributes() {
    on_emulated_host("efa3", || {
        let endpoint = Endpoint::new();
        let Endpoint {
            context, handle, ..
        } = endpoint;
        // SAFETY: live objects, and attributes on the stack.
        unsafe {
            let mut device: ibv_device_attr = zeroed();
            assert_eq!(ibv_query_device(context, &raw mut device), 0);
            assert_eq!((device.vendor_id, device.vendor_part_id), (0x1d0f, 0xefa3));
            let answer = (device.phys_port_cnt, device.max_pkeys, device.max_srq);
            assert_eq!(answer, (1, 1, 0));

            // Clients of all versions: 48, 52 and 56 bytes, and a later one.
            let query_port = (*verbs_context_of(context)).query_port.unwrap();
            for size in [48, 52, 56, 64] {
                let mut room = [0xaau8; 72];
                assert_eq!(query_port(context, 1, room.as_mut_ptr().cast(), size), 0);
                let port = room.as_ptr().cast::<ibv_port_attr>().read_unaligned();
                assert_eq!((port.state, port.max_msg_sz, port.lmc), (4, 8928, 1));
                assert!(room[56..size.max(56)].iter().all(|byte| *byte == 0));
                assert!(
                    room[size..].iter().all(|byte| *byte == 0xaa),
                    "beyond {size}"
                );
            }

            let mut efa = efadv_device_attr::default();
            assert_eq!(efadv_query_device(context, &raw mut efa, 32), 0);
            let answer = (efa.max_sq_wr, efa.max_rq_wr, efa.device_caps);
            assert_eq!(answer, (4096, 32768, 0x1f));
            assert_eq!((efa.inline_buf_size, efa.inline_buf_size_ex), (32, 80));
            assert_eq!(efadv_query_device(context, &raw mut efa, 22), EINVAL);
            // Without the field of the largest RDMA request, which was added last, no RDMA is
            // reported.
            assert_eq!(efadv_query_device(context, &raw mut efa, 28), 0);
            assert_eq!(efa.device_caps, 0x16);

            let mut number = efadv_ah_attr::default();
            assert_eq!(efadv_query_ah(handle, &raw mut number, 16), 0);
            assert_eq!(efadv_query_ah(handle, &raw mut number, 8), EINVAL);
            // A second handle of the GID has the same number.
            let mut attributes: ibv_ah_attr = zeroed();
            attributes.port_num = 1;
            attributes.grh.dgid = endpoint.gid;
            let twin = ibv_create_ah(endpoint.pd, &raw mut attributes);
            let mut twins = efadv_ah_attr::default();
            assert_eq!(efadv_query_ah(twin, &raw mut twins, 16), 0);
            assert_eq!(twins.ahn, number.ahn);

            let mut depth = efadv_sq_depth_attr {
                max_send_sge: 2,
                max_inline_data: 32,
                ..zeroed()
            };
            assert_eq!(efadv_get_max_sq_depth(context, &raw mut depth, 24), 4096);
            depth.max_inline_data = 33;
            assert_eq!(efadv_get_max_sq_depth(context, &raw mut depth, 24), 2048);
            depth.max_send_sge = 3;
            assert_eq!(efadv_get_max_sq_depth(context, &raw mut depth, 24), -EINVAL);
            depth.max_send_sge = 2;
            // Bytes after the known structure are ignored.
            #[repr(C)]
            struct Longer(efadv_sq_depth_attr, u64);
            let mut longer = Longer(depth, 1);
            let known = (&raw mut longer).cast();
            assert_eq!(efadv_get_max_sq_depth(context, known, 32), 2048);
            let mut depth = efadv_rq_depth_attr {
                max_recv_sge: 3,
                ..zeroed()
            };
            assert_eq!(efadv_get_max_rq_depth(context, &raw mut depth, 16), 10922);
        }
    });
}

/// rdma-core's private structures around the public ones exist.
#[test]
fn lie_in_the_structures_of_rdma_core() {
    on_emulated_host("efa4", || {
        let endpoint = Endpoint::new();
        let mut memory = [0u8; 64];
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_OPTIONAL_RANGE;
        let region = endpoint.register(&mut memory, access);
        let queue = endpoint.cq(4);
        let with_builders = endpoint.srd(queue, IBV_QP_EX_WITH_SEND);
        let (mut attributes, mut efa) = endpoint.srd_request(queue, 0);
        attributes.comp_mask = IBV_QP_INIT_ATTR_PD;
        let _size = size_of::<efadv_qp_init_attr>() as u32;
        // SAFETY: live objects, and attributes on the stack.
        unsafe {
            let plain = endpoint.create(&mut attributes, &mut efa);
            let region: *const verbs_mr = region.cast();
            let answer = ((*region).mr_type, (*region).access);
            assert_eq!(answer, (IBV_MR_TYPE_MR, access as c_int));
            for (pair, mask) in [(plain, 0), (with_builders, VERBS_QP_EX)] {
                let pair: *const verbs_qp = pair.cast();
                assert_eq!((*pair).comp_mask & VERBS_QP_EX, mask);
                assert!((*pair).xrcd.is_null());
            }
            let device: *const verbs_device = (*endpoint.context).device.cast();
            assert_eq!(CStr::from_ptr((*(*device).ops).name), c"efa");
        }
    });
}

#[test]
fn queue_pairs_change_state_by_the_table() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(16);
        let (mut request, mut efa) = endpoint.srd_request(queue, IBV_QP_EX_WITH_SEND);
        // SAFETY: live objects, and attributes on the stack.
        unsafe {
            let pair = endpoint.create(&mut request, &mut efa);
            let modify = |state: c_int, mask: u32, change: fn(&mut ibv_qp_attr)| {
                let mut attributes: ibv_qp_attr = zeroed();
                attributes.qp_state = state;
                attributes.port_num = 1;
                attributes.qkey = 77;
                change(&mut attributes);
                ibv_modify_qp(pair, &raw mut attributes, mask as c_int)
            };
            let none: fn(&mut ibv_qp_attr) = |_| {};
            let answer = modify(IBV_QPS_RTS, IBV_QP_STATE, none);
            assert_eq!(answer, EINVAL, "from reset to RTS");
            let answer = modify(IBV_QPS_INIT, IBV_QP_STATE, none);
            assert_eq!(answer, EINVAL, "without port and keys");
            assert_eq!(modify(IBV_QPS_INIT, IDENTITY, |a| a.port_num = 2), EINVAL);
            assert_eq!(modify(IBV_QPS_INIT, IDENTITY, |a| a.pkey_index = 1), EINVAL);
            let answer = modify(IBV_QPS_INIT, IDENTITY | 1 << 8, none);
            assert_eq!(answer, EOPNOTSUPP, "a path MTU");
            assert_eq!(modify(99, IDENTITY, none), EINVAL, "an unknown state");
            assert_eq!(modify(IBV_QPS_INIT, IDENTITY, none), 0);
            assert_eq!(modify(IBV_QPS_RTR, IBV_QP_STATE, none), 0);
            let retries = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY;
            assert_eq!(modify(IBV_QPS_RTS, retries, |a| a.rnr_retry = 8), EINVAL);
            assert_eq!(modify(IBV_QPS_RTS, retries, |a| a.rnr_retry = 3), 0);

            let mut attributes: ibv_qp_attr = zeroed();
            let mut initial: ibv_qp_init_attr = zeroed();
            let mask = (IBV_QP_STATE | IBV_QP_QKEY | IBV_QP_CAP | IBV_QP_RNR_RETRY) as c_int;
            let answer = ibv_query_qp(pair, &raw mut attributes, mask, &raw mut initial);
            assert_eq!(answer, 0);
            assert_eq!((attributes.qp_state, attributes.qkey), (IBV_QPS_RTS, 77));
            assert_eq!(attributes.cur_qp_state, IBV_QPS_RESET, "left zero");
            assert_eq!((attributes.port_num, attributes.rnr_retry), (1, 3));
            assert_eq!((initial.send_cq, initial.qp_type), (queue, IBV_QPT_DRIVER));
            assert_eq!(initial.cap.max_send_wr, 16);
            let path_mtu = 1 << 8;
            for mask in [path_mtu, IBV_QP_CUR_STATE as c_int] {
                let refused = ibv_query_qp(pair, &raw mut attributes, mask, &raw mut initial);
                assert_eq!(refused, EOPNOTSUPP);
            }

            assert_eq!(modify(IBV_QPS_ERR, IBV_QP_STATE, none), 0);
            assert_eq!((*pair).state, IBV_QPS_ERR);
            let answer = modify(IBV_QPS_RTS, IBV_QP_STATE, none);
            assert_eq!(answer, EINVAL, "out of error by reset only");
            assert_eq!(modify(IBV_QPS_RESET, IBV_QP_STATE, none), 0);

            assert_eq!(ibv_query_qp_data_in_order(pair, 2, 0), 0);
        }
    });
}

/// Features that a generation lacks are refused, so that libfabric falls back.
#[test]
fn of_older_generations_lack_newer_features() {
    on_emulated_host("efa0", || {
        let endpoint = Endpoint::new();
        // SAFETY: live objects, and attributes on the stack.
        unsafe {
            let mut attributes = ibv_cq_init_attr_ex {
                cqe: 100,
                wc_flags: 0x7f,
                ..zeroed()
            };
            let mut efa = efadv_cq_init_attr {
                wc_flags: 1,
                ..zeroed()
            };
            let context = endpoint.context;
            let refused = efadv_create_cq(context, &raw mut attributes, &raw mut efa, 16);
            expect_null(refused, EOPNOTSUPP, "a queue that names unknown senders");
            efa.wc_flags = 0;
            let queue = efadv_create_cq(context, &raw mut attributes, &raw mut efa, 16);
            assert!(!queue.is_null());
            assert_eq!(attributes.cqe, 128);
            assert!((*efadv_cq_from_ibv_cq_ex(queue)).wc_read_sgid.is_none());
            efa.comp_mask = 1;
            let answer = efadv_create_cq(context, &raw mut attributes, &raw mut efa, 16);
            expect_null(answer, EINVAL, "an unknown comp_mask");
            attributes.wc_flags = 1 << 7;
            efa.comp_mask = 0;
            let answer = efadv_create_cq(context, &raw mut attributes, &raw mut efa, 16);
            expect_null(answer, EOPNOTSUPP, "time stamps");
            let (mut request, mut efa) =
                endpoint.srd_request(queue.cast(), IBV_QP_EX_WITH_RDMA_READ);
            let refused = efadv_create_qp_ex(context, &raw mut request, &raw mut efa, 24);
            expect_null(refused, EOPNOTSUPP, "RDMA reads");
        }
    });
}

/// Readers of a completion that the program has not requested are null, and inline data has the
/// requested limit: programs must not rely on more here than EFA has.
#[test]
fn have_only_the_requested_features() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let context = endpoint.context;
        // SAFETY: live objects, and attributes on the stack.
        unsafe {
            for asked in 0..7 {
                let mut attributes = ibv_cq_init_attr_ex {
                    cqe: 4,
                    wc_flags: 1 << asked,
                    ..zeroed()
                };
                // The second flag is undefined, and rdma-core ignores it.
                let mut efa = efadv_cq_init_attr {
                    flags: 1 << 1,
                    ..zeroed()
                };
                let size = size_of_val(&efa) as u32;
                let queue = efadv_create_cq(context, &raw mut attributes, &raw mut efa, size);
                assert!(!queue.is_null(), "errno {}", errno());
                let queue = &*queue;
                let found = [
                    queue.read_byte_len.is_some(),
                    queue.read_imm_data.is_some(),
                    queue.read_qp_num.is_some(),
                    queue.read_src_qp.is_some(),
                    queue.read_slid.is_some(),
                    queue.read_sl.is_some(),
                    queue.read_dlid_path_bits.is_some(),
                ];
                assert_eq!(found, std::array::from_fn(|index| index == asked));
                assert!(queue.read_opcode.is_some() && queue.read_vendor_err.is_some());
                assert!(queue.read_wc_flags.is_some());
                efa.flags = 1;
                let refused = efadv_create_cq(context, &raw mut attributes, &raw mut efa, size);
                expect_null(refused, EOPNOTSUPP, "a queue in memory of the program");
            }

            let queue = endpoint.cq(16);
            for (asked, fits) in [(0, 0), (5, 5), (32, 32), (33, 33), (80, 80)] {
                let (mut request, mut efa) = endpoint.srd_request(queue, 0);
                request.cap.max_inline_data = asked;
                let pair = endpoint.create(&mut request, &mut efa);
                assert_eq!(request.cap.max_inline_data, asked);
                ready(pair);
                let mut data = [7u8; 81];
                for (length, expected) in [(fits, 0), (fits + 1, EINVAL)] {
                    let mut list = [ibv_sge {
                        addr: data.as_mut_ptr().expose_provenance() as u64,
                        length,
                        lkey: 0,
                    }];
                    let mut request = send_request(&endpoint, pair, 1, &mut list);
                    request.send_flags |= IBV_SEND_INLINE;
                    assert_eq!(post_send(pair, &mut request).0, expected, "{length} bytes");
                }
                assert_eq!(ibv_destroy_qp(pair), 0);
            }
        }
    });
}

/// A real device pins the pages of a region, so that they are present from then on.
#[test]
fn registered_memory_is_resident() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let length = 16 * 4096;
        // SAFETY: a private mapping of the test's own, unmapped before the last call names it.
        unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let mapping = libc::mmap(null_mut(), length, protection, flags, -1, 0);
            assert_ne!(mapping, libc::MAP_FAILED);
            let present = || {
                let mut pages = [0_u8; 16];
                assert_eq!(libc::mincore(mapping, length, pages.as_mut_ptr()), 0);
                pages.iter().filter(|page| **page & 1 != 0).count()
            };
            assert_eq!(present(), 0, "nobody has touched it");
            // From the middle of the second page to the middle of the fourth.
            let inside = mapping.byte_add(4096 + 100);
            let write = IBV_ACCESS_LOCAL_WRITE as c_int;
            let region = ibv_reg_mr(endpoint.pd, inside, 2 * 4096, write);
            assert!(!region.is_null());
            assert_eq!(present(), 3);
            assert_eq!(ibv_dereg_mr(region), 0);
            assert_eq!(libc::munmap(mapping, length), 0);
            let unmapped = ibv_reg_mr(endpoint.pd, inside, 64, write);
            expect_null(unmapped, libc::EFAULT, "memory that is not mapped");

            let constant = libc::mmap(null_mut(), length, libc::PROT_READ, flags, -1, 0);
            assert_ne!(constant, libc::MAP_FAILED);
            let writable = ibv_reg_mr(endpoint.pd, constant, 64, write);
            expect_null(writable, libc::EFAULT, "memory that is read-only");
            let readable = ibv_reg_mr(endpoint.pd, constant, 64, 0);
            assert!(!readable.is_null(), "errno {}", errno());
            assert_eq!(ibv_dereg_mr(readable), 0);
        }
    });
}
