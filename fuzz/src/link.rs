//! Arbitrary bytes as the writes of a hostile process to the memory that it shares with a device:
//! records, descriptors, doorbells, answers, at any time between the device's steps.
//!
//! Checked: no panic; memory around the registered memory is unchanged; every request of the
//! device's client completes at most once, and all of them once the client resets its queue pair or
//! the attacker's ring is abandoned.

use efa_device_model::link::HostSegment;
use efa_shm::fuzzing::FuzzFabric;
use efa_testing::choices::Choices;

use crate::victim::{REGION, Victim, in_fabric};

const STEPS: usize = 400;

/// See the module documentation.
pub(crate) fn check(bytes: &[u8]) {
    in_fabric(|fabric| HostileLink::new(fabric).run(Choices(bytes)));
}

struct HostileLink<'a> {
    victim: Victim<'a>,
    /// Names of the victim's requests, as the attacker learnt them.
    names: Vec<u32>,
}

impl<'a> HostileLink<'a> {
    fn new(fabric: &'a FuzzFabric) -> Self {
        let mut victim = Victim::new(fabric, fabric.attacker());
        victim.session.connect();
        HostileLink {
            victim,
            names: vec![0],
        }
    }

    fn run(mut self, mut choices: Choices<'_>) {
        for _ in 0..STEPS {
            if choices.is_over() {
                break;
            }
            self.step(&mut choices);
            self.victim.session.pass();
            self.victim.collect();
        }
        self.victim.end();
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 16 {
            0..=4 => self.attack_with_record(choices),
            5 => {
                let word = usize::from(choices.half());
                let value = choices.number();
                self.victim.session.scribble_ring(word, value);
            }
            6 => {
                let word = usize::from(choices.byte());
                let value = choices.number();
                self.victim.session.scribble_head(word, value);
            }
            7 => {
                let word = usize::from(choices.byte());
                let value = choices.number();
                self.victim.session.scribble_own_head(word, value);
            }
            8 => self.victim.session.connect(),
            9 | 10 => {
                if let Some((_, name)) = self.victim.session.take() {
                    self.names.push(name);
                }
            }
            11 => self.victim.session.answer(choices.byte()),
            12 => match choices.byte() {
                byte if byte < 128 => self.victim.session.hold(byte & 1 == 1),
                byte => {
                    let at = usize::from(choices.byte());
                    self.victim.session.scribble_answers(at, byte);
                }
            },
            13 | 14 => self.victim.post(choices),
            _ => match choices.byte() {
                0 => self.victim.reset(),
                1..4 => self.victim.session.pause(),
                _ => self.victim.post_receive(),
            },
        }
    }

    fn attack_with_record(&mut self, choices: &mut Choices<'_>) {
        let attack = self.victim.attack(choices, &self.names);
        let length = attack.request.length;
        // The attacker is this process: the memory in its requests must be its own, or unmapped.
        let list: Vec<_> = (0..choices.byte() % 4)
            .map(|_| HostSegment {
                address: match choices.byte() {
                    0 => 16,
                    1 => u64::MAX - 8,
                    other => self.victim.start() + 32 * u64::from(other),
                },
                length: match choices.byte() {
                    0 => length,
                    other => u32::from(other),
                }
                .min((REGION / 2) as u32),
            })
            .collect();
        let (extra, damage) = attack.extra(choices);
        // A damaged list could name any memory of this process.
        let damage = damage.filter(|_| attack.kind() % 6 != 2);
        self.victim
            .session
            .send(&attack.request, extra, &attack.payload, &list, damage);
    }
}

#[cfg(test)]
mod tests {
    use efa_shm::fuzzing::{MOST_READS, MOST_UNANSWERED, RecordFields};

    use super::*;

    /// Requests between two turns of the victim's work: as many as it takes in one.
    const TURN: usize = 32;

    /// The attacker requests data this many times, and takes none. Stops when its ring is refused;
    /// returns the number of requested reads.
    fn ask(victim: &mut Victim<'_>, reads: usize) -> usize {
        let read = RecordFields {
            kind: 3,
            offset: 0,
            is_part: false,
            is_rnr: false,
            due: 0,
        };
        let request = victim.permitted_read(64);
        for number in 0..reads {
            victim.session.send(&request, read, &[], &[], None);
            if (number + 1) % TURN == 0 {
                victim.session.pass();
            }
            if victim.session.is_refused() {
                return number + 1;
            }
        }
        victim.session.pass();
        reads
    }

    #[test]
    fn unread_data_is_bounded_and_never_dropped() {
        const MORE: usize = 100;
        in_fabric(|fabric| {
            let mut victim = Victim::new(fabric, fabric.attacker());
            victim.session.connect();
            ask(&mut victim, MOST_READS);
            let outside = 0..MOST_READS as u64;
            assert!(outside.clone().all(|read| victim.session.is_answered(read)));
            // Further ones keep their room in the ring.
            ask(&mut victim, MORE);
            let inside = outside.end..outside.end + MORE as u64;
            assert!(!inside.clone().any(|read| victim.session.is_answered(read)));
            assert_eq!(victim.session.device().counters().rx_drops, 0);
            // They are served when the data is taken.
            let is_served =
                |victim: &Victim<'_>| inside.clone().all(|read| victim.session.is_answered(read));
            let mut turns = 0;
            while !is_served(&victim) {
                while victim.session.take().is_some() {
                    victim.session.answer(0);
                }
                victim.session.pass();
                turns += 1;
                assert!(turns < MOST_READS, "they are not served");
            }
            // An attacker that ignores the limits is refused.
            victim.session.connect();
            let limit = MOST_READS + MOST_UNANSWERED;
            let asked = ask(&mut victim, 2 * limit);
            assert!((limit..=limit + 2 * TURN).contains(&asked), "{asked} reads");
            victim.end();
        });
    }
}
