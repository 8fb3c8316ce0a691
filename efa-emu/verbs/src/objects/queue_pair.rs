//! Queue pairs: making and destroying them, and their state. Posting is in [`crate::calls::post`]
//! and [`crate::calls::builder`].

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use efa_core::address::Qpn;
use efa_device_model::device::connected::{
    ConnectedConfig, ConnectionAttributes, ConnectionMask, SendWr,
};
use efa_device_model::device::{QpAttributes, QpChange, QpConfig, QpRings, QpState};
use efa_device_model::provider::{RecvQueue, RecvQueueConfig, SendQueue, SendQueueConfig};

use super::comp_queue::CompQueue;
use super::context::Context;
use super::domain::Domain;
use super::handle::{CStruct, Handle, data_path_handle};
use super::hardware::Hardware;
use super::liveness::Liveness;
use super::qp_plan::QpPlan;
use super::queues::{Queues, Sender};
use super::shared_queue::SharedQueue;
use crate::abi::{
    IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, efadv_qp,
    ibv_ah_attr, ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex, verbs_qp,
};
use crate::ffi::errno::Errno;
use crate::ffi::interrupted::Locking;
use crate::ffi::interrupted::SpinCell;

/// The C structures of a queue pair. The library writes only `state`, atomically, after it was
/// made.
#[repr(C)]
pub(crate) struct QueuePairC {
    pub(crate) verbs: verbs_qp,
    pub(crate) efa: efadv_qp,
}

/// A queue pair.
#[repr(C)]
pub(crate) struct QueuePair {
    c: CStruct<QueuePairC>,
    pub(crate) context: Arc<Context>,
    pub(crate) qpn: Qpn,
    liveness: Liveness,
    pub(crate) queues: Arc<Queues>,
    dependencies: Dependencies,
    pub(crate) plan: QpPlan,
    signal_all: bool,
    /// `None` once the queue pair was destroyed.
    rings: Mutex<Option<QpRings>>,
    /// Whether the client may write the doorbells without a call.
    watched: AtomicBool,
    /// `None` for a queue pair of EFA.
    pub(crate) connection: Option<Connection>,
}

/// The parts of a connected queue pair, whose queues are in the device.
pub(crate) struct Connection {
    /// The device that accepts work requests immediately.
    pub(crate) hardware: Arc<Hardware>,
    /// The shared receive queue that it uses.
    shared: Option<Arc<SharedQueue>>,
    /// The peer's address, in the form that the program passed.
    pub(crate) address: Mutex<Option<ibv_ah_attr>>,
    /// Work requests of a session.
    pub(crate) session: SpinCell<Option<Session>>,
}

/// The objects that a queue pair uses.
pub(crate) struct Dependencies {
    pub(crate) domain: Arc<Domain>,
    pub(crate) send_cq: Arc<CompQueue>,
    pub(crate) recv_cq: Arc<CompQueue>,
}

impl Dependencies {
    /// Makes a queue pair that uses them with `create`. None of them is destroyed meanwhile.
    fn join<R>(&self, create: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
        let (send, recv) = (&self.send_cq.liveness, &self.recv_cq.liveness);
        let joined = || Liveness::during_both(send, recv, create);
        self.domain.liveness.join(joined)
    }
}

data_path_handle!(QueuePair, ibv_qp);

/// Work requests of a connected queue pair between `wr_start` and `wr_complete` or `wr_abort`.
#[derive(Default)]
pub(crate) struct Session {
    pub(crate) requests: Vec<SendWr>,
    /// The first error. With one, no request of the session is posted.
    pub(crate) error: Option<Errno>,
}

/// Distinguishes the request ids of successive queue pairs with the same number.
fn next_generation() -> u32 {
    static GENERATION: AtomicU32 = AtomicU32::new(1);
    GENERATION.fetch_add(1, Ordering::Relaxed)
}

/// The parts of a queue pair that the device has made.
struct QueuePairParts {
    qpn: Qpn,
    queues: Arc<Queues>,
    rings: Option<QpRings>,
    connection: Option<Connection>,
}

impl QueuePairParts {
    /// Announces the queue pair to its completion queues, and makes it.
    fn assemble(
        self,
        context: &Arc<Context>,
        dependencies: Dependencies,
        plan: QpPlan,
        attributes: &ibv_qp_init_attr_ex,
        c: impl FnOnce(ibv_qp) -> QueuePairC,
    ) -> Arc<QueuePair> {
        let connection = self.connection.as_ref();
        let shared = connection.and_then(|connection| connection.shared.as_ref());
        let of_tags = shared.and_then(|queue| queue.comp_queue.as_ref());
        let of_both = [&dependencies.send_cq, &dependencies.recv_cq];
        for queue in of_both.into_iter().chain(of_tags) {
            if let Some(polled) = queue.polled.lock(&Locking::new()).as_mut() {
                polled.owners.insert(self.qpn, Arc::clone(&self.queues));
            }
        }
        let number = u32::from(self.qpn.0);
        let base = ibv_qp {
            context: context.c_pointer(),
            qp_context: attributes.qp_context,
            pd: attributes.pd,
            send_cq: attributes.send_cq,
            recv_cq: attributes.recv_cq,
            srq: shared.map_or(null_mut(), |_| attributes.srq),
            handle: number,
            qp_num: number,
            state: IBV_QPS_RESET,
            qp_type: attributes.qp_type,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        };
        Arc::new(QueuePair {
            c: CStruct::new(c(base)),
            context: Arc::clone(context),
            qpn: self.qpn,
            liveness: Liveness::new(),
            queues: self.queues,
            dependencies,
            plan,
            signal_all: attributes.sq_sig_all != 0,
            rings: Mutex::new(self.rings),
            watched: AtomicBool::new(false),
            connection: self.connection,
        })
    }
}

impl QueuePair {
    /// Makes a queue pair as planned; `c` makes its structure, from the basic part.
    pub(crate) fn create(
        context: &Arc<Context>,
        dependencies: Dependencies,
        plan: QpPlan,
        attributes: &ibv_qp_init_attr_ex,
        c: impl FnOnce(ibv_qp) -> QueuePairC,
    ) -> Result<Arc<QueuePair>, Errno> {
        let hardware = context.hardware()?;
        let config = QpConfig {
            service: plan.service.ok_or(Errno::OPNOTSUPP)?,
            pd: dependencies.domain.id,
            send_cq: dependencies.send_cq.id,
            recv_cq: dependencies.recv_cq.id,
            send_entries: plan.send_entries,
            wqe_size: plan.wqe_size,
            recv_descriptors: plan.recv_descriptors,
            unsolicited_write_recv: plan.unsolicited_write_recv,
            request_ids: plan.request_ids,
        };
        let create = || hardware.engine(|engine| engine.create_qp(config));
        let (qpn, rings) = dependencies.join(create)?;
        let generation = next_generation();
        let queues = Arc::new(Queues {
            send: SpinCell::new(Some(Sender::new(
                SendQueue::new(
                    Arc::clone(&rings.send),
                    SendQueueConfig {
                        max_sge: plan.cap.max_send_sge,
                        max_rdma_sge: context.device.profile.max_rdma_sge,
                        max_inline: plan.cap.max_inline_data,
                        inline_write: plan.inline_write,
                        signal_all: attributes.sq_sig_all != 0,
                        unsignaled: context.device.profile.connected,
                        request_ids: plan.request_ids,
                        generation,
                    },
                ),
                hardware,
            ))),
            recv: SpinCell::new(Some(RecvQueue::new(
                Arc::clone(&rings.recv),
                RecvQueueConfig {
                    max_sge: plan.cap.max_recv_sge,
                    generation,
                },
            ))),
            is_connected: false,
        });
        let made = QueuePairParts {
            qpn,
            queues,
            rings: Some(rings),
            connection: None,
        };
        Ok(made.assemble(context, dependencies, plan, attributes, c))
    }

    /// Makes a connected queue pair as planned, with the receive queue `shared` if there is one.
    pub(crate) fn create_connected(
        context: &Arc<Context>,
        dependencies: Dependencies,
        shared: Option<Arc<SharedQueue>>,
        plan: QpPlan,
        attributes: &ibv_qp_init_attr_ex,
        c: impl FnOnce(ibv_qp) -> QueuePairC,
    ) -> Result<Arc<QueuePair>, Errno> {
        let hardware = context.hardware()?;
        let config = ConnectedConfig {
            pd: dependencies.domain.id,
            send_cq: dependencies.send_cq.id,
            recv_cq: dependencies.recv_cq.id,
            shared: shared.as_ref().map(|queue| queue.id),
            max_send_wr: plan.cap.max_send_wr,
            max_recv_wr: plan.cap.max_recv_wr,
            max_recv_sge: plan.cap.max_recv_sge,
        };
        let create = || hardware.engine(|engine| engine.create_connected_qp(config));
        let join = || dependencies.join(create);
        let qpn = match &shared {
            Some(queue) => queue.liveness.join(join)?,
            None => join()?,
        };
        let made = QueuePairParts {
            qpn,
            queues: Arc::new(Queues {
                send: SpinCell::new(None),
                recv: SpinCell::new(None),
                is_connected: true,
            }),
            rings: None,
            connection: Some(Connection {
                hardware,
                shared,
                address: Mutex::new(None),
                session: SpinCell::new(None),
            }),
        };
        Ok(made.assemble(context, dependencies, plan, attributes, c))
    }

    /// Whether every work request is signaled, independent of its flags.
    pub(crate) fn signals_all(&self) -> bool {
        self.signal_all
    }

    /// Changes a connected queue pair.
    pub(crate) fn modify_connected(
        &self,
        to: &ConnectionAttributes,
        mask: ConnectionMask,
    ) -> Result<(), Errno> {
        self.liveness.during(|| {
            let hardware = self.context.hardware()?;
            hardware.with_device(|device| device.modify_connected_qp(self.qpn, to, mask))??;
            if mask.contains(ConnectionMask::STATE) {
                self.show(to.state);
            }
            Ok(())
        })
    }

    /// The attributes of a connected queue pair.
    pub(crate) fn query_connected(&self) -> Result<ConnectionAttributes, Errno> {
        self.liveness.during(|| {
            let hardware = self.context.hardware()?;
            let found = hardware.with_device(|device| device.query_connected_qp(self.qpn))??;
            self.show(found.state);
            Ok(found)
        })
    }

    /// Makes the device poll the doorbells from now on. Returns the rings, for the client.
    pub(crate) fn watch(&self) -> Result<QpRings, Errno> {
        self.liveness.during(|| {
            let hardware = self.context.hardware()?;
            let rings = self.with_rings(|rings| rings.clone()).ok_or(Errno::INVAL)?;
            if !self.watched.swap(true, Ordering::AcqRel) {
                hardware.engine(|engine| engine.watch_qp(self.qpn, true))?;
            }
            Ok(rings)
        })
    }

    fn with_rings<R>(&self, work: impl FnOnce(&mut Option<QpRings>) -> R) -> R {
        let _locking = Locking::new();
        work(&mut self.rings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets a new state in both queues and in the program's structure.
    fn set_state(&self, state: QpState) {
        let locking = Locking::new();
        if let Some(sender) = self.queues.send.lock(&locking).as_mut() {
            sender.queue.set_state(state);
        }
        if let Some(queue) = self.queues.recv.lock(&locking).as_mut() {
            queue.set_state(state);
        }
        self.show(state);
    }

    /// As [`QueuePair::set_state`], for a queue pair that the device has failed. The program
    /// detects the state of a queue in use by its completions.
    fn show_failure(&self) {
        let locking = Locking::new();
        if let Some(mut queue) = self.queues.send.try_lock(&locking)
            && let Some(sender) = queue.as_mut()
        {
            sender.queue.set_state(QpState::Error);
        }
        if let Some(mut queue) = self.queues.recv.try_lock(&locking)
            && let Some(queue) = queue.as_mut()
        {
            queue.set_state(QpState::Error);
        }
        self.show(QpState::Error);
    }

    fn show(&self, state: QpState) {
        // SAFETY: the field is in the handle, and the library accesses it only here. Programs may
        // read it at any time.
        let shown = unsafe { AtomicI32::from_ptr(&raw mut (*self.c_pointer()).state) };
        shown.store(state_number(state), Ordering::Relaxed);
    }

    /// Changes attributes of the queue pair.
    pub(crate) fn modify(&self, change: &QpChange) -> Result<(), Errno> {
        self.liveness.during(|| {
            let hardware = self.context.hardware()?;
            hardware.engine(|engine| engine.modify_qp(self.qpn, change))?;
            if let Some(state) = change.state {
                self.set_state(state);
            }
            Ok(())
        })
    }

    /// The attributes of the device. With `show_failure`, the state of a queue pair that the device
    /// has failed is shown from then on.
    pub(crate) fn query(&self, show_failure: bool) -> Result<QpAttributes, Errno> {
        self.liveness.during(|| {
            let hardware = self.context.hardware()?;
            let found = hardware.with_device(|device| device.query_qp(self.qpn))??;
            if show_failure && found.state == QpState::Error {
                self.show_failure();
            }
            Ok(found)
        })
    }

    /// The attributes at creation.
    pub(crate) fn initial_attributes(&self) -> ibv_qp_init_attr {
        let pointer = self.c_pointer();
        // SAFETY: the fields are not written by the library after the queue pair was made.
        let (qp_context, qp_type) = unsafe { ((*pointer).qp_context, (*pointer).qp_type) };
        ibv_qp_init_attr {
            qp_context,
            send_cq: self.dependencies.send_cq.c_pointer(),
            recv_cq: self.dependencies.recv_cq.c_pointer(),
            srq: self.shared_queue(),
            cap: self.plan.cap,
            qp_type,
            sq_sig_all: c_int::from(self.signal_all),
        }
    }

    fn shared_queue(&self) -> *mut c_void {
        let shared = self.connection.as_ref();
        let shared = shared.and_then(|connection| connection.shared.as_ref());
        shared.map_or(null_mut(), |queue| queue.c_pointer().cast())
    }

    /// Destroys the queue pair in the device, and its handle with `remove`. `EBUSY`, and the queue
    /// pair is unchanged, while a stopped peer is in the middle of a copy from or to the memory of
    /// a request, and would continue it. Waits until all asynchronous events that the program read
    /// are acknowledged.
    pub(crate) fn destroy(&self, remove: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        self.liveness.end(|| {
            // Peers do not access the memory of a connected queue pair's requests.
            if self.connection.is_none()
                && let Ok(hardware) = self.context.hardware()
            {
                hardware.stop_qp(self.qpn)?;
            }
            remove()?;
            self.release()
        })?;
        // In a forked child the events are its parent's.
        if !self.context.is_forked()
            && let Ok(events) = self.context.async_events()
        {
            events.drain(self.c_pointer().addr());
        }
        Ok(())
    }

    /// Destroys a queue pair whose handle was removed, because its context is being closed.
    pub(crate) fn close(&self) {
        // There is no caller to report an error to.
        let _ = self.liveness.end(|| self.release());
    }

    /// Destroys a queue pair to which programs have no pointer any more.
    fn release(&self) -> Result<(), Errno> {
        // This is done first, because the device may assign the number to another queue pair as
        // soon as it is free.
        let locking = Locking::new();
        let hardware = self.context.hardware().ok();
        // The threads of these sessions do not exist in a forked child.
        let orphaned = hardware
            .as_ref()
            .is_none_or(|hardware| hardware.is_forked());
        let shared = self.connection.as_ref();
        let shared = shared.and_then(|connection| connection.shared.as_ref());
        let of_tags = shared.and_then(|queue| queue.comp_queue.as_ref());
        let queues = [&self.dependencies.send_cq, &self.dependencies.recv_cq];
        for queue in queues.into_iter().chain(of_tags) {
            let mut polled = queue.polled.lock_beside_session(&locking, orphaned);
            if let Some(polled) = polled.as_mut() {
                polled.owners.remove(self.qpn);
            }
        }
        let destroyed = match &hardware {
            Some(hardware) => {
                if self.watched.swap(false, Ordering::AcqRel) {
                    // It fails in a forked child, whose device polls nothing.
                    let _ = hardware.engine(|engine| engine.watch_qp(self.qpn, false));
                }
                hardware.destroy_qp(self.qpn)
            }
            None => Ok(()),
        };
        // A stale pointer finds no queues.
        *self.queues.send.lock_or_break_session(&locking) = None;
        *self.queues.recv.lock_or_break_session(&locking) = None;
        self.with_rings(|rings| *rings = None);
        self.dependencies.domain.liveness.leave();
        if let Some(queue) = shared {
            queue.liveness.leave();
        }
        destroyed
    }
}

pub(crate) fn state_number(state: QpState) -> c_int {
    match state {
        QpState::Reset => IBV_QPS_RESET,
        QpState::Init => IBV_QPS_INIT,
        QpState::ReadyToReceive => IBV_QPS_RTR,
        QpState::ReadyToSend => IBV_QPS_RTS,
        QpState::SendQueueDrained => IBV_QPS_SQD,
        QpState::Error => IBV_QPS_ERR,
    }
}

pub(crate) fn state_from_number(number: c_int) -> Result<QpState, Errno> {
    let mut all = QpState::ALL.into_iter();
    let found = all.find(|state| state_number(*state) == number);
    found.ok_or(Errno::INVAL)
}
