//! The application removes peers from its address vector and inserts them again. The conversation
//! outlives the entry, with operations in flight, on a network that reorders and refuses.

use efa_core::endpoint::{EndpointConfig, EndpointError, Errno, Event, PeerId, SendArgs};
use efa_sim::{FabricConfig, NetworkConfig, NicConfig, Probability};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::rig::{Program, Rig, config, pattern};

/// Lengths for each subprotocol of messages.
const LENGTHS: [usize; 6] = [0, 8, 3_000, 15_000, 25_000, 40_000];
const ROOM: usize = 40_000;
/// The offset of the data that a program sends, after the data that it receives.
const SOURCE: u64 = 20 * ROOM as u64;
/// The context of receives while peers are removed.
const EARLY: u64 = u64::MAX;

/// Two programs that send to each other. The CQ data of a message is its number.
struct Exchange {
    rig: Rig,
    random: StdRng,
    /// By program: the other one.
    peers: [PeerId; 2],
    /// By program: the messages whose sends have completed.
    sent: [Vec<u64>; 2],
    /// By program: the messages that it received.
    received: [Vec<u64>; 2],
    next: u64,
}

impl Exchange {
    fn new(seed: u64) -> Self {
        let fabric = FabricConfig {
            seed,
            network: NetworkConfig {
                rnr: Probability::new(0.1).unwrap(),
                ..NetworkConfig::default()
            },
            ..FabricConfig::default()
        };
        let config = EndpointConfig {
            min_read_message_size: 30_000,
            runt_size: [0, 20_000][seed as usize % 2],
            ..config()
        };
        let mut rig = Rig::new(fabric);
        for _ in 0..2 {
            // The engine waits for receivers, not the device.
            let nic = NicConfig {
                rnr_retry: 0,
                ..NicConfig::default()
            };
            rig.add(["efa1", "efa2"][seed as usize / 2 % 2], &config, nic);
        }
        let peers = [rig.insert_program(0, 1), rig.insert_program(1, 0)];
        Exchange {
            rig,
            random: StdRng::seed_from_u64(seed),
            peers,
            sent: Default::default(),
            received: Default::default(),
            next: 0,
        }
    }

    fn program(&mut self, number: usize) -> &mut Program {
        self.rig.program(number)
    }

    /// Starts a send. Returns false if the device or the peer has no room now.
    fn send(&mut self, from: usize, length: usize) -> bool {
        let (number, peer) = (self.next, self.peers[from]);
        let program = self.program(from);
        let data = [program.piece(SOURCE, length)];
        let started = program.endpoint.send(SendArgs {
            cq_data: Some(number),
            ..SendArgs::new(peer, &data, number)
        });
        match started {
            Ok(()) => self.next += 1,
            Err(EndpointError::TryAgain) => {}
            Err(error) => panic!("message {number}: {error}"),
        }
        started.is_ok()
    }

    /// Removes the other program, and inserts it again after a while.
    fn remove_and_insert(&mut self, at: usize) {
        let peer = self.peers[at];
        self.program(at).endpoint.remove_address(peer).unwrap();
        let while_removed = self.random.random_range(0..20);
        self.run(while_removed);
        self.peers[at] = self.rig.insert_program(at, 1 - at);
        assert_ne!(self.peers[at], peer);
    }

    /// Runs this many events of the fabric, or all.
    fn run(&mut self, events: usize) {
        for _ in 0..events {
            if !self.rig.step() {
                break;
            }
        }
        self.rig.poll();
        for number in 0..2 {
            let entries = core::mem::take(&mut self.program(number).completions);
            for entry in entries {
                match entry {
                    Ok(entry) if entry.context < 1000 => self.sent[number].push(entry.context),
                    Ok(entry) => self.received[number].push(entry.data),
                    Err(error) => assert_eq!(error.failure.errno, Errno::ECANCELED),
                }
            }
        }
    }

    fn settle(&mut self) {
        self.run(1_000_000);
    }

    /// Sends in both directions, while `removers` remove the other program and insert it again.
    fn trouble(&mut self, removers: &[usize]) {
        for _ in 0..12 {
            for _ in 0..self.random.random_range(0..4) {
                let from = self.random.random_range(0..2);
                let length = LENGTHS[self.random.random_range(0..LENGTHS.len())];
                if self.random.random_bool(0.7) {
                    self.program(1 - from).recv(0, ROOM, EARLY);
                }
                self.send(from, length);
            }
            let events = self.random.random_range(0..40);
            self.run(events);
            for at in removers {
                if self.random.random_bool(0.4) {
                    self.remove_and_insert(*at);
                }
            }
        }
        // A message whose other half was cancelled may keep its receive.
        for number in 0..2 {
            for _ in 0..self.next {
                self.program(number).recv(0, ROOM, EARLY);
            }
        }
        self.settle();
        for number in 0..2 {
            let mut received = self.received[number].clone();
            received.sort_unstable();
            received.dedup();
            assert_eq!(received.len(), self.received[number].len(), "once each");
            let endpoint = &mut self.program(number).endpoint;
            while endpoint.cancel_context(EARLY) {}
        }
        self.settle();
    }

    /// After `removers` have removed the other program and inserted it once more, all messages
    /// arrive with their data.
    fn all_arrives(&mut self, removers: &[usize]) {
        for at in removers {
            self.remove_and_insert(*at);
        }
        self.settle();
        for from in 0..2 {
            let first = self.next;
            for (slot, length) in LENGTHS.into_iter().enumerate() {
                self.program(1 - from)
                    .recv((slot * ROOM) as u64, ROOM, EARLY);
                let data = pattern(length, first as u8 + slot as u8);
                self.program(from).fill(SOURCE, &data);
                while !self.send(from, length) {
                    self.settle();
                }
                self.settle();
                let bytes = self.program(1 - from).bytes((slot * ROOM) as u64, length);
                assert_eq!(bytes, data, "{length} bytes from {from}");
            }
            let all: Vec<u64> = (first..self.next).collect();
            assert!(self.sent[from].ends_with(&all), "{:?}", self.sent[from]);
            let received = &self.received[1 - from];
            assert!(received.ends_with(&all), "{received:?}");
        }
    }
}

const SEEDS: u64 = 150;

#[test]
fn conversations_outlive_address_vector_entries() {
    std::thread::scope(|scope| {
        for removers in [&[0][..], &[1], &[0, 1]] {
            scope.spawn(move || {
                for seed in 0..SEEDS {
                    let mut exchange = Exchange::new(seed);
                    exchange.trouble(removers);
                    exchange.all_arrives(removers);
                }
            });
        }
    });
}

#[test]
fn sent_messages_arrive_despite_removal_by_the_sender() {
    let mut cancelled = 0;
    for seed in 0..SEEDS {
        let mut exchange = Exchange::new(seed);
        // The first program may drop what the second sends, but not the other way round.
        exchange.trouble(&[0]);
        let (sent, received) = (&exchange.sent[0], &exchange.received[1]);
        for number in sent {
            assert!(received.contains(number), "seed {seed}: {number} is lost");
        }
        cancelled += u64::from(sent.len() < received.len());
        let events = &exchange.program(1).events;
        let refused = |event: &&Event| matches!(event, Event::PacketRefused { .. });
        assert_eq!(events.iter().find(refused), None, "seed {seed}");
    }
    assert!(cancelled > 0, "messages arrive whose sends are cancelled");
}
