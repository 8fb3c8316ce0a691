//! A small network: a test can inspect every packet that an endpoint posts, deliver packets in any
//! order, refuse them with RNR, and forge packets.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use crate::addresses::gid;
use efa_core::address::{Ahn, Gid, Qkey, Qpn, RawAddress};
use efa_core::nic::{
    Access, BufferId, Completion, CompletionKind, Destination, DeviceCaps, LocalKey, NicAttributes,
    NicError, RdmaRequest, Region, RemoteKey, SendRequest, Source, Status, UserSlice,
};

use efa_core::nic::test_device::{Buffers, TestDomain, TestNic, Transport};

/// The start of user memory in every host's address space.
pub const MEMORY: u64 = 0x1_0000;

/// A device on a network, with its only queue pair.
pub type NetworkNic = TestNic<Port>;

/// The properties of a device.
#[derive(Clone)]
pub struct DeviceTraits {
    /// The largest packet in bytes.
    pub mtu: usize,
    /// Entries of the send queue.
    pub send_depth: usize,
    /// Entries of the receive queue.
    pub recv_depth: usize,
    /// Bytes of user memory.
    pub memory: usize,
    /// The capabilities.
    pub caps: DeviceCaps,
    /// The part number, which a HANDSHAKE contains.
    pub part_id: u32,
    /// The largest number of registrations at a time.
    pub max_regions: usize,
}

impl Default for DeviceTraits {
    fn default() -> Self {
        DeviceTraits {
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

/// A packet or RDMA request in flight.
#[derive(Clone, Debug)]
pub struct Flight {
    /// The device that posted it.
    pub from: usize,
    /// The device that it goes to, if there is one.
    pub to: Option<usize>,
    /// The packet, or the data of an RDMA write.
    pub bytes: Vec<u8>,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// Queue pair number and Q-key, as they were posted.
    pub destination: (u16, u32),
    context: u64,
    kind: FlightKind,
    /// User memory with the contents of the end of `bytes`.
    gathered: Option<UserSlice>,
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
    /// Whether the device is open. A closed one refuses packets as real ones do: no such queue
    /// pair.
    open: bool,
    book: BTreeMap<Ahn, (Gid, usize)>,
    receives: VecDeque<(BufferId, Vec<u8>)>,
    /// The error for the next posted send.
    send_error: Option<NicError>,
    /// Completions, with the contents of the packet buffers that they return.
    completions: VecDeque<(Completion, Option<(BufferId, Vec<u8>)>)>,
    memory: Vec<u8>,
    regions: BTreeMap<u32, (UserSlice, Access)>,
}

impl DeviceState {
    fn user(&mut self, memory: UserSlice) -> &mut [u8] {
        let start = (memory.address - MEMORY) as usize;
        &mut self.memory[start..start + memory.length]
    }

    /// A completion, with the storage of the packet buffer that it returns.
    fn complete(
        &mut self,
        context: u64,
        status: Status,
        kind: CompletionKind,
        storage: Option<(BufferId, Vec<u8>)>,
    ) {
        let completion = Completion {
            queue_pair: self.address.qpn,
            context,
            status,
            kind,
        };
        self.completions.push_back((completion, storage));
    }
}

#[derive(Default)]
struct NetworkState {
    devices: Vec<DeviceState>,
    flights: Vec<Flight>,
}

/// A handle of the network: clones share the network.
#[derive(Clone, Default)]
pub struct Network(Rc<RefCell<NetworkState>>);

impl Network {
    /// Opens a device on host `host`, which determines the GID, with this queue pair number and
    /// Q-key.
    pub fn open(&self, host: u8, qpn: u16, qkey: u32, traits: DeviceTraits) -> NetworkNic {
        let address = RawAddress::new(gid(host.into()), Qpn(qpn), Qkey(qkey));
        let mut state = self.0.borrow_mut();
        state.devices.push(DeviceState {
            address,
            open: true,
            book: BTreeMap::new(),
            receives: VecDeque::new(),
            send_error: None,
            completions: VecDeque::new(),
            memory: vec![0; traits.memory],
            regions: BTreeMap::new(),
        });
        let attributes = NicAttributes {
            caps: traits.caps,
            mtu: traits.mtu,
            max_rdma_size: 1 << 16,
            send_queue_depth: traits.send_depth,
            recv_queue_depth: traits.recv_depth,
            inline_size: 32,
            vendor_part_id: traits.part_id,
            host_id: 0,
        };
        let packet_buffers = traits.send_depth + traits.recv_depth;
        let port = Port {
            network: self.clone(),
            index: state.devices.len() - 1,
            traits,
            sends: 0,
            next_key: 1,
        };
        TestDomain::open(port, attributes, address, packet_buffers)
    }

    /// The packets in flight, oldest first.
    pub fn in_flight(&self) -> Vec<Flight> {
        let mut state = self.0.borrow_mut();
        (0..state.flights.len()).for_each(|index| state.gather(index));
        state.flights.clone()
    }

    /// The device that something in flight goes to.
    pub fn destination(&self, index: usize) -> Option<usize> {
        self.0.borrow().flights[index].to
    }

    /// The number of packets and requests in flight.
    pub fn flights(&self) -> usize {
        self.0.borrow().flights.len()
    }

    /// Removes a packet from the network and completes its send without delivering it, for a test
    /// that acts as the receiver.
    pub fn swallow(&self, index: usize) -> Vec<u8> {
        let mut state = self.0.borrow_mut();
        let flight = state.take(index);
        state.complete(&flight, Status::Ok);
        flight.bytes
    }

    /// Ends a packet or request in flight with a status.
    pub fn fail(&self, index: usize, status: Status) {
        let mut state = self.0.borrow_mut();
        let flight = state.take(index);
        state.complete(&flight, status);
    }

    /// Delivers a packet, and completes it twice.
    pub fn repeat_completion(&self, index: usize) {
        let mut state = self.0.borrow_mut();
        let flight = state.take(index);
        state.complete(&flight, Status::Ok);
        state.complete(&flight, Status::Ok);
    }

    /// Delivers a packet or request in flight. Returns false if the receiver was not ready.
    pub fn deliver(&self, index: usize) -> bool {
        let mut state = self.0.borrow_mut();
        let flight = state.take(index);
        let status = state.carry_out(&flight);
        state.complete(&flight, status);
        status == Status::Ok
    }

    /// Delivers everything, oldest first, until nothing is in flight.
    pub fn deliver_all(&self) {
        while self.flights() > 0 {
            self.deliver(0);
        }
    }

    /// Delivers a forged packet from `source` to device `to`. A known AHN must be in the receiver's
    /// address book.
    pub fn inject(&self, to: usize, source: Source, bytes: &[u8]) -> bool {
        self.0.borrow_mut().arrive(to, source, bytes, None)
    }

    /// The number of a GID in a device's address book.
    pub fn ahn(&self, device: usize, gid: Gid) -> Option<Ahn> {
        self.0.borrow().ahn(device, gid)
    }

    /// A part of a device's user memory.
    pub fn memory(&self, device: usize, address: u64, length: usize) -> Vec<u8> {
        let mut state = self.0.borrow_mut();
        state.devices[device]
            .user(UserSlice { address, length })
            .to_vec()
    }

    /// Writes into a device's user memory.
    pub fn fill(&self, device: usize, address: u64, bytes: &[u8]) {
        let mut state = self.0.borrow_mut();
        let length = bytes.len();
        let memory = state.devices[device].user(UserSlice { address, length });
        memory.copy_from_slice(bytes);
    }

    /// The number of receives posted at a device.
    pub fn receives_posted(&self, device: usize) -> usize {
        self.0.borrow().devices[device].receives.len()
    }

    /// Makes the next send that is posted to a device fail.
    pub fn fail_next_send(&self, device: usize, error: NicError) {
        self.0.borrow_mut().devices[device].send_error = Some(error);
    }

    /// The number of memory regions registered at a device.
    pub fn regions(&self, device: usize) -> usize {
        self.0.borrow().devices[device].regions.len()
    }
}

impl NetworkState {
    fn ahn(&self, device: usize, gid: Gid) -> Option<Ahn> {
        self.devices[device]
            .book
            .iter()
            .find(|(_, (other, _))| *other == gid)
            .map(|(ahn, _)| *ahn)
    }

    /// Reads the user memory of a packet or request in flight. A device may read it at any time
    /// until the completion; this one reads it as late as possible.
    fn gather(&mut self, index: usize) {
        let flight = &mut self.flights[index];
        if let Some(gathered) = flight.gathered {
            let kept = flight.bytes.len() - gathered.length;
            let memory = self.devices[flight.from].user(gathered);
            flight.bytes[kept..].copy_from_slice(memory);
        }
    }

    fn take(&mut self, index: usize) -> Flight {
        self.gather(index);
        self.flights.remove(index)
    }

    fn carry_out(&mut self, flight: &Flight) -> Status {
        let Some(to) = flight.to.filter(|to| self.devices[*to].open) else {
            return Status::RemoteBadDestQpn;
        };
        match flight.kind {
            FlightKind::Send(_) => {
                let source = self.source(flight.from, to);
                match self.arrive(to, source, &flight.bytes, flight.immediate) {
                    true => Status::Ok,
                    false => Status::RemoteRnr,
                }
            }
            FlightKind::Read(request) => {
                let Some(remote) = self.remote(to, &request, Access::REMOTE_READ) else {
                    return Status::RemoteBadAddress;
                };
                let bytes = self.devices[to].user(remote).to_vec();
                let local = self.devices[flight.from].user(request.local);
                local.copy_from_slice(&bytes);
                Status::Ok
            }
            FlightKind::Write(request) => {
                let Some(remote) = self.remote(to, &request, Access::REMOTE_WRITE) else {
                    return Status::RemoteBadAddress;
                };
                let source = self.source(flight.from, to);
                let device = &mut self.devices[to];
                device.user(remote).copy_from_slice(&flight.bytes);
                if let Some(immediate) = flight.immediate {
                    let kind = CompletionKind::RecvRdmaWithImmediate {
                        buffer: None,
                        length: remote.length,
                        source,
                        immediate,
                    };
                    device.complete(0, Status::Ok, kind, None);
                }
                Status::Ok
            }
        }
    }

    /// Device `from`'s identity at device `to`.
    fn source(&self, from: usize, to: usize) -> Source {
        let from = self.devices[from].address;
        Source {
            ahn: self.ahn(to, from.gid),
            qpn: from.qpn,
            gid: None,
        }
    }

    /// The memory of a device that a request accesses, if it is registered for that.
    fn remote(&self, device: usize, request: &RdmaRequest, access: Access) -> Option<UserSlice> {
        let memory = UserSlice::new(request.remote_address, request.local.length);
        let key = request.remote_key.0 as u32;
        let (region, allowed) = self.devices[device].regions.get(&key)?;
        let end = memory.address.checked_add(memory.length as u64)?;
        let inside =
            memory.address >= region.address && end <= region.address + region.length as u64;
        (inside && allowed.contains(access)).then_some(memory)
    }

    fn arrive(&mut self, to: usize, source: Source, bytes: &[u8], immediate: Option<u32>) -> bool {
        let Some((buffer, mut storage)) = self.devices[to].receives.pop_front() else {
            return false;
        };
        storage[..bytes.len()].copy_from_slice(bytes);
        let kind = CompletionKind::Recv {
            buffer,
            length: bytes.len(),
            source,
            immediate,
        };
        self.devices[to].complete(0, Status::Ok, kind, Some((buffer, storage)));
        true
    }

    fn complete(&mut self, flight: &Flight, status: Status) {
        let kind = match flight.kind {
            FlightKind::Send(buffer) => CompletionKind::Send { buffer },
            FlightKind::Read(_) => CompletionKind::RdmaRead,
            FlightKind::Write(_) => CompletionKind::RdmaWrite,
        };
        self.devices[flight.from].complete(flight.context, status, kind, None);
    }
}

/// A device's place on the network.
pub struct Port {
    network: Network,
    index: usize,
    traits: DeviceTraits,
    /// The number of work requests in the send queue.
    sends: usize,
    next_key: u32,
}

impl Port {
    /// Panics if a key is not valid for the memory: a device would refuse it, and the engine must
    /// not use such a key.
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
        if self.sends >= self.traits.send_depth {
            return Err(NicError::QueueFull);
        }
        self.sends += 1;
        let mut state = self.network.0.borrow_mut();
        state.flights.push(flight);
        Ok(())
    }

    fn target(&self, destination: &Destination) -> Result<Option<usize>, NicError> {
        let Destination { ahn, qpn, qkey } = *destination;
        let state = self.network.0.borrow();
        let (gid, _) = *state.devices[self.index]
            .book
            .get(&ahn)
            .ok_or(NicError::invalid("AHN", ahn.0))?;
        Ok(state
            .devices
            .iter()
            .position(|device| device.open && device.address == RawAddress { gid, qpn, qkey }))
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.network.0.borrow_mut().devices[self.index].open = false;
    }
}

impl Transport for Port {
    fn post_send(&mut self, buffers: &mut Buffers, request: &SendRequest) -> Result<(), NicError> {
        let error = self.network.0.borrow_mut().devices[self.index]
            .send_error
            .take();
        if let Some(error) = error {
            return Err(error);
        }
        let to = self.target(&request.destination)?;
        let header = &buffers.bytes[request.buffer.0 as usize][..request.header_length];
        let mut bytes = header.to_vec();
        if let Some((slice, key)) = request.payload {
            self.check_key(slice, key);
            self.user(slice, |user| bytes.extend_from_slice(user))?;
        }
        assert!(bytes.len() <= self.traits.mtu, "packet exceeds the MTU");
        self.launch(Flight {
            from: self.index,
            to,
            bytes,
            immediate: request.immediate,
            destination: (request.destination.qpn.0, request.destination.qkey.0),
            context: request.context,
            kind: FlightKind::Send(request.buffer),
            gathered: request.payload.map(|(slice, _)| slice),
        })
    }

    fn post_recv(&mut self, buffers: &mut Buffers, buffer: BufferId) -> Result<(), NicError> {
        let mut state = self.network.0.borrow_mut();
        let receives = &mut state.devices[self.index].receives;
        if receives.len() >= self.traits.recv_depth {
            return Err(NicError::QueueFull);
        }
        receives.push_back((buffer, buffers.take(buffer)));
        Ok(())
    }

    fn post_read(&mut self, request: &RdmaRequest) -> Result<(), NicError> {
        self.check_key(request.local, request.local_key);
        let to = self.target(&request.destination)?;
        self.launch(Flight {
            from: self.index,
            to,
            bytes: Vec::new(),
            immediate: None,
            destination: (request.destination.qpn.0, request.destination.qkey.0),
            context: request.context,
            kind: FlightKind::Read(*request),
            gathered: None,
        })
    }

    fn post_write(&mut self, request: &RdmaRequest) -> Result<(), NicError> {
        let to = self.target(&request.destination)?;
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
            gathered: Some(request.local),
        })
    }

    fn poll(
        &mut self,
        buffers: &mut Buffers,
        completions: &mut Vec<Completion>,
        limit: usize,
    ) -> usize {
        let mut state = self.network.0.borrow_mut();
        let queue = &mut state.devices[self.index].completions;
        let mut count = 0;
        while count < limit
            && let Some((completion, storage)) = queue.pop_front()
        {
            if let Some((buffer, bytes)) = storage {
                buffers.give_back(buffer, bytes);
            }
            if matches!(
                completion.kind,
                CompletionKind::Send { .. } | CompletionKind::RdmaRead | CompletionKind::RdmaWrite
            ) {
                // A completion may be repeated.
                self.sends = self.sends.saturating_sub(1);
            }
            completions.push(completion);
            count += 1;
        }
        count
    }

    fn register(&mut self, memory: UserSlice, access: Access) -> Result<Region, NicError> {
        self.user(memory, |_| ())?;
        let mut state = self.network.0.borrow_mut();
        let regions = &mut state.devices[self.index].regions;
        if regions.len() >= self.traits.max_regions {
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
            None => Err(NicError::invalid("key", region.local_key.0)),
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
        let (_, uses) = book.get_mut(&ahn).ok_or(NicError::invalid("AHN", ahn.0))?;
        *uses -= 1;
        if *uses == 0 {
            book.remove(&ahn);
        }
        Ok(())
    }

    fn user<R>(
        &mut self,
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
}
