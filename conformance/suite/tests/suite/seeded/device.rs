//! A device between the engine and the simulator that makes a right engine wrong.
//!
//! Most errors of an implementation show in what it sends, some in what it takes an arrival for,
//! some in when it does something. So the device changes what passes between the engine and the
//! network, and the engine itself has no branch for a fault.

use std::cell::Cell;
use std::collections::{HashSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use efa_core::address::{Ahn, Gid, RawAddress};
use efa_core::nic::{
    Access, BufferId, Completion, CompletionKind, CompletionQueueId, Destination, Device, Domain,
    DomainConfig, Doorbell, Nic, NicAttributes, NicError, PolledNic, QueuePair, QueuePairConfig,
    RdmaRequest, Region, SendRequest, Status, UserSlice,
};
use efa_core::wire::PacketType;
use efa_play::application::engine::HostNic;
use efa_sim::{NicConfig, SimDomain, SimHost, SimQueuePair};

use super::fault::{Act, Change, Packets, RdmaChange};

/// Packet buffers of the device that the engine does not know of.
const SPARE_BUFFERS: usize = 64;

/// What the fault has done so far.
struct State {
    /// `None`: the engine is as it is.
    act: Option<Act>,
    /// How often it took effect.
    applied: Rc<Cell<usize>>,
    /// Packets that it asks for which were seen.
    seen: usize,
    /// Buffers of packets that the engine did not post.
    own: HashSet<BufferId>,
    /// Contexts of RDMA requests whose completions the engine has already.
    completed: Vec<u64>,
    /// Completions of what was not posted.
    finished: VecDeque<Completion>,
    /// Where the engine sent its last packet.
    peer: Option<Destination>,
    /// Packets that wait for their time, and what they wait for.
    held: Vec<(Vec<u8>, Option<PacketType>)>,
    /// RDMA reads that wait for the next packet that says that they are over.
    late: Vec<RdmaRequest>,
    /// An answer was given early: the next one of this type is kept back.
    spent: Option<PacketType>,
}

impl State {
    fn is_chosen(&mut self, packets: Packets, packet: &[u8]) -> bool {
        if PacketType::peek(packet) != Some(packets.kind) {
            return false;
        }
        let nth = self.seen;
        self.seen += 1;
        let is_chosen = packets.has(nth);
        if is_chosen {
            self.applied.set(self.applied.get() + 1);
        }
        is_chosen
    }

    /// What is sent instead of a packet; `None` if it goes as it is.
    fn sends(&mut self, packet: &[u8]) -> Option<Vec<Vec<u8>>> {
        let kind = PacketType::peek(packet);
        if self.spent.is_some() && self.spent == kind {
            self.spent = None;
            return Some(Vec::new());
        }
        let Some(Act::Sends(packets, change)) = self.act else {
            return None;
        };
        if !self.is_chosen(packets, packet) {
            return None;
        }
        Some(match change {
            Change::Lost => Vec::new(),
            Change::Twice => vec![packet.to_vec(); 2],
            Change::Again(until) => {
                self.held.push((packet.to_vec(), Some(until)));
                return None;
            }
            change => vec![change.of(packet)],
        })
    }

    /// What the engine hears instead of a packet; `None` if it hears the packet.
    fn hears(&mut self, packet: &[u8]) -> Option<Change> {
        let Some(Act::Hears(packets, change)) = self.act else {
            return None;
        };
        self.is_chosen(packets, packet).then_some(change)
    }

    /// The answer that the engine invents when it hears a packet.
    fn invents(&mut self, packet: &[u8]) {
        let Some(Act::Invents(packets, answer)) = self.act else {
            return;
        };
        if self.is_chosen(packets, packet) {
            let answer = answer(packet);
            self.spent = PacketType::peek(&answer);
            self.held.push((answer, None));
        }
    }

    /// What is done for an RDMA request of the engine.
    fn rdma(&mut self, reads: bool) -> Option<RdmaChange> {
        let change = match self.act {
            Some(Act::Reads(change)) if reads => change,
            Some(Act::Writes(change)) if !reads => change,
            _ => return None,
        };
        self.applied.set(self.applied.get() + 1);
        Some(change)
    }

    /// Packets whose time has come.
    fn due(&mut self, passed: Option<PacketType>) -> Vec<Vec<u8>> {
        let is_due =
            |held: &mut (Vec<u8>, Option<PacketType>)| held.1.is_none() || held.1 == passed;
        self.held
            .extract_if(.., is_due)
            .map(|(packet, _)| packet)
            .collect()
    }
}

/// The domain.
pub(crate) struct FaultyDomain {
    inner: SimDomain,
    state: State,
}

/// The queue pair.
pub(crate) struct FaultyQueuePair(SimQueuePair);

/// The device of an endpoint with a fault.
pub(crate) struct FaultyNic {
    queue_pair: FaultyQueuePair,
    domain: FaultyDomain,
}

impl FaultyNic {
    /// Opens it on a host, with the fault `act` if there is one. `applied` counts how often the
    /// fault takes effect.
    pub(crate) fn open(
        host: &SimHost,
        act: Option<Act>,
        applied: Rc<Cell<usize>>,
    ) -> Result<Self, NicError> {
        let config = NicConfig::default();
        let packet_buffers = config.packet_buffers + SPARE_BUFFERS;
        let config = QueuePairConfig::from(config);
        let mut inner = host.open_domain(&DomainConfig { packet_buffers })?;
        let queue = inner.create_completion_queue(config.completions())?;
        let queue_pair = FaultyQueuePair(inner.create_queue_pair(queue, &config)?);
        let state = State {
            act,
            applied,
            seen: 0,
            own: HashSet::new(),
            completed: Vec::new(),
            finished: VecDeque::new(),
            peer: None,
            held: Vec::new(),
            late: Vec::new(),
            spent: None,
        };
        let domain = FaultyDomain { inner, state };
        Ok(FaultyNic { queue_pair, domain })
    }

    /// Sends what has waited for a packet of this type, or for nothing.
    fn send_due(&mut self, passed: Option<PacketType>) {
        if self.domain.state.peer.is_none() {
            return;
        }
        for packet in self.domain.state.due(passed) {
            self.queue_pair.send(&mut self.domain, &packet);
        }
    }

    /// What the engine gets for a packet that arrived.
    fn hear(&mut self, completion: Completion, heard: &mut Vec<Completion>) {
        let CompletionKind::Recv {
            buffer,
            length,
            source,
            immediate,
        } = completion.kind
        else {
            return heard.push(completion);
        };
        let domain = &mut self.domain;
        let packet = domain.inner.buffer(buffer)[..length].to_vec();
        let kind = PacketType::peek(&packet);
        domain.state.invents(&packet);
        let with = |buffer, length| Completion {
            kind: CompletionKind::Recv {
                buffer,
                length,
                source,
                immediate,
            },
            ..completion
        };
        match domain.state.hears(&packet) {
            None => heard.push(completion),
            Some(Change::Lost) => domain.inner.release_buffer(buffer),
            Some(Change::Twice | Change::Again(_)) => {
                heard.push(completion);
                let copy = domain.put(&packet);
                heard.push(with(copy, length));
            }
            Some(change) => {
                let changed = change.of(&packet);
                domain.inner.buffer_mut(buffer)[..changed.len()].copy_from_slice(&changed);
                heard.push(with(buffer, changed.len()));
            }
        }
        self.send_due(kind);
    }
}

impl FaultyDomain {
    /// A buffer with these bytes.
    fn put(&mut self, packet: &[u8]) -> BufferId {
        let buffer = self
            .inner
            .acquire_buffer()
            .expect("there are spare buffers");
        self.inner.buffer_mut(buffer)[..packet.len()].copy_from_slice(packet);
        buffer
    }

    /// The packet that a request sends.
    fn packet(&mut self, request: &SendRequest) -> Result<Vec<u8>, NicError> {
        let mut packet = self.inner.buffer(request.buffer)[..request.header_length].to_vec();
        if let Some((slice, _)) = request.payload {
            let header = packet.len();
            packet.resize(header + slice.length, 0);
            self.inner.read_user(slice.address, &mut packet[header..])?;
        }
        Ok(packet)
    }

    fn finish(&mut self, queue_pair: &SimQueuePair, context: u64, kind: CompletionKind) {
        self.state.finished.push_back(Completion {
            queue_pair: queue_pair.address().qpn,
            context,
            status: Status::Ok,
            kind,
        });
    }
}

impl FaultyQueuePair {
    /// Sends a packet that the engine did not post.
    fn send(&mut self, domain: &mut FaultyDomain, packet: &[u8]) {
        let destination = domain.state.peer.expect("the engine has sent something");
        let buffer = domain.put(packet);
        let request = SendRequest {
            destination,
            buffer,
            header_length: packet.len(),
            payload: None,
            immediate: None,
            context: 0,
        };
        domain.state.own.insert(buffer);
        self.0
            .post_send(&mut domain.inner, &request, Doorbell::Ring)
            .expect("the send queue has room");
    }

    fn post_rdma(
        &mut self,
        domain: &mut FaultyDomain,
        request: &RdmaRequest,
        doorbell: Doorbell,
        reads: bool,
    ) -> Result<(), NicError> {
        let mut request = *request;
        let kind = match reads {
            true => CompletionKind::RdmaRead,
            false => CompletionKind::RdmaWrite,
        };
        match domain.state.rdma(reads) {
            None => {}
            Some(RdmaChange::Shorter(by)) => request.local.length -= by,
            Some(RdmaChange::Elsewhere(by)) => {
                request.remote_address = request.remote_address.wrapping_add_signed(by)
            }
            Some(RdmaChange::Skipped) => {
                domain.finish(&self.0, request.context, kind);
                return Ok(());
            }
            Some(RdmaChange::Late) => {
                domain.finish(&self.0, request.context, kind);
                domain.state.late.push(request);
                return Ok(());
            }
            Some(RdmaChange::Immediate(change)) => {
                request.immediate = request.immediate.map(|data| data ^ change);
            }
        }
        self.post(domain, &request, doorbell, reads)
    }

    fn post(
        &mut self,
        domain: &mut FaultyDomain,
        request: &RdmaRequest,
        doorbell: Doorbell,
        reads: bool,
    ) -> Result<(), NicError> {
        match reads {
            true => self.0.post_read(&mut domain.inner, request, doorbell),
            false => self.0.post_write(&mut domain.inner, request, doorbell),
        }
    }
}

impl QueuePair for FaultyQueuePair {
    type Domain = FaultyDomain;

    fn attributes(&self) -> &NicAttributes {
        self.0.attributes()
    }

    fn address(&self) -> RawAddress {
        self.0.address()
    }

    fn completion_queue(&self) -> CompletionQueueId {
        self.0.completion_queue()
    }

    fn post_send(
        &mut self,
        domain: &mut FaultyDomain,
        request: &SendRequest,
        doorbell: Doorbell,
    ) -> Result<(), NicError> {
        domain.state.peer = Some(request.destination);
        let packet = domain.packet(request)?;
        let instead = domain.state.sends(&packet);
        match instead.as_deref() {
            None => self.0.post_send(&mut domain.inner, request, doorbell)?,
            Some([]) => {
                let buffer = request.buffer;
                domain.finish(&self.0, request.context, CompletionKind::Send { buffer });
            }
            Some([changed, others @ ..]) => {
                let changed_buffer = domain.inner.buffer_mut(request.buffer);
                changed_buffer[..changed.len()].copy_from_slice(changed);
                let request = SendRequest {
                    header_length: changed.len(),
                    payload: None,
                    ..*request
                };
                self.0.post_send(&mut domain.inner, &request, doorbell)?;
                for packet in others {
                    self.send(domain, packet);
                }
            }
        }
        let kind = PacketType::peek(&packet);
        for packet in domain.state.due(kind) {
            self.send(domain, &packet);
        }
        if kind.is_some_and(|kind| matches!(kind, PacketType::Eor | PacketType::Receipt)) {
            for read in std::mem::take(&mut domain.state.late) {
                domain.state.completed.push(read.context);
                self.0.post_read(&mut domain.inner, &read, Doorbell::Ring)?;
            }
        }
        Ok(())
    }

    fn post_read(
        &mut self,
        domain: &mut FaultyDomain,
        request: &RdmaRequest,
        doorbell: Doorbell,
    ) -> Result<(), NicError> {
        self.post_rdma(domain, request, doorbell, true)
    }

    fn post_write(
        &mut self,
        domain: &mut FaultyDomain,
        request: &RdmaRequest,
        doorbell: Doorbell,
    ) -> Result<(), NicError> {
        self.post_rdma(domain, request, doorbell, false)
    }

    fn flush(&mut self, domain: &mut FaultyDomain) {
        self.0.flush(&mut domain.inner);
    }

    fn post_recv(&mut self, domain: &mut FaultyDomain, buffer: BufferId) -> Result<(), NicError> {
        self.0.post_recv(&mut domain.inner, buffer)
    }

    fn close(self, domain: &mut FaultyDomain) {
        self.0.close(&mut domain.inner);
    }
}

impl Deref for FaultyNic {
    type Target = FaultyDomain;

    fn deref(&self) -> &FaultyDomain {
        &self.domain
    }
}

impl DerefMut for FaultyNic {
    fn deref_mut(&mut self) -> &mut FaultyDomain {
        &mut self.domain
    }
}

impl Nic for FaultyNic {
    type Domain = FaultyDomain;

    fn queue_pair(&self) -> &FaultyQueuePair {
        &self.queue_pair
    }

    fn parts(&mut self) -> (&mut FaultyDomain, &mut FaultyQueuePair) {
        (&mut self.domain, &mut self.queue_pair)
    }
}

impl PolledNic for FaultyNic {
    fn poll(&mut self, completions: &mut Vec<Completion>, limit: usize) -> usize {
        let before = completions.len();
        let mut arrived = Vec::new();
        let queue = self.queue_pair.completion_queue();
        self.domain.inner.poll(queue, &mut arrived, limit);
        completions.extend(self.domain.state.finished.drain(..));
        self.send_due(None);
        for completion in arrived {
            let state = &mut self.domain.state;
            match completion.kind {
                CompletionKind::Send { buffer } if state.own.remove(&buffer) => {
                    self.domain.inner.release_buffer(buffer);
                }
                CompletionKind::RdmaRead | CompletionKind::RdmaWrite => {
                    let context = completion.context;
                    let known = state.completed.iter().position(|known| *known == context);
                    match known {
                        Some(at) => drop(state.completed.swap_remove(at)),
                        None => completions.push(completion),
                    }
                }
                _ => self.hear(completion, completions),
            }
        }
        completions.len() - before
    }
}

impl HostNic for FaultyNic {
    fn allocate_user(&mut self, length: usize) -> Result<UserSlice, NicError> {
        let host = self.domain.inner.host();
        host.allocate(length)
            .map_err(|_| NicError::Exhausted("memory of the simulated host"))
    }

    fn fill_user(&mut self, address: u64, bytes: &[u8]) -> Result<(), NicError> {
        self.domain.inner.write_user(address, bytes)
    }

    fn dump_user(&mut self, source: UserSlice) -> Result<Vec<u8>, NicError> {
        let mut bytes = vec![0; source.length];
        self.domain.inner.read_user(source.address, &mut bytes)?;
        Ok(bytes)
    }
}

impl Domain for FaultyDomain {
    type QueuePair = FaultyQueuePair;
    type OpenError = NicError;

    fn attributes(&self) -> &NicAttributes {
        self.inner.attributes()
    }

    fn create_completion_queue(&mut self, entries: usize) -> Result<CompletionQueueId, NicError> {
        self.inner.create_completion_queue(entries)
    }

    fn destroy_completion_queue(&mut self, queue: CompletionQueueId) -> Result<(), NicError> {
        self.inner.destroy_completion_queue(queue)
    }

    fn create_queue_pair(
        &mut self,
        queue: CompletionQueueId,
        config: &QueuePairConfig,
    ) -> Result<FaultyQueuePair, NicError> {
        let queue_pair = self.inner.create_queue_pair(queue, config)?;
        Ok(FaultyQueuePair(queue_pair))
    }

    fn poll(
        &mut self,
        queue: CompletionQueueId,
        completions: &mut Vec<Completion>,
        limit: usize,
    ) -> usize {
        self.inner.poll(queue, completions, limit)
    }

    fn register(&mut self, memory: UserSlice, access: Access) -> Result<Region, NicError> {
        self.inner.register(memory, access)
    }

    fn deregister(&mut self, region: Region) -> Result<(), NicError> {
        self.inner.deregister(region)
    }

    fn create_address_handle(&mut self, gid: Gid) -> Result<Ahn, NicError> {
        self.inner.create_address_handle(gid)
    }

    fn destroy_address_handle(&mut self, ahn: Ahn) -> Result<(), NicError> {
        self.inner.destroy_address_handle(ahn)
    }

    fn acquire_buffer(&mut self) -> Option<BufferId> {
        self.inner.acquire_buffer()
    }

    fn release_buffer(&mut self, buffer: BufferId) {
        self.inner.release_buffer(buffer);
    }

    fn buffer(&self, buffer: BufferId) -> &[u8] {
        self.inner.buffer(buffer)
    }

    fn buffer_mut(&mut self, buffer: BufferId) -> &mut [u8] {
        self.inner.buffer_mut(buffer)
    }

    fn copy_from_user(
        &mut self,
        buffer: BufferId,
        offset: usize,
        source: UserSlice,
    ) -> Result<(), NicError> {
        self.inner.copy_from_user(buffer, offset, source)
    }

    fn copy_to_user(
        &mut self,
        buffer: BufferId,
        offset: usize,
        length: usize,
        address: u64,
    ) -> Result<(), NicError> {
        self.inner.copy_to_user(buffer, offset, length, address)
    }

    fn write_user(&mut self, address: u64, source: &[u8]) -> Result<(), NicError> {
        self.inner.write_user(address, source)
    }

    fn read_user(&mut self, address: u64, target: &mut [u8]) -> Result<(), NicError> {
        self.inner.read_user(address, target)
    }

    fn exchange_user(
        &mut self,
        address: u64,
        expected: &mut [u8],
        new: &[u8],
    ) -> Result<bool, NicError> {
        self.inner.exchange_user(address, expected, new)
    }
}
