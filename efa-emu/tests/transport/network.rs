//! The emulated network between unmodified clients.

use efa_emu::provider::{SendData, WcOpcode};
use efa_emu::transport::{HostConfig, RdmaPath};

use crate::client::{Client, config};

const COUNT: u64 = 300;

fn with_network(host: &str, network: &str) -> HostConfig {
    let mut config = config(host);
    config.network = network.parse().unwrap();
    config
}

/// Sends numbered packets over a network and answers the order of their arrival, the order of their
/// completion, and how often the sender's device had to repeat one.
fn arrivals(network: &str, poll: bool) -> (Vec<u64>, Vec<u64>, u64) {
    let root = tempfile::tempdir().unwrap();
    let mut sender = Client::open(root.path(), &with_network("alpha", network));
    let mut receiver = Client::open(root.path(), &config("beta"));
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
    while completed.len() < COUNT as usize || arrived.len() < COUNT as usize {
        for (client, list) in [(&mut sender, &mut completed), (&mut receiver, &mut arrived)] {
            // Without polls, the engines' threads have to keep the times.
            let completion = if poll { client.poll() } else { client.glance() };
            if let Some(completion) = completion {
                assert_eq!(completion.code(), 0);
                list.push(completion.wr_id);
            }
        }
        std::thread::yield_now();
    }
    let numbers = arrived
        .iter()
        .map(|index| {
            let at = 8 * *index as usize;
            u64::from_le_bytes(memory.bytes[at..at + 8].try_into().unwrap())
        })
        .collect();
    let repeated = sender
        .engine
        .with_device(|device| device.counters().retrans_pkts)
        .unwrap();
    (numbers, completed, repeated)
}

fn is_everything_once(mut numbers: Vec<u64>) -> bool {
    numbers.sort_unstable();
    numbers == (0..COUNT).collect::<Vec<_>>()
}

#[test]
fn one_path_keeps_the_order_and_several_do_not() {
    for poll in [true, false] {
        let (arrived, completed, _) = arrivals("latency=200us", poll);
        assert!(arrived.is_sorted() && is_everything_once(arrived));
        assert!(is_everything_once(completed));
        for network in [
            "latency=200us,paths=4",
            "latency=50us,jitter=300us",
            "paths=16",
        ] {
            let (arrived, completed, _) = arrivals(network, poll);
            assert!(!arrived.is_sorted(), "{network}");
            assert!(is_everything_once(arrived) && is_everything_once(completed));
        }
    }
}

#[test]
fn loss_delays_and_nothing_is_lost() {
    let (arrived, completed, repeated) = arrivals("loss=0.2,latency=10us", true);
    assert!(!arrived.is_sorted());
    assert!(is_everything_once(arrived) && is_everything_once(completed));
    assert_eq!(repeated, 0, "below the reliability layer");
}

#[test]
fn refusals_are_repeated_until_they_succeed() {
    let (arrived, completed, repeated) = arrivals("rnr=0.3,seed=4", true);
    assert!(is_everything_once(arrived) && is_everything_once(completed));
    assert!(repeated > COUNT / 10, "{repeated}");
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
