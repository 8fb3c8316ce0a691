//! Two processes that exchange messages.

use efa_device_model::device::queue::Buffer;
use efa_device_model::provider::{SendData, UdAddress, WcOpcode};
use efa_testing::engine::{Address, Client, config};
use efa_testing::pattern;

use crate::processes::{Parent, Process};

/// The most packets in flight.
const WINDOW: u64 = 256;
const SLOT: usize = 8928;

/// A child that sends back everything that it receives, until its input ends.
pub(crate) fn echo(parent: &Parent) {
    let mut client = Client::open(&parent.root, &config("echo"));
    let memory = client.register(vec![0; 2 * WINDOW as usize * SLOT]);
    parent.say(&client.address().to_text());
    let to = client.connect(Address::from_text(&parent.hear().unwrap()));
    let slot = |index: u64, length: usize| memory.buffer(index as usize * SLOT, length);
    for index in 0..2 * WINDOW {
        client.post_recv(index, slot(index, SLOT));
    }
    parent.say("ready");
    // The parent closes the pipe when it has received everything.
    let mut open = true;
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = std::io::read_to_string(std::io::stdin());
        let _ = sender.send(());
    });
    while open {
        match client.poll() {
            Some(completion) if completion.opcode() == WcOpcode::Recv => {
                assert_eq!(completion.code(), 0);
                let index = completion.wr_id;
                let data = [slot(index, completion.byte_len() as usize)];
                assert!(client.post_send(index, to, SendData::Buffers(&data)));
            }
            Some(completion) => {
                assert_eq!(completion.code(), 0);
                client.post_recv(completion.wr_id, slot(completion.wr_id, SLOT));
            }
            None => {
                open = ended.try_recv().is_err();
                std::thread::yield_now();
            }
        }
    }
}

/// A child that offers memory and then only waits for lines: `sum` requests the sum of the memory's
/// bytes.
pub(crate) fn memory(parent: &Parent) {
    let client = Client::open(&parent.root, &config("memory"));
    let memory = client.register(pattern(8 << 20, 0));
    parent.say(&client.address().to_text());
    client.connect(Address::from_text(&parent.hear().unwrap()));
    parent.say(&format!("{} {}", memory.address(), memory.keys.rkey.0));
    while let Some(line) = parent.hear() {
        assert_eq!(line, "sum");
        let sum: u64 = memory.bytes.iter().map(|byte| u64::from(*byte)).sum();
        parent.say(&sum.to_string());
    }
}

/// Starts an echo child and connects to it.
pub(crate) fn connect(client: &Client, process: &mut Process) -> UdAddress {
    let to = client.connect(Address::from_text(&process.hear()));
    process.say(&client.address().to_text());
    to
}

fn fill(bytes: &mut [u8], number: u64) {
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = (number as u8).wrapping_add((at as u8).wrapping_mul(7));
    }
}

#[test]
fn a_hundred_thousand_packets_go_there_and_back() {
    const COUNT: u64 = 50_000;
    let root = tempfile::tempdir().unwrap();
    let mut client = Client::open(root.path(), &config("alpha"));
    let mut process = Process::start("echo", root.path(), 0);
    let to = connect(&client, &mut process);
    assert_eq!(process.hear(), "ready");
    let out = client.register(vec![0; WINDOW as usize * SLOT]);
    let back = client.register(vec![0; WINDOW as usize * SLOT]);
    let slot = |buffer: Buffer, index: u64, length: usize| Buffer {
        address: buffer.address + index * SLOT as u64,
        length: length as u32,
        ..buffer
    };
    let (out_start, back_start) = (out.buffer(0, 1), back.buffer(0, 1));
    for index in 0..WINDOW {
        client.post_recv(index, slot(back_start, index, SLOT));
    }
    // Mostly small packets, some of full length; the first bytes hold the packet's number.
    let length = |number: u64| match number % 10 {
        0 => SLOT,
        other => 8 + (number as usize * 13 * other as usize) % 1000,
    };
    let mut seen = vec![false; COUNT as usize];
    let mut expected = vec![0; SLOT];
    let (mut sent, mut completed, mut returned) = (0, 0, 0u64);
    while returned < COUNT || completed < COUNT {
        if sent < COUNT && sent - returned.min(completed) < WINDOW {
            let index = sent % WINDOW;
            let place = slot(out_start, index, length(sent));
            // SAFETY: the range is in `out`, and no packet in flight uses it: at most WINDOW are in
            // flight, in WINDOW different ranges.
            let bytes = unsafe {
                std::slice::from_raw_parts_mut(place.address as *mut u8, place.length as usize)
            };
            fill(bytes, sent);
            bytes[..8].copy_from_slice(&sent.to_le_bytes());
            assert!(client.post_send(index, to, SendData::Buffers(&[place])));
            sent += 1;
            continue;
        }
        let completion = client.wait_ok();
        if completion.opcode() == WcOpcode::Send {
            completed += 1;
            continue;
        }
        let index = completion.wr_id as usize;
        let found = &back.bytes[index * SLOT..][..completion.byte_len() as usize];
        let number = u64::from_le_bytes(found[..8].try_into().unwrap());
        assert!(
            !std::mem::replace(&mut seen[number as usize], true),
            "once each"
        );
        let expected = &mut expected[..length(number)];
        fill(expected, number);
        expected[..8].copy_from_slice(&number.to_le_bytes());
        assert_eq!(found, expected);
        client.post_recv(completion.wr_id, slot(back_start, completion.wr_id, SLOT));
        returned += 1;
    }
    process.finish();
}

#[test]
fn rdma_needs_no_calls_of_the_target() {
    use efa_shm::RdmaPath;
    const LENGTH: usize = 8 << 20;
    for rdma in [RdmaPath::Auto, RdmaPath::Rings] {
        let root = tempfile::tempdir().unwrap();
        let mut own = config("alpha");
        own.rdma = rdma;
        let mut client = Client::open(root.path(), &own);
        let mut process = Process::start("memory", root.path(), 0);
        let to = connect(&client, &mut process);
        let there = process.hear();
        let (address, rkey) = there.split_once(' ').unwrap();
        let there = (address.parse().unwrap(), rkey.parse().unwrap());
        let local = client.register(vec![0; LENGTH]);
        client.post_read(1, to, local.buffer(0, LENGTH), there);
        client.wait_ok();
        assert!(local.bytes[..] == pattern(LENGTH, 0));
        let ones = client.register(vec![1; LENGTH]);
        client.post_write(2, to, ones.buffer(0, LENGTH), there, None);
        client.wait_ok();
        process.say("sum");
        assert_eq!(process.hear(), LENGTH.to_string(), "{rdma:?}");
        process.finish();
    }
}
