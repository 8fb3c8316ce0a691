//! `run` with endpoints on several hosts of an emulated cluster, which `efa-emu rsh` reaches.
//!
//! Needs `efa-emu` beside the program (`cargo build --workspace`).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use efa_check::capture::Capture;
use efa_testing::workspace::{conformance, efa_conformance, efa_emu, expect, traces};

use crate::assert_has;

/// The directory of the built programs, and then the directories of this process.
fn search_path() -> String {
    let own = conformance();
    let own = own.parent().unwrap().display().to_string();
    let others = std::env::var("PATH").unwrap_or_default();
    format!("{own}:{others}")
}

/// A command of the suite beside a cluster of `hosts` hosts that has these options.
fn suite_beside(hosts: &str, cluster: &[&str], words: &[&str]) -> Command {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let fabric = format!("hosts-{}-{number}", std::process::id());
    let mut command = efa_emu(&["cluster", hosts, "--quiet", "--fabric", &fabric]);
    command.args(cluster).arg("--");
    command.env("PATH", search_path());
    command.arg(conformance()).args(words);
    command
}

/// A command that runs traces beside a cluster of `hosts` hosts.
fn beside(hosts: &str, names: &[&str], options: &[&str]) -> Command {
    let mut command = suite_beside(hosts, &[], &["run"]);
    command.args(
        names
            .iter()
            .map(|name| traces().join(format!("{name}.pcapng"))),
    );
    command.args(options);
    command
}

/// Runs `eager-tagged` on two hosts.
fn run(options: &[&str]) -> Command {
    beside("2", &["eager-tagged"], &[&PLACES[..], options].concat())
}

/// A directory with an executable script.
fn script(text: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path: PathBuf = directory.path().join("program");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let name = path.display().to_string();
    (directory, name)
}

const NAMES: [&str; 3] = ["eager-tagged", "long-cts", "truncation"];
const PLACES: [&str; 6] = ["--at", "a=node0", "--at", "b=node1", "--rsh", "efa-emu rsh"];

#[test]
fn each_endpoint_is_played_where_it_is_told() {
    let texts = [
        "PASS  eager-tagged                     hosts efa-core as all, a at node0, b at node1: 3 packets",
        "SKIP  list                             hosts device as all: tag matching is played over",
        "3 passed, 0 codec only, 1 skipped, 0 unsupported, 0 known, 0 failed",
    ];
    let names = [&NAMES[..], &["tag-matching/list"]].concat();
    expect(beside("2", &names, &PLACES), 0, &texts);
}

/// Whether libfabric's tools find an emulated device; prints a message if not.
fn libfabric_finds_a_device() -> bool {
    let found = efa_emu(&["run", "--", "fi_info", "-p", "efa"]).output();
    let finds = found.is_ok_and(|found| found.status.success());
    if !finds {
        efa_testing::skip("fi_info finds no EFA device under efa-emu");
    }
    finds
}

#[test]
fn libfabric_plays_both_ends_across_hosts() {
    if libfabric_finds_a_device() {
        let both = [&PLACES[..], &["--dut", "libfabric"]].concat();
        let command = beside("2", &NAMES, &both);
        expect(command, 0, &["under test: libfabric 1.", "3 passed"]);
    }
}

#[test]
fn libfabric_and_engine_interoperate_across_hosts() {
    if !libfabric_finds_a_device() {
        return;
    }
    let meet = [
        &PLACES[..],
        &["--peer", "libfabric", "--device", "rdmap0s0"],
    ]
    .concat();
    let texts = [
        "peer at node1%rdmap0s0: libfabric 1.",
        "efa-core as b, a at node0%rdmap0s0, b at node1%rdmap0s0",
        "6 passed",
    ];
    expect(beside("2", &NAMES, &meet), 0, &texts);
}

/// A cluster chooses libfabric's own provider for the jobs of launchers. This does not affect a
/// provider that is named.
#[test]
fn a_named_provider_works_outside_a_cluster() {
    if !libfabric_finds_a_device() {
        return;
    }
    let plug_in = ["--dut", "libfabric", "--provider", "efa_rs"];
    let texts = ["under test: libfabric:efa_rs ", "1 passed"];
    expect(run(&plug_in), 0, &texts);
}

#[test]
fn a_foreign_program_is_driven_on_the_host() {
    let (_directory, program) = script(r#"exec efa-conformance drive core "$@""#);
    let dut = format!("exec:{program}");
    expect(run(&["--dut", &dut]), 0, &["efa-core as all", "1 passed"]);
}

#[test]
fn the_matrix_has_every_host_pair() {
    let directory = tempfile::tempdir().unwrap();
    let report = |name: &str| directory.path().join(name).display().to_string();
    let (json, junit, html) = (report("r.json"), report("r.xml"), report("r.html"));
    let hostfile = report("hosts");
    fs::write(
        &hostfile,
        "# the cluster\nnode1 slots=4\n\nnode2 # the last\n",
    )
    .unwrap();
    let options = [
        "--hosts",
        "node0",
        "--hostfile",
        &hostfile,
        "--rsh",
        "efa-emu rsh",
        "--jobs",
        "3",
        "--json",
        &json,
        "--junit",
        &junit,
        "--html",
        &html,
    ];
    let matrix = "\
            node0       node1       node2
node0       -           1 passed    1 passed
node1       -           -           1 passed
node2       -           -           -
";
    let command = beside("3", &["eager-tagged"], &options);
    expect(command, 0, &[matrix, "3 passed"]);
    let read = |path: &str| fs::read_to_string(path).unwrap();
    let value: serde_json::Value = serde_json::from_str(&read(&json)).unwrap();
    assert_eq!(
        value["pairs"][1]["places"],
        serde_json::json!(["node0", "node2"])
    );
    assert_eq!(value["pairs"][1]["summary"]["passed"], 1);
    let places = serde_json::json!({"a": "node1", "b": "node2"});
    assert_eq!(value["cases"][2]["places"], places);
    assert!(read(&junit).contains("name=\"hosts: a at node0, b at node2\""));
    let page = read(&html);
    let texts = [
        "<h2>Pairs of hosts: efa-core",
        "<td class=\"passed\">1 passed</td>",
    ];
    assert_has(&page, &texts);
    // The report is read back for pages of several runs.
    let page = report("again.html");
    expect(efa_conformance(&["report", &json, "--html", &page]), 0, &[]);
    assert!(read(&page).contains("Pairs of hosts"));
}

#[test]
fn a_third_endpoint_is_at_a_third_host() {
    let hosts = ["--hosts", "node0,node1,node2", "--rsh", "efa-emu rsh"];
    let options = [&hosts[..], &["--pairs", "ring"]].concat();
    let texts = [
        "a at node0, b at node1, c at node2: ",
        "a at node1, b at node2, c at node0: ",
        "a at node2, b at node0, c at node1: ",
        "3 passed",
    ];
    expect(beside("3", &["two-senders"], &options), 0, &texts);
    // The first of two hosts has two of the endpoints.
    let hosts = ["--hosts", "node0,node1", "--rsh", "efa-emu rsh"];
    let texts = ["a at node0, b at node1, c at node0: ", "1 passed"];
    expect(beside("2", &["two-senders"], &hosts), 0, &texts);
}

#[test]
fn each_device_of_a_host_is_a_place() {
    let options = [
        "--hosts",
        "node0,node1",
        "--device",
        "all",
        "--pairs",
        "ring",
        "--rsh",
        "efa-emu rsh",
    ];
    let mut command = beside("2", &["eager-tagged"], &options);
    // The option comes before the command of the cluster.
    let words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let mut cluster = efa_emu(&["cluster", "2", "--devices", "2"]);
    cluster.env("PATH", search_path()).args(&words[2..]);
    command = cluster;
    let printed = expect(command, 0, &["4 passed"]);
    let names: Vec<&str> = printed
        .lines()
        .filter_map(|line| line.split_once("b at node1%"))
        .map(|(_, device)| device)
        .collect();
    assert_eq!(names.len(), 2, "{printed}");
    assert_ne!(names[0], names[1], "{printed}");

    // They really are the devices that their names say: packets of the second device of one host
    // are refused.
    let faults = tempfile::NamedTempFile::new().unwrap();
    let rule = "[[fault]]\nwhen = { on = \"request\", sender = \"node1:1\" }\n\
                then = { status = \"remote-abort\" }\n";
    fs::write(faults.path(), rule).unwrap();
    let mut refused = efa_emu(&["cluster", "2", "--devices", "2", "--faults"]);
    refused.arg(faults.path()).env("PATH", search_path());
    expect(refused.args(&words[2..]), 1, &["2 passed", "2 failed"]);
}

#[test]
fn unplayable_traces_are_unsupported() {
    let names = ["releases/not-ready-eager-2.5"];
    let command = beside("2", &names, &PLACES);
    expect(command, 0, &["staged faults", "1 unsupported"]);
    let only_a = ["--at", "a=node0", "--rsh", "efa-emu rsh"];
    let texts = [
        "endpoint `b` has no place; say --at b=HOST",
        "1 unsupported",
    ];
    expect(beside("2", &["eager-tagged"], &only_a), 0, &texts);
}

#[test]
fn an_unknown_host_is_a_usage_error() {
    let options = ["--at", "a=node0", "--at", "b=node7", "--rsh", "efa-emu rsh"];
    expect(
        beside("2", &["eager-tagged"], &options),
        2,
        &[
            "cannot reach node7",
            "the hosts are node0 to node1",
            "or name another command with --rsh",
        ],
    );
    let text = "node0 has no EFA device rdmap9; it has rdmap0s0";
    expect(run(&["--device", "rdmap9"]), 2, &[text]);
    for wrong in [["--at", "a"], ["--port", "2"], ["--seeds", "1"]] {
        expect(run(&wrong), 2, &[]);
    }
}

#[test]
fn an_unfit_host_is_refused_with_the_reason() {
    let texts = [
        "node0 has no program `no-such-program`",
        "or name its path with --remote-program",
    ];
    expect(run(&["--remote-program", "no-such-program"]), 2, &texts);
    let (_directory, banner) = script("echo Welcome; exec efa-conformance \"$@\"");
    let texts = ["node0 printed `Welcome`", "~/.bashrc"];
    expect(run(&["--remote-program", &banner]), 2, &texts);
    let (_directory, other) =
        script("efa-conformance \"$@\" | sed 's/\"suite\":\"[^\"]*\"/\"suite\":\"9.9.9\"/'");
    let texts = [
        "node0 has efa-conformance 9.9.9",
        "here is efa-conformance 0.1.0",
        "or name another program of node0 with --remote-program",
    ];
    expect(run(&["--remote-program", &other]), 2, &texts);
    let (_directory, silent) = script("sleep 1000");
    let texts = [
        "node0 did not answer within 1s",
        "or give it more time with --start-time",
    ];
    let command = run(&["--remote-program", &silent, "--start-time", "1"]);
    expect(command, 2, &texts);
    let absent = ["--at", "a=x", "--at", "b=y", "--rsh", "./no-such-shell"];
    let texts = [
        "cannot start `./no-such-shell`",
        "name the command with --rsh",
    ];
    expect(beside("1", &["eager-tagged"], &absent), 2, &texts);
    // The command of a cluster runs beside the hosts, where there is no device.
    let (_directory, here) = script("shift; exec sh -c \"$1\"");
    let here = ["--at", "a=x", "--at", "b=y", "--rsh", &here];
    let command = beside("1", &["eager-tagged"], &here);
    expect(command, 2, &["x has no EFA device"]);
}

/// A recorder on an emulated host that shifts the times of `node1` by this many seconds.
fn shifting(seconds: &str) -> String {
    format!(
        "file=$1; shift\n\
         efa-emu run --quiet --host=$EFA_EMU_HOST --fabric=$EFA_EMU_FABRIC --pcap=$file.own -- \"$@\"\n\
         status=$?\n\
         case $EFA_EMU_HOST in node1) by={seconds};; *) by=0;; esac\n\
         editcap -F pcapng -t $by $file.own $file >&2\n\
         exit $status"
    )
}

/// The difference of the clocks of both hosts, as reported by a run with these options.
fn clocks(options: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("r.json").display().to_string();
    let command = run(&[&["--json", &json], options].concat());
    expect(command, 0, &[" packets judged, 1 remarks", "1 passed"]);
    let report: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let text = report["cases"][0]["findings"][0]["text"].as_str().unwrap();
    let (_, clocks) = text
        .split_once("compared with that of endpoint `a`: ")
        .unwrap();
    clocks.to_owned()
}

#[test]
fn captures_of_both_hosts_are_judged_together() {
    let own = clocks(&[]);
    assert!(own.starts_with("0."), "{own}");
    // The recorder for real devices.
    let tapped = clocks(&["--recorder", "efa-tap run -q --pcap {file} --"]);
    assert!(tapped.starts_with("0."), "{tapped}");
}

#[test]
fn captures_with_different_clocks_are_judged_together() {
    if !Command::new("editcap")
        .arg("-v")
        .output()
        .is_ok_and(|it| it.status.success())
    {
        efa_testing::skip("editcap is not installed (Debian package wireshark-common)");
        return;
    }
    for (seconds, beginnings, way) in [
        ("3600", ["3600.", "3599.9"], "ahead"),
        ("-3600", ["3600.", "3599.9"], "behind"),
        ("0.0005", ["0.00", "0.00"], ""),
    ] {
        let (_directory, recorder) = script(&shifting(seconds));
        let found = clocks(&["--recorder", &format!("{recorder} {{file}}")]);
        assert!(beginnings.iter().any(|it| found.starts_with(it)), "{found}");
        assert!(found.contains(way) && found.contains("(within "), "{found}");
    }
}

#[test]
fn without_captures_only_application_results_are_judged() {
    let text = expect(run(&["--no-captures"]), 0, &[]);
    assert!(!text.contains("packets judged"), "{text}");
    // Without a recorder the program cannot be started.
    let texts = [
        "no-such-recorder",
        "1 failed",
        "--recorder './no-such-recorder {file}'",
    ];
    expect(run(&["--recorder", "./no-such-recorder {file}"]), 1, &texts);
    expect(run(&["--recorder", "tcpdump"]), 2, &["{file}"]);
}

/// The host of the program disappears while its first completion is in flight: a packet has arrived
/// there, so the other host has sent one.
#[test]
fn a_dying_peer_fails_only_its_case() {
    let (_directory, dies) = script(
        "case \"$1 $EFA_EMU_HOST\" in place*|*node0) exec efa-conformance \"$@\";; esac\n\
         efa-conformance \"$@\" | { sed -u '/^completed/Q'; kill -KILL $$; }",
    );
    let names = ["eager-tagged", "long-cts", "truncation", "inject"];
    let kept = tempfile::tempdir().unwrap();
    let captures = kept.path().display().to_string();
    let own = ["--remote-program", &dies, "--captures", &captures];
    let options = [&PLACES[..], &own].concat();
    let texts = [
        "the connection to node1",
        "status 255",
        "node1 was not tried again: the last 3 cases ended because it was lost or silent",
        "4 failed",
        "--at a=node0 --at b=node1 --rsh 'efa-emu rsh' --remote-program",
    ];
    expect(beside("2", &names, &options), 1, &texts);
    // The captures of the other host have arrived, with the packets that it had sent by then. The
    // last case was not begun.
    for name in &names[..3] {
        let capture = kept.path().join(format!("{name}-node0-node1.pcapng"));
        let capture = capture.display().to_string();
        expect(efa_conformance(&["check", &capture]), 0, &[]);
        let printed = expect(efa_conformance(&["show", &capture]), 0, &["node0"]);
        assert!(!printed.contains("node1"), "{printed}");
    }
}

#[test]
fn a_missing_program_is_a_usage_error() {
    let options = ["--dut", "libfabric", "--libfabric", "/no/such/libfabric.so"];
    expect(run(&options), 2, &["node0", "/no/such/libfabric.so"]);
}

/// Runs cells of the interoperability table on the hosts of a cluster that has these options. Their
/// files are in the directory.
fn interop(hosts: &str, cluster: &[&str], directory: &Path, options: &[&str]) -> Command {
    let directory = directory.display().to_string();
    let words = ["interop", "--rsh", "efa-emu rsh", "--directory", &directory];
    suite_beside(hosts, cluster, &[&words, options].concat())
}

/// Whether the machine has a program; a test that needs it prints a message if not.
fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    if !found {
        efa_testing::skip(format_args!("{program} is not installed"));
    }
    found
}

const SIDES: [&str; 4] = ["--at", "a=node0", "--at", "b=node1"];

#[test]
fn stock_programs_run_across_two_hosts() {
    if !has("fi_pingpong") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("t.json").display().to_string();
    let cells = |filter, options: &[&str]| {
        let group = ["--group", "libfabric", "--filter", filter, "--json", &json];
        let options = [&SIDES[..], &group, options].concat();
        interop("2", &[], directory.path(), &options)
    };
    // A server and a client, with their output and packets.
    let texts = [
        "PASS   libfabric  1.17 fi_pingpong rdm                      a at node0, b at node1: ",
        " checked; EAGER_MSGRTM ",
        "1 passed, 0 known, 0 skipped, 0 failed",
    ];
    expect(cells("1.17 fi_pingpong rdm", &[]), 0, &texts);
    let report: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let places = serde_json::json!({"a": "node0", "b": "node1"});
    assert_eq!(report["cells"][0]["places"], places);
    // Programs with the driver protocol.
    let texts = ["a at node0, b at node1: ", "HANDSHAKE 2", "1 passed"];
    expect(cells("1.17 -> 1.17: data", &[]), 0, &texts);
    // Cells that need another device than the hosts have, or the emulator, are not run.
    let texts = [
        "SKIP   libfabric  1.17 efa0 -> 1.17 efa0: write-data",
        "this takes a device with part id 0xefa0 (efa0), and node0 has 0xefa2",
    ];
    expect(cells("1.17 efa0 -> 1.17 efa0: write-data", &[]), 0, &texts);
    let texts = ["SKIP", "the kernel's accounting of the sleeping thread"];
    expect(cells("1.17 fi_cq_sread", &[]), 0, &texts);
    // The programs really were on the two hosts: each capture comes from its host's device.
    let cell = "libfabric/1.17_fi_pingpong_rdm_at_node0_node1";
    let directory = directory.path().join(cell);
    for (side, host) in [("client", "node0"), ("server", "node1")] {
        let capture = Capture::load(&directory.join(format!("{side}.pcapng"))).unwrap();
        assert_eq!(capture.interfaces, [host]);
        assert!(capture.frames.len() > 10, "{}", capture.frames.len());
    }
    // Without a recorder there is nothing to count.
    let texts = [" checked; no frames recorded", "1 passed"];
    let command = cells("1.17 fi_pingpong rdm", &["--no-captures"]);
    expect(command, 0, &texts);
}

#[test]
fn the_table_covers_host_pairs_and_names_gaps() {
    let files = tempfile::tempdir().unwrap();
    let files = files.path();
    let pairs = ["--hosts", "node0,node1,node2", "--pairs", "ring"];
    let cell = ["--group", "rdma_core", "--filter", "ibv_ud_pingpong 44"];
    if has("ibv_ud_pingpong") {
        let texts = [
            "a at node0, b at node1: ",
            "a at node1, b at node2: ",
            "a at node2, b at node0: ",
            "3 passed, 0 known, 0 skipped, 0 failed",
        ];
        expect(
            interop("3", &[], files, &[&pairs[..], &cell].concat()),
            0,
            &texts,
        );
    }
    // Each host reports what it lacks.
    let (_directory, without) = script("PATH=/usr/sbin:/bin/nowhere; exec \"${0%/*}/own\" \"$@\"");
    let own = PathBuf::from(&without).with_file_name("own");
    std::os::unix::fs::symlink(conformance(), own).unwrap();
    let options = ["--remote-program", &without];
    let texts = [
        "SKIP",
        "node0: ibv_ud_pingpong is not installed",
        "1 skipped",
    ];
    let command = interop("2", &[], files, &[&SIDES[..], &cell, &options].concat());
    expect(command, 0, &texts);
    // The sides have names, and stock programs use the first device.
    for (wrong, text) in [
        (
            &["--at", "a=node0"][..],
            "name both with --at a=HOST --at b=HOST",
        ),
        (&["--at", "a=node0", "--at", "c=node1"], "--at b=HOST"),
        (
            &["--at", "a=node0%rdmap0s0", "--at", "b=node1"],
            "stock programs take the first EFA device",
        ),
        (
            &["--at", "a=node0", "--at", "b=node7"],
            "cannot reach node7",
        ),
        (&["--hosts", "node0"], "pairs need two hosts at least"),
    ] {
        expect(
            interop("2", &[], files, &[wrong, &cell].concat()),
            2,
            &[text],
        );
    }
}
