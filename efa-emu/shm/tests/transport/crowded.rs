//! Two applications that poll on one processor.

use std::mem::MaybeUninit;

use crate::exchange::connect;
use crate::processes::{Parent, Process};
use efa_device_model::provider::{SendData, UdAddress, WcOpcode};
use efa_testing::engine::{Address, Client, config};

/// Sleeps after which it is clear that polls sleep in most rounds.
const ENOUGH: u64 = 50;

/// The most rounds until then. When other processes preempt the two, a thread may need thousands of
/// rounds to notice that the other one needs the processor.
const MOST_ROUNDS: u64 = 10_000;

/// Restricts the calling thread, and the threads that it starts from now on, to one processor.
fn share_a_processor() {
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: all zeroes are a valid set, `set` is valid for reads and writes of `size` bytes, and
    // 0 names the calling thread.
    unsafe {
        assert_eq!(libc::sched_getaffinity(0, size, set.as_mut_ptr()), 0);
        let set = set.assume_init_mut();
        let first = (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, set));
        libc::CPU_ZERO(set);
        libc::CPU_SET(first.expect("this thread runs somewhere"), set);
        assert_eq!(libc::sched_setaffinity(0, size, set), 0);
    }
}

/// The number of times the calling thread has slept.
fn sleeps() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: all zeroes are a valid value, and `usage` is valid for a write.
    let usage = unsafe {
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()), 0);
        usage.assume_init()
    };
    usage.ru_nvcsw as u64
}

/// Answers every message with one until it is killed.
pub(crate) fn partner(parent: &Parent) {
    let mut client = Client::open(&parent.root, &config("beta"));
    let memory = client.register(vec![0; 64]);
    client.post_recv(0, memory.buffer(0, 64));
    parent.say(&client.address().to_text());
    let to = client.connect(Address::from_text(&parent.hear().unwrap()));
    loop {
        take_one(&mut client);
        client.post_recv(0, memory.buffer(0, 64));
        send_one(&mut client, to);
    }
}

fn take_one(client: &mut Client) {
    loop {
        if let Some(completion) = client.poll() {
            assert_eq!(completion.code(), 0);
            if completion.opcode() == WcOpcode::Recv {
                return;
            }
        }
    }
}

fn send_one(client: &mut Client, to: UdAddress) {
    assert!(client.post_send(1, to, SendData::Inline(&[b"ball"])));
}

/// If polls never slept, the other side would wait until the kernel takes the processor away.
#[test]
fn futile_polls_yield_to_the_other_side() {
    share_a_processor();
    let root = tempfile::tempdir().unwrap();
    let mut client = Client::open(root.path(), &config("alpha"));
    let memory = client.register(vec![0; 64]);
    client.post_recv(0, memory.buffer(0, 64));
    let mut process = Process::start("crowded", root.path(), 0);
    let to = connect(&client, &mut process);
    let before = sleeps();
    let mut rounds = 0;
    while sleeps() - before < ENOUGH {
        assert!(
            rounds < MOST_ROUNDS,
            "{} sleeps in {rounds} rounds, although neither side can do anything while the other polls",
            sleeps() - before
        );
        send_one(&mut client, to);
        take_one(&mut client);
        client.post_recv(0, memory.buffer(0, 64));
        rounds += 1;
    }
    process.kill();
}
