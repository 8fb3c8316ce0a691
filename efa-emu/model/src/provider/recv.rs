//! Posting receives.

use std::sync::Arc;

use super::request_ids::{RequestIds, Retired};
use crate::device::queue::{Buffer, ReceiveDescriptor, ReceiveRing, RequestIdSize};
use crate::device::{Error, QpState};

/// The limits of a receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvQueueConfig {
    /// Scatter entries of one receive.
    pub max_sge: u32,
    /// The generation in request ids. It must differ from that of the last queue pair with the same
    /// number.
    pub generation: u32,
}

/// The receive queue of a queue pair on its client's side.
pub struct RecvQueue {
    ring: Arc<ReceiveRing>,
    ids: RequestIds,
    max_sge: u32,
    producer: u16,
    state: QpState,
}

impl RecvQueue {
    /// A receive queue on an empty ring. Its depth assumes that each receive uses all scatter
    /// entries.
    pub fn new(ring: Arc<ReceiveRing>, config: RecvQueueConfig) -> Self {
        let max_sge = config.max_sge.max(1);
        RecvQueue {
            ids: RequestIds::new(
                ring.entries() / max_sge,
                RequestIdSize::Bits16,
                config.generation,
            ),
            ring,
            max_sge,
            producer: 0,
            state: QpState::Reset,
        }
    }

    /// The number of descriptors for `receives` receives of `max_sge` entries each.
    pub fn descriptors(receives: u32, max_sge: u32) -> u32 {
        match receives.saturating_mul(max_sge.max(1)) {
            0 => 0,
            needed => needed.checked_next_power_of_two().unwrap_or(u32::MAX),
        }
    }

    /// The most receives that can be posted.
    pub fn depth(&self) -> usize {
        self.ids.depth()
    }

    /// The number of posted receives.
    pub fn outstanding(&self) -> usize {
        self.ids.outstanding()
    }

    /// The ring.
    pub fn ring(&self) -> &Arc<ReceiveRing> {
        &self.ring
    }

    /// Notes a change of the queue pair's state. [`QpState::Reset`] empties the queue.
    pub fn set_state(&mut self, state: QpState) {
        self.state = state;
        if state == QpState::Reset {
            self.producer = 0;
            self.ids.restart();
        }
    }

    /// Writes one receive into the ring, without the doorbell.
    #[inline]
    pub fn write(&mut self, wr_id: u64, buffers: &[Buffer]) -> Result<(), Error> {
        if matches!(self.state, QpState::Reset | QpState::Error) {
            return Err(Error::invalid("queue pair state", self.state as u64));
        }
        if buffers.len() > self.max_sge as usize {
            return Err(Error::invalid(
                "number of scatter entries",
                buffers.len() as u64,
            ));
        }
        let request_id = match self.ids.take_place(wr_id, true) {
            Some(request_id) => request_id,
            None => {
                let taken = self.ids.take_without_place(wr_id, true);
                taken.ok_or(Error::QueueFull("receive"))? as u16
            }
        };
        match buffers {
            [only] => self.push(request_id, true, true, *only),
            _ => self.push_several(request_id, buffers),
        }
        Ok(())
    }

    #[inline(never)]
    fn push_several(&mut self, request_id: u16, buffers: &[Buffer]) {
        let Some(last) = buffers.len().checked_sub(1) else {
            // A receive without memory still uses a descriptor, and matches empty messages.
            return self.push(request_id, true, true, Buffer::default());
        };
        for (position, buffer) in buffers.iter().enumerate() {
            self.push(request_id, position == 0, position == last, *buffer);
        }
    }

    /// Writes the descriptor at the producer counter.
    #[inline(always)]
    fn push(&mut self, request_id: u16, first: bool, last: bool, buffer: Buffer) {
        let descriptor = ReceiveDescriptor {
            request_id,
            first,
            last,
            buffer,
        };
        self.ring.write(self.producer, &descriptor);
        self.producer = self.producer.wrapping_add(1);
    }

    /// Publishes all entries written so far.
    #[inline]
    pub fn publish(&self) {
        self.ring.doorbell().write(u32::from(self.producer));
    }

    /// Posts one receive.
    pub fn post(&mut self, wr_id: u64, buffers: &[Buffer]) -> Result<(), Error> {
        self.write(wr_id, buffers)?;
        self.publish();
        Ok(())
    }

    /// As [`RequestIds::retire`].
    #[inline]
    pub fn retire(&mut self, request_id: u16) -> Retired {
        self.ids.retire(request_id)
    }
}
