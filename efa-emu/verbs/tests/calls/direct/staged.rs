//! Captures, staged faults and receivers that are not ready have the same effect on clients that
//! make no calls as on clients that do. Each test runs one client of each.

use std::path::Path;

use efa_capture::frame::{FrameKind, Repr};
use efa_capture::{Direction, Reader};
use efa_core::address::Qpn;
use efa_core::nic::Status;
use efa_testing::patience::Wait;
use efa_testing::workspace::efa_emu;
use efa_verbs_abi::*;
use serde_json::Value;

use super::{Completions, Direct, OF_RECEIVE_QUEUE, buffer};
use crate::async_events::fault;
use crate::exchange::{ALL_OPS, build};
use crate::on_emulated_host_with;
use efa_testing::verbs::*;

/// Bytes of the clients' memory.
const MEMORY: usize = 256;
/// The offset of received messages. The data to send is before it.
const ARRIVALS: usize = 128;

/// Request ids of receives; those of sends are below.
const RECEIVE: u16 = 0x100;

/// A completion: the request's id, the device's status, and the length of a message that arrived.
type Done = (u16, Status, u16);

/// A queue pair that sends to itself.
struct Client<'e> {
    endpoint: &'e Endpoint,
    region: *mut ibv_mr,
    queue: *mut ibv_cq,
    pair: *mut ibv_qp,
    /// Its queues, if it makes no calls.
    direct: Option<(Direct, Completions)>,
}

impl<'e> Client<'e> {
    /// `rnr_retry`: the number of retries if the receiver is not ready; 7: no limit.
    fn new(endpoint: &'e Endpoint, region: *mut ibv_mr, is_direct: bool, rnr_retry: u8) -> Self {
        let queue = endpoint.cq(64);
        let (mut request, mut efa) = endpoint.srd_request(queue, ALL_OPS);
        let pair = endpoint.create(&mut request, &mut efa);
        change_state(pair, IBV_QPS_INIT, IDENTITY);
        change_state(pair, IBV_QPS_RTR, IBV_QP_STATE);
        let mut last: ibv_qp_attr = zeroed();
        (last.qp_state, last.rnr_retry) = (IBV_QPS_RTS, rnr_retry);
        let mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY;
        // SAFETY: a live queue pair.
        let changed = unsafe { ibv_modify_qp(pair, &raw mut last, mask as i32) };
        assert_eq!(changed, 0);
        Client {
            endpoint,
            region,
            queue,
            pair,
            direct: is_direct.then(|| (Direct::of(endpoint, pair), Completions::of(queue))),
        }
    }

    fn receive(&mut self, request: u16, length: u32) {
        if let Some((queues, _)) = &mut self.direct {
            return queues.receive(self.region, ARRIVALS, length, request);
        }
        let mut list = [sge(self.region, ARRIVALS, length)];
        assert_eq!(post_recv(self.pair, request.into(), &mut list), 0);
    }

    fn send(&mut self, request: u16, length: u32) {
        if let Some((queues, _)) = &mut self.direct {
            return queues.send(request.into(), self.region, 0, length);
        }
        let mut list = [sge(self.region, 0, length)];
        send(
            self.endpoint,
            self.pair,
            self.pair,
            request.into(),
            &mut list,
        );
    }

    /// Reads the data to send to the offset of received messages, by RDMA.
    fn read(&mut self, request: u16, length: u32) {
        // SAFETY: live objects.
        let (qpn, rkey) = unsafe { ((*self.pair).qp_num, (*self.region).rkey) };
        let (from, to) = (
            sge(self.region, 0, length),
            sge(self.region, ARRIVALS, length),
        );
        if let Some((queues, _)) = &mut self.direct {
            const READ: u8 = 1;
            let remote = [u64::from(length) | u64::from(rkey) << 32, from.addr];
            let local = buffer(self.region, ARRIVALS, length);
            return queues.post(request.into(), READ, 1, &[remote, local].concat());
        }
        // SAFETY: live objects, used as a correct program does.
        unsafe {
            build(self.pair, request.into(), |builders| {
                (*builders).wr_rdma_read.unwrap()(builders, rkey, from.addr);
                (*builders).wr_set_ud_addr.unwrap()(builders, self.endpoint.handle, qpn, QKEY);
                (*builders).wr_set_sge.unwrap()(builders, to.lkey, to.addr, to.length);
            })
        }
    }

    fn next(&mut self) -> Done {
        let (id, status, length) = match &mut self.direct {
            Some((_, completions)) => {
                let entry = completions.next();
                let arrived = entry.flags == OF_RECEIVE_QUEUE;
                let length = if arrived { entry.length } else { 0 };
                (entry.request, entry.status, length)
            }
            None => {
                let mut done = [ibv_wc::default()];
                let wait = Wait::start();
                while poll(self.queue, &mut done) == 0 {
                    wait.check(|| "no completion".into());
                }
                let [done] = done;
                let arrived = done.wr_id >= RECEIVE.into();
                let length = if arrived { done.byte_len as u16 } else { 0 };
                (done.wr_id as u16, done.vendor_err as u8, length)
            }
        };
        (id, Status::from_code(status).unwrap(), length)
    }

    /// The next completions, in the order of their ids.
    fn done(&mut self, count: usize) -> Vec<Done> {
        let mut done: Vec<_> = (0..count).map(|_| self.next()).collect();
        done.sort_by_key(|(id, ..)| *id);
        done
    }

    /// Checks that earlier requests complete no more: the next completions belong to a message.
    fn expect_nothing_else(&mut self) {
        let length = 64;
        self.receive(RECEIVE + 0x77, length);
        self.send(0x77, length);
        let expected = [(0x77, Status::Ok, 0), (RECEIVE + 0x77, Status::Ok, 64)];
        assert_eq!(self.done(2), expected);
    }
}

/// Runs the same actions with both types of client, one after the other.
fn both_ways(rnr_retry: u8, mut play: impl FnMut(&mut Client<'_>)) {
    let endpoint = Endpoint::new();
    let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
    let mut memory = vec![7u8; MEMORY];
    let region = endpoint.register(&mut memory, access);
    // Both exist all the time, so that their queue pairs have different numbers.
    let clients =
        [false, true].map(|is_direct| Client::new(&endpoint, region, is_direct, rnr_retry));
    for mut client in clients {
        println!("makes calls: {}", client.direct.is_none());
        play(&mut client);
        assert_eq!(ibv_destroy_qp(client.pair), 0);
        assert_eq!(ibv_destroy_cq(client.queue), 0);
    }
}

/// The frames of each queue pair in a capture, in the order of their first frames. The numbers of
/// the queue pairs are replaced by 0.
fn of_each_pair(path: &Path) -> Vec<Vec<(Direction, Repr, Vec<u8>)>> {
    let mut reader = Reader::open(path).unwrap();
    let mut pairs: Vec<(Qpn, Vec<_>)> = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        let (direction, frame) = (frame.direction.unwrap(), frame.frame.unwrap());
        let mut header = frame.header;
        let pair = header.source_qpn;
        assert_eq!(header.destination_qpn, pair, "each sends to itself");
        (header.source_qpn, header.destination_qpn) = (Qpn(0), Qpn(0));
        let known = pairs.iter().position(|(known, _)| *known == pair);
        let place = known.unwrap_or_else(|| {
            pairs.push((pair, Vec::new()));
            pairs.len() - 1
        });
        let seen = (direction, header, frame.payload.to_vec());
        pairs[place].1.push(seen);
    }
    assert_eq!(reader.truncation(), None);
    pairs.into_iter().map(|(_, frames)| frames).collect()
}

/// Each request is captured once outbound and once inbound, and so is its answer.
#[test]
fn captures_equal_those_of_calls() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("capture.pcapng");
    let options = ["--profile", "efa2", "--pcap", file.to_str().unwrap()];
    on_emulated_host_with(&options, || {
        both_ways(0, |client| {
            client.receive(RECEIVE, 64);
            client.send(1, 48);
            let expected = [(1, Status::Ok, 0), (RECEIVE, Status::Ok, 48)];
            assert_eq!(client.done(2), expected);
            client.send(2, 16);
            assert_eq!(client.next(), (2, Status::RemoteRnr, 0));
            client.read(3, 32);
            assert_eq!(client.next(), (3, Status::Ok, 0));
            client.receive(RECEIVE + 1, 8);
            client.send(4, 9);
            assert_eq!(client.done(2)[0], (4, Status::RemoteBadLength, 0));
            client.receive(RECEIVE + 2, 64);
            client.send(5, 0);
            let expected = [(5, Status::Ok, 0), (RECEIVE + 2, Status::Ok, 0)];
            assert_eq!(client.done(2), expected);
        });
    });
    if std::env::var_os("EFA_EMU_HOST").is_some() {
        return;
    }
    let pairs = of_each_pair(&file);
    let [by_calls, direct] = &pairs[..] else {
        panic!("{} queue pairs", pairs.len());
    };
    assert_eq!(by_calls, direct);
    for direction in [Direction::Outbound, Direction::Inbound] {
        let frames = direct.iter().filter(|(of, ..)| *of == direction);
        let seen: Vec<_> = frames
            .map(|(_, header, payload)| {
                assert!(payload.iter().all(|byte| *byte == 7), "{payload:?}");
                let what = match header.kind {
                    FrameKind::Response(status) => Some(status),
                    _ => None,
                };
                (header.sequence, what, payload.len())
            })
            .collect();
        // Success is not captured.
        let expected = [
            (0, None, 48),
            (1, None, 16),
            (1, Some(Status::RemoteRnr), 0),
            // The request of an RDMA read, and its data.
            (2, None, 0),
            (2, None, 32),
            (3, None, 9),
            (3, Some(Status::RemoteBadLength), 0),
            (4, None, 0),
        ];
        assert_eq!(seen, expected, "{direction:?}");
    }
}

/// The effect of a rule on messages of 1 byte, 2 bytes and so on: the condition of the rule, its
/// action, the number of messages, and the completions, in the order of their ids.
type Case = (&'static str, &'static str, u16, &'static [Done]);

const OK: Status = Status::Ok;
const FIRST: &str = "max-length = 1, nth = 1";
const FIRST_ANSWER: &str = "on = \"answer\", max-length = 1, nth = 1";
const EACH: &str = "max-length = 1";
const ABORT: &str = "{ status = \"remote-abort\" }";

const CASES: &[Case] = &[
    (FIRST, "\"drop\"", 1, &[(1, OK, 0), (RECEIVE, OK, 1)]),
    (
        EACH,
        "\"lose\"",
        2,
        &[
            (1, Status::LocalUnresponsiveRemote, 0),
            (2, OK, 0),
            (RECEIVE, OK, 2),
        ],
    ),
    (
        FIRST,
        "\"duplicate\"",
        1,
        &[(1, OK, 0), (RECEIVE, OK, 1), (RECEIVE, OK, 1)],
    ),
    (
        FIRST_ANSWER,
        "\"duplicate\"",
        1,
        &[(1, OK, 0), (1, OK, 0), (RECEIVE, OK, 1)],
    ),
    (
        FIRST,
        "\"repeat\"",
        1,
        &[(1, OK, 0), (RECEIVE, OK, 1), (RECEIVE + 1, OK, 1)],
    ),
    // The second message arrives before the first.
    (
        FIRST,
        "{ hold-packets = 1 }",
        2,
        &[
            (1, OK, 0),
            (2, OK, 0),
            (RECEIVE, OK, 2),
            (RECEIVE + 1, OK, 1),
        ],
    ),
    (FIRST, ABORT, 1, &[(1, Status::RemoteAbort, 0)]),
    (
        FIRST_ANSWER,
        ABORT,
        1,
        &[(1, Status::RemoteAbort, 0), (RECEIVE, OK, 1)],
    ),
    (
        FIRST,
        "{ not-ready = 3 }",
        1,
        &[(1, OK, 0), (RECEIVE, OK, 1)],
    ),
];

/// The JSON output of a command of `efa-emu` for this fabric.
fn printed(words: &[&str]) -> Value {
    let fabric = std::env::var("EFA_EMU_FABRIC").unwrap();
    let mut command = efa_emu(words);
    let output = command.args(["--json", "--fabric", &fabric]).output();
    serde_json::from_slice(&output.unwrap().stdout).unwrap()
}

/// The number of times that the armed rule was applied.
fn applied() -> u64 {
    printed(&["fault", "list"])[0]["applied"].as_u64().unwrap()
}

#[test]
fn rules_of_faults_apply_as_to_calls() {
    on_emulated_host_with(&["--profile", "efa2", "--host", "alpha"], || {
        both_ways(7, |client| {
            for (when, then, messages, expected) in CASES {
                println!("{when} {then}");
                fault(&["add", &format!("when = {{ {when} }}, then = {then}")]);
                let receives = expected.iter().map(|(id, ..)| *id);
                let receives = receives.max().unwrap().saturating_sub(RECEIVE - 1);
                (0..receives).for_each(|number| client.receive(RECEIVE + number, 64));
                (1..=*messages).for_each(|number| client.send(number, number.into()));
                let mut expected = expected.to_vec();
                if client.direct.is_none() {
                    // Calls show no completion of a request that has completed.
                    expected.dedup();
                }
                assert_eq!(client.done(expected.len()), expected);
                assert!(applied() > 0);
                fault(&["clear"]);
                client.expect_nothing_else();
            }
        });
    });
}

#[test]
fn held_frames_arrive_after_their_release() {
    on_emulated_host_with(&["--profile", "efa2"], || {
        both_ways(7, |client| {
            fault(&[
                "add",
                "label = \"kept\", when = { max-length = 1, nth = 1 }, then = \"hold\"",
            ]);
            (0..3).for_each(|number| client.receive(RECEIVE + number, 64));
            (1..4).for_each(|number| client.send(number, number.into()));
            let passed = [
                (2, Status::Ok, 0),
                (3, Status::Ok, 0),
                (RECEIVE, Status::Ok, 2),
                (RECEIVE + 1, Status::Ok, 3),
            ];
            assert_eq!(client.done(4), passed);
            assert_eq!(printed(&["fault", "list"])[0]["held"], 1);
            fault(&["release", "kept"]);
            let released = [(1, Status::Ok, 0), (RECEIVE + 2, Status::Ok, 1)];
            assert_eq!(client.done(2), released);
            fault(&["clear"]);
        });
    });
}

/// Sends without a link fail after the last retry.
#[test]
fn nothing_leaves_a_port_without_link() {
    on_emulated_host_with(&["--profile", "efa2", "--host", "alpha"], || {
        both_ways(7, |client| {
            fault(&["port-down", "alpha"]);
            client.receive(RECEIVE, 64);
            client.send(1, 16);
            let unresponsive = Status::LocalUnresponsiveRemote;
            assert_eq!(client.next(), (1, unresponsive, 0));
            fault(&["port-up", "alpha"]);
            // The receive is still posted.
            client.send(2, 32);
            let expected = [(2, Status::Ok, 0), (RECEIVE, Status::Ok, 32)];
            assert_eq!(client.done(2), expected);
            client.expect_nothing_else();
        });
    });
}

/// The number of requests that found no receive, and the number of retries.
fn refusals() -> [u64; 2] {
    let device = &printed(&["stats"])[0];
    let found = device["diagnostics"]["rnr_refusals"].as_u64().unwrap();
    let port = device["port_hw_counters"]["retrans_pkts"].as_u64();
    [found, port.unwrap_or_else(|| panic!("{device}"))]
}

#[test]
fn finite_retries_end_when_no_receive_is_posted() {
    on_emulated_host_with(&["--profile", "efa2"], || {
        for retries in [0, 2] {
            both_ways(retries, |client| {
                let [found, again] = refusals();
                client.send(1, 16);
                assert_eq!(client.next(), (1, Status::RemoteRnr, 0));
                let retries = u64::from(retries);
                let expected = [found + retries + 1, again + retries];
                let wait = Wait::start();
                while refusals() != expected {
                    wait.pause(|| format!("{:?} instead of {expected:?}", refusals()));
                }
                client.expect_nothing_else();
            });
        }
    });
}

#[test]
fn endless_retries_last_until_a_receive_is_posted() {
    on_emulated_host_with(&["--profile", "efa2"], || {
        both_ways(7, |client| {
            let [found, _] = refusals();
            client.send(1, 16);
            // More than any finite number of retries.
            let wait = Wait::start();
            while refusals()[0] < found + 8 {
                wait.pause(|| format!("{:?} after {found}", refusals()));
            }
            client.receive(RECEIVE, 64);
            let expected = [(1, Status::Ok, 0), (RECEIVE, Status::Ok, 16)];
            assert_eq!(client.done(2), expected);
            client.expect_nothing_else();
        });
    });
}
