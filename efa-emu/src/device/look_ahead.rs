//! What a device does while nothing else is to be done: it has what the next message touches brought
//! into the processor's caches.
//!
//! Real hardware writes into the host's last-level cache, wherever the buffer lies. This one writes
//! with an ordinary processor, and a client like libfabric posts so many buffers (8192 of 9 KB) that
//! each has left every cache when its turn comes.

use efa_core::address::Qpn;
use efa_core::nic::Access;

use super::Device;
use super::keys::RegionTable;
use super::queue_pair::QueuePair;
use crate::link::{HostSegment, Token};
use crate::prefetch;

/// Descriptors whose memory is fetched ahead of messages.
const AHEAD: u16 = 2;

/// Bytes of memory that are fetched for a receive: the last message's length, since messages come in
/// runs of the same kind, but at least this, which hardly costs more.
const LEAST: u32 = 64;

impl Device {
    /// Fetches what the next message for the queue pair that received last is going to touch: ring
    /// entries, and memory by `fetch`, which has to take what it is given as a hint. Does nothing if
    /// no message has come since the last call.
    #[inline]
    pub fn look_ahead(&mut self, fetch: impl FnMut(HostSegment)) {
        if let Some(qpn) = self.last_receiver.take() {
            self.look_ahead_of(qpn, fetch);
        }
    }

    fn look_ahead_of(&mut self, qpn: Qpn, fetch: impl FnMut(HostSegment)) {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        qp.look_ahead(&self.regions, fetch);
        let (send_cq, recv_cq) = (qp.config.send_cq, qp.config.recv_cq);
        self.cqs.prefetch(recv_cq);
        if send_cq != recv_cq {
            self.cqs.prefetch(send_cq);
        }
    }
}

/// How near an event of the device is that the simulator knows of in advance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nearness {
    /// Several events before: what lies in the device itself is fetched.
    Coming,
    /// Then what that leads to: tables.
    Near,
    /// Then their entries.
    Close,
    /// Next: ring entries.
    Next,
}

impl Device {
    /// Fetches what a request for, or an answer to, the queue pair is going to touch, in steps: each fetches
    /// what the one before led to, so that none has to wait.
    #[inline]
    pub(crate) fn expect(&self, qpn: Qpn, nearness: Nearness) {
        match nearness {
            Nearness::Coming => {
                prefetch::value(&self.profile.mtu);
                prefetch::value(&self.regions);
                prefetch::value(&self.book);
                prefetch::value(&self.cqs);
                prefetch::value(&self.initiator);
                prefetch::value(&self.counters);
                prefetch::value(&self.last_receiver);
                self.qps.prefetch_page(qpn);
            }
            Nearness::Near => {
                self.regions.prefetch();
                self.cqs.prefetch_first();
                self.qps.prefetch_place(qpn);
            }
            Nearness::Close => {
                if let Some(qp) = self.qps.get(qpn) {
                    prefetch::value(qp);
                }
                self.cqs.prefetch_rings();
            }
            Nearness::Next => {
                if let Some(qp) = self.qps.get(qpn) {
                    qp.rings.recv.prefetch(qp.recv.consumed);
                    qp.rings.send.prefetch(qp.send.producer);
                    self.cqs.prefetch(qp.config.recv_cq);
                }
            }
        }
    }

    /// Fetches the request that a token names.
    #[inline]
    pub(crate) fn expect_answer(&self, token: Token) {
        self.initiator.prefetch(token);
    }
}

impl QueuePair {
    fn look_ahead(&mut self, regions: &RegionTable, mut fetch: impl FnMut(HostSegment)) {
        let Ok(posted) = self.posted_descriptors(AHEAD) else {
            // The next message finds that out.
            return;
        };
        let recv = &mut self.recv;
        // The counter is stale if descriptors were consumed that were never fetched.
        let fetched = recv.fetched.wrapping_sub(recv.consumed);
        let start = if fetched <= posted { fetched } else { 0 };
        for offset in start..posted.min(AHEAD) {
            let counter = recv.consumed.wrapping_add(offset);
            let buffer = self.rings.recv.read(counter).buffer;
            let length = buffer.length.min(recv.last_length.max(LEAST));
            let memory = regions.local(
                self.config.pd,
                buffer.lkey,
                buffer.address,
                length,
                Access::LOCAL_WRITE,
            );
            if let Some(memory) = memory {
                fetch(memory);
            }
            recv.fetched = counter.wrapping_add(1);
        }
        // Their descriptors are next.
        self.rings.recv.prefetch(recv.fetched.wrapping_add(AHEAD));
        self.rings.send.prefetch(self.send.producer);
    }
}
