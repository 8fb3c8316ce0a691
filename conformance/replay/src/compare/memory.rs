//! Comparison of registered memory in packets.

use efa_core::wire::fields::{Field, fields_of};
use efa_play::operation::{EndpointIndex, Remote};

use super::bindings::Bindings;
use super::policy::MemoryPart;
use super::recorded::{Recorded, numbers};

/// Recorded registered memory, and its actual counterpart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BoundRegion {
    pub(crate) owner: EndpointIndex,
    /// Its length in bytes.
    pub(crate) length: u64,
    pub(crate) recorded: Remote,
    pub(crate) actual: Remote,
}

/// An entry of an `rma_iov` or `read_iov` array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IovEntry {
    pub(crate) remote: Remote,
    /// Length in bytes.
    pub(crate) length: u64,
}

/// The expectation about an address or key. The texts follow "expected".
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum MemoryMismatch {
    /// One of the packets lacks a part of the entry.
    #[error("a whole entry")]
    NoEntry,
    /// Another value: the counterpart of the recorded one.
    #[error("{wanted:#x} (recorded {recorded:#x})")]
    Value { wanted: u64, recorded: u64 },
    /// The recorded memory has no counterpart.
    #[error(
        "memory that was registered, but the trace has {:#x} with key {:#x}",
        .0.address, .0.key
    )]
    NotRegistered(Remote),
}

/// The entry of the array `array` at `index`.
pub(crate) fn iov_entry(packet: &[u8], array: &str, index: Option<usize>) -> Option<IovEntry> {
    let value = |member: &str| {
        fields_of(packet)?
            .find(|field| {
                field.index == index && field.descriptor.name.strip_prefix(array) == Some(member)
            })?
            .value
            .as_u64()
    };
    Some(IovEntry {
        remote: Remote {
            address: value(".addr")?,
            key: value(".key")?,
        },
        length: value(".len")?,
    })
}

impl Bindings {
    /// Binds actual memory to recorded memory.
    pub(crate) fn bind_region(&mut self, region: BoundRegion) {
        self.regions.push(region);
    }

    /// Returns the actual counterpart of an address in recorded memory of `owner`. If several
    /// regions were recorded there, the latest is used.
    pub(crate) fn locate(&self, owner: EndpointIndex, recorded: Remote) -> Option<Remote> {
        self.regions.iter().rev().find_map(|region| {
            let offset = recorded.address.checked_sub(region.recorded.address)?;
            let is_inside = region.owner == owner
                && region.recorded.key == recorded.key
                && offset <= region.length;
            is_inside.then(|| Remote {
                address: region.actual.address.wrapping_add(offset),
                key: region.actual.key,
            })
        })
    }

    /// Compares an address or key with the counterpart of the recorded memory. Memory that the
    /// sender offers for the first time is bound to the recorded memory.
    pub(super) fn check_memory(
        &mut self,
        part: MemoryPart,
        recorded: Recorded<'_>,
        actual: &[u8],
        expected: &Field<'_>,
        found: &Field<'_>,
    ) -> Result<(), MemoryMismatch> {
        let array = expected.descriptor.name.split('.').next().unwrap_or("");
        let wanted = iov_entry(recorded.bytes, array, expected.index);
        let offered = iov_entry(actual, array, found.index);
        let (Some(wanted), Some(offered)) = (wanted, offered) else {
            return Err(MemoryMismatch::NoEntry);
        };
        let owner = match part {
            MemoryPart::SenderAddress | MemoryPart::SenderKey => {
                if self.locate(recorded.sender, wanted.remote).is_none() {
                    self.bind_region(BoundRegion {
                        owner: recorded.sender,
                        length: wanted.length,
                        recorded: wanted.remote,
                        actual: offered.remote,
                    });
                }
                recorded.sender
            }
            MemoryPart::ReceiverAddress | MemoryPart::ReceiverKey => recorded.receiver,
        };
        let (_, found) = numbers(expected, found);
        match self.locate(owner, wanted.remote) {
            Some(place) => {
                let (wanted, recorded) = match part {
                    MemoryPart::SenderAddress | MemoryPart::ReceiverAddress => {
                        (place.address, wanted.remote.address)
                    }
                    MemoryPart::SenderKey | MemoryPart::ReceiverKey => {
                        (place.key, wanted.remote.key)
                    }
                };
                if wanted == found {
                    Ok(())
                } else {
                    Err(MemoryMismatch::Value { wanted, recorded })
                }
            }
            None => Err(MemoryMismatch::NotRegistered(wanted.remote)),
        }
    }
}
