//! The Rust declarations of the verbs, and objects that most tests need.

#![allow(
    clippy::missing_safety_doc,
    clippy::new_without_default,
    clippy::not_unsafe_ptr_arg_deref,
    missing_docs,
    reason = "the manual pages describe the verbs; tests pass live objects to the helpers"
)]

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use efa_verbs_abi::*;

use crate::patience::Wait;

/// Returns the library that has a function, and the function's name there.
pub type Lookup = fn(&str) -> (*mut c_void, String);

/// Where the functions are. Those of the preloaded libraries are called if it is not set.
pub static LOOKUP: OnceLock<Lookup> = OnceLock::new();

/// The address of a function of the library.
pub fn symbol(name: &str) -> *mut c_void {
    let preloaded: Lookup = |name| (libc::RTLD_DEFAULT, name.to_owned());
    let (library, name) = LOOKUP.get_or_init(|| preloaded)(name);
    let name = CString::new(name).unwrap();
    // SAFETY: a C string, and a library that stays loaded.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!address.is_null(), "{name:?} is not there");
    address
}

/// Defines functions that call the library's functions of the same name.
macro_rules! verbs {
    ($($safety:ident { $(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)+ })+) => { $($(
        verb!($safety fn $name($($argument: $type),*) $(-> $result)?);
    )+)+ };
}

macro_rules! verb {
    (may_follow_pointers fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?) => {
        pub unsafe fn $name($($argument: $type),*) $(-> $result)? {
            type Function = unsafe extern "C" fn($($type),*) $(-> $result)?;
            // SAFETY: the library defines the function with this signature.
            let function: Function = unsafe { std::mem::transmute(symbol(stringify!($name))) };
            // SAFETY: passed on to the caller.
            unsafe { function($($argument),*) }
        }
    };
    (looks_up_handles fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?) => {
        pub fn $name($($argument: $type),*) $(-> $result)? {
            type Function = extern "C" fn($($type),*) $(-> $result)?;
            // SAFETY: the library defines the function with this signature.
            let function: Function = unsafe { std::mem::transmute(symbol(stringify!($name))) };
            function($($argument),*)
        }
    };
}

verbs! {
looks_up_handles {
    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
    fn ibv_get_device_guid(device: *mut ibv_device) -> u64;
    fn ibv_get_device_index(device: *mut ibv_device) -> c_int;
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    fn ibv_close_device(context: *mut ibv_context) -> c_int;
    fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int;
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    fn ibv_reg_mr(pd: *mut ibv_pd, address: *mut c_void, length: usize, access: c_int)
        -> *mut ibv_mr;
    fn ibv_reg_mr_iova2(pd: *mut ibv_pd, address: *mut c_void, length: usize, iova: u64,
        access: c_uint) -> *mut ibv_mr;
    fn ibv_reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int,
        access: c_int) -> *mut ibv_mr;
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    fn ibv_free_buf(buffer: *mut ibv_buf);
    fn ibv_reg_buf_mr(pd: *mut ibv_pd, buffer: *mut ibv_buf, address: *mut c_void,
        length: usize, access: c_int) -> *mut ibv_mr;
    fn ibv_export_buf_dmabuf_fd(buffer: *mut ibv_buf) -> c_int;
    fn ibv_destroy_ah(handle: *mut ibv_ah) -> c_int;
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    fn ibv_ack_cq_events(queue: *mut ibv_cq, events: c_uint);
    fn ibv_create_cq(context: *mut ibv_context, entries: c_int, cq_context: *mut c_void,
        channel: *mut ibv_comp_channel, vector: c_int) -> *mut ibv_cq;
    fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int;
    fn ibv_destroy_qp(pair: *mut ibv_qp) -> c_int;
    fn ibv_qp_to_qp_ex(pair: *mut ibv_qp) -> *mut ibv_qp_ex;
    fn ibv_query_qp_data_in_order(pair: *mut ibv_qp, operation: c_uint, flags: u32) -> c_int;
    fn ibv_destroy_comp_cntr(counter: *mut ibv_comp_cntr) -> c_int;
    fn ibv_set_comp_cntr(counter: *mut ibv_comp_cntr, value: u64) -> c_int;
    fn ibv_set_err_comp_cntr(counter: *mut ibv_comp_cntr, value: u64) -> c_int;
    fn ibv_inc_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64) -> c_int;
    fn ibv_inc_err_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64) -> c_int;
    fn ibv_create_srq(pd: *mut ibv_pd, attributes: *mut c_void) -> *mut c_void;
    fn ibv_resize_cq(queue: *mut ibv_cq, entries: c_int) -> c_int;
    fn ibv_fork_init() -> c_int;
    fn ibv_is_fork_initialized() -> c_int;
    fn efadv_cq_from_ibv_cq_ex(queue: *mut ibv_cq_ex) -> *mut efadv_cq;
}
may_follow_pointers {
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    fn ibv_free_device_list(list: *mut *mut ibv_device);
    fn ibv_query_device(context: *mut ibv_context, attributes: *mut ibv_device_attr) -> c_int;
    fn ibv_query_port(context: *mut ibv_context, port: u8, attributes: *mut ibv_port_attr) -> c_int;
    fn ibv_query_port_speed(context: *mut ibv_context, port: u32, speed: *mut u64) -> c_int;
    fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
    fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut u16) -> c_int;
    fn _ibv_query_gid_ex(context: *mut ibv_context, port: u32, index: u32,
        row: *mut ibv_gid_entry, flags: u32, size: usize) -> c_int;
    fn _ibv_query_gid_table(context: *mut ibv_context, rows: *mut ibv_gid_entry, max: usize,
        flags: u32, size: usize) -> isize;
    fn ibv_reg_mr_ex(pd: *mut ibv_pd, attributes: *mut ibv_mr_init_attr) -> *mut ibv_mr;
    fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buffer: *mut *mut ibv_buf) -> *mut c_void;
    fn ibv_create_ah(pd: *mut ibv_pd, attributes: *mut ibv_ah_attr) -> *mut ibv_ah;
    fn ibv_get_cq_event(channel: *mut ibv_comp_channel, queue: *mut *mut ibv_cq,
        context: *mut *mut c_void) -> c_int;
    fn ibv_create_qp(pd: *mut ibv_pd, attributes: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    fn ibv_modify_qp(pair: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int) -> c_int;
    fn ibv_query_qp(pair: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int,
        initial: *mut ibv_qp_init_attr) -> c_int;
    fn ibv_modify_srq(srq: *mut ibv_srq, attributes: *mut ibv_srq_attr, mask: c_int) -> c_int;
    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    fn ibv_ack_async_event(event: *mut ibv_async_event);
    fn _ibv_query_comp_cntr_caps(context: *mut ibv_context, caps: *mut ibv_comp_cntr_caps,
        size: usize) -> c_int;
    fn ibv_create_comp_cntr(context: *mut ibv_context,
        attributes: *const ibv_comp_cntr_init_attr) -> *mut ibv_comp_cntr;
    fn efadv_create_comp_cntr(context: *mut ibv_context,
        attributes: *const ibv_comp_cntr_init_attr, efa: *const efadv_comp_cntr_init_attr,
        size: u32) -> *mut ibv_comp_cntr;
    fn ibv_read_comp_cntr(counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int;
    fn ibv_read_err_comp_cntr(counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int;
    fn ibv_qp_attach_comp_cntr(pair: *mut ibv_qp, counter: *mut ibv_comp_cntr,
        attributes: *const ibv_qp_attach_comp_cntr_attr) -> c_int;
    fn ibv_attach_mcast(pair: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    fn efadv_query_device(context: *mut ibv_context, attributes: *mut efadv_device_attr,
        size: u32) -> c_int;
    fn efadv_query_ah(handle: *mut ibv_ah, attributes: *mut efadv_ah_attr, size: u32) -> c_int;
    fn efadv_query_cq(queue: *mut ibv_cq, attributes: *mut efadv_cq_attr, size: u32) -> c_int;
    fn efadv_query_qp_wqs(pair: *mut ibv_qp, send: *mut efadv_wq_attr,
        receive: *mut efadv_wq_attr, size: u32) -> c_int;
    fn efadv_create_cq(context: *mut ibv_context, attributes: *mut ibv_cq_init_attr_ex,
        efa: *mut efadv_cq_init_attr, size: u32) -> *mut ibv_cq_ex;
    fn efadv_create_driver_qp(pd: *mut ibv_pd, attributes: *mut ibv_qp_init_attr, kind: u32)
        -> *mut ibv_qp;
    fn efadv_create_qp_ex(context: *mut ibv_context, attributes: *mut ibv_qp_init_attr_ex,
        efa: *mut efadv_qp_init_attr, size: u32) -> *mut ibv_qp;
    fn efadv_get_max_sq_depth(context: *mut ibv_context, attributes: *mut efadv_sq_depth_attr,
        size: u32) -> c_int;
    fn efadv_get_max_rq_depth(context: *mut ibv_context, attributes: *mut efadv_rq_depth_attr,
        size: u32) -> c_int;
}
}

/// Forks a child that does something and ends, without its exit handlers, by whether that was
/// right.
pub fn fork(work: impl FnOnce() -> bool) -> Child {
    // SAFETY: the child makes verbs, which promise not to hang, and system calls.
    let process = unsafe { libc::fork() };
    if process == 0 {
        let status = i32::from(!work());
        // SAFETY: as above.
        unsafe { libc::_exit(status) };
    }
    Child(process)
}

/// A forked child, which ends with this value.
pub struct Child(pub i32);

impl Child {
    /// Waits for its end and returns its status.
    pub fn wait(self) -> c_int {
        let mut status = 0;
        // SAFETY: our child, and a place for its status.
        let ended = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        assert_eq!(ended, self.0);
        std::mem::forget(self);
        status
    }

    /// Kills it and returns its status.
    pub fn kill(self) -> c_int {
        // SAFETY: our child.
        assert_eq!(unsafe { libc::kill(self.0, libc::SIGKILL) }, 0);
        self.wait()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our child, whose status nobody wants.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, null_mut(), 0);
        }
    }
}

/// A C structure with all bytes zero.
pub fn zeroed<T>() -> T {
    // SAFETY: used for structures of integers and nullable pointers only.
    unsafe { std::mem::MaybeUninit::zeroed().assume_init() }
}

pub fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Checks that a call returned null and set `errno`.
#[track_caller]
pub fn expect_null<T>(pointer: *mut T, expected: c_int, what: &str) {
    assert!(pointer.is_null(), "{what} succeeded");
    assert_eq!(errno(), expected, "errno of {what}");
}

/// Opens the device of the host.
pub fn open() -> *mut ibv_context {
    open_number(0)
}

/// Opens the device at this place in the list.
pub fn open_number(index: usize) -> *mut ibv_context {
    // SAFETY: as a C program does it.
    unsafe {
        let mut count = 0;
        let list = ibv_get_device_list(&raw mut count);
        assert!(!list.is_null() && index < count as usize, "{count} devices");
        let context = ibv_open_device(*list.add(index));
        ibv_free_device_list(list);
        assert!(
            !context.is_null(),
            "cannot open the device: errno {}",
            errno()
        );
        context
    }
}

/// The Q-key of every queue pair in these tests.
pub const QKEY: u32 = 0x1234_5678;

/// What the change from reset to init names.
pub const IDENTITY: u32 = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;

/// A process with one protection domain and one address handle to its own host.
pub struct Endpoint {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub handle: *mut ibv_ah,
    pub gid: ibv_gid,
}

impl Endpoint {
    pub fn new() -> Endpoint {
        Endpoint::number(0)
    }

    /// On the device at this place in the list.
    pub fn number(index: usize) -> Endpoint {
        let context = open_number(index);
        let mut gid = ibv_gid::default();
        // SAFETY: a live context, and attributes on the stack.
        unsafe {
            assert_eq!(ibv_query_gid(context, 1, 0, &raw mut gid), 0);
            let pd = ibv_alloc_pd(context);
            assert!(!pd.is_null());
            Endpoint {
                context,
                pd,
                handle: handle_of(pd, gid),
                gid,
            }
        }
    }

    /// An endpoint with a completion queue of so many entries, an SRD queue pair that works,
    /// without builders, and so many registered bytes.
    pub fn with_pair(
        entries: c_int,
        bytes: usize,
    ) -> (Endpoint, *mut ibv_cq, *mut ibv_qp, *mut ibv_mr) {
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(entries);
        let pair = endpoint.srd(queue, 0);
        let region = endpoint.registered(bytes);
        (endpoint, queue, pair, region)
    }

    pub fn cq(&self, entries: c_int) -> *mut ibv_cq {
        let queue = ibv_create_cq(self.context, entries, null_mut(), null_mut(), 0);
        assert!(!queue.is_null(), "errno {}", errno());
        queue
    }

    /// A completion channel, and a completion queue of 64 entries that sends its events there.
    pub fn channel_and_cq(&self, cq_context: *mut c_void) -> (*mut ibv_comp_channel, *mut ibv_cq) {
        let channel = ibv_create_comp_channel(self.context);
        let queue = ibv_create_cq(self.context, 64, cq_context, channel, 0);
        assert!(!queue.is_null(), "errno {}", errno());
        (channel, queue)
    }

    pub fn register<T>(&self, memory: &mut [T], access: c_uint) -> *mut ibv_mr {
        let address: *mut c_void = memory.as_mut_ptr().cast();
        let length = std::mem::size_of_val(memory);
        let region = ibv_reg_mr(self.pd, address, length, access as c_int);
        assert!(!region.is_null(), "errno {}", errno());
        region
    }

    /// So many registered bytes, for local use.
    pub fn registered(&self, bytes: usize) -> *mut ibv_mr {
        self.register(Vec::leak(vec![0u8; bytes]), IBV_ACCESS_LOCAL_WRITE)
    }

    /// An SRD queue pair that works, with these builders, on one completion queue.
    pub fn srd(&self, queue: *mut ibv_cq, ops: u64) -> *mut ibv_qp {
        let (mut attributes, mut efa) = self.srd_request(queue, ops);
        let pair = self.create(&mut attributes, &mut efa);
        ready(pair);
        pair
    }

    /// A small UD queue pair, ready to send.
    #[track_caller]
    pub fn ud(&self, queue: *mut ibv_cq) -> *mut ibv_qp {
        let mut attributes: ibv_qp_init_attr = zeroed();
        attributes.send_cq = queue;
        attributes.recv_cq = queue;
        attributes.qp_type = IBV_QPT_UD;
        attributes.cap = ibv_qp_cap {
            max_send_wr: 8,
            max_recv_wr: 8,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        // SAFETY: live objects.
        let pair = unsafe { ibv_create_qp(self.pd, &raw mut attributes) };
        assert!(!pair.is_null(), "errno {}", errno());
        ready(pair);
        pair
    }

    /// A queue pair in the reset state, as requested.
    #[track_caller]
    pub fn create(
        &self,
        request: &mut ibv_qp_init_attr_ex,
        efa: &mut efadv_qp_init_attr,
    ) -> *mut ibv_qp {
        let size = size_of::<efadv_qp_init_attr>() as u32;
        // SAFETY: a live context, and structures of these sizes.
        let pair = unsafe { efadv_create_qp_ex(self.context, request, efa, size) };
        assert!(!pair.is_null(), "errno {}", errno());
        pair
    }

    /// The request of a small SRD queue pair.
    pub fn srd_request(
        &self,
        queue: *mut ibv_cq,
        ops: u64,
    ) -> (ibv_qp_init_attr_ex, efadv_qp_init_attr) {
        let mut attributes: ibv_qp_init_attr_ex = zeroed();
        attributes.send_cq = queue;
        attributes.recv_cq = queue;
        attributes.cap = ibv_qp_cap {
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 32,
        };
        attributes.qp_type = IBV_QPT_DRIVER;
        attributes.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        attributes.pd = self.pd;
        attributes.send_ops_flags = ops;
        (attributes, efadv_qp_init_attr::default())
    }
}

/// A new address handle of a GID.
pub fn handle_of(pd: *mut ibv_pd, gid: ibv_gid) -> *mut ibv_ah {
    let mut attributes: ibv_ah_attr = zeroed();
    attributes.port_num = 1;
    attributes.is_global = 1;
    attributes.grh.dgid = gid;
    // SAFETY: a live protection domain, and attributes on the stack.
    let handle = unsafe { ibv_create_ah(pd, &raw mut attributes) };
    assert!(!handle.is_null(), "errno {}", errno());
    handle
}

/// The number of an address handle.
#[track_caller]
pub fn ahn_of(handle: *mut ibv_ah) -> u16 {
    let mut attributes = efadv_ah_attr::default();
    // SAFETY: a structure of this size.
    let answer = unsafe { efadv_query_ah(handle, &raw mut attributes, 16) };
    assert_eq!(answer, 0);
    attributes.ahn
}

/// Brings a queue pair to the state in which it sends.
pub fn ready(pair: *mut ibv_qp) {
    ready_with(pair, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

/// As [`ready`]; with `IBV_QP_RNR_RETRY` in the mask of the last change, it gives up at once if the
/// receiver is not ready.
pub fn ready_with(pair: *mut ibv_qp, last_mask: u32) {
    change_state(pair, IBV_QPS_INIT, IDENTITY);
    change_state(pair, IBV_QPS_RTR, IBV_QP_STATE);
    change_state(pair, IBV_QPS_RTS, last_mask);
}

/// Changes a queue pair to a state. If `mask` selects the number of RNR retries, it is 0.
#[track_caller]
pub fn change_state(pair: *mut ibv_qp, state: c_int, mask: u32) {
    let mut attributes: ibv_qp_attr = zeroed();
    attributes.qp_state = state;
    attributes.port_num = 1;
    attributes.qkey = QKEY;
    // SAFETY: a live queue pair.
    let result = unsafe { ibv_modify_qp(pair, &raw mut attributes, mask as c_int) };
    assert_eq!(result, 0, "to state {state}");
    // SAFETY: a live queue pair.
    assert_eq!(unsafe { (*pair).state }, state);
}

/// A send of `list` from this process to `to` on the same host.
pub fn send_request(
    endpoint: &Endpoint,
    to: *mut ibv_qp,
    wr_id: u64,
    list: &mut [ibv_sge],
) -> ibv_send_wr {
    let mut request: ibv_send_wr = zeroed();
    request.wr_id = wr_id;
    request.sg_list = list.as_mut_ptr();
    request.num_sge = list.len() as c_int;
    request.opcode = IBV_WR_SEND;
    request.send_flags = IBV_SEND_SIGNALED;
    request.ud.ah = endpoint.handle;
    // SAFETY: a live queue pair.
    request.ud.remote_qpn = unsafe { (*to).qp_num };
    request.ud.remote_qkey = QKEY;
    request
}

/// `ibv_post_send`, which is an inline function of the header.
pub fn post_send(pair: *mut ibv_qp, request: &mut ibv_send_wr) -> (c_int, *mut ibv_send_wr) {
    let mut bad = null_mut();
    // SAFETY: a queue pair whose context lives.
    let post = unsafe { (*(*pair).context).ops.post_send.unwrap() };
    // SAFETY: as above, and a request on the stack.
    (unsafe { post(pair, &raw mut *request, &raw mut bad) }, bad)
}

/// Posts a send of `list` to `to` on the same host.
#[track_caller]
pub fn send(
    endpoint: &Endpoint,
    from: *mut ibv_qp,
    to: *mut ibv_qp,
    wr_id: u64,
    list: &mut [ibv_sge],
) {
    let mut request = send_request(endpoint, to, wr_id, list);
    assert_eq!(post_send(from, &mut request).0, 0);
}

/// `ibv_post_recv`, likewise.
pub fn post_recv(pair: *mut ibv_qp, wr_id: u64, list: &mut [ibv_sge]) -> c_int {
    let mut request = ibv_recv_wr {
        wr_id,
        next: null_mut(),
        sg_list: list.as_mut_ptr(),
        num_sge: list.len() as c_int,
    };
    let mut bad = null_mut();
    // SAFETY: a queue pair whose context lives.
    let post = unsafe { (*(*pair).context).ops.post_recv.unwrap() };
    // SAFETY: as above, and a request on the stack.
    unsafe { post(pair, &raw mut request, &raw mut bad) }
}

/// `ibv_poll_cq`, likewise.
pub fn poll(queue: *mut ibv_cq, completions: &mut [ibv_wc]) -> c_int {
    // SAFETY: a queue whose context lives.
    let poll = unsafe { (*(*queue).context).ops.poll_cq.unwrap() };
    // SAFETY: as above, and room for as many completions as are asked for.
    unsafe { poll(queue, completions.len() as c_int, completions.as_mut_ptr()) }
}

/// Polls until there are `count` completions; they are sorted by request id.
#[track_caller]
pub fn wait_for(queue: *mut ibv_cq, count: usize) -> Vec<ibv_wc> {
    let wait = Wait::start();
    let mut found = Vec::new();
    while found.len() < count {
        let mut completions = [ibv_wc::default(); 4];
        let new = poll(queue, &mut completions);
        assert!(new >= 0, "polling failed: {new}");
        found.extend_from_slice(&completions[..new as usize]);
        wait.check(|| format!("{} of {count} completions came", found.len()));
    }
    assert_eq!(found.len(), count);
    found.sort_by_key(|completion| completion.wr_id);
    found
}

/// A gather or scatter entry of a registered region.
pub fn sge(region: *mut ibv_mr, offset: usize, length: u32) -> ibv_sge {
    // SAFETY: a live region.
    let (address, lkey) = unsafe { ((*region).addr.addr(), (*region).lkey) };
    ibv_sge {
        addr: (address + offset) as u64,
        length,
        lkey,
    }
}

/// The `verbs_context` around a context.
pub fn verbs_context_of(context: *mut ibv_context) -> *mut verbs_context {
    let offset = std::mem::offset_of!(verbs_context, context);
    context.wrapping_byte_sub(offset).cast()
}

/// Nothing at this address; not a handle of anything.
pub fn foreign<T>() -> *mut T {
    static NOTHING: [u64; 128] = [0; 128];
    NOTHING.as_ptr().cast_mut().cast()
}

pub const NO_NAME: *const c_char = null();
