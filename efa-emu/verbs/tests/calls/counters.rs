//! The device's counters as programs and users see them: in the sysfs tree and with `efa-emu
//! stats`.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::ptr::null_mut;

use efa_testing::patience::Wait;
use efa_testing::workspace::efa_emu;
use serde_json::Value;

use crate::on_emulated_host;
use efa_testing::programs::Program;
use efa_testing::verbs::*;
use efa_verbs_abi::*;

/// The number of messages, and the bytes of each.
const MESSAGES: u64 = 5;
const LENGTH: u64 = 100;

/// The device's directory in the sysfs tree.
fn device_directory() -> PathBuf {
    let root = PathBuf::from(std::env::var_os("SYSFS_PATH").expect("set by `efa-emu run`"));
    root.join("class/infiniband/rdmap0s0")
}

fn counter(path: &str) -> u64 {
    let path = device_directory().join(path);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let value = text
        .strip_suffix('\n')
        .expect("attributes end with a newline");
    value
        .parse()
        .unwrap_or_else(|error| panic!("{path:?}: {value:?}: {error}"))
}

/// The files follow the device with a delay.
fn expect(path: &str, expected: u64) {
    let wait = Wait::start();
    loop {
        let found = counter(path);
        if found == expected {
            return;
        }
        assert!(found < expected, "{path}: {found} instead of {expected}");
        wait.pause(|| format!("{path}: {found} instead of {expected}"));
    }
}

/// Returns a function that sends one message from a new queue pair to another.
fn sender(endpoint: &Endpoint) -> impl Fn() + '_ {
    let queue = endpoint.cq(64);
    let (sender, receiver) = (endpoint.srd(queue, 0), endpoint.srd(queue, 0));
    let memory = Box::leak(Box::new([0u8; LENGTH as usize]));
    let region = endpoint.register(memory, IBV_ACCESS_LOCAL_WRITE);
    move || {
        let mut data = [sge(region, 0, LENGTH as u32)];
        assert_eq!(post_recv(receiver, 1, &mut data.clone()), 0);
        send(endpoint, sender, receiver, 2, &mut data);
        wait_for(queue, 2);
    }
}

fn send_some(endpoint: &Endpoint) {
    let send = sender(endpoint);
    (0..MESSAGES).for_each(|_| send());
}

/// The files of Linux for an EFA device: the statistics of the driver
/// (`drivers/infiniband/hw/efa/efa_verbs.c`), and the lifetime of values from the kernel's core.
const OF_DEVICE: &str = "\
    alloc_pd_err alloc_ucontext_err cmds_err completed_cmds create_ah_err create_cq_err \
    create_qp_err keep_alive_rcvd lifespan mmap_err no_completion_cmds reg_mr_err \
    submitted_cmds";
const OF_PORT: &str = "\
    impaired_remote_conn_events lifespan rdma_read_bytes rdma_read_resp_bytes rdma_read_wr_err \
    rdma_read_wrs rdma_write_bytes rdma_write_recv_bytes rdma_write_wr_err rdma_write_wrs \
    recv_bytes recv_wrs retrans_bytes retrans_pkts retrans_timeout_events rx_bytes rx_drops \
    rx_pkts send_bytes send_wrs tx_bytes tx_pkts unresponsive_remote_events";

#[test]
fn have_the_names_that_the_driver_gives_them() {
    on_emulated_host("efa0", || {
        for (directory, expected) in [("hw_counters", OF_DEVICE), ("ports/1/hw_counters", OF_PORT)]
        {
            let entries = fs::read_dir(device_directory().join(directory)).unwrap();
            let mut names: Vec<_> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort_unstable();
            assert_eq!(names.join(" "), expected, "{directory}");
        }
    });
}

#[test]
fn in_sysfs_follow_and_outlive_their_users() {
    on_emulated_host("efa2", || {
        assert_eq!(counter("ports/1/hw_counters/send_wrs"), 0);
        assert_eq!(counter("hw_counters/lifespan"), 10);
        let endpoint = Endpoint::new();
        send_some(&endpoint);
        expect("ports/1/hw_counters/send_wrs", MESSAGES);
        expect("ports/1/hw_counters/recv_bytes", MESSAGES * LENGTH);
        assert_eq!(counter("ports/1/hw_counters/rdma_read_wrs"), 0);

        // A command that the device refuses: no completion queue is that long.
        let before = counter("hw_counters/cmds_err");
        let refused = ibv_create_cq(endpoint.context, c_int::MAX, null_mut(), null_mut(), 0);
        assert!(refused.is_null());
        expect("hw_counters/create_cq_err", 1);
        expect("hw_counters/cmds_err", before + 1);

        // Another user of the device: the counts go on.
        let other = Endpoint::new();
        send_some(&other);
        expect("ports/1/hw_counters/send_wrs", 2 * MESSAGES);
        assert_eq!(ibv_close_device(endpoint.context), 0);
        assert_eq!(ibv_close_device(other.context), 0);

        send_some(&Endpoint::new());
        expect("ports/1/hw_counters/recv_wrs", 3 * MESSAGES);
    });
}

#[test]
fn are_shown_by_efa_emu_stats() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        send_some(&endpoint);
        let fabric = std::env::var("EFA_EMU_FABRIC").expect("set by `efa-emu run`");
        let stats = |options: &[&str]| {
            let output = efa_emu(&["stats", "--fabric", &fabric])
                .args(options)
                .output()
                .unwrap();
            (
                output.status.code(),
                String::from_utf8(output.stdout).unwrap(),
            )
        };
        let (status, json) = stats(&["--json"]);
        assert_eq!(status, Some(0));
        assert!(json.contains("\"send_wrs\": 5"), "{json}");
        assert!(json.contains("\"recv_bytes\": 500"), "{json}");
        assert!(json.contains("\"rdma_write_wrs\": 0"), "{json}");
        let (_, table) = stats(&[]);
        let words: Vec<_> = table.split_whitespace().collect();
        assert!(
            words.windows(2).any(|pair| pair == ["send_bytes", "500"]),
            "{table}"
        );
        assert!(
            !table.contains("rdma_write_wrs"),
            "what is zero is left out: {table}"
        );
        assert_eq!(stats(&["--host", "nobody"]).0, Some(2));
    });
}

/// `IBV_WC_RNR_RETRY_EXC_ERR`
const RNR_RETRY_EXCEEDED: c_int = 13;

/// More messages of 4 KiB than the network holds for a receiver that does not poll.
const MANY: u32 = 2048;

/// An SRD queue pair without retries when the receiver is not ready, with room for many sends.
fn impatient(endpoint: &Endpoint, queue: *mut ibv_cq) -> *mut ibv_qp {
    let (mut attributes, mut efa) = endpoint.srd_request(queue, 0);
    attributes.cap.max_send_wr = MANY;
    let pair = endpoint.create(&mut attributes, &mut efa);
    ready_with(pair, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY);
    pair
}

/// Sends to a queue pair that has posted no receive.
fn provoke_refusal(endpoint: &Endpoint, data: ibv_sge) {
    let queue = endpoint.cq(64);
    let (sender, receiver) = (impatient(endpoint, queue), endpoint.srd(queue, 0));
    send(endpoint, sender, receiver, 1, &mut [data]);
    assert_eq!(wait_for(queue, 1)[0].status, RNR_RETRY_EXCEEDED);
}

/// Completes twice as many sends as their completion queue holds; returns the number of lost
/// completions.
fn provoke_overrun(endpoint: &Endpoint, data: ibv_sge) -> u64 {
    let (small, large) = (endpoint.cq(4), endpoint.cq(256));
    let (sender, receiver) = (endpoint.srd(small, 0), endpoint.srd(large, 0));
    // SAFETY: a live queue.
    let held = unsafe { (*small).cqe } as u64;
    for wr_id in 0..2 * held {
        assert_eq!(post_recv(receiver, wr_id, &mut [data]), 0);
        send(endpoint, sender, receiver, wr_id, &mut [data]);
    }
    wait_for(large, 2 * held as usize);
    held
}

/// A process on this host with a queue pair, without traffic.
struct IdleProcess {
    process: Child,
    qpn: u32,
}

impl IdleProcess {
    /// Started before this process opens a device: the child opens one of its own.
    fn start() -> IdleProcess {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let process = fork(|| {
            let endpoint = Endpoint::new();
            let pair = endpoint.srd(endpoint.cq(64), 0);
            // SAFETY: a live queue pair.
            let qpn = unsafe { (*pair).qp_num };
            writer.write_all(&qpn.to_ne_bytes()).unwrap();
            loop {
                std::thread::park();
            }
        });
        let mut qpn = [0; 4];
        reader.read_exact(&mut qpn).unwrap();
        IdleProcess {
            process,
            qpn: u32::from_ne_bytes(qpn),
        }
    }

    /// Stops the process, so that its device processes no requests.
    fn stop(&self) {
        let mut status = 0;
        // SAFETY: our child, and a place for its status.
        unsafe {
            assert_eq!(libc::kill(self.process.0, libc::SIGSTOP), 0);
            let stopped = libc::waitpid(self.process.0, &raw mut status, libc::WUNTRACED);
            assert_eq!(stopped, self.process.0);
        }
        assert!(libc::WIFSTOPPED(status), "{status:#x}");
    }
}

/// Sends more to a stopped process than the queue to it holds.
fn provoke_full_queue(endpoint: &Endpoint, data: ibv_sge, idler: &IdleProcess) {
    idler.stop();
    let sender = impatient(endpoint, endpoint.cq(MANY as c_int));
    for wr_id in 0..MANY.into() {
        let mut request = send_request(endpoint, sender, wr_id, &mut [data]);
        request.ud.remote_qpn = idler.qpn;
        assert_eq!(post_send(sender, &mut request).0, 0);
    }
}

/// The growth of each counter in the output of `efa-emu stats --follow`.
fn growth(printed: &str) -> BTreeMap<String, u64> {
    let mut growth = BTreeMap::new();
    for line in printed.lines() {
        // The last line may not be whole yet.
        if let [_, name, value] = line.split_whitespace().collect::<Vec<_>>()[..] {
            *growth.entry(name.to_owned()).or_default() += value.parse::<u64>().unwrap();
        }
    }
    growth
}

/// Events that a real device counts, too: receivers that are not ready, completion queues that are
/// too short, peers that are too slow.
#[test]
fn of_trouble_are_shown_by_ps_and_stats() {
    on_emulated_host("efa2", || {
        let idler = IdleProcess::start();
        let fabric = std::env::var("EFA_EMU_FABRIC").expect("set by `efa-emu run`");
        let emulator = |words: &[&str]| {
            let mut command = efa_emu(&[words[0], "--fabric", &fabric]);
            command.args(&words[1..]);
            Program::start(command)
        };
        let follower = emulator(&["stats", "--follow", "--interval", "50ms"]);
        let endpoint = Endpoint::new();
        let wait = Wait::start();
        // The command prints the growth since its first sample.
        while growth(&follower.printed()).is_empty() {
            send_some(&endpoint);
            wait.pause(|| "stats --follow prints nothing".to_owned());
        }
        assert!(!emulator(&["ps"]).wait().stdout.contains("rnr_refusals"));

        let memory = Box::leak(Box::new([0u8; 4096]));
        let data = sge(endpoint.register(memory, IBV_ACCESS_LOCAL_WRITE), 0, 4096);
        provoke_refusal(&endpoint, data);
        let lost = provoke_overrun(&endpoint, data);
        provoke_full_queue(&endpoint, data, &idler);

        let expected = [("cq_overruns", lost), ("rnr_refusals", 1)];
        let is_all = |of: &dyn Fn(&str) -> u64| {
            expected.iter().all(|(name, value)| of(name) == *value) && of("full_queues") > 0
        };
        let wait = Wait::start();
        loop {
            let printed = emulator(&["stats", "--json"]).wait().stdout;
            let devices: Value = serde_json::from_str(&printed).unwrap();
            if is_all(&|name| devices[0]["diagnostics"][name].as_u64().unwrap()) {
                break;
            }
            wait.pause(|| format!("{expected:?}: {printed}"));
        }
        let listed = emulator(&["ps"]).wait().stdout;
        let line = format!("cq_overruns {lost}, rnr_refusals 1, full_queues ");
        let full = listed.split_once(&line).map(|(_, rest)| rest.trim_end());
        assert!(
            full.is_some_and(|full| full.parse::<u64>().unwrap() > 0),
            "{listed}"
        );
        let is_followed = |printed: &str| {
            let growth = growth(printed);
            is_all(&|name| growth.get(name).copied().unwrap_or(0))
        };
        follower.wait_for_output(is_followed);
    });
}

/// Readers see whole numbers that never decrease, and the unfinished update of a dead process does
/// not block them.
#[test]
fn are_read_while_their_users_die() {
    on_emulated_host("efa2", || {
        const SENDS: &str = "ports/1/hw_counters/send_wrs";
        let mut last = counter(SENDS);
        for _ in 0..8 {
            let child = fork(|| {
                let endpoint = Endpoint::new();
                let send = sender(&endpoint);
                loop {
                    send();
                }
            });
            let (first, wait) = (last, Wait::start());
            while last < first + 3 * MESSAGES {
                let found = counter(SENDS);
                assert!(found >= last, "{found} after {last}");
                last = found;
                wait.check(|| format!("{SENDS} stays {last}"));
            }
            let status = child.kill();
            assert!(libc::WIFSIGNALED(status), "it ended by itself: {status:#x}");
        }
        // No other process counts any more, and the device serves the next one.
        let wait = Wait::start();
        let mut before = counter(SENDS);
        loop {
            std::thread::sleep(std::time::Duration::from_secs(1));
            let now = counter(SENDS);
            if now == before {
                break;
            }
            before = now;
            wait.check(|| "somebody counts".into());
        }
        send_some(&Endpoint::new());
        expect(SENDS, before + MESSAGES);
    });
}
