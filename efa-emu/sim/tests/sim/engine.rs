//! The protocol engine on the deterministic fabric: many seeds, hostile networks, same outcome.

use std::time::Duration;

use efa_core::endpoint::{
    Endpoint, EndpointConfig, EndpointError, Instant, IoVec, OperationFlags, PeerId, RecvArgs,
    SendArgs, SourceFilter, TagFilter,
};
use efa_core::nic::UserSlice;
use efa_sim::{
    Action, Fabric, FabricConfig, Fault, HostConfig, Match, NetworkConfig, NicConfig, Point,
    Probability, SimHost, SimNic,
};

/// HANDSHAKE, by spec table 1.2.
const HANDSHAKE: u8 = 9;

struct Program {
    host: SimHost,
    endpoint: Endpoint<SimNic>,
    /// The other programs, by number; the own entry is itself.
    peers: Vec<PeerId>,
    /// The target of each receive, by context.
    receives: Vec<Receive>,
}

struct Receive {
    buffer: UserSlice,
    tagged: bool,
    length: Option<u64>,
    source: Option<PeerId>,
}

/// A message's bytes: its sender, its number, and a pattern made of both.
fn message(sender: usize, number: u64, length: usize) -> Vec<u8> {
    let period: Vec<u8> = (0..251)
        .map(|index| (index * 31 + sender * 7 + number as usize) as u8)
        .collect();
    let mut bytes = period.repeat(length.div_ceil(period.len()));
    bytes.truncate(length);
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Lengths around every limit between the subprotocols of two-sided messages.
fn length(sender: usize, number: u64) -> usize {
    const LENGTHS: [usize; 9] = [8, 64, 4096, 8800, 8928, 20_000, 65_536, 65_537, 200_000];
    LENGTHS[(number as usize * 5 + sender * 3) % LENGTHS.len()]
}

/// Every other message is tagged.
fn is_tagged(number: u64) -> bool {
    number.is_multiple_of(2)
}

const MESSAGES: u64 = 24;
const TAG: u64 = 0x1234_0000;

struct Programs {
    fabric: Fabric,
    all: Vec<Program>,
}

impl Programs {
    fn start(config: FabricConfig, count: usize, nic: NicConfig) -> Self {
        let fabric = Fabric::new(config);
        let mut all: Vec<Program> = (0..count)
            .map(|_| {
                let host = fabric.add_host(HostConfig::default());
                let endpoint = Endpoint::new(host.open_nic(nic).unwrap(), engine()).unwrap();
                Program {
                    host,
                    endpoint,
                    peers: Vec::new(),
                    receives: Vec::new(),
                }
            })
            .collect();
        let addresses: Vec<_> = all.iter().map(|one| one.endpoint.address()).collect();
        for program in &mut all {
            for address in &addresses {
                let peer = program.endpoint.insert_address(*address).unwrap();
                program.peers.push(peer);
            }
        }
        Programs { fabric, all }
    }

    /// Every program sends [`MESSAGES`] to every other, half of them tagged, with receives posted
    /// before, between and after. Returns when all of them are received.
    fn exchange(&mut self) {
        let count = self.all.len();
        let incoming = MESSAGES * (count as u64 - 1);
        let mut next_send = vec![vec![0; count]; count];
        let mut idle_rounds = 0;
        loop {
            for (sender, row) in next_send.iter_mut().enumerate() {
                for (receiver, next) in row.iter_mut().enumerate() {
                    if sender == receiver {
                        continue;
                    }
                    if *next < MESSAGES && self.send(sender, receiver, *next) {
                        *next += 1;
                    }
                }
            }
            for receiver in 0..count {
                // Odd receivers post late: their messages are unexpected.
                let posted = self.all[receiver].receives.len() as u64;
                let sent: u64 = next_send.iter().map(|row| row[receiver]).sum();
                if posted < incoming && (receiver % 2 == 0 || sent > incoming / 2) {
                    self.post_receive(receiver, is_tagged(posted));
                }
            }
            // Only a few steps, so that the next messages are sent while these are in flight.
            let busy = (0..8).take_while(|_| self.step()).count();
            idle_rounds = if busy > 0 { 0 } else { idle_rounds + 1 };
            assert!(idle_rounds < 1000, "nothing happens any more");
            let is_done = |program: &Program| {
                program.receives.len() as u64 == incoming
                    && program.receives.iter().all(|one| one.length.is_some())
                    && !program.endpoint.has_packets_in_flight()
            };
            if self.all.iter().all(is_done) {
                return;
            }
            let now = self.fabric.now();
            assert!(now < Duration::from_secs(60), "no end in sight at {now:?}");
        }
    }

    fn send(&mut self, sender: usize, receiver: usize, number: u64) -> bool {
        let program = &mut self.all[sender];
        let bytes = message(sender, number, length(sender, number));
        let data = program.host.allocate_from(&bytes).unwrap();
        let sent = program.endpoint.send(SendArgs {
            peer: program.peers[receiver],
            data: &[IoVec::new(data)],
            tag: is_tagged(number).then_some(TAG),
            cq_data: None,
            flags: OperationFlags::empty(),
            context: number,
        });
        match sent {
            Ok(()) => true,
            Err(EndpointError::TryAgain) => false,
            Err(error) => panic!("send {number} of {sender} to {receiver}: {error}"),
        }
    }

    fn post_receive(&mut self, receiver: usize, tagged: bool) {
        let program = &mut self.all[receiver];
        let buffer = program.host.allocate(200_000).unwrap();
        let context = program.receives.len() as u64;
        program.receives.push(Receive {
            buffer,
            tagged,
            length: None,
            source: None,
        });
        let filter = TagFilter {
            tag: 0,
            ignore: u64::MAX,
        };
        program
            .endpoint
            .recv(RecvArgs {
                source: SourceFilter::Any,
                buffer: &[IoVec::new(buffer)],
                tag: tagged.then_some(filter),
                flags: OperationFlags::COMPLETION,
                context,
            })
            .unwrap();
    }

    /// Runs the next event: of the network, or the end of an engine's back-off.
    fn step(&mut self) -> bool {
        let timeout = (0..self.all.len())
            .filter_map(|index| Some((self.all[index].endpoint.next_timeout()?, index)))
            .min();
        match (timeout, self.fabric.next_event_time()) {
            (Some((Instant(at), index)), event) if event.is_none_or(|event| at < event) => {
                self.fabric.run_until(at);
                self.progress(index);
                true
            }
            _ => match self.fabric.step() {
                Some(step) => {
                    if let Some(host) = step.host {
                        self.progress(host.index());
                    }
                    true
                }
                None => {
                    for index in 0..self.all.len() {
                        self.progress(index);
                    }
                    false
                }
            },
        }
    }

    fn progress(&mut self, index: usize) {
        let now = Instant(self.fabric.now());
        let program = &mut self.all[index];
        while program.endpoint.progress(now) > 0 {}
        while let Some(completion) = program.endpoint.poll_completion() {
            let entry = completion.expect("no operation fails");
            let receive = &mut program.receives[entry.context as usize];
            assert_eq!(receive.length, None, "a receive completes once");
            receive.length = Some(entry.length);
            receive.source = entry.source;
        }
        if let Some(event) = program.endpoint.poll_event() {
            panic!("program {index}: {event:?}");
        }
    }

    /// Every message arrived once, with its bytes, and in the order in which its sender sent it.
    fn check(&self) {
        for (receiver, program) in self.all.iter().enumerate() {
            for sender in (0..self.all.len()).filter(|sender| *sender != receiver) {
                for tagged in [false, true] {
                    let from_sender: Vec<&Receive> = program
                        .receives
                        .iter()
                        .filter(|one| one.tagged == tagged)
                        .filter(|one| one.source == Some(program.peers[sender]))
                        .collect();
                    let expected = (0..MESSAGES).filter(|number| is_tagged(*number) == tagged);
                    assert_eq!(from_sender.len() as u64, MESSAGES / 2);
                    for (receive, number) in from_sender.into_iter().zip(expected) {
                        let slice = UserSlice {
                            length: receive.length.unwrap() as usize,
                            ..receive.buffer
                        };
                        let wanted = message(sender, number, length(sender, number));
                        let got = program.host.read(slice).unwrap();
                        assert!(got == wanted, "message {number} of {sender} to {receiver}");
                    }
                }
            }
        }
    }
}

fn engine() -> EndpointConfig {
    EndpointConfig {
        recv_buffers: 256,
        ..EndpointConfig::default()
    }
}

fn nic() -> NicConfig {
    NicConfig {
        send_queue_depth: 128,
        recv_queue_depth: 256,
        packet_buffers: 512,
        ..NicConfig::default()
    }
}

fn run(config: FabricConfig, nic: NicConfig, stage: impl FnOnce(&Fabric)) -> String {
    let mut programs = Programs::start(config, 3, nic);
    stage(&programs.fabric);
    programs.exchange();
    programs.check();
    let log = programs.fabric.log();
    log.text().to_owned()
}

#[test]
fn messages_survive_reordering() {
    for seed in 0..10 {
        let mut programs = Programs::start(FabricConfig::seeded(seed), 3, nic());
        programs.exchange();
        programs.check();
        let statistics = programs.all.iter().map(|one| one.endpoint.statistics());
        let early: u64 = statistics.map(|statistics| statistics.out_of_order).sum();
        assert!(early > 20, "{early} packets came before their turn");
    }
}

#[test]
fn the_engine_is_deterministic() {
    let once = || run(FabricConfig::seeded(3), nic(), |_| {});
    assert!(once() == once());
}

#[test]
fn messages_survive_loss_and_rnr() {
    for seed in 0..10 {
        let network = NetworkConfig {
            loss: Probability::new(0.05).unwrap(),
            rnr: Probability::new(0.2).unwrap(),
            jitter: Duration::from_micros(100),
            ..NetworkConfig::default()
        };
        let config = FabricConfig {
            network,
            ..FabricConfig::seeded(seed)
        };
        let nic = NicConfig {
            rnr_retry: 0,
            ..nic()
        };
        let log = run(config, nic, |_| {});
        assert!(log.contains("RemoteRnr") && log.contains(" resend "));
    }
}

#[test]
fn messages_survive_small_queues() {
    for seed in 0..10 {
        let network = NetworkConfig {
            in_flight: 3,
            ..NetworkConfig::default()
        };
        let config = FabricConfig {
            network,
            ..FabricConfig::seeded(seed)
        };
        let nic = NicConfig {
            send_queue_depth: 4,
            recv_queue_depth: 8,
            packet_buffers: 16,
            ..nic()
        };
        run(config, nic, |_| {});
    }
}

#[test]
fn late_or_unreceived_handshakes_change_nothing() {
    for action in [
        Action::Answer(efa_core::nic::Status::RemoteRnr),
        Action::Delay(Duration::from_millis(5).into()),
        Action::Drop,
    ] {
        let log = run(FabricConfig::seeded(1), nic(), |fabric| {
            fabric.install(Fault::new(Match::packet(HANDSHAKE), action).times(6));
        });
        assert!(!log.is_empty());
    }
}

#[test]
fn answers_before_send_completions_change_nothing() {
    for seed in 0..10 {
        run(FabricConfig::seeded(seed), nic(), |fabric| {
            let late = Action::Delay(Duration::from_micros(300).into());
            fabric.install(Fault::new(Match::any(Point::Answer), late));
        });
    }
}
