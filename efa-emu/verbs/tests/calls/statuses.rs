//! Every completion status of the device, by its cause, as programs see it.

use std::ffi::c_int;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::ptr::null_mut;

use crate::exchange::{ALL_OPS, build};
use crate::on_emulated_host_with;
use efa_testing::verbs::*;
use efa_testing::workspace::built;
use efa_verbs_abi::*;

/// Names the process on the older device.
const ROLE: &str = "EFA_TEST_OLDER_PEER";

/// The rules for requests of these lengths.
const FAULTS: &str = r#"
[[fault]]
label = "an answer that no responder gives"
when = { on = "answer", min-length = 12, max-length = 12 }
then = { status = "flushed" }

[[fault]]
label = "a peer that stopped"
when = { min-length = 13, max-length = 13 }
then = "lose"
"#;

/// Two queue pairs of one process, and memory for both.
struct Setup {
    endpoint: Endpoint,
    sends: *mut ibv_cq,
    sender: *mut ibv_qp,
    receiver: *mut ibv_qp,
    region: *mut ibv_mr,
    older: Peer,
}

impl Setup {
    /// Posts a receive of 64 bytes.
    fn receive(&self, length: u32) {
        let mut list = [sge(self.region, 20_000, length)];
        assert_eq!(post_recv(self.receiver, 5, &mut list), 0);
    }

    /// Posts a changed send of 16 bytes.
    fn send(&self, change: impl FnOnce(&mut ibv_send_wr, &mut [ibv_sge; 2])) {
        let mut list = [sge(self.region, 0, 16), sge(self.region, 0, 0)];
        let mut request = send_request(&self.endpoint, self.receiver, 1, &mut list[..1]);
        change(&mut request, &mut list);
        request.sg_list = list.as_mut_ptr();
        assert_eq!(post_send(self.sender, &mut request).0, 0);
    }

    /// Posts an RDMA read of 16 bytes.
    fn read(&self, handle: *mut ibv_ah, qpn: u32, rkey: u32, address: u64) {
        let to = sge(self.region, 0, 16);
        // SAFETY: live objects, used as a correct program does.
        let posted = unsafe {
            build(self.sender, 1, |builders| {
                (*builders).wr_rdma_read.unwrap()(builders, rkey, address);
                (*builders).wr_set_ud_addr.unwrap()(builders, handle, qpn, QKEY);
                (*builders).wr_set_sge.unwrap()(builders, to.lkey, to.addr, to.length);
            })
        };
        assert_eq!(posted, 0);
    }

    /// Posts a send that waits, and changes its entry in the queue: the third byte, which has the
    /// operation and the flag for a whole request.
    fn corrupt(&self, byte: u8) {
        change_state(self.sender, IBV_QPS_SQD, IBV_QP_STATE);
        self.send(|_, _| {});
        let (mut send, mut receive): (efadv_wq_attr, efadv_wq_attr) = (zeroed(), zeroed());
        // SAFETY: a live queue pair, whose first entry the device does not look at yet.
        unsafe {
            let (send, receive) = (&raw mut send, &raw mut receive);
            assert_eq!(efadv_query_qp_wqs(self.sender, send, receive, 40), 0);
            (*send).buffer.add(2).write_volatile(byte);
        }
        change_state(self.sender, IBV_QPS_RTS, IBV_QP_STATE);
    }
}

struct Case {
    /// The device's status, which programs get as vendor error.
    code: u32,
    /// `ibv_wc_status`.
    status: c_int,
    cause: &'static str,
    /// Posts request 1 of the sender.
    provoke: fn(&Setup),
}

const CASES: &[Case] = &[
    Case {
        code: 0,
        status: 0,
        cause: "a send that fits",
        provoke: |setup| {
            setup.receive(64);
            setup.send(|_, _| {});
        },
    },
    Case {
        code: 1,
        status: 5,
        cause: "the queue pair goes to the error state before the request is sent",
        provoke: |setup| {
            change_state(setup.sender, IBV_QPS_SQD, IBV_QP_STATE);
            setup.send(|_, _| {});
            change_state(setup.sender, IBV_QPS_ERR, IBV_QP_STATE);
        },
    },
    Case {
        code: 2,
        status: 2,
        cause: "an incomplete work request",
        provoke: |setup| setup.corrupt(0),
    },
    Case {
        code: 3,
        status: 2,
        cause: "an operation that the device does not know",
        provoke: |setup| setup.corrupt(0x89),
    },
    Case {
        code: 4,
        status: 2,
        cause: "an address handle of another protection domain",
        provoke: |setup| {
            let mut gid = setup.endpoint.gid;
            gid.raw[15] ^= 0x55;
            let pd = ibv_alloc_pd(setup.endpoint.context);
            setup.send(|request, _| request.ud.ah = handle_of(pd, gid));
        },
    },
    Case {
        code: 5,
        status: 4,
        cause: "memory that is not registered any more",
        provoke: |setup| {
            let mut memory = [0u8; 16];
            let region = setup.endpoint.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
            let gone = sge(region, 0, 16);
            assert_eq!(ibv_dereg_mr(region), 0);
            setup.send(|_, list| list[0] = gone);
        },
    },
    Case {
        code: 6,
        status: 1,
        cause: "a message longer than the MTU",
        provoke: |setup| {
            setup.send(|request, list| {
                request.num_sge = 2;
                (list[0].length, list[1].length) = (8928, 1);
            });
        },
    },
    Case {
        code: 7,
        status: 10,
        cause: "a remote key that was never given out",
        provoke: |setup| {
            // SAFETY: live objects.
            let (qpn, rkey, address) = unsafe {
                let region = &*setup.region;
                ((*setup.receiver).qp_num, region.rkey, region.addr.addr())
            };
            setup.read(setup.endpoint.handle, qpn, rkey ^ 1 << 20, address as u64);
        },
    },
    Case {
        code: 8,
        status: 16,
        cause: "the receiver's buffer is not registered any more",
        provoke: |setup| {
            let mut memory = [0u8; 64];
            let region = setup.endpoint.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
            assert_eq!(post_recv(setup.receiver, 5, &mut [sge(region, 0, 64)]), 0);
            assert_eq!(ibv_dereg_mr(region), 0);
            setup.send(|_, _| {});
        },
    },
    Case {
        code: 9,
        status: 15,
        cause: "another Q-key than the receiver's",
        provoke: |setup| {
            setup.receive(64);
            setup.send(|request, _| request.ud.remote_qkey ^= 1);
        },
    },
    Case {
        code: 10,
        status: 13,
        cause: "no receive posted, and no retries",
        provoke: |setup| setup.send(|_, _| {}),
    },
    Case {
        code: 11,
        status: 9,
        cause: "a receive that is too short",
        provoke: |setup| {
            setup.receive(8);
            setup.send(|_, _| {});
        },
    },
    Case {
        code: 12,
        status: 7,
        cause: "an answer that no responder gives",
        provoke: |setup| {
            setup.receive(64);
            setup.send(|_, list| list[0].length = 12);
        },
    },
    Case {
        code: 13,
        status: 20,
        cause: "a peer that does not answer",
        provoke: |setup| {
            setup.receive(64);
            setup.send(|_, list| list[0].length = 13);
        },
    },
    Case {
        code: 14,
        status: 11,
        cause: "a responder that has no address handle for the initiator",
        provoke: |setup| {
            let other = Target::new(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
            // SAFETY: live objects.
            unsafe {
                let (qpn, region) = ((*other.pair).qp_num, &*other.region);
                let address = region.addr.addr() as u64;
                setup.read(setup.endpoint.handle, qpn, region.rkey, address);
            }
        },
    },
    Case {
        code: 15,
        status: 20,
        cause: "a host that does not exist",
        provoke: |setup| {
            let mut gid = setup.endpoint.gid;
            gid.raw[14] ^= 0x55;
            let nobody = handle_of(setup.endpoint.pd, gid);
            setup.send(|request, _| request.ud.ah = nobody);
        },
    },
    Case {
        code: 18,
        status: 9,
        cause: "RDMA to a generation of the device without it",
        provoke: |setup| {
            let peer = &setup.older;
            let handle = handle_of(setup.endpoint.pd, peer.gid);
            setup.read(handle, peer.qpn, peer.rkey, peer.address);
        },
    },
];

/// A device with a queue pair and memory for RDMA, without address handles.
struct Target {
    pair: *mut ibv_qp,
    region: *mut ibv_mr,
    gid: ibv_gid,
}

impl Target {
    fn new(access: u32) -> Target {
        let context = open();
        let mut gid = ibv_gid::default();
        // SAFETY: a live context, and a place on the stack.
        let pd = unsafe {
            assert_eq!(ibv_query_gid(context, 1, 0, &raw mut gid), 0);
            ibv_alloc_pd(context)
        };
        let endpoint = Endpoint {
            context,
            pd,
            handle: null_mut(),
            gid,
        };
        let pair = endpoint.srd(endpoint.cq(16), 0);
        let memory = Vec::leak(vec![7u8; 64]);
        let region = endpoint.register(memory, access);
        Target { pair, region, gid }
    }
}

/// A process on a host with an older device.
struct Peer {
    process: Child,
    gid: ibv_gid,
    qpn: u32,
    rkey: u32,
    address: u64,
}

impl Peer {
    /// Starts the calling test again, in the other role.
    fn start(test: &str) -> Peer {
        let fabric = std::env::var("EFA_EMU_FABRIC").expect("this runs on an emulated host");
        let mut process = Command::new(built("efa-emu"))
            .args(["run", "--fabric", &fabric, "--host", "older"])
            .args(["--profile", "efa0", "--"])
            .arg(std::env::current_exe().expect("a test program knows its path"))
            .args(["--exact", test, "--nocapture"])
            .env(ROLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it was built");
        let output = BufReader::new(process.stdout.take().expect("it is piped"));
        let line = output
            .lines()
            .map_while(Result::ok)
            .find_map(|line| line.split_once("peer ").map(|(_, rest)| rest.to_owned()))
            .expect("it says where it is");
        let numbers: Vec<u64> = line
            .split(' ')
            .map(|number| number.parse().unwrap())
            .collect();
        let mut gid = ibv_gid::default();
        for (byte, number) in gid.raw.iter_mut().zip(&numbers[3..]) {
            *byte = *number as u8;
        }
        Peer {
            process,
            gid,
            qpn: numbers[0] as u32,
            rkey: numbers[1] as u32,
            address: numbers[2],
        }
    }

    /// The work of the other process.
    fn play() {
        let target = Target::new(IBV_ACCESS_LOCAL_WRITE);
        // SAFETY: live objects.
        let (qpn, rkey, address) = unsafe {
            let region = &*target.region;
            ((*target.pair).qp_num, region.rkey, region.addr.addr())
        };
        let gid: Vec<_> = target.gid.raw.iter().map(u8::to_string).collect();
        println!("peer {qpn} {rkey} {address} {}", gid.join(" "));
        std::io::stdout().flush().unwrap();
        // Waits until the parent closes its end.
        let _ = std::io::stdin().read(&mut [0]);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// `--serve-unknown-peers` of the responder's host turns status 14 off.
#[test]
fn unknown_peers_are_served_if_requested() {
    for option in [None, Some("--serve-unknown-peers")] {
        // Both processes run the same body, which finds its role in the environment.
        let mut options = vec!["--profile", "efa2"];
        options.extend(option);
        on_emulated_host_with(&options, || {
            let served = std::env::var("EFA_EMU_UNKNOWN_PEERS").unwrap() == "serve";
            let outcome = if served { (0, 0) } else { (14, 11) };
            let endpoint = Endpoint::new();
            let queue = endpoint.cq(16);
            let pair = endpoint.srd(queue, ALL_OPS);
            let mut memory = [0u8; 16];
            let region = endpoint.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
            let to = sge(region, 0, 16);
            let target = Target::new(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
            // SAFETY: live objects, used as a correct program does.
            let posted = unsafe {
                let (qpn, there) = ((*target.pair).qp_num, &*target.region);
                let address = there.addr.addr() as u64;
                build(pair, 1, |builders| {
                    (*builders).wr_rdma_read.unwrap()(builders, there.rkey, address);
                    (*builders).wr_set_ud_addr.unwrap()(builders, endpoint.handle, qpn, QKEY);
                    (*builders).wr_set_sge.unwrap()(builders, to.lkey, to.addr, to.length);
                })
            };
            assert_eq!(posted, 0);
            let found = wait_for(queue, 1)[0];
            assert_eq!((found.vendor_err, found.status), outcome);
            assert_eq!(memory, [if served { 7 } else { 0 }; 16]);
        });
    }
}

#[test]
fn every_status_by_its_cause() {
    let rules = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&rules, FAULTS).unwrap();
    let rules = rules.path().to_str().unwrap();
    on_emulated_host_with(&["--profile", "efa2", "--faults", rules], || {
        if std::env::var_os(ROLE).is_some() {
            return Peer::play();
        }
        let mut memory: Vec<u8> = (0..32768).map(|byte| byte as u8).collect();
        let kept = memory.clone();
        let endpoint = Endpoint::new();
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
        let region = endpoint.register(&mut memory, access);
        let mut setup = Setup {
            endpoint,
            sends: null_mut(),
            sender: null_mut(),
            receiver: null_mut(),
            region,
            older: Peer::start("statuses::every_status_by_its_cause"),
        };
        for case in CASES {
            println!("{} {}", case.code, case.cause);
            setup.sends = setup.endpoint.cq(16);
            let (mut request, mut efa) = setup.endpoint.srd_request(setup.sends, ALL_OPS);
            setup.sender = setup.endpoint.create(&mut request, &mut efa);
            let retries = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY;
            ready_with(setup.sender, retries);
            setup.receiver = setup.endpoint.srd(setup.endpoint.cq(16), 0);
            (case.provoke)(&setup);
            let found = wait_for(setup.sends, 1)[0];
            assert_eq!(
                (found.wr_id, found.vendor_err, found.status),
                (1, case.code, case.status),
                "{}",
                case.cause
            );
            assert_eq!(ibv_destroy_qp(setup.sender), 0);
            assert_eq!(ibv_destroy_qp(setup.receiver), 0);
            assert_eq!(ibv_destroy_cq(setup.sends), 0);
        }
        let codes: Vec<u32> = CASES.iter().map(|case| case.code).collect();
        assert_eq!(codes, (0..16).chain([18]).collect::<Vec<_>>());
        assert_eq!(
            memory[..20_000],
            kept[..20_000],
            "refused reads wrote nothing"
        );
    });
}
