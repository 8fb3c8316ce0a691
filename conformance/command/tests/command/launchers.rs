//! `run` and `interop` on the hosts of parallel jobs, reached by a launcher; the hosts belong to an
//! emulated cluster.
//!
//! Needs `efa-emu` beside the program (`cargo build --workspace`).

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use efa_testing::workspace::{conformance, efa_emu, expect, root, traces};

/// Open MPI as a command that takes ssh's arguments.
const OPEN_MPI: &str = "mpirun.openmpi -n 1 --host";

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

/// A command of the suite on `hosts` hosts, after the words of `launcher`.
fn launch(hosts: &str, launcher: &[&str], words: &[&str]) -> Command {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let fabric = format!("launchers-{}-{number}", std::process::id());
    let mut command = efa_emu(&["cluster", hosts, "--quiet", "--fabric", &fabric, "--"]);
    command.args(launcher).arg(conformance()).args(words);
    command
}

fn trace() -> String {
    traces().join("eager-tagged.pcapng").display().to_string()
}

#[test]
fn open_mpi_reaches_every_pair_of_hosts() {
    if !is_installed("mpirun.openmpi", "openmpi-bin") {
        return;
    }
    let hosts = ["--hosts", "node0,node1,node2", "--rsh", OPEN_MPI];
    let command = launch("3", &[], &[&["run", &trace()], &hosts[..]].concat());
    let matrix = "\
            node0       node1       node2
node0       -           1 passed    1 passed
node1       -           -           1 passed
node2       -           -           -
";
    let texts = [matrix, "a at node1, b at node2: ", "3 passed"];
    let printed = expect(command, 0, &texts);
    // Captures of all hosts have arrived.
    assert_eq!(printed.matches(" packets judged").count(), 3, "{printed}");
}

#[test]
fn the_command_for_a_failure_has_the_launcher() {
    if !is_installed("mpirun.openmpi", "openmpi-bin") {
        return;
    }
    let hosts = ["--hosts", "node0,node1", "--rsh", OPEN_MPI];
    let bad = ["--recorder", "./no-such-recorder {file}"];
    let command = launch("2", &[], &[&["run", &trace()], &hosts[..], &bad].concat());
    let repeat = "--at a=node0 --at b=node1 --rsh 'mpirun.openmpi -n 1 --host'";
    expect(command, 1, &["1 failed", repeat]);
}

#[test]
fn mpich_reaches_the_hosts() {
    if !is_installed("mpiexec.hydra", "mpich") {
        return;
    }
    let hosts = ["--at", "a=node0", "--at", "b=node1"];
    let rsh = ["--rsh", "mpiexec.hydra -n 1 -host"];
    let mut command = launch("2", &[], &[&["run", &trace()], &hosts[..], &rsh].concat());
    // Hydra sets its own value for the ranks, in place of their hosts'.
    command.env("LD_PRELOAD", "libm.so.6");
    expect(command, 0, &["1 passed"]);
}

/// The job determines the hosts, for the suite and for stock programs of the interoperability
/// table.
#[test]
fn slurm_names_and_reaches_the_hosts() {
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
    let script = root().join("scripts/slurm").display().to_string();
    let job = [script.as_str(), "salloc", "--quiet", "-N", "2", "-n", "2"];
    let command = launch("2", &job, &["run", &trace(), "--pairs", "both"]);
    let texts = [
        "a at node0, b at node1: ",
        "a at node1, b at node0: ",
        "2 passed",
    ];
    expect(command, 0, &texts);
}

#[test]
fn pairs_without_hosts_need_a_job() {
    for words in [&["run", &trace()][..], &["interop"]] {
        let mut command = Command::new(conformance());
        command.args(words).args(["--pairs", "all"]);
        command.env_remove("SLURM_JOB_NODELIST");
        expect(command, 2, &["a Slurm job, and this is not one", "--hosts"]);
    }
}
