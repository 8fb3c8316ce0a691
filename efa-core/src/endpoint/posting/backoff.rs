//! Back-off after receiver-not-ready errors, with the wait times of stock libfabric.
//!
//! After its first refusal, a packet is posted again immediately. A further refusal starts a wait,
//! during which no packets are sent to the peer. Each wait is twice as long as the previous one,
//! until the peer accepts a packet.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BinaryHeap, VecDeque};

use crate::endpoint::api::config::EndpointConfig;
use crate::endpoint::api::time::Instant;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::base::random::Random;

use super::work::Work;

/// The waits of one peer.
#[derive(Default)]
pub(crate) struct PeerBackoff {
    /// The end of the current wait.
    until: Option<Instant>,
    /// The length of the last wait; zero once the peer has accepted a packet.
    last_wait: Duration,
    /// Work for the peer that is deferred until the end of the wait.
    pub(super) deferred_work: VecDeque<Work>,
}

impl PeerBackoff {
    /// Returns whether sending to the peer is suspended now.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.until.is_some()
    }

    /// The duration for which sending to the peer is still suspended.
    pub(super) fn remaining(&self, now: Instant) -> Duration {
        let until = self.until.map_or(now.0, |until| until.0);
        until.saturating_sub(now.0)
    }

    /// Returns whether the peer accepts packets.
    pub(crate) fn is_idle(&self) -> bool {
        self.until.is_none() && self.last_wait.is_zero() && self.deferred_work.is_empty()
    }
}

/// Treatment of a packet that was refused with RNR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AfterRnr {
    /// Post it again.
    RetryNow,
    /// Post it again after the wait.
    RetryAfterBackoff,
}

/// The waits of all peers.
pub(super) struct Backoffs {
    /// The ends of waits. Some may belong to peers that were removed.
    timers: BinaryHeap<Reverse<(Instant, PeerId)>>,
    /// The number of peers that had no receive buffer for their last packet.
    waiting_peers: usize,
    random: Random,
    first_micros: (u32, u32),
    longest: Duration,
}

impl Backoffs {
    pub(super) fn new(config: &EndpointConfig) -> Self {
        Backoffs {
            timers: BinaryHeap::new(),
            waiting_peers: 0,
            random: Random::new(config.seed),
            first_micros: config.backoff_first_micros,
            longest: config.backoff_max,
        }
    }

    /// Records that a peer had no receive buffer for a packet, for the `attempt`-th time.
    pub(super) fn rnr(
        &mut self,
        peer: PeerId,
        backoff: &mut PeerBackoff,
        attempt: u32,
        now: Instant,
    ) -> AfterRnr {
        if backoff.is_active() {
            return AfterRnr::RetryAfterBackoff;
        }
        if attempt <= 1 {
            return AfterRnr::RetryNow;
        }
        let wait = if backoff.last_wait.is_zero() {
            self.waiting_peers += 1;
            let (shortest, longest) = self.first_micros;
            let spread = u64::from(longest.saturating_sub(shortest)) + 1;
            Duration::from_micros(u64::from(shortest) + self.random.next() % spread)
        } else {
            backoff.last_wait.saturating_mul(2)
        };
        let wait = wait.max(Duration::from_nanos(1)).min(self.longest);
        let until = now + wait;
        backoff.last_wait = wait;
        backoff.until = Some(until);
        self.timers.push(Reverse((until, peer)));
        AfterRnr::RetryAfterBackoff
    }

    /// Returns whether any peer has refused packets since it last accepted one.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.waiting_peers > 0
    }

    /// Records that the peer accepted a packet: its next wait is a first one again.
    pub(super) fn got_through(&mut self, backoff: &mut PeerBackoff) {
        if !backoff.is_active() {
            self.forget(backoff);
        }
    }

    /// Forgets the waits of a peer.
    pub(super) fn forget(&mut self, backoff: &mut PeerBackoff) {
        self.waiting_peers -= usize::from(!backoff.last_wait.is_zero());
        backoff.last_wait = Duration::ZERO;
    }

    /// The time when the next wait ends.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((until, _))| *until)
    }

    /// Removes and returns a peer whose wait ends at or before `now`, and the end of that wait.
    #[inline]
    pub(super) fn next_over(&mut self, now: Instant) -> Option<(Instant, PeerId)> {
        let Reverse((until, _)) = self.timers.peek()?;
        if *until > now {
            return None;
        }
        self.timers.pop().map(|Reverse(over)| over)
    }
}

impl PeerBackoff {
    /// Ends the wait that ends at `until`. Returns whether there was one.
    pub(super) fn end(&mut self, until: Instant) -> bool {
        let ends = self.until == Some(until);
        if ends {
            self.until = None;
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::base::ids::Id;

    const MICRO: Duration = Duration::from_micros(1);

    fn backoffs() -> Backoffs {
        Backoffs::new(&EndpointConfig {
            backoff_first_micros: (100, 100),
            backoff_max: 350 * MICRO,
            ..EndpointConfig::default()
        })
    }

    /// Ends all waits that are over at `now`.
    fn end(backoffs: &mut Backoffs, backoff: &mut PeerBackoff, now: Instant) -> bool {
        let over = backoffs.next_over(now);
        over.is_some_and(|(until, _)| backoff.end(until))
    }

    #[test]
    fn waiting_starts_at_the_second_rnr_and_doubles() {
        let (mut all, mut one) = (backoffs(), PeerBackoff::default());
        let peer = PeerId::new(3, 0);
        let mut now = Instant::START;
        assert_eq!(all.rnr(peer, &mut one, 1, now), AfterRnr::RetryNow);
        assert!(!all.any());
        for wait in [100, 200, 350, 350] {
            assert_eq!(all.rnr(peer, &mut one, 2, now), AfterRnr::RetryAfterBackoff);
            // Other packets for the peer wait with it.
            assert_eq!(all.rnr(peer, &mut one, 1, now), AfterRnr::RetryAfterBackoff);
            let until = now + wait * MICRO;
            assert_eq!(all.next_end(), Some(until));
            assert!(!end(&mut all, &mut one, now));
            now = until;
            assert!(end(&mut all, &mut one, now));
            assert!(!one.is_active());
        }
        assert!(all.any());
        all.got_through(&mut one);
        assert!(!all.any());
        all.rnr(peer, &mut one, 2, now);
        assert_eq!(all.next_end(), Some(now + 100 * MICRO));
    }

    #[test]
    fn success_during_a_wait_keeps_the_series() {
        let (mut all, mut one) = (backoffs(), PeerBackoff::default());
        all.rnr(PeerId::new(3, 0), &mut one, 2, Instant::START);
        all.got_through(&mut one);
        assert!(all.any() && one.is_active());
        all.forget(&mut one);
        assert!(!all.any());
    }

    #[test]
    fn a_timer_of_an_earlier_peer_ends_nothing() {
        let (mut all, mut gone) = (backoffs(), PeerBackoff::default());
        all.rnr(PeerId::new(3, 0), &mut gone, 2, Instant::START);
        let mut new = PeerBackoff::default();
        let (until, _) = all.next_over(Instant::START + 100 * MICRO).unwrap();
        assert!(!new.end(until));
    }
}
