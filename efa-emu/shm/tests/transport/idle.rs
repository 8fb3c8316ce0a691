//! Devices whose applications do something else, or nothing.

use std::io::{Read, Write};
use std::time::Duration;

use efa_device_model::device::DeviceEvent;
use efa_device_model::provider::{SendData, WcOpcode};
use efa_testing::engine::{Address, Client, config};

use crate::exchange::connect;
use crate::processes::{Parent, Process};
use crate::speed::cpu_time;

/// A child that exchanges one message, sleeps, and reports the processor time of the sleep.
pub(crate) fn idle(parent: &Parent) {
    let mut client = Client::open(&parent.root, &config("idle"));
    let memory = client.register(vec![0; 4096]);
    client.post_recv(0, memory.buffer(0, 4096));
    parent.say(&client.address().to_text());
    let to = client.connect(Address::from_text(&parent.hear().unwrap()));
    assert!(client.post_send(1, to, SendData::Inline(&[b"hello"])));
    client.wait_ok();
    client.wait_ok();
    while let Some(line) = parent.hear() {
        let before = cpu_time();
        std::thread::sleep(Duration::from_millis(line.parse().unwrap()));
        parent.say(&(cpu_time() - before).as_micros().to_string());
    }
}

#[test]
fn an_idle_process_burns_no_processor_time() {
    let root = tempfile::tempdir().unwrap();
    let mut client = Client::open(root.path(), &config("alpha"));
    let memory = client.register(vec![0; 64]);
    client.post_recv(0, memory.buffer(0, 64));
    let mut process = Process::start("idle", root.path(), 0);
    let to = connect(&client, &mut process);
    assert!(client.post_send(1, to, SendData::Inline(&[b"hello"])));
    client.wait_ok();
    client.wait_ok();
    // The first sleep is a warm-up. A thread that polls would use all of the time, and one that
    // wakes every millisecond well over a hundredth of it.
    process.say("20");
    process.hear();
    // A permanent load would appear in each of the seconds.
    let mut used = Vec::new();
    while used.last().is_none_or(|&used| used >= 5_000) {
        assert!(
            used.len() < 10,
            "us of processor time in seconds of doing nothing: {used:?}"
        );
        process.say("1000");
        used.push(process.hear().parse::<u64>().unwrap());
    }
    process.finish();
}

#[test]
fn an_event_wakes_an_application_that_sleeps() {
    const ROUNDS: u64 = 200;
    let root = tempfile::tempdir().unwrap();
    let mut sleeper = Client::open(root.path(), &config("sleeper"));
    let mut sender = Client::open(root.path(), &config("sender"));
    let memory = sleeper.register(vec![0; 64]);
    let to = sender.connect(sleeper.address());
    let (mut events, mut raise) = std::io::pipe().unwrap();
    let handler = Box::new(move |event| {
        let DeviceEvent::Completion(cq) = event else {
            panic!("{event:?}")
        };
        raise.write_all(&cq.0.to_le_bytes()).unwrap();
    });
    sleeper.engine.set_event_handler(Some(handler)).unwrap();
    for round in 0..ROUNDS {
        sleeper.post_recv(round, memory.buffer(0, 64));
        sleeper.arm();
        // Sometimes wait until the sleeper's thread sleeps too.
        if round % 20 == 0 {
            std::thread::sleep(Duration::from_millis(3));
        }
        assert!(sender.post_send(round, to, SendData::Inline(&[b"wake up"])));
        let mut cq = [0; 4];
        events.read_exact(&mut cq).unwrap();
        assert_eq!(u32::from_le_bytes(cq), sleeper.cq.0);
        let completion = sleeper.glance().expect("the event says that there is one");
        assert_eq!(
            (completion.wr_id, completion.opcode()),
            (round, WcOpcode::Recv)
        );
        sender.wait_ok();
    }
}

#[test]
fn requests_complete_without_calls_of_the_initiator() {
    // More than the ring holds: the engine's thread has to send the rest.
    const COUNT: u64 = 600;
    let root = tempfile::tempdir().unwrap();
    let mut own = config("alpha");
    own.ring_bytes = 1 << 16;
    let mut sender = Client::open(root.path(), &own);
    let mut receiver = Client::open(root.path(), &config("beta"));
    let memory = receiver.register(vec![0; 8928]);
    let source = sender.register(vec![1; 8928]);
    for index in 0..COUNT {
        receiver.post_recv(index, memory.buffer(0, 8928));
    }
    let to = sender.connect(receiver.address());
    for number in 0..COUNT {
        assert!(sender.post_send(number, to, SendData::Buffers(&[source.buffer(0, 8928)])));
    }
    let mut seen = [0; 2];
    while seen != [COUNT; 2] {
        for (client, seen) in [&mut sender, &mut receiver].into_iter().zip(&mut seen) {
            while let Some(completion) = client.glance() {
                assert_eq!(completion.code(), 0);
                *seen += 1;
            }
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_client_may_ring_doorbells_without_a_call() {
    let root = tempfile::tempdir().unwrap();
    let mut sender = Client::open(root.path(), &config("alpha"));
    let mut receiver = Client::open(root.path(), &config("beta"));
    let memory = receiver.register(vec![0; 64]);
    let to = sender.connect(receiver.address());
    sender.engine.watch_qp(sender.address().qpn, true).unwrap();
    for round in 0..50 {
        receiver.post_recv(round, memory.buffer(0, 64));
        sender.post_send_quietly(round, to, SendData::Inline(&[b"direct"]));
        sender.ring_directly();
        receiver.wait_ok();
        while sender.glance().is_none() {
            std::thread::yield_now();
        }
    }
    sender.engine.watch_qp(sender.address().qpn, false).unwrap();
}
