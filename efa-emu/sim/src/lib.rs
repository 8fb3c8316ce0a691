//! A deterministic network of simulated hosts, in one thread and in virtual time.
//!
//! A [`Fabric`] holds any number of hosts. Each has the device model of [`efa_device_model::device`], its own
//! memory with checked accesses, and any number of domains and queue pairs ([`SimDomain`],
//! [`SimQueuePair`]; a [`SimNic`] is one of each). Nothing happens by itself: work is done
//! when it is posted and when [`Fabric::step`] or its relatives let virtual time pass. All
//! randomness comes from one seed, so the same calls give the same run, byte for byte in the
//! [event log](Fabric::log).
//!
//! What makes EFA hard is on by default or one setting away: frames take different paths and
//! overtake each other ([`efa_device_model::network`]), a send's completion and the peer's reaction to it are
//! independent events, completions of one poll come in any order, queue pair numbers are reused
//! ([`FabricConfig::qpn_policy`]), late packets reach the next owner of a number, frames are lost and
//! repeated below the reliability layer, hosts die. A [`Fault`] stages the rest
//! ([`Fabric::install`]).
//!
//! ```
//! use efa_core::nic::{
//!     CompletionKind, Destination, Domain, Doorbell, Nic, PolledNic, SendRequest,
//! };
//! use efa_sim::{Fabric, FabricConfig, HostConfig, NicConfig};
//!
//! let fabric = Fabric::new(FabricConfig::default());
//! let mut alice = fabric.add_host(HostConfig::default()).open_nic(NicConfig::default())?;
//! let mut bob = fabric.add_host(HostConfig::default()).open_nic(NicConfig::default())?;
//!
//! let buffer = bob.acquire_buffer().expect("a fresh pool has buffers");
//! bob.post_recv(buffer)?;
//! let buffer = alice.acquire_buffer().expect("a fresh pool has buffers");
//! alice.buffer_mut(buffer)[..5].copy_from_slice(b"hello");
//! let to = bob.address();
//! let ahn = alice.create_address_handle(to.gid)?;
//! let request = SendRequest {
//!     destination: Destination { ahn, qpn: to.qpn, qkey: to.qkey },
//!     buffer,
//!     header_length: 5,
//!     payload: None,
//!     immediate: None,
//!     context: 1,
//! };
//! alice.post_send(&request, Doorbell::Ring)?;
//!
//! fabric.run_until_idle();
//! let mut completions = Vec::new();
//! assert_eq!(bob.poll(&mut completions, 16), 1);
//! let CompletionKind::Recv { buffer, length, .. } = completions[0].kind else { panic!() };
//! assert_eq!(&bob.buffer(buffer)[..length], b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attachment;
mod domain;
mod flight;
mod host;
mod log;
mod memory;
mod objects;
mod packet_buffers;
mod queue_pair;
mod recording;
mod scripted;
mod tap;
mod wire;
mod world;

use std::cell::{Ref, RefCell};
use std::fmt;
use std::io::{self, Write};
use std::net::Ipv6Addr;
use std::rc::Rc;
use std::time::Duration;

use efa_core::address::Gid;

pub use self::domain::SimDomain;
pub use self::host::SimHost;
pub use self::log::EventLog;
pub use self::memory::{MemoryFault, OutOfMemory};
pub use self::queue_pair::{NicConfig, SimNic, SimQueuePair};
pub use self::recording::{CaptureConfig, Recording};
pub use self::scripted::{FinishedRequest, ReceivedPacket, ScriptedPeer};
pub use self::tap::{TapId, TappedFrame};
pub use efa_device_model::fault::{Action, Fault, FaultId, Frame, Match, Point, Stage};
pub use efa_device_model::network::{NetworkConfig, Probability, Reliability};
pub use efa_device_model::qpn_policy::QpnPolicy;

use self::wire::Wire;
use self::world::World;
use efa_device_model::network::{Network, Purpose, Random};
use efa_device_model::profile::Profile;

/// How a fabric is made.
#[derive(Clone, Debug)]
pub struct FabricConfig {
    /// Decides everything random.
    pub seed: u64,
    /// How the network behaves.
    pub network: NetworkConfig,
    /// How queue pair numbers are reused.
    pub qpn_policy: QpnPolicy,
    /// Completions are handed out in random order among this many of the oldest; 1 keeps the order
    /// of the completion queue.
    pub completion_window: usize,
    /// Whether the event log is kept. It grows by about 100 bytes per event.
    pub log: bool,
}

impl Default for FabricConfig {
    /// Seed 0, the default network, numbers reused as soon as possible, completions mixed, log kept.
    fn default() -> Self {
        FabricConfig {
            seed: 0,
            network: NetworkConfig::default(),
            qpn_policy: QpnPolicy::default(),
            completion_window: 8,
            log: true,
        }
    }
}

impl FabricConfig {
    /// The default with another seed.
    pub fn seeded(seed: u64) -> Self {
        FabricConfig {
            seed,
            ..FabricConfig::default()
        }
    }
}

/// How a host is made.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Its name in captures, `None` for `host0`, `host1`, ...
    pub name: Option<String>,
    /// The GID of its device, `None` for the next unused one of `fe80::efa:0:0/96`.
    pub gid: Option<Gid>,
    /// The generation of its device.
    pub profile: Profile,
    /// Bytes that can be allocated on it, packet buffers included.
    pub memory: u64,
}

impl Default for HostConfig {
    /// The default profile and 4 GiB.
    fn default() -> Self {
        let profile = Profile::by_name(Profile::DEFAULT).expect("the default profile exists");
        HostConfig {
            name: None,
            gid: None,
            profile: profile.clone(),
            memory: 4 << 30,
        }
    }
}

/// Names a host of a fabric: 0, 1, 2, ... in the order of creation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostId(pub(crate) u32);

impl HostId {
    /// The host's number.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host{}", self.0)
    }
}

/// What one step of a fabric did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The virtual time of the event.
    pub time: Duration,
    /// The host whose queue pairs may have new completions, if any: the only one worth polling.
    pub host: Option<HostId>,
}

/// A network of simulated hosts. A handle: clones name the same fabric.
///
/// Hosts and queue pairs hold the fabric as well, so it lives as long as any of them.
///
/// # Panics
/// Frame taps run inside the fabric: they panic if they call it.
#[derive(Clone)]
pub struct Fabric(Rc<RefCell<World>>);

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

    /// Virtual time since the start.
    pub fn now(&self) -> Duration {
        self.0.borrow().wire.now
    }

    /// When the next event is due, `None` if nothing will happen by itself.
    pub fn next_event_time(&self) -> Option<Duration> {
        self.0.borrow().wire.agenda.next_time()
    }

    /// Lets time pass to the next event and runs it. `None` if there is none.
    pub fn step(&self) -> Option<Step> {
        self.0.borrow_mut().step()
    }

    /// Runs all events up to and including `time`, and lets time pass to `time`. A time in the past
    /// changes nothing.
    pub fn run_until(&self, time: Duration) {
        let mut world = self.0.borrow_mut();
        while world.wire.agenda.next_time().is_some_and(|at| at <= time) {
            world.step();
        }
        world.wire.now = world.wire.now.max(time);
    }

    /// Lets `duration` pass.
    pub fn advance(&self, duration: Duration) {
        let until = self.now().saturating_add(duration);
        self.run_until(until);
    }

    /// Runs until nothing happens by itself any more and returns the number of events.
    ///
    /// A queue pair that retries a receiver without buffers for ever keeps this from returning:
    /// where that may be, use [`Fabric::run_until`].
    pub fn run_until_idle(&self) -> u64 {
        let mut world = self.0.borrow_mut();
        let mut events = 0;
        while world.step().is_some() {
            events += 1;
        }
        events
    }

    /// Requests that have not completed, those kept by faults included.
    pub fn in_flight(&self) -> usize {
        self.0.borrow().wire.in_flight()
    }

    /// The log of everything that happened.
    pub fn log(&self) -> Ref<'_, EventLog> {
        Ref::map(self.0.borrow(), |world| &world.wire.log)
    }

    /// Adds a line of the caller's own to the log.
    pub fn note(&self, line: fmt::Arguments<'_>) {
        let wire = &mut self.0.borrow_mut().wire;
        wire.log.add(wire.now, format_args!("note {line}"));
    }

    /// Forgets the log's lines; see [`EventLog::clear`].
    pub fn clear_log(&self) {
        self.0.borrow_mut().wire.log.clear();
    }

    /// Changes how the network behaves from now on. Frames on their way are not affected.
    pub fn set_network(&self, config: NetworkConfig) {
        self.0.borrow_mut().wire.network.config = config;
    }

    /// Cuts the connection of two hosts: frames between them are lost until it heals.
    pub fn cut(&self, a: HostId, b: HostId) {
        let mut world = self.0.borrow_mut();
        let pair = world.wire.pair(a, b);
        world.wire.arm(Fault::at_once(Action::Cut(pair)));
    }

    /// Undoes [`Fabric::cut`].
    pub fn heal(&self, a: HostId, b: HostId) {
        let wire = &mut self.0.borrow_mut().wire;
        let pair = wire.pair(a, b);
        let heal = wire.arm(Fault::at_once(Action::Heal(pair)));
        wire.disarm(heal);
    }

    /// A host loses power. Its queue pairs and its memory are gone, also after a restart; what it
    /// has sent travels on; its peers find it unresponsive.
    pub fn kill(&self, host: HostId) {
        self.0.borrow_mut().kill(host);
    }

    /// A killed host comes back with its GID and with nothing else.
    pub fn restart(&self, host: HostId) {
        self.0.borrow_mut().restart(host);
    }

    /// Installs a fault behind those already installed. The first one that wants a frame gets it.
    pub fn install(&self, fault: Fault) -> FaultId {
        self.0.borrow_mut().wire.arm(fault)
    }

    /// Removes a fault and releases what it holds.
    pub fn remove(&self, fault: FaultId) {
        self.0.borrow_mut().wire.disarm(fault);
    }

    /// How many frames a fault holds.
    pub fn held(&self, fault: FaultId) -> usize {
        self.0.borrow().wire.held(fault)
    }

    /// Lets the oldest `count` frames go that a fault holds, and returns how many there were. The
    /// fault stays installed.
    pub fn release(&self, fault: FaultId, count: usize) -> usize {
        self.0.borrow_mut().wire.release(fault, count)
    }

    /// How often a fault was applied.
    pub fn applied(&self, fault: FaultId) -> u64 {
        self.0.borrow().wire.tally.applied(fault)
    }

    /// Calls `tap` for every frame that a host sends or receives from now on.
    pub fn add_tap(&self, tap: impl FnMut(&TappedFrame<'_>) + 'static) -> TapId {
        self.0.borrow_mut().wire.taps.add(tap)
    }

    /// Ends a tap.
    pub fn remove_tap(&self, tap: TapId) {
        self.0.borrow_mut().wire.taps.remove(tap);
    }

    /// Captures all traffic from now on into `sink`, as pcapng with an interface per host.
    pub fn capture<W: Write + 'static>(
        &self,
        sink: W,
        config: CaptureConfig,
    ) -> io::Result<Recording<W>> {
        Recording::start(self, sink, config)
    }

    fn largest_mtu(&self) -> usize {
        let world = self.0.borrow();
        let mtus = world.hosts.iter().map(|host| host.config.profile.mtu);
        mtus.max().unwrap_or(HostConfig::default().profile.mtu) as usize
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
