//! The outcome of one transmission of a frame, and of all its transmissions together.

use std::time::Duration;

use efa_core::address::Gid;

use super::config::NetworkConfig;
use super::random::{Draws, Purpose};
use super::reliability::Loss;
use super::transmission::Transmission;
use crate::fault::Delay;
use crate::link::Operation;

/// The outcome of one transmission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransmissionOutcome {
    /// The path's number, from 0.
    pub path: u16,
    /// The time from the sender's port to the receiver's.
    pub latency: Duration,
    /// It is lost.
    pub is_lost: bool,
}

/// The outcome for a frame from now on, all further transmissions included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeliveryOutcome {
    /// It arrives.
    Arrives {
        /// The delay.
        after: Duration,
        /// The path of the last transmission.
        path: u16,
        /// The number of lost transmissions.
        lost: u32,
    },
    /// The initiator's network card gives up.
    Fails {
        /// The delay.
        after: Duration,
    },
    /// It is a datagram, and its loss is not reported.
    Vanishes,
}

/// The network model for one seed. Requests and answers are subject to the network of their sender.
#[derive(Clone, Debug)]
pub struct Network {
    /// The parameters.
    pub config: NetworkConfig,
    seed: u64,
    /// Bits of GIDs that are inverted before anything is drawn for them.
    inverted: u128,
}

impl Network {
    /// The network for one seed.
    pub fn new(config: NetworkConfig, seed: u64) -> Self {
        Network {
            config,
            seed,
            inverted: 0,
        }
    }

    /// The same network for hosts whose GIDs have these bits inverted: its choices are those that
    /// [`Network::new`] makes for the original GIDs.
    #[must_use]
    pub fn for_inverted_gids(self, inverted: u128) -> Self {
        Network { inverted, ..self }
    }

    /// The transmission between the original GIDs.
    fn original(&self, transmission: &Transmission) -> Transmission {
        let original = |gid: Gid| Gid((u128::from_be_bytes(gid.0) ^ self.inverted).to_be_bytes());
        Transmission {
            initiator: original(transmission.initiator),
            responder: original(transmission.responder),
            ..*transmission
        }
    }

    /// The outcome of one transmission.
    pub fn transmit(&self, transmission: &Transmission) -> TransmissionOutcome {
        let transmission = self.original(transmission);
        let draws = transmission.draws(self.seed);
        let config = &self.config;
        let path = draws.below(Purpose::Path, config.paths.max(1).into()) as u16;
        let jitter = draws.up_to(Purpose::Jitter, config.jitter);
        TransmissionOutcome {
            path,
            latency: config.latency + self.path_latency(transmission.ends(), path) + jitter,
            is_lost: draws.chance(Purpose::Loss, config.loss),
        }
    }

    /// The outcome for a frame from this transmission on.
    pub fn delivery(&self, transmission: &Transmission) -> DeliveryOutcome {
        let mut transmission = *transmission;
        let mut after = Duration::ZERO;
        loop {
            let transit = self.transmit(&transmission);
            if !transit.is_lost {
                return DeliveryOutcome::Arrives {
                    after: after + transit.latency,
                    path: transit.path,
                    lost: transmission.lost,
                };
            }
            match self.lose(&transmission) {
                Loss::Repeated { after: wait } => after += wait,
                Loss::Fatal { after: wait } => {
                    return DeliveryOutcome::Fails {
                        after: after + wait,
                    };
                }
                Loss::Unnoticed => return DeliveryOutcome::Vanishes,
            }
            transmission = transmission.again();
        }
    }

    /// The outcome for a frame after this transmission was lost with the given consequence.
    pub fn delivery_after(&self, transmission: &Transmission, loss: Loss) -> DeliveryOutcome {
        let wait = match loss {
            Loss::Repeated { after } => after,
            Loss::Fatal { after } => return DeliveryOutcome::Fails { after },
            Loss::Unnoticed => return DeliveryOutcome::Vanishes,
        };
        match self.delivery(&transmission.again()) {
            DeliveryOutcome::Arrives { after, path, lost } => DeliveryOutcome::Arrives {
                after: wait + after,
                path,
                lost,
            },
            DeliveryOutcome::Fails { after } => DeliveryOutcome::Fails {
                after: wait + after,
            },
            DeliveryOutcome::Vanishes => DeliveryOutcome::Vanishes,
        }
    }

    /// The consequence of a lost transmission.
    pub fn lose(&self, transmission: &Transmission) -> Loss {
        let reliability = &self.config.reliability;
        let follows = reliability.after_loss(transmission.operation, transmission.lost);
        tracing::debug!(
            peer = %transmission.responder,
            qpn = %transmission.source_qpn,
            sequence = transmission.sequence,
            stage = ?transmission.stage,
            attempt = transmission.lost + 1,
            ?follows,
            "frame lost"
        );
        follows
    }

    /// Whether the receiver answers an arriving request with RNR.
    pub fn answers_rnr(&self, request: &Transmission) -> bool {
        // Each retry draws a new number. Otherwise some requests would never succeed.
        request.operation == Operation::Send
            && self
                .original(request)
                .request_draws(self.seed, request.retries)
                .chance(Purpose::ReceiverNotReady, self.config.rnr)
    }

    /// The delay that a rule adds to a frame.
    pub(super) fn delay(&self, transmission: &Transmission, delay: Delay) -> Duration {
        drawn(self.original(transmission).draws(self.seed), delay)
    }

    /// The delay that a rule adds to the command with this number of an admin queue.
    pub fn command_delay(&self, number: u64, delay: Delay) -> Duration {
        drawn(Draws::new(self.seed).of(number), delay)
    }

    /// The additional latency of `path` for this pair of hosts. It is computed, because a table
    /// would grow with the square of the number of hosts.
    pub(super) fn path_latency(&self, (from, to): (Gid, Gid), path: u16) -> Duration {
        let paths = self.config.paths;
        if paths <= 1 || self.config.path_spread.is_zero() {
            return Duration::ZERO;
        }
        let [from, to] = [from, to].map(|gid| u128::from_be_bytes(gid.0));
        let pair = Draws::new(self.seed)
            .of((from >> 64) as u64)
            .of(from as u64)
            .of((to >> 64) as u64)
            .of(to as u64);
        let first = pair.below(Purpose::PathLength, paths.into()) as u32;
        let place = (u32::from(path) + first) % u32::from(paths);
        self.config.path_spread * place / u32::from(paths - 1)
    }
}

fn drawn(draws: Draws, delay: Delay) -> Duration {
    delay.least + draws.up_to(Purpose::Delay, delay.most - delay.least)
}
