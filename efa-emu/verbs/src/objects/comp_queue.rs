//! Completion queues: their events and their destruction. Polling is in [`crate::calls::poll`].

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use efa_device_model::device::CqId;
use efa_device_model::device::queue::CompletionRing;
use efa_device_model::provider::CompletionQueue;

use super::channel::Channel;
use super::context::Context;
use super::domain::Domain;
use super::event_queue::CqAddress;
use super::handle::{CStruct, Handle, data_path_handle};
use super::liveness::Liveness;
use super::queues::{PolledQueue, QueueIndex};
use crate::abi::{efadv_cq, ibv_cq, ibv_cq_ex};
use crate::ffi::errno::Errno;
use crate::ffi::interrupted::Locking;
use crate::ffi::interrupted::SpinCell;

/// The C structures of a completion queue. The polling session, which holds the lock of `polled`,
/// writes the current completion to it.
#[repr(C)]
pub(crate) struct CompQueueC {
    pub(crate) ex: ibv_cq_ex,
    pub(crate) efa: efadv_cq,
}

/// The event that the program has requested, if any; a greater value covers more entries.
const NOT_ARMED: u8 = 0;
const ARMED_FOR_SOLICITED: u8 = 1;
const ARMED_FOR_ALL: u8 = 2;

/// A completion queue.
#[repr(C)]
pub(crate) struct CompQueue {
    c: CStruct<CompQueueC>,
    pub(crate) context: Arc<Context>,
    pub(crate) id: CqId,
    pub(crate) liveness: Liveness,
    /// Whether the device has destroyed the queue, and may assign its id to another. Set under the
    /// device's lock.
    pub(crate) ended: AtomicBool,
    /// `None` once the queue was destroyed.
    pub(crate) polled: SpinCell<Option<PolledQueue>>,
    /// The event that the program requested; [`CompQueue::catch_up`] requests it from the device.
    arm_pending: AtomicU8,
    /// Events that the program read and that the queue has not counted yet; [`CompQueue::catch_up`]
    /// counts them.
    taken_pending: AtomicU32,
    /// Whether the client may write the doorbell without a call.
    watched: AtomicBool,
    channel: Option<Arc<Channel>>,
    parent_domain: Option<Arc<Domain>>,
    /// Events read and events acknowledged.
    events: Mutex<Events>,
    acknowledged: Condvar,
}

#[derive(Default)]
struct Events {
    taken: u64,
    acknowledged: u64,
}

data_path_handle!(CompQueue, ibv_cq);

/// The parameters of a completion queue.
pub(crate) struct Options {
    pub(crate) entries: u32,
    /// The program's `cq_context`.
    pub(crate) program_context: *mut c_void,
    pub(crate) channel: Option<Arc<Channel>>,
    pub(crate) parent_domain: Option<Arc<Domain>>,
}

impl CompQueue {
    /// Makes a completion queue; `c` makes its structure, from the basic part.
    pub(crate) fn create(
        context: Arc<Context>,
        options: Options,
        c: impl FnOnce(ibv_cq) -> CompQueueC,
    ) -> Result<Arc<CompQueue>, Errno> {
        match options.parent_domain.clone() {
            Some(domain) => domain
                .liveness
                .join(|| Self::create_in(context, options, c)),
            None => Self::create_in(context, options, c),
        }
    }

    fn create_in(
        context: Arc<Context>,
        options: Options,
        c: impl FnOnce(ibv_cq) -> CompQueueC,
    ) -> Result<Arc<CompQueue>, Errno> {
        let hardware = context.hardware()?;
        let request_ids = context.device.profile.longest_request_ids();
        let (id, ring) =
            hardware.with_device(|device| device.create_cq(options.entries, request_ids))??;
        let channel = options.channel;
        let base = ibv_cq {
            context: context.c_pointer(),
            channel: channel
                .as_ref()
                .map_or(core::ptr::null_mut(), |channel| channel.c_pointer()),
            cq_context: options.program_context,
            handle: id.0,
            cqe: ring.entries() as c_int,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            comp_events_completed: 0,
            async_events_completed: 0,
        };
        let queue = Arc::new(CompQueue {
            c: CStruct::new(c(base)),
            context,
            id,
            liveness: Liveness::new(),
            ended: AtomicBool::new(false),
            polled: SpinCell::new(Some(PolledQueue {
                hardware: Arc::clone(&hardware),
                completions: CompletionQueue::new(ring),
                owners: QueueIndex::default(),
                event_for_unread: false,
            })),
            arm_pending: AtomicU8::new(NOT_ARMED),
            taken_pending: AtomicU32::new(0),
            watched: AtomicBool::new(false),
            channel,
            parent_domain: options.parent_domain,
            events: Mutex::default(),
            acknowledged: Condvar::new(),
        });
        if let Some(channel) = &queue.channel
            && let Err(errno) = channel.attach(id, queue.address(), &hardware)
        {
            // The channel was destroyed meanwhile; the queue is removed again.
            hardware.forget(|device| device.destroy_cq(id))?;
            return Err(errno);
        }
        Ok(queue)
    }

    fn address(&self) -> CqAddress {
        CqAddress::new(self.c_pointer())
    }

    /// Counts an event that the program reads and has to acknowledge.
    pub(crate) fn count_event(&self) {
        self.events
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .taken += 1;
        self.taken_pending.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts acknowledgements of the program.
    pub(crate) fn acknowledge_events(&self, events: u64) {
        let mut counts = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        counts.acknowledged += events;
        self.acknowledged.notify_all();
    }

    /// The last step of the destruction, after the device has destroyed the queue: drops its
    /// events, and waits until the program has acknowledged the events that it read. Not in a
    /// forked child, where the events belong to the parent.
    fn drain_events(&self) {
        if let Some(channel) = &self.channel {
            if let Ok(hardware) = self.context.hardware() {
                hardware.unsubscribe(self.id);
            }
            channel.discard(self.address());
        }
        let counts = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = |counts: &mut Events| counts.acknowledged < counts.taken;
        drop(self.acknowledged.wait_while(counts, pending));
        if let Ok(events) = self.context.async_events() {
            events.drain(self.c_pointer().addr());
        }
    }

    /// Makes the device poll the doorbell from now on. Returns the ring, for the client.
    pub(crate) fn watch(&self) -> Result<Arc<CompletionRing>, Errno> {
        let ring = match self.polled.lock(&Locking::new()).as_ref() {
            Some(polled) => Arc::clone(polled.completions.ring()),
            None => return Err(Errno::INVAL),
        };
        self.liveness.during(|| self.begin_watching())?;
        Ok(ring)
    }

    fn begin_watching(&self) -> Result<(), Errno> {
        let hardware = self.context.hardware()?;
        if !self.watched.swap(true, Ordering::AcqRel) {
            hardware.engine(|engine| engine.watch_cq(self.id, true))?;
        }
        Ok(())
    }

    /// The number of entries of the queue.
    pub(crate) fn entries(&self) -> c_int {
        // SAFETY: the field is never written by the library after the queue was made.
        unsafe { (*self.c_pointer()).cqe }
    }

    /// The program's `cq_context`.
    pub(crate) fn program_context(&self) -> *mut c_void {
        // SAFETY: the field is never written by the library after the queue was made.
        unsafe { (*self.c_pointer()).cq_context }
    }

    /// Executes requests that other calls have queued because the lock may have been held, even by
    /// a polling session of their own thread: counts events that the program read, and requests an
    /// event. It must be called after such requests are queued and after the lock is released.
    #[inline]
    pub(crate) fn catch_up(&self) {
        if self.is_behind() {
            self.catch_up_now();
        }
    }

    #[inline]
    fn is_behind(&self) -> bool {
        self.arm_pending.load(Ordering::Relaxed) != NOT_ARMED
            || self.taken_pending.load(Ordering::Relaxed) != 0
    }

    #[cold]
    fn catch_up_now(&self) {
        let locking = Locking::new();
        while self.is_behind() {
            let Some(mut guard) = self.polled.try_lock(&locking) else {
                // The thread that holds the lock catches up when it releases it. It may miss a
                // request that is queued at that moment. The next poll then catches up: a program
                // that requests an event polls again before it waits, as the verbs require.
                return;
            };
            let taken = self.taken_pending.swap(0, Ordering::Relaxed);
            let arm = self.arm_pending.swap(NOT_ARMED, Ordering::Relaxed);
            if let Some(polled) = guard.as_mut() {
                for _ in 0..taken {
                    polled.completions.event_received();
                }
                if arm != NOT_ARMED {
                    self.arm(polled, arm == ARMED_FOR_SOLICITED);
                }
            }
        }
    }

    /// Requests an event from the device.
    fn arm(&self, polled: &mut PolledQueue, solicited_only: bool) {
        match solicited_only {
            true => polled.completions.request_solicited(),
            false => polled.completions.request_notification(),
        }
        polled.hardware.arm_cq(self.id);
        // It is not known here whether an event for a solicited entry was raised.
        polled.event_for_unread =
            !solicited_only && self.channel.is_some() && polled.completions.has_unread();
    }

    /// To be called with the completions of each poll. If the program has polled all entries that
    /// an event would announce, and has not read the event, the event is withdrawn, and is raised
    /// again with the next completion.
    ///
    /// A hardware device could not do that, and programs must expect an event without completions.
    /// But perftest's latency tests request the next event before they poll, and rely on one event
    /// for each completion.
    #[inline]
    pub(crate) fn after_polling(&self, polled: &mut PolledQueue) {
        if polled.event_for_unread {
            self.take_back_event(polled);
        }
    }

    #[cold]
    fn take_back_event(&self, polled: &mut PolledQueue) {
        if polled.completions.has_unread() {
            return;
        }
        polled.event_for_unread = false;
        if let Some(channel) = &self.channel
            && channel.take_back(self.address())
        {
            polled.completions.event_received();
            self.arm(polled, false);
        }
    }

    /// Requests one event for the next completion, or solicited completion, that was not polled
    /// yet. The calling thread may be inside a polling session of this queue.
    pub(crate) fn request_event(&self, solicited_only: bool) {
        let wanted = match solicited_only {
            true => ARMED_FOR_SOLICITED,
            false => ARMED_FOR_ALL,
        };
        self.arm_pending.fetch_max(wanted, Ordering::Relaxed);
        self.catch_up();
    }

    /// Destroys the queue in the device, and its handle with `remove`; `EBUSY` while queue pairs
    /// use it. Waits until all events that the program read are acknowledged: events of its channel
    /// and asynchronous events.
    pub(crate) fn destroy(&self, remove: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        self.liveness.end(|| {
            let watched = self.watched.swap(false, Ordering::AcqRel);
            if watched && let Ok(hardware) = self.context.hardware() {
                // It fails in a forked child, whose device polls nothing.
                let _ = hardware.engine(|engine| engine.watch_cq(self.id, false));
            }
            let destroyed = self.context.forget(|device| {
                device.destroy_cq(self.id)?;
                self.ended.store(true, Ordering::Relaxed);
                Ok(())
            });
            if destroyed.is_err() && watched {
                self.begin_watching()?;
            }
            destroyed
        })?;
        if !self.context.is_forked() {
            self.drain_events();
        }
        remove()?;
        self.release();
        if let Some(channel) = &self.channel {
            channel.detach();
        }
        if let Some(domain) = &self.parent_domain {
            domain.liveness.leave();
        }
        Ok(())
    }

    /// Drops the memory of the queue and its reference to the device: its context is being closed,
    /// or the queue was destroyed.
    pub(crate) fn release(&self) {
        *self.polled.lock_or_break_session(&Locking::new()) = None;
    }
}
