//! Acknowledgements of reliable connections over shared memory.

use efa_core::address::{Gid, Qkey, Qpn};
use efa_device_model::counters::Counters;
use efa_device_model::device::connected::{
    BufferList, ConnectedConfig, ConnectionAttributes, ConnectionMask, Payload, RecvWr,
    SendOperation, SendWr,
};
use efa_device_model::device::{QpState, Service};
use efa_device_model::profile::Profile;
use efa_shm::HostConfig;
use efa_testing::engine::{Client, config};
use efa_testing::patience::Wait;

use crate::network::with_network;

const MESSAGES: u64 = 20;

fn open(root: &std::path::Path, config: &HostConfig) -> (Client, Qpn) {
    let client = Client::open_with(root, config, Qkey(1), Service::Srd, |profile| {
        *profile = Profile::by_name("tm").unwrap().clone();
    });
    let config = ConnectedConfig {
        pd: client.pd,
        send_cq: client.cq,
        recv_cq: client.cq,
        shared: None,
        max_send_wr: MESSAGES as u32,
        max_recv_wr: MESSAGES as u32,
        max_recv_sge: 1,
    };
    let qpn = client.engine.create_connected_qp(config).unwrap();
    (client, qpn)
}

fn connect(client: &Client, qpn: Qpn, peer: Gid, destination: Qpn) {
    let states = [
        QpState::Reset,
        QpState::Init,
        QpState::ReadyToReceive,
        QpState::ReadyToSend,
    ];
    for step in states.windows(2) {
        let to = ConnectionAttributes {
            state: step[1],
            peer,
            destination: destination.0.into(),
            path_mtu: 3,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            ..ConnectionAttributes::default()
        };
        let mask = ConnectionMask::required(step[0], step[1]).unwrap() | ConnectionMask::STATE;
        let changed = client
            .engine
            .with_device(|device| device.modify_connected_qp(qpn, &to, mask));
        changed.unwrap().unwrap();
    }
}

fn counters(client: &Client) -> Counters {
    let read = client.engine.with_device(|device| *device.counters());
    read.unwrap()
}

/// Packets that the receiver of single-packet messages has sent.
fn acknowledged(sender: &HostConfig) -> u64 {
    let root = tempfile::tempdir().unwrap();
    let (sender, from) = open(root.path(), sender);
    let (receiver, to) = open(root.path(), &config("beta"));
    connect(&sender, from, receiver.engine.gid(), to);
    connect(&receiver, to, sender.engine.gid(), from);
    let memory = receiver.register(vec![0; 64]);
    for wr_id in 0..MESSAGES {
        let buffers = BufferList::new(&[memory.buffer(0, 64)]).unwrap();
        let receive = RecvWr { wr_id, buffers };
        let posted = receiver
            .engine
            .post(|device| device.post_connected_recv(to, receive));
        posted.unwrap().unwrap();
        let wr = SendWr {
            wr_id,
            operation: SendOperation::Send(None),
            payload: Payload::inline(&[7; 64]).unwrap(),
            is_signaled: true,
            is_fenced: false,
            is_solicited: false,
        };
        let posted = sender
            .engine
            .post(|device| device.post_connected_send(from, wr));
        posted.unwrap().unwrap();
    }
    let wait = Wait::start();
    while counters(&sender).send_wrs < MESSAGES {
        wait.check(|| format!("{} sent", counters(&sender).send_wrs));
        receiver.engine.progress();
        sender.engine.progress();
    }
    assert_eq!(*memory.bytes, [7; 64]);
    assert_eq!(counters(&receiver).recv_wrs, MESSAGES);
    assert_eq!(counters(&sender).retrans_pkts, 0);
    counters(&receiver).tx_pkts
}

/// The link answers each record, and the answer serves as the acknowledgement.
#[test]
fn acknowledgements_are_no_packets_where_nothing_is_lost() {
    assert_eq!(acknowledged(&config("alpha")), 0);
}

#[test]
fn acknowledgements_are_packets_in_a_network() {
    assert!(acknowledged(&with_network("alpha", "latency=20us")) > 0);
}
