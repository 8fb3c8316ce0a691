//! The addresses of a trace's endpoints, found in its frames.

use efa_core::address::{Gid, Qkey, Qpn, RawAddress};
use efa_play::trace::Trace;

use super::frames::sent_requests;

/// The frames of a trace do not determine one address for each endpoint.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum AddressError {
    #[error(
        "packet {packet}, transport header: sender [{}]:{}, but endpoint `{endpoint}` is [{}]:{}",
        .seen.0, .seen.1, .known.0, .known.1
    )]
    OtherSender {
        packet: u64,
        endpoint: String,
        seen: (Gid, Qpn),
        known: (Gid, Qpn),
    },
    #[error(
        "packet {packet}, transport header field `Q-key`: expected {:#x} as in packet {first}, \
         actual {:#x}",
        .known.0, .seen.0
    )]
    OtherQkey {
        packet: u64,
        first: u64,
        known: Qkey,
        seen: Qkey,
    },
    #[error("endpoint `{0}` sent nothing")]
    NothingSent(String),
    #[error("nothing was sent to endpoint `{0}`")]
    NothingReceived(String),
}

/// Finds each endpoint's address, in the order of the scenario, and checks that all frames are
/// consistent with it.
pub(super) fn endpoint_addresses(trace: &Trace) -> Result<Vec<RawAddress>, AddressError> {
    let count = trace.scenario.endpoints.len();
    let mut addresses: Vec<Option<RawAddress>> = vec![None; count];
    let mut qkeys: Vec<Option<(u64, Qkey)>> = vec![None; count];
    for place in sent_requests(trace) {
        let frame = &trace.capture.frames[place];
        let endpoint = trace.endpoint_of[frame.interface];
        let name = &trace.scenario.endpoints[endpoint].name;
        let seen = RawAddress::new(frame.source, frame.header.source_qpn, Qkey(0));
        match addresses[endpoint] {
            None => addresses[endpoint] = Some(seen),
            Some(known) if known == seen => {}
            Some(known) => {
                return Err(AddressError::OtherSender {
                    packet: frame.number,
                    endpoint: name.clone(),
                    seen: (seen.gid, seen.qpn),
                    known: (known.gid, known.qpn),
                });
            }
        }
    }
    for place in sent_requests(trace) {
        let frame = &trace.capture.frames[place];
        let receiver = addresses.iter().position(|known| {
            known.is_some_and(|known| {
                known.gid == frame.destination && known.qpn == frame.header.destination_qpn
            })
        });
        let Some(receiver) = receiver else {
            // The receiver never answered, so its address is unknown.
            continue;
        };
        match qkeys[receiver] {
            None => qkeys[receiver] = Some((frame.number, frame.header.qkey)),
            Some((_, known)) if known == frame.header.qkey => {}
            Some((first, known)) => {
                return Err(AddressError::OtherQkey {
                    packet: frame.number,
                    first,
                    known,
                    seen: frame.header.qkey,
                });
            }
        }
    }
    let addresses = addresses
        .into_iter()
        .zip(qkeys)
        .zip(&trace.scenario.endpoints);
    addresses
        .map(|((address, qkey), endpoint)| {
            let name = || endpoint.name.clone();
            let address = address.ok_or_else(|| AddressError::NothingSent(name()))?;
            let (_, qkey) = qkey.ok_or_else(|| AddressError::NothingReceived(name()))?;
            Ok(RawAddress { qkey, ..address })
        })
        .collect()
}
