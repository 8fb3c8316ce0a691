//! Packets and RDMA requests on their way to the device and back. Only this part owns the device.
//!
//! [`Posting`] posts requests and remembers them until their completion. It keeps the receive queue
//! full. It stores received packets that wait, and work that waits for room in the device or for
//! the end of a back-off. Its caller handles completions, and receives the request of each.

mod backoff;
mod buffers;
mod deferred;
mod in_flight;
mod pending;
mod received;
mod requests;
mod retry;
mod work;

use crate::endpoint::api::config::EndpointConfig;
use crate::endpoint::base::ids::{Arena, PacketId};
use crate::nic::{Domain, Doorbell, Nic, QueuePair};

use backoff::Backoffs;
use buffers::ReceiveBuffers;
use deferred::DeferredPackets;
use in_flight::InFlight;
use work::WorkQueues;

pub(crate) use backoff::PeerBackoff;
pub(crate) use deferred::{DeferredPacketId, footprint};
pub(crate) use in_flight::{
    CompletedRequest, FinishedRequest, Headerless, OnePacket, Outgoing, PacketOwner, PostedRequest,
    Rdma,
};
pub(crate) use work::{AbandonedMessage, QUANTUM, Work};

/// The device, requests in flight, pending work, and packet buffers.
pub(crate) struct Posting<N> {
    nic: N,
    in_flight: Arena<InFlight, PacketId>,
    work: WorkQueues,
    backoffs: Backoffs,
    /// The number of pieces of work that wait for the end of a back-off, for all peers; the number
    /// of packet buffers that they hold, and its limit.
    deferred_work: usize,
    deferred_work_buffers: usize,
    max_deferred_work_buffers: usize,
    receives: ReceiveBuffers,
    /// Received packets that wait.
    deferred: DeferredPackets,
    /// Whether each post rings the doorbell immediately.
    doorbell: Doorbell,
    /// Whether requests may have been posted without the doorbell.
    is_deferring: bool,
}

impl<N: Nic> Posting<N> {
    /// Takes ownership of the device, and buffers for its receive queue.
    pub(crate) fn new(mut nic: N, config: &EndpointConfig, wanted_receives: usize) -> Self {
        let mut receives = ReceiveBuffers::new(wanted_receives);
        for _ in 0..wanted_receives {
            if let Some(buffer) = nic.acquire_buffer() {
                receives.push(buffer);
            }
        }
        Posting {
            max_deferred_work_buffers: nic.queue_pair().attributes().send_queue_depth / 4,
            nic,
            in_flight: Arena::new(usize::MAX),
            work: WorkQueues::default(),
            backoffs: Backoffs::new(config),
            deferred_work: 0,
            deferred_work_buffers: 0,
            receives,
            // A quarter of the receive queue may wait in buffers, so that new packets still arrive.
            deferred: DeferredPackets::new(wanted_receives / 4, config.deferred_bytes),
            doorbell: Doorbell::Ring,
            is_deferring: false,
        }
    }

    /// Starts a batch: posts do not ring the doorbell until [`Posting::end_batch`] or
    /// [`Posting::flush`].
    #[cold]
    pub(crate) fn begin_batch(&mut self) {
        self.doorbell = Doorbell::Defer;
        self.is_deferring = true;
    }

    /// Returns whether requests may have been posted without the doorbell.
    #[inline]
    pub(crate) fn is_deferring(&self) -> bool {
        self.is_deferring
    }

    /// Ends one operation of a batch. Unless `more` follow, this rings the doorbell for all
    /// requests, even if this operation posted nothing. Otherwise the next request rings it.
    #[cold]
    pub(crate) fn end_batch(&mut self, more: bool) {
        match more {
            true => self.doorbell = Doorbell::Ring,
            false => self.flush(),
        }
    }

    /// Rings the doorbell for all deferred requests.
    #[cold]
    pub(crate) fn flush(&mut self) {
        self.doorbell = Doorbell::Ring;
        self.is_deferring = false;
        self.nic.flush();
    }

    /// Releases the buffers of packets that are not in the device. The others are released with the
    /// queue pair.
    pub(crate) fn release_buffers(&mut self) {
        while let Some(buffer) = self.receives.pop() {
            self.nic.release_buffer(buffer);
        }
        while let Some(work) = self.work.pop() {
            if let Work::Retry(id) = work
                && let Some(buffer) = self.in_flight.remove(id).and_then(|packet| packet.buffer())
            {
                self.nic.release_buffer(buffer);
            }
        }
        for buffer in self.deferred.buffers() {
            self.nic.release_buffer(buffer);
        }
    }

    /// The device.
    #[inline]
    pub(crate) fn nic(&self) -> &N {
        &self.nic
    }

    /// The device, for everything but posting requests and received packets.
    #[inline]
    pub(crate) fn nic_mut(&mut self) -> &mut N {
        &mut self.nic
    }

    /// Returns the device.
    pub(crate) fn into_nic(self) -> N {
        self.nic
    }
}

#[cfg(test)]
mod tests;
