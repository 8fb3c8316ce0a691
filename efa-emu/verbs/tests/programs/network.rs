//! The effect of the network options of `efa-emu run` on a stock program, as its capture shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use efa_capture::frame::{FrameKind, Repr};
use efa_capture::{Direction, Reader};
use efa_core::address::Qpn;
use efa_core::nic::Status;
use efa_testing::programs::{Dialogue, TestFabric, needs};

/// Messages of `fi_pingpong` in each direction.
const ROUNDS: u32 = 3;

/// The recording of a host: transport headers with their times and directions.
type Recorded = Vec<(Duration, Direction, Repr)>;

fn recorded(path: &Path) -> Recorded {
    let mut reader = Reader::open(path).unwrap();
    let mut headers = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        let header = frame.frame.unwrap().header;
        headers.push((frame.time, frame.direction.unwrap(), header));
    }
    headers
}

/// The messages that the server of a `fi_pingpong` without RDMA receives with these network
/// options.
fn received(options: &[&str]) -> Recorded {
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("server.pcapng");
    // 256 KiB are about 30 packets.
    let messages = format!("-I {ROUNDS} -S 262144 -c");
    let dialogue = Dialogue::pingpong(&fabric, &messages);
    let device = ["--profile", "efa0"];
    let capture = ["--pcap", file.to_str().unwrap()];
    dialogue.run(
        &[&device, &capture, options].concat(),
        &[&device, options].concat(),
    );
    recorded(&file)
}

/// The messages that arrive, in the order of their arrival.
fn arrivals(recorded: &Recorded) -> Vec<Repr> {
    let inbound = recorded.iter().filter(|(_, direction, header)| {
        *direction == Direction::Inbound && header.kind == FrameKind::Send
    });
    inbound.map(|(.., header)| *header).collect()
}

fn paths(arrivals: &[Repr]) -> BTreeSet<u16> {
    arrivals.iter().map(|header| header.path).collect()
}

fn in_order(arrivals: &[Repr]) -> bool {
    arrivals.is_sorted_by_key(|header| header.sequence)
}

fn is_refusal(header: &Repr) -> bool {
    header.kind == FrameKind::Response(Status::RemoteRnr)
}

#[test]
fn several_paths_and_jitter_change_the_order() {
    needs!("fi_pingpong", "libfabric-bin");
    for (options, several) in [
        (&["--latency", "100us"][..], false),
        (&["--paths", "8", "--latency", "100us"], true),
        (&["--paths", "8", "--jitter", "500us"], true),
    ] {
        let recorded = received(options);
        let arrivals = arrivals(&recorded);
        assert!(arrivals.len() > 50, "{options:?}: {}", arrivals.len());
        assert_eq!(paths(&arrivals).len() > 1, several, "{options:?}");
        assert_eq!(in_order(&arrivals), !several, "{options:?}");
    }
}

/// A lost packet arrives later, once, and the program's data is correct.
#[test]
fn loss_makes_packets_late() {
    needs!("fi_pingpong", "libfabric-bin");
    let recorded = received(&["--loss", "0.1", "--seed", "3"]);
    let arrivals = arrivals(&recorded);
    assert!(!in_order(&arrivals));
    assert_eq!(paths(&arrivals).len(), 1);
    let distinct: BTreeSet<_> = arrivals
        .iter()
        .filter(|header| !header.retransmission)
        .map(|header| (header.source_qpn.0, header.sequence))
        .collect();
    assert!(distinct.len() > 50, "{}", distinct.len());
}

#[test]
fn a_receiver_that_is_not_ready_refuses() {
    needs!("fi_pingpong", "libfabric-bin");
    let recorded = received(&["--rnr", "0.2", "--seed", "3"]);
    let refusals = recorded
        .iter()
        .filter(|(_, direction, header)| *direction == Direction::Outbound && is_refusal(header));
    let refusals = refusals.count();
    assert!(refusals > 5, "{refusals} of some 100");
}

/// The transmissions of the n-th message of a queue pair: the path of each attempt, and the number
/// of attempts that found the receiver not ready.
type MessageAttempts = BTreeMap<(Qpn, u32), (Vec<u16>, usize)>;

fn attempts_of_messages(recorded: &Recorded) -> MessageAttempts {
    let mut attempts_of_messages = MessageAttempts::new();
    for (_, direction, header) in recorded {
        if *direction == Direction::Inbound && header.kind == FrameKind::Send {
            let name = (header.source_qpn, header.sequence);
            attempts_of_messages
                .entry(name)
                .or_default()
                .0
                .push(header.path);
        } else if *direction == Direction::Outbound && is_refusal(header) {
            let name = (header.destination_qpn, header.sequence);
            attempts_of_messages.entry(name).or_default().1 += 1;
        }
    }
    // The last messages may not have reached their last attempt.
    attempts_of_messages.retain(|_, (attempts, refusals)| attempts.len() == *refusals + 1);
    attempts_of_messages
}

/// Two processes, their threads and their capture run at a different speed each time.
#[test]
fn the_seed_decides_each_messages_outcome() {
    needs!("fi_pingpong", "libfabric-bin");
    let [first, again, other] = ["7", "7", "8"].map(|seed| {
        let shaken = ["--rnr", "0.3", "--paths", "4", "--latency", "100us"];
        let options = [&shaken[..], &["--jitter", "500us", "--seed", seed]].concat();
        attempts_of_messages(&received(&options))
    });
    let common = |others: &MessageAttempts| {
        first
            .keys()
            .filter(|name| others.contains_key(name))
            .count()
    };
    assert!(
        common(&again) > 50 && common(&other) > 50,
        "{first:?}\n{again:?}\n{other:?}"
    );
    let differing = |others: &MessageAttempts| -> Vec<_> {
        let both = first
            .iter()
            .filter_map(|(name, fate)| Some((*name, fate.clone(), others.get(name)?.clone())));
        both.filter(|(_, fate, other)| fate != other).collect()
    };
    // A receiver that is slow to post its first buffers refuses messages, too, and adds attempts.
    let slow = differing(&again);
    assert!(slow.len() <= 5, "one seed, two runs: {slow:?}");
    let changed = differing(&other);
    let paths = changed.iter().filter(|(_, (a, _), (b, _))| a[0] != b[0]);
    let refusals = changed.iter().filter(|(_, (_, a), (_, b))| a != b);
    assert!(
        paths.count() > 10 && refusals.count() > 10,
        "another seed: {changed:?}"
    );
}

/// A message and its answer take at least two latencies.
#[test]
fn latency_is_waited_for() {
    const LATENCY: Duration = Duration::from_millis(5);
    needs!("fi_pingpong", "libfabric-bin");
    let recorded = received(&["--latency", "5ms"]);
    let (Some((first, ..)), Some((last, ..))) = (recorded.first(), recorded.last()) else {
        panic!("nothing was recorded");
    };
    let took = *last - *first;
    assert!(took >= 2 * ROUNDS * LATENCY, "{took:?}");
}

/// Datagrams are a separate operation: a rule about them delays each of them, a rule about sends
/// none.
#[test]
fn a_rule_delays_datagrams() {
    const DELAY: Duration = Duration::from_millis(40);
    needs!("ibv_ud_pingpong", "ibverbs-utils");
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.toml");
    let text = format!(
        r#"
[[fault]]
when = {{ operation = "send" }}
then = "lose"

[[fault]]
when = {{ operation = "datagram" }}
then = {{ delay = "{}ms" }}
"#,
        DELAY.as_millis()
    );
    std::fs::write(&rules, text).unwrap();
    let file = directory.path().join("server.pcapng");
    let rounds = ROUNDS.to_string();
    let program = ["ibv_ud_pingpong", "-g", "0", "-n", &rounds];
    let dialogue = Dialogue::new(&fabric, &program, "-p", "-p");
    let [rules, capture] = [&rules, &file].map(|path| path.to_str().unwrap());
    dialogue.run(&["--faults", rules, "--pcap", capture], &[]);
    let arrivals: Vec<Duration> = recorded(&file)
        .iter()
        .filter(|(_, direction, header)| {
            *direction == Direction::Inbound && header.kind == FrameKind::Datagram
        })
        .map(|(time, ..)| *time)
        .collect();
    assert_eq!(arrivals.len(), ROUNDS as usize, "{arrivals:?}");
    // Between two messages that arrive, one was sent in the other direction. Waiting for a
    // processor only adds time.
    for pair in arrivals.windows(2) {
        assert!(pair[1] - pair[0] >= 2 * DELAY, "{arrivals:?}");
    }
}

/// The number of a destroyed queue pair is reused first, or last.
#[test]
fn numbers_are_reused_by_the_policy() {
    needs!("fi_pingpong", "libfabric-bin");
    for (policy, reused) in [("lowest", true), ("oldest", false)] {
        let fabric = TestFabric::new();
        let directory = tempfile::tempdir().unwrap();
        // The host exists while its programs start and end.
        let sleeper = fabric.sleeper("server");
        // With a single message, the server would not check its answer after posting it. libfabric
        // sends an answer again if a slow client had no buffer for it.
        let dialogue = Dialogue::pingpong(&fabric, "-I 3 -S 64");
        let numbers: Vec<_> = ["first", "second"]
            .map(|name| {
                let file = directory.path().join(name);
                let file = file.to_str().unwrap();
                let options = ["--host", "server", "--qpn-reuse", policy, "--pcap", file];
                dialogue.run(&options, &["--qpn-reuse", policy]);
                let recorded = recorded(Path::new(file));
                arrivals(&recorded)[0].destination_qpn
            })
            .into();
        assert_eq!(numbers[0] == numbers[1], reused, "{policy}: {numbers:?}");
        sleeper.signal(libc::SIGTERM);
        sleeper.wait();
    }
}
