//! One network under two links: the same rules, options and seeds, over the simulator and over shared
//! memory, have to make the same of the same requests.
//!
//! Compared is what the initiator sees (the status of each request, and when it came), the order in which the receiver sees the messages where no time
//! decides it, and how often each rule was applied. A rule that is applied to every frame counts the
//! attempts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use efa_core::address::Gid;
use efa_core::nic::{Access, Domain, Doorbell, Nic, RdmaRequest, Status, UserSlice};
use efa_emu::fault::{Fault, parse_file};
use efa_emu::provider::SendData;
use efa_emu::sim::{Fabric, FabricConfig, HostConfig, NicConfig, ScriptedPeer};
use efa_emu::transport::{NetworkOptions, RdmaPath};

use crate::client::{Client, config, fabric};

/// Messages that are sent, before an RDMA write and an RDMA read.
const MESSAGES: u64 = 8;
const WRITE: u64 = MESSAGES;
const READ: u64 = MESSAGES + 1;
const REQUESTS: usize = MESSAGES as usize + 2;
/// Bytes of the write and the read: several parts where the data goes through rings.
const BULK: usize = 100_000;

const ALPHA: Gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xa]);
const BETA: Gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xb]);

/// The first time-out of the reliability layer, on both links. Shared memory takes its time from the
/// machine: there, half of it is what a request may take longer than in the simulation.
const TIMEOUT: Duration = Duration::from_millis(80);

/// Runs over shared memory, until one agrees with the simulation and each request was in time in one that
/// does. A busy machine makes runs late, and in a few of them it decides which of several answers that
/// come together is the n-th; a link that differs does so in all runs.
const RUNS: usize = 100;

struct Scenario<'a> {
    /// Network options, besides the time-outs.
    options: &'a str,
    /// Rules of a fault file, without the table headers.
    rules: &'a [&'a str],
    /// No random time decides the order in which messages arrive.
    is_ordered: bool,
}

/// What came of a scenario.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    /// By request: its status, and how long it took.
    outcomes: BTreeMap<u64, (Status, Duration)>,
    /// The messages in the order of their arrival.
    arrived: Vec<u64>,
    /// How often each rule was applied.
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
                // On a line of its own each, as files have them.
                let rule = rule.replacen(", then", "\nthen", 1);
                format!("[[fault]]\n{rule}\n")
            })
            .collect();
        parse_file("rules", &text).unwrap()
    }

    /// Over the simulator.
    fn simulate(&self, attempts: u32) -> Seen {
        let options = self.options(attempts);
        let fabric = Fabric::new(FabricConfig {
            seed: options.seed,
            network: options.config(),
            qpn_policy: options.qpn_reuse,
            completion_window: 1,
            log: true,
        });
        let [mut alpha, mut beta] = [("alpha", ALPHA), ("beta", BETA)].map(|(name, gid)| {
            let host = fabric.add_host(HostConfig {
                name: Some(name.to_owned()),
                gid: Some(gid),
                ..HostConfig::default()
            });
            let nic = NicConfig {
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
        let faults: Vec<_> = faults.map(|fault| fabric.install(fault)).collect();
        for number in 0..MESSAGES {
            assert_eq!(alpha.send(to, &number.to_le_bytes()), Ok(number));
        }
        let destination = alpha.destination(to).unwrap();
        alpha
            .nic()
            .post_write(&rdma(destination, WRITE), Doorbell::Ring)
            .unwrap();
        alpha
            .nic()
            .post_read(&rdma(destination, READ), Doorbell::Ring)
            .unwrap();
        let (mut outcomes, mut arrived) = (BTreeMap::new(), Vec::new());
        loop {
            while let Some(done) = alpha.next_finished().unwrap() {
                let outcome = (done.status, fabric.now());
                assert_eq!(outcomes.insert(done.context, outcome), None);
            }
            while let Some(packet) = beta.next_packet().unwrap() {
                arrived.push(u64::from_le_bytes(packet.bytes.try_into().unwrap()));
            }
            if fabric.step().is_none() {
                break;
            }
        }
        Seen {
            outcomes,
            arrived,
            applied: faults.into_iter().map(|id| fabric.applied(id)).collect(),
        }
    }

    /// Over shared memory.
    fn run(&self, attempts: u32, rdma: RdmaPath) -> Seen {
        let root = tempfile::tempdir().unwrap();
        let [mut alpha, mut beta] = [("alpha", ALPHA), ("beta", BETA)].map(|(name, gid)| {
            let mut config = config(name);
            config.gid = Some(gid);
            config.network = self.options(attempts);
            config.rdma = rdma;
            Client::open(root.path(), &config)
        });
        let to = alpha.connect(beta.address());
        beta.connect(alpha.address());
        let landing = beta.register(vec![0; 8 * MESSAGES as usize]);
        for number in 0..MESSAGES {
            beta.post_recv(number, landing.buffer(8 * number as usize, 8));
        }
        let [local, remote] = [&alpha, &beta].map(|client| client.register(vec![0; BULK]));
        let there = (remote.address(), remote.keys.rkey.0);
        for fault in self.faults() {
            fabric(root.path()).arm(&fault).unwrap();
        }
        let start = Instant::now();
        for number in 0..MESSAGES {
            let bytes = number.to_le_bytes();
            assert!(alpha.post_send(number, to, SendData::Inline(&[&bytes])));
        }
        alpha.post_write(WRITE, to, local.buffer(0, BULK), there, None);
        alpha.post_read(READ, to, local.buffer(0, BULK), there);
        let (mut outcomes, mut arrived) = (BTreeMap::new(), Vec::new());
        while outcomes.len() < REQUESTS {
            if let Some(done) = alpha.poll() {
                let outcome = (done.status().unwrap(), start.elapsed());
                assert_eq!(outcomes.insert(done.wr_id, outcome), None);
            }
            if let Some(done) = beta.poll() {
                arrived.push(done.wr_id);
            }
            std::thread::yield_now();
        }
        while let Some(done) = beta.poll() {
            arrived.push(done.wr_id);
        }
        let message = |place: &u64| {
            let bytes = landing.bytes[8 * *place as usize..].first_chunk();
            u64::from_le_bytes(*bytes.unwrap())
        };
        let armed = fabric(root.path()).armed().unwrap();
        Seen {
            outcomes,
            arrived: arrived.iter().map(message).collect(),
            applied: armed.iter().map(|armed| armed.applied).collect(),
        }
    }

    /// Compares the two, and returns what the simulation came to.
    fn check(&self, attempts: u32) -> Seen {
        let simulated = self.simulate(attempts);
        assert_eq!(simulated.outcomes.len(), REQUESTS, "{simulated:?}");
        for rdma in [RdmaPath::Auto, RdmaPath::Rings] {
            let mut late: BTreeSet<u64> = simulated.outcomes.keys().copied().collect();
            let mut difference = String::new();
            for _ in 0..RUNS {
                let real = self.run(attempts, rdma);
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

    /// Compares a run over shared memory with the simulation. It may be slower, never faster. Returns
    /// the difference.
    fn compare(&self, simulated: &Seen, real: &Seen) -> Result<(), String> {
        let (mut simulated, mut real) = (simulated.clone(), real.clone());
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

/// As [`Scenario::check`], on a perfect network.
fn check(attempts: u32, rules: &[&str]) -> Seen {
    let scenario = Scenario {
        options: "",
        rules,
        is_ordered: true,
    };
    scenario.check(attempts)
}

/// The status of a request in the simulation, and the whole time-outs that it took.
fn outcome(seen: &Seen, request: u64) -> (Status, u32) {
    let (status, took) = seen.outcomes[&request];
    (status, (took.as_nanos() / TIMEOUT.as_nanos()) as u32)
}

#[test]
fn a_frame_that_is_dropped_comes_again_after_one_time_out() {
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
    // Twelve requests arrive, two of them again; so do the answers.
    assert_eq!(seen.applied[..4], [12, 2, 12, 2]);
}

#[test]
fn a_request_that_is_always_dropped_fails_after_its_attempts() {
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
fn a_loss_for_good_takes_as_long_as_all_attempts() {
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
    for request in 0..REQUESTS as u64 {
        assert_eq!(outcome(&seen, request), failed);
    }
    // Once when it was armed, and for each attempt.
    assert_eq!(seen.applied[4], 1 + 3 * REQUESTS as u64);
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
        ],
    );
    assert_eq!(outcome(&seen, 0).0, Status::RemoteAbort);
    assert_eq!(outcome(&seen, 1).0, Status::Ok);
    assert_eq!(outcome(&seen, READ).0, Status::RemoteBadLength);
    // The rule refuses the first retry by itself; the second is an event of its own.
    assert_eq!(seen.applied[..2], [11, 1]);
}

/// Loss, refusals and delays that the seed decides.
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
        };
        all.push(scenario.check(3));
    }
    // Else there would be nothing to compare.
    assert_ne!(all[0], all[1]);
    let outcomes = || all.iter().flat_map(|seen| seen.outcomes.values());
    assert!(outcomes().any(|(status, _)| *status == Status::LocalUnresponsiveRemote));
    assert!(outcomes().any(|(status, took)| *status == Status::Ok && *took > TIMEOUT));
    assert!(all.iter().any(|seen| seen.applied[1] > 0), "{all:?}");
}
