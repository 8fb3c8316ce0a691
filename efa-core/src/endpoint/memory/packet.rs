//! A received packet, and where its bytes are.

use crate::nic::{BufferId, Domain, Nic};

/// A received packet. Its owner must finally pass it to `Posting::release`.
#[derive(Debug)]
#[must_use]
pub(crate) struct ReceivedPacket {
    storage: Storage,
    length: usize,
}

/// The location of a received packet's bytes.
#[derive(Debug)]
pub(crate) enum Storage {
    Device(BufferId),
    Copy(Box<[u8]>),
}

impl ReceivedPacket {
    /// A packet in a device buffer.
    pub(crate) fn in_buffer(buffer: BufferId, length: usize) -> Self {
        ReceivedPacket {
            storage: Storage::Device(buffer),
            length,
        }
    }

    /// Its device buffer, if it is in one.
    pub(crate) fn buffer(&self) -> Option<BufferId> {
        match self.storage {
            Storage::Device(buffer) => Some(buffer),
            Storage::Copy(_) => None,
        }
    }

    /// A packet whose first `length` bytes were copied to memory of the engine.
    pub(crate) fn copied(copy: Box<[u8]>, length: usize) -> Self {
        ReceivedPacket {
            storage: Storage::Copy(copy),
            length,
        }
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// The location of its bytes: a device buffer, or memory of the engine.
    pub(crate) fn into_storage(self) -> Storage {
        self.storage
    }

    /// Its bytes if they were copied; no bytes if it is in a device buffer.
    pub(crate) fn copied_bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::Device(_) => &[],
            Storage::Copy(bytes) => &bytes[..self.length],
        }
    }

    /// All its bytes.
    pub(crate) fn bytes<'a, N: Nic>(&'a self, nic: &'a N) -> &'a [u8] {
        let bytes = match &self.storage {
            Storage::Device(buffer) => nic.buffer(*buffer),
            Storage::Copy(bytes) => bytes,
        };
        &bytes[..self.length]
    }
}
