//! Stock perftest over the emulated device.
//!
//! These programs are linked to the providers of other vendors' devices, which need rdma-core's
//! private symbols: `efa-emu run` preloads rdma-core's own library after the emulated one.

use efa_testing::programs::{Dialogue, TestFabric, needs, words};

/// Runs a benchmark between two hosts, if it is installed.
#[track_caller]
fn between_two_hosts(line: &str, profile: &str) {
    let arguments = &words(line);
    needs!(arguments[0], "perftest");
    let fabric = TestFabric::new();
    let options = ["--profile", profile];
    let [_, client] = Dialogue::new(&fabric, arguments, "-p", "-p").run(&options, &options);
    assert!(
        client.stdout.contains("#bytes"),
        "no results in\n{}",
        client.stdout
    );
}

#[test]
fn send_over_srd() {
    between_two_hosts("ib_send_lat -c SRD -x 0 -n 100", "efa2");
    between_two_hosts("ib_send_bw -c SRD -x 0 -n 300", "efa2");
    between_two_hosts("ib_send_bw -c SRD -x 0 -n 100 -b -q 4", "efa2");
}

#[test]
fn send_over_ud() {
    between_two_hosts("ib_send_lat -c UD -x 0 -n 100", "efa2");
    // Without CQ moderation, which posts unsignaled requests that the device refuses.
    between_two_hosts("ib_send_bw -c UD -x 0 -Q 1 -n 300", "efa2");
}

/// Version 4.5 supports the builders' RDMA reads only for the part ids 0xefa0 and 0xefa1.
#[test]
fn read_over_srd() {
    between_two_hosts("ib_read_lat -c SRD -x 0 -n 100", "efa1");
    between_two_hosts("ib_read_bw -c SRD -x 0 -n 300", "efa1");
}

/// With inline data, which it supports for the same part ids.
#[test]
fn inline_send_over_srd() {
    between_two_hosts("ib_send_lat -c SRD -x 0 -n 100 -I 32", "efa1");
}
