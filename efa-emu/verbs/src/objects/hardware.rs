//! The hardware half of an opened device for verbs: one engine. It ends with its last user.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use efa_core::address::Qpn;
use efa_device_model::device::{self, CqId, DeviceEvent, Lkey, QpChange, QpState};
use efa_shm::{Engine, EngineError, FabricError};

use super::device::Device;
use super::event_queue::{CqAddress, EventQueue};
use crate::ffi::errno::Errno;
use crate::ffi::interrupted::Locking;

/// The destinations of the events of completion queues.
type Subscribers = HashMap<CqId, (Arc<EventQueue>, CqAddress)>;

/// The engine of an opened device.
pub(crate) struct Hardware {
    engine: Engine,
    subscribers: Arc<Mutex<Subscribers>>,
}

fn lock(subscribers: &Mutex<Subscribers>) -> MutexGuard<'_, Subscribers> {
    subscribers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether objects of a removed device can be destroyed, by rdma-core's variable.
fn may_end_removed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        let value = std::env::var_os("RDMAV_ALLOW_DISASSOC_DESTROY");
        value.is_some_and(|value| value != "0")
    })
}

/// Runs a verb that destroys an object. A forked child, which has no device, has nothing to
/// destroy.
fn unless_forked(verb: impl FnOnce() -> Result<(), EngineError>) -> Result<(), Errno> {
    let _locking = Locking::new();
    match verb() {
        Err(EngineError::Fabric(FabricError::Forked)) => Ok(()),
        result => Ok(result?),
    }
}

impl Hardware {
    /// Opens the device. `on_event` receives its asynchronous events, under the device's lock.
    pub(crate) fn open(
        device: &Device,
        on_event: impl Fn(DeviceEvent) + Send + 'static,
    ) -> Result<Hardware, Errno> {
        efa_log::init();
        let engine = Engine::open(&device.config).inspect_err(|error| {
            // Verbs have no other means of reporting a reason.
            eprintln!("efa-emu: cannot open the device: {error}");
        })?;
        let subscribers = Arc::new(Mutex::<Subscribers>::default());
        let by_queue = Arc::clone(&subscribers);
        engine.set_event_handler(Some(Box::new(move |event| match event {
            DeviceEvent::Completion(queue) => {
                if let Some((events, address)) = lock(&by_queue).get(&queue) {
                    events.raise(*address);
                }
            }
            other => on_event(other),
        })))?;
        Ok(Hardware {
            engine,
            subscribers,
        })
    }

    /// Whether this is a forked child of the process that opened the device: the threads that held
    /// locks do not exist in the child.
    pub(crate) fn is_forked(&self) -> bool {
        self.engine.is_forked()
    }

    /// Runs a verb of the engine, for which it does more than its device.
    pub(crate) fn engine<R>(
        &self,
        verb: impl FnOnce(&Engine) -> Result<R, EngineError>,
    ) -> Result<R, Errno> {
        let _locking = Locking::new();
        Ok(verb(&self.engine)?)
    }

    /// Runs a verb that makes or changes an object in the device only.
    pub(crate) fn with_device<R>(
        &self,
        verb: impl FnOnce(&mut device::Device) -> R,
    ) -> Result<R, Errno> {
        let _locking = Locking::new();
        Ok(self.engine.with_device(verb)?)
    }

    /// `EIO` after the device was removed, if objects cannot be destroyed then.
    fn check_end(&self) -> Result<(), Errno> {
        match may_end_removed() {
            true => Ok(()),
            false => self.check_present(),
        }
    }

    /// `EIO` after the device was removed. A forked child, which has no device, cannot detect this.
    pub(crate) fn check_present(&self) -> Result<(), Errno> {
        unless_forked(|| Ok(self.engine.with_device(|device| device.check_present())??))
    }

    /// Runs a verb that destroys an object. In a forked child, which has no device, it does nothing
    /// and succeeds.
    pub(crate) fn forget(
        &self,
        verb: impl FnOnce(&mut device::Device) -> Result<(), device::Error>,
    ) -> Result<(), Errno> {
        self.check_end()?;
        unless_forked(|| Ok(self.engine.with_device(verb)??))
    }

    /// As [`Hardware::forget`].
    pub(crate) fn deregister_memory(&self, lkey: Lkey) -> Result<(), Errno> {
        self.check_end()?;
        unless_forked(|| self.engine.deregister_memory(lkey))
    }

    /// Drops the requests of a queue pair, as a first step of its destruction: no process accesses
    /// their memory any more. `EBUSY` and no change if a stopped peer would. As
    /// [`Hardware::forget`] otherwise.
    pub(crate) fn stop_qp(&self, qpn: Qpn) -> Result<(), Errno> {
        self.check_end()?;
        let reset = QpChange {
            state: Some(QpState::Reset),
            ..QpChange::default()
        };
        unless_forked(|| self.engine.modify_qp(qpn, &reset))
    }

    /// As [`Hardware::stop_qp`], for the requests of all queue pairs, before the device is closed.
    pub(crate) fn quiesce(&self) -> Result<(), Errno> {
        unless_forked(|| self.engine.quiesce())
    }

    /// Passes work without a ring to the device.
    #[inline(always)]
    pub(crate) fn post<R>(&self, work: impl FnOnce(&mut device::Device) -> R) -> Result<R, Errno> {
        let _locking = Locking::new();
        Ok(self.engine.post(work)?)
    }

    /// As [`Hardware::forget`].
    pub(crate) fn destroy_qp(&self, qpn: Qpn) -> Result<(), Errno> {
        unless_forked(|| self.engine.destroy_qp(qpn))
    }

    /// Processes the send queue, whose doorbell was written.
    #[inline(always)]
    pub(crate) fn ring_send_doorbell(&self, qpn: Qpn, _: &Locking) -> Result<(), Errno> {
        Ok(self.engine.process_send_doorbell(qpn)?)
    }

    /// Processes the doorbell of a completion queue, which requests an event.
    pub(crate) fn arm_cq(&self, queue: CqId) {
        // It fails for a queue that is being destroyed, which raises no more events.
        let _ = self.engine(|engine| engine.arm_cq(queue));
    }

    /// Runs the device in the calling thread, unless another thread runs it.
    #[inline]
    pub(crate) fn progress(&self, _: &Locking) {
        self.engine.progress();
    }

    /// Whether a poll without a completion should call [`Hardware::rest`].
    #[inline]
    pub(crate) fn should_rest(&self) -> bool {
        self.engine.should_rest()
    }

    /// Yields the processor after a poll without a completion. The caller holds no lock; the engine
    /// acquires its lock meanwhile.
    pub(crate) fn rest(&self, _: &Locking) {
        self.engine.rest();
    }

    /// Sends the events of a completion queue, with the address of the program's handle, to
    /// `events`.
    pub(crate) fn subscribe(&self, queue: CqId, events: Arc<EventQueue>, address: CqAddress) {
        lock(&self.subscribers).insert(queue, (events, address));
    }

    /// Stops the events of a completion queue.
    pub(crate) fn unsubscribe(&self, queue: CqId) {
        lock(&self.subscribers).remove(&queue);
    }
}
