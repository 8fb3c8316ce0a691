//! What the network does to a request, as the record tells it that brings the request.

use super::clock::monotonic_now;
use efa_device_model::network::{Journey, Network, Transmission};

/// When and how a request reaches its receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Passage {
    /// Delivery time in nanoseconds of the monotonic clock, 0 for at once.
    pub(super) due: u64,
    pub(super) path: u16,
    /// The receiver has to refuse it as not ready.
    pub(super) not_ready: bool,
}

/// How a request leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Departure {
    /// It arrives some time.
    Leaves(Passage),
    /// It is lost again and again, and given up at this time of the monotonic clock.
    Fails(std::time::Duration),
    /// It is a datagram and is lost.
    Vanishes,
}

/// A request leaves now, for the first time or because its receiver was not ready.
pub(super) fn depart(network: &Network, request: &Transmission) -> Departure {
    let now = monotonic_now();
    match network.journey(request) {
        Journey::Arrives { after, path, .. } => Departure::Leaves(Passage {
            due: match network.config.is_immediate() {
                true => 0,
                false => (now + after).as_nanos() as u64,
            },
            path,
            not_ready: network.refuses(request),
        }),
        Journey::Fails { after } => Departure::Fails(now + after),
        Journey::Vanishes => Departure::Vanishes,
    }
}

#[cfg(test)]
mod tests {
    use efa_core::address::{Gid, Qpn};

    use super::*;
    use crate::NetworkOptions;
    use efa_device_model::fault::Stage;
    use efa_device_model::link::Operation;

    fn departure(options: &str, operation: Operation) -> Departure {
        let network = options.parse::<NetworkOptions>().unwrap().network();
        let request = Transmission {
            stage: Stage::Request,
            operation,
            initiator: Gid([1; 16]),
            responder: Gid([2; 16]),
            source_qpn: Qpn(2),
            sequence: 0,
            retries: 0,
            lost: 0,
        };
        depart(&network, &request)
    }

    #[test]
    fn an_immediate_network_delays_nothing_and_refuses() {
        let passage = Passage {
            due: 0,
            path: 0,
            not_ready: true,
        };
        let refused = departure("rnr=1", Operation::Send);
        assert_eq!(refused, Departure::Leaves(passage));
        let calm = departure("", Operation::RdmaRead);
        assert_eq!(calm, Departure::Leaves(Passage::default()));
    }

    #[test]
    fn losses_end_requests_and_datagrams() {
        let lossy = "loss=0.999999,retransmit-timeout=1s,attempts=3";
        let before = monotonic_now();
        let Departure::Fails(at) = departure(lossy, Operation::Send) else {
            panic!("it cannot arrive");
        };
        let took = (before.as_secs() + 7)..=(monotonic_now().as_secs() + 7);
        assert!(took.contains(&at.as_secs()), "{at:?}");
        assert_eq!(departure(lossy, Operation::Datagram), Departure::Vanishes);
    }
}
