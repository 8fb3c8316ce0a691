//! The programs as users start them: their messages about mistakes, and their exit.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// `efa-emu-pci` with a fabric below `root`.
fn pci(root: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_efa-emu-pci"));
    command.env(efa_shm::ENV_FABRICS, root);
    command.env(efa_shm::ENV_HOST, "vm");
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The command fails with one line that contains these words.
fn refused(command: &mut Command, words: &[&str]) {
    let output = command.output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    for word in words {
        assert!(said.contains(word), "`{word}` in: {said}");
    }
}

#[test]
fn a_socket_that_is_taken_is_named() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    refused(
        pci(root.path()).arg(&socket),
        &["another program serves", "socket"],
    );
    let file = root.path().join("file");
    std::fs::write(&file, "").unwrap();
    refused(pci(root.path()).arg(&file), &["is not a socket"]);
    let nowhere = root.path().join("not/there");
    refused(pci(root.path()).arg(nowhere), &["cannot make the socket"]);
}

#[test]
fn a_socket_that_was_left_is_made_again() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("socket");
    drop(UnixListener::bind(&socket).unwrap());
    let output = pci(root.path())
        .arg(&socket)
        .args(["--", "true"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(!socket.exists(), "it is removed at the end");
}

#[test]
fn it_ends_as_its_program_ends() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("socket");
    let run = |words: &[&str]| {
        let mut command = pci(root.path());
        command.arg(&socket).arg("--").args(words);
        command
    };
    let status = run(&[
        "sh",
        "-c",
        "test -S \"$0\" && exit 7",
        socket.to_str().unwrap(),
    ])
    .status();
    assert_eq!(status.unwrap().code(), Some(7), "the socket is there first");
    refused(
        &mut run(&["no-such-program"]),
        &["cannot run no-such-program"],
    );
    let status = run(&["sh", "-c", "kill -9 $$"]).status();
    assert_eq!(status.unwrap().signal(), Some(9));
    let fabric = efa_shm::Fabric::open_below(root.path(), efa_shm::DEFAULT_FABRIC).unwrap();
    assert!(fabric.hosts().unwrap().is_empty(), "its device is gone");
}

#[test]
fn a_machine_without_the_device_is_noted() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("socket");
    let run = |script: &str| {
        let mut command = pci(root.path());
        command.arg(&socket).args(["--", "sh", "-c", script]);
        command.output().unwrap()
    };
    let failed = run("exit 1");
    assert_eq!(failed.status.code(), Some(1));
    let said = said(&failed);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains("sh -device help") && said.contains("vfio-user-pci"),
        "{said}"
    );
    assert!(run("exit 0").stderr.is_empty());
}

#[test]
fn unknown_generations_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("socket");
    for profile in ["efa4", "efa9"] {
        let mut command = pci(root.path());
        command.env(efa_shm::ENV_PROFILE, profile).arg(&socket);
        refused(&mut command, &[profile]);
    }
    assert!(!socket.exists());
}

#[test]
fn its_program_ends_when_it_is_killed() {
    let root = tempfile::tempdir().unwrap();
    let mut command = pci(root.path());
    command.arg(root.path().join("socket"));
    command.args(["--", "sh", "-c", "echo up; exec tail -f /dev/null"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    let mut up = [0; 3];
    output.read_exact(&mut up).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    // The output ends with the last program that has it open.
    assert_eq!(output.read(&mut up).unwrap(), 0);
}

#[test]
fn the_host_exists_while_the_program_runs() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("socket");
    let mut program = pci(root.path());
    // It exits at the end of its input, which no other process has.
    let mut child = program
        .arg(&socket)
        .args(["--", "cat"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    while UnixStream::connect(&socket).is_err() {
        std::thread::yield_now();
    }
    let fabric = efa_shm::Fabric::open_below(root.path(), efa_shm::DEFAULT_FABRIC).unwrap();
    let hosts = || fabric.hosts().unwrap().len();
    // The socket may exist before the host.
    while hosts() != 1 {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    while hosts() != 0 {
        std::thread::yield_now();
    }
}

#[test]
fn mistakes_are_named_before_anything_is_fetched() {
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_efa-emu-vm"));
        command.args(words);
        command
    };
    refused(
        &mut run(&["--", "a", ":", "b", ":", "c"]),
        &["3 guests", "at most 2"],
    );
    refused(&mut run(&["--", "a", ":"]), &["no command"]);
    refused(
        &mut run(&["--run", "--loss '0", "--", "a"]),
        &["--run", "--loss '0"],
    );
}

/// Runs `scripts/userland` on a machine with these programs, and no others of apt.
fn userland(name: &str, programs: &[(&str, &str)], words: &[&str]) {
    let root = tempfile::tempdir().unwrap();
    let directory = |name: &str| {
        let directory = root.path().join(name);
        std::fs::create_dir(&directory).unwrap();
        directory
    };
    let (scripts, own, cache) = (directory("scripts"), directory("own"), directory("cache"));
    let script = scripts.join("userland");
    std::fs::copy(
        efa_testing::workspace::root().join("scripts/userland"),
        &script,
    )
    .unwrap();
    let program = |path: &Path, body: &str| {
        std::fs::write(path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    };
    program(
        &scripts.join("debian-source"),
        "echo http://localhost/debian",
    );
    for (name, body) in programs {
        program(&own.join(name), body);
    }
    let path = std::env::var("PATH").unwrap();
    let mut command = Command::new(&script);
    command.env("PATH", format!("{}:{path}", own.display()));
    command.env("XDG_CACHE_HOME", cache).arg(name);
    let output = command.output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let line = said.lines().last().unwrap_or_default();
    for word in words {
        assert!(line.contains(word), "`{word}` in: {said}");
    }
}

#[test]
fn a_kernel_without_its_source_is_named() {
    // The output of apt-cache between two point releases.
    let apt_cache = r#"case $1 in
depends) echo linux-headers-6.1.0-9-cloud-amd64 ;;
show) [ "$3" = linux-source-6.1 ] && echo Version: 6.1.8 || echo Version: 6.1.9 ;;
esac"#;
    userland(
        "linux-debian12",
        &[
            ("apt-get", ""),
            ("apt-cache", apt_cache),
            ("gcc-12", ""),
            ("make", ""),
        ],
        &[
            "linux-headers-6.1.0-9-cloud-amd64 6.1.9",
            "linux-source-6.1 6.1.8",
            "another --linux",
        ],
    );
}

#[test]
fn a_machine_without_namespaces_builds_no_later_driver() {
    userland(
        "linux-debian13",
        &[("apt-get", ""), ("unshare", "exit 1")],
        &["takes root, or user namespaces", "sysctl"],
    );
}
