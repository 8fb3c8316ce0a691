//! The effect on an arriving frame, after the fault rules have been applied.

use std::time::Duration;

use efa_core::nic::Status;

use super::{Loss, Network, Transmission};
use crate::fault::{EventOutcome, FaultId};

/// The part of a frame's effect that is duplicated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Duplicated {
    /// No duplicate.
    #[default]
    Nothing,
    /// The completion for the frame is written twice.
    Completion,
    /// The responder's device gets the packet a second time, directly after the first. Only the
    /// first is answered.
    Packet,
}

/// The effect on an arriving frame. A link executes it with the link's clock and storage for
/// frames; it makes no decisions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disposition {
    /// The frame is delivered: a request to the responder's device, an answer to the initiator's.
    Proceeds {
        /// Whether it has an effect twice.
        twice: Duplicated,
        /// For a request: the device does not get it, and this is the answer. For an answer: this
        /// replaces the status.
        status: Option<Status>,
    },
    /// The frame is delivered after this time. The rules are not applied to it again.
    Late(Duration),
    /// The frame is deferred until `fault` is released or this many later frames of its flow have
    /// passed.
    Deferred {
        /// The rule that defers it.
        fault: FaultId,
        /// The number of later frames, if they release it.
        packets: Option<u32>,
    },
    /// The frame is lost.
    Lost(Loss),
}

impl Disposition {
    /// Derives the effect on this transmission from a rule's decision. `network` is that of the
    /// sending host.
    pub fn new(
        fate: Option<(FaultId, EventOutcome)>,
        transmission: &Transmission,
        network: &Network,
    ) -> Disposition {
        let operation = transmission.operation;
        let proceeds = Disposition::Proceeds {
            twice: Duplicated::Nothing,
            status: None,
        };
        let Some((fault, fate)) = fate else {
            return proceeds;
        };
        trace_fault(fault, transmission, fate);
        match fate {
            // These apply to other events than frames.
            EventOutcome::Fail(_) | EventOutcome::Qpn(_) => proceeds,
            EventOutcome::Hold { packets } => Disposition::Deferred { fault, packets },
            EventOutcome::Delay(delay) => Disposition::Late(network.delay(transmission, delay)),
            EventOutcome::Drop => Disposition::Lost(network.lose(transmission)),
            EventOutcome::Lose => {
                let reliability = &network.config.reliability;
                Disposition::Lost(reliability.after_last_loss(operation, transmission.lost))
            }
            EventOutcome::Duplicate => Disposition::Proceeds {
                twice: Duplicated::Completion,
                status: None,
            },
            EventOutcome::Repeat => Disposition::Proceeds {
                twice: Duplicated::Packet,
                status: None,
            },
            // A datagram's sender gets no answer.
            EventOutcome::Answer(_) if operation.is_unanswered() => {
                Disposition::Lost(Loss::Unnoticed)
            }
            EventOutcome::Answer(status) => Disposition::Proceeds {
                twice: Duplicated::Nothing,
                status: Some(status),
            },
        }
    }

    /// Whether the frame has passed, for frames that are deferred until later frames of their flow
    /// have passed. A delayed frame counts as passed, because the rule intends other frames to
    /// overtake it.
    pub fn passes(&self) -> bool {
        matches!(self, Disposition::Proceeds { .. } | Disposition::Late(_))
    }
}

#[cold]
fn trace_fault(fault: FaultId, transmission: &Transmission, fate: EventOutcome) {
    tracing::debug!(
        fault = fault.0,
        qpn = %transmission.source_qpn,
        sequence = transmission.sequence,
        stage = ?transmission.stage,
        ?fate,
        "a staged fault applies to a frame"
    );
}

#[cfg(test)]
mod tests {
    use crate::link::Operation;
    use efa_core::address::{Gid, Qpn};

    use super::*;
    use crate::fault::{Delay, Stage};
    use crate::network::{NetworkConfig, Reliability};

    const TIMEOUT: Duration = Duration::from_millis(10);

    fn network() -> Network {
        let config = NetworkConfig {
            reliability: Reliability {
                timeout: TIMEOUT,
                attempts: 3,
            },
            ..NetworkConfig::perfect()
        };
        Network::new(config, 1)
    }

    fn of(fate: EventOutcome, operation: Operation, lost: u32) -> Disposition {
        let transmission = Transmission {
            stage: Stage::Request,
            operation,
            initiator: Gid([1; 16]),
            responder: Gid([2; 16]),
            source_qpn: Qpn(2),
            sequence: 5,
            retries: 0,
            lost,
        };
        Disposition::new(Some((FaultId(7), fate)), &transmission, &network())
    }

    #[test]
    fn losses_are_the_reliability_layers_affair() {
        let send = |fate, lost| of(fate, Operation::Send, lost);
        let after = TIMEOUT;
        assert_eq!(
            send(EventOutcome::Drop, 0),
            Disposition::Lost(Loss::Repeated { after })
        );
        let after = 4 * TIMEOUT;
        assert_eq!(
            send(EventOutcome::Drop, 2),
            Disposition::Lost(Loss::Fatal { after })
        );
        let after = 7 * TIMEOUT;
        assert_eq!(
            send(EventOutcome::Lose, 0),
            Disposition::Lost(Loss::Fatal { after })
        );
        assert!(!send(EventOutcome::Lose, 0).passes() && !send(EventOutcome::Drop, 0).passes());
    }

    #[test]
    fn datagrams_that_do_not_proceed_are_lost() {
        for fate in [
            EventOutcome::Drop,
            EventOutcome::Lose,
            EventOutcome::Answer(Status::RemoteAbort),
        ] {
            let disposition = of(fate, Operation::Datagram, 0);
            assert_eq!(disposition, Disposition::Lost(Loss::Unnoticed), "{fate:?}");
        }
        let twice = of(EventOutcome::Duplicate, Operation::Datagram, 0);
        assert!(matches!(
            twice,
            Disposition::Proceeds {
                twice: Duplicated::Completion,
                ..
            }
        ));
    }

    #[test]
    fn delays_are_drawn_between_their_bounds() {
        let (least, most) = (Duration::from_millis(3), Duration::from_millis(5));
        let mut seen = std::collections::BTreeSet::new();
        for lost in 0..20 {
            let disposition = of(
                EventOutcome::Delay(Delay { least, most }),
                Operation::Send,
                lost,
            );
            assert!(disposition.passes());
            let Disposition::Late(delay) = disposition else {
                panic!("{disposition:?}");
            };
            assert!((least..=most).contains(&delay), "{delay:?}");
            seen.insert(delay);
        }
        assert!(seen.len() > 10, "{seen:?}");
    }

    #[test]
    fn held_frames_do_not_pass_and_others_proceed() {
        let deferred = of(EventOutcome::Hold { packets: Some(2) }, Operation::Send, 0);
        let expected = Disposition::Deferred {
            fault: FaultId(7),
            packets: Some(2),
        };
        assert_eq!((deferred, deferred.passes()), (expected, false));
        let answered = of(EventOutcome::Answer(Status::RemoteRnr), Operation::Send, 0);
        let status = Some(Status::RemoteRnr);
        assert_eq!(
            answered,
            Disposition::Proceeds {
                twice: Duplicated::Nothing,
                status
            }
        );
    }
}
