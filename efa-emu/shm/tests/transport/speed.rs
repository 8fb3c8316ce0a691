//! Measurements, to be run by hand in the release profile:
//! `cargo test --release -p efa-shm --test transport speed -- --ignored --nocapture`.

use std::time::{Duration, Instant};

use efa_device_model::provider::{SendData, UdAddress, WcOpcode};
use efa_shm::RdmaPath;
use efa_testing::engine::{Address, Client, Memory, config};

use crate::processes::{Parent, Process};

const SLOT: usize = 8928;
const RECEIVES: u64 = 512;

pub(crate) fn cpu_time() -> Duration {
    // SAFETY: `rusage` is a plain C struct for which zeroes are valid, and it is valid for the
    // write.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let of = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    of(usage.ru_utime) + of(usage.ru_stime)
}

fn receive_all(client: &mut Client, memory: &Memory) {
    for index in 0..RECEIVES {
        client.post_recv(index, memory.buffer(index as usize * SLOT, SLOT));
    }
}

/// Receives `count` packets and posts the receives again.
fn take(client: &mut Client, memory: &Memory, count: u64) {
    let mut taken = 0;
    while taken < count {
        if let Some(completion) = client.poll() {
            assert_eq!(completion.code(), 0);
            if completion.opcode() == WcOpcode::Recv {
                taken += 1;
                let at = completion.wr_id as usize * SLOT;
                client.post_recv(completion.wr_id, memory.buffer(at, SLOT));
            }
        }
    }
}

fn send_many(client: &mut Client, to: UdAddress, memory: &Memory, length: usize, count: u64) {
    let (mut sent, mut done) = (0, 0);
    while done < count {
        while sent < count && sent - done < 256 {
            let data = [memory.buffer(0, length)];
            assert!(client.post_send(sent, to, SendData::Buffers(&data)));
            sent += 1;
        }
        if let Some(completion) = client.poll() {
            assert_eq!(completion.code(), 0);
            done += u64::from(completion.opcode() == WcOpcode::Send);
        }
    }
}

fn ping(client: &mut Client, to: UdAddress, memory: &Memory, count: u64, first: bool) {
    let data = [memory.buffer(0, 64)];
    if first {
        client.post_send(0, to, SendData::Buffers(&data));
    }
    for number in 0..count {
        take(client, memory, 1);
        if number + 1 < count || !first {
            client.post_send(0, to, SendData::Buffers(&data));
        }
    }
}

/// The other process: follows the parent's commands.
pub(crate) fn partner(parent: &Parent) {
    let mut client = Client::open(&parent.root, &config("partner"));
    let memory = client.register(vec![1; (RECEIVES as usize * SLOT).max(64 << 20)]);
    receive_all(&mut client, &memory);
    parent.say(&client.address().to_text());
    let to = client.connect(Address::from_text(&parent.hear().unwrap()));
    parent.say(&format!("{} {}", memory.address(), memory.keys.rkey.0));
    while let Some(order) = parent.hear() {
        let (what, count) = order.split_once(' ').unwrap();
        let count = count.parse().unwrap();
        let before = cpu_time();
        match what {
            "ping" => ping(&mut client, to, &memory, count, false),
            "take" => take(&mut client, &memory, count),
            _ => panic!("{what}"),
        }
        parent.say(&(cpu_time() - before).as_nanos().to_string());
    }
}

#[test]
#[ignore = "a measurement"]
fn speed() {
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    for rdma in [RdmaPath::Auto, RdmaPath::Rings] {
        let mut own = config("alpha");
        own.rdma = rdma;
        let mut client = Client::open(root.path(), &own);
        let mut process = Process::start("speed", root.path(), 0);
        let memory = client.register(vec![1; (RECEIVES as usize * SLOT).max(64 << 20)]);
        receive_all(&mut client, &memory);
        let to = crate::exchange::connect(&client, &mut process);
        let there = process.hear();
        let (address, rkey) = there.split_once(' ').unwrap();
        let there = (address.parse().unwrap(), rkey.parse().unwrap());

        if rdma == RdmaPath::Auto {
            for _ in 0..3 {
                let count = 200_000;
                process.say(&format!("ping {count}"));
                let start = Instant::now();
                ping(&mut client, to, &memory, count, true);
                let time = start.elapsed();
                process.hear();
                println!(
                    "64 B half round trip {:.0} ns",
                    time.as_nanos() as f64 / count as f64 / 2.0
                );
            }
            for length in [64, 1024, SLOT] {
                let count = 400_000;
                process.say(&format!("take {count}"));
                let (start, before) = (Instant::now(), cpu_time());
                send_many(&mut client, to, &memory, length, count);
                let (time, cpu) = (start.elapsed(), cpu_time() - before);
                let other: f64 = process.hear().parse().unwrap();
                println!(
                    "{length} B: {:.0} ns/packet, {:.2} GB/s, CPU {:.0} ns sender {:.0} ns receiver",
                    time.as_nanos() as f64 / count as f64,
                    length as f64 * count as f64 / time.as_nanos() as f64,
                    cpu.as_nanos() as f64 / count as f64,
                    other / count as f64,
                );
            }
        }
        for (what, length) in [
            ("read", 64 << 20),
            ("write", 64 << 20),
            ("read", 65536),
            ("write", 65536),
        ] {
            let rounds = (256 << 20) / length;
            let start = Instant::now();
            for _ in 0..rounds {
                let local = memory.buffer(0, length);
                match what {
                    "read" => client.post_read(0, to, local, there),
                    _ => client.post_write(0, to, local, there, None),
                }
                client.wait_ok();
            }
            println!(
                "RDMA {what} {length} B {rdma:?}: {:.2} GB/s",
                (rounds * length) as f64 / start.elapsed().as_nanos() as f64
            );
        }
        process.finish();
    }
}

/// Both sides in one thread: the cost of a packet on both sides together, without waiting.
#[test]
#[ignore = "a measurement"]
fn one_thread() {
    const BURST: u64 = 64;
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut alpha = Client::open(root.path(), &config("alpha"));
    let mut beta = Client::open(root.path(), &config("beta"));
    let source = alpha.register(vec![1; SLOT]);
    let memory = beta.register(vec![1; RECEIVES as usize * SLOT]);
    receive_all(&mut beta, &memory);
    let to = alpha.connect(beta.address());
    beta.connect(alpha.address());
    for burst in [1, BURST] {
        for length in [64, SLOT] {
            for _ in 0..3 {
                let rounds = packets() / burst;
                let mut spent = [Duration::ZERO; 3];
                for _ in 0..rounds {
                    let start = Instant::now();
                    for number in 0..burst {
                        let data = [source.buffer(0, length)];
                        assert!(alpha.post_send(number, to, SendData::Buffers(&data)));
                    }
                    let sent = Instant::now();
                    take(&mut beta, &memory, burst);
                    let taken = Instant::now();
                    for _ in 0..burst {
                        alpha.wait_ok();
                    }
                    spent[0] += sent - start;
                    spent[1] += taken - sent;
                    spent[2] += taken.elapsed();
                }
                let each = spent.map(|time| time.as_nanos() as f64 / (burst * rounds) as f64);
                println!(
                    "one thread, bursts of {burst}, {length} B: post {:.0} ns, receive and repost {:.0} ns, complete {:.0} ns",
                    each[0], each[1], each[2]
                );
            }
        }
    }
}

/// The packets of one measurement; the environment can lower it for a simulated processor.
fn packets() -> u64 {
    std::env::var("EFA_EMU_TEST_PACKETS").map_or(256_000, |count| count.parse().unwrap())
}
