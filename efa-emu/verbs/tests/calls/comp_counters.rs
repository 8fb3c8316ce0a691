//! Completion counters, used as libfabric uses them: one for each kind of operation, attached
//! before the queue pair leaves the state reset, and read without polling.

use std::ffi::c_int;
use std::ptr::null;

use efa_testing::patience::Wait;
use libc::{EBUSY, EINVAL, EOPNOTSUPP};

use crate::exchange::{ALL_OPS, build};
use crate::on_emulated_host;
use efa_testing::verbs::*;
use efa_verbs_abi::*;

const SEND: u32 = 1 << 0;
const RECV: u32 = 1 << 1;
const RDMA_READ: u32 = 1 << 2;
const REMOTE_RDMA_READ: u32 = 1 << 3;
const RDMA_WRITE: u32 = 1 << 4;
const REMOTE_RDMA_WRITE: u32 = 1 << 5;
const ALL: [u32; 6] = [
    SEND,
    RECV,
    RDMA_READ,
    REMOTE_RDMA_READ,
    RDMA_WRITE,
    REMOTE_RDMA_WRITE,
];

fn create(
    context: *mut ibv_context,
    attributes: ibv_comp_cntr_init_attr,
    efa: efadv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    let size = size_of_val(&efa) as u32;
    // SAFETY: a live context, and attributes on the stack.
    unsafe { efadv_create_comp_cntr(context, &raw const attributes, &raw const efa, size) }
}

fn simple(context: *mut ibv_context) -> *mut ibv_comp_cntr {
    let counter = create(context, Default::default(), Default::default());
    assert!(!counter.is_null(), "errno {}", errno());
    counter
}

fn attach(pair: *mut ibv_qp, counter: *mut ibv_comp_cntr, op_mask: u32) -> c_int {
    let attributes = ibv_qp_attach_comp_cntr_attr {
        comp_mask: 0,
        op_mask,
    };
    // SAFETY: live objects, and attributes on the stack.
    unsafe { ibv_qp_attach_comp_cntr(pair, counter, &raw const attributes) }
}

/// Completions and errors.
fn read(counter: *mut ibv_comp_cntr) -> (u64, u64) {
    let (mut completions, mut errors) = (0, 0);
    // SAFETY: a live counter, and room for its values.
    unsafe {
        assert_eq!(ibv_read_comp_cntr(counter, &raw mut completions), 0);
        assert_eq!(ibv_read_err_comp_cntr(counter, &raw mut errors), 0);
    }
    (completions, errors)
}

#[track_caller]
fn expect(counter: *mut ibv_comp_cntr, expected: (u64, u64)) {
    let wait = Wait::start();
    while read(counter) != expected {
        wait.pause(|| format!("{:?} instead of {expected:?}", read(counter)));
    }
}

/// A queue pair in the state reset.
fn reset_pair(endpoint: &Endpoint, queue: *mut ibv_cq) -> *mut ibv_qp {
    let (mut attributes, mut efa) = endpoint.srd_request(queue, ALL_OPS);
    endpoint.create(&mut attributes, &mut efa)
}

#[test]
fn count_each_kind_of_operation() {
    on_emulated_host("efa4", || {
        let endpoint = Endpoint::new();
        let mut device = efadv_device_attr::default();
        let mut caps = ibv_comp_cntr_caps::default();
        // SAFETY: a live context, and room for the answers.
        unsafe {
            assert_eq!(efadv_query_device(endpoint.context, &raw mut device, 32), 0);
            let got = _ibv_query_comp_cntr_caps(endpoint.context, &raw mut caps, 16);
            assert_eq!(got, 0);
        }
        assert_ne!(device.device_caps & 1 << 6, 0);
        assert!(caps.max_counters >= 12 && caps.max_value == u64::MAX);
        assert_eq!(caps.supported_qp_attach_ops, ALL.iter().sum::<u32>());

        let queue = endpoint.cq(64);
        let (one, two) = (reset_pair(&endpoint, queue), reset_pair(&endpoint, queue));
        let [of_one, of_two] = [one, two].map(|pair| {
            ALL.map(|op| {
                let counter = simple(endpoint.context);
                assert_eq!(attach(pair, counter, op), 0);
                counter
            })
        });
        ready(one);
        ready(two);
        let mut memory = [0u8; 64];
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
        let region = endpoint.register(&mut memory, access);
        for wr_id in 0..4 {
            assert_eq!(post_recv(two, wr_id, &mut [sge(region, 0, 8)]), 0);
        }
        for wr_id in 0..3 {
            send(&endpoint, one, two, wr_id, &mut [sge(region, 8, 8)]);
        }
        // SAFETY: live objects, and the session of a correct program.
        unsafe {
            let (lkey, rkey) = ((*region).lkey, (*region).rkey);
            let address = (*region).addr.addr() as u64;
            for wrong in [false, true] {
                let key = if wrong { rkey ^ 0x100 } else { rkey };
                build(one, 9, |builders| {
                    let to = (*two).qp_num;
                    (*builders).wr_rdma_read.unwrap()(builders, key, address + 16);
                    (*builders).wr_set_ud_addr.unwrap()(builders, endpoint.handle, to, QKEY);
                    (*builders).wr_set_sge.unwrap()(builders, lkey, address + 24, 8);
                    (*builders).wr_rdma_write.unwrap()(builders, key, address + 32);
                    (*builders).wr_set_ud_addr.unwrap()(builders, endpoint.handle, to, QKEY);
                    (*builders).wr_set_sge.unwrap()(builders, lkey, address + 40, 8);
                });
            }
        }
        // The values change without polling.
        let counted_by_one = [(3, 0), (0, 0), (1, 1), (0, 0), (1, 1), (0, 0)];
        let counted_by_two = [(0, 0), (3, 0), (0, 0), (1, 0), (0, 0), (1, 0)];
        for (counters, expected) in [(of_one, counted_by_one), (of_two, counted_by_two)] {
            (0..ALL.len()).for_each(|op| expect(counters[op], expected[op]));
        }
        // The completion queue has an entry for each of them as well.
        assert_eq!(wait_for(queue, 3 + 3 + 4).len(), 10);
        // Flushed requests count as errors.
        change_state(two, IBV_QPS_ERR, IBV_QP_STATE);
        expect(of_two[1], (3, 1));

        assert_eq!(ibv_destroy_comp_cntr(of_one[0]), EBUSY);
        assert_eq!(ibv_destroy_qp(one), 0);
        assert_eq!(ibv_destroy_qp(two), 0);
        for counter in of_one.into_iter().chain(of_two) {
            assert_eq!(ibv_destroy_comp_cntr(counter), 0);
            assert_eq!(ibv_destroy_comp_cntr(counter), EINVAL);
        }
    });
}

#[test]
fn are_set_and_incremented_in_program_memory() {
    on_emulated_host("efa4", || {
        let endpoint = Endpoint::new();
        let mut values = [7u64, 8];
        let at = |index: usize| efadv_memory_location {
            ptr: (&raw const values[index]).expose_provenance(),
            ..Default::default()
        };
        let efa = efadv_comp_cntr_init_attr {
            flags: 0b11,
            comp_cntr_ext_mem: at(0),
            err_cntr_ext_mem: at(1),
            ..Default::default()
        };
        let counter = create(endpoint.context, Default::default(), efa);
        let value = |index: usize| {
            // SAFETY: the program's own memory, which the device writes, too.
            unsafe { (&raw const values).cast::<u64>().add(index).read_volatile() }
        };
        assert_eq!(read(counter), (7, 8));
        assert_eq!(ibv_set_comp_cntr(counter, 100), 0);
        assert_eq!(ibv_inc_comp_cntr(counter, 5), 0);
        assert_eq!(ibv_set_err_comp_cntr(counter, 1), 0);
        assert_eq!(ibv_inc_err_comp_cntr(counter, 2), 0);

        assert_eq!((value(0), value(1)), (105, 3));

        // One counter for several operations of two queue pairs.
        let queue = endpoint.cq(16);
        let (one, two) = (reset_pair(&endpoint, queue), reset_pair(&endpoint, queue));
        assert_eq!(attach(one, counter, SEND | RDMA_READ), 0);
        change_state(two, IBV_QPS_INIT, IDENTITY);
        assert_eq!(attach(two, counter, RECV), 0);
        let got = attach(one, counter, RDMA_READ | RDMA_WRITE);
        assert_eq!(got, EBUSY, "it has one");
        assert_eq!(attach(one, counter, 0), EINVAL);
        assert_eq!(attach(one, foreign(), SEND), EINVAL);
        change_state(two, IBV_QPS_RTR, IBV_QP_STATE);
        assert_eq!(attach(two, counter, SEND), EINVAL, "not before it works");
        ready(one);
        assert_eq!(post_recv(two, 1, &mut []), 0);
        send(&endpoint, one, two, 2, &mut []);
        expect(counter, (107, 3));
        values[0] = 0;
        std::hint::black_box(&mut values);
        assert_eq!(read(counter).0, 0, "it is the program's memory");
        assert_eq!(ibv_destroy_qp(one), 0);
        assert_eq!(ibv_destroy_comp_cntr(counter), EBUSY);
        assert_eq!(ibv_destroy_qp(two), 0);
        assert_eq!(ibv_destroy_comp_cntr(counter), 0);
    });
}

#[test]
fn are_refused_as_by_rdma_core() {
    on_emulated_host("efa4", || {
        let context = Endpoint::new().context;
        let bytes = ibv_comp_cntr_init_attr {
            r#type: 1,
            ..Default::default()
        };
        let got = create(context, bytes, Default::default());
        expect_null(got, EOPNOTSUPP, "bytes");
        let flags = ibv_comp_cntr_init_attr {
            flags: 1,
            ..Default::default()
        };
        let got = create(context, flags, Default::default());
        expect_null(got, EOPNOTSUPP, "flags");
        let mut efa = efadv_comp_cntr_init_attr {
            flags: 1,
            ..Default::default()
        };
        let got = create(context, Default::default(), efa);
        expect_null(got, libc::EFAULT, "null");
        efa.comp_cntr_ext_mem.r#type = 1;
        let got = create(context, Default::default(), efa);
        expect_null(got, EOPNOTSUPP, "dmabuf");
        let attributes = ibv_comp_cntr_init_attr::default();
        // SAFETY: a live context, and attributes on the stack, shorter than any release's.
        let short =
            unsafe { efadv_create_comp_cntr(context, &raw const attributes, &raw const efa, 72) };
        expect_null(short, EINVAL, "short");
        // SAFETY: a live context, and attributes on the stack.
        unsafe {
            let got = ibv_create_comp_cntr(context, null());
            expect_null(got, EINVAL, "no attributes");
            let counter = ibv_create_comp_cntr(context, &raw const attributes);
            assert_eq!(read(counter), (0, 0));
            assert_eq!(ibv_destroy_comp_cntr(counter), 0);
        }
    });
}

#[test]
fn are_not_there_before_efa4() {
    on_emulated_host("efa3", || {
        let context = Endpoint::new().context;
        let mut caps = ibv_comp_cntr_caps::default();
        // SAFETY: a live context, and room for the answer.
        let result = unsafe { _ibv_query_comp_cntr_caps(context, &raw mut caps, 16) };
        assert_eq!(result, EOPNOTSUPP);
        let got = create(context, Default::default(), Default::default());
        expect_null(got, EOPNOTSUPP, "efa3");
    });
}
