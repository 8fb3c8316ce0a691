//! Completion queues: making, arming, acknowledging and destroying them. Polling is in
//! [`crate::poll`].

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint, c_void};
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use efa_core::nic::DeviceCaps;
use efa_device_model::device::CqId;
use efa_device_model::device::queue::CompletionRing;
use efa_device_model::provider::CompletionQueue;

use crate::abi::{
    EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF, EFADV_WC_EX_WITH_IS_UNSOLICITED, EFADV_WC_EX_WITH_SGID,
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
    IBV_WC_STANDARD_FLAGS, efadv_cq, efadv_cq_init_attr, ibv_comp_channel, ibv_context, ibv_cq,
    ibv_cq_ex, ibv_cq_init_attr_ex,
};
use crate::channel::{CHANNELS, Channel};
use crate::context::{CONTEXTS, Context};
use crate::domain::{DOMAINS, Domain};
use crate::errno::{self, Errno};
use crate::handles::{Handle, Life, Registry};
use crate::interrupted::Locking;
use crate::poll;
use crate::query::beginning;
use crate::queues::{Polled, QueueIndex};
use crate::spin::SpinCell;

pub(crate) static QUEUES: Registry<CompQueue> = Registry::new();

/// What programs see of a completion queue.
#[repr(C)]
pub(crate) struct CompQueueC {
    pub(crate) ex: ibv_cq_ex,
    pub(crate) efa: efadv_cq,
}

/// A completion queue. It starts with its C structure, so that a program's pointer is one to it.
#[repr(C)]
pub(crate) struct CompQueue {
    pub(crate) c: UnsafeCell<CompQueueC>,
    pub(crate) context: Arc<Context>,
    pub(crate) id: CqId,
    pub(crate) life: Life,
    /// The device does not have the queue any more, and may give its id to another. Set under the device's lock.
    pub(crate) ended: AtomicBool,
    /// `None` once the queue was destroyed.
    pub(crate) polled: SpinCell<Option<Polled>>,
    /// The program asked for an event; done by [`CompQueue::catch_up`].
    arm_pending: AtomicBool,
    /// Events that the program took and that the queue does not know of yet; noted by
    /// [`CompQueue::catch_up`].
    taken_pending: AtomicU32,
    /// The client may write the doorbell without a call.
    watched: AtomicBool,
    channel: Option<Arc<Channel>>,
    parent_domain: Option<Arc<Domain>>,
    /// Events taken and events acknowledged.
    events: Mutex<Events>,
    acknowledged: Condvar,
}

#[derive(Default)]
struct Events {
    taken: u64,
    acknowledged: u64,
}

// SAFETY: the C structure is written while it is made and by the polling session, which holds the
// lock of `polled`; what the program does with it is the program's.
unsafe impl Send for CompQueue {}
// SAFETY: as above.
unsafe impl Sync for CompQueue {}

// SAFETY: `ibv_cq_ex` starts with the fields of `ibv_cq`, and it is inside the cell.
unsafe impl Handle for CompQueue {
    type C = ibv_cq;

    fn c_pointer(&self) -> *mut ibv_cq {
        // Of the whole handle, as `from_pointer` gets it back; only what is in the cell is written to.
        const { assert!(core::mem::offset_of!(Self, c) == 0) };
        core::ptr::from_ref(self).cast_mut().cast()
    }
}

impl CompQueue {
    /// The completion queue behind a pointer of the data path.
    ///
    /// # Safety
    /// `pointer` is null or a completion queue of this library that was not destroyed long ago.
    #[inline]
    pub(crate) unsafe fn from_pointer<'a>(pointer: *const ibv_cq) -> Option<&'a CompQueue> {
        // SAFETY: the C structure is at the start of the `repr(C)` handle, which lives by contract.
        unsafe { pointer.cast::<CompQueue>().as_ref() }
    }

    /// The program takes an event, and from now on owes an acknowledgement for it.
    pub(crate) fn count_event(&self) {
        self.events
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .taken += 1;
        self.taken_pending.fetch_add(1, Ordering::Relaxed);
    }

    /// The last step of the end of a queue that the device does not have any more: drops its events, and waits
    /// until the program has acknowledged those that it took. Not for a forked child: the events are its parent's.
    fn settle_events(&self) {
        if let Some(channel) = &self.channel {
            channel.silence(self);
        }
        let counts = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let owes = |counts: &mut Events| counts.acknowledged < counts.taken;
        drop(self.acknowledged.wait_while(counts, owes));
        if let Ok(events) = self.context.async_events() {
            events.settle(self.c_pointer().addr());
        }
    }

    /// Has the device look at the doorbell from now on; the ring, for the client.
    pub(crate) fn watch(&self) -> Result<Arc<CompletionRing>, Errno> {
        let ring = match self.polled.lock(&Locking::new()).as_ref() {
            Some(polled) => Arc::clone(polled.completions.ring()),
            None => return Err(Errno::INVAL),
        };
        self.life.during(|| self.begin_watching())?;
        Ok(ring)
    }

    fn begin_watching(&self) -> Result<(), Errno> {
        let hardware = self.context.hardware()?;
        if !self.watched.swap(true, Ordering::AcqRel) {
            hardware.watch_cq(self.id, true)?;
        }
        Ok(())
    }

    /// How many entries the queue has.
    pub(crate) fn entries(&self) -> c_int {
        // SAFETY: the field is never written by the library after the queue was made.
        unsafe { (*self.c_pointer()).cqe }
    }

    /// What the program gave as `cq_context`.
    pub(crate) fn program_context(&self) -> *mut c_void {
        // SAFETY: the field is never written by the library after the queue was made.
        unsafe { (*self.c_pointer()).cq_context }
    }

    /// Does what other calls could not do because the lock may have been held, even by a polling
    /// session of their own thread: notes events that were taken, and asks the device for another.
    /// To be called after leaving such notes and after releasing the lock.
    #[inline]
    pub(crate) fn catch_up(&self) {
        if self.is_behind() {
            self.catch_up_now();
        }
    }

    #[inline]
    fn is_behind(&self) -> bool {
        self.arm_pending.load(Ordering::Relaxed) || self.taken_pending.load(Ordering::Relaxed) != 0
    }

    #[cold]
    fn catch_up_now(&self) {
        let locking = Locking::new();
        while self.is_behind() {
            let Some(mut guard) = self.polled.try_lock(&locking) else {
                // The thread that holds the lock catches up when it releases it. It may overlook what was noted at
                // that very moment; then the next poll catches up, and who asks for an event polls once more
                // before waiting, as the verbs demand.
                return;
            };
            let taken = self.taken_pending.swap(0, Ordering::Relaxed);
            let arm = self.arm_pending.swap(false, Ordering::Relaxed);
            if let Some(polled) = guard.as_mut() {
                for _ in 0..taken {
                    polled.completions.event_received();
                }
                if arm {
                    self.arm(polled);
                }
            }
        }
    }

    /// Asks the device for an event.
    fn arm(&self, polled: &mut Polled) {
        polled.completions.request_notification();
        polled.hardware.arm_cq(self.id);
        polled.event_for_unread = self.channel.is_some() && polled.completions.has_unread();
    }

    /// To be called after polling, with what it was done on. If the program has polled all that an
    /// event would tell it of, and has not taken the event yet, the event is taken back, and comes
    /// with the next completion.
    ///
    /// A device could not do that, and programs that wait have to expect an event for nothing. But
    /// perftest's latency tests ask for the next event before they poll, and count on one event for
    /// one completion.
    #[inline]
    pub(crate) fn after_polling(&self, polled: &mut Polled) {
        if polled.event_for_unread {
            self.take_back_event(polled);
        }
    }

    #[cold]
    fn take_back_event(&self, polled: &mut Polled) {
        if polled.completions.has_unread() {
            return;
        }
        polled.event_for_unread = false;
        if let Some(channel) = &self.channel
            && channel.take_back(self)
        {
            polled.completions.event_received();
            self.arm(polled);
        }
    }
}

/// What the two ways to make a completion queue have in common, checked.
struct Options {
    entries: u32,
    context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: u32,
    parent_domain: Option<Arc<Domain>>,
    wc_flags: u64,
    efa_wc_flags: u64,
}

fn create(owner: Arc<Context>, options: Options) -> Result<Arc<CompQueue>, Errno> {
    match options.parent_domain.clone() {
        Some(domain) => domain.life.join(|| create_in(owner, options)),
        None => create_in(owner, options),
    }
}

fn create_in(owner: Arc<Context>, options: Options) -> Result<Arc<CompQueue>, Errno> {
    let profile = &owner.device.profile;
    if options.vector >= profile.comp_vectors {
        return Err(Errno::INVAL);
    }
    let channel = match options.channel.is_null() {
        true => None,
        false => {
            let channel = CHANNELS.get(options.channel)?;
            if !channel.belongs_to(&owner) {
                return Err(Errno::INVAL);
            }
            if !profile.cq_notifications {
                return Err(Errno::OPNOTSUPP);
            }
            Some(channel)
        }
    };
    let hardware = owner.hardware()?;
    let request_ids = profile.longest_request_ids();
    let (id, ring) =
        hardware.with_device(|device| device.create_cq(options.entries, request_ids))??;
    let base = ibv_cq {
        context: owner.c_pointer(),
        channel: options.channel,
        cq_context: options.context,
        handle: id.0,
        cqe: ring.entries() as c_int,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    let queue = Arc::new(CompQueue {
        c: UnsafeCell::new(CompQueueC {
            ex: poll::extended(base, options.wc_flags),
            efa: efadv_cq {
                comp_mask: 0,
                wc_read_sgid: (options.efa_wc_flags & EFADV_WC_EX_WITH_SGID != 0)
                    .then_some(poll::wc_read_sgid),
                wc_is_unsolicited: (options.efa_wc_flags & EFADV_WC_EX_WITH_IS_UNSOLICITED != 0)
                    .then_some(poll::wc_is_unsolicited),
            },
        }),
        context: owner,
        id,
        life: Life::new(),
        ended: AtomicBool::new(false),
        polled: SpinCell::new(Some(Polled {
            hardware: Arc::clone(&hardware),
            completions: CompletionQueue::new(ring),
            owners: QueueIndex::default(),
            event_for_unread: false,
        })),
        arm_pending: AtomicBool::new(false),
        taken_pending: AtomicU32::new(0),
        watched: AtomicBool::new(false),
        channel,
        parent_domain: options.parent_domain,
        events: Mutex::default(),
        acknowledged: Condvar::new(),
    });
    if let Some(channel) = &queue.channel
        && let Err(errno) = channel.attach(&queue, &hardware)
    {
        // The channel was destroyed meanwhile; nothing may stay of the queue.
        hardware.forget(|device| device.destroy_cq(id))?;
        return Err(errno);
    }
    Ok(queue)
}

pub(crate) extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    queue_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    errno::pointer(CONTEXTS.get(context).and_then(|owner| {
        let queue = create(
            owner,
            Options {
                entries: u32::try_from(entries).map_err(|_| Errno::INVAL)?,
                context: queue_context,
                channel,
                vector: u32::try_from(vector).map_err(|_| Errno::INVAL)?,
                parent_domain: None,
                wc_flags: 0,
                efa_wc_flags: 0,
            },
        )?;
        Ok(QUEUES.insert(queue))
    }))
}

/// Slot of `verbs_context`.
///
/// # Safety
/// As for [`create_extended`].
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    let efa = efadv_cq_init_attr::default();
    // SAFETY: by contract.
    errno::pointer(unsafe { create_extended(context, attributes, &efa) })
}

/// The part of a program's request that its `comp_mask` vouches for. `None` for a null pointer.
///
/// # Safety
/// As for [`create_extended`].
unsafe fn read_request(request: *const ibv_cq_init_attr_ex) -> Option<ibv_cq_init_attr_ex> {
    if request.is_null() {
        return None;
    }
    // SAFETY: the fields up to `comp_mask` are there in every version.
    let mut known = unsafe { beginning(request, offset_of!(ibv_cq_init_attr_ex, flags)) };
    if known.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 {
        // SAFETY: by contract.
        known.flags = unsafe { (*request).flags };
    }
    if known.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0 {
        // SAFETY: by contract.
        known.parent_domain = unsafe { (*request).parent_domain };
    }
    Some(known)
}

/// Makes a completion queue with EFA's own options.
///
/// # Safety
/// `request` is null or valid for reads up to the last field that its `comp_mask` names, and for writes of `cqe`.
pub(crate) unsafe fn create_extended(
    context: *mut ibv_context,
    request: *mut ibv_cq_init_attr_ex,
    efa: &efadv_cq_init_attr,
) -> Result<*mut ibv_cq_ex, Errno> {
    let owner = CONTEXTS.get(context)?;
    // SAFETY: by contract.
    let attributes = unsafe { read_request(request) }.ok_or(Errno::INVAL)?;
    let caps = owner.device.profile.caps;
    let mut supported = 0;
    if caps.contains(DeviceCaps::CQ_WITH_SGID) {
        supported |= EFADV_WC_EX_WITH_SGID;
    }
    if caps.contains(DeviceCaps::UNSOLICITED_WRITE_RECV) {
        supported |= EFADV_WC_EX_WITH_IS_UNSOLICITED;
    }
    let with_flags = attributes.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0;
    if efa.wc_flags & !supported != 0
        // rdma-core looks at no other of these flags.
        || efa.flags & EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF != 0
        || attributes.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0
        || attributes.wc_flags & !IBV_WC_STANDARD_FLAGS != 0
        || (with_flags && attributes.flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0)
    {
        return Err(Errno::OPNOTSUPP);
    }
    let parent_domain = match attributes.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD {
        0 => None,
        _ => Some(DOMAINS.get(attributes.parent_domain)?),
    };
    if parent_domain
        .as_ref()
        .is_some_and(|domain| !domain.is_parent() || !Arc::ptr_eq(&domain.context, &owner))
    {
        return Err(Errno::INVAL);
    }
    let queue = create(
        owner,
        Options {
            entries: attributes.cqe,
            context: attributes.cq_context,
            channel: attributes.channel,
            vector: attributes.comp_vector,
            parent_domain,
            wc_flags: attributes.wc_flags,
            efa_wc_flags: efa.wc_flags,
        },
    )?;
    let pointer = QUEUES.insert(queue);
    // SAFETY: the queue was just made and is not known to the program yet; the request by contract.
    unsafe { (*request).cqe = (*pointer).cqe as u32 };
    Ok(pointer.cast())
}

/// Asks for one event as soon as there is a completion that was not polled yet. Through the context's
/// table.
///
/// # Safety
/// `queue` is null or a completion queue of this library.
pub(crate) unsafe extern "C" fn req_notify_cq(queue: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: by contract.
    let Some(queue) = (unsafe { CompQueue::from_pointer(queue) }) else {
        return libc::EINVAL;
    };
    if solicited_only != 0 {
        return libc::EOPNOTSUPP;
    }
    // The calling thread may be inside a polling session of this queue.
    queue.arm_pending.store(true, Ordering::Relaxed);
    queue.catch_up();
    0
}

/// The program is done with events that it took.
pub(crate) extern "C" fn ibv_ack_cq_events(queue: *mut ibv_cq, events: c_uint) {
    if let Ok(queue) = QUEUES.get(queue) {
        let mut counts = queue.events.lock().unwrap_or_else(PoisonError::into_inner);
        counts.acknowledged += u64::from(events);
        queue.acknowledged.notify_all();
    }
}

/// `EBUSY` while queue pairs use the queue. Waits until all events that were taken are acknowledged, those of its
/// channel and asynchronous ones.
pub(crate) extern "C" fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int {
    errno::status_of_end(|| destroy(queue))
}

fn destroy(queue: *mut ibv_cq) -> Result<(), Errno> {
    let queue = QUEUES.get(queue)?;
    queue.life.end(|| {
        let watched = queue.watched.swap(false, Ordering::AcqRel);
        if watched && let Ok(hardware) = queue.context.hardware() {
            // It fails in a forked child, whose device looks at nothing.
            let _ = hardware.watch_cq(queue.id, false);
        }
        let destroyed = queue.context.forget(|device| {
            device.destroy_cq(queue.id)?;
            queue.ended.store(true, Ordering::Relaxed);
            Ok(())
        });
        if destroyed.is_err() && watched {
            queue.begin_watching()?;
        }
        destroyed
    })?;
    if !queue.context.is_forked() {
        queue.settle_events();
    }
    let queue = QUEUES.remove(queue.c_pointer())?;
    *queue.polled.lock_or_break_session(&Locking::new()) = None;
    if let Some(channel) = &queue.channel {
        channel.detach();
    }
    if let Some(domain) = &queue.parent_domain {
        domain.life.leave();
    }
    Ok(())
}

/// Takes the device away from the completion queues of a context that is being closed. Programs may
/// still destroy them.
pub(crate) fn end_all(context: &Arc<Context>) {
    for queue in QUEUES.all(|queue| Arc::ptr_eq(&queue.context, context)) {
        *queue.polled.lock_or_break_session(&Locking::new()) = None;
    }
}
