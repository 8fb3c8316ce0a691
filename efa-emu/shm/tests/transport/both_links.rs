//! One network under two links: the simulator and shared memory have to give the same results for
//! the same requests with the same rules, options and seeds.
//!
//! The test compares what the initiator sees (the status of each request, and when it completed),
//! the order in which the receiver sees the messages where it does not depend on time, duplicate
//! completions, and the number of times that each rule was applied. A rule that is applied to every
//! frame counts the attempts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use efa_core::address::{Gid, Qkey};
use efa_core::nic::{Access, Domain, Doorbell, Nic, RdmaRequest, Status, UserSlice};
use efa_device_model::device::Service;
use efa_device_model::fault::{Fault, parse_file};
use efa_device_model::provider::{SendData, UdAddress};
use efa_shm::{HostConfig, NetworkOptions, RdmaPath};
use efa_sim::{self, Fabric, FabricConfig, NicConfig, ScriptedPeer};
use efa_testing::addresses::gid;
use efa_testing::engine::{Address, Client, Memory, config, fabric};

use crate::processes::{Parent, Process};

const HEAL: &str = "[[fault]]\nthen = { heal = [\"alpha\", \"beta\"] }";

const QKEY: Qkey = Qkey(0x51);

/// Messages that are sent; where messages are not datagrams, an RDMA write and an RDMA read follow.
const MESSAGES: u64 = 8;
/// Posted receives: a message may come twice.
const RECEIVES: u64 = MESSAGES + 4;
const WRITE: u64 = MESSAGES;
const READ: u64 = MESSAGES + 1;
/// The bytes of a message, and of the header before a datagram's payload.
const LENGTH: usize = 8;
const ROUTE_HEADER: usize = 40;
/// The bytes of the write and the read: several segments where the data goes through rings.
const BULK: usize = 100_000;

const ALPHA: Gid = gid(0xa);
const BETA: Gid = gid(0xb);

/// The first time-out of the reliability layer, on both links. Shared memory uses the machine's
/// clock: a request there may take half of this time longer than in the simulation.
const TIMEOUT: Duration = Duration::from_millis(80);

/// The most runs over shared memory. The test needs one that agrees with the simulation, and in
/// which each request was in time. A busy machine makes runs late, and sometimes changes which of
/// several simultaneous answers is the n-th; a link with an error differs in all runs.
const RUNS: usize = 100;

/// When all requests have completed and no message has arrived for this long, the run is abandoned,
/// and another one starts.
const GIVE_UP: Duration = Duration::from_secs(2);

struct Scenario<'a> {
    /// Network options, besides the time-outs.
    options: &'a str,
    /// Rules of a fault file, without the table headers.
    rules: &'a [&'a str],
    /// Whether the order of arrival does not depend on random times.
    is_ordered: bool,
    service: Service,
    /// The time at which a cut between the two is healed.
    heals_after: Option<Duration>,
    /// Whether the rules kill the receiver. Then it is in its own process, and the test does not
    /// see its messages.
    is_deadly: bool,
}

impl Default for Scenario<'_> {
    /// All requests on a perfect network.
    fn default() -> Self {
        Scenario {
            options: "",
            rules: &[],
            is_ordered: true,
            service: Service::Srd,
            heals_after: None,
            is_deadly: false,
        }
    }
}

/// The outcome of a scenario.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Outcome {
    /// By request: its status, and how long it took.
    outcomes: BTreeMap<u64, (Status, Duration)>,
    /// The messages in the order of their arrival.
    arrived: Vec<u64>,
    /// Completions of requests that had already completed: at the sender, and at the receiver.
    repeated: [u64; 2],
    /// The number of times that each rule was applied.
    applied: Vec<u64>,
}

impl Scenario<'_> {
    fn options(&self, attempts: u32) -> NetworkOptions {
        let timeout = TIMEOUT.as_millis();
        let options = format!(
            "{},retransmit-timeout={timeout}ms,attempts={attempts},qpn-reuse=lowest",
            self.options
        );
        options.parse().unwrap()
    }

    fn has_rdma(&self) -> bool {
        self.service == Service::Srd
    }

    fn requests(&self) -> usize {
        MESSAGES as usize + if self.has_rdma() { 2 } else { 0 }
    }

    /// The bytes before each message in the receiver's memory.
    fn header(&self) -> usize {
        match self.service {
            Service::Srd => 0,
            Service::Ud => ROUTE_HEADER,
        }
    }

    fn faults(&self) -> Vec<Fault> {
        let counters = [
            r#"when = {}, then = { release = "nothing" }"#,
            r#"when = { repeated = true }, then = { release = "nothing" }"#,
            r#"when = { on = "answer" }, then = { release = "nothing" }"#,
            r#"when = { on = "answer", repeated = true }, then = { release = "nothing" }"#,
        ];
        let rules = counters.iter().chain(self.rules);
        let text: String = rules
            .map(|rule| {
                // Each on its own line, as in files.
                let rule = rule.replacen(", when", "\nwhen", 1);
                let rule = rule.replacen(", then", "\nthen", 1);
                format!("[[fault]]\n{rule}\n")
            })
            .collect();
        parse_file("rules", &text).unwrap()
    }

    /// Runs the scenario over the simulator.
    fn simulate(&self, attempts: u32) -> Outcome {
        let options = self.options(attempts);
        let fabric = Fabric::new(FabricConfig {
            seed: options.seed,
            network: options.config(),
            qpn_policy: options.qpn_reuse,
            completion_window: 1,
            log: true,
        });
        let [mut alpha, mut beta] = [("alpha", ALPHA), ("beta", BETA)].map(|(name, gid)| {
            let host = fabric.add_host(efa_sim::HostConfig {
                name: Some(name.to_owned()),
                gid: Some(gid),
                ..efa_sim::HostConfig::default()
            });
            let nic = NicConfig {
                service: self.service,
                rnr_retry: 7,
                ..NicConfig::default()
            };
            ScriptedPeer::open(&host, nic).unwrap()
        });
        let to = beta.address();
        beta.know(ALPHA).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let [local, remote] = [&mut alpha, &mut beta].map(|peer| {
            let host = peer.nic().host().clone();
            let memory = host.allocate(BULK).unwrap();
            (memory, peer.nic().register(memory, access).unwrap())
        });
        let rdma = |destination, context| RdmaRequest {
            destination,
            local: UserSlice { ..local.0 },
            local_key: local.1.local_key,
            remote_address: remote.0.address,
            remote_key: remote.1.remote_key,
            immediate: None,
            context,
        };
        let faults = self.faults().into_iter();
        let mut faults: Vec<_> = faults.map(|fault| fabric.install(fault)).collect();
        for number in 0..MESSAGES {
            assert_eq!(alpha.send(to, &number.to_le_bytes()), Ok(number));
        }
        if self.has_rdma() {
            let destination = alpha.destination(to).unwrap();
            let nic = alpha.nic();
            let (write, read) = (rdma(destination, WRITE), rdma(destination, READ));
            nic.post_write(&write, Doorbell::Ring).unwrap();
            nic.post_read(&read, Doorbell::Ring).unwrap();
        }
        let (mut outcomes, mut arrived) = (BTreeMap::new(), Vec::new());
        let mut heals_after = self.heals_after;
        loop {
            while let Some(done) = alpha.next_finished().unwrap() {
                let outcome = (done.status, fabric.now());
                assert_eq!(outcomes.insert(done.context, outcome), None);
            }
            loop {
                let next = beta.next_packet();
                assert!(next.is_ok() || self.is_deadly, "{:?}", next.err());
                let Ok(Some(packet)) = next else { break };
                let bytes = &packet.bytes[self.header()..];
                arrived.push(u64::from_le_bytes(bytes.try_into().unwrap()));
            }
            match (heals_after, fabric.next_event_time()) {
                (None, None) => break,
                (Some(time), next) if next.is_none_or(|next| next > time) => {
                    heals_after = None;
                    fabric.run_until(time);
                    faults.push(fabric.install(heal()));
                }
                _ => {
                    fabric.step();
                }
            }
        }
        let repeated = [&mut alpha, &mut beta].map(|peer| peer.nic().stale_completions());
        Outcome {
            outcomes,
            arrived,
            repeated,
            applied: faults.into_iter().map(|id| fabric.applied(id)).collect(),
        }
    }

    /// The settings of a host of the shared-memory link.
    fn host(&self, name: &str, gid: Gid, attempts: u32, rdma: RdmaPath) -> HostConfig {
        HostConfig {
            gids: vec![gid],
            network: self.options(attempts),
            rdma,
            ..config(name)
        }
    }

    /// Runs it over shared memory until the sender has seen `expected`, and the receiver the same
    /// messages.
    fn run(&self, attempts: u32, rdma: RdmaPath, expected: &Outcome) -> Outcome {
        let root = tempfile::tempdir().unwrap();
        let open = |name, gid| {
            let host = self.host(name, gid, attempts, rdma);
            let mut client = Client::open_with(root.path(), &host, QKEY, self.service, |_| {});
            client.may_repeat = true;
            client
        };
        let mut alpha = open("alpha", ALPHA);
        let mut beta = match self.is_deadly {
            true => {
                let host = self.host("beta", BETA, attempts, rdma);
                let mut process = Process::start("receiver", root.path(), 0);
                process.say(&host.network.to_string());
                process.say(&format!("{rdma:?}"));
                Receiver::Apart(process)
            }
            false => {
                let beta = open("beta", BETA);
                let landing = ReceiverMemory::open(alpha.address(), beta, self.header());
                Receiver::Here(Box::new(landing))
            }
        };
        let (to, there) = beta.connect(&alpha);
        let local = alpha.register(vec![0; BULK]);
        for fault in self.faults() {
            fabric(root.path()).arm(&fault).unwrap();
        }
        let start = Instant::now();
        for number in 0..MESSAGES {
            let bytes = number.to_le_bytes();
            assert!(alpha.post_send(number, to, SendData::Inline(&[&bytes])));
        }
        if self.has_rdma() {
            alpha.post_write(WRITE, to, local.buffer(0, BULK), there, None);
            alpha.post_read(READ, to, local.buffer(0, BULK), there);
        }
        let mut outcomes = BTreeMap::new();
        let mut heals_after = self.heals_after;
        let mut news = start;
        while outcomes.len() < self.requests() || !beta.has(&expected.arrived) {
            if let Some(done) = alpha.poll() {
                let outcome = (done.status().unwrap(), start.elapsed());
                assert_eq!(outcomes.insert(done.wr_id, outcome), None);
                news = Instant::now();
            }
            if beta.poll() {
                news = Instant::now();
            }
            // A rule that is armed while the receiver's device works takes effect at its next poll.
            // Then other messages arrive than in the simulation, and the run does not count.
            if outcomes.len() == self.requests() && news.elapsed() > GIVE_UP {
                break;
            }
            if heals_after
                .take_if(|time| start.elapsed() >= *time)
                .is_some()
            {
                fabric(root.path()).arm(&heal()).unwrap();
            }
            std::thread::yield_now();
        }
        while beta.poll() {}
        assert!(alpha.poll().is_none());
        let armed = fabric(root.path()).armed().unwrap();
        let (arrived, repeated) = beta.finish();
        Outcome {
            outcomes,
            arrived,
            repeated: [alpha.stale(), repeated],
            applied: armed.iter().map(|armed| armed.applied).collect(),
        }
    }

    /// Compares the two links, and returns the outcome of the simulation.
    fn check(&self, attempts: u32) -> Outcome {
        let simulated = self.simulate(attempts);
        assert_eq!(simulated.outcomes.len(), self.requests(), "{simulated:?}");
        for rdma in [RdmaPath::Auto, RdmaPath::Rings] {
            let mut late: BTreeSet<u64> = simulated.outcomes.keys().copied().collect();
            let mut difference = String::new();
            for _ in 0..RUNS {
                let real = self.run(attempts, rdma, &simulated);
                if let Err(text) = self.compare(&simulated, &real) {
                    difference = text;
                    continue;
                }
                late.retain(|request| {
                    let took = real.outcomes[request].1;
                    took > simulated.outcomes[request].1 + TIMEOUT / 2
                });
                if late.is_empty() {
                    break;
                }
            }
            assert!(
                late.is_empty(),
                "{rdma:?}: no run agrees, or always late: {late:?}\n{difference}\n{simulated:?}"
            );
        }
        simulated
    }

    /// Compares a run over shared memory with the simulation. It may be slower, but not faster.
    /// Returns the difference.
    fn compare(&self, simulated: &Outcome, real: &Outcome) -> Result<(), String> {
        let (mut simulated, mut real) = (simulated.clone(), real.clone());
        if self.is_deadly {
            // The dead receiver cannot apply rules to arriving messages, nor report them.
            simulated.arrived.clear();
            simulated.applied[0] = real.applied[0];
        }
        if !self.is_ordered {
            simulated.arrived.sort_unstable();
            real.arrived.sort_unstable();
        }
        for (request, (_, took)) in &mut real.outcomes {
            let expected = simulated.outcomes[request].1;
            if *took < expected {
                return Err(format!("request {request}: {took:?} of {expected:?}"));
            }
            *took = expected;
        }
        if real != simulated {
            return Err(format!("{:?} {:?}: {real:?}", self.options, self.rules));
        }
        Ok(())
    }
}

fn heal() -> Fault {
    let mut rules = parse_file("heal", HEAL).unwrap();
    rules.remove(0)
}

/// The receiver's memory and the messages in it.
struct ReceiverMemory {
    client: Client,
    header: usize,
    messages: Memory,
    bulk: Memory,
    /// Receives in the order of their completion.
    arrived: Vec<u64>,
}

impl ReceiverMemory {
    /// Posts the receives.
    fn open(sender: Address, mut client: Client, header: usize) -> ReceiverMemory {
        client.connect(sender);
        let slot = header + LENGTH;
        let messages = client.register(vec![0; slot * RECEIVES as usize]);
        for number in 0..RECEIVES {
            client.post_recv(number, messages.buffer(slot * number as usize, slot));
        }
        ReceiverMemory {
            bulk: client.register(vec![0; BULK]),
            client,
            header,
            messages,
            arrived: Vec::new(),
        }
    }
}

/// The receiver over shared memory.
enum Receiver {
    Here(Box<ReceiverMemory>),
    /// A child, which does not report what it receives.
    Apart(Process),
}

impl Receiver {
    /// The address for a sender, and the memory that the sender may write and read.
    fn connect(&mut self, sender: &Client) -> (UdAddress, (u64, u32)) {
        match self {
            Receiver::Here(landing) => {
                let to = sender.connect(landing.client.address());
                (to, (landing.bulk.address(), landing.bulk.keys.rkey.0))
            }
            Receiver::Apart(process) => {
                process.say(&sender.address().to_text());
                let to = sender.connect(Address::from_text(&process.hear()));
                let [address, key] = [process.hear(), process.hear()];
                (to, (address.parse().unwrap(), key.parse().unwrap()))
            }
        }
    }

    /// Takes the next completion. Returns whether there was one.
    fn poll(&mut self) -> bool {
        let Receiver::Here(landing) = self else {
            return false;
        };
        let done = landing.client.poll();
        landing.arrived.extend(done.iter().map(|done| done.wr_id));
        done.is_some()
    }

    /// Whether all expected messages have arrived.
    fn has(&self, expected: &[u64]) -> bool {
        match self {
            Receiver::Here(landing) => landing.arrived.len() >= expected.len(),
            Receiver::Apart(_) => true,
        }
    }

    /// The messages in the order of their arrival, and the number of duplicate completions.
    fn finish(self) -> (Vec<u64>, u64) {
        let Receiver::Here(landing) = self else {
            return (Vec::new(), 0);
        };
        let slot = landing.header + LENGTH;
        let message = |place: &u64| {
            let bytes = &landing.messages.bytes[slot * *place as usize + landing.header..];
            u64::from_le_bytes(*bytes.first_chunk().unwrap())
        };
        let messages = landing.arrived.iter().map(message);
        (messages.collect(), landing.client.stale())
    }
}

/// A child that receives until it is killed.
pub(crate) fn receiver(parent: &Parent) {
    let hear = || parent.hear().unwrap();
    let network = hear().parse().unwrap();
    let rdma = match hear().as_str() {
        "Rings" => RdmaPath::Rings,
        _ => RdmaPath::Auto,
    };
    let host = HostConfig {
        gids: vec![BETA],
        network,
        rdma,
        ..config("beta")
    };
    let client = Client::open(&parent.root, &host);
    let address = client.address();
    let mut landing = ReceiverMemory::open(Address::from_text(&hear()), client, 0);
    parent.say(&address.to_text());
    parent.say(&landing.bulk.address().to_string());
    parent.say(&landing.bulk.keys.rkey.0.to_string());
    loop {
        landing.client.poll();
        std::thread::yield_now();
    }
}

/// As [`Scenario::check`], on a perfect network.
fn check(attempts: u32, rules: &[&str]) -> Outcome {
    let scenario = Scenario {
        rules,
        ..Scenario::default()
    };
    scenario.check(attempts)
}

/// The status of a request in the simulation, and the number of whole time-outs that it took.
fn outcome(seen: &Outcome, request: u64) -> (Status, u32) {
    let (status, took) = seen.outcomes[&request];
    (status, (took.as_nanos() / TIMEOUT.as_nanos()) as u32)
}

#[test]
fn a_dropped_frame_returns_after_one_timeout() {
    let seen = check(
        4,
        &[
            r#"when = { operation = "send", nth = 2 }, then = "drop""#,
            r#"when = { operation = "write", nth = 1 }, then = "drop""#,
            r#"when = { on = "answer", operation = "send", nth = 5, count = 1 }, then = "drop""#,
            r#"when = { on = "answer", operation = "read", nth = 1 }, then = "drop""#,
        ],
    );
    for late in [1, 5, WRITE, READ] {
        assert_eq!(outcome(&seen, late), (Status::Ok, 1), "{late}: {seen:?}");
    }
    assert_eq!(outcome(&seen, 0), (Status::Ok, 0));
    assert_eq!(seen.arrived, [0, 2, 3, 4, 5, 6, 7, 1]);
    // Twelve requests arrive, two of them twice; the same is true for the answers.
    assert_eq!(seen.applied[..4], [12, 2, 12, 2]);
}

#[test]
fn a_request_dropped_always_fails_after_its_attempts() {
    for (attempts, timeouts) in [(1, 1), (3, 7)] {
        let seen = check(
            attempts,
            &[
                r#"when = { operation = "send", source-qpn = 2, nth = 1, every = 1, max-length = 8 }, then = "drop""#,
                r#"when = { on = "answer", operation = "write" }, then = "drop""#,
            ],
        );
        for request in 0..=WRITE {
            let failed = (Status::LocalUnresponsiveRemote, timeouts);
            assert_eq!(outcome(&seen, request), failed, "{seen:?}");
        }
        assert_eq!(outcome(&seen, READ), (Status::Ok, 0));
        assert_eq!(seen.applied[0], MESSAGES * u64::from(attempts) + 2);
    }
}

#[test]
fn a_permanent_loss_takes_all_attempts_time() {
    let seen = check(
        3,
        &[
            r#"when = { operation = "send", nth = 3 }, then = "lose""#,
            r#"when = { operation = "read" }, then = "lose""#,
            r#"when = { on = "answer", operation = "send", nth = 1 }, then = "lose""#,
        ],
    );
    for lost in [2, READ, 0] {
        let failed = (Status::LocalUnresponsiveRemote, 7);
        assert_eq!(outcome(&seen, lost), failed, "{seen:?}");
    }
    assert_eq!(seen.arrived, [0, 1, 3, 4, 5, 6, 7]);
}

#[test]
fn a_cut_ends_all_requests() {
    let seen = check(3, &[r#"then = { cut = ["alpha", "beta"] }"#]);
    let failed = (Status::LocalUnresponsiveRemote, 7);
    for request in 0..=READ {
        assert_eq!(outcome(&seen, request), failed);
    }
    // Once when it was armed, and once for each attempt.
    assert_eq!(seen.applied[4], 1 + 3 * (READ + 1));
}

#[test]
fn delays_and_holds_change_the_order() {
    let seen = check(
        4,
        &[
            r#"when = { operation = "send", nth = 1 }, then = { delay = "120ms" }"#,
            r#"when = { operation = "send", nth = 1 }, then = { hold-packets = 3 }"#,
            r#"when = { on = "answer", operation = "send", nth = 2 }, then = { delay = "260ms" }"#,
            r#"when = { operation = "write" }, then = { delay = "120ms" }"#,
        ],
    );
    assert_eq!(seen.arrived, [2, 3, 4, 1, 5, 6, 7, 0]);
    assert_eq!(outcome(&seen, 0), (Status::Ok, 1));
    assert_eq!(outcome(&seen, 3), (Status::Ok, 3));
    assert_eq!(outcome(&seen, WRITE), (Status::Ok, 1));
}

#[test]
fn answers_are_prescribed_and_receivers_not_ready() {
    let seen = check(
        4,
        &[
            r#"when = { operation = "send", nth = 1 }, then = { status = "remote-abort" }"#,
            r#"when = { operation = "send", nth = 1 }, then = { not-ready = 2 }"#,
            r#"when = { on = "answer", operation = "send", nth = 6 }, then = { status = "remote-bad-address" }"#,
            r#"when = { operation = "read" }, then = { status = "remote-bad-length" }"#,
            r#"when = { on = "answer", status = "remote-rnr" }, then = { release = "nothing" }"#,
        ],
    );
    assert_eq!(outcome(&seen, 0).0, Status::RemoteAbort);
    assert_eq!(outcome(&seen, 1).0, Status::Ok);
    assert_eq!(outcome(&seen, READ).0, Status::RemoteBadLength);
    // The rule itself refuses the first retry; the second is a separate event.
    assert_eq!(seen.applied[..2], [11, 1]);
    // Rules for answers see the statuses that other rules prescribe.
    assert_eq!(seen.applied[8], 2);
}

/// Loss, refusals and delays that depend on the seed.
#[test]
fn the_seed_means_the_same_to_both() {
    let mut all = Vec::new();
    for seed in 1..=2 {
        let options = format!("seed={seed},paths=4,latency=1ms,jitter=1ms,loss=0.4,rnr=0.3");
        let scenario = Scenario {
            options: &options,
            rules: &[
                r#"when = { operation = "send" }, then = { delay = ["0ns", "120ms"] }"#,
                r#"when = { on = "answer", repeated = false }, then = "drop""#,
            ],
            is_ordered: false,
            ..Scenario::default()
        };
        all.push(scenario.check(3));
    }
    // If they were the same, the comparison would show nothing.
    assert_ne!(all[0], all[1]);
    let outcomes = || all.iter().flat_map(|seen| seen.outcomes.values());
    assert!(outcomes().any(|(status, _)| *status == Status::LocalUnresponsiveRemote));
    assert!(outcomes().any(|(status, took)| *status == Status::Ok && *took > TIMEOUT));
    assert!(all.iter().any(|seen| seen.applied[1] > 0), "{all:?}");
}

/// Rules do not see frames that a cut loses, so the cut is healed by time: between the second
/// attempt and the third.
#[test]
fn a_cut_that_is_healed_is_a_delay() {
    let scenario = Scenario {
        rules: &[r#"then = { cut = ["alpha", "beta"] }"#],
        heals_after: Some(2 * TIMEOUT),
        ..Scenario::default()
    };
    let seen = scenario.check(4);
    for request in 0..=READ {
        assert_eq!(outcome(&seen, request), (Status::Ok, 3), "{seen:?}");
    }
    assert_eq!(seen.arrived, [0, 1, 2, 3, 4, 5, 6, 7]);
    // Each request arrives once, after a loss.
    assert_eq!(seen.applied[..2], [READ + 1, READ + 1]);
}

#[test]
fn held_frames_continue_on_release() {
    let seen = check(
        4,
        &[
            r#"label = "first", when = { operation = "send", nth = 1 }, then = "hold""#,
            r#"label = "answer", when = { on = "answer", operation = "send", nth = 2 }, then = "hold""#,
            r#"when = { operation = "send", nth = 6 }, then = { release = "first" }"#,
            r#"label = "late", when = { operation = "send", nth = 4 }, then = { delay = "120ms" }"#,
            r#"when = { on = "answer", operation = "read" }, then = { release = "answer" }"#,
            r#"when = { operation = "read" }, then = { delay = "200ms" }"#,
        ],
    );
    // A rule counts the frames that the rules before it pass: the sixth is message 6, and the
    // fourth message 4.
    assert_eq!(seen.arrived, [1, 2, 3, 5, 6, 0, 7, 4]);
    // The second answer, for message 2, waits for the answer to the read.
    assert_eq!(outcome(&seen, READ), (Status::Ok, 2));
    assert_eq!(outcome(&seen, 2), (Status::Ok, 2), "{seen:?}");
    assert_eq!(outcome(&seen, 0), (Status::Ok, 0));
}

#[test]
fn completions_that_are_written_twice_arrive_twice() {
    let seen = check(
        4,
        &[
            r#"when = { operation = "send", nth = 2, every = 2 }, then = "duplicate""#,
            r#"when = { on = "answer", operation = "send", nth = 1, count = 3 }, then = "duplicate""#,
            r#"when = { on = "answer", operation = "read" }, then = "duplicate""#,
        ],
    );
    assert_eq!(seen.repeated, [4, 4]);
    assert_eq!(seen.arrived, [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// The second copy uses a receive of its own, and the sender gets one completion only. RDMA is not
/// duplicated.
#[test]
fn duplicated_packets_arrive_twice_and_complete_once() {
    let seen = check(
        4,
        &[
            r#"when = { nth = 2, every = 3 }, then = "repeat""#,
            r#"when = { operation = "read" }, then = { delay = "30ms" }"#,
        ],
    );
    assert_eq!(seen.arrived, [0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 7]);
    assert_eq!(seen.repeated, [0, 0]);
    for request in 0..=READ {
        assert_eq!(outcome(&seen, request).0, Status::Ok, "{seen:?}");
    }
    assert_eq!(seen.applied[4..], [3, 1]);
}

/// A process that is killed leaves a device without that queue pair.
#[test]
fn a_killed_receivers_queue_pair_is_removed() {
    let scenario = Scenario {
        rules: &[r#"when = { operation = "send", nth = 4 }, then = { kill = "beta" }"#],
        is_deadly: true,
        ..Scenario::default()
    };
    let seen = scenario.check(3);
    for request in 0..=READ {
        let status = match request {
            0..3 => Status::Ok,
            _ => Status::RemoteBadDestQpn,
        };
        assert_eq!(outcome(&seen, request), (status, 0), "{seen:?}");
    }
}

#[test]
fn datagrams_complete_whether_or_not_they_arrive() {
    let scenario = Scenario {
        service: Service::Ud,
        rules: &[
            r#"when = { operation = "datagram", nth = 2 }, then = "drop""#,
            r#"when = { operation = "datagram", nth = 2 }, then = "lose""#,
            r#"when = { operation = "datagram", nth = 2 }, then = { status = "remote-abort" }"#,
            r#"when = { operation = "datagram", nth = 2 }, then = "duplicate""#,
            r#"when = { operation = "datagram", nth = 2 }, then = { delay = "60ms" }"#,
            r#"when = { operation = "datagram", nth = 2 }, then = "repeat""#,
            r#"when = { operation = "datagram", nth = 1 }, then = { hold-packets = 1 }"#,
        ],
        ..Scenario::default()
    };
    let seen = scenario.check(4);
    for request in 0..MESSAGES {
        assert_eq!(outcome(&seen, request), (Status::Ok, 0), "{seen:?}");
    }
    // Messages 1 to 3 are lost; the completion of 4 comes twice, 5 late, 6 twice, and 0 after the
    // first that passes.
    assert_eq!(seen.arrived, [4, 0, 6, 6, 7, 5]);
    assert_eq!(seen.repeated, [0, 1]);
}

#[test]
fn the_seed_means_the_same_to_datagrams() {
    let mut lost = 0;
    for seed in 1..=3 {
        let options = format!("seed={seed},paths=4,latency=1ms,jitter=1ms,loss=0.4,rnr=0.3");
        let scenario = Scenario {
            options: &options,
            service: Service::Ud,
            is_ordered: false,
            ..Scenario::default()
        };
        let seen = scenario.check(3);
        lost += MESSAGES as usize - seen.arrived.len();
    }
    assert!((1..3 * MESSAGES as usize).contains(&lost), "{lost}");
}
