//! Events and interrupts for the guest.
//!
//! The engine's thread reports completions here, concurrently with the thread that serves the
//! guest.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use efa_device_model::device::DeviceEvent;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slab::Slab;
use zerocopy::IntoBytes;

use super::bars::MSIX_VECTORS;
use super::registers::QueueShape;
use crate::admin::{
    AdminStatus, AsyncEvent, AsyncGroup, CompletionEvent, CreateEq, ENTRY, EVENT_QUEUE_DEPTH,
    EVENT_QUEUES,
};
use crate::memory::GuestMemory;

/// Offset of the word with the phase in an [`AsyncEvent`].
const ASYNC_PHASE: usize = 4;

/// A queue in the guest's memory that the device writes.
struct GuestQueue {
    base: u64,
    depth: u32,
    /// Counter of the next entry.
    producer: u32,
    vector: u16,
}

impl GuestQueue {
    /// The address of the next entry of this length, and its phase.
    fn next(&mut self, length: u64) -> (u64, bool) {
        let index = u64::from(self.producer & (self.depth - 1));
        let phase = self.producer & self.depth == 0;
        self.producer = self.producer.wrapping_add(1);
        (self.base + index * length, phase)
    }
}

struct EventQueue {
    entries: GuestQueue,
    /// The next entry raises an interrupt.
    is_armed: bool,
    /// Entries were written after the last interrupt, which the guest may not have processed.
    is_late: bool,
    /// The guest was interrupted and has not armed the queue since.
    is_unanswered: bool,
}

#[derive(Default)]
struct NotifierState {
    /// The eventfd of each vector.
    vectors: [Option<OwnedFd>; MSIX_VECTORS as usize],
    /// Vectors that were triggered while they had no eventfd, one bit for each, like the pending
    /// bits of masked MSI-X vectors. QEMU removes all eventfds for a moment when the guest enables
    /// another vector.
    pending: u32,
    /// Whether the admin queue's interrupt is masked.
    is_masked: bool,
    admin_vector: u16,
    /// Commands were completed since the last keep-alive.
    has_completed: bool,
    async_events: Option<GuestQueue>,
    enabled_groups: u32,
    event_queues: Slab<EventQueue>,
    /// The event queue of each completion queue with events.
    users: HashMap<u32, u16>,
    has_failed: bool,
}

impl NotifierState {
    /// Interrupts the guest now, or as soon as the vector has an eventfd.
    fn interrupt(&mut self, vector: u16) {
        let Some(slot) = self.vectors.get(usize::from(vector)) else {
            return;
        };
        tracing::debug!(vector, is_there = slot.is_some(), "interrupt");
        let Some(eventfd) = slot else {
            self.pending |= 1 << vector;
            return;
        };
        // A full eventfd must not block this thread.
        let mut ready = [PollFd::new(eventfd, PollFlags::OUT)];
        if matches!(poll(&mut ready, Some(&Timespec::default())), Ok(1)) {
            let _ = rustix::io::write(eventfd.as_fd(), &1u64.to_ne_bytes());
        }
    }
}

/// Reports events to the guest.
pub struct Notifier {
    memory: Arc<GuestMemory>,
    started: Instant,
    state: Mutex<NotifierState>,
}

impl Notifier {
    /// A notifier for a guest with this memory.
    pub fn new(memory: Arc<GuestMemory>) -> Notifier {
        Notifier {
            memory,
            started: Instant::now(),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, NotifierState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the eventfd of a vector.
    pub fn set_vector(&self, vector: u32, eventfd: Option<OwnedFd>) {
        let mut state = self.lock();
        let Some(slot) = state.vectors.get_mut(vector as usize) else {
            return;
        };
        let is_there = eventfd.is_some();
        tracing::debug!(vector, is_there, "what stands for a vector");
        *slot = eventfd;
        let bit = 1 << vector;
        if is_there && state.pending & bit != 0 {
            state.pending &= !bit;
            state.interrupt(vector as u16);
        }
    }

    /// Triggers a vector.
    pub fn trigger(&self, vector: u32) {
        if let Ok(vector) = u16::try_from(vector) {
            self.lock().interrupt(vector);
        }
    }

    /// Removes the eventfds of all vectors.
    pub fn clear_vectors(&self) {
        tracing::debug!("no vector interrupts");
        self.lock().vectors.fill_with(|| None);
    }

    /// Removes all queues. The vectors' eventfds remain.
    pub(super) fn reset(&self) {
        let mut state = self.lock();
        *state = NotifierState {
            vectors: std::mem::take(&mut state.vectors),
            ..NotifierState::default()
        };
    }

    /// Whether the device has failed since its reset.
    pub(super) fn has_failed(&self) -> bool {
        self.lock().has_failed
    }

    /// Masks or unmasks the interrupt of the admin queue.
    pub(super) fn mask(&self, is_masked: bool) {
        self.lock().is_masked = is_masked;
    }

    pub(super) fn set_admin_vector(&self, vector: u8) {
        self.lock().admin_vector = vector.into();
    }

    /// Reports the completion of a command.
    pub(super) fn report_completion(&self) {
        let mut state = self.lock();
        state.has_completed = true;
        if !state.is_masked {
            let vector = state.admin_vector;
            state.interrupt(vector);
        }
    }

    /// Repeats interrupts to which the guest has not reacted. On an overloaded machine an emulated
    /// guest loses some, and its driver would wait forever, or consider the device failed. A
    /// spurious interrupt is harmless.
    pub(super) fn repeat_interrupts(&self) {
        let mut state = self.lock();
        if std::mem::take(&mut state.has_completed) && !state.is_masked {
            let vector = state.admin_vector;
            state.interrupt(vector);
        }
        let unanswered = state.event_queues.iter();
        let unanswered: Vec<u16> = unanswered
            .filter(|(_, queue)| queue.is_unanswered)
            .map(|(_, queue)| queue.entries.vector)
            .collect();
        for vector in unanswered {
            state.interrupt(vector);
        }
    }

    pub(super) fn start_async_events(&self, base: u64, shape: QueueShape) {
        self.lock().async_events = Some(GuestQueue {
            base,
            depth: shape.depth.into(),
            producer: 0,
            vector: shape.vector.into(),
        });
    }

    /// The enabled groups of asynchronous events.
    pub(super) fn groups(&self) -> u32 {
        self.lock().enabled_groups
    }

    /// Sets the enabled groups of asynchronous events.
    pub(super) fn set_groups(&self, groups: u32) {
        self.lock().enabled_groups = groups;
    }

    /// Reports an asynchronous event, if its group is enabled.
    pub(super) fn report_async(&self, group: AsyncGroup) {
        let mut state = self.lock();
        self.write_async(&mut state, group);
    }

    fn write_async(&self, state: &mut NotifierState, group: AsyncGroup) {
        let is_wanted = state.enabled_groups & group.bit() != 0;
        let Some(queue) = state.async_events.as_mut().filter(|_| is_wanted) else {
            return;
        };
        let vector = queue.vector;
        let (address, phase) = queue.next(ENTRY as u64);
        let microseconds = self.started.elapsed().as_micros() as u64;
        let event = AsyncEvent::new(group, phase, microseconds);
        // The guest may have unmapped its queue; then the event is dropped.
        let written = self.memory.publish(address, event.as_bytes(), ASYNC_PHASE);
        if written.is_ok() && !state.is_masked {
            state.interrupt(vector);
        }
    }

    /// Creates an event queue.
    pub(super) fn create_eq(&self, request: &CreateEq) -> Result<u16, AdminStatus> {
        let depth = u32::from(request.depth.get());
        let is_possible = depth.is_power_of_two()
            && depth <= EVENT_QUEUE_DEPTH
            && u16::from(request.vector) < MSIX_VECTORS
            && request.entry == CompletionEvent::WORDS
            && request.events.get() & !1 == 0;
        let bytes = u64::from(depth) * size_of::<CompletionEvent>() as u64;
        if !is_possible || self.memory.lend(request.base.get(), bytes).is_err() {
            return Err(AdminStatus::IllegalParameter);
        }
        let mut state = self.lock();
        if state.event_queues.len() >= EVENT_QUEUES as usize {
            return Err(AdminStatus::NoResources);
        }
        let eqn = state.event_queues.insert(EventQueue {
            entries: GuestQueue {
                base: request.base.get(),
                depth,
                producer: 0,
                vector: request.vector.into(),
            },
            is_armed: false,
            is_late: false,
            is_unanswered: false,
        });
        Ok(eqn as u16)
    }

    /// Destroys an event queue.
    pub(super) fn destroy_eq(&self, eqn: u16) -> Result<(), AdminStatus> {
        let mut state = self.lock();
        if !state.event_queues.contains(eqn.into()) {
            return Err(AdminStatus::IllegalParameter);
        }
        if state.users.values().any(|used| *used == eqn) {
            return Err(AdminStatus::Busy);
        }
        state.event_queues.remove(eqn.into());
        Ok(())
    }

    pub(super) fn has_eq(&self, eqn: u16) -> bool {
        self.lock().event_queues.contains(eqn.into())
    }

    /// Sets the event queue of a completion queue.
    pub(super) fn attach(&self, cq: u32, eqn: u16) {
        self.lock().users.insert(cq, eqn);
    }

    /// Removes the event queue of a completion queue.
    pub(super) fn detach(&self, cq: u32) {
        self.lock().users.remove(&cq);
    }

    /// Arms an event queue that the guest has read, so that the next entry raises an interrupt.
    pub(super) fn arm(&self, eqn: u16) {
        let mut state = self.lock();
        let Some(queue) = state.event_queues.get_mut(eqn.into()) else {
            return;
        };
        // An entry may have been written after the guest's read.
        queue.is_armed = !std::mem::take(&mut queue.is_late);
        queue.is_unanswered = !queue.is_armed;
        if !queue.is_armed {
            let vector = queue.entries.vector;
            state.interrupt(vector);
        }
    }

    /// Reports an event of the device.
    pub(super) fn notify(&self, event: DeviceEvent) {
        let mut state = self.lock();
        match event {
            DeviceEvent::Completion(cq) => self.write_completion(&mut state, cq.0),
            DeviceEvent::Fatal => {
                state.has_failed = true;
                self.write_async(&mut state, AsyncGroup::FatalError);
            }
            // The interface has no events for these, and none for connected queue pairs.
            DeviceEvent::CqError(_)
            | DeviceEvent::QpFatal(_)
            | DeviceEvent::QpAccessError(_)
            | DeviceEvent::QpRequestError(_)
            | DeviceEvent::QpLastReceive(_)
            | DeviceEvent::SrqLimit(_)
            | DeviceEvent::PortError
            | DeviceEvent::PortActive
            | DeviceEvent::SpeedChange => {}
        }
    }

    fn write_completion(&self, state: &mut NotifierState, cq: u32) {
        let eqn = state.users.get(&cq).copied();
        let Some(queue) = eqn.and_then(|eqn| state.event_queues.get_mut(eqn.into())) else {
            return;
        };
        let (address, phase) = queue.entries.next(size_of::<CompletionEvent>() as u64);
        let event = CompletionEvent::new(cq as u16, phase);
        if self.memory.publish(address, event.as_bytes(), 0).is_err() {
            return;
        }
        match std::mem::take(&mut queue.is_armed) {
            true => {
                queue.is_unanswered = true;
                let vector = queue.entries.vector;
                state.interrupt(vector);
            }
            false => queue.is_late = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use efa_device_model::device::CqId;
    use rustix::event::{EventfdFlags, eventfd};
    use zerocopy::FromZeros;

    use super::*;
    use crate::memory::test_pages;

    struct Guest {
        memory: Arc<GuestMemory>,
        notifier: Notifier,
        eventfd: OwnedFd,
    }

    impl Guest {
        fn new() -> Guest {
            let memory = Arc::new(GuestMemory::default());
            memory.map(0, 4 * 4096, true, test_pages(4), 0).unwrap();
            memory.write(0, &[0; 4 * 4096]).unwrap();
            let notifier = Notifier::new(Arc::clone(&memory));
            let eventfd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
            notifier.set_vector(3, Some(eventfd.try_clone().unwrap()));
            Guest {
                memory,
                notifier,
                eventfd,
            }
        }

        /// The number of interrupts since the last call.
        fn interrupts(&self) -> u64 {
            let mut count = [0; 8];
            match rustix::io::read(&self.eventfd, &mut count) {
                Ok(_) => u64::from_ne_bytes(count),
                Err(_) => 0,
            }
        }

        fn bytes<const N: usize>(&self, address: u64) -> [u8; N] {
            let mut bytes = [0; N];
            self.memory.read(address, &mut bytes).unwrap();
            bytes
        }

        fn create(&self) -> u16 {
            self.notifier.create_eq(&eq_request()).unwrap()
        }
    }

    fn eq_request() -> CreateEq {
        let mut request = CreateEq::new_zeroed();
        request.depth = 2.into();
        request.vector = 3;
        request.entry = 4;
        request.base = 4096.into();
        request.events = 1.into();
        request
    }

    const COMPLETION: DeviceEvent = DeviceEvent::Completion(CqId(5));

    #[test]
    fn an_armed_queue_interrupts_once() {
        let guest = Guest::new();
        let eqn = guest.create();
        guest.notifier.attach(5, eqn);
        guest.notifier.arm(eqn);
        assert_eq!(guest.interrupts(), 0);
        guest.notifier.notify(COMPLETION);
        assert_eq!(guest.interrupts(), 1);
        assert_eq!(guest.bytes(4096), [1u8, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0]);
        guest.notifier.notify(COMPLETION);
        assert_eq!(guest.interrupts(), 0);
        assert_eq!(guest.bytes(4112), [1u8, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0]);
        // The second entry was written before the guest had read all entries and armed the queue
        // again.
        guest.notifier.arm(eqn);
        assert_eq!(guest.interrupts(), 1);
        guest.notifier.arm(eqn);
        assert_eq!(guest.interrupts(), 0);
        guest.notifier.notify(COMPLETION);
        assert_eq!(guest.interrupts(), 1);
        assert_eq!(guest.bytes(4096), [0u8], "the phase of the second lap");
    }

    #[test]
    fn interrupts_without_a_reaction_are_repeated() {
        let guest = Guest::new();
        let eqn = guest.create();
        guest.notifier.attach(5, eqn);
        guest.notifier.arm(eqn);
        let repeated = || {
            guest.notifier.repeat_interrupts();
            guest.interrupts()
        };
        assert_eq!(repeated(), 0);
        guest.notifier.notify(COMPLETION);
        assert_eq!(guest.interrupts(), 1);
        assert_eq!([repeated(), repeated()], [1, 1], "until the queue is armed");
        guest.notifier.arm(eqn);
        assert_eq!(repeated(), 0);
        guest.notifier.set_admin_vector(3);
        guest.notifier.report_completion();
        assert_eq!(guest.interrupts(), 1);
        assert_eq!([repeated(), repeated()], [1, 0], "once for commands");
        guest.notifier.mask(true);
        guest.notifier.report_completion();
        assert_eq!(repeated(), 0);
    }

    #[test]
    fn queues_without_events_raise_no_interrupt() {
        let guest = Guest::new();
        let eqn = guest.create();
        guest.notifier.arm(eqn);
        guest.notifier.notify(COMPLETION);
        guest.notifier.attach(5, eqn);
        guest.notifier.detach(5);
        guest.notifier.notify(COMPLETION);
        assert_eq!((guest.interrupts(), guest.bytes(4096)), (0, [0u8; 16]));
    }

    #[test]
    fn a_used_event_queue_stays() {
        let guest = Guest::new();
        let eqn = guest.create();
        guest.notifier.attach(5, eqn);
        assert_eq!(guest.notifier.destroy_eq(eqn), Err(AdminStatus::Busy));
        guest.notifier.detach(5);
        assert_eq!(guest.notifier.destroy_eq(eqn), Ok(()));
        let gone = AdminStatus::IllegalParameter;
        assert_eq!(guest.notifier.destroy_eq(eqn), Err(gone));
        guest.notifier.arm(eqn);
    }

    #[test]
    fn wrong_event_queues_are_refused() {
        let guest = Guest::new();
        let refused = |change: fn(&mut CreateEq)| {
            let mut request = eq_request();
            change(&mut request);
            guest.notifier.create_eq(&request).unwrap_err()
        };
        let illegal = AdminStatus::IllegalParameter;
        assert_eq!(refused(|request| request.depth = 3.into()), illegal);
        assert_eq!(refused(|request| request.depth = 0.into()), illegal);
        assert_eq!(refused(|request| request.depth = 8192.into()), illegal);
        assert_eq!(refused(|request| request.vector = 32), illegal);
        assert_eq!(refused(|request| request.entry = 8), illegal);
        assert_eq!(refused(|request| request.events = 3.into()), illegal);
        assert_eq!(
            refused(|request| request.base = (4 * 4096 - 16).into()),
            illegal
        );
        for _ in 0..EVENT_QUEUES {
            guest.create();
        }
        assert_eq!(refused(|_| ()), AdminStatus::NoResources);
    }

    #[test]
    fn keep_alive_events_are_sent_if_enabled() {
        let guest = Guest::new();
        let shape = QueueShape {
            depth: 2,
            vector: 3,
        };
        guest.notifier.start_async_events(8192, shape);
        guest.notifier.report_async(AsyncGroup::KeepAlive);
        assert_eq!((guest.interrupts(), guest.bytes(8192)), (0, [0u8; 64]));
        guest.notifier.set_groups(AsyncGroup::KeepAlive.bit());
        for (address, phase) in [(8192, 1), (8192 + 64, 1), (8192, 0)] {
            guest.notifier.report_async(AsyncGroup::KeepAlive);
            assert_eq!(guest.interrupts(), 1);
            assert_eq!(guest.bytes(address), [4, 0, 0, 0, phase]);
        }
        guest.notifier.mask(true);
        guest.notifier.report_async(AsyncGroup::KeepAlive);
        assert_eq!(
            (guest.interrupts(), guest.bytes(8192 + 64)),
            (0, [4u8, 0, 0, 0, 0])
        );
    }

    #[test]
    fn interrupts_of_a_missing_vector_are_kept() {
        let guest = Guest::new();
        let again = || Some(guest.eventfd.try_clone().unwrap());
        guest.notifier.clear_vectors();
        guest.notifier.trigger(3);
        guest.notifier.trigger(3);
        guest.notifier.set_vector(4, again());
        guest.notifier.set_vector(3, None);
        assert_eq!(guest.interrupts(), 0);
        guest.notifier.set_vector(3, again());
        assert_eq!(guest.interrupts(), 1);
        guest.notifier.set_vector(3, again());
        assert_eq!(guest.interrupts(), 0);
        guest.notifier.set_vector(3, None);
        guest.notifier.trigger(3);
        guest.notifier.reset();
        guest.notifier.set_vector(3, again());
        assert_eq!(guest.interrupts(), 0, "a reset forgets them");
    }

    #[test]
    fn a_full_eventfd_does_not_block() {
        let guest = Guest::new();
        let full = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        guest.notifier.set_vector(3, Some(full));
        guest.notifier.trigger(3);
        guest.notifier.trigger(32);
        guest.notifier.set_vector(u32::MAX, None);
    }
}
