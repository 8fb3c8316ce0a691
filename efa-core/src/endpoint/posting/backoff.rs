//! Receivers that are not ready: the waits of stock libfabric.
//!
//! The first refusal of a packet is answered by posting it again at once. A further one starts a wait
//! in which nothing is sent to the peer, each time twice as long as the last, until a packet gets
//! through.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::VecDeque;

use crate::nic::Nic;

use crate::endpoint::Endpoint;
use crate::endpoint::api::error::{Errno, Failure, ProviderError};
use crate::endpoint::base::ids::{PacketId, PeerId};
use crate::endpoint::conversation::Backoff;
use crate::endpoint::posting::work::Work;

impl<N: Nic> Endpoint<N> {
    pub(crate) fn on_receiver_not_ready(&mut self, id: PacketId) {
        self.statistics.receiver_not_ready += 1;
        let Some(packet) = self.packets.get_mut(id) else {
            self.statistics.stray_completions += 1;
            return;
        };
        packet.refusals += 1;
        let (peer, first) = (packet.peer, packet.refusals == 1);
        let Some(state) = self.peers.state_mut(peer) else {
            return self.lose_packet(id, Failure::new(Errno::ECANCELED, ProviderError::RemoteRnr));
        };
        if state.backoff.is_some() {
            self.park(peer, Work::Resend(id));
        } else if first {
            self.resend.push_back(Work::Resend(id));
        } else {
            let (shortest, longest) = self.config.backoff_first_micros;
            let wait = if state.last_wait.is_zero() {
                self.waiting_peers += 1;
                let spread = u64::from(longest.saturating_sub(shortest)) + 1;
                let micros = u64::from(shortest) + self.random.next() % spread;
                Duration::from_micros(micros)
            } else {
                state.last_wait.saturating_mul(2)
            };
            let wait = wait
                .max(Duration::from_nanos(1))
                .min(self.config.backoff_max);
            let until = self.now + wait;
            state.last_wait = wait;
            state.backoff = Some(Backoff { until });
            self.timers.push(Reverse((until, peer)));
            self.park(peer, Work::Resend(id));
        }
    }

    /// Makes work wait for the end of a peer's back-off.
    pub(crate) fn park(&mut self, peer: PeerId, work: Work) {
        let Some(state) = self.peers.state_mut(peer) else {
            return;
        };
        state.parked.push_back(work);
        self.parked += 1;
        if let Work::Resend(id) = work
            && self.is_in_buffer(id)
        {
            if self.parked_buffers < self.max_parked_buffers {
                self.parked_buffers += 1;
            } else {
                self.store(id);
            }
        }
    }

    /// Takes all work that waits for a peer.
    pub(crate) fn unpark(&mut self, parked: &mut VecDeque<Work>) {
        self.parked -= parked.len();
        for work in parked.drain(..) {
            if let Work::Resend(id) = work {
                self.parked_buffers -= usize::from(self.is_in_buffer(id));
            }
            self.queue_work(work);
        }
    }

    pub(crate) fn end_backoff_series(&mut self, peer: PeerId) {
        if let Some(state) = self.peers.state_mut(peer)
            && !state.last_wait.is_zero()
            && state.backoff.is_none()
        {
            state.last_wait = Duration::ZERO;
            self.waiting_peers -= 1;
        }
    }

    /// Ends the waits whose time has come.
    pub(crate) fn end_backoffs(&mut self) {
        while let Some(Reverse((until, peer))) = self.timers.peek().copied()
            && until <= self.now
        {
            self.timers.pop();
            if let Some(state) = self.peers.state_mut(peer)
                && state.backoff == Some(Backoff { until })
            {
                state.backoff = None;
                let mut parked = core::mem::take(&mut state.parked);
                self.unpark(&mut parked);
                // Its memory serves the next wait.
                if let Some(state) = self.peers.state_mut(peer) {
                    state.parked = parked;
                }
            }
        }
    }
}
