//! The protocol engine of `efa-core` as an application.

use std::collections::{BTreeSet, HashMap};

use efa_core::address::RawAddress;
use efa_core::endpoint::{
    AtomicArgs, AtomicKind, CompletionFlags, Endpoint, EndpointConfig, EndpointError, Event,
    Instant, IoVec, OperationFlags, PeerId, ReadArgs, RecvArgs, RemoteIoVec, SendArgs,
    SourceFilter, TagFilter, WriteArgs,
};
use efa_core::nic::{Access, Domain, NicError, PolledNic, RemoteKey, UserSlice};
use efa_core::wire::AtomicDatatype;
use efa_hw::{HwDomain, HwNic};
use efa_sim::SimNic;

use super::{Application, Failure, OperationRequest, Outcome, RequestError, Started, Token};
use crate::operation::{
    AtomicAction, EndpointIndex, Payload, RegionAccess, Remote, SendMode, pattern,
};
use crate::scenario::Settings;

/// A device together with the memory of the application that uses it.
pub trait HostNic: PolledNic {
    /// Allocates memory that operations may use and that is freed with the device.
    fn allocate_user(&mut self, length: usize) -> Result<UserSlice, NicError>;

    /// Copies bytes to this memory.
    fn fill_user(&mut self, address: u64, bytes: &[u8]) -> Result<(), NicError>;

    /// Copies bytes from this memory.
    fn dump_user(&mut self, source: UserSlice) -> Result<Vec<u8>, NicError>;

    /// Removes and returns the device's messages about failed requests, beyond their statuses, one
    /// line each.
    fn take_device_errors(&mut self) -> Vec<String> {
        Vec::new()
    }
}

impl HostNic for HwNic {
    fn allocate_user(&mut self, length: usize) -> Result<UserSlice, NicError> {
        HwDomain::allocate(self, length)
    }

    fn fill_user(&mut self, address: u64, bytes: &[u8]) -> Result<(), NicError> {
        self.write_user(address, bytes)
    }

    fn dump_user(&mut self, source: UserSlice) -> Result<Vec<u8>, NicError> {
        HwDomain::read(self, source)
    }

    fn take_device_errors(&mut self) -> Vec<String> {
        let errors = self.take_errors().into_iter();
        errors.map(|error| error.to_string()).collect()
    }
}

impl HostNic for SimNic {
    fn allocate_user(&mut self, length: usize) -> Result<UserSlice, NicError> {
        self.host()
            .allocate(length)
            .map_err(|_| NicError::Exhausted("memory of the simulated host"))
    }

    fn fill_user(&mut self, address: u64, bytes: &[u8]) -> Result<(), NicError> {
        let fault = |_| NicError::MemoryFault {
            address,
            length: bytes.len(),
        };
        self.host().write(address, bytes).map_err(fault)
    }

    fn dump_user(&mut self, source: UserSlice) -> Result<Vec<u8>, NicError> {
        let fault = |_| NicError::MemoryFault {
            address: source.address,
            length: source.length,
        };
        self.host().read(source).map_err(fault)
    }
}

/// Counts duplicated packets.
pub type Repetitions = Box<dyn Fn() -> u64>;

/// An application over an [`Endpoint`].
pub struct CoreApplication<N: HostNic> {
    endpoint: Endpoint<N>,
    clock: Box<dyn FnMut() -> Instant>,
    peers: HashMap<EndpointIndex, PeerId>,
    buffers: HashMap<Token, UserSlice>,
    /// Operations whose completions state no length, because they fill their whole buffer: reads
    /// and fetching atomics.
    reads: BTreeSet<Token>,
    regions: HashMap<Token, UserSlice>,
    report_sources: bool,
    /// Up to this many refused packets are duplicates, and not reported as events.
    repetitions: Option<Repetitions>,
    /// The number of packets that were recognised as duplicates.
    copies: u64,
}

impl From<EndpointError> for RequestError {
    fn from(error: EndpointError) -> Self {
        match error {
            EndpointError::TryAgain => RequestError::TryAgain,
            error => RequestError::Refused(error.to_string()),
        }
    }
}

impl From<NicError> for RequestError {
    fn from(error: NicError) -> Self {
        RequestError::Refused(error.to_string())
    }
}

/// The engine's configuration for a scenario's endpoint.
pub fn configuration(settings: &Settings) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    macro_rules! apply {
        ($($name:ident),*) => {
            $(if let Some(value) = settings.$name {
                config.$name = value;
            })*
        };
    }
    apply!(
        max_medium_size,
        min_read_message_size,
        min_read_write_size,
        runt_size,
        cts_window_packets,
        use_device_rdma,
        handshake_before_messages
    );
    config
}

impl<N: HostNic> CoreApplication<N> {
    /// Opens an endpoint on `nic`. `clock` returns the time at each poll; `report_sources` is
    /// libfabric's `FI_SOURCE`.
    pub fn open(
        nic: N,
        config: EndpointConfig,
        report_sources: bool,
        clock: impl FnMut() -> Instant + 'static,
    ) -> Result<Self, RequestError> {
        Ok(CoreApplication {
            endpoint: Endpoint::new(nic, config)?,
            clock: Box::new(clock),
            peers: HashMap::new(),
            buffers: HashMap::new(),
            reads: BTreeSet::new(),
            regions: HashMap::new(),
            report_sources,
            repetitions: None,
            copies: 0,
        })
    }

    /// Declares that packets are duplicated, as `repetitions` counts. Refused duplicates are then
    /// not failures.
    #[must_use]
    pub fn meeting_second_copies(self, repetitions: Option<Repetitions>) -> Self {
        CoreApplication {
            repetitions,
            ..self
        }
    }

    /// Whether a refused packet may be a duplicate.
    fn is_copy(&mut self, event: &Event) -> bool {
        let Event::PacketRefused { reason, .. } = event else {
            return false;
        };
        let repetitions = self.repetitions.as_ref().map_or(0, |count| count());
        let is_copy = reason.fits_second_copy() && self.copies < repetitions;
        self.copies += u64::from(is_copy);
        is_copy
    }

    fn peer(&self, index: EndpointIndex) -> Result<PeerId, RequestError> {
        self.peers.get(&index).copied().ok_or_else(|| {
            RequestError::Refused(format!("endpoint {index} is not in the address vector"))
        })
    }

    fn register(
        &mut self,
        token: Token,
        payload: Payload,
        access: &[RegionAccess],
    ) -> Result<Started, RequestError> {
        let memory = self.memory(&payload.bytes())?;
        let access = access.iter().fold(Access::LOCAL_WRITE, |bits, access| {
            bits | match access {
                RegionAccess::RemoteRead => Access::REMOTE_READ,
                RegionAccess::RemoteWrite => Access::REMOTE_WRITE,
            }
        });
        let region = self.endpoint.register(memory, access)?;
        self.regions.insert(token, memory);
        Ok(Started::Region(Remote {
            address: memory.address,
            key: region.remote_key.0,
        }))
    }

    fn start_atomic(
        &mut self,
        token: Token,
        to: EndpointIndex,
        remote: Remote,
        (datatype, action): (AtomicDatatype, AtomicAction),
        operand: Payload,
        delivery_complete: bool,
    ) -> Result<(), RequestError> {
        let peer = self.peer(to)?;
        let length = operand.length;
        let operand = [IoVec::new(self.memory(&operand.bytes())?)];
        let memory = self.blank(length)?;
        let result = [IoVec::new(memory)];
        let comparand;
        let kind = match action {
            AtomicAction::Update(_) => AtomicKind::Write,
            AtomicAction::Fetch(_) => AtomicKind::Fetch { result: &result },
            AtomicAction::Compare {
                comparand: seed, ..
            } => {
                comparand = [IoVec::new(self.memory(&pattern::bytes(seed, length))?)];
                AtomicKind::Compare {
                    result: &result,
                    comparand: &comparand,
                }
            }
        };
        self.endpoint.atomic(AtomicArgs {
            peer,
            datatype,
            operation: action.code(),
            operand: &operand,
            kind,
            remote: &[remote_piece(remote, length)],
            flags: completion(delivery_complete),
            context: token,
        })?;
        if !matches!(action, AtomicAction::Update(_)) {
            self.buffers.insert(token, memory);
            self.reads.insert(token);
        }
        Ok(())
    }

    /// Memory with these contents.
    fn memory(&mut self, bytes: &[u8]) -> Result<UserSlice, RequestError> {
        let slice = self.blank(bytes.len())?;
        self.endpoint.nic_mut().fill_user(slice.address, bytes)?;
        Ok(slice)
    }

    fn blank(&mut self, length: usize) -> Result<UserSlice, RequestError> {
        Ok(self.endpoint.nic_mut().allocate_user(length)?)
    }
}

impl<N: HostNic> Application for CoreApplication<N> {
    fn address(&self) -> Result<Vec<u8>, RequestError> {
        Ok(self.endpoint.address().to_bytes().to_vec())
    }

    fn insert(&mut self, peer: EndpointIndex, address: &[u8]) -> Result<(), RequestError> {
        let Ok(bytes) = <&[u8; RawAddress::LEN]>::try_from(address) else {
            return Err(RequestError::Refused(format!(
                "a raw address has {} bytes, not {}",
                RawAddress::LEN,
                address.len()
            )));
        };
        let id = self
            .endpoint
            .insert_address(RawAddress::from_bytes(bytes))?;
        self.peers.insert(peer, id);
        Ok(())
    }

    fn remove(&mut self, peer: EndpointIndex) -> Result<(), RequestError> {
        let id = self.peer(peer)?;
        self.endpoint.remove_address(id)?;
        self.peers.remove(&peer);
        Ok(())
    }

    fn start(&mut self, token: Token, request: &OperationRequest) -> Result<Started, RequestError> {
        match *request {
            OperationRequest::Recv { length, from, tag } => {
                let source = from.map(|peer| self.peer(peer)).transpose()?;
                let source = source.map_or(SourceFilter::Any, SourceFilter::Peer);
                let memory = self.blank(length)?;
                self.endpoint.recv(RecvArgs {
                    tag: tag.map(|tag| TagFilter {
                        tag: tag.tag,
                        ignore: tag.ignore,
                    }),
                    ..RecvArgs::new(source, &[IoVec::new(memory)], token)
                })?;
                self.buffers.insert(token, memory);
            }
            OperationRequest::Send {
                to,
                payload,
                tag,
                data,
                mode,
            } => {
                let peer = self.peer(to)?;
                let memory = self.memory(&payload.bytes())?;
                self.endpoint.send(SendArgs {
                    peer,
                    data: &[IoVec::new(memory)],
                    tag,
                    cq_data: data,
                    flags: match mode {
                        SendMode::Inject => OperationFlags::INJECT,
                        mode => completion(mode == SendMode::DeliveryComplete),
                    },
                    context: token,
                })?;
                self.buffers.insert(token, memory);
            }
            OperationRequest::Register {
                payload,
                ref access,
            } => return self.register(token, payload, access),
            OperationRequest::Write {
                to,
                remote,
                payload,
                data,
                delivery_complete,
            } => {
                let peer = self.peer(to)?;
                let memory = self.memory(&payload.bytes())?;
                self.endpoint.write(WriteArgs {
                    peer,
                    data: &[IoVec::new(memory)],
                    remote: &[remote_piece(remote, payload.length)],
                    cq_data: data,
                    flags: completion(delivery_complete),
                    context: token,
                })?;
                self.buffers.insert(token, memory);
            }
            OperationRequest::Read {
                from,
                remote,
                length,
            } => {
                let peer = self.peer(from)?;
                let memory = self.blank(length)?;
                self.endpoint.read(ReadArgs {
                    peer,
                    buffer: &[IoVec::new(memory)],
                    remote: &[remote_piece(remote, length)],
                    flags: OperationFlags::COMPLETION,
                    context: token,
                })?;
                self.buffers.insert(token, memory);
                self.reads.insert(token);
            }
            OperationRequest::Atomic {
                to,
                remote,
                datatype,
                action,
                operand,
                delivery_complete,
            } => {
                let what = (datatype, action);
                self.start_atomic(token, to, remote, what, operand, delivery_complete)?;
            }
        }
        Ok(Started::Operation)
    }

    fn poll(&mut self) -> Result<Vec<Outcome>, RequestError> {
        let now = (self.clock)();
        self.endpoint.progress(now);
        let mut outcomes = Vec::new();
        while let Some(completion) = self.endpoint.poll_completion() {
            let (context, flags, mut length, tag, data, source, result) = match completion {
                Ok(entry) => (
                    entry.context,
                    entry.flags,
                    entry.length,
                    entry.tag,
                    entry.data,
                    entry.source,
                    Ok(()),
                ),
                Err(entry) => (
                    entry.context,
                    entry.flags,
                    entry.length,
                    entry.tag,
                    entry.data,
                    entry.source,
                    Err(Failure {
                        code: entry.failure.errno.0,
                        text: format!("{} ({:?})", entry.failure.errno, entry.failure.provider),
                        overflow: entry.overflow_length,
                    }),
                ),
            };
            let remote = CompletionFlags::REMOTE_READ | CompletionFlags::REMOTE_WRITE;
            let token = (!flags.intersects(remote)).then_some(context);
            let buffer = token.and_then(|token| self.buffers.remove(&token));
            let bytes = match buffer {
                Some(slice) => self.endpoint.nic_mut().dump_user(slice)?,
                None => Vec::new(),
            };
            if token.is_some_and(|token| self.reads.remove(&token)) {
                length = bytes.len() as u64;
            }
            let source = source.filter(|_| self.report_sources).and_then(|id| {
                let found = self.peers.iter().find(|(_, known)| **known == id);
                found.map(|(index, _)| *index)
            });
            outcomes.push(Outcome {
                token,
                length,
                tag,
                data: flags
                    .contains(CompletionFlags::REMOTE_CQ_DATA)
                    .then_some(data),
                source,
                result,
                bytes,
            });
        }
        Ok(outcomes)
    }

    fn events(&mut self) -> Result<Vec<String>, RequestError> {
        let mut events = Vec::new();
        while let Some(event) = self.endpoint.poll_event() {
            if !self.is_copy(&event) {
                events.push(format!("{event:?}"));
            }
        }
        Ok(events)
    }

    fn region(&mut self, token: Token) -> Result<Vec<u8>, RequestError> {
        match self.regions.get(&token) {
            Some(&slice) => Ok(self.endpoint.nic_mut().dump_user(slice)?),
            None => Err(RequestError::Refused(format!(
                "operation {token} registered no memory"
            ))),
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.endpoint.next_timeout()
    }

    fn take_device_errors(&mut self) -> Vec<String> {
        self.endpoint.nic_mut().take_device_errors()
    }
}

fn completion(delivery_complete: bool) -> OperationFlags {
    let mut flags = OperationFlags::COMPLETION;
    flags.set(OperationFlags::DELIVERY_COMPLETE, delivery_complete);
    flags
}

fn remote_piece(remote: Remote, length: usize) -> RemoteIoVec {
    RemoteIoVec::new(remote.address, length as u64, RemoteKey(remote.key))
}
