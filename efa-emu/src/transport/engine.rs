//! One opened device of one process.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Instant;

use efa_core::address::{Gid, Qpn};

use super::config::HostConfig;
use super::error::{EngineError, FabricError};
use super::fabric::Fabric;
use super::fork::HomeProcess;
use super::host::Host;
use super::outbound::Outbound;
use super::qpn::QpnChoice;
use crate::device::{CqId, Device, QpConfig, QpRings};
use crate::profile::Profile;

/// Called with every completion queue that raised an event. It runs while the engine is locked: it
/// may write to a pipe or set a flag, and must not call the engine.
pub type EventHandler = Box<dyn FnMut(CqId) + Send>;

/// One opened device: the device model, its place in the fabric, and a thread that serves it while
/// the application does not.
///
/// All methods may be called from any thread. In a forked child of the process that opened the
/// engine they fail with [`FabricError::Forked`] or do nothing.
pub struct Engine {
    home: HomeProcess,
    host: Host,
    profile: Profile,
    started: Instant,
    state: Mutex<State>,
}

struct State {
    device: Device,
    outbound: Outbound,
    qpns: QpnChoice,
    events: Option<EventHandler>,
}

impl Engine {
    /// Opens the device of the host that `config` names, joining the host or creating it.
    pub fn open(config: &HostConfig) -> Result<Engine, FabricError> {
        let profile = Profile::by_name(&config.profile)
            .ok_or_else(|| FabricError::UnknownProfile {
                name: config.profile.clone(),
            })?
            .clone();
        Engine::open_in(&Fabric::open(&config.fabric)?, config, profile)
    }

    /// As [`Engine::open`], in a fabric and with a device profile that need not be those that the
    /// configuration names.
    pub fn open_in(
        fabric: &Fabric,
        config: &HostConfig,
        profile: Profile,
    ) -> Result<Engine, FabricError> {
        let host = fabric.enter_host(Some(&config.host), config.gid, profile.max_qp)?;
        let state = State {
            device: Device::new(profile.clone(), host.gid()),
            outbound: Outbound::default(),
            qpns: QpnChoice::new(config.network.qpn_reuse, config.network.seed),
            events: None,
        };
        Ok(Engine {
            home: HomeProcess::current(),
            host,
            profile,
            started: Instant::now(),
            state: Mutex::new(state),
        })
    }

    /// The GID of the device's port.
    pub fn gid(&self) -> Gid {
        self.host.gid()
    }

    /// The name of the emulated host.
    pub fn host_name(&self) -> &str {
        self.host.name()
    }

    /// The generation of the device.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Whether this is a forked child of the process that opened the engine.
    pub fn is_forked(&self) -> bool {
        !self.home.is_current()
    }

    /// Who is told about completion events from now on.
    pub fn set_event_handler(&self, handler: Option<EventHandler>) -> Result<(), FabricError> {
        self.lock()?.events = handler;
        Ok(())
    }

    /// Runs a verb on the device. Queue pairs are made and destroyed by [`Engine::create_qp`] and
    /// [`Engine::destroy_qp`] instead, since their numbers belong to the host.
    ///
    /// When this returns, memory that the verb took from the device (by deregistration, or by
    /// resetting a queue pair with requests in flight) is no longer touched by anybody.
    pub fn with_device<R>(&self, verb: impl FnOnce(&mut Device) -> R) -> Result<R, FabricError> {
        let mut state = self.lock()?;
        let result = verb(&mut state.device);
        state.pass(self.started);
        Ok(result)
    }

    /// Makes a queue pair with a number that no live queue pair of the host has.
    pub fn create_qp(&self, config: QpConfig) -> Result<(Qpn, QpRings), EngineError> {
        let mut state = self.lock()?;
        let State { device, qpns, .. } = &mut *state;
        let qpn = self.host.take_qpn(qpns)?;
        match device.create_qp(qpn, config) {
            Ok(rings) => Ok((qpn, rings)),
            Err(error) => {
                self.host.release_qpn(qpn);
                Err(error.into())
            }
        }
    }

    /// Ends a queue pair. When this returns, its memory is no longer touched by anybody.
    pub fn destroy_qp(&self, qpn: Qpn) -> Result<(), EngineError> {
        let mut state = self.lock()?;
        state.device.destroy_qp(qpn)?;
        self.host.release_qpn(qpn);
        state.pass(self.started);
        Ok(())
    }

    /// Tells the device that a send queue's doorbell was written, and sends what can be sent.
    pub fn ring_send_doorbell(&self, qpn: Qpn) -> Result<(), EngineError> {
        let mut state = self.lock()?;
        state.device.ring_send_doorbell(qpn)?;
        state.pass(self.started);
        Ok(())
    }

    /// Tells the device that a completion queue's doorbell was written.
    pub fn arm_cq(&self, cq: CqId) -> Result<(), EngineError> {
        let mut state = self.lock()?;
        state.device.arm_cq(cq)?;
        state.pass(self.started);
        Ok(())
    }

    /// Does what is to be done now: brings in requests and answers, sends what waits. To be called
    /// from every poll of a completion queue that finds it empty; does nothing if another thread is
    /// at it.
    #[inline]
    pub fn progress(&self) {
        if !self.home.is_current() {
            return;
        }
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        state.pass(self.started);
    }

    fn lock(&self) -> Result<MutexGuard<'_, State>, FabricError> {
        if !self.home.is_current() {
            return Err(FabricError::Forked);
        }
        Ok(self
            .state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

impl State {
    fn pass(&mut self, started: Instant) {
        let now = started.elapsed();
        self.device.transmit(now, &mut self.outbound);
        while let Some((token, status)) = self.outbound.next_failed() {
            self.device.complete(now, token, status);
        }
        for cq in self.device.take_events() {
            if let Some(handler) = &mut self.events {
                handler(cq);
            }
        }
    }
}
