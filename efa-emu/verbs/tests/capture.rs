//! Captures of stock programs' traffic: of one run, and of a fabric that runs.

mod common;

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;

use common::{Dialogue, Outcome, Program, TestFabric, installed};
use efa_emu::capture::{Direction, Reader};
use efa_emu::profile::Profile;
use efa_testing::patience::Wait;
use efa_testing::workspace::efa_emu;

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
    Dialogue::pingpong(fabric, "10", "4096", &[])
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

/// A capture of the whole fabric, begun before its hosts, ended by the user: nothing is missed.
#[test]
fn a_running_fabric_is_recorded_until_the_interrupt() {
    if installed("fi_pingpong", "libfabric-bin").is_none() {
        return;
    }
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fabric.pcapng");
    let capture = start_capture(&fabric, &file);
    pingpong(&fabric).run(&["--host", "alpha"], &["--host", "beta"]);
    // It leaves hosts when nobody else is in them.
    fabric.wait_for_captures(0);
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
    // The first packet of all is the server's or the client's first.
    let mut reader = Reader::open(&file).unwrap();
    let first = reader.next_frame().unwrap().unwrap();
    assert_eq!(first.direction, Some(Direction::Outbound));
    assert_eq!(first.frame.unwrap().header.sequence, 0);
    assert!(!fabric.directory().exists());
}

/// A device that was there before the capture records when the capture's first byte is there.
#[test]
fn a_capture_begins_when_the_devices_record() {
    if installed("fi_pingpong", "libfabric-bin").is_none() {
        return;
    }
    let fabric = TestFabric::new();
    let dialogue = pingpong(&fabric);
    let server = dialogue.server(&["--host", "alpha"]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fabric.pcapng");
    let capture = start_capture(&fabric, &file);
    let client = dialogue.client(&["--host", "beta"]);
    client.wait().expect_success("client");
    server.wait().expect_success("server");
    fabric.wait_for_captures(0);
    capture.signal(libc::SIGINT);
    let outcome = capture.wait().expect_success("capture");
    let begun = format!("recording fabric {}: alpha; Ctrl+C", fabric.name());
    assert!(outcome.stderr.contains(&begun), "{}", outcome.stderr);
    let mut recorded = frames(&file);
    recorded.sort();
    let [(_, seen, sent), (_, others_seen, others_sent)] = &recorded[..] else {
        panic!("two interfaces: {recorded:?}");
    };
    assert!(*seen >= 10, "{recorded:?}");
    assert_eq!((seen, sent), (others_sent, others_seen));
}

/// Stops a recorder while it does not hold the fabric's registry locked, as it does for a moment each time
/// that it looks for new hosts: a stopped process that holds it holds up everybody, and the error says so.
fn stop_outside_the_registry(recorder: &Program, fabric: &TestFabric) {
    let registry = fs::metadata(fabric.directory().join("registry"))
        .unwrap()
        .ino();
    let wait = Wait::start();
    loop {
        recorder.signal(libc::SIGSTOP);
        // A process that was sent the signal may go on for as long as it is in the kernel.
        wait_until_stopped(recorder.id());
        let locks = fs::read_to_string("/proc/locks").unwrap();
        if !locks.contains(&format!(":{registry} ")) {
            return;
        }
        recorder.signal(libc::SIGCONT);
        wait.pause(|| "the recorder never lets the registry go".to_owned());
    }
}

fn wait_until_stopped(pid: i32) {
    let is_stopped = || {
        let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let (_, state) = status
            .rsplit_once(") ")
            .expect("the name ends with a parenthesis");
        state.starts_with('T')
    };
    let wait = Wait::start();
    while !is_stopped() {
        wait.pause(|| format!("process {pid} does not stop"));
    }
}

/// A new host waits for the recorder, but not for ever.
#[test]
fn a_recorder_that_was_stopped_holds_nobody_up() {
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fabric.pcapng");
    let capture = start_capture(&fabric, &file);
    let heard = |outcome: Outcome| outcome.expect_success("run").stderr;
    assert_eq!(heard(Program::start(fabric.host(&["true"])).wait()), "");
    fabric.wait_for_captures(0);
    stop_outside_the_registry(&capture, &fabric);
    let warning = heard(Program::start(fabric.host(&["true"])).wait());
    assert!(warning.contains("does not answer"), "{warning}");
    capture.signal(libc::SIGCONT);
    capture.signal(libc::SIGINT);
    capture.wait().expect_success("capture");
    assert!(!fabric.directory().exists());
}

/// Captures a fabric into a file, and waits for the first byte.
fn start_capture(fabric: &TestFabric, file: &Path) -> Program {
    let mut command = efa_emu(&["capture", "--fabric", fabric.name(), "-w"]);
    command.arg(file);
    let capture = Program::start(command);
    let wait = Wait::start();
    while std::fs::metadata(file).map_or(0, |metadata| metadata.len()) == 0 {
        wait.pause(|| format!("{} is empty", file.display()));
    }
    capture
}

/// The filter decides which frames are recorded, and a reader that goes away ends the recording even
/// when there is nothing to record.
#[test]
fn a_filtered_capture_goes_into_a_pipe_until_nobody_reads_it() {
    if installed("fi_pingpong", "libfabric-bin").is_none() {
        return;
    }
    let fabric = TestFabric::new();
    let mut command = efa_emu(&["capture", "--fabric", fabric.name()]);
    command.args("host beta and outbound and rdm".split(' '));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut pipe = child.stdout.take().unwrap();
    let mut bytes = vec![0];
    pipe.read_exact(&mut bytes).unwrap();
    pingpong(&fabric).run(&["--host", "alpha"], &["--host", "beta"]);
    // More than the frames of ten messages, fewer bytes than a pipe may hold back.
    while bytes.len() < 40_000 {
        let mut chunk = [0; 4096];
        let length = pipe.read(&mut chunk).unwrap();
        bytes.extend_from_slice(&chunk[..length]);
    }
    drop(pipe);
    assert!(child.wait().unwrap().success());
    std::fs::write(file.path(), &bytes).unwrap();
    let mut reader = Reader::open(file.path()).unwrap();
    let mut packets = 0;
    while let Some(frame) = reader.next_frame().unwrap() {
        assert_eq!(frame.direction, Some(Direction::Outbound));
        let index = frame.interface.0 as usize;
        assert!(frame.frame.unwrap().rdm_packet().is_some());
        packets += 1;
        assert_eq!(reader.interfaces()[index].name.as_deref(), Some("beta"));
        let hardware = reader.interfaces()[index].hardware.as_deref();
        assert_eq!(hardware, Some(Profile::DEFAULT));
    }
    assert!(packets >= 9, "{packets} packets");
}

#[test]
fn a_wrong_filter_is_refused() {
    let command = efa_emu(&[
        "capture",
        "-w",
        "/no/such/directory/x.pcapng",
        "qpn",
        "70000",
    ]);
    let outcome = Program::start(command).wait();
    assert_eq!(outcome.code(), 2);
    assert!(outcome.stderr.contains("\"70000\""), "{}", outcome.stderr);
}

#[test]
fn a_capture_that_cannot_be_written_is_refused() {
    let command = efa_emu(&["capture", "-w", "/no/such/directory/x.pcapng"]);
    let outcome = Program::start(command).wait();
    assert_eq!(outcome.code(), 2);
    assert!(
        outcome.stderr.contains("/no/such/directory/x.pcapng"),
        "{}",
        outcome.stderr
    );
}
