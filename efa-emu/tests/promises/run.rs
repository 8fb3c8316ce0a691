//! Carries a plan out, and holds what happens against the model.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::AddAssign;

use efa_core::address::RawAddress;
use efa_core::endpoint::{
    AtomicArgs, AtomicKind, ClaimedRecvArgs, CompletionEntry, CompletionFlags, Counter, Endpoint,
    EndpointError, Errno, ErrorEntry, Event, Failure, Instant, IoVec, MultiRecvArgs,
    OperationFlags, PacketError, PeerId, ReadArgs, RecvArgs, RemoteIoVec, SendArgs, SourceFilter,
    TagFilter, Usage, WriteArgs,
};
use efa_core::nic::{Access, Region, UserSlice};
use efa_core::wire::{AtomicDatatype, AtomicOp};
use efa_emu::fault::Fault;
use efa_emu::sim::{Fabric, HostConfig, SimHost};

use crate::combine::Call;
use crate::model::{
    Asked, Message, OneSided, OneSidedKind, ProgramId, Receive, ReceiveKind, check_matching,
    is_loss, pattern,
};
use crate::plan::{Buffer, MTU, Manner, Plan, Settings, Step};
use crate::release::{Release, ReleaseNic};
use crate::user_queue_pair::{Arrived, UserQueuePair};

const MEMORY: usize = 8 << 20;
/// The counter and the lock word of a program are the first words of its memory.
const WORDS: u64 = 16;
/// Receives that a program has open at a time.
const MAX_RECEIVES: usize = 24;

/// What deregistered memory holds.
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
    /// Messages without headers.
    pub(crate) headerless: usize,
    /// Times that a program made operations of its peers wait.
    pub(crate) waits: usize,
    /// Operations that the other release does not know.
    pub(crate) refusals: usize,
}

impl AddAssign for Troubles {
    fn add_assign(&mut self, other: Troubles) {
        self.overruns += other.overruns;
        self.orphans += other.orphans;
        self.lost += other.lost;
        self.headerless += other.headerless;
        self.waits += other.waits;
        self.refusals += other.refusals;
    }
}

/// Carries out those steps of a plan whose index is in `keep`. An error says which promise was broken.
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
        let nic = host.open(settings.nic).map_err(|error| error.to_string())?;
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
                self.fabric.install(Fault::clone(fault));
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

    fn one_sided(
        &mut self,
        (from, to): (usize, usize),
        length: usize,
        kind: OneSidedKind,
        manner: Manner,
        announces: bool,
        buffer: Buffer,
    ) -> Result<(), String> {
        let (from, to) = (self.current[from], self.current[to]);
        let number = self.one_sided.len();
        // The operand, the old values and the comparand of an atomic lie side by side.
        let local = match kind {
            OneSidedKind::Write | OneSidedKind::Read => self.allocate(from, length),
            _ => self.allocate(from, 3 * length),
        };
        let target = self.programs[to].memory.address;
        let remote = match kind {
            OneSidedKind::Write | OneSidedKind::Read | OneSidedKind::Combine(_) => {
                self.allocate(to, length)
            }
            OneSidedKind::Add | OneSidedKind::FetchAdd => target,
            OneSidedKind::Claim => target + 8,
        };
        match kind {
            OneSidedKind::Write => self.fill(from, local, &pattern(number, length)),
            OneSidedKind::Read => self.fill(to, remote, &pattern(number, length)),
            OneSidedKind::Add | OneSidedKind::FetchAdd => {
                self.fill(from, local, &1_u64.to_le_bytes());
            }
            OneSidedKind::Claim => self.fill(from, local, &(number as u64 + 1).to_le_bytes()),
            OneSidedKind::Combine(_) => {
                let [old, operand, comparand] = combined(number, length);
                self.fill(to, remote, &old);
                self.fill(from, local, &operand);
                self.fill(from, local + 2 * length as u64, &comparand);
            }
        }
        self.one_sided.push(OneSided {
            from,
            to,
            length,
            kind,
            manner,
            local,
            remote,
            buffer,
            announces,
            announced: false,
            orphaned: false,
            state: Asked::Waiting,
        });
        self.programs[from].outbox.push_back(Item::OneSided(number));
        self.push(from)
    }

    /// Hands over what a program wants to start, until its endpoint has no room.
    fn push(&mut self, at: ProgramId) -> Result<(), String> {
        while let Some(item) = self.programs[at].outbox.front().copied() {
            let (started, to, what) = match item {
                Item::Message(number) => {
                    let to = self.messages[number].to;
                    (self.send(number), to, format!("message {number}"))
                }
                Item::OneSided(number) => {
                    let to = self.one_sided[number].to;
                    let started = self.start_one_sided(number);
                    (started, to, format!("one-sided operation {number}"))
                }
            };
            let state = match started {
                Ok(()) => Asked::Started,
                Err(EndpointError::TryAgain) if !self.parted.contains(&(at, to)) => return Ok(()),
                Err(_) if self.is_doomed(at, to) => Asked::Refused,
                Err(error) if self.may_refuse(item, &error) => {
                    self.troubles.refusals += 1;
                    Asked::Refused
                }
                Err(error) => return Err(format!("{what} was refused: {error}")),
            };
            if state == Asked::Started {
                self.note_started(at, to, item)?;
            }
            match item {
                Item::Message(number) => self.messages[number].state = state,
                Item::OneSided(number) => self.one_sided[number].state = state,
            }
            self.programs[at].outbox.pop_front();
        }
        Ok(())
    }

    fn release(&self, program: ProgramId) -> Release {
        self.programs[program].settings.release
    }

    /// Whether a message is one that a zero-copy receiver cannot get.
    fn needs_header(&self, number: usize) -> Option<Errno> {
        let message = &self.messages[number];
        let zero_copy = self.release(message.to) == Release::V2_1ZeroCopy;
        match message {
            _ if !zero_copy => None,
            Message { tag: Some(_), .. } => Some(Errno::EOPNOTSUPP),
            message => (message.length > MTU as usize).then_some(Errno::EINVAL),
        }
    }

    /// Whether an operation is not possible between releases.
    fn may_refuse(&self, item: Item, error: &EndpointError) -> bool {
        let (from, to, manner) = match item {
            Item::Message(number) => {
                if let Some(errno) = self.needs_header(number) {
                    return error.errno() == errno;
                }
                let message = &self.messages[number];
                (message.from, message.to, message.manner)
            }
            Item::OneSided(number) => {
                let operation = &self.one_sided[number];
                (operation.from, operation.to, operation.manner)
            }
        };
        manner == Manner::DeliveryComplete
            && error.errno() == Errno::EOPNOTSUPP
            && [from, to]
                .into_iter()
                .any(|program| !self.release(program).has_delivery_complete())
    }

    fn note_started(&mut self, at: ProgramId, to: ProgramId, item: Item) -> Result<(), String> {
        let in_turn = match item {
            Item::Message(number) => {
                if self.needs_header(number).is_some() {
                    return Err(format!("message {number} was sent to a zero-copy receiver"));
                }
                self.release(to) != Release::V2_1ZeroCopy
            }
            Item::OneSided(number) => self.one_sided[number].kind.is_atomic(),
        };
        if in_turn {
            self.sequences.entry((at, to)).or_default().push(item);
        }
        Ok(())
    }

    fn send(&mut self, number: usize) -> Result<(), EndpointError> {
        let message = &self.messages[number];
        let (from, to) = (message.from, message.to);
        let pieces = self.pieces(from, message.address, message.length, message.buffer);
        let (tag, cq_data, flags) = (message.tag, message.data, flags(message.manner));
        if self.parted.contains(&(from, to)) || self.parted.contains(&(to, from)) {
            return Err(EndpointError::UnknownClaim);
        }
        let peer = self.peer(from, to).ok_or(EndpointError::TryAgain)?;
        let Some(endpoint) = &mut self.programs[from].endpoint else {
            return Err(EndpointError::UnknownClaim);
        };
        endpoint.send(SendArgs {
            peer,
            data: &pieces,
            tag,
            cq_data,
            flags,
            context: MESSAGE | number as u64,
        })
    }

    fn start_one_sided(&mut self, number: usize) -> Result<(), EndpointError> {
        let operation = &self.one_sided[number];
        let (from, to, kind) = (operation.from, operation.to, operation.kind);
        let (local, length) = (operation.local, operation.length);
        let key = match kind {
            OneSidedKind::Write | OneSidedKind::Read | OneSidedKind::Combine(_) => {
                self.programs[to].lent.remote_key
            }
            OneSidedKind::Add | OneSidedKind::FetchAdd | OneSidedKind::Claim => {
                self.programs[to].region.remote_key
            }
        };
        let part = match kind {
            OneSidedKind::Combine(combine) => {
                combine.elements.div_ceil(combine.remote_pieces) * combine.element_size()
            }
            _ => length.max(1),
        };
        let mut remote: Vec<RemoteIoVec> = (0..length)
            .step_by(part)
            .map(|start| RemoteIoVec {
                address: operation.remote + start as u64,
                length: part.min(length - start) as u64,
                key,
            })
            .collect();
        if remote.is_empty() {
            remote.push(RemoteIoVec {
                address: operation.remote,
                length: 0,
                key,
            });
        }
        let pieces = self.pieces(from, local, length, operation.buffer);
        let cq_data = operation.announces.then_some(number as u64);
        let flags = flags(operation.manner);
        let context = ONE_SIDED | number as u64;
        if self.parted.contains(&(from, to)) || self.parted.contains(&(to, from)) {
            return Err(EndpointError::UnknownClaim);
        }
        let peer = self.peer(from, to).ok_or(EndpointError::TryAgain)?;
        let Some(endpoint) = &mut self.programs[from].endpoint else {
            return Err(EndpointError::UnknownClaim);
        };
        let third = |index| {
            [IoVec::new(UserSlice {
                address: local + index * length as u64,
                length,
            })]
        };
        let (result, comparand) = (third(1), third(2));
        match kind {
            OneSidedKind::Write => endpoint.write(WriteArgs {
                peer,
                data: &pieces,
                remote: &remote,
                cq_data,
                flags,
                context,
            }),
            OneSidedKind::Read => endpoint.read(ReadArgs {
                peer,
                buffer: &pieces,
                remote: &remote,
                flags,
                context,
            }),
            OneSidedKind::Add
            | OneSidedKind::FetchAdd
            | OneSidedKind::Claim
            | OneSidedKind::Combine(_) => {
                let (datatype, operation, call) = match kind {
                    OneSidedKind::Combine(combine) => {
                        (combine.datatype, combine.operation, combine.call)
                    }
                    OneSidedKind::Claim => (AtomicDatatype::UINT64, AtomicOp::CSWAP, Call::Compare),
                    OneSidedKind::FetchAdd => (AtomicDatatype::UINT64, AtomicOp::SUM, Call::Fetch),
                    _ => (AtomicDatatype::UINT64, AtomicOp::SUM, Call::Write),
                };
                endpoint.atomic(AtomicArgs {
                    peer,
                    datatype,
                    operation,
                    operand: &pieces,
                    kind: match call {
                        Call::Compare => AtomicKind::Compare {
                            result: &result,
                            comparand: &comparand,
                        },
                        Call::Fetch => AtomicKind::Fetch { result: &result },
                        Call::Write => AtomicKind::Write,
                    },
                    remote: &remote,
                    flags,
                    context,
                })
            }
        }
    }

    fn open_receives(&self, at: ProgramId) -> impl Iterator<Item = usize> {
        let receives = self.receives.iter().enumerate();
        receives
            .filter(move |(_, receive)| receive.at == at && !receive.ended)
            .map(|(number, _)| number)
    }

    fn note_receive(
        &mut self,
        at: ProgramId,
        from: Option<ProgramId>,
        tag: Option<(u64, u64)>,
        capacity: usize,
        kind: ReceiveKind,
    ) -> (usize, u64) {
        let address = self.allocate(at, capacity);
        self.receives.push(Receive {
            at,
            from,
            tag,
            capacity,
            address,
            kind,
            id: None,
            cancelled: false,
            cleared: false,
            taken: Vec::new(),
            ended: false,
        });
        self.programs[at].open_receives += 1;
        (self.receives.len() - 1, address)
    }

    fn give_up_receive(&mut self, number: usize) {
        let receive = &mut self.receives[number];
        receive.ended = true;
        self.programs[receive.at].open_receives -= 1;
    }

    fn receive(
        &mut self,
        at: ProgramId,
        from: Option<ProgramId>,
        tag: Option<(u64, u64)>,
        capacity: usize,
        buffer: Buffer,
    ) -> Result<(), String> {
        if self.programs[at].user.is_some() {
            return self.receive_without_header(at);
        }
        if self.programs[at].open_receives >= MAX_RECEIVES {
            return Ok(());
        }
        let source = match from {
            Some(from) if self.is_doomed(at, from) => return Ok(()),
            Some(from) => match self.peer(at, from) {
                Some(peer) => SourceFilter::Peer(peer),
                None => return Ok(()),
            },
            None => SourceFilter::Any,
        };
        let (number, address) = self.note_receive(at, from, tag, capacity, ReceiveKind::Posted);
        let pieces = self.pieces(at, address, capacity, buffer);
        let endpoint = self.programs[at].endpoint.as_mut().expect("it runs");
        let posted = endpoint.recv(RecvArgs {
            source,
            buffer: &pieces,
            tag: tag.map(|(tag, ignore)| TagFilter { tag, ignore }),
            flags: OperationFlags::COMPLETION,
            context: RECEIVE | number as u64,
        });
        match posted {
            Ok(id) => self.receives[number].id = Some(id),
            Err(EndpointError::TryAgain) => self.give_up_receive(number),
            Err(error) => return Err(format!("receive {number} was refused: {error}")),
        }
        self.collect(at)
    }

    fn multi_receive(
        &mut self,
        at: ProgramId,
        capacity: usize,
        min_free: usize,
    ) -> Result<(), String> {
        let (number, address) = self.note_receive(at, None, None, capacity, ReceiveKind::Multi);
        let buffer = self.pieces(at, address, capacity, WORD)[0];
        let endpoint = self.programs[at].endpoint.as_mut().expect("it runs");
        let posted = endpoint.multi_recv(MultiRecvArgs {
            source: SourceFilter::Any,
            buffer,
            min_free,
            context: RECEIVE | number as u64,
        });
        match posted {
            Ok(id) => self.receives[number].id = Some(id),
            Err(EndpointError::TryAgain) => self.give_up_receive(number),
            Err(error) => return Err(format!("receive {number} was refused: {error}")),
        }
        self.collect(at)
    }

    fn cancel(&mut self, number: usize, clearing: bool) -> Result<(), String> {
        let receive = &mut self.receives[number];
        let Some(id) = receive.id else { return Ok(()) };
        let at = receive.at;
        if let Some(endpoint) = &mut self.programs[at].endpoint
            && endpoint.cancel(id)
        {
            receive.cancelled = true;
            receive.cleared = clearing;
        }
        self.collect(at)
    }

    /// Reserves the first message that any receive of a kind would take.
    fn reserve(&mut self, at: ProgramId, tagged: bool, keep: bool) -> Result<(), String> {
        let everything = TagFilter {
            tag: 0,
            ignore: u64::MAX,
        };
        let tag = tagged.then_some(everything);
        let endpoint = self.programs[at].endpoint.as_mut().expect("it runs");
        let seen = endpoint.peek(SourceFilter::Any, tag);
        let Some((claim, info)) = endpoint.claim(SourceFilter::Any, tag) else {
            return match seen {
                Some(info) => Err(format!("{info:?} was seen and cannot be claimed")),
                None => Ok(()),
            };
        };
        if seen != Some(info) {
            return Err(format!("claimed {info:?}, but saw {seen:?}"));
        }
        let tag = tagged.then_some((0, u64::MAX));
        let (number, address) = self.note_receive(at, None, tag, 20_000, ReceiveKind::Claim);
        if !keep && let Some(data) = info.cq_data {
            let endpoint = self.programs[at].endpoint.as_mut().expect("it runs");
            endpoint
                .discard(claim)
                .map_err(|error| format!("a claimed message cannot be discarded: {error}"))?;
            self.note_taken(number, data as usize)?;
            self.give_up_receive(number);
            return Ok(());
        }
        let pieces = self.pieces(at, address, 20_000, WORD);
        let endpoint = self.programs[at].endpoint.as_mut().expect("it runs");
        endpoint
            .recv_claimed(ClaimedRecvArgs {
                claim,
                buffer: &pieces,
                flags: OperationFlags::COMPLETION,
                context: RECEIVE | number as u64,
            })
            .map_err(|error| format!("a claimed message cannot be received: {error}"))?;
        self.collect(at)
    }

    /// A program takes another, which may be dead, out of its address vector.
    fn forget(&mut self, at: ProgramId, peer: ProgramId) -> Result<(), String> {
        let address = self.programs[peer].address;
        self.programs[at].peers.remove(&peer);
        if let Some(endpoint) = &mut self.programs[at].endpoint
            && let Some(id) = endpoint.find_address(&address)
        {
            endpoint
                .remove_address(id)
                .map_err(|error| format!("program {peer} cannot be removed: {error}"))?;
        }
        self.collect(at)
    }

    /// A program ends the registration of what it lends, and uses the memory for something else.
    fn withdraw(&mut self, at: ProgramId) -> Result<(), String> {
        let lent = self.programs[at].lent;
        let Some(endpoint) = &mut self.programs[at].endpoint else {
            return Ok(());
        };
        endpoint
            .deregister(lent)
            .map_err(|error| format!("program {at} cannot deregister: {error}"))?;
        for number in 0..self.one_sided.len() {
            let operation = &self.one_sided[number];
            let names_it = match operation.kind {
                OneSidedKind::Write | OneSidedKind::Read | OneSidedKind::Combine(_) => true,
                OneSidedKind::Add | OneSidedKind::FetchAdd | OneSidedKind::Claim => false,
            };
            // Without delivery complete a success says that the data was sent.
            let under_way = match operation.state {
                Asked::Started => true,
                Asked::Ended(Ok(())) => !self.is_written(number),
                Asked::Ended(Err(_)) | Asked::Waiting | Asked::Refused => false,
            };
            if operation.to == at && names_it && under_way && !operation.orphaned {
                let (address, length) = (operation.remote, operation.length);
                self.fill(at, address, &vec![SOMETHING_ELSE; length]);
                self.one_sided[number].orphaned = true;
                self.troubles.orphans += 1;
            }
        }
        let program = &mut self.programs[at];
        if let Some(endpoint) = &mut program.endpoint {
            program.lent = register(endpoint, program.memory)?;
        }
        self.collect(at)
    }

    /// What lost its memory may never end: the requester is not told. It ends with its peer, and has
    /// left the memory alone.
    fn end_orphans(&mut self) -> Result<(), String> {
        let orphans: Vec<usize> = (0..self.one_sided.len())
            .filter(|number| self.one_sided[*number].orphaned)
            .collect();
        for number in &orphans {
            let (from, to) = (self.one_sided[*number].from, self.one_sided[*number].to);
            self.parted.insert((from, to));
        }
        let lost: Vec<usize> = (0..self.messages.len())
            .filter(|number| self.messages[*number].lost)
            .collect();
        for number in &lost {
            let (from, to) = (self.messages[*number].from, self.messages[*number].to);
            self.parted.insert((from, to));
        }
        self.forget_the_doomed()?;
        self.settle()?;
        for number in lost {
            let message = &self.messages[number];
            let reports = matches!(message.manner, Manner::Plain | Manner::DeliveryComplete);
            if reports && !self.is_dead(message.from) && message.state == Asked::Started {
                return Err(format!("message {number} does not end with its peer"));
            }
        }
        for number in orphans {
            let operation = &self.one_sided[number];
            let what = format!("one-sided operation {number} ({:?})", operation.kind);
            let reports = matches!(operation.manner, Manner::Plain | Manner::DeliveryComplete);
            if reports && !self.is_dead(operation.from) && operation.state == Asked::Started {
                return Err(format!("{what} does not end with its peer"));
            }
            let memory = self.bytes(operation.to, operation.remote, operation.length);
            if memory.iter().any(|byte| *byte != SOMETHING_ELSE) {
                return Err(format!("{what} changed memory that was deregistered"));
            }
        }
        Ok(())
    }

    /// The program that another knows as a peer.
    fn program_of(&self, at: ProgramId, peer: PeerId) -> Option<ProgramId> {
        let endpoint = self.programs[at].endpoint.as_ref()?;
        let address = endpoint.lookup_address(peer)?;
        let mut programs = self.programs.iter();
        programs.position(|other| other.address == address)
    }

    /// A packet was further ahead than the window of its receiver: that must be so.
    fn on_overflow(
        &mut self,
        at: ProgramId,
        peer: PeerId,
        msg_id: u32,
        expected: u32,
    ) -> Result<(), String> {
        let from = self
            .program_of(at, peer)
            .ok_or(format!("program {at} gives up {peer}, which is nobody"))?;
        let Settings { endpoint, .. } = &self.programs[at].settings;
        let sent = self.sequences.get(&(from, at)).map_or(&[][..], |sent| sent);
        let item = |id: u32| sent.get(id.wrapping_sub(endpoint.first_msg_id) as usize);
        let missing = match item(expected) {
            Some(Item::Message(number)) => self.messages[*number].taken.is_none(),
            Some(Item::OneSided(_)) => true,
            None => false,
        };
        let ahead = msg_id.wrapping_sub(expected);
        if ahead < endpoint.reorder_window || item(msg_id).is_none() || !missing {
            return Err(format!(
                "program {at} gives up program {from}, which has sent {} messages, at id {msg_id} \
                 with id {expected} missing",
                sent.len(),
            ));
        }
        self.overrun.insert((at, from));
        self.troubles.overruns += 1;
        Ok(())
    }

    /// A zero-copy receiver posts a buffer.
    fn receive_without_header(&mut self, at: ProgramId) -> Result<(), String> {
        let (number, _) = self.note_receive(at, None, None, MTU as usize, ReceiveKind::ZeroCopy);
        match &mut self.programs[at].user {
            Some(user) => user.post(number),
            None => Ok(()),
        }
    }

    /// Hears of messages that came without headers.
    fn collect_without_header(&mut self, at: ProgramId) -> Result<(), String> {
        let Some(user) = &mut self.programs[at].user else {
            return Ok(());
        };
        for Arrived {
            receive,
            bytes,
            immediate,
        } in user.poll()?
        {
            let Some(number) = immediate.map(|data| data as usize) else {
                return Err(format!("receive {receive} got a message without CQ data"));
            };
            self.note_taken(receive, number)?;
            self.give_up_receive(receive);
            self.troubles.headerless += 1;
            if bytes != pattern(number, self.messages[number].length) {
                return Err(format!(
                    "receive {receive} got other data than message {number}"
                ));
            }
        }
        Ok(())
    }

    /// Posts a buffer for each message to a zero-copy receiver that is still to come: until there is
    /// one, its sender does not come to rest.
    fn receive_the_rest_without_header(&mut self) -> Result<(), String> {
        for at in 0..self.programs.len() {
            let to_come = self.messages.iter().filter(|message| {
                message.to == at && message.taken.is_none() && message.state != Asked::Refused
            });
            let to_come = to_come.count();
            while self.programs[at]
                .user
                .as_ref()
                .is_some_and(|user| user.posted() < to_come)
            {
                self.receive_without_header(at)?;
            }
        }
        Ok(())
    }

    /// Lets the next thing happen: an event of the fabric, or the end of a wait. Returns whether
    /// there was one.
    fn advance(&mut self) -> Result<bool, String> {
        let timeout = (0..self.programs.len())
            .filter_map(|at| {
                let endpoint = self.programs[at].endpoint.as_ref()?;
                Some((endpoint.next_timeout()?, at))
            })
            .min();
        match (timeout, self.fabric.next_event_time()) {
            (Some((Instant(until), at)), event) if event.is_none_or(|event| until < event) => {
                self.fabric.run_until(until);
                self.progress(at)?;
                Ok(true)
            }
            (_, None) => Ok(false),
            _ => {
                if let Some(host) = self.fabric.step().and_then(|step| step.host) {
                    let at = self.current[host.index()];
                    let program = &mut self.programs[at];
                    program.unpolled += 1;
                    if program.unpolled >= program.settings.patience {
                        program.unpolled = 0;
                        self.progress(at)?;
                    }
                }
                Ok(true)
            }
        }
    }

    fn progress(&mut self, at: ProgramId) -> Result<(), String> {
        let now = Instant(self.fabric.now());
        for _ in 0..10_000 {
            let Some(endpoint) = &mut self.programs[at].endpoint else {
                return Ok(());
            };
            let taken = endpoint.progress(now);
            self.troubles.waits += usize::from(endpoint.usage().waiting > 0);
            if let Some(objection) = endpoint.nic().objection() {
                return Err(format!("program {at}: {objection}"));
            }
            self.collect(at)?;
            self.collect_without_header(at)?;
            self.push(at)?;
            if taken == 0 {
                return Ok(());
            }
        }
        Err(format!("program {at} always has something to do"))
    }

    /// Runs until nothing moves any more.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..100_000 {
            if self.advance()? {
                continue;
            }
            for at in 0..self.programs.len() {
                self.progress(at)?;
            }
            let timeouts = self.programs.iter().filter_map(|program| {
                let endpoint = program.endpoint.as_ref()?;
                endpoint.next_timeout()
            });
            if self.fabric.next_event_time().is_none() && timeouts.count() == 0 {
                return Ok(());
            }
        }
        Err("the programs do not come to rest".into())
    }

    /// Hears what a program's endpoint has to say.
    fn collect(&mut self, at: ProgramId) -> Result<(), String> {
        // They say why the operations of a completion failed.
        while let Some(event) = self.programs[at]
            .endpoint
            .as_mut()
            .and_then(Endpoint::poll_event)
        {
            self.on_event(at, &event)?;
        }
        loop {
            let Some(endpoint) = &mut self.programs[at].endpoint else {
                return Ok(());
            };
            let Some(completion) = endpoint.poll_completion() else {
                break;
            };
            let (context, flags) = match &completion {
                Ok(entry) => (entry.context, entry.flags),
                Err(entry) => (entry.context, entry.flags),
            };
            let number = (context & NUMBER) as usize;
            match context & !NUMBER {
                MESSAGE => self.on_sent(number, completion)?,
                ONE_SIDED => self.on_one_sided(number, completion)?,
                RECEIVE => self.on_received(at, number, completion)?,
                _ if flags.contains(CompletionFlags::REMOTE_WRITE) => match completion {
                    Ok(entry) => self.on_announced(at, &entry)?,
                    Err(entry) => return Err(format!("program {at} heard {entry:?}")),
                },
                _ => return Err(format!("program {at} heard {completion:?}")),
            }
        }
        Ok(())
    }

    fn on_event(&mut self, at: ProgramId, event: &Event) -> Result<(), String> {
        self.fabric
            .note(format_args!("program {at} hears: {event}"));
        if let Event::PacketRefused {
            peer: Some(peer),
            reason: PacketError::BeyondWindow { msg_id, expected },
            ..
        } = *event
        {
            return self.on_overflow(at, peer, msg_id, expected);
        }
        if let Event::PeerFailed { peer, .. } = *event
            && let Some(from) = self.program_of(at, peer)
            && self.overrun.contains(&(at, from))
        {
            // From now on it hears nothing of it.
            self.parted.insert((at, from));
        }
        // After deaths and partings packets arrive that nobody expects any more, or are lost.
        let troubled = (0..self.programs.len()).any(|other| self.is_doomed(at, other));
        let orphaned = self
            .one_sided
            .iter()
            .any(|one| one.orphaned && (one.from == at || one.to == at));
        match event {
            _ if troubled => Ok(()),
            Event::RemoteOperationFailed { .. }
            | Event::PacketRefused {
                reason: PacketError::StaleOperation { .. },
                ..
            } if orphaned => Ok(()),
            other => Err(format!("program {at}: {other}")),
        }
    }

    fn ended(
        &self,
        what: &str,
        state: Asked,
        manner: Manner,
        (from, to): (ProgramId, ProgramId),
        orphaned: bool,
        result: Result<(), Failure>,
    ) -> Result<Asked, String> {
        if state != Asked::Started && state != Asked::Waiting {
            return Err(format!("{what} was reported although it is {state:?}"));
        }
        match result {
            Ok(()) if matches!(manner, Manner::Silent | Manner::Inject) => {
                Err(format!("the success of {what} was reported"))
            }
            Err(failure) if !self.is_doomed(from, to) && !orphaned => {
                Err(format!("{what} failed: {failure}"))
            }
            Err(failure) if !is_loss(failure) => {
                Err(format!("{what} failed for the wrong reason: {failure}"))
            }
            _ => Ok(Asked::Ended(result)),
        }
    }

    fn on_sent(
        &mut self,
        number: usize,
        completion: Result<CompletionEntry, ErrorEntry>,
    ) -> Result<(), String> {
        let what = format!("message {number}");
        // The data is there when the sender hears of it, whether or not the receiver has looked.
        self.collect_without_header(self.messages[number].to)?;
        let message = &self.messages[number];
        let result = completion.map_err(|entry| entry.failure).map(|_| ());
        if let Ok(entry) = completion
            && entry.length != message.length as u64
        {
            return Err(format!("{what} was reported with length {}", entry.length));
        }
        if result.is_ok()
            && message.manner == Manner::DeliveryComplete
            && message.taken.is_none()
            && !self.is_dead(message.to)
        {
            return Err(format!("{what} was reported before its delivery"));
        }
        let pair = (message.from, message.to);
        self.messages[number].state =
            self.ended(&what, message.state, message.manner, pair, false, result)?;
        Ok(())
    }

    fn on_one_sided(
        &mut self,
        number: usize,
        completion: Result<CompletionEntry, ErrorEntry>,
    ) -> Result<(), String> {
        let operation = &self.one_sided[number];
        let what = format!("one-sided operation {number} ({:?})", operation.kind);
        let result = completion.map_err(|entry| entry.failure).map(|_| ());
        if let Ok(entry) = completion {
            if entry.flags != operation.kind.flags() {
                return Err(format!("{what} was reported with {:?}", entry.flags));
            }
            if operation.kind == OneSidedKind::Read
                && self.bytes(operation.from, operation.local, operation.length)
                    != pattern(number, operation.length)
            {
                return Err(format!("{what} brought other data"));
            }
            if let OneSidedKind::Combine(combine) = operation.kind
                && combine.call != Call::Write
            {
                let length = operation.length;
                let fetched = self.bytes(operation.from, operation.local + length as u64, length);
                let [old, ..] = combined(number, length);
                if fetched != old {
                    return Err(format!("{what} fetched other values"));
                }
            }
            let in_place = operation.orphaned || self.is_written(number);
            if operation.manner == Manner::DeliveryComplete && !in_place {
                return Err(format!("{what} was reported before its delivery"));
            }
        }
        let pair = (operation.from, operation.to);
        self.one_sided[number].state = self.ended(
            &what,
            operation.state,
            operation.manner,
            pair,
            operation.orphaned,
            result,
        )?;
        Ok(())
    }

    /// Whether an operation on memory of its own has changed it as it should.
    fn is_written(&self, number: usize) -> bool {
        let operation = &self.one_sided[number];
        let expected = match operation.kind {
            OneSidedKind::Write => pattern(number, operation.length),
            OneSidedKind::Combine(combine) => {
                let [old, operand, comparand] = combined(number, operation.length);
                combine.outcome(&old, &operand, &comparand)
            }
            // What others change as well is checked in the end.
            _ => return true,
        };
        self.bytes(operation.to, operation.remote, operation.length) == expected
    }

    /// A peer's write with CQ data.
    fn on_announced(&mut self, at: ProgramId, entry: &CompletionEntry) -> Result<(), String> {
        let number = entry.data as usize;
        let Some(operation) = self.one_sided.get(number) else {
            return Err(format!(
                "program {at} heard of a write nobody made: {entry:?}"
            ));
        };
        if !operation.announces || operation.to != at || operation.announced {
            return Err(format!("program {at} heard of write {number}: {entry:?}"));
        }
        let in_place = operation.orphaned || self.is_written(number);
        if !in_place || entry.length != operation.length as u64 {
            return Err(format!("write {number} was announced before its data"));
        }
        self.one_sided[number].announced = true;
        Ok(())
    }

    fn note_taken(&mut self, receive: usize, number: usize) -> Result<(), String> {
        let Some(message) = self.messages.get_mut(number) else {
            return Err(format!("receive {receive} got a message nobody sent"));
        };
        let taker = &mut self.receives[receive];
        if !taker.accepts(message) {
            return Err(format!(
                "receive {receive} got message {number}, which is not for it"
            ));
        }
        if let Some(other) = message.taken.replace(receive) {
            return Err(format!(
                "message {number} was received by {other} and by {receive}"
            ));
        }
        taker.taken.push(number);
        Ok(())
    }

    fn on_received(
        &mut self,
        at: ProgramId,
        number: usize,
        completion: Result<CompletionEntry, ErrorEntry>,
    ) -> Result<(), String> {
        let what = format!("receive {number}");
        let receive = &self.receives[number];
        let kind = receive.kind;
        if receive.ended || receive.at != at {
            return Err(format!("{what} was reported after its end: {completion:?}"));
        }
        let flags = match &completion {
            Ok(entry) => entry.flags,
            Err(entry) => entry.flags,
        };
        match completion {
            Ok(_) => self.programs[at].received.successes += 1,
            Err(_) => self.programs[at].received.errors += 1,
        }
        if kind != ReceiveKind::Multi || flags.contains(CompletionFlags::MULTI_RECV) {
            self.give_up_receive(number);
        }
        let receive = &self.receives[number];
        let (address, length, whole, data) = match completion {
            Ok(entry) => {
                let address = match kind {
                    ReceiveKind::Multi => entry.buffer,
                    _ => receive.address,
                };
                (address, entry.length as usize, entry.length, entry)
            }
            Err(entry) if entry.failure.errno == Errno::ETRUNC => {
                let whole = entry.length + entry.overflow_length;
                let like = CompletionEntry {
                    context: entry.context,
                    flags: entry.flags,
                    length: whole,
                    data: entry.data,
                    tag: entry.tag,
                    source: entry.source,
                    buffer: 0,
                };
                (receive.address, entry.length as usize, whole, like)
            }
            Err(entry) if self.is_lost(at, &entry) => {
                let message = entry.data as usize;
                self.note_taken(number, message)?;
                self.messages[message].lost = true;
                self.troubles.lost += 1;
                return Ok(());
            }
            Err(entry) => {
                let troubled = (0..self.programs.len()).any(|other| self.is_doomed(at, other));
                let asked = receive.cancelled && entry.failure.errno == Errno::ECANCELED;
                return match asked || (troubled && is_loss(entry.failure)) {
                    true => Ok(()),
                    false => Err(format!("{what} failed: {}", entry.failure)),
                };
            }
        };
        let truncated = completion.is_err();
        let has_data = flags.contains(CompletionFlags::REMOTE_CQ_DATA);
        let message_number = if has_data {
            data.data as usize
        } else {
            let head = self.bytes(at, address, 8);
            u64::from_le_bytes(head.try_into().expect("eight bytes")) as usize
        };
        self.note_taken(number, message_number)?;
        let (message, receive) = (&self.messages[message_number], &self.receives[number]);
        let what = format!("{what} of message {message_number}");
        if whole != message.length as u64 || message.data.is_some() != has_data {
            return Err(format!("{what} reported {data:?}"));
        }
        if data.tag != message.tag.unwrap_or(0) {
            return Err(format!("{what} reported tag {}", data.tag));
        }
        if kind != ReceiveKind::Multi && truncated != (message.length > receive.capacity) {
            return Err(format!("{what}: truncated is {truncated}"));
        }
        let from = message.from;
        let source = data.source.and_then(|peer| {
            let endpoint = self.programs[at].endpoint.as_ref()?;
            endpoint.lookup_address(peer)
        });
        if source != Some(self.programs[from].address) && !self.is_doomed(from, at) {
            return Err(format!("{what} reported another sender: {source:?}"));
        }
        // Where a truncated message of a multi-receive buffer went is not told.
        if kind == ReceiveKind::Multi && truncated {
            return Ok(());
        }
        let expected = pattern(message_number, message.length);
        match self.bytes(at, address, length) == expected[..length] {
            true => Ok(()),
            false => Err(format!("{what} brought other data")),
        }
    }

    /// Whether a message failed because its receiver could not read it, and its sender, or the
    /// receiver, knows no READ_NACK.
    fn is_lost(&self, at: ProgramId, entry: &ErrorEntry) -> bool {
        let Some(message) = self.messages.get(entry.data as usize) else {
            return false;
        };
        let [from, to] = [message.from, message.to].map(|program| self.release(program));
        entry.failure.errno == Errno::ENOMEM
            && entry.flags.contains(CompletionFlags::REMOTE_CQ_DATA)
            && message.to == at
            && !(from.has_read_nack() && to.has_read_nack())
    }

    fn finish(mut self) -> Result<Troubles, String> {
        self.receive_the_rest_without_header()?;
        self.settle()?;
        // Those who live clear up after those who died or parted.
        self.forget_the_doomed()?;
        self.settle()?;
        self.receive_the_rest()?;
        for number in 0..self.receives.len() {
            if !self.receives[number].ended {
                self.cancel(number, true)?;
            }
        }
        self.settle()?;
        // Late packets of parted programs may have introduced them once more.
        self.forget_the_doomed()?;
        self.settle()?;
        self.check_outcomes()?;
        self.end_orphans()?;
        self.check_rest()?;
        for at in 0..self.programs.len() {
            self.check_counters(at)?;
            if self.is_dead(at) {
                continue;
            }
            check_matching(&self.messages, &self.receives, self.ordered)?;
        }
        Ok(self.troubles)
    }

    fn forget_the_doomed(&mut self) -> Result<(), String> {
        for at in 0..self.programs.len() {
            for other in 0..self.programs.len() {
                if self.is_doomed(at, other) {
                    self.forget(at, other)?;
                }
            }
        }
        Ok(())
    }

    /// Posts receives for whatever is sent and not received.
    fn receive_the_rest(&mut self) -> Result<(), String> {
        let buffer = WORD;
        let mut last = usize::MAX;
        loop {
            let missing: Vec<usize> = (0..self.messages.len())
                .filter(|number| {
                    let message = &self.messages[*number];
                    message.state != Asked::Refused
                        && message.taken.is_none()
                        && !self.is_doomed(message.from, message.to)
                })
                .collect();
            if missing.is_empty() {
                return Ok(());
            }
            if missing.len() >= last {
                let number = missing[0];
                let message = &self.messages[number];
                return Err(format!(
                    "message {number} from program {} to {} never arrives; it is {:?}, {} more \
                     are missing; {}",
                    message.from,
                    message.to,
                    message.state,
                    missing.len() - 1,
                    self.usages(),
                ));
            }
            last = missing.len();
            for number in missing {
                let message = &self.messages[number];
                let (at, tag) = (message.to, message.tag.map(|_| (0, u64::MAX)));
                self.receive(at, None, tag, 20_000, buffer)?;
            }
            self.settle()?;
        }
    }

    fn check_outcomes(&self) -> Result<(), String> {
        for (number, message) in self.messages.iter().enumerate() {
            let doomed = self.is_doomed(message.from, message.to);
            let reported = matches!(message.state, Asked::Ended(_));
            let reports = matches!(message.manner, Manner::Plain | Manner::DeliveryComplete);
            let never = !self.is_dead(message.from)
                && !message.lost
                && match message.state {
                    Asked::Started => reports,
                    Asked::Waiting => true,
                    Asked::Refused | Asked::Ended(_) => false,
                };
            if never {
                return Err(format!(
                    "message {number} never ends: {:?}; {}",
                    message.state,
                    self.usages()
                ));
            }
            let excused = doomed || message.lost || message.state == Asked::Refused;
            if !excused && reports && !reported {
                return Err(format!("message {number} was not reported"));
            }
        }
        for (number, operation) in self.one_sided.iter().enumerate() {
            let doomed = self.is_doomed(operation.from, operation.to);
            let reports = matches!(operation.manner, Manner::Plain | Manner::DeliveryComplete);
            let what = format!("one-sided operation {number} ({:?})", operation.kind);
            let never = !self.is_dead(operation.from)
                && !operation.orphaned
                && match operation.state {
                    Asked::Started => reports,
                    Asked::Waiting => true,
                    Asked::Refused | Asked::Ended(_) => false,
                };
            if never {
                return Err(format!(
                    "{what} of {} bytes from program {} to {} never ends: {:?}; {}",
                    operation.length,
                    operation.from,
                    operation.to,
                    operation.state,
                    self.usages()
                ));
            }
            if doomed || operation.orphaned || operation.state == Asked::Refused {
                continue;
            }
            if !self.is_written(number) {
                return Err(format!("{what} did not do its work"));
            }
            if operation.announces && !operation.announced {
                return Err(format!("{what} was not announced"));
            }
        }
        (0..self.programs.len())
            .filter(|at| !self.is_dead(*at))
            .try_for_each(|at| self.check_words(at))
    }

    /// What the programs keep, for the report of something that is stuck.
    fn usages(&self) -> String {
        let all = self.programs.iter().enumerate();
        all.filter_map(|(at, program)| {
            let usage = program.endpoint.as_ref()?.usage();
            Some(format!("program {at} keeps {usage:?}"))
        })
        .collect::<Vec<_>>()
        .join(", ")
    }

    /// The counter and the lock word of a program are what its peers' atomics made them.
    fn check_words(&self, at: ProgramId) -> Result<(), String> {
        let to_it = |kinds: &[OneSidedKind]| -> Vec<usize> {
            let all = self.one_sided.iter().enumerate();
            all.filter(|(_, one)| one.to == at && kinds.contains(&one.kind))
                .map(|(number, _)| number)
                .collect()
        };
        let fetched = |number: &usize| {
            let operation = &self.one_sided[*number];
            let bytes = self.bytes(operation.from, operation.local + 8, 8);
            u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
        };
        let adds = to_it(&[OneSidedKind::Add, OneSidedKind::FetchAdd]);
        let certain = adds.iter().filter(|number| {
            let operation = &self.one_sided[**number];
            operation.state != Asked::Refused && !self.is_doomed(operation.from, at)
        });
        let counter = self.word(at, 0);
        if !(certain.count() as u64..=adds.len() as u64).contains(&counter) {
            return Err(format!(
                "the counter of program {at} is {counter} after {} additions",
                adds.len()
            ));
        }
        let mut values: Vec<u64> = adds
            .iter()
            .filter(|number| {
                let operation = &self.one_sided[**number];
                operation.kind == OneSidedKind::FetchAdd && operation.state == Asked::Ended(Ok(()))
            })
            .map(fetched)
            .collect();
        values.sort_unstable();
        if values.windows(2).any(|pair| pair[0] == pair[1])
            || values.iter().any(|value| *value >= counter)
        {
            return Err(format!(
                "fetched from the counter of program {at}: {values:?}"
            ));
        }
        let owner = self.word(at, 8);
        for number in to_it(&[OneSidedKind::Claim]) {
            let operation = &self.one_sided[number];
            if operation.state != Asked::Ended(Ok(())) {
                continue;
            }
            let (old, won) = (fetched(&number), owner == number as u64 + 1);
            if (old == 0) != won || (!won && old != owner) {
                return Err(format!(
                    "operation {number} found {old} in the lock word of program {at}, which {owner} \
                     owns"
                ));
            }
        }
        Ok(())
    }

    /// The counters of a program say what became of its operations.
    fn check_counters(&self, at: ProgramId) -> Result<(), String> {
        let Some(endpoint) = &self.programs[at].endpoint else {
            return Ok(());
        };
        let counted = |states: &[Asked]| {
            let ended = |wanted: fn(&Asked) -> bool| {
                states.iter().filter(|state| wanted(state)).count() as u64
            };
            Counter {
                // Whose success is not reported stays started.
                successes: ended(|state| matches!(state, Asked::Started | Asked::Ended(Ok(())))),
                errors: ended(|state| matches!(state, Asked::Ended(Err(_)))),
            }
        };
        let messages = self.messages.iter().filter(|message| message.from == at);
        let one_sided = |reads: bool| -> Vec<Asked> {
            let all = self.one_sided.iter().filter(|one| one.from == at);
            all.filter(|one| one.kind.flags().contains(CompletionFlags::READ) == reads)
                .map(|one| one.state)
                .collect()
        };
        let to_it = self.one_sided.iter().filter(|one| one.to == at);
        let statistics = endpoint.statistics();
        for (what, found, expected) in [
            (
                "sends",
                statistics.sends,
                counted(&messages.map(|message| message.state).collect::<Vec<_>>()),
            ),
            ("receives", statistics.receives, self.programs[at].received),
            ("writes", statistics.writes, counted(&one_sided(false))),
            ("reads", statistics.reads, counted(&one_sided(true))),
            (
                "remote writes",
                statistics.remote_writes,
                Counter {
                    successes: to_it.filter(|one| one.announced).count() as u64,
                    errors: 0,
                },
            ),
        ] {
            if found != expected {
                return Err(format!(
                    "program {at} counted {what}: {found:?} instead of {expected:?}"
                ));
            }
        }
        Ok(())
    }

    /// Nothing is left of what is over.
    fn check_rest(&self) -> Result<(), String> {
        for (at, program) in self.programs.iter().enumerate() {
            let Some(endpoint) = &program.endpoint else {
                continue;
            };
            let usage = endpoint.usage();
            let expected = Usage {
                peers: usage.peers,
                ..Usage::default()
            };
            if usage != expected || endpoint.has_packets_in_flight() {
                return Err(format!("program {at} keeps {usage:?}"));
            }
            let nic = endpoint.nic().sim();
            let found = (nic.posted_receives(), nic.free_buffers());
            let nic = &program.settings.nic;
            let expected = (nic.recv_depth as usize, nic.send_depth as usize);
            if found != expected {
                return Err(format!(
                    "program {at} on host {}: receives and free buffers are {found:?} instead of \
                     {expected:?}",
                    program.slot
                ));
            }
        }
        Ok(())
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

fn flags(manner: Manner) -> OperationFlags {
    match manner {
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
