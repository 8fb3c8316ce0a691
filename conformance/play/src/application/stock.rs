//! Stock libfabric as an application.

use std::collections::HashMap;

use efa_core::wire::AtomicDatatype;

use super::{Application, Failure, OperationRequest, Outcome, RequestError, Started, Token};
use crate::libfabric::{
    self, Address, AtomicCall, Destination, Endpoint, RegionId, RemoteMemory, ffi,
};
use crate::operation::{
    AtomicAction, EndpointIndex, Payload, RegionAccess, Remote, SendMode, element_size, pattern,
};

/// An application over a stock endpoint.
#[derive(Debug)]
pub struct StockApplication {
    endpoint: Endpoint,
    peers: HashMap<EndpointIndex, Address>,
    regions: HashMap<Token, RegionId>,
    /// The number of bytes that an atomic fetches, at the end of its buffer.
    fetches: HashMap<Token, usize>,
}

impl From<libfabric::Error> for RequestError {
    fn from(error: libfabric::Error) -> Self {
        match error {
            error if error.is_try_again() => RequestError::TryAgain,
            error @ libfabric::Error::Missing(_) => RequestError::Unsupported(error.to_string()),
            error => RequestError::Refused(error.to_string()),
        }
    }
}

impl StockApplication {
    /// An application that uses an open endpoint.
    pub fn new(endpoint: Endpoint) -> Self {
        StockApplication {
            endpoint,
            peers: HashMap::new(),
            regions: HashMap::new(),
            fetches: HashMap::new(),
        }
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
        let to = self.remote(to, remote)?;
        let mut operands = operand.bytes();
        let call = match action {
            AtomicAction::Update(_) if delivery_complete => AtomicCall::DeliveryComplete,
            AtomicAction::Update(_) => AtomicCall::Update,
            AtomicAction::Fetch(_) => AtomicCall::Fetch,
            AtomicAction::Compare { comparand, .. } => {
                operands.extend(pattern::bytes(comparand, operand.length));
                AtomicCall::Compare
            }
        };
        let fetch = matches!(call, AtomicCall::Fetch | AtomicCall::Compare);
        if fetch {
            operands.resize(operands.len() + operand.length, 0);
        }
        self.endpoint.atomic(
            libfabric::Token(token),
            operands,
            operand.length / element_size(datatype),
            to,
            datatype.0,
            action.code().0,
            call,
        )?;
        if fetch {
            self.fetches.insert(token, operand.length);
        }
        Ok(())
    }

    fn remote(&self, peer: EndpointIndex, remote: Remote) -> Result<RemoteMemory, RequestError> {
        Ok(RemoteMemory {
            peer: self.peer(peer)?,
            address: remote.address,
            key: remote.key,
        })
    }

    fn peer(&self, index: EndpointIndex) -> Result<Address, RequestError> {
        self.peers.get(&index).copied().ok_or_else(|| {
            RequestError::Refused(format!("endpoint {index} is not in the address vector"))
        })
    }
}

impl Application for StockApplication {
    fn address(&self) -> Result<Vec<u8>, RequestError> {
        Ok(self.endpoint.name()?)
    }

    fn insert(&mut self, peer: EndpointIndex, address: &[u8]) -> Result<(), RequestError> {
        let address = self.endpoint.insert(address)?;
        self.peers.insert(peer, address);
        Ok(())
    }

    fn remove(&mut self, peer: EndpointIndex) -> Result<(), RequestError> {
        let address = self.peer(peer)?;
        self.endpoint.remove(address)?;
        self.peers.remove(&peer);
        Ok(())
    }

    fn start(&mut self, token: Token, request: &OperationRequest) -> Result<Started, RequestError> {
        let name = libfabric::Token(token);
        match *request {
            OperationRequest::Recv { length, from, tag } => {
                let from = from.map(|index| self.peer(index)).transpose()?;
                let buffer = vec![0; length];
                match tag {
                    None => self.endpoint.recv(name, buffer, from)?,
                    Some(tag) => {
                        self.endpoint
                            .recv_tagged(name, buffer, from, tag.tag, tag.ignore)?;
                    }
                }
            }
            OperationRequest::Send {
                to,
                payload,
                tag,
                data,
                mode,
            } => {
                let to = Destination {
                    peer: self.peer(to)?,
                    tag,
                    data,
                };
                let bytes = payload.bytes();
                match mode {
                    SendMode::Normal => self.endpoint.send(name, bytes, to)?,
                    SendMode::Inject => self.endpoint.inject(&bytes, to)?,
                    SendMode::DeliveryComplete => {
                        self.endpoint.send_delivery_complete(name, bytes, to)?;
                    }
                }
            }
            OperationRequest::Register {
                payload,
                ref access,
            } => {
                let access = access.iter().fold(0, |bits, access| {
                    bits | match access {
                        RegionAccess::RemoteRead => ffi::FI_REMOTE_READ,
                        RegionAccess::RemoteWrite => ffi::FI_REMOTE_WRITE,
                    }
                });
                let region = self.endpoint.register(payload.bytes(), access)?;
                self.regions.insert(token, region);
                let (address, key) = self.endpoint.region_location(region);
                return Ok(Started::Region(Remote { address, key }));
            }
            OperationRequest::Write {
                to,
                remote,
                payload,
                data,
                delivery_complete,
            } => {
                let to = self.remote(to, remote)?;
                let bytes = payload.bytes();
                self.endpoint
                    .write(name, bytes, to, data, delivery_complete)?;
            }
            OperationRequest::Read {
                from,
                remote,
                length,
            } => {
                let from = self.remote(from, remote)?;
                self.endpoint.read(name, vec![0; length], from)?;
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
        let mut outcomes = Vec::new();
        while let Some(mut completion) = self.endpoint.poll()? {
            let source = completion.source.and_then(|address| {
                let found = self.peers.iter().find(|(_, known)| **known == address);
                found.map(|(index, _)| *index)
            });
            let token = completion.token.map(|token| token.0);
            let fetched = token.and_then(|token| self.fetches.remove(&token));
            if let Some(length) = fetched {
                let operands = completion.buffer.len().saturating_sub(length);
                completion.buffer.drain(..operands);
            }
            // A read's completion states no length: it always fills the buffer.
            let is_read = completion.flags & ffi::FI_READ != 0 || fetched.is_some();
            let length = if is_read {
                completion.buffer.len()
            } else {
                completion.length
            };
            outcomes.push(Outcome {
                token,
                length: length as u64,
                tag: completion.tag,
                data: completion.data,
                source,
                result: completion.result.map_err(|failure| Failure {
                    code: failure.code,
                    text: failure.text,
                    overflow: failure.overflow as u64,
                }),
                bytes: completion.buffer,
            });
        }
        Ok(outcomes)
    }

    fn events(&mut self) -> Result<Vec<String>, RequestError> {
        let mut events = Vec::new();
        while let Some(failure) = self.endpoint.poll_event()? {
            events.push(format!(
                "{} (error {}, provider error {})",
                failure.text, failure.code, failure.provider_code
            ));
        }
        Ok(events)
    }

    fn region(&mut self, token: Token) -> Result<Vec<u8>, RequestError> {
        match self.regions.get(&token) {
            Some(region) => Ok(self.endpoint.region_bytes(*region)),
            None => Err(RequestError::Refused(format!(
                "operation {token} registered no memory"
            ))),
        }
    }
}
