//! Any bytes as what a hostile process writes into the memory that it shares with a device: records,
//! descriptors, doorbells, answers, at any time between the device's steps.
//!
//! Checked: nothing panics; memory around what is registered stays as it is; every request of the
//! device's client completes at most once, and all of them once the client resets its queue pair or the
//! attacker's ring is given up.

use efa_emu::link::HostSegment;
use efa_emu::transport::fuzzing::Stage;

use crate::choices::Choices;
use crate::victim::{REGION, Victim, on_stage};

const STEPS: usize = 400;

/// See the module documentation.
pub(crate) fn check(bytes: &[u8]) {
    on_stage(|stage| Siege::new(stage).besiege(Choices(bytes)));
}

struct Siege<'a> {
    victim: Victim<'a>,
    /// Names of the victim's requests, as the attacker learnt them.
    names: Vec<u32>,
}

impl<'a> Siege<'a> {
    fn new(stage: &'a Stage) -> Self {
        let mut victim = Victim::new(stage, stage.attacker());
        victim.meeting.connect();
        Siege {
            victim,
            names: vec![0],
        }
    }

    fn besiege(mut self, mut choices: Choices<'_>) {
        for _ in 0..STEPS {
            if choices.is_over() {
                break;
            }
            self.step(&mut choices);
            self.victim.meeting.pass();
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
                self.victim.meeting.scribble_ring(word, value);
            }
            6 => {
                let word = usize::from(choices.byte());
                let value = choices.number();
                self.victim.meeting.scribble_head(word, value);
            }
            7 => {
                let word = usize::from(choices.byte());
                let value = choices.number();
                self.victim.meeting.scribble_own_head(word, value);
            }
            8 => self.victim.meeting.connect(),
            9 | 10 => {
                if let Some((_, name)) = self.victim.meeting.take() {
                    self.names.push(name);
                }
            }
            11 => self.victim.meeting.answer(choices.byte()),
            12 => match choices.byte() {
                byte if byte < 128 => self.victim.meeting.hold(byte & 1 == 1),
                byte => {
                    let at = usize::from(choices.byte());
                    self.victim.meeting.scribble_answers(at, byte);
                }
            },
            13 | 14 => self.victim.post(choices),
            _ => match choices.byte() {
                0 => self.victim.reset(),
                1..4 => self.victim.meeting.pause(),
                _ => self.victim.post_receive(),
            },
        }
    }

    fn attack_with_record(&mut self, choices: &mut Choices<'_>) {
        let attack = self.victim.attack(choices, &self.names);
        let length = attack.request.length;
        // The attacker is this process: the memory that it names must be its own, or nobody's.
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
            .meeting
            .send(&attack.request, extra, &attack.payload, &list, damage);
    }
}
