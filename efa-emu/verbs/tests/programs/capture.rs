//! Captures of stock programs' traffic: of one run, and of a running fabric.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;

use efa_capture::{Direction, Reader};
use efa_commands::ports::free_port;
use efa_device_model::profile::Profile;
use efa_testing::patience::Wait;
use efa_testing::programs::{
    Dialogue, Finished, Program, TestFabric, files_with, needs, run, words,
};
use efa_testing::workspace::efa_emu;

/// The number of frames of each interface, by its name, as (inbound, outbound).
pub(super) fn frames(path: &Path) -> Vec<(String, usize, usize)> {
    let mut reader = Reader::open(path).unwrap();
    let mut counts = HashMap::new();
    while let Some(captured) = reader.next_frame().unwrap() {
        let (number, frame) = (captured.number, captured.frame);
        assert!(frame.is_ok(), "frame {number}: {frame:?}");
        let index = captured.interface.0 as usize;
        *counts
            .entry((index, captured.direction.unwrap()))
            .or_default() += 1;
    }
    assert_eq!(reader.truncation(), None);
    let of = |index, direction| counts.get(&(index, direction)).copied().unwrap_or(0);
    let interfaces = reader.interfaces().iter().enumerate();
    let named = interfaces.map(|(index, interface)| {
        let counts = [Direction::Inbound, Direction::Outbound].map(|way| of(index, way));
        (interface.name.clone().unwrap(), counts[0], counts[1])
    });
    named.collect()
}

/// Checks that these are the frames of two hosts, which have recorded the same, each from its side.
#[track_caller]
fn assert_mirrored(mut recorded: Vec<(String, usize, usize)>, hosts: [&str; 2]) {
    recorded.sort();
    let [(one, seen, sent), (other, others_seen, others_sent)] = &recorded[..] else {
        panic!("two interfaces: {recorded:?}");
    };
    assert_eq!([one, other], hosts);
    assert!(*seen >= 10 && *sent >= 10, "{recorded:?}");
    assert_eq!((seen, sent), (others_sent, others_seen));
}

fn pingpong(fabric: &TestFabric) -> Dialogue<'_> {
    Dialogue::pingpong(fabric, "-I 10 -S 4096")
}

/// The summary of `efa-emu run --pcap` for this file.
fn summary(path: &Path) -> String {
    let counts = frames(path);
    let counts = counts
        .iter()
        .map(|(_, inbound, outbound)| inbound + outbound);
    format!(
        "efa-emu: {}: {} frames of 1 host, {} bytes, 0 dropped\n",
        path.display(),
        counts.sum::<usize>(),
        fs::metadata(path).unwrap().len()
    )
}

/// Both hosts of a run with `--pcap` record the same frames, each from its side.
#[test]
fn both_hosts_of_a_dialogue_record_it() {
    needs!("fi_pingpong", "libfabric-bin");
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| directory.path().join(name));
    let options = |path: &Path| ["--pcap".to_owned(), path.display().to_string()];
    let [server, client] = [options(&one), options(&two)];
    let [server, client] = [&server, &client].map(|list| list.each_ref().map(String::as_str));
    let said = pingpong(&fabric)
        .run(&server, &client)
        .map(|outcome| outcome.stderr);
    for (path, said) in [&one, &two].into_iter().zip(said) {
        assert_eq!(said, summary(path));
    }
    let [one, two] = [frames(&one), frames(&two)];
    assert_eq!((one.len(), two.len()), (1, 1), "{one:?} {two:?}");
    assert_mirrored([one, two].concat(), ["host-1", "host-2"]);
}

/// A capture of the whole fabric, started before its hosts and ended by the user, misses no frame.
#[test]
fn a_running_fabric_is_recorded_until_the_interrupt() {
    needs!("fi_pingpong", "libfabric-bin");
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fabric.pcapng");
    let capture = start_capture(&fabric, &file);
    pingpong(&fabric).run(&["--host", "alpha"], &["--host", "beta"]);
    let outcome = stop(&fabric, capture);
    outcome.expect_stderr(&[" frames of 2 hosts, ", " bytes, 0 dropped\n"]);
    assert_mirrored(frames(&file), ["alpha", "beta"]);
    // The first packet of all is the server's or the client's first.
    let mut reader = Reader::open(&file).unwrap();
    let first = reader.next_frame().unwrap().unwrap();
    assert_eq!(first.direction, Some(Direction::Outbound));
    assert_eq!(first.frame.unwrap().header.sequence, 0);
    assert!(!fabric.directory().exists());
}

/// A device that exists before the capture is recorded once the first byte of the capture is
/// written.
#[test]
fn a_capture_begins_when_the_devices_record() {
    needs!("fi_pingpong", "libfabric-bin");
    let fabric = TestFabric::new();
    let dialogue = pingpong(&fabric);
    let server = dialogue.server(&["--host", "alpha"]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fabric.pcapng");
    let capture = start_capture(&fabric, &file);
    let client = dialogue.client(&["--host", "beta"]);
    client.wait().expect_success("client");
    server.wait().expect_success("server");
    let outcome = stop(&fabric, capture);
    // The client's host may be there already when the line is printed.
    let begun = format!("recording fabric {}: alpha", fabric.name());
    outcome.expect_stderr(&[&begun]);
    assert_mirrored(frames(&file), ["alpha", "beta"]);
}

/// Stops a recorder outside of its short periods with the lock of the fabric's registry, in which
/// it looks for new hosts. A process that is stopped with the lock blocks all others, and the error
/// says so.
fn stop_outside_the_registry(recorder: &Program, fabric: &TestFabric) {
    let registry = fs::metadata(fabric.directory().join("registry"))
        .unwrap()
        .ino();
    let wait = Wait::start();
    loop {
        recorder.signal(libc::SIGSTOP);
        // A process may continue after the signal as long as it is in the kernel.
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

/// A new host waits for the recorder for a limited time only.
#[test]
fn a_stopped_recorder_does_not_block_new_hosts() {
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fabric.pcapng");
    let capture = start_capture(&fabric, &file);
    let heard = |outcome: Finished| outcome.expect_success("run").stderr;
    let quiet = || fabric.run(&["--quiet", "--", "true"]);
    assert_eq!(heard(run(quiet())), "");
    fabric.wait_for_captures(0);
    stop_outside_the_registry(&capture, &fabric);
    let warning = heard(run(fabric.run(&["--", "true"])));
    assert!(warning.contains("does not answer"), "{warning}");
    capture.signal(libc::SIGCONT);
    capture.signal(libc::SIGINT);
    capture.wait().expect_success("capture");
    assert!(!fabric.directory().exists());
}

/// Captures a fabric into a file, and waits for the first byte.
fn start_capture(fabric: &TestFabric, file: &Path) -> Program {
    let path = file.to_str().unwrap();
    let command = efa_emu(&["capture", "--fabric", fabric.name(), "-w", path]);
    let capture = Program::start(command);
    let wait = Wait::start();
    while std::fs::metadata(file).map_or(0, |metadata| metadata.len()) == 0 {
        wait.pause(|| format!("{} is empty", file.display()));
    }
    capture
}

/// Ends a capture once its recorder has left the hosts, as it does when no other process is in
/// them.
fn stop(fabric: &TestFabric, capture: Program) -> Finished {
    fabric.wait_for_captures(0);
    capture.signal(libc::SIGINT);
    capture.wait().expect_success("capture")
}

/// Captures a fabric into files in a directory, and waits for the first one.
fn start_ring(fabric: &TestFabric, directory: &Path, options: &[&str]) -> Program {
    let mut command = efa_emu(&["capture", "--fabric", fabric.name(), "-w"]);
    command.arg(directory.join("ring")).args(options);
    let capture = Program::start(command);
    wait_for_file(directory, "ring_00001_");
    capture
}

fn wait_for_file(directory: &Path, part: &str) {
    let wait = Wait::start();
    while files_with(directory, part).is_empty() {
        wait.pause(|| format!("there is no file {part}"));
    }
}

/// The filter selects the recorded frames, and a recording ends with its reader even if there is
/// nothing to record.
#[test]
fn a_filtered_pipe_capture_ends_with_its_reader() {
    needs!("fi_pingpong", "libfabric-bin");
    let fabric = TestFabric::new();
    let mut command = efa_emu(&["capture", "--fabric", fabric.name()]);
    command.args("host beta and outbound and rdm".split(' '));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut pipe = child.stdout.take().unwrap();
    let mut bytes = vec![0];
    pipe.read_exact(&mut bytes).unwrap();
    pingpong(&fabric).run(&["--host", "alpha"], &["--host", "beta"]);
    // More than the frames of ten messages, fewer bytes than a pipe may buffer.
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
    let command = efa_emu(&words("capture -w /no/such/directory/x.pcapng qpn 70000"));
    run(command).expect_refusal(&["\"70000\""]);
}

#[test]
fn a_capture_that_cannot_be_written_is_refused() {
    let command = efa_emu(&["capture", "-w", "/no/such/directory/x.pcapng"]);
    run(command).expect_refusal(&["/no/such/directory/x.pcapng"]);
}

/// Two processes of one run exchange messages over its device, with the shell commands of `script`
/// in between.
fn two_processes(fabric: &TestFabric, options: &[&str], script: &str) -> Program {
    let script = format!(
        "{script} fi_pingpong -p efa -e rdm -I 200 -S 4096 -B $0 & \
         tries=100; \
         until fi_pingpong -p efa -e rdm -I 200 -S 4096 -P $0 127.0.0.1 2>/dev/null; do \
         tries=$((tries - 1)); [ $tries -gt 0 ] || exit 1; sleep 0.1; done; wait"
    );
    let port = free_port().unwrap().to_string();
    let mut command = fabric.run(&[options, &["--", "sh", "-c", &script, &port]].concat());
    command.env("FI_EFA_ENABLE_SHM_TRANSFER", "0");
    Program::start(command)
}

fn times(path: &Path) -> Vec<std::time::Duration> {
    let mut reader = Reader::open(path).unwrap();
    let mut times = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        times.push(frame.time);
    }
    times
}

#[test]
fn processes_of_a_host_are_recorded_in_order() {
    needs!("fi_pingpong", "libfabric-bin");
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let [of_run, of_fabric] = ["run", "fabric"].map(|name| directory.path().join(name));
    let capture = start_capture(&fabric, &of_fabric);
    let options = ["--pcap", of_run.to_str().unwrap()];
    let outcome = two_processes(&fabric, &options, "")
        .wait()
        .expect_success("run");
    assert_eq!(outcome.stderr, summary(&of_run));
    stop(&fabric, capture);
    for path in [&of_run, &of_fabric] {
        let times = times(path);
        // Each message is recorded as it is sent and as it is received, in both directions.
        assert!(times.len() >= 800, "{}", times.len());
        assert!(times.is_sorted(), "{}", path.display());
    }
    assert_eq!(times(&of_run), times(&of_fabric));
}

#[test]
fn a_capture_that_is_being_written_is_refused() {
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("both");
    let path = file.to_str().unwrap();
    let first = Program::start(fabric.run(&["--pcap", path, "--", "sleep", "60"]));
    first.inner_id();
    let before = fs::read(&file).unwrap();
    assert!(!before.is_empty());
    let second = fabric.run(&["--pcap", path, "--", "true"]);
    for other in [
        second,
        efa_emu(&["capture", "--fabric", fabric.name(), "-w", path]),
    ] {
        let reason = format!("efa-emu: another efa-emu is writing the capture {path}: ");
        run(other).expect_refusal(&[&reason, "name another file\n"]);
    }
    assert_eq!(fs::read(&file).unwrap(), before);
    first.signal(libc::SIGTERM);
    first.wait();
    let outcome = run(fabric.run(&["--pcap", path, "--", "true"]));
    let outcome = outcome.expect_success("nobody writes it any more");
    outcome.expect_stderr(&[&format!("efa-emu: {path}: it has no RDM packets\n")]);
}

#[test]
fn a_capture_without_protocol_packets_is_reported() {
    needs!("ib_send_bw", "perftest");
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("perftest");
    let arguments = ["ib_send_bw", "-c", "SRD", "-x", "0", "-n", "20"];
    let dialogue = Dialogue::new(&fabric, &arguments, "-p", "-p");
    let options = ["--pcap", file.to_str().unwrap()];
    let [server, client] = dialogue.run(&[], &options);
    assert!(!server.stderr.contains("efa-emu: "), "{}", server.stderr);
    let path = file.display();
    let reason =
        format!("efa-emu: {path}: it has no RDM packets: none of its 20 sends is one; UCX");
    client.expect_stderr(&[&reason]);
}

#[test]
fn a_capture_of_connections_is_explained() {
    needs!("ibv_rc_pingpong", "ibverbs-utils");
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("connected");
    let arguments = ["ibv_rc_pingpong", "-g", "0", "-n", "10"];
    let dialogue = Dialogue::new(&fabric, &arguments, "-p", "-p");
    let options = ["--profile", "tm", "--pcap", file.to_str().unwrap()];
    let [_, client] = dialogue.run(&["--profile", "tm"], &options);
    let path = file.display();
    let reason = format!("efa-emu: {path}: it has no RDM packets; ");
    client.expect_stderr(&[&reason, "are of reliable connections"]);
}

/// The options of `dumpcap`: files of a limited size with number and time in their names, of which
/// the last ones stay, and truncated frames.
#[test]
fn a_ring_of_files_keeps_the_last_frames() {
    needs!("fi_pingpong", "libfabric-bin");
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ring.pcapng");
    let ring = ["-b", "filesize:4", "-b", "files:3", "--snaplen", "200"];
    let options = [&["--pcap", path.to_str().unwrap()], &ring[..]].concat();
    let outcome = two_processes(&fabric, &options, "")
        .wait()
        .expect_success("run");
    let mut names = files_with(directory.path(), "");
    names.sort();
    assert_eq!(names.len(), 3, "{names:?}");
    let (mut recorded, mut cut) = (Vec::new(), 0);
    let numbers: Vec<u32> = names
        .iter()
        .map(|name| {
            let parts: Vec<_> = name.split(['_', '.']).collect();
            let [name, number, time, ending] = parts[..] else {
                panic!("{name}");
            };
            let got = (name, number.len(), time.len(), ending);
            assert_eq!(got, ("ring", 5, 14, "pcapng"));
            number.parse().unwrap()
        })
        .collect();
    assert!(
        numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]) && numbers[0] > 3,
        "{numbers:?}"
    );
    for name in &names {
        let file = directory.path().join(name);
        // A file ends after the frame that fills it.
        assert!(fs::metadata(&file).unwrap().len() < 4000 + 300);
        let mut reader = Reader::open(&file).unwrap();
        while let Some(frame) = reader.next_frame().unwrap() {
            assert!(frame.bytes.len() <= 200 && frame.frame.is_ok());
            cut += u32::from(frame.bytes.len() < frame.original_len);
            recorded.push(frame.time);
        }
        assert_eq!(reader.interfaces()[0].counts.unwrap().dropped, 0);
    }
    assert!(cut > 10 && recorded.is_sorted(), "{recorded:?}");
    // The summary counts all files that were written.
    let (_, summary) = outcome.stderr.split_once("ring.pcapng: ").unwrap();
    let frames: usize = summary.split(' ').next().unwrap().parse().unwrap();
    assert!(frames > recorded.len() && frames >= 800, "{summary}");

    let refused = run(fabric.run(&["--pcap", "x", "-b", "files:3", "--", "true"]));
    refused.expect_refusal(&["add -b filesize:N"]);
}

/// At the limit on file sizes, which is set after the start of the recording, frames are dropped,
/// counted and reported; the program continues.
#[test]
fn frames_dropped_for_space_are_reported() {
    needs!("fi_pingpong", "libfabric-bin");
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let [file, go] = ["small", "go"].map(|name| directory.path().join(name));
    let wait = format!("until [ -e {} ]; do sleep 0.02; done;", go.display());
    let program = two_processes(&fabric, &["--pcap", file.to_str().unwrap()], &wait);
    program.inner_id();
    let limit = libc::rlimit {
        rlim_cur: 20_000,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the limit is valid, and the old one is not asked for.
    let set = unsafe {
        libc::prlimit(
            program.id(),
            libc::RLIMIT_FSIZE,
            &raw const limit,
            std::ptr::null_mut(),
        )
    };
    assert_eq!(set, 0);
    fs::write(&go, "").unwrap();
    let outcome = program.wait().expect_success("run");
    let mut reader = Reader::open(&file).unwrap();
    while reader.next_frame().unwrap().is_some() {}
    assert_eq!(reader.truncation(), None);
    let counts = reader.interfaces()[0].counts.unwrap();
    assert!(
        counts.dropped > 500 && counts.seen > counts.dropped,
        "{counts:?}"
    );
    let line = format!("{} dropped (", counts.dropped);
    outcome.expect_stderr(&[&line, "ulimit -f"]);
}

/// `efa-emu capture` takes the same options.
#[test]
fn a_fabric_records_into_a_file_ring() {
    needs!("fi_pingpong", "libfabric-bin");
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let capture = start_ring(
        &fabric,
        directory.path(),
        &["-b", "packets:10", "-b", "files:2", "-s", "150", "outbound"],
    );
    pingpong(&fabric).run(&["--host", "alpha"], &["--host", "beta"]);
    let outcome = stop(&fabric, capture);
    let summary = outcome.stderr.lines().last().unwrap();
    let all: usize = summary
        .strip_prefix("efa-emu: ")
        .and_then(|summary| summary.split(' ').next())
        .unwrap()
        .parse()
        .unwrap();
    let mut names = files_with(directory.path(), "ring_");
    names.sort();
    let counts: Vec<usize> = names
        .iter()
        .map(|name| {
            let of_hosts = frames(&directory.path().join(name));
            assert!(
                of_hosts.iter().all(|(_, inbound, _)| *inbound == 0),
                "{of_hosts:?}"
            );
            of_hosts.iter().map(|(_, _, outbound)| outbound).sum()
        })
        .collect();
    let last = if all.is_multiple_of(10) { 10 } else { all % 10 };
    assert!(all > 20, "{summary}");
    assert_eq!(counts, [10, last], "{summary}");
}

/// A file is full by its age, with any number of frames: `-b duration:N`.
#[test]
fn a_fabric_records_into_timed_files() {
    needs!("fi_pingpong", "libfabric-bin");
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let capture = start_ring(&fabric, directory.path(), &["-b", "duration:0.5"]);
    pingpong(&fabric).run(&["--host", "alpha"], &["--host", "beta"]);
    fabric.wait_for_captures(0);
    // No frame arrives that would begin it.
    wait_for_file(directory.path(), "ring_00002_");
    capture.signal(libc::SIGINT);
    let outcome = capture.wait().expect_success("capture");
    let summary = outcome.stderr.lines().last().unwrap();
    let names = files_with(directory.path(), "ring_");
    let recorded: usize = names
        .iter()
        .flat_map(|name| frames(&directory.path().join(name)))
        .map(|(_, inbound, outbound)| inbound + outbound)
        .sum();
    // None is lost between two files.
    let all = format!("efa-emu: {recorded} frames");
    assert!(summary.starts_with(&all), "{all}: {summary}");
}
