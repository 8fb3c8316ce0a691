//! The hardware half of an opened device, as the verbs use it: one engine. Its last user ends it.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use efa_core::address::Qpn;
use efa_device_model::device::{
    self, CqId, DeviceEvent, Lkey, PdId, QpChange, QpConfig, QpRings, QpState, RegionKeys,
};
use efa_shm::{Engine, EngineError, FabricError};

use crate::async_event::{
    AsyncEvents, IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_DEVICE_SPEED_CHANGE,
    IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_QP_FATAL,
};
use crate::comp_queue::{CompQueue, QUEUES};
use crate::device::Device;
use crate::errno::Errno;
use crate::event_queue::{EventQueue, RaisedBy};
use crate::handles::Handle;
use crate::interrupted::Locking;
use crate::queue_pair::{PAIRS, QueuePair};

/// Where the events of completion queues go.
type Listeners = Mutex<HashMap<CqId, (Arc<EventQueue>, RaisedBy)>>;

/// The engine of an opened device.
pub(crate) struct Hardware {
    engine: Engine,
    listeners: Arc<Listeners>,
}

fn lock(listeners: &Listeners) -> MutexGuard<'_, HashMap<CqId, (Arc<EventQueue>, RaisedBy)>> {
    listeners.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether objects of a device that was removed can be ended, by the variable of rdma-core.
fn may_end_removed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        let value = std::env::var_os("RDMAV_ALLOW_DISASSOC_DESTROY");
        value.is_some_and(|value| value != "0")
    })
}

/// Tells the program of an asynchronous event of the context with this serial number.
fn tell(event: DeviceEvent, serial: u64, events: &AsyncEvents) {
    const PORT: usize = 1;
    match event {
        DeviceEvent::Completion(_) => {}
        DeviceEvent::CqError(id) => {
            let of_event = |queue: &CompQueue| {
                queue.id == id
                    && queue.context.serial == serial
                    && !queue.ended.load(Ordering::Relaxed)
            };
            for queue in QUEUES.all(of_event) {
                // The reason why completions will be missing; few programs ask for events.
                eprintln!(
                    "efa-emu: a completion queue with {} entries was full when another one was due, or a \
                     rule says so: completions are lost",
                    queue.entries()
                );
                let address = queue.c_pointer().expose_provenance();
                events.raise(IBV_EVENT_CQ_ERR, address);
            }
        }
        DeviceEvent::QpFatal(qpn) => {
            let of_event = |pair: &QueuePair| pair.qpn == qpn && pair.context.serial == serial;
            for pair in PAIRS.all(of_event) {
                let address = pair.c_pointer().expose_provenance();
                events.raise(IBV_EVENT_QP_FATAL, address);
            }
        }
        DeviceEvent::Fatal => events.raise(IBV_EVENT_DEVICE_FATAL, 0),
        DeviceEvent::PortError => events.raise(IBV_EVENT_PORT_ERR, PORT),
        DeviceEvent::PortActive => events.raise(IBV_EVENT_PORT_ACTIVE, PORT),
        // One of the whole device: it names no port.
        DeviceEvent::SpeedChange => events.raise(IBV_EVENT_DEVICE_SPEED_CHANGE, 0),
    }
}

/// Runs a verb that ends something; in a forked child there is nothing to end.
fn unless_forked(verb: impl FnOnce() -> Result<(), EngineError>) -> Result<(), Errno> {
    let _locking = Locking::new();
    match verb() {
        Err(EngineError::Fabric(FabricError::Forked)) => Ok(()),
        result => Ok(result?),
    }
}

impl Hardware {
    /// Opens the device for the context with this serial number, whose asynchronous events go to `events`.
    pub(crate) fn open(
        device: &Device,
        serial: u64,
        events: Arc<AsyncEvents>,
    ) -> Result<Hardware, Errno> {
        efa_log::init();
        let engine = Engine::open(&device.config).inspect_err(|error| {
            // Verbs have no other place for a reason.
            eprintln!("efa-emu: cannot open the device: {error}");
        })?;
        let listeners = Arc::new(Listeners::default());
        let told = Arc::clone(&listeners);
        engine.set_event_handler(Some(Box::new(move |event| match event {
            DeviceEvent::Completion(queue) => {
                if let Some((events, raised_by)) = lock(&told).get(&queue) {
                    events.raise(*raised_by);
                }
            }
            other => tell(other, serial, &events),
        })))?;
        Ok(Hardware { engine, listeners })
    }

    /// Whether this is a forked child of the process that opened the device: the threads that held
    /// anything do not exist here.
    pub(crate) fn is_forked(&self) -> bool {
        self.engine.is_forked()
    }

    /// Runs a verb that makes or changes an object.
    pub(crate) fn with_device<R>(
        &self,
        verb: impl FnOnce(&mut device::Device) -> R,
    ) -> Result<R, Errno> {
        let _locking = Locking::new();
        Ok(self.engine.with_device(verb)?)
    }

    /// `EIO` after the device was removed, if objects cannot be ended then.
    fn check_end(&self) -> Result<(), Errno> {
        match may_end_removed() {
            true => Ok(()),
            false => self.check_present(),
        }
    }

    /// `EIO` after the device was removed. A forked child, which has no device, cannot tell.
    pub(crate) fn check_present(&self) -> Result<(), Errno> {
        let _locking = Locking::new();
        match self.engine.with_device(|device| device.check_present()) {
            Ok(result) => Ok(result?),
            Err(FabricError::Forked) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Runs a verb that ends an object. There is nothing to end, and no error, in a forked child, which
    /// has no device.
    pub(crate) fn forget(
        &self,
        verb: impl FnOnce(&mut device::Device) -> Result<(), device::Error>,
    ) -> Result<(), Errno> {
        self.check_end()?;
        let _locking = Locking::new();
        match self.engine.with_device(verb) {
            Ok(result) => Ok(result?),
            Err(FabricError::Forked) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn register_memory(
        &self,
        pd: PdId,
        region: device::MemoryRegion,
    ) -> Result<RegionKeys, Errno> {
        let _locking = Locking::new();
        Ok(self.engine.register_memory(pd, region)?)
    }

    /// As [`Hardware::forget`].
    pub(crate) fn deregister_memory(&self, lkey: Lkey) -> Result<(), Errno> {
        self.check_end()?;
        unless_forked(|| self.engine.deregister_memory(lkey))
    }

    pub(crate) fn modify_qp(&self, qpn: Qpn, change: &QpChange) -> Result<(), Errno> {
        let _locking = Locking::new();
        Ok(self.engine.modify_qp(qpn, change)?)
    }

    /// Forgets what a queue pair has to do, as a first step of its end: nobody touches the memory of its
    /// requests any more. `EBUSY` and no change if a peer that has stopped would. As
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

    pub(crate) fn create_qp(&self, config: QpConfig) -> Result<(Qpn, QpRings), Errno> {
        let _locking = Locking::new();
        Ok(self.engine.create_qp(config)?)
    }

    /// As [`Hardware::forget`].
    pub(crate) fn destroy_qp(&self, qpn: Qpn) -> Result<(), Errno> {
        unless_forked(|| self.engine.destroy_qp(qpn))
    }

    #[inline(always)]
    pub(crate) fn look_at_send_queue(&self, qpn: Qpn, _: &Locking) -> Result<(), Errno> {
        Ok(self.engine.look_at_send_queue(qpn)?)
    }

    /// What a doorbell of a completion queue asks for.
    pub(crate) fn arm_cq(&self, queue: CqId) {
        // It fails for a queue that is being destroyed, which raises no events any more.
        let _locking = Locking::new();
        let _ = self.engine.arm_cq(queue);
    }

    /// Has the device look at a completion queue's doorbell by itself, or stops that.
    pub(crate) fn watch_cq(&self, queue: CqId, watched: bool) -> Result<(), Errno> {
        let _locking = Locking::new();
        Ok(self.engine.watch_cq(queue, watched)?)
    }

    /// As [`Hardware::watch_cq`], for the doorbells of a queue pair.
    pub(crate) fn watch_qp(&self, qpn: Qpn, watched: bool) -> Result<(), Errno> {
        let _locking = Locking::new();
        Ok(self.engine.watch_qp(qpn, watched)?)
    }

    /// Lets the device work in the calling thread, unless another thread is at it.
    #[inline]
    pub(crate) fn progress(&self, _: &Locking) {
        self.engine.progress();
    }

    /// Whether a poll that has found nothing should call [`Hardware::rest`].
    #[inline]
    pub(crate) fn should_rest(&self) -> bool {
        self.engine.should_rest()
    }

    /// Lets others have the processor after a poll that found nothing. The caller holds no lock; the engine takes its
    /// own meanwhile.
    pub(crate) fn rest(&self, _: &Locking) {
        self.engine.rest();
    }

    /// Sends the events of a completion queue to `events`.
    pub(crate) fn listen(&self, queue: CqId, events: Arc<EventQueue>, raised_by: RaisedBy) {
        lock(&self.listeners).insert(queue, (events, raised_by));
    }

    /// Stops the events of a completion queue.
    pub(crate) fn unlisten(&self, queue: CqId) {
        lock(&self.listeners).remove(&queue);
    }
}
