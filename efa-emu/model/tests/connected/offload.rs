//! Both halves of tag matching, checked against the rules of MPI.
//!
//! Receives are posted in order, and messages arrive in an order that the completions of the shared
//! receive queue show. A receive takes the earliest message that it accepts, a message the earliest
//! receive that accepts it. So there is only one correct pairing, independent of timing and of
//! whether the device or the software matches.

mod program;

use std::collections::BTreeMap;

use efa_device_model::device::connected::{BufferList, TagRequest};
use efa_device_model::provider::{Cancellation, TagMatcher, TagReceive};
use proptest::prelude::{ProptestConfig, any, proptest};

use efa_testing::device::net::NetworkEffects;
use program::{Outcome, Program, SENDERS, Step};

/// The only correct pairing by the rules of MPI: receive and message.
fn pairs_of_mpi(outcome: &Outcome) -> BTreeMap<usize, usize> {
    let mut pairs = BTreeMap::new();
    let arrived = |step: &Step| match step {
        Step::Arrived(message) => Some(*message),
        _ => None,
    };
    let mut waiting: Vec<usize> = outcome.steps.iter().filter_map(arrived).collect();
    for (id, receive) in outcome.receives.iter().enumerate() {
        if outcome.steps.contains(&Step::Cancelled(id)) {
            continue;
        }
        let accepts = |message: &usize| {
            let tag = outcome.messages[*message].tag;
            tag & receive.mask == receive.tag & receive.mask
        };
        if let Some(position) = waiting.iter().position(accepts) {
            pairs.insert(id, waiting.remove(position));
        }
    }
    pairs
}

/// The matches, in order, of a matcher without a device for the same events.
fn matches_of_software(outcome: &Outcome) -> Vec<(usize, usize)> {
    let mut matcher = TagMatcher::new(0);
    let mut device = |request: &TagRequest| panic!("there is no device for {request:?}");
    let mut matches = Vec::new();
    for step in &outcome.steps {
        match *step {
            Step::Posted(id) => {
                let receive = TagReceive {
                    buffers: BufferList::default(),
                    ..outcome.receives[id]
                };
                let found = matcher.post(receive, &mut device).unwrap();
                matches.extend(found.map(|found| (id, found.message)));
            }
            Step::Cancelled(id) => {
                let cancelled = matcher.cancel(id as u64, &mut device);
                assert_eq!(cancelled, Ok(Cancellation::Done));
            }
            Step::Arrived(message) => {
                let tag = outcome.messages[message].tag;
                let taken = matcher.unexpected(tag, message, &mut device).unwrap();
                matches.extend(taken.map(|(receive, message)| (receive.id as usize, message)));
            }
        }
    }
    matches
}

fn check(outcome: &Outcome) {
    let pairs: BTreeMap<usize, usize> = outcome.matches.iter().copied().collect();
    assert_eq!(
        pairs.len(),
        outcome.matches.len(),
        "a receive has one message"
    );
    assert_eq!(pairs, pairs_of_mpi(outcome), "MPI's rules");
    assert_eq!(
        outcome.matches,
        matches_of_software(outcome),
        "with and without a device"
    );
    let mut matched: Vec<usize> = outcome
        .matches
        .iter()
        .map(|(_, message)| *message)
        .collect();
    matched.sort_unstable();
    let tagged = |message: &usize| !outcome.messages[*message].is_untagged();
    let sent: Vec<usize> = (0..outcome.messages.len()).filter(tagged).collect();
    assert_eq!(matched, sent, "nothing is lost, nothing comes twice");
    for peer in 1..=SENDERS {
        let arrived = outcome.steps.iter().filter_map(|step| match step {
            Step::Arrived(message) => Some(*message),
            _ => None,
        });
        let of_peer: Vec<usize> = arrived
            .filter(|message| outcome.messages[*message].peer == peer)
            .collect();
        assert!(of_peer.is_sorted(), "in the order of sending: {of_peer:?}");
    }
}

/// `make sim` sets 10,000.
fn cases() -> u32 {
    let count = std::env::var("EFA_SEEDS").ok();
    count.and_then(|count| count.parse().ok()).unwrap_or(200)
}

proptest! {
    #![proptest_config(ProptestConfig {
        // Another seed is a different program, and not a simpler one.
        max_shrink_iters: 20,
        ..ProptestConfig::with_cases(cases())
    })]

    /// With a prefix of 0 the software matches all messages.
    #[test]
    fn matches_are_those_of_mpi(
        seed in any::<u64>(), prefix in 0..6usize,
        loss in 0..5u32, duplicates in 0..5u32, longest in 1..60u64, busy in 0..3u32,
    ) {
        let effects = NetworkEffects {
            loss: f64::from(loss) / 100.0,
            duplicates: f64::from(duplicates) / 100.0,
            longest,
            busy: f64::from(busy) / 10.0,
            acknowledges: seed % 2 == 0,
        };
        check(&Program::new(seed, effects, prefix).run());
    }
}
