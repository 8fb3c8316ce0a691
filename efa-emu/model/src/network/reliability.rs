//! Retransmission of lost frames by the network card.

use std::time::Duration;

use crate::link::Operation;

/// The times at which a lost frame is retransmitted, and at which the request fails.
///
/// The real device's values are not public. With these defaults, an interruption of one second has
/// no visible effect, and a request to a dead host fails after two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reliability {
    /// Time before the first retransmission of a lost frame; it doubles after each loss.
    pub timeout: Duration,
    /// Transmissions of a frame before its request fails: 1 to [`Reliability::MOST_ATTEMPTS`].
    pub attempts: u32,
}

impl Default for Reliability {
    /// Half a millisecond, twelve attempts.
    fn default() -> Self {
        Reliability {
            timeout: Duration::from_micros(500),
            attempts: 12,
        }
    }
}

/// The consequence of a loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// The frame is retransmitted.
    Repeated {
        /// The time after the loss.
        after: Duration,
    },
    /// The request completes as unresponsive.
    Fatal {
        /// The time after the loss.
        after: Duration,
    },
    /// No consequence: a lost datagram is neither retransmitted nor reported.
    Unnoticed,
}

impl Reliability {
    /// Most attempts of a frame: the last time-out is 32768 times the first.
    pub const MOST_ATTEMPTS: u32 = 16;

    /// The consequence of the next loss of a frame that was lost `before` times.
    pub fn after_loss(&self, operation: Operation, before: u32) -> Loss {
        let after = self.timeouts(before, before.saturating_add(1));
        match () {
            () if operation.is_unanswered() => Loss::Unnoticed,
            () if before.saturating_add(1) < self.attempts => Loss::Repeated { after },
            () => Loss::Fatal { after },
        }
    }

    /// The consequence if a frame that was lost `before` times is lost now and at each further
    /// transmission.
    pub fn after_last_loss(&self, operation: Operation, before: u32) -> Loss {
        let after = self.timeouts(before, self.attempts.max(before.saturating_add(1)));
        match operation.is_unanswered() {
            true => Loss::Unnoticed,
            false => Loss::Fatal { after },
        }
    }

    /// The sum of the time-outs after the losses number `from`, counted from 0, up to but not
    /// including `to`.
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
        // More attempts than a changed configuration allows.
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
    fn datagrams_are_not_retransmitted() {
        let of = Reliability::default();
        assert_eq!(of.after_loss(Operation::Datagram, 0), Loss::Unnoticed);
        assert_eq!(of.after_last_loss(Operation::Datagram, 0), Loss::Unnoticed);
    }
}
