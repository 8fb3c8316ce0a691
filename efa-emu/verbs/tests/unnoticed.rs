//! What `efa-emu run` says of programs that made no use of the device: one line with the reason, as far as it
//! is known, and nothing of programs that did.

mod common;

use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use common::{Dialogue, Outcome, Program, TestFabric, installed};
use efa_testing::workspace::efa_emu;

/// What a command prints on standard error.
#[track_caller]
fn said(command: Command) -> String {
    Program::start(command).wait().stderr
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

#[test]
fn a_program_without_use_for_the_device() {
    let fabric = TestFabric::new();
    let unused = "no process opened the device: none asked for the list of devices";
    assert_line(&said(fabric.host(&["true"])), &[unused]);
    assert_line(&said(fabric.host(&["sh", "-c", "true; true"])), &[unused]);
    assert_eq!(said(fabric.run(&["--quiet", "--", "true"])), "");
    // The run inside says what there is to say of its programs, and the one around it nothing.
    let inside = fabric.run(&["--", "true"]);
    let mut words = vec![inside.get_program().to_str().unwrap()];
    words.extend(inside.get_args().map(|word| word.to_str().unwrap()));
    assert_line(&said(fabric.host(&words)), &[unused]);
}

#[test]
fn programs_that_describe_the_device() {
    for (program, package) in [
        ("fi_info", "libfabric-bin"),
        ("ibv_devinfo", "ibverbs-utils"),
    ] {
        if installed(program, package).is_some() {
            assert_eq!(said(TestFabric::new().host(&[program])), "", "{program}");
        }
    }
}

#[test]
fn a_static_program() {
    let program = "/sbin/ldconfig";
    let outcome = Program::start(TestFabric::new().host(&[program, "--version"]))
        .wait()
        .expect_success("ldconfig");
    let reason = "/sbin/ldconfig is statically linked";
    assert_line(&outcome.stderr, &["no process opened the device", reason]);
}

#[test]
fn a_program_whose_environment_was_cleared() {
    let Some(program) = installed("fi_info", "libfabric-bin") else {
        return;
    };
    let program = program.to_str().unwrap();
    let fabric = TestFabric::new();
    let reason = format!("env started {program} with an environment that lacks LD_PRELOAD");
    assert_line(
        &said(fabric.host(&["env", "-i", program, "-p", "efa"])),
        &["no process opened the device", &reason],
    );
    // The same when `env` is not at fault.
    let cleared = ["env", "-i", "/sbin/ldconfig", "--version"];
    assert_line(
        &said(fabric.host(&cleared)),
        &["/sbin/ldconfig is statically linked"],
    );
    let kept = ["env", program, "-p", "efa"];
    assert_eq!(said(fabric.host(&kept)), "");
}

/// Launchers and scripts have the libraries; what they start does not.
#[test]
fn what_a_launcher_or_a_script_starts() {
    let fabric = TestFabric::new();
    let is_static = "/sbin/ldconfig, which the command names, is statically linked";
    for command in [
        &["timeout", "60", "/sbin/ldconfig", "--version"][..],
        &["sh", "-c", "/sbin/ldconfig --version; true"],
    ] {
        assert_line(
            &said(fabric.host(command)),
            &["no process opened", is_static],
        );
    }
    let script = ["sh", "-c", "env -i /bin/true; true"];
    let cleared = "the command's `env -i` takes LD_PRELOAD away";
    assert_line(&said(fabric.host(&script)), &["no process opened", cleared]);
    let mut cluster = efa_emu(&["cluster", "1", "--fabric", fabric.name()]);
    cluster.args(["--", "ssh", "node0", "/sbin/ldconfig", "--version"]);
    assert_line(&said(cluster), &["no process opened", is_static]);
}

/// Programs that a run leaves behind have no device any more; those that end with it are not meant.
#[test]
fn programs_that_go_on_after_the_run() {
    let fabric = TestFabric::new();
    let script = "setsid sleep 3600 >/dev/null 2>&1 & echo $!
                  until grep -q \"^$!.sleep\" $EFA_EMU_USAGE/loaded; do sleep 0.01; done";
    let outcome = Program::start(fabric.host(&["bash", "-c", script])).wait();
    let pid: i32 = outcome.stdout.trim().parse().unwrap();
    // SAFETY: takes no pointers.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    let line = format!("sleep ({pid}) goes on after the run");
    assert!(outcome.stderr.contains(&line), "{}", outcome.stderr);
    for ended in ["sleep 0.1 & wait", "sleep 3600 & kill $!; wait"] {
        let said = said(fabric.host(&["bash", "-c", ended]));
        assert!(!said.contains("after the run"), "{ended}: {said}");
    }
    let quiet = fabric.run(&["--quiet", "--", "bash", "-c", script]);
    let outcome = Program::start(quiet).wait();
    let pid: i32 = outcome.stdout.trim().parse().unwrap();
    // SAFETY: as above.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    assert_eq!(outcome.stderr, "");
}

/// What says how a capture is written, where none is.
#[test]
fn options_of_a_capture_without_a_file() {
    let fabric = TestFabric::new();
    for (options, reason) in [
        (&["--snaplen", "256"][..], "name its file with --pcap"),
        (&["-b", "filesize:1"], "name its file with --pcap"),
        (&["--pcap", "-"], "--pcap needs a file"),
    ] {
        let outcome = Program::start(fabric.run(&[options, &["--", "true"]].concat())).wait();
        assert_eq!(outcome.code(), 2, "{outcome:?}");
        assert_line(&outcome.stderr, &[reason]);
    }
}

#[test]
fn a_program_with_the_rights_of_another_user() {
    let directory = tempfile::tempdir().unwrap();
    let mut program = "/bin/mount".to_owned();
    // SAFETY: takes no pointers.
    if unsafe { libc::geteuid() } == 0 {
        let path = directory.path().join("other-user");
        std::fs::copy("/bin/true", &path).unwrap();
        chown(&path, Some(1), None).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o4755)).unwrap();
        program = path.to_str().unwrap().to_owned();
    }
    let said = said(TestFabric::new().host(&[&program, "--version"]));
    if said.contains("none asked for the list of devices") {
        return efa_testing::skip("set-uid bits have no effect here");
    }
    assert_line(&said, &[&program, "runs with rights of another user"]);
}

/// Runs `fi_pingpong` between two processes with these options.
fn pingpong(
    options: [&str; 2],
    environment: &[(&str, &str)],
    provider: &str,
) -> Option<[Outcome; 2]> {
    installed("fi_pingpong", "libfabric-bin")?;
    let fabric = TestFabric::new();
    let program = [
        "fi_pingpong",
        "-p",
        provider,
        "-e",
        "rdm",
        "-I",
        "10",
        "-S",
        "64",
    ];
    let mut dialogue = Dialogue::new(&fabric, &program, "-B", "-P");
    dialogue.environment = environment;
    let [server, client] = options.map(|host| ["--host", host]);
    Some(dialogue.run(&server, &client))
}

#[test]
fn another_provider() {
    let choice = [("FI_PROVIDER", "tcp;ofi_rxm")];
    for outcome in pingpong(["alpha", "beta"], &choice, "tcp;ofi_rxm")
        .into_iter()
        .flatten()
    {
        assert_line(&outcome.stderr, &["FI_PROVIDER is \"tcp;ofi_rxm\""]);
    }
    // Chosen by the program, which is not known: what is said is that nothing was sent.
    for outcome in pingpong(["alpha", "beta"], &[], "tcp;ofi_rxm")
        .into_iter()
        .flatten()
    {
        assert_line(
            &outcome.stderr,
            &["fi_pingpong opened the device and sent nothing over it"],
        );
    }
}

/// libfabric prefers its `shm` provider between processes of one host.
#[test]
fn shared_memory_in_place_of_the_device() {
    for outcome in pingpong(["alpha", "alpha"], &[], "efa")
        .into_iter()
        .flatten()
    {
        let reason = "FI_EFA_ENABLE_SHM_TRANSFER=0";
        assert_line(
            &outcome.stderr,
            &["nothing was sent over the device", reason],
        );
    }
    let device = [("FI_EFA_ENABLE_SHM_TRANSFER", "0")];
    let runs = [(["alpha", "alpha"], &device[..]), (["alpha", "beta"], &[])];
    for (hosts, environment) in runs {
        for outcome in pingpong(hosts, environment, "efa").into_iter().flatten() {
            assert_eq!(outcome.stderr, "", "{hosts:?} {environment:?}");
        }
    }
}

/// The same on a host of a cluster.
#[test]
fn shared_memory_in_place_of_the_device_in_a_cluster() {
    if installed("fi_pingpong", "libfabric-bin").is_none() {
        return;
    }
    let script = "port=$(( 20000 + $$ % 20000 )); \
                  test='fi_pingpong -p efa -e rdm -I 10 -S 64'; \
                  $test -B $port & \
                  until $test -P $port 127.0.0.1 2>/dev/null; do sleep 0.1; done; wait";
    for (environment, is_told) in [("", true), ("export FI_EFA_ENABLE_SHM_TRANSFER=0; ", false)] {
        let fabric = TestFabric::new();
        let mut cluster = efa_emu(&["cluster", "1", "--fabric", fabric.name()]);
        cluster.args(["--", "ssh", "node0", &format!("{environment}{script}")]);
        let said = Program::start(cluster)
            .wait()
            .expect_success("cluster")
            .stderr;
        match is_told {
            true => assert_line(
                &said,
                &[
                    "nothing was sent over the device",
                    "FI_EFA_ENABLE_SHM_TRANSFER=0",
                ],
            ),
            false => assert_eq!(said, ""),
        }
    }
}

/// AddressSanitizer refuses programs whose first library it is not, unless it is told otherwise.
#[test]
fn a_program_with_address_sanitizer() {
    if installed("gcc", "gcc").is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    let source = directory.path().join("program.c");
    std::fs::write(&source, OPENS_THE_DEVICE).unwrap();
    let compiled = Command::new("gcc")
        .args(["-fsanitize=address", "-o"])
        .args([&program, &source])
        .arg("-ldl")
        .output()
        .unwrap();
    if !compiled.status.success() {
        return efa_testing::skip("gcc has no AddressSanitizer here");
    }
    let program = program.to_str().unwrap();
    // Also if the program is not the first one.
    for command in [&[program][..], &["sh", "-c", "\"$0\"; exit $?", program]] {
        let outcome = Program::start(TestFabric::new().host(command)).wait();
        assert_eq!(outcome.code(), 7, "{outcome:?}");
        assert_line(
            &outcome.stderr,
            &["program opened the device and sent nothing over it"],
        );
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    }
}

/// A program that opens the first device, closes it and returns 7.
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
    int result = context && count == 1 && close(context) == 0 ? 7 : 1;
    free_list(devices);
    return result;
}
"#;

/// A rule about a host that nobody is. One about hosts that are there, to which nothing has happened, is no mistake.
#[test]
fn a_rule_that_names_a_host_that_is_not_there() {
    if installed("fi_info", "libfabric-bin").is_none() {
        return;
    }
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
