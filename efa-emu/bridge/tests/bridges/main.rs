//! Bridges between machines that are mount and UTS namespaces: each has its own `/dev/shm`, and so
//! its own fabrics. They share the network; `make interop` tests machines with separate networks.
//!
//! * `machine`: common parts of the tests.
//! * `mistakes`: error messages.
//! * `names`: names of several machines.
//! * `program`: the program that `efa-emu bridge` executes.

mod machine;
mod mistakes;
mod names;
mod program;

use std::path::Path;
use std::process::Stdio;

use efa_commands::ports::{free_port, is_listened_on};
use efa_testing::patience::Wait;
use efa_testing::programs::Program;
use efa_testing::workspace::built;

use machine::{Machine, address, joined, two};

/// Waits until a process listens at the port. The machines share one network.
#[track_caller]
fn wait_for_listener(port: u16) {
    let wait = Wait::start();
    while !is_listened_on(port) {
        wait.pause(|| format!("nobody listens at {port}"));
    }
}

/// The files in a machine's shared memory. Killed runs leave their directories, which the next run
/// removes.
fn left_behind(machine: &Machine) -> String {
    let mut listing = machine.command(Path::new("find"));
    let listed = listing
        .args([
            "/dev/shm",
            "-ignore_readdir_race",
            "-mindepth",
            "1",
            "-not",
            "-path",
            "*/efa-emu-runs-*",
        ])
        .output()
        .unwrap();
    assert!(listed.status.success(), "{listed:?}");
    String::from_utf8(listed.stdout).unwrap()
}

/// A bridge that does not run for so long on a busy machine is not lost.
const TIMEOUT: [&str; 2] = ["--timeout", "15s"];

#[test]
fn programs_talk_and_a_killed_bridge_disconnects() {
    let directory = tempfile::tempdir().unwrap();
    let Some([(first, here), (second, there)]) = joined(directory.path(), &TIMEOUT) else {
        return;
    };
    let port = free_port().unwrap();
    let pingpong = "fi_pingpong -p efa -e rdm -c -I 2 -S all";
    let on = |host: &'static str, rest: String| -> Vec<String> {
        let words = format!("run --host {host} -- {pingpong} {rest}");
        words.split(' ').map(str::to_owned).collect()
    };
    let server = on("alpha", format!("-B {port}"));
    let client = on("beta", format!("-P {port} 127.0.0.1"));
    let words = |words: &[String]| -> Vec<&'static str> {
        words.iter().map(|word| &*word.clone().leak()).collect()
    };
    let server = first.emulator(&words(&server));
    second.wait_for_host("alpha");
    wait_for_listener(port);
    let client = second.emulator(&words(&client));
    let (status, said) = client.outcome();
    assert_eq!(
        status,
        Some(0),
        "{said}\n{}\n{}",
        server.said(),
        here.said()
    );
    assert!(said.contains("\n6m "), "{said}");
    let (status, said) = server.outcome();
    assert_eq!(status, Some(0), "{said}");

    // Only the other machine's bridge runs there, so its end is the end of the machine.
    let program = "echo started && exec sleep 600";
    let gamma = first.emulator(&["run", "--host", "gamma", "--", "sh", "-c", program]);
    gamma.wait_for("started");
    // A program starts when all machines know its host.
    let (_, listed) = second.emulator(&["ps"]).outcome();
    assert!(listed.contains("gamma"), "{listed}");
    let delta = second.emulator(&["run", "--host", "delta", "--", "sleep", "600"]);
    first.wait_for_host("delta");
    there.signal(libc::SIGKILL);
    // Its locks are released after its exit, which may be after the end of its connection.
    there.wait();
    here.wait_for("the connection with second is lost");
    // Its files are removed by the next process that lists the hosts.
    let (_, listed) = second.emulator(&["ps"]).outcome();
    assert!(
        listed.contains("delta") && !listed.contains("gamma"),
        "{listed}"
    );
    // The bridge is started again.
    let key = directory.path().join("key");
    let peer = address(&here);
    let again = second.bridge(&key, &[&["--peer", &peer], &TIMEOUT[..]].concat());
    again.wait_for("connected with first");
    second.wait_for_host("gamma");
    drop((gamma, delta));
    // Their processes may end a moment later.
    let wait = Wait::start();
    loop {
        let (_, listed) = second.emulator(&["ps"]).outcome();
        if !listed.contains("gamma") && !listed.contains("delta") {
            break;
        }
        wait.pause(|| listed);
    }
    // Bridges that get a signal send a notice of the shutdown, and leave no files.
    here.signal(libc::SIGTERM);
    again.wait_for("first has left");
    let (status, said) = here.outcome();
    assert_eq!(status, Some(0), "{said}");
    again.signal(libc::SIGTERM);
    assert_eq!(again.outcome().0, Some(0));
    for machine in [&first, &second] {
        let left = left_behind(machine);
        assert!(left.is_empty(), "{left}");
    }
}

/// A program waits for it up to a limit, and then starts. The other machine learns of its host when
/// the bridge responds again.
#[test]
fn a_bridge_that_does_not_respond_is_awaited() {
    let directory = tempfile::tempdir().unwrap();
    // Longer than it is stopped, also on a busy machine.
    let Some([(first, here), (second, _there)]) = joined(directory.path(), &["--timeout", "60s"])
    else {
        return;
    };
    here.signal(libc::SIGSTOP);
    let program = "echo started && exec sleep 600";
    let waiting = first.emulator(&["run", "--host", "late", "--", "sh", "-c", program]);
    waiting.wait_for("the bridge of the fabric default does not answer");
    waiting.wait_for("started");
    here.signal(libc::SIGCONT);
    second.wait_for_host("late");
}

/// Like a bridge that was started in a session which has ended.
#[test]
fn a_bridge_survives_a_closed_output() {
    let directory = tempfile::tempdir().unwrap();
    let Some((key, first, second)) = two(directory.path()) else {
        return;
    };
    let there = second.bridge(&key, &["--listen", "127.0.0.1:0"]);
    let mut command = first.bridge_command(&key, &["--peer", &address(&there)]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stdin(Stdio::null()).stdout(writer);
    let mut here = command.spawn().unwrap();
    there.wait_for("connected with first");
    let port = address(&there);
    // It must report that this one has left, and that there is another one.
    there.signal(libc::SIGTERM);
    assert_eq!(there.outcome().0, Some(0));
    let again = second.bridge(&key, &["--listen", &port]);
    again.wait_for("connected with first");
    let host = second.emulator(&["run", "--host", "beta", "--", "sleep", "600"]);
    first.wait_for_host("beta");
    drop(host);
    here.kill().unwrap();
    here.wait().unwrap();
}

#[test]
fn events_show_connections_and_their_ends() {
    let directory = tempfile::tempdir().unwrap();
    let Some((key, first, second)) = two(directory.path()) else {
        return;
    };
    let mut command = first.bridge_command(&key, &["--listen", "127.0.0.1:0"]);
    command.env("EFA_LOG", "efa_emu_bridge=debug");
    let here = Program::start(command);
    let peer = address(&here);
    let other_key = machine::key(directory.path(), "other");
    let refused = second.bridge(&other_key, &["--peer", &peer]);
    let line = here.wait_for("connection refused from=127.0.0.1:");
    assert!(
        line.contains("DEBUG") && line.contains("another key"),
        "{line}"
    );
    drop(refused);
    let there = second.bridge(&key, &["--peer", &peer]);
    here.wait_for("greeting answered machine=\"second\" verdict=Welcome");
    let line = here.wait_for("machine connected machine=\"second\" timeout=");
    assert!(line.contains("INFO"), "{line}");
    let host = second.emulator(&["run", "--host", "beta", "--", "sleep", "600"]);
    here.wait_for("devices of the machine entered machine=\"second\" devices=1 refused=0");
    drop(host);
    there.signal(libc::SIGTERM);
    here.wait_for("machine disconnected machine=\"second\" reason=the other bridge shuts down");
}

/// `run --uplink` starts a bridge where there is none, and the bridge ends with the last program.
#[test]
fn an_uplink_lives_as_long_as_its_programs() {
    let directory = tempfile::tempdir().unwrap();
    let Some((key, first, second)) = two(directory.path()) else {
        return;
    };
    let port = free_port().unwrap();
    let own = format!("127.0.0.1:{port}");
    let here = first.bridge(&key, &["--listen", &own]);
    here.wait_for("listens on");
    let key = key.to_str().unwrap();
    let uplink = [
        "--uplink",
        &own,
        "--uplink-key",
        key,
        "--uplink-listen",
        "127.0.0.1:0",
    ];
    let run = |machine: &Machine, host: &str, program: &[&str]| {
        machine.emulator(&[&["run", "--host", host], &uplink[..], &["--"], program].concat())
    };
    let wait = "echo started && exec sleep 600";
    let beta = run(&second, "beta", &["sh", "-c", wait]);
    beta.wait_for("bridge: connected with first");
    beta.wait_for("started");
    first.wait_for_host("beta");
    // A host without a given name has the machine's name, and all such programs share it.
    let unnamed =
        |program: &[&str]| second.emulator(&[&["run"], &uplink[..], &["--"], program].concat());
    let sharing = unnamed(&["sh", "-c", wait]);
    sharing.wait_for("started");
    first.wait_for_host("\nsecond ");
    let (status, said) = unnamed(&["sh", "-c", "echo host $EFA_EMU_HOST"]).outcome();
    assert!(
        status == Some(0) && said.contains("host second\n"),
        "{said}"
    );
    drop(sharing);
    // The bridge already runs on both machines.
    let (status, said) = run(&second, "gamma", &["true"]).outcome();
    assert!(status == Some(0) && !said.contains("bridge"), "{said}");
    let (status, said) = run(&first, "alpha", &["true"]).outcome();
    assert!(status == Some(0) && !said.contains("bridge"), "{said}");
    // The longest name of a machine is also valid for a host.
    let long: &str = "x".repeat(64).leak();
    let named = Machine::new(long).expect("there were others");
    let words = [&["run"], &uplink[..], &["--", "true"]].concat();
    let (status, said) = named.emulator(&words).outcome();
    assert_eq!(status, Some(0), "{said}");
    // Other characters of machine names are invalid for hosts.
    let rename =
        "import os, socket, sys; socket.sethostname('a+b'); os.execv(sys.argv[1], sys.argv[1:])";
    let mut command = named.command(Path::new("python3"));
    command
        .args(["-c", rename])
        .arg(built("efa-emu"))
        .args(&words);
    let (status, said) = Program::start(command).outcome();
    let reason = "--host gives another one: host name \"a+b\" is not valid";
    assert!(status == Some(2) && said.contains(reason), "{said}");
    // A given name must be valid, too. No bridge is started then: it would print its address.
    let third = Machine::new("third").expect("there were others");
    let (status, said) = run(&third, "a/b", &["true"]).outcome();
    let reason = "host name \"a/b\" is not valid";
    assert!(status == Some(2) && said.contains(reason), "{said}");
    assert!(!said.contains("bridge"), "{said}");
    assert!(!here.said().contains("third"), "{}", here.said());
    // The process that starts the bridge reports its errors.
    let wrong = [
        "run",
        "--uplink",
        &own,
        "--uplink-key",
        "/none",
        "--",
        "true",
    ];
    // It may exit before its output is read.
    let failing = third.emulator(&wrong);
    failing.wait_for("cannot open /none");
    assert_eq!(failing.outcome().0, Some(2));

    beta.signal(libc::SIGTERM);
    here.wait_for("second has left");
    // It sends the notice of the shutdown before it leaves its own fabric.
    let wait = Wait::start();
    loop {
        let left = left_behind(&second);
        if left.is_empty() {
            break;
        }
        wait.pause(|| left.clone());
    }
}
