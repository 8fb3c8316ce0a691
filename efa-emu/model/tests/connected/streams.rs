//! Random work in both directions over a bad network, compared with a model without one.

use efa_core::address::Qpn;
use efa_device_model::device::connected::{Payload, SendOperation};
use proptest::prelude::{ProptestConfig, any, proptest};
use rand::{Rng as _, SeedableRng};
use rand_chacha::ChaCha8Rng;

use efa_testing::device::net::{Host, Net, NetworkEffects, request};

/// Offsets in the memory of each host: sent data, the target of peers' requests with its counter,
/// received data, results of reads.
const SENT: usize = 0;
const TARGET: usize = 0x4000;
const COUNTER: usize = 0x5ff8;
const RECEIVED: usize = 0x6000;
const RESULTS: usize = 0xb000;
const LONGEST: usize = 1200;

/// The work of one host, and its expected results.
struct Stream {
    qpn: Qpn,
    wanted: Vec<Wanted>,
    posted: usize,
    completed: usize,
    /// The expected messages at the peer, in order: bytes of a send, and the immediate.
    messages: Vec<(Option<Vec<u8>>, u32, Option<u32>)>,
    received: usize,
    receives: usize,
    /// The expected final memory of the peer.
    target: Vec<u8>,
    counter: u64,
}

enum Wanted {
    Nothing,
    /// The result of a read at this offset.
    Bytes(usize, Vec<u8>),
}

fn post_one(stream: &mut Stream, random: &mut ChaCha8Rng, hosts: &mut [Host], from: usize) {
    let index = stream.posted;
    let length = match random.random_range(0..4) {
        0 => random.random_range(0..8),
        1 => 256 * random.random_range(1..4),
        _ => random.random_range(0..LONGEST),
    };
    // Each request has separate bytes, which do not change while it may be retransmitted.
    let source = SENT + (index * 211) % (TARGET - LONGEST);
    let data = hosts[from].memory[source..source + length].to_vec();
    let local = hosts[from].list(source, length);
    let offset = random.random_range(0..LONGEST);
    let remote = hosts[1 - from].remote(TARGET + offset);
    let immediate = random.random_bool(0.4).then(|| random.random());
    let (operation, list, wanted) = match random.random_range(0..5) {
        0 | 1 => {
            stream.messages.push((Some(data), length as u32, immediate));
            (SendOperation::Send(immediate), local, Wanted::Nothing)
        }
        2 => {
            stream.target[offset..offset + length].copy_from_slice(&data);
            if immediate.is_some() {
                stream.messages.push((None, length as u32, immediate));
            }
            (
                SendOperation::Write(remote, immediate),
                local,
                Wanted::Nothing,
            )
        }
        3 => {
            let place = RESULTS + (index % 16) * LONGEST;
            let wanted = stream.target[offset..offset + length].to_vec();
            let list = hosts[from].list(place, length);
            (
                SendOperation::Read(remote),
                list,
                Wanted::Bytes(place, wanted),
            )
        }
        _ => {
            let place = RESULTS + (index % 16) * LONGEST;
            let wanted = stream.counter.to_ne_bytes().to_vec();
            let add = random.random();
            stream.counter = stream.counter.wrapping_add(add);
            let remote = hosts[1 - from].remote(COUNTER);
            let list = hosts[from].list(place, 8);
            let operation = SendOperation::FetchAdd { remote, add };
            (operation, list, Wanted::Bytes(place, wanted))
        }
    };
    let mut wr = request(index as u64, operation, list);
    // Writes must not overtake reads.
    wr.is_fenced = true;
    if let Payload::Buffers(list) = &wr.payload
        && matches!(operation, SendOperation::Send(_))
        && length <= 64
        && random.random_bool(0.5)
    {
        let bytes = &hosts[from].memory[source..source + list.length() as usize];
        wr.payload = Payload::inline(bytes).unwrap();
    }
    stream.wanted.push(wanted);
    stream.posted += 1;
    hosts[from]
        .device
        .post_connected_send(stream.qpn, wr)
        .unwrap();
}

/// Takes the completions of a host, and compares them with the expected ones.
fn check(streams: &mut [Stream; 2], hosts: &mut [Host], at: usize) {
    const RECV: u8 = 128;
    while let Some(entry) = hosts[at].poll() {
        assert_eq!(entry.status(), 0, "{entry:?}");
        if entry.connected_operation() < RECV {
            let stream = &mut streams[at];
            assert_eq!(entry.connected_wr_id(), stream.completed as u64, "in order");
            if let Wanted::Bytes(place, bytes) = &stream.wanted[stream.completed] {
                assert!(&hosts[at].memory[*place..place + bytes.len()] == bytes);
                assert_eq!(entry.connected_length(), bytes.len() as u32);
            }
            stream.completed += 1;
            continue;
        }
        let stream = &mut streams[1 - at];
        let (bytes, length, immediate) = &stream.messages[stream.received];
        let found = (entry.connected_flags() & 2 != 0).then(|| entry.connected_data());
        assert_eq!(found, *immediate);
        assert_eq!(entry.connected_length(), *length);
        let slot = entry.connected_wr_id() as usize;
        assert_eq!(slot, stream.received, "receives are taken in order");
        let place = RECEIVED + (slot % 16) * LONGEST;
        if let Some(bytes) = bytes {
            assert!(&hosts[at].memory[place..place + bytes.len()] == bytes);
        }
        stream.received += 1;
    }
}

fn run(seed: u64, effects: NetworkEffects) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut net = Net::connected(effects, seed);
    for host in &mut net.hosts {
        random.fill(&mut host.memory[SENT..TARGET]);
    }
    let mut streams = [0, 1].map(|host| Stream {
        qpn: Qpn(7 + host),
        wanted: Vec::new(),
        posted: 0,
        completed: 0,
        messages: Vec::new(),
        received: 0,
        receives: 0,
        target: vec![0; 2 * LONGEST],
        counter: 0,
    });
    const REQUESTS: usize = 60;
    for _ in 0..2_000_000 {
        for host in 0..2 {
            let stream = &mut streams[host];
            let outstanding = stream.posted - stream.completed;
            if stream.posted < REQUESTS && outstanding < 12 && random.random_bool(0.2) {
                post_one(stream, &mut random, &mut net.hosts, host);
            }
            // Receives are sometimes posted late.
            let room = stream.receives - stream.received < 12;
            if room && random.random_bool(0.1) {
                let place = RECEIVED + (stream.receives % 16) * LONGEST;
                let at = Qpn(7 + 1 - host as u16);
                net.hosts[1 - host].receive(at, stream.receives as u64, place, LONGEST);
                streams[host].receives += 1;
            }
            check(&mut streams, &mut net.hosts, host);
        }
        net.step();
        let is_done = |stream: &Stream| {
            stream.completed == REQUESTS && stream.received == stream.messages.len()
        };
        if streams.iter().all(is_done) {
            break;
        }
    }
    net.settle();
    for host in 0..2 {
        check(&mut streams, &mut net.hosts, host);
        let stream = &streams[host];
        assert_eq!(stream.completed, REQUESTS, "seed {seed}");
        assert_eq!(stream.received, stream.messages.len(), "seed {seed}");
        let memory = &net.hosts[1 - host].memory;
        assert!(memory[TARGET..TARGET + 2 * LONGEST] == stream.target);
        assert_eq!(memory[COUNTER..COUNTER + 8], stream.counter.to_ne_bytes());
        assert_eq!(net.hosts[host].events(), []);
    }
}

/// Without losses nothing is retransmitted.
#[test]
fn nothing_is_repeated_without_cause() {
    let calm = NetworkEffects {
        longest: 1,
        ..NetworkEffects::default()
    };
    for acknowledges in [false, true] {
        let effects = NetworkEffects {
            acknowledges,
            ..calm
        };
        let mut net = Net::connected(effects, 1);
        for wr_id in 0..20 {
            net.hosts[1].receive(Qpn(8), wr_id, RECEIVED, LONGEST);
        }
        for wr_id in 0..20 {
            let list = net.hosts[0].list(0, 1000);
            net.post(0, Qpn(7), request(wr_id, SendOperation::Send(None), list));
        }
        net.settle();
        assert_eq!(net.hosts[0].completions().len(), 20);
        let counters = *net.hosts[0].device.counters();
        assert_eq!((counters.retrans_pkts, counters.tx_pkts), (0, 80));
        let acknowledged = net.hosts[1].device.counters().tx_pkts;
        let most = if acknowledges { 0 } else { 20 };
        assert!(acknowledged <= most, "{acknowledged} acknowledgements");
    }
}

/// A link that returns acknowledgements at once must not return them before data of reads that is
/// in the network, which would count as lost.
#[test]
fn acknowledgements_do_not_overtake_data() {
    let effects = NetworkEffects {
        longest: 1,
        acknowledges: true,
        ..NetworkEffects::default()
    };
    let mut net = Net::connected(effects, 1);
    for wr_id in 0..20 {
        net.hosts[1].receive(Qpn(8), wr_id, RECEIVED, LONGEST);
    }
    let remote = net.hosts[1].remote(TARGET);
    for wr_id in 0..40 {
        let (operation, place) = match wr_id % 2 {
            0 => (SendOperation::Read(remote), RESULTS),
            _ => (SendOperation::Send(None), SENT),
        };
        let list = net.hosts[0].list(place, 1000);
        net.post(0, Qpn(7), request(wr_id, operation, list));
    }
    net.settle();
    assert_eq!(net.hosts[0].completions().len(), 40);
    let counters = net.hosts[0].device.counters();
    // One packet for each read, four for each message.
    assert_eq!((counters.retrans_pkts, counters.tx_pkts), (0, 100));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn requests_happen_once_and_in_order(
        seed in any::<u64>(),
        loss in 0..8u32, duplicates in 0..10u32, longest in 1..200u64, busy in 0..30u32,
        acknowledges in any::<bool>(),
    ) {
        run(seed, NetworkEffects {
            loss: f64::from(loss) / 100.0,
            duplicates: f64::from(duplicates) / 100.0,
            longest,
            busy: f64::from(busy) / 100.0,
            acknowledges,
        });
    }
}
