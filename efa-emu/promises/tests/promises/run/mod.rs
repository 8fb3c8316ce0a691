//! Executes a plan, and checks its events against the model.

mod asking;
mod memory;
mod moving;
mod outcome;
mod parting;
mod receiving;
mod reports;
mod step;
mod troubles;

use std::collections::{BTreeSet, HashMap, VecDeque};

use efa_core::address::RawAddress;
use efa_core::endpoint::{Counter, Endpoint, OperationFlags, PeerId};
use efa_core::nic::{Region, UserSlice};
use efa_device_model::fault::FaultId;
use efa_sim::{Fabric, HostConfig, SimHost};

use crate::model::{Message, OneSided, ProgramId, Receive};
use crate::plan::{Buffer, Plan, SendMode, Settings};
use crate::release::{Release, ReleaseNic};
use crate::user_queue_pair::UserQueuePair;
use memory::register;
pub(crate) use troubles::RareEvents;

const MEMORY: usize = 2 << 20;
/// The counter and the lock word of a program are the first words of its memory.
const WORDS: u64 = 16;
/// The largest number of a program's open receives.
const MAX_RECEIVES: usize = 24;

/// The content of memory that a program reuses.
const SOMETHING_ELSE: u8 = 0xEE;

const MESSAGE: u64 = 1 << 40;
const RECEIVE: u64 = 2 << 40;
const ONE_SIDED: u64 = 3 << 40;
const NUMBER: u64 = (1 << 40) - 1;

#[derive(Clone, Copy)]
enum Item {
    Message(usize),
    OneSided(usize),
}

struct Program {
    slot: usize,
    settings: Settings,
    host: SimHost,
    address: RawAddress,
    endpoint: Option<Endpoint<ReleaseNic>>,
    /// The second queue pair of a zero-copy receiver.
    user: Option<UserQueuePair>,
    memory: UserSlice,
    region: Region,
    /// A second registration of the same memory, for writes and reads of peers.
    lent: Region,
    used: u64,
    peers: HashMap<ProgramId, PeerId>,
    outbox: VecDeque<Item>,
    open_receives: usize,
    /// Counts the reported completions of receives.
    received: Counter,
    unpolled: u32,
}

pub(crate) struct World {
    fabric: Fabric,
    mtu: usize,
    hosts: Vec<SimHost>,
    programs: Vec<Program>,
    /// The program that currently runs on each host.
    current: Vec<ProgramId>,
    messages: Vec<Message>,
    receives: Vec<Receive>,
    one_sided: Vec<OneSided>,
    /// Pairs of programs one of which removed the other from its address vector.
    parted: BTreeSet<(ProgramId, ProgramId)>,
    /// Pairs of programs one of which exceeded the other's window.
    overrun: BTreeSet<(ProgramId, ProgramId)>,
    /// The items from one program to another, in the order of message ids.
    sequences: HashMap<(ProgramId, ProgramId), Vec<Item>>,
    ordered: bool,
    all_have_read_nack: bool,
    /// Whether messages are aborted.
    aborts: bool,
    /// The faults that make packets arrive twice.
    repetitions: Vec<FaultId>,
    troubles: RareEvents,
}

/// Executes the steps of a plan whose index is in `keep`. An error names the broken guarantee.
pub(crate) fn run(
    plan: &Plan,
    keep: &[usize],
    prepare: impl FnOnce(&Fabric),
) -> Result<RareEvents, String> {
    let mut world = World::new(plan)?;
    prepare(&world.fabric);
    for index in keep {
        world
            .step(&plan.steps[*index])
            .map_err(|error| format!("at step {index}: {error}"))?;
    }
    world.finish()
}

impl World {
    fn new(plan: &Plan) -> Result<Self, String> {
        let fabric = Fabric::new(plan.fabric.clone());
        let hosts = plan
            .programs
            .iter()
            .map(|settings| {
                fabric.add_host(HostConfig {
                    profile: settings.profile.clone(),
                    ..HostConfig::default()
                })
            })
            .collect();
        let mut world = World {
            fabric,
            mtu: plan.mtu,
            hosts,
            programs: Vec::new(),
            current: Vec::new(),
            messages: Vec::new(),
            receives: Vec::new(),
            one_sided: Vec::new(),
            parted: BTreeSet::new(),
            overrun: BTreeSet::new(),
            sequences: HashMap::new(),
            ordered: plan
                .programs
                .iter()
                .all(|settings| settings.endpoint.ordered),
            all_have_read_nack: plan.all(Release::has_read_nack),
            aborts: plan.aborts,
            repetitions: Vec::new(),
            troubles: RareEvents::default(),
        };
        for (slot, settings) in plan.programs.iter().enumerate() {
            let program = world.start(slot, settings.clone())?;
            world.current.push(program);
        }
        Ok(world)
    }

    fn start(&mut self, slot: usize, settings: Settings) -> Result<ProgramId, String> {
        let host = self.hosts[slot].clone();
        let nic = host
            .open_nic(settings.nic)
            .map_err(|error| error.to_string())?;
        let user = match settings.release {
            Release::V2_1ZeroCopy => Some(UserQueuePair::open(&host, settings.nic.rnr_retry)?),
            _ => None,
        };
        let nic = ReleaseNic::new(
            nic,
            settings.release,
            user.as_ref().map(UserQueuePair::name),
        );
        let mut endpoint =
            Endpoint::new(nic, settings.endpoint.clone()).map_err(|error| error.to_string())?;
        let memory = host.allocate(MEMORY).map_err(|error| error.to_string())?;
        let region = register(&mut endpoint, memory)?;
        let lent = register(&mut endpoint, memory)?;
        self.programs.push(Program {
            slot,
            settings,
            address: endpoint.address(),
            host,
            endpoint: Some(endpoint),
            user,
            memory,
            region,
            lent,
            used: WORDS,
            peers: HashMap::new(),
            outbox: VecDeque::new(),
            open_receives: 0,
            received: Counter::default(),
            unpolled: 0,
        });
        Ok(self.programs.len() - 1)
    }

    fn is_dead(&self, program: ProgramId) -> bool {
        self.programs[program].endpoint.is_none()
    }

    /// Whether operations between two programs may fail.
    fn is_doomed(&self, a: ProgramId, b: ProgramId) -> bool {
        self.is_dead(a)
            || self.is_dead(b)
            || self.parted.contains(&(a, b))
            || self.parted.contains(&(b, a))
    }

    fn peer(&mut self, at: ProgramId, of: ProgramId) -> Option<PeerId> {
        let address = self.programs[of].address;
        let program = &mut self.programs[at];
        if let Some(peer) = program.peers.get(&of) {
            return Some(*peer);
        }
        let peer = program.endpoint.as_mut()?.insert_address(address).ok()?;
        program.peers.insert(of, peer);
        Some(peer)
    }

    fn release(&self, program: ProgramId) -> Release {
        self.programs[program].settings.release
    }
}

/// The flags of an operation. For the endpoint, every third one is followed by more.
fn flags(mode: SendMode, number: usize) -> OperationFlags {
    let more = match number.is_multiple_of(3) {
        true => OperationFlags::MORE,
        false => OperationFlags::empty(),
    };
    more | match mode {
        SendMode::Plain => OperationFlags::COMPLETION,
        SendMode::Silent => OperationFlags::empty(),
        SendMode::Inject => OperationFlags::INJECT | OperationFlags::COMPLETION,
        SendMode::DeliveryComplete => {
            OperationFlags::COMPLETION | OperationFlags::DELIVERY_COMPLETE
        }
    }
}

const WORD: Buffer = Buffer {
    pieces: 1,
    registered: false,
};
