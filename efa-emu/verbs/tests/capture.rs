//! Captures of stock programs' traffic: of one run, and of a fabric that runs.

mod common;

use std::path::Path;
use std::process::Command;

use common::{Dialogue, Program, TestFabric, built, installed};
use efa_emu::capture::{Direction, Reader};

/// How many frames each interface has, by its name, as (inbound, outbound).
fn frames(path: &Path) -> Vec<(String, usize, usize)> {
    let mut reader = Reader::open(path).unwrap();
    let mut counts = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        assert!(
            frame.frame.is_ok(),
            "frame {}: {:?}",
            frame.number,
            frame.frame
        );
        counts.push((frame.interface.0 as usize, frame.direction.unwrap()));
    }
    assert_eq!(reader.truncation(), None);
    let of = |index: usize, direction: Direction| {
        counts
            .iter()
            .filter(|count| **count == (index, direction))
            .count()
    };
    let interfaces = reader.interfaces().iter().enumerate();
    interfaces
        .map(|(index, interface)| {
            let name = interface.name.clone().unwrap();
            (
                name,
                of(index, Direction::Inbound),
                of(index, Direction::Outbound),
            )
        })
        .collect()
}

fn pingpong(fabric: &TestFabric) -> Dialogue<'_> {
    let arguments = [
        "fi_pingpong",
        "-p",
        "efa",
        "-e",
        "rdm",
        "-I",
        "10",
        "-S",
        "4096",
    ];
    Dialogue::new(fabric, &arguments, "-B", "-P")
}

/// Both hosts of a run with `--pcap` see the same frames, from their sides.
#[test]
fn both_hosts_of_a_dialogue_record_it() {
    if installed("fi_pingpong", "libfabric-bin").is_none() {
        return;
    }
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| directory.path().join(name));
    let options = |path: &Path| ["--pcap".to_owned(), path.display().to_string()];
    let [server, client] = [options(&one), options(&two)];
    let [server, client] = [&server, &client].map(|list| list.each_ref().map(String::as_str));
    pingpong(&fabric).run(&server, &client);
    let [one, two] = [frames(&one), frames(&two)];
    let ([(name, seen, sent)], [(other, others_seen, others_sent)]) = (&one[..], &two[..]) else {
        panic!("one interface each: {one:?} {two:?}");
    };
    assert_eq!((name.as_str(), other.as_str()), ("host-1", "host-2"));
    assert!(*seen >= 10 && *sent >= 10, "{one:?}");
    assert_eq!((seen, sent), (others_sent, others_seen));
}

/// A capture of the whole fabric, begun before its hosts, ended by the user.
#[test]
fn a_running_fabric_is_recorded_until_the_interrupt() {
    if installed("fi_pingpong", "libfabric-bin").is_none() {
        return;
    }
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fabric.pcapng");
    // A host that is there all the time, so that both sides are noticed before they talk.
    let hosts = ["alpha", "beta"];
    let sleepers = hosts.map(|host| {
        let sleeper = Program::start(fabric.run(&["--host", host, "--", "sleep", "120"]));
        sleeper.inner_id();
        sleeper
    });
    let mut command = Command::new(built("efa-emu"));
    command
        .args(["capture", "--fabric", fabric.name(), "-w"])
        .arg(&file);
    let capture = Program::start(command);
    wait_for_captures(&fabric, 2);
    pingpong(&fabric).run(&["--host", "alpha"], &["--host", "beta"]);
    for sleeper in sleepers {
        sleeper.signal(libc::SIGTERM);
        sleeper.wait();
    }
    // It leaves hosts when nobody else is in them.
    wait_for_captures(&fabric, 0);
    capture.signal(libc::SIGINT);
    let outcome = capture.wait().expect_success("capture");
    assert!(
        outcome.stderr.contains("frames of 2 hosts, 0 dropped"),
        "{}",
        outcome.stderr
    );
    let mut recorded = frames(&file);
    recorded.sort();
    let [(alpha, seen, sent), (beta, others_seen, others_sent)] = &recorded[..] else {
        panic!("two interfaces: {recorded:?}");
    };
    assert_eq!((alpha.as_str(), beta.as_str()), ("alpha", "beta"));
    assert!(*seen >= 10 && *sent >= 10, "{recorded:?}");
    assert_eq!((seen, sent), (others_sent, others_seen));
    assert!(!fabric.directory().exists());
}

/// Waits until that many hosts are asked to record.
fn wait_for_captures(fabric: &TestFabric, count: usize) {
    let deadline = std::time::Instant::now() + common::PATIENCE;
    let requested = || {
        let hosts = std::fs::read_dir(fabric.directory().join("hosts"))
            .into_iter()
            .flatten();
        hosts
            .flatten()
            .map(|host| common::files_with(&host.path(), ".capture").len())
            .sum::<usize>()
    };
    while requested() != count {
        assert!(std::time::Instant::now() < deadline, "not {count} captures");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn a_capture_that_cannot_be_written_is_refused() {
    let mut command = Command::new(built("efa-emu"));
    command.args(["capture", "-w", "/no/such/directory/x.pcapng"]);
    let outcome = Program::start(command).wait();
    assert_eq!(outcome.code(), 2);
    assert!(
        outcome.stderr.contains("/no/such/directory/x.pcapng"),
        "{}",
        outcome.stderr
    );
}
