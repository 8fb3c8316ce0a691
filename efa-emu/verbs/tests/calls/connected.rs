//! Bad calls on connected queue pairs, shared receive queues and tag lists: the errno of each call.
//! Another connection continues. `docs/tag-matching.md` has the table.

use std::ffi::c_int;
use std::ptr::null_mut;

use efa_device_model::device::connected::{
    ConnectionMask as M, MAX_INLINE, MAX_RD_ATOMIC, MAX_TAG_OPERATIONS, MAX_TAGS, MAX_WR,
};
use efa_device_model::limits::{MAX_MESSAGE, MAX_SGE};
use efa_testing::workspace;
use efa_verbs_abi::*;
use libc::{EBUSY, EINVAL, ENOMEM, EOPNOTSUPP};

use crate::on_emulated_host;
use efa_testing::verbs::*;

/// The depth of connected queue pairs and shared receive queues in these tests.
const DEPTH: u32 = 4;
const TAGS: u32 = 2;

/// Bits of `ibv_qp_attr_mask` that no queue pair of the device supports.
const RATE_LIMIT: u32 = 1 << 25;

const IDENTITY: M = M::PKEY_INDEX.union(M::PORT).union(M::ACCESS_FLAGS);
const RECEIVING: M = M::AV
    .union(M::PATH_MTU)
    .union(M::DESTINATION)
    .union(M::RQ_PSN)
    .union(M::MAX_DEST_RD_ATOMIC)
    .union(M::MIN_RNR_TIMER);
const SENDING: M = M::TIMEOUT
    .union(M::RETRY_COUNT)
    .union(M::RNR_RETRY)
    .union(M::SQ_PSN)
    .union(M::MAX_RD_ATOMIC);

/// The steps from reset to ready to send, with the attributes that each requires.
const STEPS: [(c_int, M); 3] = [
    (IBV_QPS_INIT, IDENTITY),
    (IBV_QPS_RTR, RECEIVING),
    (IBV_QPS_RTS, SENDING),
];

const STATES: [c_int; 6] = [
    IBV_QPS_RESET,
    IBV_QPS_INIT,
    IBV_QPS_RTR,
    IBV_QPS_RTS,
    IBV_QPS_SQD,
    IBV_QPS_ERR,
];

/// A device with a working connection, and the objects of bad calls.
struct Machine {
    endpoint: Endpoint,
    queue: *mut ibv_cq,
    region: *mut ibv_mr,
    basic: *mut ibv_srq,
    tagged: *mut ibv_srq,
    connection: [*mut ibv_qp; 2],
}

impl Machine {
    fn new() -> Machine {
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(256);
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
        let region = endpoint.register(Vec::leak(vec![0u8; 4096]), access);
        let mut machine = Machine {
            endpoint,
            queue,
            region,
            basic: null_mut(),
            tagged: null_mut(),
            connection: [null_mut(); 2],
        };
        machine.basic = machine.srq(|_| ());
        machine.tagged = machine.srq(of_tags);
        assert!(!machine.basic.is_null() && !machine.tagged.is_null());
        machine.connection = machine.connect(|_| ());
        machine
    }

    /// Makes a queue pair with changed attributes; null with `errno`.
    fn pair(&self, change: impl FnOnce(&mut ibv_qp_init_attr_ex)) -> *mut ibv_qp {
        let mut attributes: ibv_qp_init_attr_ex = zeroed();
        attributes.send_cq = self.queue;
        attributes.recv_cq = self.queue;
        attributes.cap = ibv_qp_cap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 16,
        };
        attributes.qp_type = IBV_QPT_RC;
        attributes.comp_mask = IBV_QP_INIT_ATTR_PD;
        attributes.pd = self.endpoint.pd;
        change(&mut attributes);
        // SAFETY: a live context, and attributes on the stack.
        unsafe {
            let create = (*verbs_context_of(self.endpoint.context)).create_qp_ex;
            create.unwrap()(self.endpoint.context, &raw mut attributes)
        }
    }

    fn pair_in(&self, state: c_int) -> *mut ibv_qp {
        let pair = self.pair(|_| ());
        self.bring(pair, 1, state);
        pair
    }

    /// Makes a shared receive queue with changed attributes; null with `errno`.
    fn srq(&self, change: impl FnOnce(&mut ibv_srq_init_attr_ex)) -> *mut ibv_srq {
        let mut attributes: ibv_srq_init_attr_ex = zeroed();
        attributes.attr.max_wr = DEPTH;
        attributes.attr.max_sge = 1;
        attributes.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
        attributes.srq_type = IBV_SRQT_BASIC;
        attributes.pd = self.endpoint.pd;
        attributes.cq = self.queue;
        attributes.tm_cap.max_num_tags = TAGS;
        attributes.tm_cap.max_ops = 1;
        change(&mut attributes);
        // SAFETY: a live context, and attributes on the stack.
        unsafe {
            let create = (*verbs_context_of(self.endpoint.context)).create_srq_ex;
            create.unwrap()(self.endpoint.context, &raw mut attributes)
        }
    }

    /// Attributes without errors.
    fn attributes(&self, peer: u32) -> ibv_qp_attr {
        let mut attributes: ibv_qp_attr = zeroed();
        attributes.port_num = 1;
        attributes.path_mtu = 3;
        attributes.dest_qp_num = peer;
        attributes.ah_attr.is_global = 1;
        attributes.ah_attr.port_num = 1;
        attributes.ah_attr.grh.dgid = self.endpoint.gid;
        attributes.min_rnr_timer = 1;
        attributes.timeout = 14;
        attributes.retry_cnt = 7;
        attributes.rnr_retry = 7;
        attributes.max_rd_atomic = 1;
        attributes.max_dest_rd_atomic = 1;
        attributes
    }

    fn bring(&self, pair: *mut ibv_qp, peer: u32, state: c_int) {
        let attributes = self.attributes(peer);
        for (step, mask) in STEPS {
            if step <= state && state < IBV_QPS_ERR {
                assert_eq!(modify(pair, step, attributes, mask.bits()), 0, "to {step}");
            }
        }
        if state > IBV_QPS_RTS {
            assert_eq!(modify(pair, state, attributes, 0), 0, "to {state}");
        }
    }

    /// Makes a queue pair in the state before `state`, and changes it with one wrong attribute.
    fn with_wrong(&self, state: c_int, mask: M, spoil: impl FnOnce(&mut ibv_qp_attr)) -> c_int {
        let pair = self.pair_in(state - 1);
        let mut attributes = self.attributes(1);
        spoil(&mut attributes);
        let result = modify(pair, state, attributes, mask.bits());
        assert_eq!(state_of(pair), state - 1, "it stays as it was");
        result
    }

    /// Posts a changed send to a working queue pair.
    fn send(&self, change: impl FnOnce(&mut ibv_send_wr)) -> c_int {
        let pair = self.connection[0];
        let mut list = [sge(self.region, 0, 8)];
        let mut request = send_request(&self.endpoint, pair, 1, &mut list);
        change(&mut request);
        let (result, bad) = post_send(pair, &mut request);
        assert_eq!(bad, &raw mut request);
        result
    }

    /// Executes a changed operation on the tag list of a shared receive queue.
    fn operate(&self, srq: *mut ibv_srq, change: impl FnOnce(&mut ibv_ops_wr)) -> c_int {
        let mut list = [sge(self.region, 0, 8)];
        let mut request: ibv_ops_wr = zeroed();
        request.tm.add.sg_list = list.as_mut_ptr();
        request.tm.add.num_sge = 1;
        change(&mut request);
        let mut bad = null_mut();
        // SAFETY: the requests are on the stack, and queues that are none are refused.
        let result = unsafe {
            let post = (*verbs_context_of(self.endpoint.context)).post_srq_ops;
            post.unwrap()(srq, &raw mut request, &raw mut bad)
        };
        if result != 0 {
            assert_eq!(bad, &raw mut request);
        }
        result
    }

    fn post_srq(&self, srq: *mut ibv_srq, list: &mut [ibv_sge]) -> c_int {
        let mut request = ibv_recv_wr {
            wr_id: 1,
            next: null_mut(),
            sg_list: list.as_mut_ptr(),
            num_sge: list.len() as c_int,
        };
        let mut bad = null_mut();
        // SAFETY: as above.
        unsafe {
            let post = (*self.endpoint.context).ops.post_srq_recv.unwrap();
            post(srq, &raw mut request, &raw mut bad)
        }
    }

    /// Two queue pairs with changed attributes, connected to each other.
    fn connect(&self, change: impl Fn(&mut ibv_qp_init_attr_ex)) -> [*mut ibv_qp; 2] {
        let pairs = [self.pair(&change), self.pair(&change)];
        for (own, peer) in [(0, 1), (1, 0)] {
            // SAFETY: a live queue pair.
            let number = unsafe { (*pairs[peer]).qp_num };
            self.bring(pairs[own], number, IBV_QPS_RTS);
        }
        pairs
    }

    /// Sends a message over a connection, with no other completions. Returns its length.
    fn carries(
        &self,
        [from, to]: [*mut ibv_qp; 2],
        (mut list, mut buffers): (Vec<ibv_sge>, Vec<ibv_sge>),
        what: &str,
    ) -> u32 {
        assert_eq!(post_recv(to, 7, &mut buffers), 0, "{what}");
        let mut request = send_request(&self.endpoint, to, 8, &mut list);
        assert_eq!(post_send(from, &mut request).0, 0, "{what}");
        let found = wait_for(self.queue, 2);
        let ends: Vec<_> = found.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(ends, [(7, 0), (8, 0)], "{what}");
        found[0].byte_len
    }

    /// Checks that the connection still works.
    fn goes_on(&self, what: &str) {
        let lists = (
            vec![sge(self.region, 0, 64)],
            vec![sge(self.region, 1024, 64)],
        );
        assert_eq!(self.carries(self.connection, lists, what), 64, "{what}");
    }
}

fn of_tags(attributes: &mut ibv_srq_init_attr_ex) {
    attributes.srq_type = IBV_SRQT_TM;
    attributes.comp_mask |= IBV_SRQ_INIT_ATTR_TM | IBV_SRQ_INIT_ATTR_CQ;
}

fn modify(pair: *mut ibv_qp, state: c_int, mut attributes: ibv_qp_attr, mask: u32) -> c_int {
    attributes.qp_state = state;
    let mask = mask | IBV_QP_STATE;
    // SAFETY: a live queue pair, and attributes on the stack.
    unsafe { ibv_modify_qp(pair, &raw mut attributes, mask as c_int) }
}

fn state_of(pair: *mut ibv_qp) -> c_int {
    let (mut attributes, mut initial): (ibv_qp_attr, ibv_qp_init_attr) = (zeroed(), zeroed());
    let mask = IBV_QP_STATE as c_int;
    // SAFETY: a live queue pair, and structures on the stack.
    let result = unsafe { ibv_query_qp(pair, &raw mut attributes, mask, &raw mut initial) };
    assert_eq!(result, 0);
    attributes.qp_state
}

/// Whether verbs allow this change of state.
fn is_allowed(from: c_int, to: c_int) -> bool {
    use IBV_QPS_ERR as ERR;
    use IBV_QPS_INIT as INIT;
    use IBV_QPS_RESET as RESET;
    use IBV_QPS_RTR as RTR;
    use IBV_QPS_RTS as RTS;
    use IBV_QPS_SQD as SQD;
    matches!(
        (from, to),
        (_, RESET | ERR)
            | (RESET | INIT, INIT)
            | (INIT, RTR)
            | (RTR | RTS | SQD, RTS)
            | (RTS | SQD, SQD)
    )
}

/// The errno of a call that returns an object.
fn null_errno<T>(pointer: *mut T) -> c_int {
    assert!(pointer.is_null(), "it was made");
    errno()
}

/// What is wrong with a call.
struct Mistake(&'static str);

impl Mistake {
    const fn gives(self, errno: c_int, make: fn(&Machine) -> Vec<c_int>) -> BadCall {
        let Mistake(what) = self;
        BadCall { what, errno, make }
    }
}

struct BadCall {
    what: &'static str,
    errno: c_int,
    /// Makes the call, maybe in several variants, and returns its results.
    make: fn(&Machine) -> Vec<c_int>,
}

const MODIFY_QP: &[BadCall] = &[
    Mistake("a change of state that the verbs do not have").gives(EINVAL, |machine| {
        let mut results = Vec::new();
        for from in STATES {
            for to in STATES.into_iter().filter(|to| !is_allowed(from, *to)) {
                let masks = STEPS.iter().map(|(_, mask)| mask.bits()).chain([0]);
                for mask in masks {
                    let pair = machine.pair_in(from);
                    results.push(modify(pair, to, machine.attributes(1), mask));
                    assert_eq!(state_of(pair), from);
                }
            }
        }
        results
    }),
    Mistake("a state that is none").gives(EINVAL, |machine| {
        let states = [-1, 5, 7, c_int::MAX];
        let change = |state| modify(machine.pair(|_| ()), state, machine.attributes(1), 0);
        states.map(change).to_vec()
    }),
    Mistake("a current state that it is not in").gives(EINVAL, |machine| {
        let pair = machine.pair_in(IBV_QPS_RTS);
        let mut attributes = machine.attributes(1);
        attributes.cur_qp_state = IBV_QPS_SQD;
        vec![modify(pair, IBV_QPS_RTS, attributes, IBV_QP_CUR_STATE)]
    }),
    Mistake("one of the required attributes is missing").gives(EINVAL, |machine| {
        let missing = |(state, mask): (c_int, M)| {
            let masks = mask.iter().map(move |bit| mask.difference(bit));
            masks.map(move |mask| machine.with_wrong(state, mask, |_| ()))
        };
        STEPS.into_iter().flat_map(missing).collect()
    }),
    Mistake("an attribute that does not belong to the change").gives(EINVAL, |machine| {
        let surplus =
            |(state, mask): (c_int, M)| machine.with_wrong(state, mask | M::DRAINED_EVENT, |_| ());
        STEPS.map(surplus).to_vec()
    }),
    Mistake("a Q-key, which is for UD").gives(EINVAL, |machine| {
        let pair = machine.pair(|_| ());
        let mask = IDENTITY.bits() | IBV_QP_QKEY;
        vec![modify(pair, IBV_QPS_INIT, machine.attributes(1), mask)]
    }),
    Mistake("alternate paths, other sizes, a rate limit").gives(EOPNOTSUPP, |machine| {
        let (path, migration) = (M::ALTERNATE_PATH.bits(), M::PATH_MIGRATION.bits());
        let change = |bit| {
            let pair = machine.pair_in(IBV_QPS_INIT);
            modify(
                pair,
                IBV_QPS_RTR,
                machine.attributes(1),
                RECEIVING.bits() | bit,
            )
        };
        [path, migration, IBV_QP_CAP, RATE_LIMIT]
            .map(change)
            .to_vec()
    }),
    Mistake("P-key index 1, port 0 or 2").gives(EINVAL, |machine| {
        let wrong = |spoil: fn(&mut ibv_qp_attr)| machine.with_wrong(IBV_QPS_INIT, IDENTITY, spoil);
        vec![
            wrong(|to| to.pkey_index = 1),
            wrong(|to| to.port_num = 0),
            wrong(|to| to.port_num = 2),
        ]
    }),
    Mistake("access flags that the device does not have").gives(EOPNOTSUPP, |machine| {
        vec![machine.with_wrong(IBV_QPS_INIT, IDENTITY, |to| {
            to.qp_access_flags = 1 << 15;
        })]
    }),
    Mistake("path MTU 0 or 6").gives(EINVAL, |machine| {
        let wrong = |mtu| machine.with_wrong(IBV_QPS_RTR, RECEIVING, |to| to.path_mtu = mtu);
        vec![wrong(0), wrong(6), wrong(-1)]
    }),
    Mistake("an address without GRH, or with GID index 1").gives(EINVAL, |machine| {
        let wrong = |spoil: fn(&mut ibv_qp_attr)| machine.with_wrong(IBV_QPS_RTR, RECEIVING, spoil);
        vec![
            wrong(|to| to.ah_attr.is_global = 0),
            wrong(|to| to.ah_attr.grh.sgid_index = 1),
        ]
    }),
    Mistake("a queue pair number of more than 24 bits").gives(EINVAL, |machine| {
        vec![machine.with_wrong(IBV_QPS_RTR, RECEIVING, |to| to.dest_qp_num = 1 << 24)]
    }),
    Mistake("more reads than the device has").gives(EINVAL, |machine| {
        let most = MAX_RD_ATOMIC;
        vec![
            machine.with_wrong(IBV_QPS_RTR, RECEIVING, |to| {
                to.max_dest_rd_atomic = most + 1
            }),
            machine.with_wrong(IBV_QPS_RTS, SENDING, |to| to.max_rd_atomic = most + 1),
        ]
    }),
    Mistake("RNR timer 32, timeout 32, 8 retries").gives(EINVAL, |machine| {
        let sending = |spoil: fn(&mut ibv_qp_attr)| machine.with_wrong(IBV_QPS_RTS, SENDING, spoil);
        vec![
            machine.with_wrong(IBV_QPS_RTR, RECEIVING, |to| to.min_rnr_timer = 32),
            sending(|to| to.timeout = 32),
            sending(|to| to.retry_cnt = 8),
            sending(|to| to.rnr_retry = 8),
        ]
    }),
];

const CREATE_QP_EX: &[BadCall] = &[
    Mistake("a type other than RC and UD").gives(EOPNOTSUPP, |machine| {
        let of_type = |kind| null_errno(machine.pair(|request| request.qp_type = kind));
        [3, 8, 9, 10, IBV_QPT_DRIVER, 77].map(of_type).to_vec()
    }),
    Mistake("no protection domain, or no completion queue").gives(EINVAL, |machine| {
        let without = |change: fn(&mut ibv_qp_init_attr_ex)| null_errno(machine.pair(change));
        vec![
            without(|request| request.comp_mask = 0),
            without(|request| request.pd = null_mut()),
            without(|request| request.send_cq = null_mut()),
            without(|request| request.recv_cq = null_mut()),
        ]
    }),
    Mistake("more requests, buffers or inline data than there are").gives(EINVAL, |m| {
        let with =
            |change: fn(&mut ibv_qp_cap)| null_errno(m.pair(|request| change(&mut request.cap)));
        vec![
            with(|cap| cap.max_send_wr = MAX_WR + 1),
            with(|cap| cap.max_recv_wr = MAX_WR + 1),
            with(|cap| cap.max_send_sge = MAX_SGE as u32 + 1),
            with(|cap| cap.max_recv_sge = MAX_SGE as u32 + 1),
            with(|cap| cap.max_inline_data = MAX_INLINE as u32 + 1),
        ]
    }),
    Mistake("a shared receive queue that is none").gives(EINVAL, |machine| {
        let srq = machine.queue.cast();
        vec![null_errno(machine.pair(|request| request.srq = srq))]
    }),
    Mistake("builders that the device does not have").gives(EOPNOTSUPP, |machine| {
        vec![null_errno(machine.pair(|request| {
            request.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            request.send_ops_flags = 1 << 9;
        }))]
    }),
];

const CREATE_SRQ_EX: &[BadCall] = &[
    Mistake("a type other than BASIC and TM").gives(EOPNOTSUPP, |machine| {
        let of_type = |kind| null_errno(machine.srq(|request| request.srq_type = kind));
        [1, 3, u32::MAX].map(of_type).to_vec()
    }),
    Mistake("no protection domain").gives(EINVAL, |machine| {
        vec![
            null_errno(machine.srq(|request| request.comp_mask = IBV_SRQ_INIT_ATTR_TYPE)),
            null_errno(machine.srq(|request| request.pd = null_mut())),
        ]
    }),
    Mistake("more receives or buffers than there are").gives(EINVAL, |machine| {
        vec![
            null_errno(machine.srq(|request| request.attr.max_wr = MAX_WR + 1)),
            null_errno(machine.srq(|request| request.attr.max_sge = MAX_SGE as u32 + 1)),
        ]
    }),
    Mistake("TM without `tm_cap` or completion queue").gives(EINVAL, |machine| {
        let tagged = |change: fn(&mut ibv_srq_init_attr_ex)| {
            null_errno(machine.srq(|request| {
                of_tags(request);
                change(request);
            }))
        };
        vec![
            tagged(|request| request.comp_mask &= !IBV_SRQ_INIT_ATTR_TM),
            tagged(|request| request.comp_mask &= !IBV_SRQ_INIT_ATTR_CQ),
            tagged(|request| request.cq = null_mut()),
        ]
    }),
    Mistake("no tags, too many, or too many operations").gives(EINVAL, |machine| {
        let tagged = |change: fn(&mut ibv_tm_cap)| {
            null_errno(machine.srq(|request| {
                of_tags(request);
                change(&mut request.tm_cap);
            }))
        };
        vec![
            tagged(|cap| cap.max_num_tags = 0),
            tagged(|cap| cap.max_num_tags = MAX_TAGS + 1),
            tagged(|cap| cap.max_ops = MAX_TAG_OPERATIONS + 1),
        ]
    }),
];

const MODIFY_SRQ: &[BadCall] = &[
    Mistake("a limit beyond the size, no size, one beyond the device").gives(EINVAL, |m| {
        let modify = |mask, max_wr, srq_limit| {
            let mut attributes = ibv_srq_attr {
                max_wr,
                max_sge: 1,
                srq_limit,
            };
            // SAFETY: a live queue.
            unsafe { ibv_modify_srq(m.basic, &raw mut attributes, mask) }
        };
        vec![
            modify(IBV_SRQ_LIMIT, 0, DEPTH + 1),
            modify(IBV_SRQ_MAX_WR, 0, 0),
            modify(IBV_SRQ_MAX_WR, MAX_WR + 1, 0),
            modify(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT, DEPTH + 1, DEPTH + 2),
            modify(1 << 2, DEPTH, 0),
        ]
    }),
    Mistake("a size below what is posted").gives(EINVAL, |machine| {
        let srq = machine.srq(|_| ());
        for _ in 0..2 {
            let posted = machine.post_srq(srq, &mut [sge(machine.region, 0, 8)]);
            assert_eq!(posted, 0);
        }
        let mut attributes: ibv_srq_attr = zeroed();
        attributes.max_wr = 1;
        // SAFETY: a live queue.
        vec![unsafe { ibv_modify_srq(srq, &raw mut attributes, IBV_SRQ_MAX_WR) }]
    }),
];

const DESTROY_SRQ: &[BadCall] =
    &[
        Mistake("a queue that a queue pair receives from").gives(EBUSY, |machine| {
            let srq = machine.srq(|_| ());
            assert!(!machine.pair(|request| request.srq = srq.cast()).is_null());
            // SAFETY: a live queue.
            vec![unsafe { ibv_destroy_srq(srq) }]
        }),
    ];

const POST_SRQ_RECV: &[BadCall] = &[
    Mistake("more buffers than were asked for").gives(EINVAL, |machine| {
        let mut list = [sge(machine.region, 0, 8); 2];
        vec![machine.post_srq(machine.basic, &mut list)]
    }),
    Mistake("a full queue").gives(ENOMEM, |machine| {
        let srq = machine.srq(|_| ());
        let mut list = [sge(machine.region, 0, 8)];
        for _ in 0..DEPTH {
            assert_eq!(machine.post_srq(srq, &mut list), 0);
        }
        vec![machine.post_srq(srq, &mut list)]
    }),
];

const POST_RECV: &[BadCall] = &[
    Mistake("a queue pair in the state RESET, or with a shared queue").gives(EINVAL, |m| {
        let mut list = [sge(m.region, 0, 8)];
        let shared = m.pair(|request| request.srq = m.basic.cast());
        m.bring(shared, 1, IBV_QPS_INIT);
        vec![
            post_recv(m.pair(|_| ()), 1, &mut list),
            post_recv(shared, 1, &mut list),
        ]
    }),
];

const POST_SEND: &[BadCall] = &[
    Mistake("a queue pair in the states RESET, INIT and RTR").gives(EINVAL, |machine| {
        let send = |state| {
            let mut list = [sge(machine.region, 0, 8)];
            let pair = machine.pair_in(state);
            post_send(
                pair,
                &mut send_request(&machine.endpoint, pair, 1, &mut list),
            )
            .0
        };
        [IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR]
            .map(send)
            .to_vec()
    }),
    Mistake("an operation that RC does not have").gives(EINVAL, |machine| {
        let with = |opcode| machine.send(|request| request.opcode = opcode);
        [7, 8, 9, 10, 11, u32::MAX].map(with).to_vec()
    }),
    Mistake("flags that are none, checksums included").gives(EINVAL, |machine| {
        let with = |flag| machine.send(|request| request.send_flags |= flag);
        [1 << 4, 1 << 5, 1 << 31].map(with).to_vec()
    }),
    Mistake("inline data of a read or atomic, or more than was asked for").gives(EINVAL, |m| {
        let mut list = [sge(m.region, 0, 17)];
        let inline = |opcode| {
            m.send(|request| {
                request.opcode = opcode;
                request.send_flags |= IBV_SEND_INLINE;
            })
        };
        let long = m.send(|request| {
            request.sg_list = list.as_mut_ptr();
            request.send_flags |= IBV_SEND_INLINE;
        });
        vec![
            inline(IBV_WR_RDMA_READ),
            inline(IBV_WR_ATOMIC_CMP_AND_SWP),
            inline(IBV_WR_ATOMIC_FETCH_AND_ADD),
            long,
        ]
    }),
    Mistake("more buffers than were asked for, fewer than none").gives(EINVAL, |machine| {
        let mut list = [sge(machine.region, 0, 8); 2];
        vec![
            machine.send(|request| {
                request.sg_list = list.as_mut_ptr();
                request.num_sge = 2;
            }),
            machine.send(|request| request.num_sge = -1),
            machine.send(|request| request.sg_list = null_mut()),
        ]
    }),
    Mistake("a message beyond 1 GiB, an atomic of less than 8 bytes").gives(EINVAL, |m| {
        let with = |opcode, length| {
            let mut list = [sge(m.region, 0, length)];
            m.send(|request| {
                request.opcode = opcode;
                request.sg_list = list.as_mut_ptr();
            })
        };
        vec![
            with(IBV_WR_SEND, MAX_MESSAGE + 1),
            with(IBV_WR_RDMA_READ, MAX_MESSAGE + 1),
            with(IBV_WR_ATOMIC_FETCH_AND_ADD, 7),
            with(IBV_WR_ATOMIC_CMP_AND_SWP, 0),
        ]
    }),
    Mistake("a full queue").gives(ENOMEM, |machine| {
        // The peer never answers.
        let pair = machine.pair(|_| ());
        machine.bring(pair, 0xff_ffff, IBV_QPS_RTS);
        let mut list = [sge(machine.region, 0, 8)];
        let mut post = || {
            let mut request = send_request(&machine.endpoint, pair, 1, &mut list);
            request.send_flags = 0;
            post_send(pair, &mut request).0
        };
        let results: Vec<c_int> = (0..=DEPTH).map(|_| post()).collect();
        // Outstanding requests must not complete here.
        assert_eq!(ibv_destroy_qp(pair), 0);
        let (last, first) = results.split_last().unwrap();
        assert!(first.iter().all(|result| *result == 0), "{results:?}");
        vec![*last]
    }),
];

const POST_SRQ_OPS: &[BadCall] = &[
    Mistake("a queue without tags, or none").gives(EINVAL, |machine| {
        vec![
            machine.operate(machine.basic, |_| ()),
            machine.operate(null_mut(), |_| ()),
        ]
    }),
    Mistake("an operation or flags that are none").gives(EINVAL, |machine| {
        vec![
            machine.operate(machine.tagged, |request| request.opcode = 3),
            machine.operate(machine.tagged, |request| request.opcode = u32::MAX),
            machine.operate(machine.tagged, |request| request.flags = 1 << 2),
            machine.operate(machine.tagged, |request| request.flags = c_int::MIN),
        ]
    }),
    Mistake("ADD with more buffers than `max_sge`, fewer than none").gives(EINVAL, |m| {
        let mut list = [sge(m.region, 0, 8); MAX_SGE + 1];
        vec![
            m.operate(m.tagged, |request| {
                request.tm.add.sg_list = list.as_mut_ptr();
                request.tm.add.num_sge = MAX_SGE as c_int + 1;
            }),
            m.operate(m.tagged, |request| request.tm.add.num_sge = -1),
            m.operate(m.tagged, |request| request.tm.add.sg_list = null_mut()),
        ]
    }),
    Mistake("ADD to a full list").gives(ENOMEM, |machine| {
        let srq = machine.srq(of_tags);
        for _ in 0..TAGS {
            assert_eq!(machine.operate(srq, |_| ()), 0);
        }
        vec![machine.operate(srq, |_| ())]
    }),
    Mistake("DEL of a handle that no tag had").gives(EINVAL, |machine| {
        let delete = |handle| {
            machine.operate(machine.tagged, |request| {
                request.opcode = IBV_WR_TAG_DEL;
                request.tm.handle = handle;
            })
        };
        [0, 1, 1 << 31, u32::MAX].map(delete).to_vec()
    }),
];

const CALLS: &[(&str, &[BadCall])] = &[
    ("ibv_modify_qp", MODIFY_QP),
    ("ibv_create_qp_ex", CREATE_QP_EX),
    ("ibv_create_srq_ex", CREATE_SRQ_EX),
    ("ibv_modify_srq", MODIFY_SRQ),
    ("ibv_destroy_srq", DESTROY_SRQ),
    ("ibv_post_srq_recv", POST_SRQ_RECV),
    ("ibv_post_recv", POST_RECV),
    ("ibv_post_send", POST_SEND),
    ("ibv_post_srq_ops", POST_SRQ_OPS),
];

#[test]
fn bad_calls_have_their_errno_and_change_nothing() {
    on_emulated_host("tm", || {
        let machine = Machine::new();
        for (call, mistakes) in CALLS {
            for BadCall { what, errno, make } in *mistakes {
                let what = format!("{call}: {what}");
                let results = make(&machine);
                let expected = vec![*errno; results.len()];
                assert!(!results.is_empty(), "{what}");
                assert_eq!(results, expected, "{what}");
                machine.goes_on(&what);
            }
        }
    });
}

/// `EFA_UPDATE=1 cargo test -p efa-emu-verbs --test calls documented` writes the table.
#[test]
fn bad_calls_are_documented() {
    let row = |call: &str, bad: &BadCall| {
        let errno = match bad.errno {
            EINVAL => "EINVAL",
            ENOMEM => "ENOMEM",
            EBUSY => "EBUSY",
            EOPNOTSUPP => "EOPNOTSUPP",
            other => panic!("errno {other} has no name here"),
        };
        format!("| `{call}` | {} | `{errno}` |\n", bad.what)
    };
    let rows = CALLS
        .iter()
        .flat_map(|(call, mistakes)| mistakes.iter().map(move |bad| row(call, bad)));
    let rows: String = rows.collect();
    let table = format!("| call | what | errno |\n|---|---|---|\n{rows}");
    let tests = "-p efa-emu-verbs --test calls documented";
    let marks = ["<!-- bad calls -->\n\n", "\n<!-- end of bad calls -->"];
    workspace::expect_part("docs/tag-matching.md", marks, tests, &table);
}

#[test]
fn messages_are_gathered_and_scattered() {
    on_emulated_host("tm", || {
        let machine = Machine::new();
        let pairs = machine.connect(|attributes| {
            attributes.cap.max_send_sge = MAX_SGE as u32;
            attributes.cap.max_recv_sge = MAX_SGE as u32;
        });
        // SAFETY: the registered memory, which nobody has yet.
        let memory = unsafe {
            let start = (*machine.region).addr.cast::<u8>();
            std::slice::from_raw_parts_mut(start, 4096)
        };
        for (byte, value) in memory[..2048].iter_mut().zip(0u8..=250) {
            *byte = value;
        }
        let each = |start: usize, distance: usize, length: u32| {
            let parts =
                (0..MAX_SGE).map(|part| sge(machine.region, start + part * distance, length));
            parts.collect::<Vec<_>>()
        };
        // Six bytes of each ten, into four of each nine: the boundaries differ.
        let mut buffers = each(2048, 9, 4);
        buffers[MAX_SGE - 1].length = 100;
        let length = machine.carries(pairs, (each(0, 10, 6), buffers), "eight buffers");
        assert_eq!(length, 6 * MAX_SGE as u32);
        let sent: Vec<u8> = (0..MAX_SGE)
            .flat_map(|part| part * 10..part * 10 + 6)
            .map(|at| memory[at])
            .collect();
        let places = (0..MAX_SGE)
            .flat_map(|part| part * 9..part * 9 + if part + 1 < MAX_SGE { 4 } else { 20 });
        let found: Vec<u8> = places.map(|at| memory[2048 + at]).collect();
        assert_eq!(found, sent);
    });
}

#[test]
fn the_longest_message_arrives() {
    on_emulated_host("tm", || {
        const PAGE: usize = 512;
        let machine = Machine::new();
        let words = MAX_MESSAGE as usize / 8;
        let mut source = vec![0u64; words];
        let template: Vec<u64> = (0..PAGE as u64).collect();
        for (number, page) in source.chunks_exact_mut(PAGE).enumerate() {
            page.copy_from_slice(&template);
            page[number % PAGE] = !(number as u64);
        }
        let mut target = vec![0u64; words];
        let from = machine.endpoint.register(&mut source, 0);
        let to = machine
            .endpoint
            .register(&mut target, IBV_ACCESS_LOCAL_WRITE);
        let lists = (
            vec![sge(from, 0, MAX_MESSAGE)],
            vec![sge(to, 0, MAX_MESSAGE)],
        );
        let length = machine.carries(machine.connection, lists, "1 GiB");
        assert_eq!(length, MAX_MESSAGE);
        assert!(source == target, "other bytes");
    });
}
