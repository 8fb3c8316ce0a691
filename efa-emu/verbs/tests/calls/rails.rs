//! Hosts with several devices.

use std::collections::HashSet;
use std::ffi::CStr;

use efa_testing::patience::Wait;

use crate::exchange::{ALL_OPS, build};
use crate::on_emulated_host_with;
use efa_testing::verbs::*;
use efa_verbs_abi::*;

/// Names and GUIDs of the devices, in the order of the list.
fn listed() -> Vec<(String, u64)> {
    let mut count = 0;
    // SAFETY: as a C program does it.
    unsafe {
        let list = ibv_get_device_list(&raw mut count);
        assert!(
            (*list.add(count as usize)).is_null(),
            "null behind the last"
        );
        let devices = (0..count as usize).map(|index| {
            let device = *list.add(index);
            let name = CStr::from_ptr(ibv_get_device_name(device));
            (
                name.to_str().unwrap().to_owned(),
                ibv_get_device_guid(device),
            )
        });
        let devices = devices.collect();
        ibv_free_device_list(list);
        devices
    }
}

#[test]
fn have_separate_names_guids_and_nodes() {
    on_emulated_host_with(&["--devices", "32"], || {
        let devices = listed();
        assert_eq!(devices.len(), 32);
        assert_eq!(devices[0].0, "rdmap16s27");
        assert_eq!(devices[31].0, "rdmap140s27");
        let names: HashSet<_> = devices.iter().map(|(name, _)| name).collect();
        let guids: HashSet<_> = devices.iter().map(|(_, guid)| guid).collect();
        assert_eq!((names.len(), guids.len()), (32, 32));
        for (path, is_there) in [
            (c"/dev/infiniband/uverbs0", true),
            (c"/dev/infiniband/uverbs31", true),
            (c"/dev/infiniband/uverbs32", false),
            (c"/dev/infiniband/uverbs031", false),
            (c"/dev/infiniband/uverbs", false),
        ] {
            // SAFETY: all zeros are a valid value.
            let mut status: libc::stat = unsafe { std::mem::zeroed() };
            // SAFETY: a C string and a structure.
            let result = unsafe { libc::stat(path.as_ptr(), &raw mut status) };
            assert_eq!(result == 0, is_there, "{path:?}");
        }
    });
}

/// A rail of this process: an endpoint with a queue pair and memory that every peer may read and
/// write.
struct Rail {
    endpoint: Endpoint,
    queue: *mut ibv_cq,
    pair: *mut ibv_qp,
    region: *mut ibv_mr,
    memory: Box<[u64]>,
}

impl Rail {
    fn new(index: usize, words: usize) -> Rail {
        let endpoint = Endpoint::number(index);
        let queue = endpoint.cq(256);
        let pair = endpoint.srd(queue, ALL_OPS);
        let mut memory = vec![0; words].into_boxed_slice();
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
        let region = endpoint.register(&mut memory, access);
        Rail {
            endpoint,
            queue,
            pair,
            region,
            memory,
        }
    }
}

/// The numbers of completed sends and receives of each rail.
struct Completed {
    sends: Vec<usize>,
    receives: Vec<usize>,
}

impl Completed {
    fn new(rails: usize) -> Completed {
        Completed {
            sends: vec![0; rails],
            receives: vec![0; rails],
        }
    }

    /// Polls all rails until `enough`. All completions must be successes.
    fn poll(&mut self, rails: &[Rail], enough: impl Fn(&Completed) -> bool) {
        const RECEIVED: u32 = 1 << 7;
        let wait = Wait::start();
        while !enough(self) {
            for (index, rail) in rails.iter().enumerate() {
                let mut completions = [ibv_wc::default(); 16];
                let new = poll(rail.queue, &mut completions);
                for completion in &completions[..new as usize] {
                    assert_eq!(completion.status, 0, "request {}", completion.wr_id);
                    let is_receive = completion.opcode as u32 & RECEIVED != 0;
                    let counts = if is_receive {
                        &mut self.receives
                    } else {
                        &mut self.sends
                    };
                    counts[index] += 1;
                }
            }
            wait.check(|| format!("{:?} sends, {:?} receives", self.sends, self.receives));
        }
    }
}

/// As in programs that stripe their data over all rails: every device sends to every device, itself
/// included, and reads and writes its memory.
#[test]
fn reach_each_other() {
    const RAILS: usize = 8;
    on_emulated_host_with(&["--devices", "8"], || {
        // The memory of a rail: a word that each other rail writes, a word that it reads from each
        // other rail, and its own word, which it sends and writes, and which the others read.
        let rails = (0..RAILS).map(|index| Rail::new(index, 2 * RAILS + 1));
        let mut rails: Vec<_> = rails.collect();
        for (index, rail) in rails.iter_mut().enumerate() {
            rail.memory[2 * RAILS] = 1000 + index as u64;
        }
        let gids: HashSet<_> = rails.iter().map(|rail| rail.endpoint.gid.raw).collect();
        assert_eq!(gids.len(), RAILS);

        let mut inbox = vec![[0u64; RAILS]; RAILS];
        let regions: Vec<_> = rails
            .iter()
            .zip(&mut inbox)
            .map(|(rail, inbox)| rail.endpoint.register(inbox, IBV_ACCESS_LOCAL_WRITE))
            .collect();
        for (rail, region) in rails.iter().zip(&regions) {
            for number in 0..RAILS {
                let mut list = [sge(*region, 8 * number, 8)];
                assert_eq!(post_recv(rail.pair, number as u64, &mut list), 0);
            }
        }
        // The device serves RDMA only for peers of which it has an address handle.
        let handles = rails.iter().map(|from| {
            let handles = rails
                .iter()
                .map(|to| handle_of(from.endpoint.pd, to.endpoint.gid));
            handles.collect::<Vec<_>>()
        });
        let handles: Vec<_> = handles.collect();
        let word = 8u32;
        let mut completed = Completed::new(RAILS);
        for (number, from) in rails.iter().enumerate() {
            for (other, to) in rails.iter().enumerate() {
                let handle = handles[number][other];
                let mut list = [sge(from.region, 8 * 2 * RAILS, word)];
                let mut request = send_request(&from.endpoint, to.pair, other as u64, &mut list);
                request.ud.ah = handle;
                assert_eq!(post_send(from.pair, &mut request).0, 0);
                // SAFETY: live objects, and the session of a correct program.
                unsafe {
                    let (rkey, base) = ((*to.region).rkey, (*to.region).addr.addr() as u64);
                    let (lkey, own) = ((*from.region).lkey, (*from.region).addr.addr() as u64);
                    let last = 8 * 2 * RAILS as u64;
                    build(from.pair, 100, |builders| {
                        let to = (*to.pair).qp_num;
                        (*builders).wr_rdma_write.unwrap()(
                            builders,
                            rkey,
                            base + 8 * number as u64,
                        );
                        (*builders).wr_set_ud_addr.unwrap()(builders, handle, to, QKEY);
                        (*builders).wr_set_sge.unwrap()(builders, lkey, own + last, word);
                        (*builders).wr_id = 200;
                        (*builders).wr_rdma_read.unwrap()(builders, rkey, base + last);
                        (*builders).wr_set_ud_addr.unwrap()(builders, handle, to, QKEY);
                        let into = own + 8 * (RAILS + other) as u64;
                        (*builders).wr_set_sge.unwrap()(builders, lkey, into, word);
                    });
                }
                // The send queue has room for 16.
                completed.poll(&rails, |completed| {
                    completed.sends[number] == 3 * (other + 1)
                });
            }
        }
        completed.poll(&rails, |completed| completed.receives == [RAILS; RAILS]);
        for rail in &rails {
            let written: Vec<_> = rail.memory[..RAILS].to_vec();
            let read = &rail.memory[RAILS..2 * RAILS];
            let expected: Vec<_> = (0..RAILS as u64).map(|index| 1000 + index).collect();
            assert_eq!((written, read), (expected.clone(), &expected[..]));
        }
        for inbox in &mut inbox {
            inbox.sort_unstable();
            assert_eq!(inbox[..], (1000..1000 + RAILS as u64).collect::<Vec<_>>());
        }
        for rail in &rails {
            assert_eq!(ibv_close_device(rail.endpoint.context), 0);
        }
    });
}

/// A fault is staged on one device; the other devices work.
#[test]
fn are_affected_only_by_their_rules() {
    let rules = tempfile::NamedTempFile::new().unwrap();
    let rule = "[[fault]]\nwhen = { on = \"registration\", host = \"alpha:1\" }\nthen = { fail = \"ENOMEM\" }\n";
    std::fs::write(rules.path(), rule).unwrap();
    let file = rules.path().to_str().unwrap();
    let options = ["--host", "alpha", "--devices", "3", "--faults", file];
    on_emulated_host_with(&options, || {
        for index in 0..3 {
            let endpoint = Endpoint::number(index);
            let mut memory = [0u8; 64];
            let address = memory.as_mut_ptr().cast();
            let region = ibv_reg_mr(endpoint.pd, address, 64, 1);
            match index {
                1 => expect_null(region, libc::ENOMEM, "registration"),
                _ => assert!(!region.is_null(), "errno {}", errno()),
            }
        }
    });
}

/// A number of `/proc/self/status`, such as the resident memory in KiB.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The bytes that a queue pair with 16 sends and receives may use, and the descriptors that a
/// device may use.
const BYTES_OF_A_QUEUE_PAIR: u64 = 16 << 10;
const DESCRIPTORS_OF_A_DEVICE: usize = 16;

#[test]
fn have_a_thousand_queue_pairs_each() {
    const DEVICES: usize = 32;
    const PAIRS: u64 = 1000;
    on_emulated_host_with(&["--devices", "32"], || {
        let before = (status("VmRSS:"), descriptors());
        let endpoints: Vec<_> = (0..DEVICES).map(Endpoint::number).collect();
        let opened = (status("VmRSS:"), descriptors());
        let mut pairs = Vec::new();
        for endpoint in &endpoints {
            let queue = endpoint.cq(64);
            pairs.extend((0..PAIRS).map(|_| (endpoint, queue, endpoint.srd(queue, 0))));
        }
        let full = (status("VmRSS:"), descriptors());
        println!(
            "before {before:?}, opened {opened:?}, with queue pairs {full:?} (KiB, descriptors)"
        );
        let of_pairs = (full.0 - opened.0) * 1024 / (DEVICES as u64 * PAIRS);
        assert!(of_pairs < BYTES_OF_A_QUEUE_PAIR, "{of_pairs} bytes each");
        assert_eq!(full.1, opened.1, "queue pairs take no descriptors");
        let of_device = (opened.1 - before.1).div_ceil(DEVICES);
        assert!(of_device < DESCRIPTORS_OF_A_DEVICE, "{of_device} each");

        // The last queue pair of one device sends to the last queue pair of each.
        let mut word = [7u8; 8];
        let (from, queue, sender) = pairs[PAIRS as usize - 1];
        let region = from.register(&mut word, IBV_ACCESS_LOCAL_WRITE);
        for (to, its_queue, receiver) in pairs
            .chunks(PAIRS as usize)
            .map(|all| all[PAIRS as usize - 2])
        {
            assert_eq!(post_recv(receiver, 1, &mut []), 0);
            let mut list = [sge(region, 0, 0)];
            let mut request = send_request(from, receiver, 2, &mut list);
            request.ud.ah = handle_of(from.pd, to.gid);
            assert_eq!(post_send(sender, &mut request).0, 0);
            let count = if its_queue == queue { 2 } else { 1 };
            assert!(
                wait_for(queue, count)
                    .iter()
                    .all(|completion| completion.status == 0)
            );
            if its_queue != queue {
                assert_eq!(wait_for(its_queue, 1)[0].status, 0);
            }
        }
        // Destroying them releases their memory and descriptors.
        for endpoint in &endpoints {
            assert_eq!(ibv_close_device(endpoint.context), 0);
        }
        assert!(
            descriptors() <= before.1 + 1,
            "{} descriptors",
            descriptors()
        );
    });
}
