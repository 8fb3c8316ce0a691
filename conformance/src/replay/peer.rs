//! A scripted endpoint: a bare device that sends given packets and hands over what arrives.

use efa_core::address::RawAddress;
use efa_core::nic::{
    Access, BufferId, Completion, CompletionKind, Destination, DeviceCaps, Domain, Doorbell,
    NicError, QueuePair, RdmaRequest, RemoteKey, SendRequest, Status, UserSlice,
};

use super::backend::BackendError;
use crate::application::engine::HostNic;
use crate::operation::{EndpointIndex, Remote};

/// What a scripted endpoint's device reported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// A packet of the endpoint under test.
    Packet(Vec<u8>),
    /// An RDMA write of the endpoint under test arrived, with immediate data.
    Written {
        /// The immediate data.
        immediate: u32,
    },
    /// A packet was not delivered.
    Failed(Status),
    /// An RDMA read of memory of the endpoint under test ended.
    Read {
        /// The name that the read was given.
        name: usize,
        /// What was read, or why nothing was.
        result: Result<Vec<u8>, Status>,
    },
}

/// A scripted endpoint.
pub struct Peer<N: HostNic> {
    endpoint: EndpointIndex,
    nic: N,
    to: Destination,
    in_flight: usize,
    /// Packets that met a receiver that was not ready.
    again: Vec<(BufferId, usize)>,
    lengths: Vec<(u64, usize)>,
    /// RDMA reads in flight: context, name, where the data goes.
    reads: Vec<(u64, usize, UserSlice)>,
    /// RDMA writes in flight.
    writes: usize,
    next_context: u64,
    completions: Vec<Completion>,
}

impl<N: HostNic> Peer<N> {
    /// Completions taken at once.
    const BATCH: usize = 64;

    /// Prepares the device of endpoint `endpoint` to talk to the endpoint under test.
    pub fn new(endpoint: EndpointIndex, mut nic: N, dut: RawAddress) -> Result<Self, BackendError> {
        let refused = |what| move |source| BackendError::Nic { what, source };
        let ahn = nic
            .create_address_handle(dut.gid)
            .map_err(refused("make an address handle"))?;
        for _ in 0..nic.queue_pair().attributes().recv_queue_depth / 2 {
            let Some(buffer) = nic.acquire_buffer() else {
                break;
            };
            nic.post_recv(buffer).map_err(refused("post a receive"))?;
        }
        Ok(Peer {
            endpoint,
            nic,
            to: Destination {
                ahn,
                qpn: dut.qpn,
                qkey: dut.qkey,
            },
            in_flight: 0,
            again: Vec::new(),
            lengths: Vec::new(),
            reads: Vec::new(),
            writes: 0,
            next_context: 0,
            completions: Vec::new(),
        })
    }

    /// Whom it plays.
    pub fn endpoint(&self) -> EndpointIndex {
        self.endpoint
    }

    /// Whether everything that was sent has arrived.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.again.is_empty() && !self.is_busy_with_rdma()
    }

    /// Whether an RDMA operation is in flight.
    pub fn is_busy_with_rdma(&self) -> bool {
        !self.reads.is_empty() || self.writes > 0
    }

    /// Registers memory with these contents for the endpoint under test.
    pub fn register(&mut self, bytes: &[u8]) -> Result<Remote, NicError> {
        let memory = self.nic.allocate_user(bytes.len())?;
        self.nic.fill_user(memory.address, bytes)?;
        // A device refuses rights that nobody could use.
        let caps = self.nic.attributes().caps;
        let mut access = Access::LOCAL_WRITE;
        access.set(Access::REMOTE_READ, caps.contains(DeviceCaps::RDMA_READ));
        access.set(Access::REMOTE_WRITE, caps.contains(DeviceCaps::RDMA_WRITE));
        let region = self.nic.register(memory, access)?;
        Ok(Remote {
            address: memory.address,
            key: region.remote_key.0,
        })
    }

    /// Reads memory of the endpoint under test; the result is an [`Arrival::Read`].
    pub fn read(&mut self, name: usize, remote: Remote, length: usize) -> Result<bool, NicError> {
        let local = self.nic.allocate_user(length)?;
        let region = self.nic.register(local, Access::LOCAL_WRITE)?;
        let context = self.next_context;
        let posted = self.nic.post_read(
            &RdmaRequest {
                destination: self.to,
                local,
                local_key: region.local_key,
                remote_address: remote.address,
                remote_key: RemoteKey(remote.key),
                immediate: None,
                context,
            },
            Doorbell::Ring,
        );
        match posted {
            Ok(()) => {
                self.next_context += 1;
                self.reads.push((context, name, local));
                Ok(true)
            }
            Err(NicError::QueueFull) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes to memory of the endpoint under test; `false` if the device's queue is full.
    pub fn write(
        &mut self,
        remote: Remote,
        bytes: &[u8],
        immediate: Option<u32>,
    ) -> Result<bool, NicError> {
        let local = self.nic.allocate_user(bytes.len())?;
        self.nic.fill_user(local.address, bytes)?;
        let region = self.nic.register(local, Access::LOCAL_WRITE)?;
        let posted = self.nic.post_write(
            &RdmaRequest {
                destination: self.to,
                local,
                local_key: region.local_key,
                remote_address: remote.address,
                remote_key: RemoteKey(remote.key),
                immediate,
                context: self.next_context,
            },
            Doorbell::Ring,
        );
        match posted {
            Ok(()) => {
                self.next_context += 1;
                self.writes += 1;
                Ok(true)
            }
            Err(NicError::QueueFull) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The bytes of registered memory.
    pub fn dump(&mut self, address: u64, length: usize) -> Result<Vec<u8>, NicError> {
        self.nic.dump_user(UserSlice { address, length })
    }

    /// Sends a packet; `false` if the device's queue is full.
    pub fn send(&mut self, bytes: &[u8]) -> Result<bool, NicError> {
        if bytes.len() > self.nic.attributes().mtu {
            return Err(NicError::Invalid {
                what: "packet length",
                value: bytes.len() as u64,
            });
        }
        let Some(buffer) = self.nic.acquire_buffer() else {
            return Ok(false);
        };
        self.nic.buffer_mut(buffer)[..bytes.len()].copy_from_slice(bytes);
        self.post(buffer, bytes.len())
    }

    fn post(&mut self, buffer: BufferId, length: usize) -> Result<bool, NicError> {
        let context = self.next_context;
        let posted = self.nic.post_send(
            &SendRequest {
                destination: self.to,
                buffer,
                header_length: length,
                payload: None,
                immediate: None,
                context,
            },
            Doorbell::Ring,
        );
        match posted {
            Ok(()) => {
                self.next_context += 1;
                self.lengths.push((context, length));
                self.in_flight += 1;
                Ok(true)
            }
            Err(NicError::QueueFull) => {
                self.nic.release_buffer(buffer);
                Ok(false)
            }
            Err(error) => {
                self.nic.release_buffer(buffer);
                Err(error)
            }
        }
    }

    /// Takes what the device has to say.
    pub fn poll(&mut self) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        let mut completions = std::mem::take(&mut self.completions);
        self.nic.poll(&mut completions, Self::BATCH);
        for completion in completions.drain(..) {
            match completion.kind {
                CompletionKind::Send { buffer } => {
                    self.in_flight -= 1;
                    let place = self
                        .lengths
                        .iter()
                        .position(|(context, _)| *context == completion.context);
                    let length = place.map_or(0, |place| self.lengths.swap_remove(place).1);
                    match completion.status {
                        Status::Ok => self.nic.release_buffer(buffer),
                        Status::RemoteRnr => self.again.push((buffer, length)),
                        status => {
                            self.nic.release_buffer(buffer);
                            arrivals.push(Arrival::Failed(status));
                        }
                    }
                }
                CompletionKind::Recv { buffer, length, .. } => {
                    if completion.status == Status::Ok {
                        let bytes = self.nic.buffer(buffer)[..length].to_vec();
                        arrivals.push(Arrival::Packet(bytes));
                    }
                    if self.nic.post_recv(buffer).is_err() {
                        self.nic.release_buffer(buffer);
                    }
                }
                CompletionKind::RdmaRead => {
                    let found = self
                        .reads
                        .iter()
                        .position(|(context, ..)| *context == completion.context);
                    let Some(found) = found else { continue };
                    let (_, name, local) = self.reads.swap_remove(found);
                    let result = match completion.status {
                        Status::Ok => self
                            .nic
                            .dump_user(local)
                            .map_err(|_| Status::LocalQpInternalError),
                        status => Err(status),
                    };
                    arrivals.push(Arrival::Read { name, result });
                }
                CompletionKind::RdmaWrite => {
                    self.writes -= 1;
                    if completion.status != Status::Ok {
                        arrivals.push(Arrival::Failed(completion.status));
                    }
                }
                CompletionKind::RecvRdmaWithImmediate {
                    buffer, immediate, ..
                } => {
                    arrivals.push(Arrival::Written { immediate });
                    if let Some(buffer) = buffer
                        && self.nic.post_recv(buffer).is_err()
                    {
                        self.nic.release_buffer(buffer);
                    }
                }
            }
        }
        self.completions = completions;
        for (buffer, length) in std::mem::take(&mut self.again) {
            let bytes = self.nic.buffer(buffer)[..length].to_vec();
            self.nic.release_buffer(buffer);
            match self.send(&bytes) {
                Ok(true) => {}
                Ok(false) => {
                    if let Some(buffer) = self.nic.acquire_buffer() {
                        self.nic.buffer_mut(buffer)[..length].copy_from_slice(&bytes);
                        self.again.push((buffer, length));
                    }
                }
                Err(_) => arrivals.push(Arrival::Failed(Status::LocalQpInternalError)),
            }
        }
        arrivals
    }
}
