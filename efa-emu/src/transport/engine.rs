//! One opened device of one process.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use efa_core::address::{Gid, Qpn};

use super::config::HostConfig;
use super::error::{EngineError, FabricError};
use super::fabric::Fabric;
use super::files::CaptureFiles;
use super::fork::HomeProcess;
use super::segment::Segment;
use super::state::{Shared, State};
use super::tap::Tap;
use super::worker;
use crate::capture::SharedFile;
use crate::device::{CqId, Device, Error, MemoryRegion, PdId, QpConfig, QpRings, RegionKeys};
use crate::profile::Profile;

/// Called with every completion queue that raised an event. It runs while the engine is locked: it
/// may write to a pipe or set a flag, and must not call the engine.
pub type EventHandler = Box<dyn FnMut(CqId) + Send>;

/// One opened device: the device model, its place in the fabric, and a thread that serves it while
/// the application does not.
///
/// All methods may be called from any thread. In a forked child of the process that opened the
/// engine they fail with [`FabricError::Forked`] or do nothing.
///
/// The application drives the device by [`Engine::progress`], and then no other thread does and no
/// system call is made. Once it has stopped for about a millisecond, the engine's thread takes over;
/// with nothing to do it sleeps until a peer wakes it.
pub struct Engine {
    shared: Arc<Shared>,
    profile: Profile,
    worker: Option<JoinHandle<()>>,
}

impl Engine {
    /// Opens the device of the host that `config` names, joining the host or creating it.
    pub fn open(config: &HostConfig) -> Result<Engine, FabricError> {
        let mut profile = Profile::by_name(&config.profile)
            .ok_or_else(|| FabricError::UnknownProfile {
                name: config.profile.clone(),
            })?
            .clone();
        profile.unknown_peer_check &= !config.serve_unknown_peers;
        Engine::open_in(&Fabric::open(&config.fabric)?, config, profile)
    }

    /// As [`Engine::open`], in a fabric and with a device profile that need not be those that the
    /// configuration names.
    pub fn open_in(
        fabric: &Fabric,
        config: &HostConfig,
        profile: Profile,
    ) -> Result<Engine, FabricError> {
        let home = HomeProcess::current();
        let host = fabric.enter_host(Some(&config.host), config.gid, profile.max_qp)?;
        let segment = Arc::new(Segment::create(&host.device_path(), host.address())?);
        let device = Device::new(profile.clone(), host.gid());
        let tap = match &config.capture {
            None => None,
            Some(path) => {
                let file = SharedFile::open(path).map_err(FabricError::io("record into", path))?;
                let files = CaptureFiles::new(Some(file));
                Some(Box::new(Tap::new(files, host.gid(), profile.mtu)))
            }
        };
        let mut state = State::new(device, &host, Arc::clone(&segment), config, tap)?;
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

    /// The name of the emulated host.
    pub fn host_name(&self) -> &str {
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

    /// Who is told about completion events from now on.
    pub fn set_event_handler(&self, handler: Option<EventHandler>) -> Result<(), FabricError> {
        self.shared.lock()?.set_event_handler(handler);
        Ok(())
    }

    /// Runs a verb on the device. Queue pairs are made and destroyed by [`Engine::create_qp`] and
    /// [`Engine::destroy_qp`] instead, since their numbers belong to the host.
    ///
    /// When this returns, memory that the verb took from the device (by deregistration, or by
    /// resetting a queue pair with requests in flight) is no longer touched by anybody.
    pub fn with_device<R>(&self, verb: impl FnOnce(&mut Device) -> R) -> Result<R, FabricError> {
        let mut state = self.shared.lock()?;
        let result = verb(state.device());
        state.withdraw_lost_memory();
        state.send();
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
        if let Some(errno) = state.staged().registration_failure(gid, region.length) {
            return Err(Error::Staged(errno).into());
        }
        Ok(state.device().register_memory(pd, region)?)
    }

    /// Makes a queue pair with a number that no live queue pair of the host has.
    pub fn create_qp(&self, config: QpConfig) -> Result<(Qpn, QpRings), EngineError> {
        let mut state = self.shared.lock()?;
        let host = &self.shared.host;
        state.look_for_faults();
        let preferred = state.staged().preferred_qpn(host.gid());
        let qpn = host.take_qpn(state.qpn_choice(), preferred)?;
        match state.device().create_qp(qpn, config) {
            Ok(rings) => Ok((qpn, rings)),
            Err(error) => {
                host.release_qpn(qpn);
                Err(error.into())
            }
        }
    }

    /// Ends a queue pair. When this returns, its memory is no longer touched by anybody.
    pub fn destroy_qp(&self, qpn: Qpn) -> Result<(), EngineError> {
        let mut state = self.shared.lock()?;
        state.device().destroy_qp(qpn)?;
        self.shared.host.release_qpn(qpn);
        state.withdraw_lost_memory();
        Ok(())
    }

    /// Has the device look at a send queue whose doorbell was written, and sends what can be sent.
    #[inline(always)]
    pub fn look_at_send_queue(&self, qpn: Qpn) -> Result<(), EngineError> {
        let mut state = self.shared.lock()?;
        state.device().look_at_send_queue(qpn)?;
        state.send();
        self.shared.keep_worker_in_time(&state);
        Ok(())
    }

    /// Has the device look at a completion queue's doorbell, which was written.
    pub fn arm_cq(&self, cq: CqId) -> Result<(), EngineError> {
        let mut state = self.shared.lock()?;
        state.device().arm_cq(cq)?;
        state.raise_events();
        Ok(())
    }

    /// Lets the engine look at a queue pair's send doorbell by itself, or stops that. For clients
    /// that write doorbells without a call; as long as there is one, the engine's thread does not
    /// sleep long.
    pub fn watch_qp(&self, qpn: Qpn, watched: bool) -> Result<(), EngineError> {
        let mut state = self.shared.lock()?;
        state.watch_qp(qpn, watched)?;
        drop(state);
        self.shared.segment.interrupt();
        Ok(())
    }

    /// As [`Engine::watch_qp`], for a completion queue's doorbell.
    pub fn watch_cq(&self, cq: CqId, watched: bool) -> Result<(), EngineError> {
        let mut state = self.shared.lock()?;
        state.watch_cq(cq, watched)?;
        drop(state);
        self.shared.segment.interrupt();
        Ok(())
    }

    /// Does what is to be done now: brings in requests and answers, sends what waits. To be called
    /// from every poll of a completion queue that finds it empty; does nothing if another thread is
    /// at it.
    #[inline]
    pub fn progress(&self) {
        if !self.shared.home.is_current() {
            return;
        }
        self.shared.note_poll();
        if let Some(mut state) = self.shared.try_lock() {
            state.pass();
            self.shared.keep_worker_in_time(&state);
        }
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
        self.shared.stop();
        if let Some(worker) = worker {
            // A worker that panicked has nothing more to say.
            let _ = worker.join();
        }
        if let Ok(mut state) = self.shared.lock() {
            state.close();
        }
    }
}
