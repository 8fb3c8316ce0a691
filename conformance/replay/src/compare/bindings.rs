//! The map from recorded values to actual ones, and the translation of recorded packets.

use std::collections::HashMap;

use efa_core::address::RawAddress;
use efa_core::wire::fields::{FieldName, Value, fields_of};
use efa_core::wire::{PacketType, PeerError};
use efa_play::operation::EndpointIndex;
use efa_play::scenario::PolicyOverride;

use super::address::Address;
use super::memory::{BoundRegion, iov_entry};
use super::policy::{AddressPart, IdKind, MemoryPart, Rule, kind_in_peer_error, rule};
use super::recorded::{OperationIndex, Recorded};

/// The map from recorded values to actual ones.
#[derive(Clone, Debug)]
pub(crate) struct Bindings {
    pub(super) recorded: Vec<RawAddress>,
    pub(super) actual: Vec<RawAddress>,
    /// The id that an endpoint has assigned to an operation.
    pub(super) ids: HashMap<(OperationIndex, EndpointIndex, IdKind), u64>,
    /// The operation of each id that a scripted endpoint has chosen.
    pub(super) scripted: HashMap<(EndpointIndex, IdKind, u64), OperationIndex>,
    pub(super) constants: HashMap<(EndpointIndex, PacketType, FieldName), u64>,
    pub(super) regions: Vec<BoundRegion>,
    pub(super) policies: Vec<PolicyOverride>,
}

/// The first id of a scripted endpoint. Recorded ids are small numbers.
pub(super) const FIRST_SCRIPTED_ID: u64 = 0x5EED_0001;

/// A scripted packet refers to a value that the endpoint under test never introduced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Unbound {
    pub(crate) field: String,
    /// The recorded value.
    pub(crate) value: u64,
}

impl Bindings {
    /// Bindings of endpoints with `recorded` addresses to those with `actual` addresses.
    pub(crate) fn new(
        recorded: Vec<RawAddress>,
        actual: Vec<RawAddress>,
        policies: &[PolicyOverride],
    ) -> Self {
        Bindings {
            recorded,
            actual,
            ids: HashMap::new(),
            scripted: HashMap::new(),
            constants: HashMap::new(),
            regions: Vec::new(),
            policies: policies.to_vec(),
        }
    }

    /// Returns the operation for which scripted endpoint `owner` chose `id`.
    pub(crate) fn operation_of(
        &self,
        owner: EndpointIndex,
        kind: IdKind,
        id: u64,
    ) -> Option<OperationIndex> {
        self.scripted.get(&(owner, kind, id)).copied()
    }

    /// Returns the id by which a packet's receiver refers to its operation.
    pub(super) fn receivers_id(&self, recorded: Recorded<'_>, kind: IdKind) -> Option<u64> {
        let key = (recorded.operation?, recorded.receiver, kind);
        self.ids.get(&key).copied()
    }

    /// Returns the actual counterpart of a part of a recorded address. Queue pair numbers of
    /// different hosts may be equal, so the packet's sender is tried first.
    fn address_of(
        &self,
        sender: EndpointIndex,
        part: AddressPart,
        recorded: Value<'_>,
    ) -> Option<Address> {
        let is_it = |at: &EndpointIndex| {
            let known = self.recorded.get(*at);
            known.is_some_and(|known| Address::of(part, *known).as_value() == recorded)
        };
        let at = std::iter::once(sender)
            .chain(0..self.recorded.len())
            .find(is_it)?;
        Some(Address::of(part, self.actual[at]))
    }

    /// Returns the id that scripted endpoint `owner` assigns to an operation.
    fn scripted_id(
        &mut self,
        operation: OperationIndex,
        owner: EndpointIndex,
        kind: IdKind,
    ) -> u64 {
        let next = FIRST_SCRIPTED_ID + self.scripted.len() as u64;
        let id = *self.ids.entry((operation, owner, kind)).or_insert(next);
        self.scripted.insert((owner, kind, id), operation);
        id
    }

    /// Translates a recorded packet of the scripted peer: to the actual addresses, to unique ids,
    /// and to the ids and memory of the endpoint under test (`recorded.receiver`).
    pub(crate) fn translate(&mut self, recorded: Recorded<'_>) -> Result<Vec<u8>, Unbound> {
        let mut bytes = recorded.bytes.to_vec();
        for field in fields_of(recorded.bytes).into_iter().flatten() {
            let place = field.range();
            let unbound = || Unbound {
                field: field.name().to_string(),
                value: field.value.as_u64().unwrap_or(0),
            };
            let number = match rule(field.packet_type, field.descriptor, &self.policies) {
                Rule::Address(part) => {
                    // An address of an unknown endpoint is sent as recorded.
                    if let Some(address) = self.address_of(recorded.sender, part, field.value) {
                        address.write(&mut bytes[place]);
                    }
                    continue;
                }
                Rule::Introduces(kind) => match recorded.operation {
                    Some(operation) => self.scripted_id(operation, recorded.sender, kind),
                    None => continue,
                },
                Rule::Refers(kind) => self.receivers_id(recorded, kind).ok_or_else(unbound)?,
                Rule::MayRefer if field.value == Value::Unsigned(PeerError::NO_OP.into()) => {
                    continue;
                }
                Rule::MayRefer => {
                    let kind = kind_in_peer_error(recorded.bytes).ok_or_else(unbound)?;
                    self.receivers_id(recorded, kind).ok_or_else(unbound)?
                }
                Rule::Memory(part) => {
                    let array = field.descriptor.name.split('.').next().unwrap_or("");
                    let owner = match part {
                        MemoryPart::SenderAddress | MemoryPart::SenderKey => recorded.sender,
                        MemoryPart::ReceiverAddress | MemoryPart::ReceiverKey => recorded.receiver,
                    };
                    let located = iov_entry(recorded.bytes, array, field.index)
                        .and_then(|entry| self.locate(owner, entry.remote))
                        .ok_or_else(unbound)?;
                    match part {
                        MemoryPart::SenderAddress | MemoryPart::ReceiverAddress => located.address,
                        MemoryPart::SenderKey | MemoryPart::ReceiverKey => located.key,
                    }
                }
                _ => continue,
            };
            let width = place.len();
            bytes[place].copy_from_slice(&number.to_le_bytes()[..width]);
        }
        Ok(bytes)
    }
}
