//! One opened device of one process: the interface for its program.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use efa_core::address::{Gid, Qpn};
use efa_device_model::device::connected::ConnectedConfig;
use efa_device_model::device::{
    Command, CqId, Device, Error, Lkey, MemoryRegion, PdId, QpChange, QpConfig, QpRings, QpState,
    RegionKeys,
};
use efa_device_model::fault::AdminCommand;
use efa_device_model::link::{RequestHeader, Token};
use efa_device_model::profile::Profile;

use super::direct::DirectQueues;
use super::shared::Shared;
use super::state::{CommandOutcome, EngineState, EventHandler};
use super::worker;
use crate::error::{EngineError, FabricError};
use crate::fabric::directory::Fabric;
use crate::fabric::usage::{self, UsageStep};
use crate::identity::config::HostConfig;
use crate::identity::device_name::DeviceName;
use crate::process::fork::HomeProcess;
use crate::transport::segment::Segment;

/// The time that a verb that withdraws memory from the device waits for a peer that is copying from
/// or to it. A peer copies 1 MiB at a time, so a peer that takes longer was stopped in the middle.
const COPY_PATIENCE: Duration = Duration::from_secs(2);

/// One opened device: the device model, its place in the fabric, and a thread that serves it while
/// the application does not.
///
/// All methods may be called from any thread. In a forked child of the process that opened the
/// engine they fail with [`FabricError::Forked`] or do nothing.
///
/// The application runs the device by [`Engine::progress`]. Then no other thread runs it, and no
/// system call is made. Once the application has stopped for about a millisecond, the engine's
/// thread takes over. This may take longer while other threads need the application's processor,
/// unless the application requests an event. Without work the thread sleeps until a peer wakes it.
pub struct Engine {
    pub(super) shared: Arc<Shared>,
    pub(super) profile: Profile,
    pub(super) worker: Option<JoinHandle<()>>,
}

impl Engine {
    /// Opens the device that `config` names, joining its host or creating it.
    pub fn open(config: &HostConfig) -> Result<Engine, FabricError> {
        let mut profile = Profile::named(&config.profile)?;
        profile.unknown_peer_check &= !config.serve_unknown_peers;
        let fabric = Fabric::open(&config.fabric)?;
        if !fabric.has_run_of(config) {
            usage::mark(UsageStep::ApartFromRun);
        }
        Engine::open_in(&fabric, config, profile)
    }

    /// As [`Engine::open`], in a fabric and with a device profile that need not be those that the
    /// configuration names.
    pub fn open_in(
        fabric: &Fabric,
        config: &HostConfig,
        profile: Profile,
    ) -> Result<Engine, FabricError> {
        let home = HomeProcess::current();
        let host = fabric.enter_device(&config.device_name(), config.gid(), profile.max_qp)?;
        if host.table().incarnation().is_none() {
            return Err(FabricError::Removed {
                fabric: fabric.name().to_owned(),
                device: host.name().to_string(),
            });
        }
        let segment = Arc::new(Segment::create(&host.device_path(), host.address())?);
        let device = Device::new(profile.clone(), host.gid());
        let mut state = EngineState::new(device, &host, Arc::clone(&segment), config)?;
        // The first packet may be the interesting one.
        state.check_captures();
        let shared = Arc::new(Shared::new(home, host, segment, state));
        let worker = worker::start(Arc::clone(&shared)).map_err(FabricError::io(
            "start the progress thread of",
            fabric.directory(),
        ))?;
        Ok(Engine {
            shared,
            profile,
            worker: Some(worker),
        })
    }

    /// The GID of the device's port.
    pub fn gid(&self) -> Gid {
        self.shared.host.gid()
    }

    /// The name of the device in its fabric, which contains the emulated host's name.
    pub fn device_name(&self) -> &DeviceName {
        self.shared.host.name()
    }

    /// The generation of the device.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Whether this is a forked child of the process that opened the engine.
    pub fn is_forked(&self) -> bool {
        !self.shared.home.is_current()
    }

    /// Sets the handler of events.
    pub fn set_event_handler(&self, handler: Option<EventHandler>) -> Result<(), FabricError> {
        self.shared.lock()?.set_event_handler(handler);
        Ok(())
    }

    /// Runs a verb on the device. Some verbs are functions of the engine instead: verbs that make
    /// or destroy a queue pair, because its number belongs to the host, and verbs that withdraw
    /// memory from the device, because a peer may be copying from or to it: [`Engine::create_qp`],
    /// [`Engine::modify_qp`], [`Engine::destroy_qp`], [`Engine::deregister_memory`].
    pub fn with_device<R>(&self, verb: impl FnOnce(&mut Device) -> R) -> Result<R, FabricError> {
        let mut state = self.shared.lock()?;
        let result = verb(state.device());
        state.send();
        state.publish();
        self.shared.keep_worker_in_time(&state);
        Ok(result)
    }

    /// Registers memory; see [`Device::register_memory`]. Staged faults may fail it.
    pub fn register_memory(
        &self,
        pd: PdId,
        region: MemoryRegion,
    ) -> Result<RegionKeys, EngineError> {
        let mut state = self.shared.lock()?;
        state.look_for_faults();
        let gid = self.shared.host.gid();
        let failure = state.staged().registration_failure(gid, region.length);
        let result = match failure {
            None => state.device().register_memory(pd, region),
            Some(errno) => state
                .device()
                .command(Command::RegisterMemory, |_| Err(Error::Staged(errno))),
        };
        state.publish();
        Ok(result?)
    }

    /// The effect of staged faults on a command of an admin queue. The engine has no admin queue:
    /// the owner of the queue executes the command. `number` counts commands; a rule's delay
    /// depends on it.
    pub fn command_outcome(
        &self,
        command: AdminCommand,
        number: u64,
    ) -> Result<CommandOutcome, FabricError> {
        let mut state = self.shared.lock()?;
        state.look_for_faults();
        Ok(state.command_outcome(self.shared.host.gid(), command, number))
    }

    /// Ends a registration; see [`Device::deregister_memory`]. After this returns `Ok`, the memory
    /// is not accessed any more.
    ///
    /// # Errors
    /// [`Error::Busy`]: a peer has stopped in the middle of a copy from or to the memory, and would
    /// continue it. The registration and the requests are unchanged.
    pub fn deregister_memory(&self, lkey: Lkey) -> Result<(), EngineError> {
        self.taking_memory(
            "memory",
            |device, token, _| device.uses_region(token, lkey),
            |device| device.deregister_memory(lkey),
        )
    }

    /// Changes a queue pair; see [`Device::modify_qp`]. After this returns `Ok` for a change to
    /// [`QpState::Reset`] or [`QpState::Error`], the memory of its requests is not accessed any
    /// more.
    ///
    /// # Errors
    /// [`Error::Busy`]: as for [`Engine::deregister_memory`].
    pub fn modify_qp(&self, qpn: Qpn, change: &QpChange) -> Result<(), EngineError> {
        let ends_requests = matches!(change.state, Some(QpState::Reset | QpState::Error));
        self.taking_memory(
            "queue pair",
            |_, _, header| ends_requests && header.source_qpn == qpn,
            |device| device.modify_qp(qpn, change),
        )
    }

    /// Withdraws all memory from peers that copy from or to it; the requests fail. For the end of
    /// the device.
    ///
    /// # Errors
    /// [`Error::Busy`]: as for [`Engine::deregister_memory`].
    pub fn quiesce(&self) -> Result<(), EngineError> {
        self.taking_memory("device", |_, _, _| true, |_| Ok(()))
    }

    /// Runs a verb that withdraws memory from the device, which `chosen` requests use, once no peer
    /// copies from or to it.
    fn taking_memory(
        &self,
        what: &'static str,
        chosen: impl Fn(&Device, Token, &RequestHeader) -> bool,
        verb: impl FnOnce(&mut Device) -> Result<(), Error>,
    ) -> Result<(), EngineError> {
        let mut started = None;
        let (mut state, taken) = loop {
            let mut state = self.shared.lock()?;
            if let Some(taken) = state.try_take_back(&chosen) {
                break (state, taken);
            }
            // Others may use the device meanwhile.
            drop(state);
            if started.get_or_insert_with(Instant::now).elapsed() >= COPY_PATIENCE {
                return Err(Error::Busy(what).into());
            }
            std::thread::yield_now();
        };
        state.open_doorbells();
        // Before a queue pair ends, the answers to its received packets must be sent.
        state.send();
        let result = verb(state.device());
        state.settle_taken(taken, result.is_ok());
        state.send();
        state.publish();
        self.shared.keep_worker_in_time(&state);
        Ok(result?)
    }

    /// Makes a queue pair with a number that no live queue pair of the host has.
    pub fn create_qp(&self, config: QpConfig) -> Result<(Qpn, QpRings), EngineError> {
        self.create_qp_over(config, None)
    }

    /// As [`Engine::create_qp`]; see [`Device::create_qp_over`].
    pub fn create_qp_over(
        &self,
        config: QpConfig,
        rings: Option<QpRings>,
    ) -> Result<(Qpn, QpRings), EngineError> {
        self.create_numbered(|device, qpn| device.create_qp_over(qpn, config, rings))
    }

    /// As [`Engine::create_qp`], of a connected queue pair.
    pub fn create_connected_qp(&self, config: ConnectedConfig) -> Result<Qpn, EngineError> {
        let made = self.create_numbered(|device, qpn| device.create_connected_qp(qpn, config));
        made.map(|(qpn, ())| qpn)
    }

    fn create_numbered<T>(
        &self,
        create: impl FnOnce(&mut Device, Qpn) -> Result<T, Error>,
    ) -> Result<(Qpn, T), EngineError> {
        usage::mark(UsageStep::QueuePair);
        let mut state = self.shared.lock()?;
        let host = &self.shared.host;
        state.look_for_faults();
        let preferred = state.staged().preferred_qpn(host.gid());
        let result = match host.take_qpn(state.qpn_choice(), preferred) {
            Ok(qpn) => match create(state.device(), qpn) {
                Ok(made) => Ok((qpn, made)),
                Err(error) => {
                    host.release_qpn(qpn);
                    Err(error.into())
                }
            },
            Err(error) => state
                .device()
                .command(Command::CreateQp, |_| Err(error.into())),
        };
        state.publish();
        result
    }

    /// Destroys a queue pair. After this returns `Ok`, the memory of its requests is not accessed
    /// any more.
    ///
    /// # Errors
    /// [`Error::Busy`]: as for [`Engine::deregister_memory`].
    pub fn destroy_qp(&self, qpn: Qpn) -> Result<(), EngineError> {
        self.taking_memory(
            "queue pair",
            |_, _, header| header.source_qpn == qpn,
            |device| {
                device.destroy_qp(qpn)?;
                self.shared.host.release_qpn(qpn);
                Ok(())
            },
        )
    }

    /// Makes the device process a send queue whose doorbell was written, and sends all possible
    /// requests.
    #[inline(always)]
    pub fn process_send_doorbell(&self, qpn: Qpn) -> Result<(), EngineError> {
        let mut state = self.shared.lock()?;
        state.serve_send_doorbell(qpn)?;
        self.shared.keep_worker_in_time(&state);
        Ok(())
    }

    /// Passes work without a ring to the device, and sends all possible requests.
    pub fn post<R>(&self, work: impl FnOnce(&mut Device) -> R) -> Result<R, FabricError> {
        let mut state = self.shared.lock()?;
        let result = work(state.device());
        state.send();
        self.shared.keep_worker_in_time(&state);
        Ok(result)
    }

    /// Makes the device read a completion queue's doorbell, which was written.
    pub fn arm_cq(&self, cq: CqId) -> Result<(), EngineError> {
        let mut state = self.shared.lock()?;
        state.device().arm_cq(cq)?;
        state.raise_events();
        drop(state);
        self.shared.end_contention();
        Ok(())
    }

    /// Makes the engine poll a queue pair's send doorbell, or stops that. For clients that write
    /// doorbells without a call; as long as there is one, the engine's thread does not sleep long.
    pub fn watch_qp(&self, qpn: Qpn, watched: bool) -> Result<(), EngineError> {
        let mut state = self.shared.lock()?;
        state.watch_qp(qpn, watched)?;
        if watched {
            self.begin_direct(&mut state);
        }
        state.attend_doorbell(qpn, watched);
        drop(state);
        self.shared.interrupt();
        Ok(())
    }

    /// As [`Engine::watch_qp`], for a completion queue's doorbell.
    pub fn watch_cq(&self, cq: CqId, watched: bool) -> Result<(), EngineError> {
        let mut state = self.shared.lock()?;
        state.watch_cq(cq, watched)?;
        if watched {
            self.begin_direct(&mut state);
        }
        state.attend_queue(cq, watched);
        drop(state);
        self.shared.interrupt();
        Ok(())
    }

    /// Begins to serve clients that make no calls.
    fn begin_direct(&self, state: &mut EngineState) {
        let shared = Arc::clone(&self.shared);
        state.begin_direct(|| {
            DirectQueues::new(move |faults, end| worker::answer(&shared, faults, end))
        });
    }

    /// Does the pending work: receives requests and answers, and sends queued packets. Must be
    /// called from every poll of a completion queue that finds it empty; does nothing if another
    /// thread is doing so.
    #[inline]
    pub fn progress(&self) {
        if !self.shared.home.is_current() {
            return;
        }
        self.shared.note_poll();
        if let Some(mut state) = self.shared.try_lock() {
            let busy = state.pass();
            self.shared.keep_worker_in_time(&state);
            if !busy {
                self.shared.note_poll_in_vain(&mut state);
            }
        }
    }

    /// Whether a poll that has found nothing should call [`Engine::rest`].
    #[inline]
    pub fn should_rest(&self) -> bool {
        self.shared.should_rest()
    }

    /// Yields the processor. If other threads were found to need it, sleeps until the device has
    /// work, but not longer than half a millisecond. If there are peers on other machines, yields
    /// to ready threads. To be called by a poll without a completion, without locks.
    #[cold]
    pub fn rest(&self) {
        self.shared.rest();
    }

    /// Time since the engine was opened: the device's clock.
    pub fn uptime(&self) -> Duration {
        self.shared.uptime()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let worker = self.worker.take();
        if self.is_forked() {
            // The thread does not exist here, and everything shared is the parent's.
            std::mem::forget(worker);
            return;
        }
        let state = self.shared.lock().ok();
        // The lock is released first, because threads that answer acquire it.
        drop(state.and_then(|mut state| state.take_direct()));
        self.shared.stop();
        if let Some(worker) = worker {
            // A panic of the worker has already been reported.
            let _ = worker.join();
        }
        if let Ok(mut state) = self.shared.lock() {
            state.close();
        }
    }
}
