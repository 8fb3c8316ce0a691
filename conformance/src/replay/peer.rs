//! A scripted endpoint: a bare device that sends given packets and hands over what arrives.

use efa_core::address::RawAddress;
use efa_core::nic::{
    BufferId, Completion, CompletionKind, Destination, NicError, SendRequest, Status,
};

use super::backend::BackendError;
use crate::application::engine::HostNic;
use crate::scenario::EndpointIndex;

/// What a scripted endpoint's device reported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// A packet of the endpoint under test.
    Packet(Vec<u8>),
    /// A packet was not delivered.
    Failed(Status),
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
        for _ in 0..nic.attributes().recv_queue_depth / 2 {
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
        self.in_flight == 0 && self.again.is_empty()
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
        let posted = self.nic.post_send(&SendRequest {
            destination: self.to,
            buffer,
            header_length: length,
            payload: None,
            immediate: None,
            context,
        });
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
                CompletionKind::RdmaRead
                | CompletionKind::RdmaWrite
                | CompletionKind::RecvRdmaWithImmediate { .. } => {}
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
