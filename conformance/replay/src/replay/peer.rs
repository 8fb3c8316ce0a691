//! A scripted endpoint: a bare device that sends given packets and returns received ones.

use efa_core::address::RawAddress;
use efa_core::nic::{
    Access, BufferId, Completion, CompletionKind, Destination, DeviceCaps, Domain, Doorbell,
    NicError, QueuePair, RdmaRequest, RemoteKey, SendRequest, Status, UserSlice,
};
use efa_play::application::engine::HostNic;
use efa_play::operation::{EndpointIndex, Remote};

use super::backend::BackendError;

/// An event of a scripted endpoint's device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// A packet of the endpoint under test.
    Packet(Vec<u8>),
    /// A message of the endpoint under test without a header.
    Headerless {
        /// The whole message.
        bytes: Vec<u8>,
        /// Its completion data.
        immediate: Option<u32>,
    },
    /// An RDMA write with immediate data of the endpoint under test arrived.
    Written {
        /// The immediate data, which is in the completion of the receive.
        immediate: u32,
    },
    /// A request of the scripted endpoint completed with an error.
    Failed(Status),
    /// An RDMA read of memory of the endpoint under test completed.
    Read {
        /// The name of the read, as the caller chose it.
        name: usize,
        /// The bytes that were read, or the status of the completion.
        result: Result<Vec<u8>, Status>,
    },
}

/// The parameters of a send besides its bytes.
#[derive(Clone, Copy, Debug)]
struct Sending {
    to: Destination,
    length: usize,
    immediate: Option<u32>,
}

/// A scripted endpoint.
pub struct Peer<N: HostNic> {
    endpoint: EndpointIndex,
    nic: N,
    to: Destination,
    /// The device of the queue pair that receives messages without a header.
    headerless: Option<N>,
    /// The endpoint under test's address for such messages.
    to_headerless: Option<Destination>,
    in_flight: usize,
    /// Packets that were answered with RNR.
    again: Vec<(BufferId, Sending)>,
    /// Packets in flight, by their contexts.
    sending: Vec<(u64, Sending)>,
    /// RDMA reads in flight: context, name, and memory for the data.
    reads: Vec<(u64, usize, UserSlice)>,
    /// RDMA writes in flight.
    writes: usize,
    next_context: u64,
    completions: Vec<Completion>,
}

impl<N: HostNic> Peer<N> {
    /// Completions per poll.
    const BATCH: usize = 64;

    /// Prepares the device of endpoint `endpoint` to communicate with the endpoint under test.
    pub fn new(endpoint: EndpointIndex, mut nic: N, dut: RawAddress) -> Result<Self, BackendError> {
        let refused = |what| move |source| BackendError::Nic { what, source };
        let ahn = nic
            .create_address_handle(dut.gid)
            .map_err(refused("make an address handle"))?;
        post_receives(&mut nic)?;
        Ok(Peer {
            endpoint,
            nic,
            to: Destination::new(ahn, dut),
            headerless: None,
            to_headerless: None,
            in_flight: 0,
            again: Vec::new(),
            sending: Vec::new(),
            reads: Vec::new(),
            writes: 0,
            next_context: 0,
            completions: Vec::new(),
        })
    }

    /// The endpoint of the scenario.
    pub fn endpoint(&self) -> EndpointIndex {
        self.endpoint
    }

    /// The device.
    pub fn nic(&self) -> &N {
        &self.nic
    }

    /// Removes and returns the device's messages about failed requests.
    pub fn take_device_errors(&mut self) -> Vec<String> {
        let devices = self.headerless.iter_mut().chain([&mut self.nic]);
        devices.flat_map(HostNic::take_device_errors).collect()
    }

    /// Accepts messages without a header on another device, which has the same GID.
    pub fn takes_headerless_on(&mut self, mut nic: N) -> Result<(), BackendError> {
        post_receives(&mut nic)?;
        self.headerless = Some(nic);
        Ok(())
    }

    /// The address for messages without a header.
    pub fn headerless_address(&self) -> Option<RawAddress> {
        self.headerless.as_ref().map(|nic| nic.address())
    }

    /// Sets the endpoint under test's address for messages without a header.
    pub fn sends_headerless_to(&mut self, address: RawAddress) {
        self.to_headerless = Some(Destination::new(self.to.ahn, address));
    }

    /// Whether all sent packets have arrived.
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
        // A device refuses access rights that it does not support.
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

    /// Reads memory of the endpoint under test. The result is an [`Arrival::Read`].
    pub fn read(&mut self, name: usize, remote: Remote, length: usize) -> Result<bool, NicError> {
        let local = self.nic.allocate_user(length)?;
        let request = self.rdma_request(local, remote, None)?;
        let is_posted = is_posted(self.nic.post_read(&request, Doorbell::Ring))?;
        if is_posted {
            self.next_context += 1;
            self.reads.push((request.context, name, local));
        }
        Ok(is_posted)
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
        let request = self.rdma_request(local, remote, immediate)?;
        let is_posted = is_posted(self.nic.post_write(&request, Doorbell::Ring))?;
        if is_posted {
            self.next_context += 1;
            self.writes += 1;
        }
        Ok(is_posted)
    }

    /// A request for the memory `local`, which is registered.
    fn rdma_request(
        &mut self,
        local: UserSlice,
        remote: Remote,
        immediate: Option<u32>,
    ) -> Result<RdmaRequest, NicError> {
        let region = self.nic.register(local, Access::LOCAL_WRITE)?;
        Ok(RdmaRequest {
            destination: self.to,
            local,
            local_key: region.local_key,
            remote_address: remote.address,
            remote_key: RemoteKey(remote.key),
            immediate,
            context: self.next_context,
        })
    }

    /// The bytes of registered memory.
    pub fn dump(&mut self, address: u64, length: usize) -> Result<Vec<u8>, NicError> {
        self.nic.dump_user(UserSlice { address, length })
    }

    /// Sends a packet; `false` if the device's queue is full.
    pub fn send(&mut self, bytes: &[u8]) -> Result<bool, NicError> {
        self.send_to(self.to, bytes, None)
    }

    /// Sends a message without a header; `false` if the device's queue is full, or the endpoint
    /// under test has not announced an address for such messages.
    pub fn send_headerless(
        &mut self,
        bytes: &[u8],
        immediate: Option<u32>,
    ) -> Result<bool, NicError> {
        match self.to_headerless {
            Some(to) => self.send_to(to, bytes, immediate),
            None => Ok(false),
        }
    }

    fn send_to(
        &mut self,
        to: Destination,
        bytes: &[u8],
        immediate: Option<u32>,
    ) -> Result<bool, NicError> {
        if bytes.len() > self.nic.attributes().mtu {
            return Err(NicError::invalid("packet length", bytes.len() as u64));
        }
        let Some(buffer) = self.nic.acquire_buffer() else {
            return Ok(false);
        };
        self.nic.buffer_mut(buffer)[..bytes.len()].copy_from_slice(bytes);
        let length = bytes.len();
        let sending = Sending {
            to,
            length,
            immediate,
        };
        self.post(buffer, sending)
    }

    fn post(&mut self, buffer: BufferId, sending: Sending) -> Result<bool, NicError> {
        let context = self.next_context;
        let posted = self.nic.post_send(
            &SendRequest {
                destination: sending.to,
                buffer,
                header_length: sending.length,
                payload: None,
                immediate: sending.immediate,
                context,
            },
            Doorbell::Ring,
        );
        let is_posted = is_posted(posted);
        if let Ok(true) = is_posted {
            self.next_context += 1;
            self.sending.push((context, sending));
            self.in_flight += 1;
        } else {
            self.nic.release_buffer(buffer);
        }
        is_posted
    }

    /// Processes the device's events.
    pub fn poll(&mut self) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        let mut completions = std::mem::take(&mut self.completions);
        self.nic.poll(&mut completions, Self::BATCH);
        for completion in completions.drain(..) {
            arrivals.extend(self.complete(&completion));
        }
        if let Some(nic) = &mut self.headerless {
            nic.poll(&mut completions, Self::BATCH);
            let completed = completions.drain(..);
            arrivals
                .extend(completed.filter_map(|completion| receive_headerless(nic, &completion)));
        }
        self.completions = completions;
        self.send_again(&mut arrivals);
        arrivals
    }

    /// Processes a completion of the first device.
    fn complete(&mut self, completion: &Completion) -> Option<Arrival> {
        let Completion {
            context, status, ..
        } = *completion;
        match completion.kind {
            CompletionKind::Send { buffer } => {
                self.in_flight -= 1;
                let mut sending = self.sending.iter();
                let place = sending.position(|(sent, _)| *sent == context);
                let sending = place.map(|place| self.sending.swap_remove(place).1);
                if let (Status::RemoteRnr, Some(sending)) = (status, sending) {
                    self.again.push((buffer, sending));
                    return None;
                }
                self.nic.release_buffer(buffer);
                (status != Status::Ok).then_some(Arrival::Failed(status))
            }
            CompletionKind::Recv { buffer, length, .. } => {
                let arrived = status == Status::Ok;
                let bytes = arrived.then(|| self.nic.buffer(buffer)[..length].to_vec());
                post_again(&mut self.nic, buffer);
                bytes.map(Arrival::Packet)
            }
            CompletionKind::RdmaRead => {
                let found = self.reads.iter().position(|(read, ..)| *read == context)?;
                let (_, name, local) = self.reads.swap_remove(found);
                let read = |_| Status::LocalQpInternalError;
                let result = match status {
                    Status::Ok => self.nic.dump_user(local).map_err(read),
                    status => Err(status),
                };
                Some(Arrival::Read { name, result })
            }
            CompletionKind::RdmaWrite => {
                self.writes -= 1;
                (status != Status::Ok).then_some(Arrival::Failed(status))
            }
            // Scripted endpoints post no user memory.
            CompletionKind::RecvUser { .. } => None,
            CompletionKind::RecvRdmaWithImmediate {
                buffer, immediate, ..
            } => {
                if let Some(buffer) = buffer {
                    post_again(&mut self.nic, buffer);
                }
                Some(Arrival::Written { immediate })
            }
        }
    }

    /// Sends the packets that were answered with RNR again.
    fn send_again(&mut self, arrivals: &mut Vec<Arrival>) {
        for (buffer, sending) in std::mem::take(&mut self.again) {
            let length = sending.length;
            let bytes = self.nic.buffer(buffer)[..length].to_vec();
            self.nic.release_buffer(buffer);
            match self.send_to(sending.to, &bytes, sending.immediate) {
                Ok(true) => {}
                Ok(false) => {
                    if let Some(buffer) = self.nic.acquire_buffer() {
                        self.nic.buffer_mut(buffer)[..length].copy_from_slice(&bytes);
                        self.again.push((buffer, sending));
                    }
                }
                Err(_) => arrivals.push(Arrival::Failed(Status::LocalQpInternalError)),
            }
        }
    }
}

/// Whether a request was posted; it was not if the device's queue is full.
fn is_posted(posted: Result<(), NicError>) -> Result<bool, NicError> {
    match posted {
        Err(NicError::QueueFull) => Ok(false),
        posted => posted.map(|()| true),
    }
}

/// Processes a completion of the device for messages without a header.
fn receive_headerless<N: HostNic>(nic: &mut N, completion: &Completion) -> Option<Arrival> {
    let CompletionKind::Recv {
        buffer,
        length,
        immediate,
        ..
    } = completion.kind
    else {
        return None;
    };
    let arrived = completion.status == Status::Ok;
    let bytes = arrived.then(|| nic.buffer(buffer)[..length].to_vec());
    post_again(nic, buffer);
    bytes.map(|bytes| Arrival::Headerless { bytes, immediate })
}

/// Posts the buffer of a completed receive again.
fn post_again<N: HostNic>(nic: &mut N, buffer: BufferId) {
    if nic.post_recv(buffer).is_err() {
        nic.release_buffer(buffer);
    }
}

fn post_receives<N: HostNic>(nic: &mut N) -> Result<(), BackendError> {
    for _ in 0..nic.queue_pair().attributes().recv_queue_depth / 2 {
        let Some(buffer) = nic.acquire_buffer() else {
            break;
        };
        nic.post_recv(buffer).map_err(|source| BackendError::Nic {
            what: "post a receive",
            source,
        })?;
    }
    Ok(())
}
