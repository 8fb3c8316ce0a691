//! Opening and closing the device.

use core::ffi::c_int;
use core::ptr::null_mut;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::{
    async_event, comp_queue, connected, domain, poll, post, query, queue_pair, shared_queue,
    unsupported,
};
use crate::abi::{ibv_context, ibv_context_ops, ibv_device, verbs_context};
use crate::ffi::errno;
use crate::ffi::stack::with_cleared_stack;
use crate::objects::context::Context;
use crate::objects::device::Device;
use crate::registry::{COMP_QUEUES, CONTEXTS, QUEUE_PAIRS};

/// The value of `ibv_context.abi_compat` in a `verbs_context`.
const EXTENDED: usize = usize::MAX;

/// The structure of a context with its table of functions.
fn c_structure(device: &Device, async_fd: RawFd) -> verbs_context {
    let is_connected = device.profile.connected;
    verbs_context {
        since_59: [None; 6],
        query_port: Some(query::query_port),
        memory_and_flow_actions: [None; 13],
        alloc_parent_domain: Some(domain::alloc_parent_domain),
        dealloc_td: Some(domain::dealloc_td),
        alloc_td: Some(domain::alloc_td),
        modify_cq: None,
        post_srq_ops: is_connected.then_some(shared_queue::post_srq_ops),
        work_queues: [None; 6],
        create_cq_ex: Some(comp_queue::create_cq_ex),
        private: null_mut(),
        query_device_ex: Some(query::query_device_ex),
        flows: [None; 5],
        create_qp_ex: Some(queue_pair::create_qp_ex),
        get_srq_num: None,
        create_srq_ex: is_connected.then_some(shared_queue::create_srq_ex),
        xrc_domains: [None; 2],
        abi_placeholder: 0,
        sz: size_of::<verbs_context>(),
        context: ibv_context {
            device: device.c_pointer(),
            ops: ibv_context_ops {
                compat_query: [None; 7],
                alloc_mw: Some(unsupported::alloc_mw),
                bind_mw: Some(unsupported::bind_mw),
                dealloc_mw: Some(unsupported::dealloc_mw),
                compat_create_cq: None,
                poll_cq: Some(match is_connected {
                    true => connected::poll_cq,
                    false => poll::poll_cq,
                }),
                req_notify_cq: Some(comp_queue::req_notify_cq),
                compat_cq: [None; 7],
                post_srq_recv: Some(match is_connected {
                    true => shared_queue::post_srq_recv,
                    false => shared_queue::no_srq_recv,
                }),
                compat_qp: [None; 4],
                post_send: Some(match is_connected {
                    true => connected::post_send,
                    false => post::post_send,
                }),
                post_recv: Some(match is_connected {
                    true => connected::post_recv,
                    false => post::post_recv,
                }),
                compat_ah: [None; 5],
            },
            cmd_fd: -1,
            async_fd,
            num_comp_vectors: device.profile.comp_vectors as c_int,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: core::ptr::without_provenance_mut(EXTENDED),
        },
    }
}

/// Opens the device and starts the threads that serve it. Each call creates a separate context.
///
/// Returns the context, or null with `errno`: `ENODEV` for a pointer that is not a device of the
/// list, or the reason why it cannot be opened, which is also printed.
pub(crate) extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    errno::pointer(with_cleared_stack(|| {
        let device = Device::find(device)?;
        let c = |async_fd| c_structure(device, async_fd);
        Context::open(device, c, async_event::raise).map(|context| CONTEXTS.insert(context))
    }))
}

/// Closes the context: its thread, descriptors and memory are released when this returns. Its
/// objects exist until they are destroyed, but do nothing.
///
/// Returns 0 or an errno: `EINVAL` for a pointer that is not a context; `EBUSY`, and the device
/// stays open, while a stopped peer is in the middle of a copy from or to memory of the device, and
/// would continue it.
pub(crate) extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    errno::status_of_end(|| {
        if let Ok(hardware) = CONTEXTS.get(context)?.hardware() {
            hardware.quiesce()?;
        }
        let context = CONTEXTS.remove(context)?;
        for pair in QUEUE_PAIRS.remove_all(|pair| Arc::ptr_eq(&pair.context, &context)) {
            pair.close();
        }
        // The handles remain: programs may still destroy these queues.
        for queue in COMP_QUEUES.all(|queue| Arc::ptr_eq(&queue.context, &context)) {
            queue.release();
        }
        context.close();
        Ok(())
    })
}
