//! The message of `efa-emu run` about programs that did not use the device: one line with the
//! reason, as far as it is known. There is none about programs that used it.

use std::process::Command;

use efa_testing::programs::{Dialogue, TestFabric, installed, needs, run, words};
use efa_testing::workspace::efa_emu;

use super::beside::compile;

/// The standard error output of a command.
#[track_caller]
fn said(command: Command) -> String {
    run(command).stderr
}

/// Checks that this is one line of `efa-emu` with all these parts.
#[track_caller]
fn assert_line(said: &str, parts: &[&str]) {
    let lines: Vec<_> = said
        .lines()
        .filter(|line| line.starts_with("efa-emu: "))
        .collect();
    assert_eq!(lines.len(), 1, "{said}");
    for part in parts {
        assert!(lines[0].contains(part), "{part:?} is not in {}", lines[0]);
    }
}

/// A reason is given only if it was seen: none for a static program, or one that has lost the run's
/// environment.
#[test]
fn runs_without_use_of_the_device_are_reported() {
    let fabric = TestFabric::new();
    let unused = "nothing was sent over the device: no process was seen to ask for devices";
    for words in [
        &["true"][..],
        &["sh", "-c", "true; true"],
        &["/sbin/ldconfig", "--version"],
        &["env", "-i", "/bin/true"],
        // It queries the kernel by netlink.
        &["sh", "-c", "rdma link || true"],
        // An inner container, whose programs do not see the run's directory.
        &[
            "sh",
            "-c",
            "unshare -rm sh -c 'mount -t tmpfs x /dev/shm && ibv_devices' || true",
        ],
    ] {
        assert_line(&said(fabric.host(words)), &[unused]);
    }
    // `efa-emu` itself, which contains the text by which it recognises programs with their own
    // libibverbs.
    let own = efa_testing::workspace::emulator();
    assert_line(
        &said(fabric.host(&[own.to_str().unwrap(), "ps"])),
        &[unused],
    );
    let mut cluster = efa_emu(&["cluster", "1", "--fabric", fabric.name()]);
    cluster.args(["--", "ssh", "node0", "true"]);
    assert_line(&said(cluster), &[unused]);
    assert_eq!(said(fabric.run(&["--quiet", "--", "true"])), "");
    // The inner run reports on its programs; the outer one prints nothing.
    let inside = fabric.run(&["--", "true"]);
    let mut words = vec![inside.get_program().to_str().unwrap()];
    words.extend(inside.get_args().map(|word| word.to_str().unwrap()));
    assert_line(&said(fabric.host(&words)), &[unused]);
}

/// As in wheels for Python: the program is dynamic, and contains the functions that it calls.
#[test]
fn programs_with_their_own_libibverbs_are_named() {
    needs!("cc", "gcc");
    let directory = tempfile::tempdir().unwrap();
    let libraries = "-Wl,--start-group -Wl,-Bstatic -lefa -libverbs -lmlx5 -lmlx4 -lbnxt_re-rdmav34 -lcxgb4-rdmav34 \
                     -lerdma-rdmav34 -lhns-rdmav34 -lirdma-rdmav34 -lmana -lmthca-rdmav34 -locrdma-rdmav34 \
                     -lqedr-rdmav34 -lvmw_pvrdma-rdmav34 -lhfi1verbs-rdmav34 -lipathverbs-rdmav34 -lrxe-rdmav34 \
                     -lsiw-rdmav34 -lnl-route-3 -lnl-3 -Wl,-Bdynamic -Wl,--end-group -lpthread";
    for (name, libraries, line) in [
        (
            "own",
            libraries,
            "nothing was sent over the device: own has a libibverbs of its own linked in",
        ),
        (
            "systems",
            "-libverbs",
            "nothing was sent over the device, though systems saw it",
        ),
    ] {
        let program = match compile(directory.path(), name, LISTS_DEVICES, &words(libraries)) {
            Ok(program) => program,
            Err(messages) => {
                efa_testing::skip(format_args!(
                    "no static libibverbs (Debian packages libibverbs-dev and libnl-route-3-dev): {messages}"
                ));
                continue;
            }
        };
        // The same if it is not the first program of the run.
        let command = ["sh", "-c", "\"$0\"; true", &program];
        assert_line(&said(TestFabric::new().host(&command)), &[line]);
    }
}

const LISTS_DEVICES: &str = "
#include <infiniband/verbs.h>
int main(void) {
    int count = 0;
    return !ibv_get_device_list(&count);
}
";

#[test]
fn programs_that_describe_the_device() {
    for (program, package) in [
        ("fi_info", "libfabric-bin"),
        ("ibv_devinfo", "ibverbs-utils"),
    ] {
        if installed(program, package).is_some() {
            // The same if the dynamic linker is executed with the program as its argument.
            let script = "set -- /lib*/ld-linux-*.so.*; exec \"$1\" \"$(command -v $0)\"";
            for words in [&[program][..], &["sh", "-c", script, program]] {
                let outcome = run(TestFabric::new().host(words)).expect_success(program);
                assert_eq!(outcome.stderr, "", "{words:?}");
            }
        }
    }
}

/// Programs that continue after a run have no device any more; programs that end with the run are
/// not reported.
#[test]
fn programs_that_go_on_after_the_run() {
    let fabric = TestFabric::new();
    let script = "setsid sleep 3600 >/dev/null 2>&1 & echo $!
                  until grep -q \"^$!.sleep\" $EFA_EMU_USAGE/loaded; do sleep 0.01; done";
    let outcome = run(fabric.host(&["bash", "-c", script]));
    let pid: i32 = outcome.stdout.trim().parse().unwrap();
    // SAFETY: takes no pointers.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    outcome.expect_stderr(&[&format!("left behind after the run: sleep ({pid}): ")]);
    for ended in ["sleep 0.1 & wait", "sleep 3600 & kill $!; wait"] {
        let said = said(fabric.host(&["bash", "-c", ended]));
        assert!(!said.contains("after the run"), "{ended}: {said}");
    }
    let quiet = fabric.run(&["--quiet", "--", "bash", "-c", script]);
    let outcome = run(quiet);
    let pid: i32 = outcome.stdout.trim().parse().unwrap();
    // SAFETY: as above.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    assert_eq!(outcome.stderr, "");
}

/// Options of a capture without a capture.
#[test]
fn options_of_a_capture_without_a_file() {
    let fabric = TestFabric::new();
    for (options, reason) in [
        (&["--snaplen", "256"][..], "name its file with --pcap"),
        (&["-b", "filesize:1"], "name its file with --pcap"),
        (&["--pcap", "-"], "--pcap needs a file"),
    ] {
        let outcome = run(fabric.run(&[options, &["--", "true"]].concat()));
        outcome.expect_refusal(&[reason]);
    }
}

/// What `efa-emu` says of `fi_pingpong` between two processes on these hosts.
fn pingpong(hosts: [&str; 2], environment: &[(&str, &str)], provider: &str) -> Vec<String> {
    if installed("fi_pingpong", "libfabric-bin").is_none() {
        return Vec::new();
    }
    let fabric = TestFabric::new();
    let options = ["-p", provider, "-e", "rdm", "-I", "10", "-S", "64"];
    let program = [&["fi_pingpong"][..], &options].concat();
    let mut dialogue = Dialogue::new(&fabric, &program, "-B", "-P");
    dialogue.environment = environment;
    let [server, client] = hosts.map(|host| ["--host", host]);
    let outcomes = dialogue.run(&server, &client);
    outcomes.map(|outcome| outcome.stderr).into()
}

#[test]
fn another_provider() {
    let choice = [("FI_PROVIDER", "tcp;ofi_rxm")];
    // Without the variable, the choice is the program's.
    for environment in [&choice[..], &[]] {
        for said in pingpong(["alpha", "beta"], environment, "tcp;ofi_rxm") {
            let reason = "though fi_pingpong saw it: FI_PROVIDER=efa permits libfabric no other";
            assert_line(&said, &["nothing was sent over the device", reason]);
        }
    }
}

/// libfabric prefers its `shm` provider between processes of one host.
#[test]
fn shared_memory_in_place_of_the_device() {
    for said in pingpong(["alpha", "alpha"], &[], "efa") {
        let reason = "FI_EFA_ENABLE_SHM_TRANSFER=0";
        assert_line(&said, &["nothing was sent over the device", reason]);
    }
    let device = [("FI_EFA_ENABLE_SHM_TRANSFER", "0")];
    let runs = [(["alpha", "alpha"], &device[..]), (["alpha", "beta"], &[])];
    for (hosts, environment) in runs {
        for said in pingpong(hosts, environment, "efa") {
            assert_eq!(said, "", "{hosts:?} {environment:?}");
        }
    }
}

/// AddressSanitizer refuses to run if another library is loaded first, unless it is told otherwise.
#[test]
fn a_program_with_address_sanitizer() {
    needs!("cc", "gcc");
    let directory = tempfile::tempdir().unwrap();
    let options = ["-fsanitize=address", "-ldl"];
    let Ok(program) = compile(directory.path(), "program", OPENS_THE_DEVICE, &options) else {
        return efa_testing::skip("gcc has no AddressSanitizer here");
    };
    // The same if the program is not the first one.
    for command in [&[&*program][..], &["sh", "-c", "\"$0\"; exit $?", &program]] {
        let outcome = run(TestFabric::new().host(command));
        assert_eq!(outcome.code(), 0, "{outcome:?}");
        assert_line(
            &outcome.stderr,
            &["nothing was sent over the device, though program saw it"],
        );
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    }
}

/// A program that opens the first device and closes it.
const OPENS_THE_DEVICE: &str = r#"
#include <dlfcn.h>
int main(void) {
    void *library = dlopen("libibverbs.so.1", RTLD_NOW);
    void **(*list)(int *) = (void **(*)(int *)) dlsym(library, "ibv_get_device_list");
    void *(*open)(void *) = (void *(*)(void *)) dlsym(library, "ibv_open_device");
    int (*close)(void *) = (int (*)(void *)) dlsym(library, "ibv_close_device");
    void (*free_list)(void **) = (void (*)(void **)) dlsym(library, "ibv_free_device_list");
    int count = 0;
    void **devices = list(&count);
    void *context = open(devices[0]);
    int result = context && count == 1 && close(context) == 0 ? 0 : 1;
    free_list(devices);
    return result;
}
"#;

/// A rule about a host that does not exist is reported. A rule about existing hosts that was not
/// applied is not.
#[test]
fn rules_that_name_a_missing_host() {
    needs!("fi_info", "libfabric-bin");
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.toml");
    let text = r#"
[[fault]]
label = "misspelt"
when = { on = "registration", host = "alhpa" }
then = { fail = "ENOMEM" }

[[fault]]
when = { on = "registration", host = "alpha" }
then = { fail = "ENOMEM" }

[[fault]]
when = { packet = "CTS" }
then = "hold"
"#;
    std::fs::write(&rules, text).unwrap();
    let fabric = TestFabric::new();
    let options = ["--host", "alpha", "--faults", rules.to_str().unwrap()];
    let run = |more: &[&str]| {
        let words = [&options[..], more, &["--", "fi_info", "-p", "efa"]].concat();
        said(fabric.run(&words))
    };
    assert_line(
        &run(&[]),
        &["no event matched the rule", "misspelt", "is called alhpa"],
    );
    assert_eq!(run(&["--quiet"]), "");
}

/// The reason is not another `/dev/shm`: its processes are on fabrics that the suite names.
#[test]
fn the_suites_jobs_have_their_own_fabrics() {
    let trace = |name: &str| efa_testing::workspace::traces().join(name);
    let fabric = TestFabric::new();
    let mut command = fabric.host(&[efa_testing::workspace::conformance().to_str().unwrap()]);
    command
        .arg("run")
        .args(["eager-tagged.pcapng", "long-cts.pcapng"].map(trace))
        .args(["--backend", "hw", "--jobs", "2"]);
    assert_eq!(said(command), "");
}
