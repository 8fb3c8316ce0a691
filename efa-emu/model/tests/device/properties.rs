//! Random programs: no panic, and every work request either completes exactly once or vanishes with
//! its queue pair.

use std::collections::HashMap;

use efa_core::address::{Ahn, Qkey, Qpn};
use efa_core::nic::Status;
use efa_device_model::device::{QpState, Service};
use efa_device_model::profile::Profile;
use efa_device_model::provider::{SendData, SendOpcode, UdAddress, WcOpcode};
use proptest::prelude::*;

use crate::harness::{MEMORY, Net, QKEY, Rdma, RdmaOperation, Setup, gid};

/// One step of a program on host `host` of three.
#[derive(Clone, Debug)]
enum Step {
    Recv {
        length: u32,
        parts: usize,
    },
    Send {
        to: usize,
        length: u32,
        mistake: u8,
    },
    Rdma {
        to: usize,
        write: bool,
        immediate: bool,
        remote: u64,
        length: u32,
        mistake: u8,
    },
    State(u8),
    Recreate,
    Handle {
        whom: usize,
        create: bool,
    },
    Busy {
        whom: usize,
        busy: bool,
    },
    Transmit,
    /// Delivers the packet with this index, and returns the answer now, later or twice.
    Deliver {
        which: usize,
        answer: u8,
    },
    Answer {
        which: usize,
    },
    Advance,
    Poll,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u32..300, 0usize..4).prop_map(|(length, parts)| Step::Recv { length, parts }),
        6 => (0usize..3, 0u32..200, any::<u8>())
            .prop_map(|(to, length, mistake)| Step::Send { to, length, mistake }),
        4 => (0usize..3, any::<bool>(), any::<bool>(), 0u64..300_000, 0u32..100_000, any::<u8>())
            .prop_map(|(to, write, immediate, remote, length, mistake)| Step::Rdma {
                to, write, immediate, remote, length, mistake,
            }),
        1 => any::<u8>().prop_map(Step::State),
        1 => Just(Step::Recreate),
        1 => (0usize..3, any::<bool>()).prop_map(|(whom, create)| Step::Handle { whom, create }),
        1 => (0usize..3, any::<bool>()).prop_map(|(whom, busy)| Step::Busy { whom, busy }),
        4 => Just(Step::Transmit),
        6 => (any::<usize>(), any::<u8>())
            .prop_map(|(which, answer)| Step::Deliver { which, answer }),
        3 => any::<usize>().prop_map(|which| Step::Answer { which }),
        1 => Just(Step::Advance),
        3 => Just(Step::Poll),
    ]
}

/// The outstanding work requests of a host's queue pair, by id.
#[derive(Default)]
struct OutstandingRequests {
    open: HashMap<u64, &'static str>,
}

struct World {
    net: Net,
    outstanding: Vec<OutstandingRequests>,
    /// Answers in the network.
    answers: Vec<(crate::harness::Packet, Status)>,
    next_id: u64,
    /// Whether a queue pair's completions are polled before it is recreated. With 64-bit request
    /// ids they cannot be distinguished from those of its successor.
    polls_first: bool,
    /// Completions in order: host, work request id, status and operation.
    seen: Vec<(usize, u64, Option<Status>, WcOpcode)>,
}

/// The step between work request ids, which uses all bits.
const ID_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl World {
    fn new(setup: Setup) -> World {
        let mut net = Net::new(&[setup.clone(), setup.clone(), setup]);
        for (host, whom) in [(0, 1), (1, 0), (1, 2), (2, 1)] {
            net.know(host, whom);
        }
        World {
            net,
            outstanding: (0..3).map(|_| OutstandingRequests::default()).collect(),
            answers: Vec::new(),
            next_id: 0,
            polls_first: false,
            seen: Vec::new(),
        }
    }

    fn open(&mut self, host: usize, kind: &'static str) -> u64 {
        self.next_id = self.next_id.wrapping_add(ID_STEP);
        self.outstanding[host].open.insert(self.next_id, kind);
        self.next_id
    }

    fn poll(&mut self, host: usize) {
        while let Some(completion) = self.net.hosts[host].poll() {
            assert!(completion.status().is_some());
            let (status, opcode) = (completion.status(), completion.opcode());
            self.seen.push((host, completion.wr_id, status, opcode));
            if completion.is_unsolicited() {
                continue;
            }
            let kind = self.outstanding[host].open.remove(&completion.wr_id);
            assert!(kind.is_some(), "{completion:?} was not outstanding");
        }
    }

    fn address(&self, to: usize, mistake: u8) -> UdAddress {
        UdAddress {
            ahn: if mistake == 1 {
                9999
            } else {
                u16::from(to != 0)
            },
            qpn: if mistake == 2 {
                Qpn(7)
            } else {
                Qpn(to as u16 + 100)
            },
            qkey: if mistake == 3 { Qkey(1) } else { QKEY },
        }
    }

    fn run(&mut self, host: usize, step: &Step) {
        let next = self.next_id.wrapping_add(ID_STEP);
        match *step {
            Step::Recv { length, parts } => {
                let buffer = self.net.hosts[host].buffer(0, length);
                let recv = &mut self.net.hosts[host].client.recv;
                if recv.post(next, &[buffer; 3][..parts.min(3)]).is_ok() {
                    self.open(host, "receive");
                }
            }
            Step::Send {
                to,
                length,
                mistake,
            } => {
                let address = self.address(to, mistake);
                let mut buffer = self.net.hosts[host].buffer(0, length);
                if mistake == 4 {
                    buffer.lkey ^= 1 << 19;
                }
                let opcode = SendOpcode::SendWithImmediate(length);
                let data = if length <= 32 {
                    SendData::Inline(&[&[1; 32][..length as usize]])
                } else {
                    SendData::Buffers(&[buffer])
                };
                let host_ref = &mut self.net.hosts[host];
                if host_ref.client.post(next, address, opcode, data).is_ok() {
                    host_ref.doorbell();
                    self.open(host, "send");
                }
            }
            Step::Rdma {
                to,
                write,
                immediate,
                remote,
                length,
                mistake,
            } => {
                let address = self.address(to, mistake);
                let rkey = self.net.hosts[to].keys.rkey.0 ^ u32::from(mistake == 4);
                let host_ref = &mut self.net.hosts[host];
                if host_ref.client.send.outstanding() == host_ref.client.send.depth()
                    || host_ref.device.query_qp(host_ref.client.qpn).unwrap().state
                        != QpState::ReadyToSend
                {
                    return;
                }
                let kind = match write {
                    true => RdmaOperation::Write(immediate.then_some(1)),
                    false => RdmaOperation::Read,
                };
                let rdma = Rdma {
                    kind,
                    local: (0, length),
                    remote: MEMORY + remote,
                    rkey,
                };
                host_ref.post_rdma(next, address, rdma);
                self.open(host, "rdma");
            }
            Step::State(choice) => {
                let host_ref = &mut self.net.hosts[host];
                match choice % 3 {
                    0 => {
                        host_ref.set_state(QpState::Error);
                    }
                    1 => {
                        // A reset drops outstanding requests.
                        self.poll(host);
                        let host_ref = &mut self.net.hosts[host];
                        host_ref.set_state(QpState::Reset);
                        host_ref.ready();
                        self.outstanding[host].open.clear();
                    }
                    _ => {
                        let state = host_ref.device.query_qp(host_ref.client.qpn).unwrap().state;
                        match state {
                            QpState::ReadyToSend => host_ref.set_state(QpState::SendQueueDrained),
                            QpState::SendQueueDrained => host_ref.set_state(QpState::ReadyToSend),
                            _ => {}
                        }
                    }
                }
            }
            Step::Recreate => {
                if self.polls_first {
                    self.poll(host);
                }
                self.net.hosts[host].recreate_qp();
                self.outstanding[host].open.clear();
            }
            Step::Handle { whom, create } => {
                let host_ref = &mut self.net.hosts[host];
                let pd = host_ref.pd;
                if create {
                    host_ref.device.create_ah(pd, gid(whom)).unwrap();
                } else {
                    let _ = host_ref.device.destroy_ah(pd, Ahn(whom as u16));
                }
            }
            Step::Busy { whom, busy } => {
                if busy {
                    self.net.busy.insert(gid(whom));
                } else {
                    self.net.busy.remove(&gid(whom));
                }
            }
            Step::Transmit => {
                self.net.transmit(host);
            }
            Step::Deliver { which, answer } => {
                if self.net.packets.is_empty() {
                    return;
                }
                let place = which % self.net.packets.len();
                let mut packet = self.net.packets.remove(place).unwrap();
                let status = self.net.deliver(&mut packet);
                if answer < 80 {
                    self.answers.push((packet, status));
                } else {
                    self.net.answer(&packet, status);
                    if answer > 240 {
                        self.net.answer(&packet, Status::RemoteAbort);
                    }
                }
            }
            Step::Answer { which } => {
                if self.answers.is_empty() {
                    return;
                }
                let place = which % self.answers.len();
                let (packet, status) = self.answers.swap_remove(place);
                self.net.answer(&packet, status);
            }
            Step::Advance => {
                self.net.advance();
            }
            Step::Poll => self.poll(host),
        }
    }

    /// Completes all work and checks that nothing is missing. Returns all completions.
    fn finish(mut self) -> Vec<(usize, u64, Option<Status>, WcOpcode)> {
        self.net.busy.clear();
        for (packet, status) in std::mem::take(&mut self.answers) {
            self.net.answer(&packet, status);
        }
        for host in 0..3 {
            let host = &mut self.net.hosts[host];
            let state = host.device.query_qp(host.client.qpn).unwrap().state;
            if state == QpState::SendQueueDrained {
                host.set_state(QpState::ReadyToSend);
            }
        }
        loop {
            self.net.settle();
            for host in 0..3 {
                self.poll(host);
            }
            if !self.net.advance() {
                break;
            }
        }
        for (number, requests) in self.outstanding.iter().enumerate() {
            let lost: Vec<_> = requests
                .open
                .iter()
                .filter(|(_, kind)| **kind != "receive")
                .collect();
            assert!(lost.is_empty(), "host {number} never completed {lost:?}");
        }
        // Receives complete when their queue pair fails.
        for host in 0..3 {
            self.net.hosts[host].set_state(QpState::Error);
            self.poll(host);
            let open = &self.outstanding[host].open;
            assert!(open.is_empty(), "host {host} never flushed {open:?}");
            assert_eq!(self.net.hosts[host].client.send.outstanding(), 0);
            assert_eq!(self.net.hosts[host].client.recv.outstanding(), 0);
        }
        self.seen
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn every_work_request_completes_once(
        datagrams in any::<bool>(),
        unsolicited in any::<bool>(),
        rnr_retry in 0u8..4,
        steps in prop::collection::vec((0usize..3, step()), 1..120),
    ) {
        let mut world = World::new(Setup {
            service: if datagrams { Service::Ud } else { Service::Srd },
            unsolicited_write_recv: unsolicited,
            rnr_retry: Some(rnr_retry),
            send_entries: 8,
            recv_descriptors: 16,
            cq_entries: 512,
            ..Setup::default()
        });
        for (host, step) in &steps {
            world.run(*host, step);
        }
        world.finish();
    }

    /// The same program gets the same completions for any size of the request ids.
    #[test]
    fn request_id_size_is_invisible_to_programs(
        rnr_retry in 0u8..4,
        steps in prop::collection::vec((0usize..3, step()), 1..120),
    ) {
        let run = |long_request_ids| {
            let mut world = World::new(Setup {
                profile: Profile { long_request_ids, ..Profile::by_name("efa4").unwrap().clone() },
                rnr_retry: Some(rnr_retry),
                send_entries: 8,
                recv_descriptors: 16,
                cq_entries: 512,
                ..Setup::default()
            });
            world.polls_first = true;
            for (host, step) in &steps {
                world.run(*host, step);
            }
            world.finish()
        };
        prop_assert_eq!(run(false), run(true));
    }
}
