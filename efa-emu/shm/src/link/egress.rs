//! The network's effect on an outgoing request, for the record that carries it.

use crate::process::clock::monotonic_now;
use efa_device_model::network::{DeliveryOutcome, Network, Transmission};

/// The time and the way in which a request reaches its receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Arrival {
    /// Delivery time in nanoseconds of the monotonic clock, 0 for immediately.
    pub(crate) due: u64,
    pub(crate) path: u16,
    /// The receiver must answer it with RNR.
    pub(crate) is_rnr: bool,
}

/// The outcome of sending a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Egress {
    /// It arrives at some time.
    Leaves(Arrival),
    /// It is lost too often, and fails at this time of the monotonic clock.
    Fails(std::time::Duration),
    /// A datagram that is lost.
    Vanishes,
}

/// Decides the outcome of a request that leaves now, for the first time or as an RNR retry.
pub(crate) fn egress_of(network: &Network, request: &Transmission) -> Egress {
    let now = monotonic_now();
    match network.delivery(request) {
        DeliveryOutcome::Arrives { after, path, .. } => Egress::Leaves(Arrival {
            due: match network.config.is_immediate() {
                true => 0,
                false => (now + after).as_nanos() as u64,
            },
            path,
            is_rnr: network.answers_rnr(request),
        }),
        DeliveryOutcome::Fails { after } => Egress::Fails(now + after),
        DeliveryOutcome::Vanishes => Egress::Vanishes,
    }
}

#[cfg(test)]
mod tests {
    use efa_core::address::{Gid, Qpn};

    use super::*;
    use crate::NetworkOptions;
    use efa_device_model::fault::Stage;
    use efa_device_model::link::Operation;

    fn egress(options: &str, operation: Operation) -> Egress {
        let network = options.parse::<NetworkOptions>().unwrap().network(0);
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
        egress_of(&network, &request)
    }

    #[test]
    fn an_immediate_network_delays_nothing_and_refuses() {
        let arrival = Arrival {
            due: 0,
            path: 0,
            is_rnr: true,
        };
        let refused = egress("rnr=1", Operation::Send);
        assert_eq!(refused, Egress::Leaves(arrival));
        let calm = egress("", Operation::RdmaRead);
        assert_eq!(calm, Egress::Leaves(Arrival::default()));
    }

    #[test]
    fn losses_end_requests_and_datagrams() {
        let lossy = "loss=0.999999,retransmit-timeout=1s,attempts=3";
        let before = monotonic_now();
        let Egress::Fails(at) = egress(lossy, Operation::Send) else {
            panic!("it cannot arrive");
        };
        let took = (before.as_secs() + 7)..=(monotonic_now().as_secs() + 7);
        assert!(took.contains(&at.as_secs()), "{at:?}");
        assert_eq!(egress(lossy, Operation::Datagram), Egress::Vanishes);
    }
}
