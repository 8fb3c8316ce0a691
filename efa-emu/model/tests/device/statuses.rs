//! Every completion status, by its real cause, and its name in the verbs.

use efa_core::address::{Qkey, Qpn};
use efa_core::nic::{Access, DeviceCaps, Status};
use efa_device_model::device::queue::{Buffer, WqeSize};
use efa_device_model::device::{MemoryRegion, QpState, Service};
use efa_device_model::profile::Profile;
use efa_device_model::provider::{SendData, SendOpcode, UdAddress, ibv_wc_status};

use crate::harness::{MEMORY, MEMORY_SIZE, Net, Rdma, RdmaOperation, Setup, gid};

/// The names of `ibv_wc_status` with the numbers of verbs.h.
const IBV_WC: [(&str, u32); 14] = [
    ("SUCCESS", 0),
    ("LOC_LEN_ERR", 1),
    ("LOC_QP_OP_ERR", 2),
    ("LOC_PROT_ERR", 4),
    ("WR_FLUSH_ERR", 5),
    ("BAD_RESP_ERR", 7),
    ("REM_INV_REQ_ERR", 9),
    ("REM_ACCESS_ERR", 10),
    ("REM_OP_ERR", 11),
    ("RNR_RETRY_EXC_ERR", 13),
    ("REM_INV_RD_REQ_ERR", 15),
    ("REM_ABORT_ERR", 16),
    ("RESP_TIMEOUT_ERR", 20),
    ("GENERAL_ERR", 21),
];

struct Case {
    cause: &'static str,
    /// Sets up the hosts and posts work request 1 on host 0.
    provoke: fn() -> Net,
    sender: Status,
    wc_status: &'static str,
    /// The completion status of host 1's posted receive, if it completes.
    receiver: Option<Status>,
}

/// Two hosts, and the address of the second, which has posted a receive of 64 bytes.
fn set_up(setup: Setup) -> (Net, UdAddress) {
    let (mut net, to) = Net::pair_with_address(setup);
    net.hosts[1].post_recv(1, &[(0, 64)]);
    (net, to)
}

fn send(change: impl FnOnce(&mut Net, &mut UdAddress)) -> Net {
    let (mut net, mut to) = set_up(Setup::default());
    change(&mut net, &mut to);
    net.hosts[0].post_send(1, to, &[(0, 16)]);
    net.settle();
    net
}

fn send_pieces(pieces: &[(u64, u32)]) -> Net {
    let (mut net, to) = set_up(Setup::default());
    net.hosts[0].post_send(1, to, pieces);
    net.settle();
    net
}

/// A send whose operation code in the queue is overwritten before the device reads it.
fn send_with_opcode(code: u8) -> Net {
    let (mut net, to) = set_up(Setup::default());
    net.hosts[0].post_send(1, to, &[(0, 16)]);
    let ring = net.hosts[0].client.send.ring().clone();
    crate::hostile::corrupt(ring.memory(), 2, code);
    net.settle();
    net
}

fn read(setup: Setup, change: impl FnOnce(&mut Net, &mut Rdma)) -> Net {
    rdma(set_up(setup).0, change)
}

/// An RDMA read of 16 bytes by host 0 from host 1, modified by `change`.
fn rdma(mut net: Net, change: impl FnOnce(&mut Net, &mut Rdma)) -> Net {
    let to = net.address(0, 1);
    let mut rdma = Rdma {
        kind: RdmaOperation::Read,
        local: (0, 16),
        remote: MEMORY,
        rkey: net.hosts[1].keys.rkey.0,
    };
    change(&mut net, &mut rdma);
    net.hosts[0].post_rdma(1, to, rdma);
    net.settle();
    net
}

/// A request for which the link returns `answer` instead of the peer's answer.
fn answered(answer: Status) -> Net {
    let (mut net, to) = set_up(Setup::default());
    net.hosts[0].post_send(1, to, &[(0, 16)]);
    net.transmit(0);
    let packet = net.packets.pop_front().unwrap();
    net.answer(&packet, answer);
    net
}

fn without(cap: DeviceCaps) -> Setup {
    Setup::with(|setup| setup.profile.caps.remove(cap))
}

fn register(net: &mut Net, access: Access) -> u32 {
    let host = &mut net.hosts[1];
    let region = MemoryRegion::new(MEMORY, 64, access);
    host.device.register_memory(host.pd, region).unwrap().rkey.0
}

const CASES: &[Case] = &[
    Case {
        cause: "a send that fits",
        provoke: || send(|_, _| {}),
        sender: Status::Ok,
        wc_status: "SUCCESS",
        receiver: Some(Status::Ok),
    },
    Case {
        cause: "the queue pair goes to the error state with the request in flight",
        provoke: || {
            let (mut net, to) = set_up(Setup::default());
            net.hosts[0].post_send(1, to, &[(0, 16)]);
            net.transmit(0);
            net.hosts[0].set_state(QpState::Error);
            net
        },
        sender: Status::Flushed,
        wc_status: "WR_FLUSH_ERR",
        receiver: None,
    },
    Case {
        cause: "an incomplete work request",
        provoke: || send_with_opcode(0),
        sender: Status::LocalQpInternalError,
        wc_status: "LOC_QP_OP_ERR",
        receiver: None,
    },
    Case {
        cause: "an operation code that the device does not know",
        provoke: || send_with_opcode(0x87),
        sender: Status::LocalUnsupportedOp,
        wc_status: "LOC_QP_OP_ERR",
        receiver: None,
    },
    Case {
        cause: "an RDMA read on a device without it",
        provoke: || read(without(DeviceCaps::RDMA_READ), |_, _| {}),
        sender: Status::LocalUnsupportedOp,
        wc_status: "LOC_QP_OP_ERR",
        receiver: None,
    },
    Case {
        cause: "an RDMA read on a UD queue pair",
        provoke: || {
            let setup = Setup::with(|setup| setup.service = Service::Ud);
            read(setup, |_, _| {})
        },
        sender: Status::LocalUnsupportedOp,
        wc_status: "LOC_QP_OP_ERR",
        receiver: None,
    },
    Case {
        cause: "a number that is not an address handle",
        provoke: || send(|_, to| to.ahn = 17),
        sender: Status::LocalInvalidAh,
        wc_status: "LOC_QP_OP_ERR",
        receiver: None,
    },
    Case {
        cause: "an address handle of another protection domain",
        provoke: || {
            send(|net, to| {
                let device = &mut net.hosts[0].device;
                let other = device.alloc_pd().unwrap();
                to.ahn = device.create_ah(other, gid(9)).unwrap().0;
            })
        },
        sender: Status::LocalInvalidAh,
        wc_status: "LOC_QP_OP_ERR",
        receiver: None,
    },
    Case {
        cause: "a local key that was deregistered",
        provoke: || {
            send(|net, _| {
                let lkey = net.hosts[0].keys.lkey;
                net.hosts[0].device.deregister_memory(lkey).unwrap();
            })
        },
        sender: Status::LocalInvalidLkey,
        wc_status: "LOC_PROT_ERR",
        receiver: None,
    },
    Case {
        cause: "memory beyond the end of its region",
        provoke: || send_pieces(&[(MEMORY_SIZE - 15, 16)]),
        sender: Status::LocalInvalidLkey,
        wc_status: "LOC_PROT_ERR",
        receiver: None,
    },
    Case {
        cause: "a message longer than the MTU",
        provoke: || send_pieces(&[(0, Profile::default().mtu), (0, 1)]),
        sender: Status::LocalBadLength,
        wc_status: "LOC_LEN_ERR",
        receiver: None,
    },
    Case {
        cause: "a remote key that was never given out",
        provoke: || read(Setup::default(), |_, rdma| rdma.rkey ^= 1 << 20),
        sender: Status::RemoteBadAddress,
        wc_status: "REM_ACCESS_ERR",
        receiver: None,
    },
    Case {
        cause: "remote memory beyond the end of its region",
        provoke: || read(Setup::default(), |_, rdma| rdma.remote += MEMORY_SIZE - 15),
        sender: Status::RemoteBadAddress,
        wc_status: "REM_ACCESS_ERR",
        receiver: None,
    },
    Case {
        cause: "remote memory that may be written but not read",
        provoke: || {
            read(Setup::default(), |net, rdma| {
                rdma.rkey = register(net, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
            })
        },
        sender: Status::RemoteBadAddress,
        wc_status: "REM_ACCESS_ERR",
        receiver: None,
    },
    Case {
        cause: "remote memory that may be read but not written",
        provoke: || {
            read(Setup::default(), |net, rdma| {
                rdma.rkey = register(net, Access::LOCAL_WRITE | Access::REMOTE_READ);
                rdma.kind = RdmaOperation::Write(None);
            })
        },
        sender: Status::RemoteBadAddress,
        wc_status: "REM_ACCESS_ERR",
        receiver: None,
    },
    Case {
        cause: "the receiver's own buffer is not registered any more",
        provoke: || {
            send(|net, _| {
                let lkey = net.hosts[1].keys.lkey;
                net.hosts[1].device.deregister_memory(lkey).unwrap();
            })
        },
        sender: Status::RemoteAbort,
        wc_status: "REM_ABORT_ERR",
        receiver: Some(Status::LocalInvalidLkey),
    },
    Case {
        cause: "no queue pair with this number",
        provoke: || send(|_, to| to.qpn = Qpn(5)),
        sender: Status::RemoteBadDestQpn,
        wc_status: "REM_INV_RD_REQ_ERR",
        receiver: None,
    },
    Case {
        cause: "another Q-key",
        provoke: || send(|_, to| to.qkey = Qkey(5)),
        sender: Status::RemoteBadDestQpn,
        wc_status: "REM_INV_RD_REQ_ERR",
        receiver: None,
    },
    Case {
        cause: "the peer's queue pair is in the error state",
        provoke: || send(|net, _| net.hosts[1].set_state(QpState::Error)),
        sender: Status::RemoteBadDestQpn,
        wc_status: "REM_INV_RD_REQ_ERR",
        receiver: Some(Status::Flushed),
    },
    Case {
        cause: "no receive posted",
        provoke: || {
            let (mut net, to) = Net::pair_with_address(Setup::default());
            net.hosts[0].post_send(1, to, &[(0, 16)]);
            net.settle();
            net
        },
        sender: Status::RemoteRnr,
        wc_status: "RNR_RETRY_EXC_ERR",
        receiver: None,
    },
    Case {
        cause: "no receive posted for a write with immediate",
        provoke: || {
            let write = RdmaOperation::Write(Some(1));
            rdma(Net::pair(Setup::default()), |_, rdma| rdma.kind = write)
        },
        sender: Status::RemoteRnr,
        wc_status: "RNR_RETRY_EXC_ERR",
        receiver: None,
    },
    Case {
        cause: "a receive that is too short",
        provoke: || send_pieces(&[(0, 65)]),
        sender: Status::RemoteBadLength,
        wc_status: "REM_INV_REQ_ERR",
        receiver: Some(Status::LocalBadLength),
    },
    Case {
        cause: "an answer that no responder gives",
        provoke: || answered(Status::LocalInvalidAh),
        sender: Status::RemoteBadStatus,
        wc_status: "BAD_RESP_ERR",
        receiver: None,
    },
    Case {
        cause: "a peer that had answered and stopped",
        provoke: || answered(Status::LocalUnresponsiveRemote),
        sender: Status::LocalUnresponsiveRemote,
        wc_status: "RESP_TIMEOUT_ERR",
        receiver: None,
    },
    Case {
        cause: "a responder that does not know the initiator",
        provoke: || {
            let hosts = [Setup::default(), Setup::default()];
            rdma(Net::new(&hosts), |_, _| {})
        },
        sender: Status::RemoteUnknownPeer,
        wc_status: "REM_OP_ERR",
        receiver: None,
    },
    Case {
        cause: "a host that does not exist",
        provoke: || {
            let mut net = Net::new(&[Setup::default()]);
            let ahn = net.know(0, 200).0;
            let to = UdAddress {
                ahn,
                qpn: Qpn(1),
                qkey: Qkey(0),
            };
            net.hosts[0].post_send(1, to, &[(0, 16)]);
            net.settle();
            net
        },
        sender: Status::LocalUnreachableRemote,
        wc_status: "RESP_TIMEOUT_ERR",
        receiver: None,
    },
    Case {
        cause: "RDMA to an older generation of the device",
        provoke: || {
            let old =
                Setup::with(|setup| setup.profile = Profile::by_name("efa0").unwrap().clone());
            let mut net = Net::new(&[Setup::default(), old]);
            net.know(1, 0);
            rdma(net, |_, _| {})
        },
        sender: Status::RemoteFeatureMismatch,
        wc_status: "REM_INV_REQ_ERR",
        receiver: None,
    },
];

#[test]
fn every_status_by_its_cause() {
    for case in CASES {
        let mut net = (case.provoke)();
        let sent = net.hosts[0].poll();
        let sent = sent.unwrap_or_else(|| panic!("{}: no completion", case.cause));
        assert_eq!(sent.status(), Some(case.sender), "{}", case.cause);
        assert_eq!(sent.wr_id, 1, "{}", case.cause);
        let (name, _) = IBV_WC
            .iter()
            .find(|(_, code)| *code == sent.ibv_wc_status())
            .unwrap();
        assert_eq!(*name, case.wc_status, "{}", case.cause);
        assert_eq!(net.hosts[0].poll(), None, "{}", case.cause);
        let received = net.hosts.get_mut(1).and_then(|host| host.outcome());
        assert_eq!(
            received,
            case.receiver.map(|status| (1, status)),
            "{}",
            case.cause
        );
    }
    for status in Status::ALL {
        assert!(
            CASES.iter().any(|case| case.sender == status),
            "{status:?} has no case"
        );
    }
}

#[test]
fn unknown_codes_are_general_errors() {
    for code in [16, 17, 19, 255] {
        assert_eq!(ibv_wc_status(code), 21);
    }
}

#[test]
fn unknown_peer_checks_can_be_disabled() {
    let setup = Setup::with(|setup| setup.profile.unknown_peer_check = false);
    let mut net = rdma(Net::new(&[setup.clone(), setup]), |_, _| {});
    assert_eq!(net.hosts[0].outcome(), Some((1, Status::Ok)));
}

#[test]
fn a_refused_request_never_touches_memory() {
    let (mut net, to) = Net::pair_with_address(Setup::default());
    let before = net.hosts[1].memory.clone();
    net.hosts[0].memory.fill(0xee);
    let good = net.hosts[1].keys.rkey.0;
    // A length of 17 ends one byte beyond the region.
    let end = MEMORY + MEMORY_SIZE - 16;
    let attempts = [
        (good ^ 1, MEMORY, 16),
        (good, end, 17),
        (good, MEMORY - 1, 16),
        (0, 0, 1),
    ];
    for (wr_id, (rkey, remote, length)) in attempts.into_iter().enumerate() {
        let rdma = Rdma {
            kind: RdmaOperation::Write(None),
            local: (0, length),
            remote,
            rkey,
        };
        net.hosts[0].post_rdma(wr_id as u64, to, rdma);
        net.settle();
        let expected = Some((wr_id as u64, Status::RemoteBadAddress));
        assert_eq!(net.hosts[0].outcome(), expected);
    }
    assert!(net.hosts[1].memory == before);
}

#[test]
fn queue_pairs_keep_working_after_a_failed_request() {
    let (mut net, to) = set_up(Setup::default());
    let wrong = UdAddress { ahn: 40, ..to };
    net.hosts[0].post_send(1, wrong, &[(0, 16)]);
    net.hosts[0].post_send(2, UdAddress { qpn: Qpn(3), ..to }, &[(0, 16)]);
    net.hosts[0].post_send(3, to, &[(0, 16)]);
    net.settle();
    assert_eq!(net.hosts[0].outcome(), Some((1, Status::LocalInvalidAh)));
    assert_eq!(net.hosts[0].outcome(), Some((2, Status::RemoteBadDestQpn)));
    assert_eq!(net.hosts[0].outcome(), Some((3, Status::Ok)));
}

#[test]
fn rnr_is_retried_the_requested_number_of_times() {
    for retries in [0, 1, 3, 6] {
        let (mut net, to) =
            Net::pair_with_address(Setup::with(|setup| setup.rnr_retry = Some(retries)));
        net.hosts[0].post_send(1, to, &[(0, 16)]);
        net.settle();
        for _ in 0..retries {
            assert_eq!(net.hosts[0].poll(), None);
            assert!(net.advance());
            net.settle();
        }
        assert_eq!(net.hosts[0].outcome(), Some((1, Status::RemoteRnr)));
        assert_eq!(
            net.hosts[0].device.counters().retrans_pkts,
            u64::from(retries)
        );
        let refusals = net.hosts[1].device.statistics().diagnostics.rnr_refusals;
        assert_eq!(refusals, u64::from(retries) + 1);
        assert!(!net.advance());
    }
}

#[test]
fn rnr_count_7_retries_without_end() {
    let (mut net, to) = Net::pair_with_address(Setup::with(|setup| setup.rnr_retry = Some(7)));
    net.hosts[0].post_send(1, to, &[(0, 16)]);
    net.settle();
    for _ in 0..100 {
        assert!(net.advance());
        net.settle();
        assert_eq!(net.hosts[0].poll(), None);
    }
    net.hosts[1].post_recv(1, &[(0, 16)]);
    assert!(net.advance());
    net.settle();
    assert_eq!(net.hosts[0].outcome(), Some((1, Status::Ok)));
    assert_eq!(net.hosts[1].outcome(), Some((1, Status::Ok)));
}

#[test]
fn rdma_writes_may_be_inline_in_128_bytes() {
    let (mut net, to) =
        Net::pair_with_address(Setup::with(|setup| setup.wqe_size = WqeSize::Bytes128));
    let rkey = net.hosts[1].keys.rkey.0;
    let send = &mut net.hosts[0].client.send;
    send.start();
    send.rdma_write(1, 0, rkey, MEMORY, None);
    send.set_ud_addr(to);
    send.set_inline_data_list(&[b"in", b"line"]);
    send.complete().unwrap();
    net.hosts[0].doorbell();
    net.settle();
    assert_eq!(net.hosts[0].outcome(), Some((1, Status::Ok)));
    assert_eq!(net.hosts[1].bytes(0, 7), b"inline\0");
}

#[test]
fn rdma_read_targets_must_be_writable() {
    let (mut net, to) = set_up(Setup::default());
    let host = &mut net.hosts[0];
    let region = MemoryRegion::new(MEMORY, 64, Access::empty());
    let read_only = host.device.register_memory(host.pd, region).unwrap();
    let buffer = Buffer::new(MEMORY, 16, read_only.lkey.0);
    host.post(1, to, SendOpcode::Send, SendData::Buffers(&[buffer]));
    net.settle();
    let rkey = net.hosts[1].keys.rkey.0;
    let send = &mut net.hosts[0].client.send;
    send.start();
    send.rdma_read(2, 0, rkey, MEMORY);
    send.set_ud_addr(to);
    send.set_sge_list(&[buffer]);
    send.complete().unwrap();
    net.hosts[0].doorbell();
    net.settle();
    assert_eq!(net.hosts[0].outcome(), Some((1, Status::Ok)));
    assert_eq!(net.hosts[0].outcome(), Some((2, Status::LocalInvalidLkey)));
}

#[test]
fn a_receive_that_failed_is_used_up() {
    let (mut net, to) = set_up(Setup::default());
    net.hosts[1].post_recv(2, &[(0, 100)]);
    net.hosts[0].post_send(1, to, &[(0, 65)]);
    net.hosts[0].post_send(2, to, &[(0, 65)]);
    net.settle();
    assert_eq!(net.hosts[0].outcome(), Some((1, Status::RemoteBadLength)));
    assert_eq!(net.hosts[0].outcome(), Some((2, Status::Ok)));
    assert_eq!(net.hosts[1].outcome(), Some((1, Status::LocalBadLength)));
    assert_eq!(net.hosts[1].outcome(), Some((2, Status::Ok)));
}
