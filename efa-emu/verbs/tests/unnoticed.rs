//! What `efa-emu run` says of programs that made no use of the device: one line with the reason, as far as it
//! is known, and nothing of programs that did.

mod common;

use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use common::{Dialogue, Outcome, Program, TestFabric, installed};

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
