//! The packet buffers of a domain.
//!
//! The bytes of a buffer are in one place at a time: in the program while it owns the buffer, in
//! the simulated host's memory while the device has it. This detects a program that touches a
//! buffer after posting it, and nothing is copied. A buffer occupies memory once the program
//! accesses it, while it is sent, and once the device has written to it; posted receives occupy
//! none.

use std::cell::OnceCell;

use efa_core::address::Qpn;
use efa_core::nic::{BufferId, NicError};

use super::memory::{AddressSpace, blank};
use super::objects::Pool;
use efa_device_model::device::queue::Buffer;

/// The owner of a buffer.
enum BufferState {
    /// In the pool.
    Free,
    /// Owned by the program; empty until its first access.
    Program(OnceCell<Box<[u8]>>),
    /// Owned by the device, in a queue of this queue pair.
    Device(Qpn),
}

/// A pool of packet buffers with the addresses that the device uses for them.
pub(super) struct PacketBuffers {
    pool: Pool,
    /// The bytes of a buffer that packets may use.
    mtu: usize,
    places: Vec<BufferState>,
    free: Vec<u32>,
}

impl PacketBuffers {
    /// The distance between the addresses of two buffers for packets of up to `mtu` bytes.
    pub(super) fn stride_for(mtu: usize) -> usize {
        mtu.next_multiple_of(64)
    }

    /// `count` buffers of `mtu` bytes in `pool`.
    pub(super) fn new(pool: Pool, mtu: usize, count: usize) -> Self {
        PacketBuffers {
            pool,
            mtu,
            places: (0..count).map(|_| BufferState::Free).collect(),
            // The lowest number is acquired first.
            free: (0..count as u32).rev().collect(),
        }
    }

    /// The number of buffers in the pool.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    pub(super) fn acquire(&mut self, memory: &mut AddressSpace) -> Option<BufferId> {
        let index = self.free.pop()?;
        let spare = memory.take_spare(self.pool.stride);
        let bytes = spare.map_or_else(OnceCell::new, OnceCell::from);
        self.places[index as usize] = BufferState::Program(bytes);
        Some(BufferId(index))
    }

    pub(super) fn release(&mut self, buffer: BufferId, memory: &mut AddressSpace) {
        let Some(place) = self.places.get_mut(buffer.0 as usize) else {
            panic!("release of {buffer:?}, which is not a buffer of this domain");
        };
        match std::mem::replace(place, BufferState::Free) {
            BufferState::Program(bytes) => memory.put_spare(bytes.into_inner()),
            other => {
                *place = other;
                panic!("release of {buffer:?}, which the caller does not own");
            }
        }
        self.free.push(buffer.0);
    }

    pub(super) fn bytes(&self, buffer: BufferId) -> &[u8] {
        match self.places.get(buffer.0 as usize) {
            Some(BufferState::Program(bytes)) => {
                &bytes.get_or_init(|| blank(self.pool.stride))[..self.mtu]
            }
            _ => panic!("access to {buffer:?}, which the caller does not own"),
        }
    }

    pub(super) fn bytes_mut(&mut self, buffer: BufferId) -> &mut [u8] {
        match self.places.get_mut(buffer.0 as usize) {
            Some(BufferState::Program(bytes)) => {
                bytes.get_or_init(|| blank(self.pool.stride));
                let bytes = bytes.get_mut().expect("it is there now");
                &mut bytes[..self.mtu]
            }
            _ => panic!("access to {buffer:?}, which the caller does not own"),
        }
    }

    /// `length` bytes of a buffer from `offset` on, if the program owns it and it has them.
    pub(super) fn range_mut(
        &mut self,
        buffer: BufferId,
        offset: usize,
        length: usize,
    ) -> Result<&mut [u8], NicError> {
        self.check_owned(buffer)?;
        let out_of_range = NicError::invalid("offset in a packet buffer", offset as u64);
        let end = offset.checked_add(length).ok_or(out_of_range)?;
        let bytes = self.bytes_mut(buffer).get_mut(offset..end);
        bytes.ok_or(out_of_range)
    }

    pub(super) fn check_owned(&self, buffer: BufferId) -> Result<(), NicError> {
        match self.places.get(buffer.0 as usize) {
            Some(BufferState::Program(_)) => Ok(()),
            _ => Err(NicError::invalid(
                "packet buffer, not owned by the caller:",
                buffer.0,
            )),
        }
    }

    /// The descriptor of `length` bytes of a buffer, for the device.
    pub(super) fn describe(&self, buffer: BufferId, length: usize) -> Buffer {
        Buffer {
            address: self.pool.base + u64::from(buffer.0) * self.pool.stride as u64,
            length: length as u32,
            lkey: self.pool.lkey.0,
        }
    }

    /// Maps a buffer that the program owns into the host's memory for the device to send.
    pub(super) fn lend_to_send(&mut self, buffer: BufferId, to: Qpn, memory: &mut AddressSpace) {
        let place = &mut self.places[buffer.0 as usize];
        if let BufferState::Program(bytes) = std::mem::replace(place, BufferState::Device(to)) {
            let bytes = bytes
                .into_inner()
                .unwrap_or_else(|| blank(self.pool.stride));
            memory.lend(self.pool.base, buffer.0 as usize, bytes);
        }
    }

    /// Maps a buffer that the program owns into the host's memory for the device to write. Its
    /// contents are lost.
    pub(super) fn lend_to_receive(&mut self, buffer: BufferId, to: Qpn, memory: &mut AddressSpace) {
        let place = &mut self.places[buffer.0 as usize];
        if let BufferState::Program(bytes) = std::mem::replace(place, BufferState::Device(to)) {
            memory.put_spare(bytes.into_inner());
            memory.lend_blank(self.pool.base, buffer.0 as usize);
        }
    }

    /// Returns a buffer from the device.
    pub(super) fn take_back(&mut self, buffer: BufferId, memory: &mut AddressSpace) {
        // After a crash of the host its memory is lost; the buffer starts empty.
        let bytes = memory.take_back(self.pool.base, buffer.0 as usize);
        let bytes = bytes.or_else(|| memory.take_spare(self.pool.stride));
        let bytes = bytes.map_or_else(OnceCell::new, OnceCell::from);
        self.places[buffer.0 as usize] = BufferState::Program(bytes);
    }

    /// Returns the buffers of a queue pair that the device has to the pool.
    pub(super) fn reclaim(&mut self, from: Qpn, memory: &mut AddressSpace) {
        for index in 0..self.places.len() {
            if matches!(self.places[index], BufferState::Device(owner) if owner == from) {
                let buffer = BufferId(index as u32);
                self.take_back(buffer, memory);
                self.release(buffer, memory);
            }
        }
    }
}
