//! `efa-emu run` as a command: environment, exit status, signals, refusals and leftovers.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use efa_testing::patience::Wait;
use efa_testing::programs::{
    Program, TestFabric, files_with, needs, run, started_by, succeed, words,
};
use efa_testing::workspace::{built, efa_emu, root};

fn shell(fabric: &TestFabric, script: &str) -> efa_testing::programs::Finished {
    run(fabric.host(&["sh", "-c", script]))
}

#[test]
fn the_exit_status_is_the_programs() {
    let fabric = TestFabric::new();
    assert_eq!(shell(&fabric, "exit 0").code(), 0);
    assert_eq!(shell(&fabric, "exit 7").code(), 7);
}

/// Not the exit status that a shell makes of a signal: MPICH's launcher needs the signal.
#[test]
fn a_program_killed_by_signal_ends_the_run() {
    let fabric = TestFabric::new();
    // A signal that cannot be handled, one that `run` waits for itself, one that would leave a
    // core.
    for (name, signal) in [
        ("KILL", libc::SIGKILL),
        ("TERM", libc::SIGTERM),
        ("SEGV", libc::SIGSEGV),
    ] {
        let status = shell(&fabric, &format!("kill -{name} $$")).status;
        assert_eq!(status.signal(), Some(signal), "{status:?}");
        assert!(!status.core_dumped(), "the program's core is enough");
        let is_there = fabric.directory().exists();
        assert!(!is_there, "the host is gone all the same");
    }
}

/// Each refusal has exit status 2 and one line that names the cause and the remedy.
#[test]
fn unrunnable_commands_are_refused_in_one_line() {
    let fabric = TestFabric::new();
    let cases: &[(&[&str], &[&str])] = &[
        (
            &["--", "no-such-program-here"],
            &["no-such-program-here", "install it"],
        ),
        (
            &["--", "/no/such/file"],
            &["/no/such/file", "check the path"],
        ),
        (
            &["--", "/etc/passwd"],
            &["/etc/passwd", "not an executable"],
        ),
        (
            &["--profile", "efa9", "--", "true"],
            &["\"efa9\"", "efa0, efa1, efa2"],
        ),
        (
            &["--host", "a/b", "--", "true"],
            &["host name \"a/b\"", "letters"],
        ),
        (&["--loss", "1", "--", "true"], &["loss=1", "below 1"]),
        (&["--paths", "0", "--", "true"], &["paths=0", "1 to 1024"]),
        (
            &["--pcap", "/no/such/directory/x.pcapng", "--", "true"],
            &["/no/such/directory/x.pcapng"],
        ),
    ];
    for (arguments, parts) in cases {
        let outcome = run(fabric.run(arguments));
        outcome.expect_refusal(parts);
        assert!(outcome.stderr.starts_with("efa-emu: "), "{outcome:?}");
    }
    for usage in [
        &["--latency", "5m", "--", "true"][..],
        &["--qpn-reuse", "newest", "--", "true"],
        &[],
    ] {
        let outcome = run(fabric.run(usage));
        assert_eq!(outcome.code(), 2, "{usage:?}");
        outcome.expect_stderr(&["--help"]);
    }
}

#[test]
fn missing_libraries_are_reported_with_the_places_searched() {
    let elsewhere = tempfile::tempdir().unwrap();
    let fabric = TestFabric::new();
    let mut command = fabric.host(&["true"]);
    command.env("EFA_EMU_LIB", elsewhere.path());
    let outcome = run(command);
    let place = elsewhere.path().display().to_string();
    outcome.expect_refusal(&[&place, "cargo build --workspace"]);

    // The same directory with the libraries in it works, and so does the installed layout.
    for library in ["libefa_emu_verbs.so", "libefa_emu_efadv.so"] {
        std::os::unix::fs::symlink(built(library), elsewhere.path().join(library)).unwrap();
    }
    let mut command = fabric.host(&["true"]);
    command.env("EFA_EMU_LIB", elsewhere.path());
    succeed(command, "libraries by EFA_EMU_LIB");

    // The dissector identifies an installation.
    let [bin, lib, data] = ["bin", "lib/efa-rdm", "share/efa-rdm/wireshark"]
        .map(|directory| elsewhere.path().join("usr").join(directory));
    for directory in [&bin, &lib, &data] {
        std::fs::create_dir_all(directory).unwrap();
    }
    std::fs::write(data.join("efa.lua"), "").unwrap();
    std::fs::copy(built("efa-emu"), bin.join("efa-emu")).unwrap();
    for library in ["libefa_emu_verbs.so", "libefa_emu_efadv.so"] {
        std::fs::copy(built(library), lib.join(library)).unwrap();
    }
    let mut command = Command::new(bin.join("efa-emu"));
    command.args(["run", "--fabric", fabric.name(), "--"]);
    command.args(["sh", "-c", "echo $LD_PRELOAD"]);
    let outcome = succeed(command, "libraries in ../lib/efa-rdm");
    assert!(
        outcome
            .stdout
            .contains("usr/lib/efa-rdm/libefa_emu_verbs.so"),
        "{}",
        outcome.stdout
    );
}

/// An installed copy and a clone may differ: each would misread the other's memory.
#[test]
fn fabrics_of_other_versions_are_refused_by_name() {
    let fabric = TestFabric::new();
    let theirs =
        "made by efa-emu 9.9.9 (commit f00dcafe), /opt/efa/lib/efa-rdm/libefa_emu_verbs.so";
    let directory = fabric.directory();
    DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(&directory)
        .unwrap();
    let registry = directory.join("registry");
    std::fs::write(&registry, format!("efa-emu fabric layout 99\n{theirs}\n")).unwrap();
    let outcome = run(fabric.host(&["true"]));
    let ours = built("efa-emu").display().to_string();
    outcome.expect_refusal(&["layout 99", theirs, &ours, "use one of the two"]);
    std::fs::remove_dir_all(&directory).unwrap();
}

/// A library that is loaded into a program may be of another build than the `efa-emu run` around
/// it, or than other hosts.
#[test]
fn other_frame_versions_are_refused_by_the_library() {
    needs!("ibv_devinfo", "ibverbs-utils");
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let script = format!(
        "until test -e {}; do sleep 0.02; done; ibv_devinfo",
        go.display()
    );
    let program = Program::start(fabric.host(&["sh", "-c", &script]));
    program.inner_id();
    let registry = fabric.directory().join("registry");
    let ours = std::fs::read_to_string(&registry).unwrap();
    let theirs = ours.replace("transport header 1\n", "transport header 99\n");
    assert_ne!(ours, theirs);
    std::fs::write(&registry, theirs).unwrap();
    std::fs::write(&go, "").unwrap();
    let outcome = program.wait();
    assert_ne!(outcome.code(), 0, "{outcome:?}");
    let library = built("efa-emu").with_file_name("libefa_emu_verbs.so");
    let library = library.display().to_string();
    outcome.expect_stderr(&["transport header 99", &library, "use one of the two"]);
    std::fs::remove_dir_all(fabric.directory()).unwrap();
}

#[test]
fn the_version_names_commit_or_clone_and_formats() {
    let outcome = succeed(efa_emu(&["--version"]), "--version");
    let lines: Vec<_> = outcome.stdout.lines().collect();
    let clone = root().display();
    assert!(
        lines[0].ends_with(&format!("(built in {clone})")),
        "{lines:?}"
    );
    assert!(lines[1].contains("transport header 1"), "{lines:?}");
    assert_eq!(lines[2], format!("data: {clone}"));
}

#[test]
fn the_program_gets_its_environment_and_the_users() {
    let fabric = TestFabric::new();
    let script = "echo $LD_PRELOAD; echo $SYSFS_PATH; cat $SYSFS_PATH/class/infiniband_verbs/abi_version; \
                  echo $EFA_EMU_HOST $EFA_EMU_GID $EFA_EMU_PROFILE; echo $EFA_EMU_RUN";
    let options = words("--host alpha --profile efa1 -- sh -c");
    let mut command = fabric.run(&[&options[..], &[script]].concat());
    command.env("LD_PRELOAD", "libm.so.6");
    command.env("EFA_EMU_RUN", "77");
    let outcome = succeed(command, "environment");
    let lines: Vec<_> = outcome.stdout.lines().collect();
    let preloads: Vec<_> = lines[0].split(':').collect();
    assert_eq!(
        preloads[0], "libm.so.6",
        "the user's own stays, and stays first"
    );
    assert!(preloads[1].ends_with("libefa_emu_verbs.so"), "{preloads:?}");
    assert!(preloads[2].ends_with("libefa_emu_efadv.so"), "{preloads:?}");
    assert_eq!(lines[2], "6");
    let (host, gid) = lines[3].split_once(' ').unwrap();
    assert_eq!(host, "alpha");
    assert!(gid.starts_with("fe80::") && gid.ends_with(" efa1"), "{gid}");
    let run: Result<u32, _> = lines[4].parse();
    assert!(
        run.is_ok_and(|run| run != 77),
        "an outer run is not this run"
    );
    assert!(
        !Path::new(lines[1]).exists(),
        "the generated tree goes with the run"
    );
}

#[test]
fn unnamed_runs_are_distinct_hosts() {
    let fabric = TestFabric::new();
    let first = Program::start(fabric.host(&["sleep", "60"]));
    let second = Program::start(fabric.host(&["sleep", "60"]));
    first.inner_id();
    second.inner_id();
    let joined = Program::start(fabric.run(&["--host", "host-1", "--", "sleep", "60"]));
    joined.inner_id();
    let ps = fabric.ps();
    let hosts = |name: &str| ps.lines().filter(|line| line.starts_with(name)).count();
    let answer = (hosts("host-1 "), hosts("host-2 "), hosts("host-3 "));
    assert_eq!(answer, (2, 1, 0), "{ps}");
    for program in [first, second, joined] {
        program.signal(libc::SIGTERM);
        assert_eq!(program.wait().code(), 143, "the signal reaches the program");
    }
    assert_eq!(fabric.ps().lines().count(), 1, "only the heading is left");
}

/// A killed `run` removes nothing; the next run removes the files of dead processes.
#[test]
fn the_next_run_cleans_up_after_killed_ones() {
    let fabric = TestFabric::new();
    let temporary = tempfile::tempdir().unwrap();
    let run = |program: &[&str]| {
        let mut command = fabric.host(program);
        command.env("TMPDIR", temporary.path());
        command
    };
    let state = || {
        let of_user = std::fs::read_dir(temporary.path()).unwrap().next();
        of_user.map_or(0, |user| files_with(&user.unwrap().path(), "run-").len())
    };
    let killed = Program::start(run(&["sleep", "60"]));
    let orphan = killed.inner_id();
    killed.signal(libc::SIGKILL);
    wait_for_end(killed.id());
    assert_eq!(state(), 1);
    succeed(run(&["true"]), "next run");
    assert_eq!(state(), 1, "the orphan still uses its tree");
    // SAFETY: takes no pointers; the process is in the group of `killed`, which has not ended.
    unsafe { libc::kill(orphan, libc::SIGKILL) };
    wait_for_end(orphan);
    // A run in another fabric removes them, too.
    let mut elsewhere = TestFabric::new().host(&["true"]);
    elsewhere.env("TMPDIR", temporary.path());
    succeed(elsewhere, "next run");
    assert_eq!(state(), 0);
    assert!(!fabric.directory().exists());
}

/// Waits until a process has closed everything. A zombie has.
fn wait_for_end(pid: i32) {
    let runs = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| !rest.starts_with('Z'))
    };
    let wait = Wait::start();
    while runs() {
        wait.pause(|| format!("process {pid} does not end"));
    }
}

#[test]
fn profiles_are_listed_with_sources() {
    let all = succeed(efa_emu(&["profiles"]), "profiles").stdout;
    for expected in [
        "efa0",
        "efa2 (default)",
        "0xefa1",
        "max_msg_sz",
        "8928",
        "not public",
    ] {
        assert!(all.contains(expected), "{expected} is not in\n{all}");
    }
    let row = |name: &str| {
        let line = all.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("{name} is not in\n{all}"));
        line.split_whitespace().collect::<Vec<_>>()
    };
    let generations = ["efa0", "efa1", "efa2", "efa3", "efa4"];
    assert_eq!(row("attribute")[1..6], generations);
    let parts = ["0xefa0", "0xefa1", "0xefa2", "0xefa3", "0xefa4"];
    assert_eq!(row("vendor_part_id")[1..6], parts);
    assert_eq!(row("RDMA_READ")[1..6], ["no", "yes", "yes", "yes", "yes"]);
    assert_eq!(row("RDMA_WRITE")[1..6], ["no", "no", "yes", "yes", "yes"]);
    let one = succeed(efa_emu(&["profiles", "efa0"]), "profiles efa0").stdout;
    assert!(
        one.starts_with("efa0: ") && !one.contains("\nefa1: "),
        "{one}"
    );
}

/// A file that grows beyond `ulimit -f` ends its process by a signal, without a message. The
/// device's file is larger than many limits.
#[test]
fn file_size_limits_are_reported_and_harmless() {
    let limit = "--fsize=1000000";
    let fabric = TestFabric::new();
    let limited = ["prlimit", limit, "--"];
    let outcome = run(started_by(&limited, fabric.host(&["true"])));
    outcome.expect_refusal(&["ulimit -f"]);

    // A program that sets the limit later: its device cannot be opened, and the program continues.
    needs!("ibv_devinfo", "ibverbs-utils");
    let outcome = run(fabric.host(&["prlimit", limit, "ibv_devinfo"]));
    assert_eq!(outcome.status.signal(), None, "{outcome:?}");
    assert!(!outcome.status.success(), "{outcome:?}");
    assert!(outcome.stderr.contains("ulimit -f"), "{outcome:?}");
}

/// Names may be as long as Linux permits for machines.
#[test]
fn host_names_have_up_to_64_characters() {
    needs!("ibv_devices", "ibverbs-utils");
    let fabric = TestFabric::new();
    let longest = "h".repeat(64);
    let options = |host| ["--quiet", "--host", host, "--", "ibv_devices"];
    let outcome = succeed(fabric.run(&options(&longest)), "64 characters");
    assert!(outcome.stdout.contains("rdmap0s0"), "{outcome:?}");
    let outcome = run(fabric.run(&options(&"h".repeat(65))));
    outcome.expect_refusal(&["use 1 to 64 letters"]);
}
