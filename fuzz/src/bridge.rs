//! Arbitrary bytes as the messages of another machine's bridge, and as the actions of this
//! machine's bridge meanwhile: invented messages, messages that answer sent ones, lost connections,
//! devices that are added and removed.
//!
//! Checked: no panic; memory around the registered memory is unchanged; every request of the
//! device's client completes at most once, and all of them once its queue pair fails; requests to
//! the machine end when the connection is lost and abandoned.

use efa_core::address::{Gid, Qpn};
use efa_core::nic::Status;
use efa_shm::DeviceName;
use efa_shm::fuzzing::FuzzFabric;
use efa_shm::remote::{FRAME_HEADER, ReceivePolicy, RemoteDevice, RemoteMachine, fuzzing};
use efa_testing::choices::Choices;

use crate::victim::{Victim, in_fabric};

const STEPS: usize = 400;

/// The device of the other machine, and its queue pair that the victim sends to.
const FAR: Gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7]);
const FAR_QPN: Qpn = Qpn(3);

/// A device of no machine.
const NOWHERE: Gid = Gid([9; 16]);

/// See the module documentation.
pub(crate) fn check(bytes: &[u8]) {
    in_fabric(|fabric| HostileBridge::new(fabric).run(Choices(bytes)));
}

struct HostileBridge<'a> {
    victim: Victim<'a>,
    own: Gid,
    machine: RemoteMachine,
    /// Names that messages of this machine have had.
    names: Vec<u64>,
}

impl<'a> HostileBridge<'a> {
    fn new(fabric: &'a FuzzFabric) -> Self {
        let mut fuzzed = HostileBridge {
            victim: Victim::new(fabric, (FAR, FAR_QPN)),
            own: fabric.victim(),
            machine: RemoteMachine::new(fabric.fabric().clone(), "far"),
            names: vec![0],
        };
        fuzzed.enter();
        fuzzed.machine.admit([fuzzed.own].into_iter());
        fuzzed
    }

    fn enter(&mut self) {
        let device = RemoteDevice {
            name: DeviceName::new("far", 0, 1),
            gid: FAR,
            profile: Some("efa2".to_owned()),
            nobody: Status::RemoteBadDestQpn,
            network: Default::default(),
        };
        self.machine.enter(&device).expect("it is free");
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
        self.machine.disconnect();
        self.machine.give_up_lost();
        assert_eq!(self.machine.unanswered(), 0, "requests are held for ever");
        self.machine.leave(FAR);
        self.victim.end();
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 16 {
            0..=3 => {
                let message = self.request(choices);
                self.deliver(&message);
            }
            4 => {
                let names = [self.name(choices), self.name(choices)];
                let length = (choices.length() as usize).min(20 << 10);
                let message = fuzzing::read_data(names, choices.length(), &vec![5; length]);
                self.deliver(&message);
            }
            5 | 6 => {
                let message = fuzzing::answer(self.name(choices), choices.byte());
                self.deliver(&message);
            }
            7 => {
                let message = fuzzing::outcome(self.name(choices), choices.byte());
                self.deliver(&message);
            }
            8 => {
                // A message that is damaged or cut.
                let mut message = self.request(choices);
                let at = usize::from(choices.byte()) % message.len();
                match choices.byte() {
                    0 => message.truncate(at),
                    change => message[at] ^= change,
                }
                self.deliver(&message);
            }
            9..=11 => self.collect(match choices.byte() {
                0 => ReceivePolicy::Nothing,
                1 => ReceivePolicy::Unresponsive,
                limit => ReceivePolicy::Until(usize::from(limit) << 10),
            }),
            12 | 13 => self.victim.post(choices),
            14 => match choices.byte() % 8 {
                0 => self.machine.disconnect(),
                1 => self.machine.give_up_lost(),
                2 => self.machine.leave(FAR),
                3 => self.enter(),
                4 => self.machine.admit(std::iter::empty()),
                5 => self.machine.admit([self.own].into_iter()),
                6 => self.prepare_to_sleep(),
                _ => self.machine.check_peers(),
            },
            _ => match choices.byte() {
                0 => self.victim.reset(),
                1..4 => self.victim.session.pause(),
                _ => self.victim.post_receive(),
            },
        }
    }

    fn name(&self, choices: &mut Choices<'_>) -> u64 {
        match choices.byte() {
            0 => choices.number(),
            // The latest are those that may be under way.
            byte => self.names[self.names.len() - 1 - usize::from(byte) % self.names.len()],
        }
    }

    fn request(&self, choices: &mut Choices<'_>) -> Vec<u8> {
        let attack = self.victim.attack(choices, &[0, 1, 2, 3]);
        let (extra, damage) = attack.extra(choices);
        let gids = match choices.byte() {
            0 => [NOWHERE, self.own],
            1 => [FAR, NOWHERE],
            2 => [self.own, FAR],
            _ => [FAR, self.own],
        };
        let name = u64::from(choices.byte());
        fuzzing::request(name, gids, &attack.request, extra, &attack.payload, damage)
    }

    fn deliver(&mut self, message: &[u8]) {
        if self.machine.deliver(message).is_err() {
            // The same as in a bridge.
            self.machine.disconnect();
        }
    }

    fn collect(&mut self, receive_policy: ReceivePolicy) {
        let mut messages = Vec::new();
        self.machine.collect(receive_policy, &mut messages);
        self.learn(&messages);
    }

    fn prepare_to_sleep(&mut self) {
        let mut messages = Vec::new();
        drop(
            self.machine
                .prepare_to_sleep(ReceivePolicy::Until(1 << 20), &mut messages),
        );
        self.learn(&messages);
    }

    /// The names after the headers of the frames.
    fn learn(&mut self, mut messages: &[u8]) {
        while let Some(length) = messages.first_chunk() {
            let (message, rest) = messages.split_at(u32::from_le_bytes(*length) as usize);
            if let Some(name) = message[FRAME_HEADER..].first_chunk() {
                self.names.push(u64::from_le_bytes(*name));
            }
            messages = rest;
        }
    }
}
