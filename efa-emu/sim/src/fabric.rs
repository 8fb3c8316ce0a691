//! A network of simulated hosts.

use std::cell::{Ref, RefCell};
use std::fmt;
use std::net::Ipv6Addr;
use std::rc::Rc;
use std::time::Duration;

use efa_core::address::Gid;
use efa_device_model::fault::{Fault, FaultId};
use efa_device_model::network::{Network, Purpose, Random};

use super::config::{FabricConfig, HostConfig};
use super::host::SimHost;
use super::host_id::HostId;
use super::log::EventLog;
use super::tap::{TapId, TappedFrame};
use super::wire::Wire;
use super::world::{FabricStep, World};

/// A network of simulated hosts. This is a handle: clones refer to the same fabric.
///
/// Hosts and queue pairs also hold a reference to the fabric, so it exists as long as any of them.
///
/// # Panics
/// Frame taps run inside the fabric: they panic if they call it.
#[derive(Clone)]
pub struct Fabric(pub(crate) Rc<RefCell<World>>);

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric")
            .field("now", &self.now())
            .field("hosts", &self.0.borrow().hosts.len())
            .finish_non_exhaustive()
    }
}

impl Fabric {
    /// An empty network at time zero.
    pub fn new(config: FabricConfig) -> Self {
        let seed = config.seed;
        let network = Network::new(config.network, seed);
        Fabric(Rc::new(RefCell::new(World {
            wire: Wire::new(network, EventLog::new(config.log)),
            hosts: Vec::new(),
            qpn_policy: config.qpn_policy,
            qpn_random: Random::new(seed, Purpose::QueuePairNumber),
            qkey_random: Random::new(seed, Purpose::Qkey),
            completion_random: Random::new(seed, Purpose::Completions),
            completion_window: config.completion_window.max(1),
        })))
    }

    /// Adds a host.
    ///
    /// # Panics
    /// If another host has the configured GID.
    pub fn add_host(&self, config: HostConfig) -> SimHost {
        let mut world = self.0.borrow_mut();
        let gid = config.gid.unwrap_or_else(|| default_gid(&world.wire));
        assert!(
            !world.wire.hosts_by_gid.contains_key(&gid),
            "the fabric already has a host with GID {gid}"
        );
        let id = world.add_host(gid, config);
        SimHost::new(self.clone(), id)
    }

    /// The virtual time since the start.
    pub fn now(&self) -> Duration {
        self.0.borrow().wire.now
    }

    /// The time of the next event; `None` if there is none.
    pub fn next_event_time(&self) -> Option<Duration> {
        self.0.borrow().wire.events.next_time()
    }

    /// Advances time to the next event and runs it. `None` if there is none.
    pub fn step(&self) -> Option<FabricStep> {
        self.0.borrow_mut().step()
    }

    /// Runs all events up to and including `time`, and advances time to `time`. A time in the past
    /// changes nothing.
    pub fn run_until(&self, time: Duration) {
        let mut world = self.0.borrow_mut();
        while world.wire.events.next_time().is_some_and(|at| at <= time) {
            world.step();
        }
        world.wire.now = world.wire.now.max(time);
    }

    /// Advances time by `duration`.
    pub fn advance(&self, duration: Duration) {
        let until = self.now().saturating_add(duration);
        self.run_until(until);
    }

    /// Runs all events until there are none left, and returns their number.
    ///
    /// This does not return if a queue pair retries without limit while its receiver has no
    /// buffers: then use [`Fabric::run_until`].
    pub fn run_until_idle(&self) -> u64 {
        let mut world = self.0.borrow_mut();
        let mut events = 0;
        while world.step().is_some() {
            events += 1;
        }
        events
    }

    /// The number of requests that have not completed, including those that faults hold.
    pub fn in_flight(&self) -> usize {
        self.0.borrow().wire.in_flight()
    }

    /// The log of all events.
    pub fn log(&self) -> Ref<'_, EventLog> {
        Ref::map(self.0.borrow(), |world| &world.wire.log)
    }

    /// Adds a line to the log.
    pub fn note(&self, line: fmt::Arguments<'_>) {
        let wire = &mut self.0.borrow_mut().wire;
        wire.log.add(wire.now, format_args!("note {line}"));
    }

    /// A host loses power. Its queue pairs and memory are lost, even after a restart. Frames that
    /// it has sent still arrive. Its peers find it unresponsive.
    pub fn kill(&self, host: HostId) {
        self.0.borrow_mut().kill(host);
    }

    /// Restarts a killed host. It keeps only its GID.
    pub fn restart(&self, host: HostId) {
        self.0.borrow_mut().restart(host);
    }

    /// Installs a fault after those already installed. The first fault that matches a frame is
    /// applied.
    pub fn install(&self, fault: Fault) -> FaultId {
        self.0.borrow_mut().wire.arm(fault)
    }

    /// Removes a fault and releases the frames that it holds.
    pub fn remove(&self, fault: FaultId) {
        self.0.borrow_mut().wire.disarm(fault);
    }

    /// The number of frames that a fault holds.
    pub fn held(&self, fault: FaultId) -> usize {
        self.0.borrow().wire.held(fault)
    }

    /// Releases the oldest `count` frames that a fault holds, and returns how many there were. The
    /// fault stays installed.
    pub fn release(&self, fault: FaultId, count: usize) -> usize {
        self.0.borrow_mut().wire.release(fault, count)
    }

    /// The number of times that a fault was applied.
    pub fn applied(&self, fault: FaultId) -> u64 {
        self.0.borrow().wire.tally.applied(fault)
    }

    /// Calls `tap` for every frame that a host sends or receives from now on.
    pub fn add_tap(&self, tap: impl FnMut(&TappedFrame<'_>) + 'static) -> TapId {
        self.0.borrow_mut().wire.taps.add(tap)
    }

    /// Removes a tap.
    pub fn remove_tap(&self, tap: TapId) {
        self.0.borrow_mut().wire.taps.remove(tap);
    }

    /// The GIDs of all hosts, by host number.
    pub fn gids(&self) -> Vec<Gid> {
        let world = self.0.borrow();
        world.wire.ports.iter().map(|port| port.gid).collect()
    }
}

/// The next GID of `fe80::efa:0:0/96` that no host has.
fn default_gid(wire: &Wire) -> Gid {
    let mut number = wire.ports.len() as u32;
    loop {
        number += 1;
        let (high, low) = ((number >> 16) as u16, number as u16);
        let gid = Gid::from(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xefa, high, low));
        if !wire.hosts_by_gid.contains_key(&gid) {
            return gid;
        }
    }
}
