//! Received packets and where their bytes are; packets that have to wait.
//!
//! A packet that waits (it came too early, or no receive matches it yet) stays in its device buffer
//! as long as few do, so that nothing is copied. Beyond that it is copied to memory of the engine
//! and the buffer goes back to the device: waiting packets must never keep the one that they wait
//! for from arriving.

use crate::nic::{BufferId, Nic};

use crate::endpoint::Endpoint;
use crate::endpoint::base::ids::{Arena, Id, PeerId, operation_id};

operation_id! {
    /// A packet that waits.
    pub(crate) HeldId
}

/// A received packet. Whoever has it must give it to [`Held::release`] in the end.
#[derive(Debug)]
#[must_use]
pub(crate) struct ReceivedPacket {
    storage: Storage,
    length: usize,
}

#[derive(Debug)]
enum Storage {
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

    /// Bytes of memory that it takes, or would take, outside of a device buffer.
    pub(crate) fn footprint(&self) -> usize {
        footprint(self.length)
    }

    /// Its bytes if they were copied; none if it is in a device buffer.
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

struct HeldPacket {
    packet: ReceivedPacket,
    next: Option<HeldId>,
}

/// The packets that wait.
pub(crate) struct Held {
    packets: Arena<HeldPacket, HeldId>,
    /// How many of them are in device buffers, and how many may be.
    in_buffers: usize,
    max_in_buffers: usize,
    /// Bytes of all copies, and how many there may be.
    copied_bytes: usize,
    max_copied_bytes: usize,
    /// Memory of earlier copies, by the sizes of [`CLASSES`].
    free: [Vec<Box<[u8]>>; CLASSES.len()],
}

/// Sizes of copies in bytes; larger packets have memory of exactly their size.
const CLASSES: [usize; 4] = [128, 512, 2048, 9216];

/// Memory of a copy of `length` bytes.
fn footprint(length: usize) -> usize {
    CLASSES
        .into_iter()
        .find(|size| length <= *size)
        .unwrap_or(length)
}

/// Free copies kept per class.
const MAX_FREE: usize = 1024;

impl Held {
    /// Keeps at most `max_in_buffers` packets in device buffers and `max_copied_bytes` elsewhere.
    pub(crate) fn new(max_in_buffers: usize, max_copied_bytes: usize) -> Self {
        Held {
            packets: Arena::new(usize::MAX),
            in_buffers: 0,
            max_in_buffers,
            copied_bytes: 0,
            max_copied_bytes,
            free: Default::default(),
        }
    }

    /// Makes a packet wait in front of the chain `next`. Gives its device buffer back if it was
    /// copied. The packet comes back if too many wait.
    pub(crate) fn hold<N: Nic>(
        &mut self,
        nic: &N,
        packet: ReceivedPacket,
        next: Option<HeldId>,
    ) -> Result<(HeldId, Option<BufferId>), ReceivedPacket> {
        if self.packets.is_full() {
            return Err(packet);
        }
        let mut packet = packet;
        let mut freed = None;
        if let Storage::Device(buffer) = packet.storage {
            let copy = if self.in_buffers < self.max_in_buffers {
                None
            } else {
                self.copy(&nic.buffer(buffer)[..packet.length])
            };
            match copy {
                Some(copy) => {
                    packet.storage = Storage::Copy(copy);
                    freed = Some(buffer);
                }
                None => self.in_buffers += 1,
            }
        }
        match self.packets.insert(HeldPacket { packet, next }) {
            Ok(id) => Ok((id, freed)),
            Err(held) => Err(held.packet),
        }
    }

    fn copy(&mut self, bytes: &[u8]) -> Option<Box<[u8]>> {
        let size = footprint(bytes.len());
        let class = CLASSES.iter().position(|class| *class == size);
        if self.copied_bytes + size > self.max_copied_bytes {
            // The device runs out of buffers, and senders are told that the receiver is not ready.
            return None;
        }
        self.copied_bytes += size;
        let mut copy = class
            .and_then(|class| self.free[class].pop())
            .unwrap_or_else(|| vec![0; size].into_boxed_slice());
        copy[..bytes.len()].copy_from_slice(bytes);
        Some(copy)
    }

    /// Puts another head in front of a chain's packets: links `id` to `next`.
    pub(crate) fn set_next(&mut self, id: HeldId, next: Option<HeldId>) {
        if let Some(held) = self.packets.get_mut(id) {
            held.next = next;
        }
    }

    /// Ends a packet's wait, and names the next of its chain.
    pub(crate) fn take(&mut self, id: HeldId) -> Option<(ReceivedPacket, Option<HeldId>)> {
        let HeldPacket { packet, next } = self.packets.remove(id)?;
        self.in_buffers -= usize::from(packet.buffer().is_some());
        Some((packet, next))
    }

    /// Gives up a packet that does not wait. Its device buffer, if it is in one, is the caller's.
    #[inline]
    pub(crate) fn release(&mut self, packet: ReceivedPacket) -> Option<BufferId> {
        match packet.storage {
            Storage::Device(buffer) => Some(buffer),
            Storage::Copy(copy) => {
                self.copied_bytes -= copy.len();
                if let Some(class) = CLASSES.iter().position(|size| copy.len() == *size)
                    && self.free[class].len() < MAX_FREE
                {
                    self.free[class].push(copy);
                }
                None
            }
        }
    }

    /// Whether a packet can wait without taking a buffer from those that the device must have.
    pub(crate) fn has_memory_for(&self, packet: &ReceivedPacket) -> bool {
        self.in_buffers < self.max_in_buffers
            || self.copied_bytes + packet.footprint() <= self.max_copied_bytes
    }

    /// Packets that wait in device buffers.
    pub(crate) fn in_buffers(&self) -> usize {
        self.in_buffers
    }

    /// Packets that wait.
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }
}

impl<N: Nic> Endpoint<N> {
    /// Makes a packet of a peer wait in front of the chain `next`.
    ///
    /// # Errors
    /// The packet comes back if too many wait, of all peers or of this one.
    pub(crate) fn hold(
        &mut self,
        peer: PeerId,
        packet: ReceivedPacket,
        next: Option<HeldId>,
    ) -> Result<HeldId, ReceivedPacket> {
        let footprint = packet.footprint();
        let Some(state) = self.peers.state_mut(peer) else {
            return Err(packet);
        };
        if footprint > self.config.peer_held_bytes.saturating_sub(state.held_bytes) {
            return Err(packet);
        }
        let (id, freed) = self.held.hold(self.posting.nic(), packet, next)?;
        state.held_bytes += footprint;
        if let Some(buffer) = freed {
            self.recycle(buffer);
        }
        Ok(id)
    }

    /// Ends the wait of a peer's packet, and names the next of its chain.
    pub(crate) fn take_held(
        &mut self,
        peer: PeerId,
        id: HeldId,
    ) -> Option<(ReceivedPacket, Option<HeldId>)> {
        let (packet, next) = self.held.take(id)?;
        if let Some(state) = self.peers.state_mut(peer) {
            state.held_bytes -= packet.footprint();
        }
        Some((packet, next))
    }

    /// Gives up a chain of packets of a peer that wait.
    pub(crate) fn drop_held(&mut self, peer: PeerId, head: HeldId) {
        let mut next = Some(head);
        while let Some((packet, behind)) = next.and_then(|held| self.take_held(peer, held)) {
            next = behind;
            self.release(packet);
        }
    }
}
