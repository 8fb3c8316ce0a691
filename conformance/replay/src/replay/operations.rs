//! The operations of a trace, and the packets of each.
//!
//! Packets refer to operations by ids, which are reused after the end of an operation. This module
//! follows all packets of a trace in the order in which they were sent, and assigns each to its
//! operation.

use std::collections::HashMap;

use efa_core::wire::fields::{FieldKind, field_of, fields_of};
use efa_core::wire::{Family, PacketType, PeerError};
use efa_play::operation::EndpointIndex;
use efa_play::trace::Trace;

use super::frames::{MOST_MEMORY, sent_requests};
use crate::compare::OperationIndex;
use crate::compare::policy::{IdKind, Rule, is_segment, kind_in_peer_error, standard};

/// An operation of a trace: a message, a write, a read or an atomic operation.
#[derive(Clone, Debug, Default)]
pub struct Operation {
    /// The data in its packets, by their offsets.
    pub content: Vec<u8>,
    pub(crate) packets: Vec<usize>,
}

/// The operations of a trace.
#[derive(Clone, Debug, Default)]
pub struct Operations {
    list: Vec<Operation>,
    /// By the packet's index.
    of: HashMap<usize, OperationIndex>,
    receivers: HashMap<usize, EndpointIndex>,
}

/// The value of a field of a packet.
pub fn number(packet: &[u8], name: &str) -> Option<u64> {
    field_of(packet, name)?.value.as_u64()
}

/// The application data of a packet.
pub fn data(packet: &[u8]) -> &[u8] {
    fields_of(packet)
        .and_then(|mut fields| fields.find(|field| field.descriptor.kind == FieldKind::Data))
        .map_or(&[], |field| field.bytes)
}

/// The part of its operation's data in a packet: offset and bytes.
pub fn segment(packet: &[u8]) -> Option<(u64, &[u8])> {
    let packet_type = PacketType::peek(packet)?;
    let offset = number(packet, "seg_offset").unwrap_or(0);
    is_segment(packet_type).then(|| (offset, data(packet)))
}

/// Whether a packet only requests a HANDSHAKE: an emulated write without data and target.
pub fn is_provocation(packet: &[u8]) -> bool {
    PacketType::peek(packet) == Some(PacketType::EagerRtw)
        && number(packet, "rma_iov_count") == Some(0)
        && data(packet).is_empty()
}

/// The id by which a packet refers to an operation of its receiver, if there is one.
pub fn reference(packet: &[u8]) -> Option<(IdKind, u64)> {
    fields_of(packet)?.find_map(|field| {
        let kind = match standard(field.packet_type, field.descriptor) {
            Rule::Refers(kind) => kind,
            Rule::MayRefer => kind_in_peer_error(packet)?,
            _ => return None,
        };
        let id = field.value.as_u64()?;
        (id != u64::from(PeerError::NO_OP)).then_some((kind, id))
    })
}

impl Operations {
    /// Assigns the packets of a trace to operations.
    pub fn of(trace: &Trace) -> Self {
        let frames = &trace.capture.frames;
        let mut endpoints = HashMap::new();
        for place in sent_requests(trace) {
            let frame = &frames[place];
            let node = (frame.source, frame.header.source_qpn);
            endpoints.insert(node, trace.endpoint_of[frame.interface]);
        }
        let mut operations = Operations::default();
        let mut messages = HashMap::new();
        let mut ids = HashMap::new();
        for place in sent_requests(trace) {
            let frame = &frames[place];
            let sender = trace.endpoint_of[frame.interface];
            let node = (frame.destination, frame.header.destination_qpn);
            // A second queue pair only receives. All endpoints of a trace have different GIDs.
            let of_host = || {
                endpoints
                    .iter()
                    .find(|((gid, _), _)| *gid == frame.destination)
            };
            let receiver = match frame.headerless {
                true => of_host().map(|(_, receiver)| receiver),
                false => endpoints.get(&node),
            };
            let Some(&receiver) = receiver else {
                continue;
            };
            operations.receivers.insert(place, receiver);
            let packet = &frame.payload[..];
            let Some(packet_type) = frame.packet_type() else {
                continue;
            };
            if is_provocation(packet) {
                continue;
            }
            let operation = match packet_type.family() {
                Family::Rtm | Family::Rta => {
                    let key = (sender, receiver, number(packet, "msg_id"));
                    let next = operations.list.len();
                    Some(*messages.entry(key).or_insert(next))
                }
                Family::Rtw | Family::Rtr => Some(operations.list.len()),
                _ => {
                    let named = reference(packet)
                        .and_then(|(kind, id)| ids.get(&(receiver, kind, id)).copied());
                    named.or_else(|| {
                        // At least it identifies its message.
                        let ends = match kind_in_peer_error(packet)? {
                            IdKind::Receive => (sender, receiver),
                            IdKind::Send => (receiver, sender),
                        };
                        let key = (ends.0, ends.1, number(packet, "msg_id"));
                        messages.get(&key).copied()
                    })
                }
            };
            let Some(operation) = operation else { continue };
            if operation == operations.list.len() {
                operations.list.push(Operation::default());
            }
            for field in fields_of(packet).into_iter().flatten() {
                if let Rule::Introduces(kind) = standard(packet_type, field.descriptor)
                    && let Some(id) = field.value.as_u64()
                {
                    ids.insert((sender, kind, id), operation);
                }
            }
            let entry = &mut operations.list[operation];
            entry.packets.push(place);
            if let Some((start, bytes)) = segment(packet) {
                let start = start as usize;
                let end = start.saturating_add(bytes.len());
                // Longer data is never recorded. Lengths in packets are not trusted.
                if end <= MOST_MEMORY as usize {
                    if entry.content.len() < end {
                        entry.content.resize(end, 0);
                    }
                    entry.content[start..end].copy_from_slice(bytes);
                }
            }
            operations.of.insert(place, operation);
        }
        operations
    }

    /// The operation of the packet with index `place`.
    pub fn operation(&self, place: usize) -> Option<OperationIndex> {
        self.of.get(&place).copied()
    }

    /// The operation with this index.
    pub fn get(&self, operation: OperationIndex) -> &Operation {
        &self.list[operation]
    }

    /// The receiver of the packet with index `place`.
    pub fn receiver(&self, place: usize) -> Option<EndpointIndex> {
        self.receivers.get(&place).copied()
    }
}
