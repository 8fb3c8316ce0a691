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

fn send_some(endpoint: &Endpoint) {
    let queue = endpoint.cq(64);
    let (sender, receiver) = (endpoint.srd(queue, 0), endpoint.srd(queue, 0));
    let mut memory = [0u8; LENGTH as usize];
    let region = endpoint.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
    for _ in 0..MESSAGES {
        let mut data = [sge(region, 0, LENGTH as u32)];
        assert_eq!(post_recv(receiver, 1, &mut data.clone()), 0);
        assert_eq!(
            post_send(sender, &mut send_request(endpoint, receiver, 2, &mut data)).0,
            0
        );
        wait_for(queue, 2);
    }
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
