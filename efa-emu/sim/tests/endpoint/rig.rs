//! Endpoints on hosts of a fabric, driven until they are idle.

use std::time::Duration;

use efa_core::address::RawAddress;
use efa_core::endpoint::{
    AtomicArgs, AtomicKind, CompletionEntry, Endpoint, EndpointConfig, EndpointError, ErrorEntry,
    Event, Instant, IoVec, OperationFlags, PeerId, ReadArgs, RecvArgs, RemoteIoVec, SendArgs,
    SourceFilter, WriteArgs,
};
use efa_core::nic::{
    Access, Domain as _, Nic as _, QueuePair as _, QueuePairConfig, Region, UserSlice,
};
use efa_core::wire::{AtomicDatatype, AtomicOp, PacketType};
use efa_device_model::profile::Profile;
use efa_sim::{
    Action, Fabric, FabricConfig, Fault, FaultId, HostConfig, Match, NetworkConfig, NicConfig,
    SimHost, SimNic,
};
pub(crate) use efa_testing::pattern;

/// A program with one endpoint on its own host.
pub(crate) struct Program {
    pub(crate) host: SimHost,
    pub(crate) endpoint: Endpoint<SimNic>,
    /// Memory for all operations, registered with all access rights.
    pub(crate) memory: UserSlice,
    pub(crate) region: Region,
    pub(crate) completions: Vec<Result<CompletionEntry, ErrorEntry>>,
    pub(crate) events: Vec<Event>,
}

pub(crate) const MEMORY: usize = 1 << 20;

/// Thresholds that let small messages use every subprotocol.
pub(crate) fn config() -> EndpointConfig {
    EndpointConfig {
        max_medium_size: 20_000,
        min_read_message_size: 100_000,
        min_read_write_size: 100_000,
        cts_window_packets: 2,
        ..EndpointConfig::default()
    }
}

/// A network that keeps the order; faults change it.
pub(crate) fn orderly() -> FabricConfig {
    FabricConfig {
        network: NetworkConfig::orderly(Duration::from_micros(5)),
        completion_window: 1,
        ..FabricConfig::default()
    }
}

pub(crate) struct Rig {
    pub(crate) fabric: Fabric,
    pub(crate) programs: Vec<Option<Program>>,
}

impl Rig {
    /// A fabric without programs.
    pub(crate) fn new(fabric: FabricConfig) -> Self {
        Rig {
            fabric: Fabric::new(fabric),
            programs: Vec::new(),
        }
    }

    /// Two programs, on devices of this profile.
    pub(crate) fn pair(fabric: FabricConfig, profile: &str, config: &EndpointConfig) -> Self {
        let mut rig = Rig::new(fabric);
        for _ in 0..2 {
            rig.add(profile, config, NicConfig::default());
        }
        rig
    }

    /// Adds a host with a program and returns its number.
    pub(crate) fn add(&mut self, profile: &str, config: &EndpointConfig, nic: NicConfig) -> usize {
        let host = self.add_host(profile);
        self.start(host, config, nic)
    }

    fn add_host(&self, profile: &str) -> SimHost {
        self.fabric.add_host(HostConfig {
            profile: Profile::by_name(profile).unwrap().clone(),
            ..HostConfig::default()
        })
    }

    /// Starts a program on a host.
    pub(crate) fn start(
        &mut self,
        host: SimHost,
        config: &EndpointConfig,
        nic: NicConfig,
    ) -> usize {
        let endpoint = Endpoint::new(host.open_nic(nic).unwrap(), config.clone()).unwrap();
        self.adopt(host, endpoint)
    }

    /// Adds a host with a program that receives into its buffers, and returns its number.
    pub(crate) fn add_zero_copy(&mut self, profile: &str, config: EndpointConfig) -> usize {
        let host = self.add_host(profile);
        let mut nic = host.open_nic(NicConfig::default()).unwrap();
        let queue = nic.queue_pair().completion_queue();
        let user = QueuePairConfig {
            send_queue_depth: 1,
            recv_queue_depth: 16,
            ..NicConfig::default().into()
        };
        let user = nic.create_queue_pair(queue, &user).unwrap();
        let endpoint = Endpoint::with_user_receives(nic, user, config).unwrap();
        self.adopt(host, endpoint)
    }

    fn adopt(&mut self, host: SimHost, mut endpoint: Endpoint<SimNic>) -> usize {
        let memory = host.allocate(MEMORY).unwrap();
        let region = endpoint.register(memory, Access::all()).unwrap();
        self.programs.push(Some(Program {
            host,
            endpoint,
            memory,
            region,
            completions: Vec::new(),
            events: Vec::new(),
        }));
        self.programs.len() - 1
    }

    pub(crate) fn program(&mut self, number: usize) -> &mut Program {
        self.programs[number].as_mut().unwrap()
    }

    pub(crate) fn address(&mut self, number: usize) -> RawAddress {
        self.program(number).endpoint.address()
    }

    pub(crate) fn insert(&mut self, at: usize, address: RawAddress) -> PeerId {
        self.program(at).endpoint.insert_address(address).unwrap()
    }

    /// Inserts the address of another program into the address vector of the one at `at`.
    pub(crate) fn insert_program(&mut self, at: usize, other: usize) -> PeerId {
        let address = self.address(other);
        self.insert(at, address)
    }

    /// Counts packets of a type without changing anything.
    pub(crate) fn count(&self, packet_type: PacketType) -> FaultId {
        let when = Match::packet(packet_type.code());
        self.fabric
            .install(Fault::new(when, Action::Delay(Default::default())))
    }

    /// Kills the program: its queue pair is destroyed without notice to its peers.
    pub(crate) fn kill(&mut self, number: usize) -> SimHost {
        let program = self.programs[number].take().unwrap();
        program.host
    }

    /// Lets every program make progress, without advancing time.
    pub(crate) fn poll(&mut self) {
        let now = Instant(self.fabric.now());
        for program in self.programs.iter_mut().flatten() {
            while program.endpoint.progress(now) > 0 {}
            while let Some(entry) = program.endpoint.poll_completion() {
                program.completions.push(entry);
            }
            while let Some(event) = program.endpoint.poll_event() {
                program.events.push(event);
            }
        }
    }

    /// Lets every program make progress, and advances time to the next event or timeout. Returns
    /// false if there is none.
    pub(crate) fn step(&mut self) -> bool {
        self.poll();
        let programs = self.programs.iter().flatten();
        let timeout = programs.filter_map(|program| program.endpoint.next_timeout());
        match (self.fabric.next_event_time(), timeout.min()) {
            (None, None) => return false,
            (Some(event), Some(Instant(timeout))) if timeout < event => {
                self.fabric.run_until(timeout);
            }
            (Some(_), _) => _ = self.fabric.step(),
            (None, Some(Instant(timeout))) => self.fabric.run_until(timeout),
        }
        true
    }

    /// Runs until all is idle.
    pub(crate) fn settle(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the programs do not come to rest");
    }

    /// Starts an operation; if it has to be tried again, lets the programs run in between.
    pub(crate) fn start_operation(
        &mut self,
        at: usize,
        mut start: impl FnMut(&mut Program) -> Result<(), EndpointError>,
    ) {
        for _ in 0..100 {
            match start(self.program(at)) {
                Ok(()) => return,
                Err(EndpointError::TryAgain) => self.settle(),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("the operation has to be tried again for ever");
    }

    /// Exchanges messages both ways, so that each end knows the other's features.
    pub(crate) fn exchange_handshakes(&mut self, one: usize, other: usize) -> (PeerId, PeerId) {
        let there = self.insert_program(one, other);
        let back = self.insert_program(other, one);
        for (from, peer, to) in [(one, there, other), (other, back, one)] {
            self.program(to).recv(0, 0, 0);
            self.start_operation(from, |program| program.send(peer, 0, 0, 0));
        }
        self.settle();
        for number in [one, other] {
            let program = self.program(number);
            assert_eq!(program.completions.len(), 2);
            program.completions.clear();
            assert_eq!(program.events, []);
        }
        (there, back)
    }
}

impl Program {
    pub(crate) fn piece(&self, offset: u64, length: usize) -> IoVec {
        IoVec {
            memory: UserSlice::new(self.memory.address + offset, length),
            region: Some(self.region),
        }
    }

    pub(crate) fn fill(&self, offset: u64, bytes: &[u8]) {
        self.host
            .write(self.memory.address + offset, bytes)
            .unwrap();
    }

    pub(crate) fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let address = self.memory.address + offset;
        self.host.read(UserSlice { address, length }).unwrap()
    }

    pub(crate) fn remote(&self, offset: u64, length: usize) -> RemoteIoVec {
        RemoteIoVec {
            address: self.memory.address + offset,
            length: length as u64,
            key: self.region.remote_key,
        }
    }

    pub(crate) fn send(
        &mut self,
        peer: PeerId,
        offset: u64,
        length: usize,
        context: u64,
    ) -> Result<(), EndpointError> {
        self.send_with(peer, offset, length, OperationFlags::empty(), context)
    }

    pub(crate) fn send_with(
        &mut self,
        peer: PeerId,
        offset: u64,
        length: usize,
        flags: OperationFlags,
        context: u64,
    ) -> Result<(), EndpointError> {
        let data = [self.piece(offset, length)];
        self.endpoint.send(SendArgs {
            flags: flags | OperationFlags::COMPLETION,
            ..SendArgs::new(peer, &data, context)
        })
    }

    pub(crate) fn recv(&mut self, offset: u64, length: usize, context: u64) {
        self.recv_from(SourceFilter::Any, offset, length, context);
    }

    pub(crate) fn recv_from(
        &mut self,
        source: SourceFilter,
        offset: u64,
        length: usize,
        context: u64,
    ) {
        let buffer = [self.piece(offset, length)];
        self.endpoint
            .recv(RecvArgs::new(source, &buffer, context))
            .unwrap();
    }

    pub(crate) fn write(
        &mut self,
        peer: PeerId,
        offset: u64,
        remote: RemoteIoVec,
        flags: OperationFlags,
        context: u64,
    ) -> Result<(), EndpointError> {
        let data = [self.piece(offset, remote.length as usize)];
        self.endpoint.write(WriteArgs {
            peer,
            data: &data,
            remote: &[remote],
            cq_data: None,
            flags: flags | OperationFlags::COMPLETION,
            context,
        })
    }

    pub(crate) fn read(
        &mut self,
        peer: PeerId,
        offset: u64,
        remote: RemoteIoVec,
        context: u64,
    ) -> Result<(), EndpointError> {
        let buffer = [self.piece(offset, remote.length as usize)];
        self.endpoint.read(ReadArgs {
            peer,
            buffer: &buffer,
            remote: &[remote],
            flags: OperationFlags::COMPLETION,
            context,
        })
    }

    pub(crate) fn fetch_add(
        &mut self,
        peer: PeerId,
        offset: u64,
        remote: RemoteIoVec,
        context: u64,
    ) -> Result<(), EndpointError> {
        let (operand, result) = ([self.piece(offset, 8)], [self.piece(offset + 8, 8)]);
        self.endpoint.atomic(AtomicArgs {
            peer,
            datatype: AtomicDatatype::UINT64,
            operation: AtomicOp::SUM,
            operand: &operand,
            kind: AtomicKind::Fetch { result: &result },
            remote: &[remote],
            flags: OperationFlags::COMPLETION,
            context,
        })
    }

    /// Takes the contexts of all completions, and asserts that they are successes.
    pub(crate) fn contexts(&mut self) -> Vec<u64> {
        let entries = core::mem::take(&mut self.completions);
        entries.iter().map(|entry| entry.unwrap().context).collect()
    }
}
