//! The deterministic emulator as a backend.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use efa_capture::Direction;
use efa_core::address::{Gid, RawAddress};
use efa_core::endpoint::Instant;
use efa_device_model::fault::{Action, Fault, FaultId, Stage};
use efa_device_model::link::Operation;
use efa_device_model::profile::Profile;
use efa_play::application::engine::Repetitions;
use efa_play::operation::Remote;
use efa_play::scenario::EndpointSpec;
use efa_sim::{
    CaptureConfig, Fabric, FabricConfig, HostConfig, NetworkConfig, NicConfig, Probability,
    Recording, SimHost, SimNic,
};

use super::backend::{Backend, BackendError, Clock, RdmaSeen};

/// A new fabric for every replay.
pub struct Emu {
    config: FabricConfig,
    fabric: Fabric,
    /// RDMA requests with their initiators, in the order of time.
    rdma: Rc<RefCell<Vec<(Gid, RdmaSeen)>>>,
    captures_next: bool,
    recording: Option<Recording<Vec<u8>>>,
    /// The fault of every replay, and its id in the current one.
    fault: Option<(Fault, Rc<Cell<FaultId>>)>,
    /// The faults of the scenario, as text.
    staged: Vec<(String, FaultId)>,
}

/// Latency of the orderly network.
const LATENCY: Duration = Duration::from_micros(5);
/// Virtual time that passes if no event is scheduled.
const IDLE_TIME: Duration = Duration::from_millis(1);
/// Number of such attempts before the replay stops waiting.
const IDLE_ROUNDS: u32 = 5;

impl Emu {
    /// A network that keeps the order of packets, like a recording.
    pub fn orderly() -> Self {
        Self::with(FabricConfig {
            network: NetworkConfig::orderly(LATENCY),
            completion_window: 1,
            log: false,
            ..FabricConfig::default()
        })
    }

    /// A network with reordering of packets and completions, loss and RNR, all decided by `seed`.
    pub fn disorderly(seed: u64) -> Self {
        Self::with(FabricConfig {
            seed,
            network: NetworkConfig {
                path_spread: Duration::from_micros(50),
                jitter: Duration::from_micros(50),
                loss: Probability::new(0.02).unwrap_or(Probability::NEVER),
                rnr: Probability::new(0.05).unwrap_or(Probability::NEVER),
                ..NetworkConfig::default()
            },
            log: false,
            ..FabricConfig::default()
        })
    }

    /// The fabric of the current replay.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    fn with(config: FabricConfig) -> Self {
        let fabric = Fabric::new(config.clone());
        let rdma = Rc::default();
        watch(&fabric, &rdma);
        Emu {
            config,
            fabric,
            rdma,
            captures_next: false,
            recording: None,
            fault: None,
            staged: Vec::new(),
        }
    }

    /// The same network, with a fault in each replay.
    #[must_use]
    pub fn with_fault(mut self, fault: Fault) -> Self {
        let id = self.fabric.install(fault.clone());
        self.fault = Some((fault, Rc::new(Cell::new(id))));
        self
    }

    /// Whether the fault has been applied in the current replay.
    pub fn has_met_fault(&self) -> bool {
        let fault = self.fault.as_ref();
        fault.is_some_and(|(_, id)| self.fabric.applied(id.get()) > 0)
    }
}

impl Backend for Emu {
    type Nic = SimNic;

    fn name(&self) -> &'static str {
        "emu"
    }

    fn reset(&mut self) {
        self.fabric = Fabric::new(self.config.clone());
        self.rdma = Rc::default();
        watch(&self.fabric, &self.rdma);
        self.recording = None;
        self.staged.clear();
        if let Some((fault, id)) = &self.fault {
            id.set(self.fabric.install(fault.clone()));
        }
        if std::mem::take(&mut self.captures_next) {
            // The result does not depend on the capture.
            self.recording = self
                .fabric
                .capture(Vec::new(), CaptureConfig::default())
                .ok();
        }
    }

    fn open(&mut self, endpoint: &EndpointSpec) -> Result<SimNic, BackendError> {
        let name = endpoint.profile.as_deref().unwrap_or(Profile::DEFAULT);
        let profile = Profile::by_name(name).ok_or_else(|| {
            BackendError::Unfit(format!(
                "endpoint `{}`: unknown device profile `{name}`; `efa-emu profiles` lists them",
                endpoint.name
            ))
        })?;
        let host = self.fabric.add_host(HostConfig {
            name: Some(endpoint.name.clone()),
            profile: profile.clone(),
            ..HostConfig::default()
        });
        open(&host)
    }

    fn open_beside(&mut self, first: &SimNic) -> Result<SimNic, BackendError> {
        open(first.host())
    }

    fn arm_faults(
        &mut self,
        faults: &[Fault],
        _addresses: &[(&str, RawAddress)],
    ) -> Result<Option<String>, BackendError> {
        // Hosts here have the names of their endpoints.
        for fault in faults {
            let id = self.fabric.install(fault.clone());
            self.staged.push((fault.to_string(), id));
        }
        // The scenario's own faults have priority.
        if let Some((fault, id)) = &self.fault {
            self.fabric.remove(id.get());
            id.set(self.fabric.install(fault.clone()));
        }
        Ok(None)
    }

    fn unapplied(&self) -> Vec<String> {
        let staged = self.staged.iter();
        let idle = staged.filter(|(_, id)| self.fabric.applied(*id) == 0);
        idle.map(|(rule, _)| rule.clone()).collect()
    }

    fn repetitions(&self) -> Option<Repetitions> {
        let (fault, id) = self.fault.as_ref()?;
        let (fabric, id) = (self.fabric.clone(), Rc::clone(id));
        let count: Repetitions = Box::new(move || fabric.applied(id.get()));
        (fault.then == Action::Repeat).then_some(count)
    }

    fn clock(&self) -> Clock {
        let fabric = self.fabric.clone();
        Box::new(move || Instant(fabric.now()))
    }

    fn idle(&mut self, rounds: u32, timeout: Option<Instant>) -> bool {
        let next = self.fabric.next_event_time();
        if let Some(Instant(time)) = timeout
            && time > self.fabric.now()
            && next.is_none_or(|next| time < next)
        {
            self.fabric.run_until(time);
            return true;
        }
        if next.is_some() {
            self.fabric.step();
            return true;
        }
        self.fabric.advance(IDLE_TIME);
        rounds <= IDLE_ROUNDS
    }

    fn quiet_rounds(&self) -> u32 {
        // Time advances from event to event. `idle` returns false when there is none.
        u32::MAX
    }

    fn capture_next(&mut self) {
        self.captures_next = true;
    }

    fn take_capture(&mut self) -> Option<Vec<u8>> {
        self.recording.take()?.finish().ok()
    }

    fn sees_rdma(&self) -> bool {
        true
    }

    fn rdma_requests(&mut self, gid: Gid) -> Vec<RdmaSeen> {
        let all = std::mem::take(&mut *self.rdma.borrow_mut());
        all.into_iter()
            .filter(|(initiator, _)| *initiator == gid)
            .map(|(_, seen)| seen)
            .collect()
    }
}

fn open(host: &SimHost) -> Result<SimNic, BackendError> {
    host.open_nic(NicConfig::default())
        .map_err(|source| BackendError::Nic {
            what: "make a queue pair",
            source,
        })
}

/// Records RDMA requests when they leave their hosts.
fn watch(fabric: &Fabric, rdma: &Rc<RefCell<Vec<(Gid, RdmaSeen)>>>) {
    let rdma = Rc::clone(rdma);
    fabric.add_tap(move |tapped| {
        let (frame, header) = (&tapped.frame, tapped.frame.header);
        let is_request = tapped.direction == Direction::Outbound
            && frame.stage == Stage::Request
            && !frame.is_repeated();
        if let Some(remote) = header.remote.filter(|_| is_request) {
            let seen = RdmaSeen {
                gid: frame.responder,
                remote: Remote {
                    address: remote.address,
                    key: remote.key.into(),
                },
                length: header.length.into(),
                writes: header.operation == Operation::RdmaWrite,
            };
            rdma.borrow_mut().push((frame.initiator, seen));
        }
    });
}
