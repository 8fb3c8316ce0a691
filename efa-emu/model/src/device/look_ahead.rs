//! Prefetching: while it is idle, the device loads the memory for the next message into the
//! processor's caches.
//!
//! Real hardware writes into the host's last-level cache. This device writes with an ordinary
//! processor, and a client such as libfabric posts a large number of buffers (8192 of 9 KB): each
//! has been evicted from all caches when it is used.

use efa_core::address::Qpn;
use efa_core::nic::Access;

use super::queue_pair::QueuePair;
use super::regions::RegionTable;
use super::state::Device;
use crate::link::{HostSegment, Token};
use crate::prefetch;

/// The number of descriptors whose memory is prefetched.
const AHEAD: u16 = 2;

/// The least number of bytes that are prefetched for a receive. Usually it is the length of the
/// last message, because consecutive messages are often of the same type.
const LEAST: u32 = 64;

impl Device {
    /// Prefetches the memory for the next message to the last receiving queue pair: ring entries,
    /// and buffers by `fetch`, which must treat its arguments as hints. Does nothing if no message
    /// has arrived since the last call.
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

/// The expected delay until an event of the device. The simulator can compute it in advance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrefetchStage {
    /// After several other events: prefetch the fields of the device.
    Coming,
    /// Sooner: prefetch the tables.
    Near,
    /// Sooner still: prefetch the entries of the tables.
    Close,
    /// Next: prefetch ring entries.
    Next,
}

impl Device {
    /// Prefetches the memory for a request or an answer to the queue pair. Each step follows
    /// pointers that the previous step has loaded, so that none waits for memory.
    #[inline]
    pub fn expect(&self, qpn: Qpn, stage: PrefetchStage) {
        match stage {
            PrefetchStage::Coming => {
                prefetch::value(&self.profile.mtu);
                prefetch::value(&self.regions);
                prefetch::value(&self.book);
                prefetch::value(&self.cqs);
                prefetch::value(&self.initiator);
                prefetch::value(&self.counters);
                prefetch::value(&self.last_receiver);
                self.qps.prefetch_page(qpn);
            }
            PrefetchStage::Near => {
                self.regions.prefetch();
                self.cqs.prefetch_first();
                self.qps.prefetch_place(qpn);
            }
            PrefetchStage::Close => {
                if let Some(qp) = self.qps.get(qpn) {
                    prefetch::value(qp);
                }
                self.cqs.prefetch_rings();
            }
            PrefetchStage::Next => {
                if let Some(qp) = self.qps.get(qpn) {
                    qp.rings.recv.prefetch(qp.recv.consumed);
                    qp.rings.send.prefetch(qp.send.producer);
                    self.cqs.prefetch(qp.config.recv_cq);
                }
            }
        }
    }

    /// Prefetches the request of a token.
    #[inline]
    pub fn expect_answer(&self, token: Token) {
        self.initiator.prefetch(token);
    }
}

impl QueuePair {
    fn look_ahead(&mut self, regions: &RegionTable, mut fetch: impl FnMut(HostSegment)) {
        let Ok(posted) = self.posted_descriptors(AHEAD) else {
            // The next message reports the malformed queue.
            return;
        };
        let recv = &mut self.recv;
        // The counter is too low if descriptors were consumed that were never prefetched.
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
        // The later descriptors.
        self.rings.recv.prefetch(recv.fetched.wrapping_add(AHEAD));
        self.rings.send.prefetch(self.send.producer);
    }
}
