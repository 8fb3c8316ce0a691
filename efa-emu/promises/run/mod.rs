//! Carries a plan out, and holds what happens against the model.

mod asking;
mod moving;
mod outcome;
mod parting;
mod receiving;
mod reports;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::AddAssign;

use efa_core::address::RawAddress;
use efa_core::endpoint::{Counter, Endpoint, IoVec, OperationFlags, PeerId};
use efa_core::nic::{Access, Region, UserSlice};
use efa_device_model::fault::{Action, Fault, FaultId};
use efa_sim::{Fabric, HostConfig, SimHost};

use crate::model::{Asked, Message, OneSided, OneSidedKind, ProgramId, Receive, pattern};
use crate::plan::{Buffer, Manner, Plan, Settings, Step};
use crate::release::{Release, ReleaseNic};
use crate::user_queue_pair::UserQueuePair;

const MEMORY: usize = 8 << 20;
/// The counter and the lock word of a program are the first words of its memory.
const WORDS: u64 = 16;
/// Receives that a program has open at a time.
const MAX_RECEIVES: usize = 24;

/// What memory holds that a program uses for something else.
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
    /// Of a zero-copy receiver.
    user: Option<UserQueuePair>,
    memory: UserSlice,
    region: Region,
    /// The same memory once more, for writes and reads of peers.
    lent: Region,
    used: u64,
    peers: HashMap<ProgramId, PeerId>,
    outbox: VecDeque<Item>,
    open_receives: usize,
    /// Completions of receives that it heard.
    received: Counter,
    unpolled: u32,
}

pub(crate) struct World {
    fabric: Fabric,
    mtu: usize,
    hosts: Vec<SimHost>,
    programs: Vec<Program>,
    /// The program that runs on each host now.
    current: Vec<ProgramId>,
    messages: Vec<Message>,
    receives: Vec<Receive>,
    one_sided: Vec<OneSided>,
    /// Programs of which one took the other out of its address vector.
    parted: BTreeSet<(ProgramId, ProgramId)>,
    /// The same for those of which one ran ahead of the other's window.
    overrun: BTreeSet<(ProgramId, ProgramId)>,
    /// What one program sent to another in the order of its message ids.
    sequences: HashMap<(ProgramId, ProgramId), Vec<Item>>,
    ordered: bool,
    all_have_read_nack: bool,
    /// Whether messages are given up.
    aborts: bool,
    /// The faults that make packets arrive twice.
    repetitions: Vec<FaultId>,
    troubles: Troubles,
}

/// How often a run met what is rare.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Troubles {
    /// Packets beyond the window of their receiver.
    pub(crate) overruns: usize,
    /// Operations whose memory was deregistered.
    pub(crate) orphans: usize,
    /// Messages that could be neither read nor asked for.
    pub(crate) lost: usize,
    /// Messages that their senders gave up, and that their receivers gave up.
    pub(crate) aborts: [usize; 2],
    /// Messages without headers.
    pub(crate) headerless: usize,
    /// Times that a program made operations of its peers wait.
    pub(crate) waits: usize,
    /// Operations that the other release does not know.
    pub(crate) refusals: usize,
    /// Second copies of packets that their receiver recognised.
    pub(crate) copies: usize,
}

impl AddAssign for Troubles {
    fn add_assign(&mut self, other: Troubles) {
        self.overruns += other.overruns;
        self.orphans += other.orphans;
        self.lost += other.lost;
        self.aborts[0] += other.aborts[0];
        self.aborts[1] += other.aborts[1];
        self.headerless += other.headerless;
        self.waits += other.waits;
        self.refusals += other.refusals;
        self.copies += other.copies;
    }
}

/// Carries out those steps of a plan whose index is in `keep`. An error says which promise was
/// broken.
pub(crate) fn run(
    plan: &Plan,
    keep: &[usize],
    prepare: impl FnOnce(&Fabric),
) -> Result<Troubles, String> {
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
            troubles: Troubles::default(),
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

    /// Whether what goes on between two programs may fail.
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

    fn allocate(&mut self, at: ProgramId, length: usize) -> u64 {
        let program = &mut self.programs[at];
        let address = program.memory.address + program.used;
        program.used += length.next_multiple_of(8) as u64;
        assert!(program.used <= MEMORY as u64, "MEMORY is too small");
        address
    }

    fn fill(&self, at: ProgramId, address: u64, bytes: &[u8]) {
        let host = &self.programs[at].host;
        host.write(address, bytes).expect("allocated memory");
    }

    fn bytes(&self, at: ProgramId, address: u64, length: usize) -> Vec<u8> {
        let host = &self.programs[at].host;
        host.read(UserSlice { address, length })
            .expect("allocated memory")
    }

    fn word(&self, at: ProgramId, offset: u64) -> u64 {
        let bytes = self.bytes(at, self.programs[at].memory.address + offset, 8);
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    fn pieces(&self, at: ProgramId, address: u64, length: usize, buffer: Buffer) -> Vec<IoVec> {
        let region = buffer.registered.then_some(self.programs[at].region);
        let part = length.div_ceil(buffer.pieces.max(1)).max(1);
        let mut pieces: Vec<IoVec> = (0..length)
            .step_by(part)
            .map(|start| IoVec {
                memory: UserSlice {
                    address: address + start as u64,
                    length: part.min(length - start),
                },
                region,
            })
            .collect();
        if pieces.is_empty() {
            pieces.push(IoVec {
                memory: UserSlice { address, length: 0 },
                region,
            });
        }
        pieces
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        match *step {
            Step::Send {
                from,
                to,
                length,
                tag,
                with_data,
                manner,
                buffer,
            } => {
                let (from, to) = (self.current[from], self.current[to]);
                let number = self.messages.len();
                let address = self.allocate(from, length);
                self.fill(from, address, &pattern(number, length));
                // Messages without room for their number, or whose place is not told when they are
                // truncated, are known by their data.
                let with_data =
                    with_data || length < 8 || tag.is_none() || !self.all_have_read_nack;
                let with_data = with_data || self.aborts;
                self.messages.push(Message {
                    from,
                    to,
                    length,
                    tag,
                    data: with_data.then_some(number as u64),
                    manner,
                    address,
                    buffer,
                    state: Asked::Waiting,
                    taken: None,
                    lost: false,
                    aborted: false,
                });
                self.programs[from].outbox.push_back(Item::Message(number));
                self.push(from)?;
            }
            Step::Receive {
                at,
                from,
                tag,
                capacity,
                buffer,
            } => {
                let at = self.current[at];
                let from = from.map(|from| self.current[from]);
                self.receive(at, from, tag, capacity, buffer)?;
            }
            Step::MultiReceive {
                at,
                capacity,
                min_free,
            } => {
                let at = self.current[at];
                if self.programs[at].user.is_some() {
                    self.receive_without_header(at)?;
                } else if self.programs[at].open_receives < MAX_RECEIVES {
                    self.multi_receive(at, capacity, min_free)?;
                }
            }
            Step::Write {
                from,
                to,
                length,
                with_data,
                manner,
                buffer,
            } => self.one_sided(
                (from, to),
                length,
                OneSidedKind::Write,
                manner,
                with_data,
                buffer,
            )?,
            Step::Read {
                from,
                to,
                length,
                buffer,
            } => {
                let kind = OneSidedKind::Read;
                self.one_sided((from, to), length, kind, Manner::Plain, false, buffer)?;
            }
            Step::Add {
                from,
                to,
                fetch,
                manner,
            } => {
                let (kind, manner) = match fetch {
                    true => (OneSidedKind::FetchAdd, Manner::Plain),
                    false => (OneSidedKind::Add, manner),
                };
                self.one_sided((from, to), 8, kind, manner, false, WORD)?;
            }
            Step::Claim { from, to } => {
                let kind = OneSidedKind::Claim;
                self.one_sided((from, to), 8, kind, Manner::Plain, false, WORD)?;
            }
            Step::Combine {
                from,
                to,
                combine,
                manner,
                buffer,
            } => {
                let (kind, length) = (OneSidedKind::Combine(combine), combine.length());
                self.one_sided((from, to), length, kind, manner, false, buffer)?;
            }
            Step::Cancel { at, choice } => {
                let at = self.current[at];
                let open: Vec<usize> = self.open_receives(at).collect();
                if let Some(number) = open.get(choice % open.len().max(1)) {
                    self.cancel(*number, false)?;
                }
            }
            Step::Reserve { at, tagged, keep } => {
                let at = self.current[at];
                if self.programs[at].open_receives < MAX_RECEIVES {
                    self.reserve(at, tagged, keep)?;
                }
            }
            Step::Fault(ref fault) => {
                let id = self.fabric.install(Fault::clone(fault));
                if fault.then == Action::Repeat {
                    self.repetitions.push(id);
                }
            }
            Step::Die { at } => {
                let program = self.current[at];
                // Its queue pair goes, and nobody is told.
                self.programs[program].endpoint = None;
                self.programs[program].user = None;
                self.programs[program].outbox.clear();
                let settings = self.programs[program].settings.clone();
                self.current[at] = self.start(at, settings)?;
            }
            Step::Forget { at, peer } => {
                let (at, peer) = (self.current[at], self.current[peer]);
                self.parted.insert((at, peer));
                self.forget(at, peer)?;
            }
            Step::Withdraw { at } => self.withdraw(self.current[at])?,
            Step::Run { events } => {
                for _ in 0..events {
                    if !self.advance()? {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn release(&self, program: ProgramId) -> Release {
        self.programs[program].settings.release
    }
}

/// Registers the memory of a program. A staged failure may be meant for another registration.
fn register(endpoint: &mut Endpoint<ReleaseNic>, memory: UserSlice) -> Result<Region, String> {
    (0..20)
        .find_map(|_| endpoint.register(memory, Access::all()).ok())
        .ok_or("the program's memory cannot be registered".into())
}

/// What an atomic on memory of its own finds there, its operand and its comparand.
fn combined(number: usize, length: usize) -> [Vec<u8>; 3] {
    [1, 2, 3].map(|part| pattern(3 * number + part, length))
}

/// The flags of an operation. Every third one is followed by more, as far as the endpoint knows.
fn flags(manner: Manner, number: usize) -> OperationFlags {
    let more = match number.is_multiple_of(3) {
        true => OperationFlags::MORE,
        false => OperationFlags::empty(),
    };
    more | match manner {
        Manner::Plain => OperationFlags::COMPLETION,
        Manner::Silent => OperationFlags::empty(),
        Manner::Inject => OperationFlags::INJECT | OperationFlags::COMPLETION,
        Manner::DeliveryComplete => OperationFlags::COMPLETION | OperationFlags::DELIVERY_COMPLETE,
    }
}

const WORD: Buffer = Buffer {
    pieces: 1,
    registered: false,
};
