//! Retransmission of lost frames by the network card.

use std::time::Duration;

use crate::link::Operation;

/// When a lost frame goes again, and when the request is given up.
///
/// The real device's values are not public. With these, a cut of one second goes unnoticed, and a
/// request to a dead host ends after two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reliability {
    /// How long the card waits before it sends a lost frame again; doubled after each loss.
    pub timeout: Duration,
    /// How often a frame is sent before its request fails: 1 to [`Reliability::MOST_ATTEMPTS`].
    pub attempts: u32,
}

impl Default for Reliability {
    /// Half a millisecond, twelve times.
    fn default() -> Self {
        Reliability {
            timeout: Duration::from_micros(500),
            attempts: 12,
        }
    }
}

/// Consequence of a loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// The frame goes again.
    Repeated {
        /// How long after the loss.
        after: Duration,
    },
    /// The request completes as unresponsive.
    Fatal {
        /// How long after the loss.
        after: Duration,
    },
    /// Nothing: a lost datagram is not sent again and fails nothing.
    Unnoticed,
}

impl Reliability {
    /// Most attempts of a frame: the last time-out is 32768 times the first.
    pub const MOST_ATTEMPTS: u32 = 16;

    /// Consequence when a frame is lost that was lost `before` times already.
    pub fn after_loss(&self, operation: Operation, before: u32) -> Loss {
        let after = self.timeouts(before, before.saturating_add(1));
        match () {
            () if operation.is_unanswered() => Loss::Unnoticed,
            () if before.saturating_add(1) < self.attempts => Loss::Repeated { after },
            () => Loss::Fatal { after },
        }
    }

    /// Consequence when a frame that was lost `before` times is lost for good: now, and each time
    /// that it goes again.
    pub fn after_last_loss(&self, operation: Operation, before: u32) -> Loss {
        let after = self.timeouts(before, self.attempts.max(before.saturating_add(1)));
        match operation.is_unanswered() {
            true => Loss::Unnoticed,
            false => Loss::Fatal { after },
        }
    }

    /// The time-outs after the losses from number `from` on, counted from 0, to `to`, not included.
    fn timeouts(&self, from: u32, to: u32) -> Duration {
        let doubled = |times: u32| 1u32 << times.min(Self::MOST_ATTEMPTS);
        self.timeout.saturating_mul(doubled(to) - doubled(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEND: Operation = Operation::Send;

    #[test]
    fn time_outs_double_and_end() {
        let of = Reliability::default();
        let timeout = Duration::from_micros(500);
        assert_eq!(of.after_loss(SEND, 0), Loss::Repeated { after: timeout });
        assert_eq!(
            of.after_loss(SEND, 2),
            Loss::Repeated { after: timeout * 4 }
        );
        let last = timeout * 2048;
        assert_eq!(of.after_loss(SEND, 10), Loss::Repeated { after: last / 2 });
        assert_eq!(of.after_loss(SEND, 11), Loss::Fatal { after: last });
        // Attempts that were allowed before the configuration changed.
        assert!(matches!(of.after_loss(SEND, u32::MAX), Loss::Fatal { .. }));
    }

    #[test]
    fn a_permanent_loss_takes_all_attempts_time() {
        for attempts in 1..=Reliability::MOST_ATTEMPTS {
            let of = Reliability {
                attempts,
                ..Reliability::default()
            };
            for before in 0..attempts {
                let one_by_one = (before..attempts).map(|lost| match of.after_loss(SEND, lost) {
                    Loss::Repeated { after } | Loss::Fatal { after } => after,
                    Loss::Unnoticed => panic!("a send"),
                });
                let after = one_by_one.sum();
                assert_eq!(of.after_last_loss(SEND, before), Loss::Fatal { after });
            }
        }
    }

    #[test]
    fn nobody_sends_a_datagram_again() {
        let of = Reliability::default();
        assert_eq!(of.after_loss(Operation::Datagram, 0), Loss::Unnoticed);
        assert_eq!(of.after_last_loss(Operation::Datagram, 0), Loss::Unnoticed);
    }
}
