//! `run` and `interop` as the processes that a launcher starts on the hosts of an emulated cluster.
//!
//! Needs `efa-emu` beside the program (`cargo build --workspace`).

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use efa_testing::workspace::{conformance, efa_emu, outcome, root, traces};

/// A directory for one run, in which its ranks meet.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Returns whether this program can be started.
fn is_installed(program: &str, package: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output();
    let is_found = found.unwrap().status.success();
    if !is_found {
        efa_testing::skip(format_args!(
            "{program} is not installed (Debian package {package})"
        ));
    }
    is_found
}

/// Runs a trace on `hosts` hosts; `launcher` stands in front of the command.
fn launch(directory: &Path, hosts: &str, launcher: &[&str], options: &[&str]) -> Output {
    let trace = traces().join("eager-tagged.pcapng").display().to_string();
    launch_command(
        directory,
        hosts,
        launcher,
        &[&["run", &trace], options].concat(),
    )
}

/// Runs a command of the suite on `hosts` hosts; `launcher` stands in front of it.
fn launch_command(directory: &Path, hosts: &str, launcher: &[&str], words: &[&str]) -> Output {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let fabric = format!("ranks-{}-{number}", std::process::id());
    let mut command = efa_emu(&["cluster", hosts, "--quiet", "--fabric", &fabric, "--"]);
    command
        .current_dir(directory)
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .args(launcher)
        .arg(conformance())
        .args(words);
    command.output().unwrap()
}

#[track_caller]
fn expect(output: &Output, status: i32, texts: &[&str]) {
    let (ended, printed) = outcome(output);
    assert_eq!(ended, Some(status), "{printed}");
    for text in texts {
        assert!(printed.contains(text), "`{text}` in:\n{printed}");
    }
}

#[track_caller]
fn assert_empty(directory: &Path) {
    let left: Vec<_> = fs::read_dir(directory).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn open_mpi_starts_the_suite_on_every_pair_of_hosts() {
    if !is_installed("mpirun.openmpi", "openmpi-bin") {
        return;
    }
    let directory = directory();
    let mpirun = ["mpirun.openmpi", "-n", "3", "--map-by", "node"];
    let output = launch(directory.path(), "3", &mpirun, &["--pairs", "all"]);
    let matrix = "\
            node0       node1       node2
node0       -           1 passed    1 passed
node1       -           -           1 passed
node2       -           -           -
";
    expect(
        &output,
        0,
        &[matrix, "a at node1, b at node2: ", "3 passed"],
    );
    // Captures of all hosts have come, and the ranks that serve print nothing.
    let printed = outcome(&output).1;
    assert_eq!(printed.matches(" packets judged").count(), 3, "{printed}");
    assert_eq!(printed.matches("under test: ").count(), 1, "{printed}");
    assert_empty(directory.path());
    // A failure is that of the whole job, and the command that repeats it starts ranks.
    let options = ["--pairs", "all", "--dut", "exec:false"];
    let output = launch(directory.path(), "3", &mpirun, &options);
    expect(&output, 2, &["node0", "docs/driver.md"]);
    let options = ["--pairs", "ring", "--recorder", "./no-such-recorder {file}"];
    let output = launch(directory.path(), "3", &mpirun, &options);
    let repeat = "mpirun -n 3 --map-by node efa-conformance run ";
    expect(
        &output,
        1,
        &[
            "3 failed",
            repeat,
            "--at a=node0 --at b=node1 --under mpirun",
        ],
    );
}

/// Stock programs of the interoperability table, on the hosts of a job.
#[test]
fn open_mpi_starts_the_table_on_its_hosts() {
    if !is_installed("mpirun.openmpi", "openmpi-bin")
        || !is_installed("ibv_ud_pingpong", "ibverbs-utils")
    {
        return;
    }
    let directory = directory();
    let mpirun = ["mpirun.openmpi", "-n", "2", "--map-by", "node"];
    let cell = [
        "interop",
        "--group",
        "rdma_core",
        "--filter",
        "ibv_ud_pingpong 44",
    ];
    let on_all = [&cell[..], &["--pairs", "both"]].concat();
    let output = launch_command(directory.path(), "2", &mpirun, &on_all);
    let texts = [
        "a at node0, b at node1: ",
        "a at node1, b at node0: ",
        "2 passed, 0 known, 0 skipped, 0 failed",
    ];
    expect(&output, 0, &texts);
    assert_empty(directory.path());
    // Without a job there are no hosts.
    let alone = launch_command(directory.path(), "2", &["env"], &on_all);
    expect(
        &alone,
        2,
        &["no launcher has started this process", "--hosts"],
    );
}

#[test]
fn ranks_on_one_host_are_no_pair() {
    if !is_installed("mpirun.openmpi", "openmpi-bin") {
        return;
    }
    let directory = directory();
    let all_on_one = ["mpirun.openmpi", "-n", "2", "--host", "node0:2"];
    let output = launch(directory.path(), "2", &all_on_one, &["--pairs", "all"]);
    expect(&output, 2, &["all 2 ranks are on node0", "--map-by node"]);
    let two_on_each = ["mpirun.openmpi", "-n", "4", "--map-by", "node"];
    let options = ["--under", "mpirun", "--at", "a=node1", "--at", "b=node0"];
    let output = launch(directory.path(), "2", &two_on_each, &options);
    let texts = [
        "rank 2 does nothing: another rank is on node0 already",
        "a at node1, b at node0: ",
        "1 passed",
    ];
    expect(&output, 0, &texts);
    assert_empty(directory.path());
}

#[test]
fn mpich_starts_the_suite() {
    if !is_installed("mpiexec.hydra", "mpich") {
        return;
    }
    let directory = directory();
    let mpiexec = ["mpiexec.hydra", "-n", "2", "-ppn", "1"];
    let output = launch(directory.path(), "2", &mpiexec, &["--under", "mpirun"]);
    expect(&output, 0, &["a at node0, b at node1: ", "1 passed"]);
    assert_empty(directory.path());
}

#[test]
fn slurm_starts_the_suite() {
    // SAFETY: takes no pointers.
    if unsafe { libc::geteuid() } != 0 {
        efa_testing::skip("scripts/slurm has been tried as root only");
        return;
    }
    for (program, package) in [("srun", "slurm-client"), ("munged", "munge")] {
        if !is_installed(program, package) {
            return;
        }
    }
    let namespaces = Command::new("unshare")
        .args(["--user", "--mount", "true"])
        .status();
    if !namespaces.is_ok_and(|status| status.success()) {
        efa_testing::skip("namespaces are not permitted");
        return;
    }
    let directory = directory();
    let script = root().join("scripts/slurm").display().to_string();
    let srun = [script.as_str(), "srun", "-N", "2", "-n", "2"];
    let output = launch(directory.path(), "2", &srun, &["--pairs", "both"]);
    let texts = [
        "a at node0, b at node1: ",
        "a at node1, b at node0: ",
        "2 passed",
    ];
    expect(&output, 0, &texts);
    assert_empty(directory.path());
}

#[test]
fn what_a_launcher_did_not_do_is_told() {
    let directory = directory();
    let run = |variables: &[(&str, &str)], options: &[&str]| {
        let mut command = Command::new(conformance());
        command.arg("run").arg(traces().join("eager-tagged.pcapng"));
        command.args(options).current_dir(directory.path());
        for name in ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"] {
            command.env_remove(name);
        }
        command.envs(variables.iter().copied()).output().unwrap()
    };
    let texts = ["no launcher has started this process", "--hosts"];
    expect(&run(&[], &["--pairs", "all"]), 2, &texts);
    let one = [("PMI_RANK", "0"), ("PMI_SIZE", "1")];
    expect(&run(&one, &["--under", "mpirun"]), 2, &["one process only"]);
    let hydra = [("PMI_RANK", "0"), ("PMI_SIZE", "3")];
    expect(&run(&hydra, &["--under", "srun"]), 2, &["SLURM_PROCID"]);
    // Nobody else comes.
    let options = ["--pairs", "all", "--start-time", "1"];
    let texts = ["of 3 ranks, these did not come: 1, 2", "--rendezvous"];
    expect(&run(&hydra, &options), 2, &texts);
    let second = [("PMI_RANK", "1"), ("PMI_SIZE", "3")];
    let texts = [
        "rank 1 of 3 did not come to rank 0 within 1s",
        "--rendezvous",
    ];
    expect(&run(&second, &options), 2, &texts);
    assert_empty(directory.path());
}

/// A rank of two, each with a host name of its own; `program` is what runs on the hosts.
fn rank(directory: &Path, number: &str, program: &Path) -> Child {
    let mut command = Command::new(conformance());
    command
        .arg("run")
        .arg(traces().join("eager-tagged.pcapng"))
        .args([
            "--under",
            "mpirun",
            "--at",
            "a=node1",
            "--at",
            "b=node0",
            "--remote-program",
        ])
        .arg(program)
        .env("EFA_EMU_HOST", format!("node{number}"))
        .env("PMI_RANK", number)
        .env("PMI_SIZE", "2")
        .current_dir(directory)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn ranks_and_their_commands_end_with_a_killed_rank_0() {
    let directory = directory();
    let fifo = directory.path().join("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    // What rank 0 runs holds the fifo.
    let program = directory.path().join("program");
    let text = format!(
        "#!/bin/sh\nexec 9>{}; echo x >&9; sleep 1000; true\n",
        fifo.display()
    );
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut ranks = ["0", "1"].map(|number| rank(directory.path(), number, &program));
    let mut held = File::open(&fifo).unwrap();
    let mut byte = [0; 2];
    held.read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"x\n");
    ranks[0].kill().unwrap();
    assert!(!ranks[0].wait().unwrap().success());
    assert!(ranks[1].wait().unwrap().success());
    assert_eq!(held.read(&mut byte).unwrap(), 0);
}

/// A file of a dead job leads to a port that somebody else has by now.
#[test]
fn a_rank_runs_nothing_for_whoever_does_not_know_the_secret() {
    let directory = directory();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let meeting = directory.path().join("efa-conformance-ranks");
    fs::create_dir(&meeting).unwrap();
    let file = meeting.join("job-any");
    let address = listener.local_addr().unwrap();
    let secret = "5".repeat(64);
    let text = format!(r#"{{"address":"{address}","secret":"{secret}"}}"#);
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let mut rank = rank(directory.path(), "1", Path::new("efa-conformance"));
    for _ in 0..2 {
        let (mut stream, _) = listener.accept().unwrap();
        let mut greeting = [0; 16];
        stream.read_exact(&mut greeting).unwrap();
        // A greeting that is right, and a proof that is not.
        let answer = [&b"EFA-rnk\x01"[..], &[0; 40]].concat();
        stream.write_all(&answer).unwrap();
        // The rank says nothing more. It comes again.
        assert_eq!(stream.read(&mut greeting).unwrap_or(0), 0);
    }
    rank.kill().unwrap();
    rank.wait().unwrap();
}
