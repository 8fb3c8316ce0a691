//! What the device counts, as programs and users see it: in the sysfs tree and with `efa-emu stats`.

use std::ffi::c_int;
use std::fs;
use std::path::PathBuf;
use std::ptr::null_mut;

use efa_testing::patience::Wait;
use efa_testing::workspace::efa_emu;

use crate::abi::*;
use crate::on_emulated_host;
use crate::verbs::*;

/// Messages that are sent, and bytes of each.
const MESSAGES: u64 = 5;
const LENGTH: u64 = 100;

fn counter(path: &str) -> u64 {
    let root = PathBuf::from(std::env::var_os("SYSFS_PATH").expect("set by `efa-emu run`"));
    let path = root.join("class/infiniband/rdmap0s0").join(path);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let value = text
        .strip_suffix('\n')
        .expect("attributes end with a newline");
    value
        .parse()
        .unwrap_or_else(|error| panic!("{path:?}: {value:?}: {error}"))
}

/// The files follow the device at some distance.
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

/// Sends one message from a new queue pair to another each time that it is called.
fn sender(endpoint: &Endpoint) -> impl Fn() + '_ {
    let queue = endpoint.cq(64);
    let (sender, receiver) = (endpoint.srd(queue, 0), endpoint.srd(queue, 0));
    let memory = Box::leak(Box::new([0u8; LENGTH as usize]));
    let region = endpoint.register(memory, IBV_ACCESS_LOCAL_WRITE);
    move || {
        let mut data = [sge(region, 0, LENGTH as u32)];
        assert_eq!(post_recv(receiver, 1, &mut data.clone()), 0);
        assert_eq!(
            post_send(sender, &mut send_request(endpoint, receiver, 2, &mut data)).0,
            0
        );
        wait_for(queue, 2);
    }
}

fn send_some(endpoint: &Endpoint) {
    let send = sender(endpoint);
    (0..MESSAGES).for_each(|_| send());
}

#[test]
fn in_sysfs_follow_the_device_and_outlive_its_users() {
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
        // SAFETY: a live context.
        let refused =
            unsafe { ibv_create_cq(endpoint.context, c_int::MAX, null_mut(), null_mut(), 0) };
        assert!(refused.is_null());
        expect("hw_counters/create_cq_err", 1);
        expect("hw_counters/cmds_err", before + 1);

        // Another user of the device: the counts go on.
        let other = Endpoint::new();
        send_some(&other);
        expect("ports/1/hw_counters/send_wrs", 2 * MESSAGES);
        // SAFETY: live contexts; what is left of them is not used any more.
        unsafe {
            assert_eq!(ibv_close_device(endpoint.context), 0);
            assert_eq!(ibv_close_device(other.context), 0);
        }
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

/// Who reads them sees whole numbers that never go back, and what a dead process had under way does not stop
/// them.
#[test]
fn are_read_while_their_users_die() {
    on_emulated_host("efa2", || {
        const SENDS: &str = "ports/1/hw_counters/send_wrs";
        let mut last = counter(SENDS);
        for _ in 0..8 {
            // SAFETY: the child calls verbs until it is killed.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let endpoint = Endpoint::new();
                let send = sender(&endpoint);
                loop {
                    send();
                }
            }
            let (first, wait) = (last, Wait::start());
            while last < first + 3 * MESSAGES {
                let found = counter(SENDS);
                assert!(found >= last, "{found} after {last}");
                last = found;
                wait.check(|| format!("{SENDS} stays {last}"));
            }
            let mut status = 0;
            // SAFETY: our child, and a place for its status.
            unsafe {
                assert_eq!(libc::kill(child, libc::SIGKILL), 0);
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            }
            assert!(libc::WIFSIGNALED(status), "it ended by itself: {status:#x}");
        }
        // Nobody counts any more, and the device works for the next one.
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
