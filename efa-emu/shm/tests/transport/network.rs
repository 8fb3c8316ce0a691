//! The emulated network between unmodified clients.

use efa_device_model::provider::{Completion, SendData, WcOpcode};
use efa_shm::{HostConfig, RdmaPath};
use efa_testing::engine::{Client, config};
use efa_testing::patience::Wait;

const COUNT: u64 = 300;

pub(crate) fn with_network(host: &str, network: &str) -> HostConfig {
    let mut config = config(host);
    config.network = network.parse().unwrap();
    config
}

/// What happened to numbered packets that were sent in order.
pub(crate) struct PacketOrder {
    /// The numbers in the order of their arrival.
    pub(crate) arrived: Vec<u64>,
    /// The numbers in the order of their completion.
    pub(crate) completed: Vec<u64>,
}

impl PacketOrder {
    pub(crate) fn is_everything_once(&self) -> bool {
        [&self.arrived, &self.completed].into_iter().all(|numbers| {
            let mut numbers = numbers.clone();
            numbers.sort_unstable();
            numbers == (0..COUNT).collect::<Vec<_>>()
        })
    }
}

/// Sends numbered packets from one client to another one.
pub(crate) fn send_numbered(
    sender: &mut Client,
    receiver: &mut Client,
    mut next: impl FnMut(&mut Client) -> Option<Completion>,
) -> PacketOrder {
    let memory = receiver.register(vec![0; 8 * COUNT as usize]);
    for index in 0..COUNT {
        receiver.post_recv(index, memory.buffer(8 * index as usize, 8));
    }
    let to = sender.connect(receiver.address());
    for number in 0..COUNT {
        let bytes = number.to_le_bytes();
        assert!(sender.post_send(number, to, SendData::Inline(&[&bytes])));
    }
    let mut completed = Vec::new();
    let mut arrived = Vec::new();
    let wait = Wait::start();
    while completed.len() < COUNT as usize || arrived.len() < COUNT as usize {
        wait.check(|| format!("{} arrived, {} completed", arrived.len(), completed.len()));
        for (client, list) in [
            (&mut *sender, &mut completed),
            (&mut *receiver, &mut arrived),
        ] {
            if let Some(completion) = next(client) {
                assert_eq!(completion.code(), 0);
                list.push(completion.wr_id);
            }
        }
        std::thread::yield_now();
    }
    let number = |index: &u64| {
        let at = 8 * *index as usize;
        u64::from_le_bytes(memory.bytes[at..at + 8].try_into().unwrap())
    };
    let arrived = arrived.iter().map(number).collect();
    PacketOrder { arrived, completed }
}

/// Sends numbered packets over a network.
fn arrivals(network: &str, poll: bool) -> PacketOrder {
    let root = tempfile::tempdir().unwrap();
    let mut sender = Client::open(root.path(), &with_network("alpha", network));
    let mut receiver = Client::open(root.path(), &config("beta"));
    send_numbered(&mut sender, &mut receiver, |client| match poll {
        true => client.poll(),
        // Without polls, the engines' threads have to keep the timers.
        false => client.glance(),
    })
}

#[test]
fn one_path_is_ordered_and_several_are_not() {
    for poll in [true, false] {
        let seen = arrivals("latency=200us", poll);
        assert!(seen.arrived.is_sorted() && seen.is_everything_once());
        for network in [
            "latency=200us,paths=4",
            "latency=50us,jitter=300us",
            "paths=16",
        ] {
            let seen = arrivals(network, poll);
            assert!(!seen.arrived.is_sorted(), "{network}");
            assert!(seen.is_everything_once());
        }
    }
}

/// A device has handed its answers to the network, and is closed before the network delivers them.
#[test]
fn answers_outlive_the_device_that_gave_them() {
    let root = tempfile::tempdir().unwrap();
    let mut sender = Client::open(root.path(), &config("alpha"));
    let mut receiver = Client::open(root.path(), &with_network("beta", "latency=60s"));
    let memory = receiver.register(vec![0; 8]);
    receiver.post_recv(1, memory.buffer(0, 8));
    let to = sender.connect(receiver.address());
    assert!(sender.post_send(2, to, SendData::Inline(&[b"received"])));
    receiver.wait_ok();
    assert!(sender.poll().is_none(), "the answer takes a minute");
    drop(receiver);
    assert_eq!(sender.wait_ok().wr_id, 2);
}

#[test]
fn rdma_takes_its_time_too() {
    for rdma in [RdmaPath::Auto, RdmaPath::Rings] {
        let root = tempfile::tempdir().unwrap();
        let mut own = with_network("alpha", "latency=100us,paths=3,jitter=50us,loss=0.1");
        own.rdma = rdma;
        let mut alpha = Client::open(root.path(), &own);
        let mut beta = Client::open(root.path(), &config("beta"));
        let to = alpha.connect(beta.address());
        beta.connect(alpha.address());
        let local = alpha.register((0..200_000u32).map(|at| (at >> 3) as u8).collect());
        let remote = beta.register(vec![0; 200_000]);
        beta.post_recv(5, remote.buffer(0, 0));
        let there = (remote.address(), remote.keys.rkey.0);
        alpha.post_write(1, to, local.buffer(0, 200_000), there, Some(1));
        let arrived = beta.wait_ok();
        assert_eq!(arrived.opcode(), WcOpcode::RecvRdmaWithImmediate);
        assert_eq!(
            local.bytes, remote.bytes,
            "complete when the immediate is there"
        );
        alpha.wait_ok();
        let back = alpha.register(vec![0; 200_000]);
        alpha.post_read(2, to, back.buffer(0, 200_000), there);
        alpha.wait_ok();
        assert_eq!(back.bytes, remote.bytes);
    }
}
