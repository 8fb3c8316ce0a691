//! Stock libfabric's `fi_pingpong` over the emulated device. The cells of `efa-conformance interop`
//! run it with each release and each generation of the device.

use std::path::Path;

use efa_testing::patience::Wait;
use efa_testing::programs::{
    Dialogue, Finished, NO_FOREIGN_HANDLER, TestFabric, files_with, needs, words,
};
use efa_testing::workspace::userland;

const PACKAGE: &str = "libfabric-bin";

/// The sizes in the table that `fi_pingpong` prints.
fn sizes(outcome: &Finished) -> Vec<&str> {
    outcome
        .stdout
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|first| *first != "bytes")
        .collect()
}

const ALL_SIZES: [&str; 6] = ["64", "256", "1k", "4k", "64k", "1m"];

/// Both sides of the program verify messages of these sizes.
fn verifies_its_data(program: &[&str], expected: &[&str]) {
    let fabric = TestFabric::new();
    let [server, client] = Dialogue::new(&fabric, program, "-B", "-P").run(&[], &[]);
    assert_eq!(sizes(&server), expected);
    assert_eq!(sizes(&client), expected);
}

#[test]
fn pingpong_verifies_its_data() {
    needs!("fi_pingpong", PACKAGE);
    verifies_its_data(&["fi_pingpong", "-p", "efa", "-e", "rdm", "-c"], &ALL_SIZES);
}

/// libfabric 2.1: earlier releases crash by chance (docs/findings.md, 17).
#[test]
fn pingpong_verifies_its_datagrams() {
    let Some(userland) = userland("debian13") else {
        return;
    };
    let runner = userland.join("run").display().to_string();
    let program = [
        &*runner,
        "fi_pingpong",
        "-p",
        "efa",
        "-f",
        "efa",
        "-e",
        "dgram",
        "-c",
    ];
    // The default sizes that fit the MTU.
    verifies_its_data(&program, &ALL_SIZES[..4]);
}

/// Two processes of one host: libfabric uses shared memory between them unless that is disabled,
/// and then both use the device with one GID.
#[test]
fn pingpong_within_one_host() {
    needs!("fi_pingpong", PACKAGE);
    let fabric = TestFabric::new();
    let options = ["--host", "alpha"];
    Dialogue::pingpong(&fabric, "-c").run(&options, &options);
    let mut over_device = Dialogue::pingpong(&fabric, "-c");
    over_device.environment = &[("FI_EFA_ENABLE_SHM_TRANSFER", "0")];
    over_device.run(&options, &options);
}

/// Delays, many paths, loss below the reliability layer, receivers that are not ready, reused
/// numbers: the data arrives nevertheless.
#[test]
fn pingpong_over_a_bad_network() {
    needs!("fi_pingpong", PACKAGE);
    let fabric = TestFabric::new();
    let options = words(
        "--seed 7 --latency 20us --jitter 50us --paths 8 --loss 0.01 --rnr 0.01 --qpn-reuse lowest",
    );
    let dialogue = Dialogue::pingpong(&fabric, "-c -I 5");
    let [_, client] = dialogue.run(&options, &options);
    assert_eq!(sizes(&client), ALL_SIZES);
}

/// Hosts with GIDs of their own, derived from the names, that no other test uses.
const SERVER: &str = "killing-server";
const CLIENT: &str = "killing-client";

/// Kills one side in the middle of a transfer. The other side may fail or wait forever, as the
/// application decides, but it can be ended; then a new pair works and nothing is left.
#[test]
fn a_killed_side_leaves_nothing_behind() {
    needs!("fi_pingpong", PACKAGE);
    let fabric = TestFabric::new();
    for kill_client in [true, false] {
        let mut long = Dialogue::pingpong(&fabric, "-I 100000000 -S 65536");
        long.environment = &NO_FOREIGN_HANDLER;
        let server = long.server(&["--host", SERVER]);
        let client = long.client(&["--host", CLIENT]);
        let gids = wait_for_traffic(&fabric);
        let (killed, survivor) = match kill_client {
            true => (client, server),
            false => (server, client),
        };
        // SAFETY: takes no pointers; the process is a live child of a live child.
        unsafe { libc::kill(killed.inner_id(), libc::SIGKILL) };
        assert_eq!(killed.wait().code(), 137, "the program's fate is reported");
        survivor.signal(libc::SIGTERM);
        survivor.wait();
        Dialogue::pingpong(&fabric, "-c -I 3").run(&[], &[]);
        assert_eq!(fabric.ps().lines().count(), 1, "{}", fabric.ps());
        for gid in gids {
            let objects = files_with(Path::new("/dev/shm"), &gid);
            assert_eq!(
                objects, [""; 0],
                "libfabric's own shared memory is gone, too"
            );
        }
    }
    assert!(!fabric.directory().exists());
}

/// Waits until both sides have a queue pair in the fabric, and then a little, so that data flows.
/// Returns the sides' GIDs.
fn wait_for_traffic(fabric: &TestFabric) -> Vec<String> {
    let wait = Wait::start();
    loop {
        let gids = fabric.gids_with_queue_pairs();
        if gids.len() == 2 {
            std::thread::sleep(std::time::Duration::from_millis(200));
            return gids;
        }
        wait.pause(|| format!("no traffic:\n{}", fabric.ps()));
    }
}

/// The output of `fi_pingpong` on standard error with `variable`, with receivers that are often not
/// ready.
fn shown_with(variable: &str) -> String {
    let fabric = TestFabric::new();
    // A request fails after four refusals: one of 16, whatever happens to the others. Then
    // libfabric repeats it, if the program gives it time. After the last message of a size,
    // fi_pingpong waits for its peer on a socket only, so that message must not be short enough to
    // be injected.
    let program = format!("env {variable} fi_pingpong -p efa -e rdm -S 4096 -I 300");
    let options = ["--rnr", "0.5"];
    let [_, client] = Dialogue::new(&fabric, &words(&program), "-B", "-P").run(&options, &options);
    assert_eq!(sizes(&client), ["4k"]);
    client.stderr
}

#[test]
fn stock_programs_show_decisions_of_the_device() {
    needs!("fi_pingpong", PACKAGE);
    let lines = shown_with("EFA_LOG=efa_device_model=debug");
    for expected in [
        ": queue pair made gid=fe80:",
        ": address handle made ahn=",
        "status=RemoteRnr",
    ] {
        assert!(lines.contains(expected), "{expected} is not in\n{lines}");
    }
    assert_eq!(shown_with("EFA_LOG="), "");
}

#[test]
fn a_bad_log_directive_is_reported_and_harmless() {
    needs!("fi_pingpong", PACKAGE);
    let shown = shown_with("EFA_LOG=efa_shm=loud");
    assert!(
        shown.starts_with("efa: EFA_LOG: invalid directive `efa_shm=loud`: use a level"),
        "{shown:?}"
    );
    assert_eq!(shown.lines().count(), 1, "{shown:?}");
}
