//! Two endpoints in one domain, on any device: both use the shared objects, and neither depends on
//! the other.

use efa_core::address::RawAddress;
use efa_core::endpoint::{
    CompletionEntry, Domain, Endpoint, EndpointConfig, EndpointError, EndpointId, Errno,
    ErrorEntry, Instant, IoVec, OperationFlags, PeerId, RecvArgs, SendArgs, SourceFilter,
};
use efa_core::nic::{
    self, Access, CompletionQueueId, Device, DomainConfig, LentNic, Nic, QueuePairConfig, Region,
    UserSlice,
};

/// A device for these tests.
pub trait Machine {
    /// The device's domains.
    type Domain: nic::Domain;

    /// Opens a domain of the device.
    fn open_domain(&self, config: &DomainConfig) -> Self::Domain;

    /// Allocates memory for transfers.
    fn allocate(&self, domain: &mut Self::Domain, length: usize) -> UserSlice;

    /// The number of times that the doorbell of a queue pair was rung.
    fn doorbells(queue_pair: &<Self::Domain as nic::Domain>::QueuePair) -> u64;

    /// The number of packet buffers in the pool of a domain.
    fn free_buffers(domain: &Self::Domain) -> usize;

    /// Lets time pass, and returns the time.
    fn pass_time(&self) -> Instant;
}

use crate::pattern;

const SENDS: usize = 32;
const RECEIVES: usize = 16;
const BUFFERS: usize = 2 * (SENDS + RECEIVES);
const MEMORY: usize = 1 << 20;
/// The limit of rounds of a wait, far more than any needs.
const ROUNDS: usize = 20_000_000;

fn queue_pair() -> QueuePairConfig {
    QueuePairConfig {
        send_queue_depth: SENDS,
        recv_queue_depth: RECEIVES,
        qkey: None,
        rnr_retry: 7,
        unsolicited_write_recv: false,
        service_level: 0,
    }
}

/// A program with a domain, memory that was registered before the first endpoint existed, and one
/// completion queue for all endpoints.
struct Program<M: Machine> {
    domain: Domain<M::Domain>,
    queue: CompletionQueueId,
    memory: UserSlice,
    region: Region,
    completions: Vec<(EndpointId, Result<CompletionEntry, ErrorEntry>)>,
    ids: Vec<EndpointId>,
}

impl<M: Machine> Program<M> {
    fn start(machine: &M) -> Self {
        let mut nic = machine.open_domain(&DomainConfig {
            packet_buffers: BUFFERS,
        });
        let memory = machine.allocate(&mut nic, MEMORY);
        let mut domain = Domain::new(nic, 1);
        let region = domain.register(memory, Access::all()).unwrap();
        let entries = 2 * queue_pair().completions();
        let queue = nic::Domain::create_completion_queue(domain.nic_mut(), entries).unwrap();
        Program {
            domain,
            queue,
            memory,
            region,
            completions: Vec::new(),
            ids: Vec::new(),
        }
    }

    fn open(&mut self) -> EndpointId {
        let (nic, queue) = (self.domain.nic_mut(), self.queue);
        let queue_pair = nic::Domain::create_queue_pair(nic, queue, &queue_pair()).unwrap();
        let config = EndpointConfig {
            recv_buffers: RECEIVES,
            ..EndpointConfig::default()
        };
        let id = self.domain.open_endpoint(queue_pair, config).unwrap();
        self.ids.push(id);
        id
    }

    fn endpoint(&mut self, id: EndpointId) -> &mut Endpoint<LentNic<M::Domain>> {
        self.domain.endpoint(id).unwrap()
    }

    fn address(&mut self, id: EndpointId) -> RawAddress {
        self.endpoint(id).address()
    }

    fn doorbells(&mut self, id: EndpointId) -> u64 {
        M::doorbells(self.endpoint(id).nic().queue_pair())
    }

    fn piece(&self, offset: u64, length: usize) -> IoVec {
        IoVec {
            memory: UserSlice::new(self.memory.address + offset, length),
            region: Some(self.region),
        }
    }

    fn fill(&mut self, offset: u64, bytes: &[u8]) {
        let address = self.memory.address + offset;
        nic::Domain::write_user(self.domain.nic_mut(), address, bytes).unwrap();
    }

    fn bytes(&mut self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let address = self.memory.address + offset;
        nic::Domain::read_user(self.domain.nic_mut(), address, &mut bytes).unwrap();
        bytes
    }

    /// Sends memory; the context is `offset`.
    fn send(
        &mut self,
        from: EndpointId,
        peer: PeerId,
        (offset, length): (u64, usize),
        flags: OperationFlags,
    ) -> Result<(), EndpointError> {
        let data = [self.piece(offset, length)];
        self.endpoint(from).send(SendArgs {
            flags: flags | OperationFlags::COMPLETION,
            ..SendArgs::new(peer, &data, offset)
        })
    }

    /// Posts a receive; the context is `offset`.
    fn recv(&mut self, at: EndpointId, source: SourceFilter, (offset, length): (u64, usize)) {
        let buffer = [self.piece(offset, length)];
        self.endpoint(at)
            .recv(RecvArgs::new(source, &buffer, offset))
            .unwrap();
    }

    fn progress(&mut self, now: Instant) {
        self.domain.progress(now);
        for id in self.ids.clone() {
            while let Some(entry) = self
                .domain
                .endpoint(id)
                .and_then(|endpoint| endpoint.poll_completion())
            {
                self.completions.push((id, entry));
            }
        }
    }

    /// Takes the contexts of an endpoint's completions, sorted. All must be successful.
    fn contexts(&mut self, at: EndpointId) -> Vec<u64> {
        let mut contexts = Vec::new();
        self.completions.retain(|(id, entry)| {
            if *id == at {
                contexts.push(entry.unwrap().context);
            }
            *id != at
        });
        contexts.sort_unstable();
        contexts
    }
}

fn run<M: Machine>(
    machine: &M,
    programs: &mut [&mut Program<M>],
    mut is_over: impl FnMut(&mut [&mut Program<M>]) -> bool,
) {
    for _ in 0..ROUNDS {
        let now = machine.pass_time();
        for program in programs.iter_mut() {
            program.progress(now);
        }
        if is_over(programs) {
            return;
        }
    }
    panic!("what was waited for does not happen");
}

/// Runs both programs until they have this many completions.
fn complete<M: Machine>(machine: &M, programs: &mut [&mut Program<M>], counts: &[usize]) {
    run(machine, programs, |programs| {
        let mut found = programs.iter().map(|program| program.completions.len());
        counts.iter().all(|count| found.next() >= Some(*count))
    });
}

/// Runs both programs until nothing is in flight.
fn quiet<M: Machine>(machine: &M, programs: &mut [&mut Program<M>]) {
    run(machine, programs, |programs| {
        programs.iter_mut().all(|program| {
            program.ids.clone().into_iter().all(|id| {
                let endpoint = program.domain.endpoint(id);
                endpoint.is_none_or(|endpoint| !endpoint.has_packets_in_flight())
            })
        })
    });
}

/// Two endpoints in one domain and one in another, with each other in their address vectors.
struct ThreeEndpoints<M: Machine> {
    pair: Program<M>,
    a: EndpointId,
    b: EndpointId,
    other: Program<M>,
    c: EndpointId,
    /// The third endpoint in the pair's address vector; the next two are the pair in the third's.
    to_c: PeerId,
    to_a: PeerId,
    to_b: PeerId,
}

impl<M: Machine> ThreeEndpoints<M> {
    /// Opens the pair after the third endpoint was inserted into its address vector, and exchanges
    /// messages in all directions.
    fn start(machine: &M, remote: &M) -> Self {
        let mut other = Program::start(remote);
        let c = other.open();
        let mut pair = Program::start(machine);
        let address = other.address(c);
        let to_c = pair.domain.insert_address(address).unwrap();
        let (a, b) = (pair.open(), pair.open());
        let (address_a, address_b) = (pair.address(a), pair.address(b));
        let to_a = other.domain.insert_address(address_a).unwrap();
        let to_b = other.domain.insert_address(address_b).unwrap();
        let mut trio = ThreeEndpoints {
            pair,
            a,
            b,
            other,
            c,
            to_c,
            to_a,
            to_b,
        };
        for (id, back) in [(a, to_a), (b, to_b)] {
            trio.exchange(machine, id, back, 8);
        }
        trio
    }

    /// Sends a message from an endpoint of the pair to the third, and one back.
    fn exchange(&mut self, machine: &M, id: EndpointId, back: PeerId, length: usize) {
        let (out, home) = (pattern(length, 1), pattern(length, 2));
        self.pair.fill(0, &out);
        self.other.fill(0, &home);
        let half = (MEMORY / 2) as u64;
        self.other
            .recv(self.c, SourceFilter::Peer(back), (half, length));
        let source = SourceFilter::Peer(self.to_c);
        self.pair.recv(id, source, (half, length));
        let flags = OperationFlags::empty();
        self.pair.send(id, self.to_c, (0, length), flags).unwrap();
        self.other.send(self.c, back, (0, length), flags).unwrap();
        let ThreeEndpoints { pair, other, .. } = self;
        complete(machine, &mut [pair, other], &[2, 2]);
        assert_eq!(self.pair.contexts(id), [0, half]);
        assert_eq!(self.other.contexts(self.c), [0, half]);
        assert_eq!(self.pair.completions, []);
        assert_eq!(self.other.bytes(half, length), out);
        assert_eq!(self.pair.bytes(half, length), home);
    }
}

/// Memory that was registered before either endpoint existed, one completion queue and one address
/// vector serve both, with every subprotocol of messages.
pub fn everything_is_shared<M: Machine>(machine: &M, remote: &M) {
    let mut trio = ThreeEndpoints::start(machine, remote);
    for length in [8, 5000, 20_000, 300_000] {
        trio.exchange(machine, trio.a, trio.to_a, length);
        trio.exchange(machine, trio.b, trio.to_b, length);
    }
    // The address was inserted once, and both identify the sender by it.
    let address = trio.other.address(trio.c);
    for id in [trio.a, trio.b] {
        assert_eq!(
            trio.pair.endpoint(id).find_address(&address),
            Some(trio.to_c)
        );
    }
    // It is removed once: receives from it end at both endpoints, and neither can send to it.
    let source = SourceFilter::Peer(trio.to_c);
    trio.pair.recv(trio.a, source, (100, 8));
    trio.pair.recv(trio.b, source, (200, 8));
    trio.pair.domain.remove_address(trio.to_c).unwrap();
    for (id, context) in [(trio.a, 100), (trio.b, 200)] {
        let entry = trio.pair.endpoint(id).poll_completion().unwrap();
        let error = entry.unwrap_err();
        assert_eq!(
            (error.context, error.failure.errno),
            (context, Errno::ECANCELED)
        );
        let flags = OperationFlags::empty();
        let sent = trio.pair.send(id, trio.to_c, (0, 8), flags);
        assert_eq!(sent, Err(EndpointError::UnknownPeer(trio.to_c)));
    }
    quiet(machine, &mut [&mut trio.pair, &mut trio.other]);
    trio.pair.domain.deregister(trio.pair.region).unwrap();
    trio.pair.domain.close();
    trio.other.domain.close();
}

/// One endpoint is closed while it has messages in flight, and the other continues. All buffers
/// return to the pool, and another endpoint replaces the closed one.
pub fn one_is_closed_while_the_other_works<M: Machine>(machine: &M, remote: &M) {
    let mut trio = ThreeEndpoints::start(machine, remote);
    // Both the unexpected messages and the sends of the closed endpoint hold buffers.
    let flags = OperationFlags::empty();
    for _ in 0..3 {
        trio.other.send(trio.c, trio.to_a, (0, 64), flags).unwrap();
    }
    complete(machine, &mut [&mut trio.pair, &mut trio.other], &[0, 3]);
    trio.other.completions.clear();
    for _ in 0..3 {
        trio.pair
            .send(trio.a, trio.to_c, (0, 300_000), flags)
            .unwrap();
        trio.pair
            .send(trio.b, trio.to_c, (0, 300_000), flags)
            .unwrap();
    }
    assert!(trio.pair.domain.close_endpoint(trio.a));
    assert!(!trio.pair.domain.close_endpoint(trio.a));
    assert!(trio.pair.domain.endpoint(trio.a).is_none());
    // The other endpoint's messages arrive; no operation of the closed one is reported.
    let half = (MEMORY / 2) as u64;
    for _ in 0..3 {
        let source = SourceFilter::Peer(trio.to_b);
        trio.other.recv(trio.c, source, (half, 300_000));
    }
    complete(machine, &mut [&mut trio.pair, &mut trio.other], &[3, 3]);
    assert_eq!(trio.pair.contexts(trio.b), [0; 3]);
    assert_eq!(trio.pair.completions, []);
    trio.other.completions.clear();
    // Another endpoint in its place.
    let next = trio.pair.open();
    let address = trio.pair.address(next);
    let back = trio.other.domain.insert_address(address).unwrap();
    trio.exchange(machine, next, back, 5000);
    trio.exchange(machine, trio.b, trio.to_b, 5000);
    trio.pair.domain.close_endpoint(next);
    trio.pair.domain.close_endpoint(trio.b);
    assert_eq!(M::free_buffers(trio.pair.domain.nic_mut()), BUFFERS);
    trio.other.domain.close();
    trio.pair.domain.close();
}

/// Operations with `FI_MORE` ring no doorbell; the next one without it rings one for all, and
/// `progress` rings for an unfinished batch.
pub fn a_batch_rings_once<M: Machine>(machine: &M, remote: &M) {
    const BATCH: usize = 8;
    let mut trio = ThreeEndpoints::start(machine, remote);
    quiet(machine, &mut [&mut trio.pair, &mut trio.other]);
    let half = (MEMORY / 2) as u64;
    for is_ended in [true, false] {
        for _ in 0..2 * BATCH {
            trio.other.recv(trio.c, SourceFilter::Any, (half, 64));
        }
        let before = [trio.a, trio.b].map(|id| trio.pair.doorbells(id));
        for number in 0..BATCH {
            // The two batches are interleaved, but each endpoint has its own.
            for id in [trio.a, trio.b] {
                let is_last = is_ended && number == BATCH - 1;
                let flags = match is_last {
                    true => OperationFlags::empty(),
                    false => OperationFlags::MORE,
                };
                let place = (64 * number as u64, 64);
                trio.pair.send(id, trio.to_c, place, flags).unwrap();
                let expected = u64::from(is_last);
                let index = usize::from(id == trio.b);
                assert_eq!(trio.pair.doorbells(id), before[index] + expected);
            }
        }
        let now = machine.pass_time();
        trio.pair.progress(now);
        let after = [trio.a, trio.b].map(|id| trio.pair.doorbells(id));
        assert_eq!(after, before.map(|count| count + 1), "ended: {is_ended}");
        let done = 2 * BATCH;
        complete(
            machine,
            &mut [&mut trio.pair, &mut trio.other],
            &[done, done],
        );
        trio.pair.completions.clear();
        trio.other.completions.clear();
    }
    // An operation that posts nothing also ends a batch.
    let before = trio.pair.doorbells(trio.a);
    let flags = OperationFlags::MORE;
    trio.pair.send(trio.a, trio.to_c, (0, 64), flags).unwrap();
    assert_eq!(trio.pair.doorbells(trio.a), before);
    let gone = PeerId::from_bits(u64::MAX);
    let refused = trio
        .pair
        .send(trio.a, gone, (0, 64), OperationFlags::empty());
    assert_eq!(refused, Err(EndpointError::UnknownPeer(gone)));
    assert_eq!(trio.pair.doorbells(trio.a), before + 1);
    trio.pair.domain.close();
    trio.other.domain.close();
}

/// Opens a domain for a [`Machine`].
pub fn open_domain<D: Device>(device: &D, config: &DomainConfig) -> D::Domain {
    match device.open_domain(config) {
        Ok(domain) => domain,
        Err(error) => panic!("no domain: {error}"),
    }
}
