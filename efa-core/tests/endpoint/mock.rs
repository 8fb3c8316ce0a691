//! A small network of mock devices: every packet that an endpoint posts can be looked at, delivered
//! in any order, refused for want of a receive buffer, or made up by the test.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use efa_core::address::{Ahn, Gid, Qkey, Qpn, RawAddress};
use efa_core::nic::{
    Access, BufferId, Completion, CompletionKind, CompletionQueueId, DeviceCaps, Domain, Doorbell,
    LocalKey, NicAttributes, NicError, OwnNic, QueuePair, QueuePairConfig, RdmaRequest, Region,
    RemoteKey, SendRequest, Source, Status, UserSlice,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Where user memory starts in every host's address space.
pub(crate) const MEMORY: u64 = 0x1_0000;

/// What a mock device is like.
#[derive(Clone)]
pub(crate) struct Traits {
    pub(crate) mtu: usize,
    pub(crate) send_depth: usize,
    pub(crate) recv_depth: usize,
    pub(crate) memory: usize,
    pub(crate) caps: DeviceCaps,
    pub(crate) part_id: u32,
    /// Registrations that may exist at a time.
    pub(crate) max_regions: usize,
}

impl Default for Traits {
    fn default() -> Self {
        Traits {
            mtu: 1024,
            send_depth: 64,
            recv_depth: 64,
            memory: 1 << 20,
            caps: DeviceCaps::empty(),
            part_id: 0xEFA0,
            max_regions: usize::MAX,
        }
    }
}

/// A packet or RDMA request on its way.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) from: usize,
    pub(crate) to: Option<usize>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) immediate: Option<u32>,
    /// Queue pair number and Q-key, as they were posted.
    pub(crate) destination: (u16, u32),
    context: u64,
    kind: FlightKind,
}

#[derive(Clone, Copy, Debug)]
enum FlightKind {
    Send(BufferId),
    Read(RdmaRequest),
    Write(RdmaRequest),
}

#[expect(
    clippy::type_complexity,
    reason = "a queue of pairs, used in one place"
)]
struct DeviceState {
    address: RawAddress,
    /// A closed device answers as real ones do: no such queue pair.
    open: bool,
    book: BTreeMap<Ahn, (Gid, usize)>,
    receives: VecDeque<(BufferId, Vec<u8>)>,
    /// With the storage that comes back with a packet.
    completions: VecDeque<(Completion, Option<(BufferId, Vec<u8>)>)>,
    memory: Vec<u8>,
    regions: BTreeMap<u32, (UserSlice, Access)>,
}

struct State {
    devices: Vec<DeviceState>,
    flights: Vec<Flight>,
    rng: SmallRng,
    spare: Vec<Vec<u8>>,
    /// The types of all packets that were posted, and 0 for an RDMA read, 1 for an RDMA write.
    seen: BTreeSet<u8>,
}

/// The network.
#[derive(Clone)]
pub(crate) struct Network(Rc<RefCell<State>>);

impl Network {
    pub(crate) fn new(seed: u64) -> Self {
        Network(Rc::new(RefCell::new(State {
            devices: Vec::new(),
            flights: Vec::new(),
            rng: SmallRng::seed_from_u64(seed),
            spare: Vec::new(),
            seen: BTreeSet::new(),
        })))
    }

    /// Opens a device on host `host` (which makes the GID) with this queue pair number and Q-key.
    pub(crate) fn open(&self, host: u8, qpn: u16, qkey: u32, traits: Traits) -> MockNic {
        let mut gid = [0; 16];
        gid[0] = 0xfe;
        gid[15] = host;
        let address = RawAddress {
            gid: Gid(gid),
            qpn: Qpn(qpn),
            qkey: Qkey(qkey),
        };
        let mut state = self.0.borrow_mut();
        state.devices.push(DeviceState {
            address,
            open: true,
            book: BTreeMap::new(),
            receives: VecDeque::new(),
            completions: VecDeque::new(),
            memory: vec![0; traits.memory],
            regions: BTreeMap::new(),
        });
        let buffers = traits.send_depth + traits.recv_depth;
        let domain = MockDomain {
            index: state.devices.len() - 1,
            network: self.clone(),
            attributes: NicAttributes {
                caps: traits.caps,
                mtu: traits.mtu,
                max_rdma_size: 1 << 16,
                send_queue_depth: traits.send_depth,
                recv_queue_depth: traits.recv_depth,
                inline_size: 32,
                vendor_part_id: traits.part_id,
                host_id: 0,
            },
            address,
            buffers: (0..buffers).map(|_| vec![0; traits.mtu]).collect(),
            free: (0..buffers as u32).map(BufferId).collect(),
            sends: 0,
            max_regions: traits.max_regions,
            next_key: 1,
        };
        let queue_pair = MockQueuePair {
            attributes: domain.attributes.clone(),
            address,
        };
        OwnNic::new(domain, queue_pair)
    }

    /// The types of all packets that were posted, and 0 for an RDMA read, 1 for an RDMA write.
    pub(crate) fn seen(&self) -> BTreeSet<u8> {
        self.0.borrow().seen.clone()
    }

    /// What is on its way, oldest first.
    pub(crate) fn in_flight(&self) -> Vec<Flight> {
        self.0.borrow().flights.clone()
    }

    /// The device that something in flight goes to.
    pub(crate) fn destination(&self, index: usize) -> Option<usize> {
        self.0.borrow().flights[index].to
    }

    pub(crate) fn flights(&self) -> usize {
        self.0.borrow().flights.len()
    }

    /// Takes a packet out of the network and completes its send, without delivering it: the test
    /// plays the receiver.
    pub(crate) fn swallow(&self, index: usize) -> Vec<u8> {
        let mut state = self.0.borrow_mut();
        let flight = state.flights.remove(index);
        state.complete(&flight, Status::Ok);
        flight.bytes
    }

    /// Ends what is on its way with a status.
    pub(crate) fn fail(&self, index: usize, status: Status) {
        let mut state = self.0.borrow_mut();
        let flight = state.flights.remove(index);
        state.complete(&flight, status);
    }

    /// Delivers a packet, and completes it twice.
    pub(crate) fn repeat_completion(&self, index: usize) {
        let mut state = self.0.borrow_mut();
        let flight = state.flights.remove(index);
        state.complete(&flight, Status::Ok);
        state.complete(&flight, Status::Ok);
    }

    /// Delivers one thing that is on its way. Returns false if the receiver was not ready.
    pub(crate) fn deliver(&self, index: usize) -> bool {
        let mut state = self.0.borrow_mut();
        let flight = state.flights.remove(index);
        let status = state.carry_out(&flight);
        state.complete(&flight, status);
        status == Status::Ok
    }

    /// Delivers a random one.
    pub(crate) fn deliver_random(&self) {
        let index = {
            let mut state = self.0.borrow_mut();
            let count = state.flights.len();
            if count == 0 {
                return;
            }
            state.rng.random_range(0..count)
        };
        self.deliver(index);
    }

    /// Delivers everything, oldest first, until nothing is on its way.
    pub(crate) fn deliver_all(&self) {
        while self.flights() > 0 {
            self.deliver(0);
        }
    }

    /// Makes up a packet from `from` for device `to`. `known` says whether the receiver's device
    /// knows the sender's AHN; it must be in its address book then.
    pub(crate) fn inject(&self, to: usize, source: Source, bytes: &[u8]) -> bool {
        self.0.borrow_mut().arrive(to, source, bytes, None)
    }

    /// The number of a device's GID in another's address book.
    pub(crate) fn ahn(&self, device: usize, gid: Gid) -> Option<Ahn> {
        self.0.borrow().ahn(device, gid)
    }

    pub(crate) fn memory(&self, device: usize, address: u64, length: usize) -> Vec<u8> {
        let state = self.0.borrow();
        let start = (address - MEMORY) as usize;
        state.devices[device].memory[start..start + length].to_vec()
    }

    pub(crate) fn fill(&self, device: usize, address: u64, bytes: &[u8]) {
        let mut state = self.0.borrow_mut();
        let start = (address - MEMORY) as usize;
        state.devices[device].memory[start..start + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn receives_posted(&self, device: usize) -> usize {
        self.0.borrow().devices[device].receives.len()
    }

    pub(crate) fn regions(&self, device: usize) -> usize {
        self.0.borrow().devices[device].regions.len()
    }
}

impl State {
    fn ahn(&self, device: usize, gid: Gid) -> Option<Ahn> {
        self.devices[device]
            .book
            .iter()
            .find(|(_, (other, _))| *other == gid)
            .map(|(ahn, _)| *ahn)
    }

    fn carry_out(&mut self, flight: &Flight) -> Status {
        let Some(to) = flight.to.filter(|to| self.devices[*to].open) else {
            return Status::RemoteBadDestQpn;
        };
        match flight.kind {
            FlightKind::Send(_) => {
                let from = self.devices[flight.from].address;
                let ahn = self.ahn(to, from.gid);
                let source = Source {
                    ahn,
                    qpn: from.qpn,
                    gid: None,
                };
                match self.arrive(to, source, &flight.bytes, flight.immediate) {
                    true => Status::Ok,
                    false => Status::RemoteRnr,
                }
            }
            FlightKind::Read(request) => {
                let remote = UserSlice {
                    address: request.remote_address,
                    length: request.local.length,
                };
                match self.remote(to, remote, request.remote_key, Access::REMOTE_READ) {
                    Some(bytes) => {
                        let start = (request.local.address - MEMORY) as usize;
                        self.devices[flight.from].memory[start..start + bytes.len()]
                            .copy_from_slice(&bytes);
                        Status::Ok
                    }
                    None => Status::RemoteBadAddress,
                }
            }
            FlightKind::Write(request) => {
                let remote = UserSlice {
                    address: request.remote_address,
                    length: request.local.length,
                };
                if self
                    .remote(to, remote, request.remote_key, Access::REMOTE_WRITE)
                    .is_none()
                {
                    return Status::RemoteBadAddress;
                }
                let start = (remote.address - MEMORY) as usize;
                self.devices[to].memory[start..start + remote.length]
                    .copy_from_slice(&flight.bytes);
                if let Some(immediate) = flight.immediate {
                    let from = self.devices[flight.from].address;
                    let source = Source {
                        ahn: self.ahn(to, from.gid),
                        qpn: from.qpn,
                        gid: None,
                    };
                    let queue_pair = self.devices[to].address.qpn;
                    self.devices[to].completions.push_back((
                        Completion {
                            queue_pair,
                            context: 0,
                            status: Status::Ok,
                            kind: CompletionKind::RecvRdmaWithImmediate {
                                buffer: None,
                                length: remote.length,
                                source,
                                immediate,
                            },
                        },
                        None,
                    ));
                }
                Status::Ok
            }
        }
    }

    fn remote(
        &self,
        device: usize,
        memory: UserSlice,
        key: RemoteKey,
        access: Access,
    ) -> Option<Vec<u8>> {
        let (region, allowed) = self.devices[device].regions.get(&(key.0 as u32))?;
        let end = memory.address.checked_add(memory.length as u64)?;
        let inside =
            memory.address >= region.address && end <= region.address + region.length as u64;
        if !inside || !allowed.contains(access) {
            return None;
        }
        let start = (memory.address - MEMORY) as usize;
        Some(self.devices[device].memory[start..start + memory.length].to_vec())
    }

    fn arrive(&mut self, to: usize, source: Source, bytes: &[u8], immediate: Option<u32>) -> bool {
        let Some((buffer, mut storage)) = self.devices[to].receives.pop_front() else {
            return false;
        };
        storage[..bytes.len()].copy_from_slice(bytes);
        let completion = Completion {
            queue_pair: self.devices[to].address.qpn,
            context: 0,
            status: Status::Ok,
            kind: CompletionKind::Recv {
                buffer,
                length: bytes.len(),
                source,
                immediate,
            },
        };
        self.devices[to]
            .completions
            .push_back((completion, Some((buffer, storage))));
        true
    }

    fn complete(&mut self, flight: &Flight, status: Status) {
        let kind = match flight.kind {
            FlightKind::Send(buffer) => CompletionKind::Send { buffer },
            FlightKind::Read(_) => CompletionKind::RdmaRead,
            FlightKind::Write(_) => CompletionKind::RdmaWrite,
        };
        let queue_pair = self.devices[flight.from].address.qpn;
        self.devices[flight.from].completions.push_back((
            Completion {
                queue_pair,
                context: flight.context,
                status,
                kind,
            },
            None,
        ));
    }
}

/// One device with its only queue pair.
pub(crate) type MockNic = OwnNic<MockDomain>;

/// A domain on a mock device.
pub(crate) struct MockDomain {
    network: Network,
    index: usize,
    attributes: NicAttributes,
    address: RawAddress,
    buffers: Vec<Vec<u8>>,
    free: Vec<BufferId>,
    /// Work requests in the send queue.
    sends: usize,
    max_regions: usize,
    next_key: u32,
}

impl MockDomain {
    /// Of the send queue and of the receive queue.
    pub(crate) fn depths(&self) -> (usize, usize) {
        (
            self.attributes.send_queue_depth,
            self.attributes.recv_queue_depth,
        )
    }

    pub(crate) fn free_buffers(&self) -> usize {
        self.free.len()
    }

    fn user<R>(
        &self,
        memory: UserSlice,
        access: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, NicError> {
        let fault = NicError::MemoryFault {
            address: memory.address,
            length: memory.length,
        };
        let mut state = self.network.0.borrow_mut();
        let bytes = &mut state.devices[self.index].memory;
        if memory.length == 0 {
            return Ok(access(&mut []));
        }
        let start = memory.address.checked_sub(MEMORY).ok_or(fault)? as usize;
        let end = start.checked_add(memory.length).ok_or(fault)?;
        bytes.get_mut(start..end).map(access).ok_or(fault)
    }

    /// A device would refuse a key that is not valid for the memory; here it is a bug of the engine.
    fn check_key(&self, slice: UserSlice, key: LocalKey) {
        let state = self.network.0.borrow();
        let region = state.devices[self.index].regions.get(&key.0);
        let covers = region.is_some_and(|(region, _)| {
            slice.address >= region.address
                && slice.address + slice.length as u64 <= region.address + region.length as u64
        });
        assert!(covers, "{key:?} is not valid for {slice:?}");
    }

    fn launch(&mut self, flight: Flight) -> Result<(), NicError> {
        if self.sends >= self.attributes.send_queue_depth {
            return Err(NicError::QueueFull);
        }
        self.sends += 1;
        let mut state = self.network.0.borrow_mut();
        let seen = match flight.kind {
            // A packet without a header may be empty.
            FlightKind::Send(_) => flight.bytes.first().copied(),
            FlightKind::Read(_) => Some(0),
            FlightKind::Write(_) => Some(1),
        };
        state.seen.extend(seen);
        state.flights.push(flight);
        Ok(())
    }

    fn target(&self, ahn: Ahn, qpn: Qpn, qkey: Qkey) -> Result<Option<usize>, NicError> {
        let state = self.network.0.borrow();
        let (gid, _) = *state.devices[self.index]
            .book
            .get(&ahn)
            .ok_or(NicError::Invalid {
                what: "AHN",
                value: ahn.0.into(),
            })?;
        Ok(state
            .devices
            .iter()
            .position(|device| device.open && device.address == RawAddress { gid, qpn, qkey }))
    }
}

impl Drop for MockDomain {
    fn drop(&mut self) {
        self.network.0.borrow_mut().devices[self.index].open = false;
    }
}

impl MockDomain {
    fn post_send(&mut self, request: &SendRequest) -> Result<(), NicError> {
        assert!(
            !self.free.contains(&request.buffer),
            "{:?} is in the pool",
            request.buffer
        );
        let to = self.target(
            request.destination.ahn,
            request.destination.qpn,
            request.destination.qkey,
        )?;
        let mut bytes = self.network.0.borrow_mut().spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(&self.buffers[request.buffer.0 as usize][..request.header_length]);
        if let Some((slice, key)) = request.payload {
            self.check_key(slice, key);
            self.user(slice, |user| bytes.extend_from_slice(user))?;
        }
        assert!(bytes.len() <= self.attributes.mtu, "packet exceeds the MTU");
        self.launch(Flight {
            from: self.index,
            to,
            bytes,
            immediate: request.immediate,
            destination: (request.destination.qpn.0, request.destination.qkey.0),
            context: request.context,
            kind: FlightKind::Send(request.buffer),
        })
    }

    fn post_recv(&mut self, buffer: BufferId) -> Result<(), NicError> {
        assert!(!self.free.contains(&buffer), "{buffer:?} is in the pool");
        let storage = core::mem::take(&mut self.buffers[buffer.0 as usize]);
        assert!(!storage.is_empty(), "{buffer:?} was posted twice");
        let mut state = self.network.0.borrow_mut();
        let receives = &mut state.devices[self.index].receives;
        if receives.len() >= self.attributes.recv_queue_depth {
            self.buffers[buffer.0 as usize] = storage;
            return Err(NicError::QueueFull);
        }
        receives.push_back((buffer, storage));
        Ok(())
    }

    fn post_read(&mut self, request: &RdmaRequest) -> Result<(), NicError> {
        self.check_key(request.local, request.local_key);
        let to = self.target(
            request.destination.ahn,
            request.destination.qpn,
            request.destination.qkey,
        )?;
        self.launch(Flight {
            from: self.index,
            to,
            bytes: Vec::new(),
            immediate: None,
            destination: (request.destination.qpn.0, request.destination.qkey.0),
            context: request.context,
            kind: FlightKind::Read(*request),
        })
    }

    fn post_write(&mut self, request: &RdmaRequest) -> Result<(), NicError> {
        let to = self.target(
            request.destination.ahn,
            request.destination.qpn,
            request.destination.qkey,
        )?;
        self.check_key(request.local, request.local_key);
        let bytes = self.user(request.local, |user| user.to_vec())?;
        self.launch(Flight {
            from: self.index,
            to,
            bytes,
            immediate: request.immediate,
            destination: (request.destination.qpn.0, request.destination.qkey.0),
            context: request.context,
            kind: FlightKind::Write(*request),
        })
    }
}

impl Domain for MockDomain {
    type QueuePair = MockQueuePair;
    type OpenError = NicError;

    fn create_completion_queue(&mut self, _: usize) -> Result<CompletionQueueId, NicError> {
        Ok(CompletionQueueId(0))
    }

    fn destroy_completion_queue(&mut self, _: CompletionQueueId) -> Result<(), NicError> {
        Ok(())
    }

    fn create_queue_pair(
        &mut self,
        _: CompletionQueueId,
        _: &QueuePairConfig,
    ) -> Result<MockQueuePair, NicError> {
        Ok(MockQueuePair {
            attributes: self.attributes.clone(),
            address: self.address,
        })
    }

    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

    fn register(&mut self, memory: UserSlice, access: Access) -> Result<Region, NicError> {
        self.user(memory, |_| ())?;
        let mut state = self.network.0.borrow_mut();
        let regions = &mut state.devices[self.index].regions;
        if regions.len() >= self.max_regions {
            return Err(NicError::Exhausted("memory region"));
        }
        let key = self.next_key;
        self.next_key += 1;
        regions.insert(key, (memory, access));
        Ok(Region {
            local_key: LocalKey(key),
            remote_key: RemoteKey(key.into()),
        })
    }

    fn deregister(&mut self, region: Region) -> Result<(), NicError> {
        let mut state = self.network.0.borrow_mut();
        match state.devices[self.index]
            .regions
            .remove(&region.local_key.0)
        {
            Some(_) => Ok(()),
            None => Err(NicError::Invalid {
                what: "key",
                value: region.local_key.0.into(),
            }),
        }
    }

    fn create_address_handle(&mut self, gid: Gid) -> Result<Ahn, NicError> {
        let mut state = self.network.0.borrow_mut();
        let known = state.ahn(self.index, gid);
        let book = &mut state.devices[self.index].book;
        let ahn = known.unwrap_or_else(|| {
            Ahn((0..)
                .find(|number| !book.contains_key(&Ahn(*number)))
                .unwrap_or(0))
        });
        book.entry(ahn).or_insert((gid, 0)).1 += 1;
        Ok(ahn)
    }

    fn destroy_address_handle(&mut self, ahn: Ahn) -> Result<(), NicError> {
        let mut state = self.network.0.borrow_mut();
        let book = &mut state.devices[self.index].book;
        let (_, uses) = book.get_mut(&ahn).ok_or(NicError::Invalid {
            what: "AHN",
            value: ahn.0.into(),
        })?;
        *uses -= 1;
        if *uses == 0 {
            book.remove(&ahn);
        }
        Ok(())
    }

    fn acquire_buffer(&mut self) -> Option<BufferId> {
        self.free.pop()
    }

    fn release_buffer(&mut self, buffer: BufferId) {
        assert!(
            !self.free.contains(&buffer),
            "{buffer:?} was released twice"
        );
        self.free.push(buffer);
    }

    fn buffer(&self, buffer: BufferId) -> &[u8] {
        &self.buffers[buffer.0 as usize]
    }

    fn buffer_mut(&mut self, buffer: BufferId) -> &mut [u8] {
        &mut self.buffers[buffer.0 as usize]
    }

    fn copy_from_user(
        &mut self,
        buffer: BufferId,
        offset: usize,
        source: UserSlice,
    ) -> Result<(), NicError> {
        let mut bytes = core::mem::take(&mut self.buffers[buffer.0 as usize]);
        let target = &mut bytes[offset..offset + source.length];
        let result = self.user(source, |user| target.copy_from_slice(user));
        self.buffers[buffer.0 as usize] = bytes;
        result
    }

    fn copy_to_user(
        &mut self,
        buffer: BufferId,
        offset: usize,
        length: usize,
        address: u64,
    ) -> Result<(), NicError> {
        let source = &self.buffers[buffer.0 as usize][offset..offset + length];
        self.user(UserSlice { address, length }, |user| {
            user.copy_from_slice(source)
        })
    }

    fn read_user(&mut self, address: u64, target: &mut [u8]) -> Result<(), NicError> {
        let length = target.len();
        self.user(UserSlice { address, length }, |user| {
            target.copy_from_slice(user)
        })
    }

    fn write_user(&mut self, address: u64, source: &[u8]) -> Result<(), NicError> {
        let length = source.len();
        self.user(UserSlice { address, length }, |user| {
            user.copy_from_slice(source)
        })
    }

    fn poll(
        &mut self,
        _: CompletionQueueId,
        completions: &mut Vec<Completion>,
        limit: usize,
    ) -> usize {
        let mut state = self.network.0.borrow_mut();
        let queue = &mut state.devices[self.index].completions;
        let mut count = 0;
        while count < limit
            && let Some((completion, storage)) = queue.pop_front()
        {
            if let Some((buffer, storage)) = storage {
                self.buffers[buffer.0 as usize] = storage;
            }
            if matches!(
                completion.kind,
                CompletionKind::Send { .. } | CompletionKind::RdmaRead | CompletionKind::RdmaWrite
            ) {
                // A completion may come twice.
                self.sends = self.sends.saturating_sub(1);
            }
            completions.push(completion);
            count += 1;
        }
        count
    }
}

/// The only queue pair of a domain.
pub(crate) struct MockQueuePair {
    attributes: NicAttributes,
    address: RawAddress,
}

impl QueuePair for MockQueuePair {
    type Domain = MockDomain;

    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

    fn local_address(&self) -> RawAddress {
        self.address
    }

    fn completion_queue(&self) -> CompletionQueueId {
        CompletionQueueId(0)
    }

    fn post_send(
        &mut self,
        domain: &mut MockDomain,
        request: &SendRequest,
        _: Doorbell,
    ) -> Result<(), NicError> {
        domain.post_send(request)
    }

    fn post_read(
        &mut self,
        domain: &mut MockDomain,
        request: &RdmaRequest,
        _: Doorbell,
    ) -> Result<(), NicError> {
        domain.post_read(request)
    }

    fn post_write(
        &mut self,
        domain: &mut MockDomain,
        request: &RdmaRequest,
        _: Doorbell,
    ) -> Result<(), NicError> {
        domain.post_write(request)
    }

    fn flush(&mut self, _: &mut MockDomain) {}

    fn post_recv(&mut self, domain: &mut MockDomain, buffer: BufferId) -> Result<(), NicError> {
        domain.post_recv(buffer)
    }

    fn close(self, _: &mut MockDomain) {}
}
