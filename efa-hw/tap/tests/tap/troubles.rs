//! Failures around a tap: the program continues, and the capture is readable.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use efa_capture::frame::FrameKind;
use efa_capture::{Direction, Reader};
use efa_testing::patience::Wait;
use efa_testing::programs::{Dialogue, NO_FOREIGN_HANDLER, Program, TestFabric, files_with, needs};
use efa_testing::workspace::{built, outcome};

use crate::{tap, tap_with_limit, tapped};

fn efa_tap(arguments: &[&str]) -> Command {
    let mut command = Command::new(built("efa-tap"));
    command.args(arguments);
    command
}

/// The number of frames in a capture, and of those that it reports as missing. A tap that was
/// killed may have left an incomplete frame.
fn counts(path: &Path) -> (u64, u64) {
    let mut reader = Reader::open(path).unwrap();
    let mut frames = 0;
    while reader.next_frame().unwrap().is_some() {
        frames += 1;
    }
    let counts = reader
        .interfaces()
        .iter()
        .filter_map(|interface| interface.counts);
    (frames, counts.map(|counts| counts.dropped).sum())
}

fn pingpong<'a>(fabric: &'a TestFabric, tap: &'a [String], rounds: &'a str) -> Dialogue<'a> {
    let program = "fi_pingpong -p efa -e rdm -S 4096 -I".split(' ');
    tapped(fabric, tap, &program.chain([rounds]).collect::<Vec<_>>())
}

/// The length of a capture; 0 if it does not exist.
fn length(capture: &Path) -> u64 {
    fs::metadata(capture).map_or(0, |file| file.len())
}

/// Waits until a capture has some frames.
fn wait_for_frames(capture: &Path) {
    let wait = Wait::start();
    while length(capture) < 100_000 {
        wait.pause(|| "nothing is captured".into());
    }
}

/// The first child of a process.
fn child_of(process: i32) -> Option<i32> {
    let children = format!("/proc/{process}/task/{process}/children");
    let children = fs::read_to_string(children).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

const HOSTS: [[&str; 2]; 2] = [["--host", "alpha"], ["--host", "beta"]];

/// The exit status is the program's, and standard output only has the program's output.
#[test]
fn programs_without_a_device_run_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let capture = directory.path().join("none.pcapng");
    let path = capture.to_str().unwrap();
    let output = efa_tap(&["run", "--pcap", path, "--", "sh", "-c", "echo said; exit 7"]).output();
    let (status, said) = outcome(&output.unwrap());
    assert_eq!(status, Some(7));
    assert!(said.starts_with("said\nefa-tap: "), "{said}");
    assert!(said.contains("no process opened an EFA device"), "{said}");
    assert_eq!(counts(&capture), (0, 0));

    let output = efa_tap(&["run", "-q", "--pcap", path, "--", "sh", "-c", "kill -9 $$"]).output();
    let (status, said) = outcome(&output.unwrap());
    assert_eq!((status, said.as_str()), (None, ""));
}

/// A program without a dynamic linker is reported; a file that is no ELF program is not.
#[test]
fn static_programs_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let capture = directory.path().join("none.pcapng");
    let program = directory.path().join("static");
    // An ELF header for x86-64 without program headers: the kernel refuses it, after the tap
    // examined it.
    let mut header = [0; 64];
    header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    fs::write(&program, header).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&program, executable).unwrap();
    let run = |program: &Path| {
        let [capture, program] = [&capture, program].map(|path| path.to_str().unwrap());
        outcome(
            &efa_tap(&["run", "--pcap", capture, "--", program])
                .output()
                .unwrap(),
        )
    };
    let (status, said) = run(&program);
    assert_ne!(status, Some(0));
    assert!(said.contains("is linked statically"), "{said}");
    let (status, said) = run(Path::new("/bin/true"));
    assert_eq!(status, Some(0));
    assert!(!said.contains("statically"), "{said}");
}

/// Compiles a shared library.
fn compile(source: &str, output: &Path, options: &[&str]) {
    let file = output.with_extension("c");
    fs::write(&file, source).unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
        .args([output, &file])
        .args(options)
        .status();
    assert!(compiled.expect("cc starts: Rust links with it").success());
}

/// libibverbs cannot report a device's GID, and libefa is missing: the program gets the results of
/// the library and continues, and missing functions and records are reported.
#[test]
fn a_library_without_a_function_is_reported() {
    needs!("python3", "python3");
    const LIBRARY: &str = "
static char context[4096];
void *ibv_open_device(void *device) { return context; }
int ibv_close_device(void *context) { return 0; }
int ibv_query_device(void *context, void *attributes) { return 0; }
int ibv_query_port(void *context, unsigned char port, void *attributes) { return 0; }
";
    const PROGRAM: &str = "
import ctypes, sys
verbs = ctypes.CDLL(sys.argv[1])
verbs.ibv_open_device.restype = ctypes.c_void_p
context = ctypes.c_void_p(verbs.ibv_open_device(None))
print('opened' if context else 'not opened', hasattr(verbs, 'ibv_query_gid'))
all = ctypes.CDLL(None, use_errno=True)
all.efadv_create_cq.restype = ctypes.c_void_p
print(all.efadv_create_cq(context, None, None, 0), ctypes.get_errno())
print(verbs.ibv_close_device(context))
";
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("libibverbs.so");
    compile(LIBRARY, &library, &["-Wl,-soname,libibverbs.so.1"]);
    let capture = directory.path().join("none.pcapng");
    let [library, pcap] = [&library, &capture].map(|path| path.to_str().unwrap());
    let words = [
        "run", "--pcap", pcap, "--", "python3", "-c", PROGRAM, library,
    ];
    let outcome = Program::start(efa_tap(&words)).wait().expect_success("it");
    let expected = format!("opened False\nNone {}\n0\n", libc::ENOSYS);
    assert_eq!(outcome.stdout, expected);
    for message in [
        "lacks ibv_query_device, ibv_query_port or ibv_query_gid: what goes over its devices is not recorded",
        "efadv_create_cq is in no library that the program has loaded: the call fails",
    ] {
        assert_eq!(
            outcome.stderr.matches(message).count(),
            1,
            "{}",
            outcome.stderr
        );
    }
    assert_eq!(counts(&capture), (0, 0));
}

/// The machine's clock is set back while a program is recorded. Frames keep their order and
/// distance.
#[test]
fn setting_the_clock_back_changes_no_times() {
    needs!("fi_pingpong", "libfabric-bin");
    // From the hundredth call on, the program gets a time that is an hour earlier.
    const CLOCK: &str = "
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t which, struct timespec *time) {
    static int looks;
    int result = syscall(SYS_clock_gettime, which, time);
    if (which == CLOCK_REALTIME && __atomic_fetch_add(&looks, 1, __ATOMIC_RELAXED) >= 100)
        time->tv_sec -= 3600;
    return result;
}
";
    let directory = tempfile::tempdir().unwrap();
    let clock = directory.path().join("clock.so");
    compile(CLOCK, &clock, &[]);
    let script = format!("LD_PRELOAD=$LD_PRELOAD:{} exec \"$@\"", clock.display());
    let mut words = tap(directory.path(), "");
    words.extend(["sh", "-c", &script, "sh"].map(str::to_owned));
    let fabric = TestFabric::new();
    let begun = SystemTime::now();
    let outcomes = pingpong(&fabric, &words, "400").run(&HOSTS[0], &HOSTS[1]);
    // The clock of this machine may be set too, by less.
    let since = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap();
    let minute = Duration::from_secs(60);
    let during = since(begun) - minute..since(SystemTime::now()) + minute;
    for (host, outcome) in ["alpha", "beta"].into_iter().zip(outcomes) {
        assert!(!outcome.stderr.contains("too late"), "{}", outcome.stderr);
        let mut reader = Reader::open(&directory.path().join(format!("{host}.tap"))).unwrap();
        let mut count = 0;
        while let Some(captured) = reader.next_frame().unwrap() {
            count += 1;
            assert!(during.contains(&captured.time), "packet {count}");
        }
        assert!(count > 800, "{count}");
    }
}

/// A file that may not grow further simulates a full disk. The programs end normally, the capture
/// is readable, and missing frames are counted.
#[test]
fn a_full_disk_costs_frames_only() {
    needs!("fi_pingpong", "libfabric-bin");
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let tap = tap_with_limit(directory.path(), "", "700");
    let [alpha, beta] = &HOSTS;
    let outcomes = pingpong(&fabric, &tap, "400").run(alpha, beta);
    for (host, outcome) in ["alpha", "beta"].into_iter().zip(outcomes) {
        let (frames, dropped) = counts(&directory.path().join(format!("{host}.tap")));
        assert!(frames > 50 && dropped > 100, "{frames} {dropped}");
        let said = format!("{dropped} dropped");
        assert!(outcome.stderr.contains(&said), "{}", outcome.stderr);
    }
}

/// If the program or the tap is killed, the other side of the dialogue does not notice the tap, the
/// part of the capture until then is readable, and the next run removes the leftovers.
#[test]
fn a_killed_tap_leaves_its_program_alone() {
    needs!("fi_pingpong", "libfabric-bin");
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let tap = tap(directory.path(), "--buffer 1");
    // Enough messages that the programs are still running when the first frames are captured.
    let dialogue = pingpong(&fabric, &tap, "10000");
    let server = dialogue.server(&HOSTS[0]);
    let client = dialogue.client(&HOSTS[1]);
    // `efa-emu run` starts a shell, which executes the tap.
    let killed = client.inner_id();
    let capture = directory.path().join("beta.tap");
    wait_for_frames(&capture);
    // SAFETY: the call takes no pointers.
    unsafe { libc::kill(killed, libc::SIGKILL) };
    // The program continues to the end of the dialogue: the server sees no difference.
    server.wait().expect_success("server");
    let (frames, _) = counts(&capture);
    assert!(frames > 10, "{frames}");
    // SAFETY: the call takes no pointers.
    let user = unsafe { libc::geteuid() };
    let runs = format!("/dev/shm/efa-tap-{user}");
    let of_killed = format!("run-{killed}-");
    // The leftovers are in use until the program has ended, which may be after the server.
    let wait = Wait::start();
    while !files_with(Path::new(&runs), &of_killed).is_empty() {
        wait.pause(|| format!("{of_killed} stays in {runs}"));
        let next = directory.path().join("next.tap");
        let next = next.to_str().unwrap();
        Program::start(efa_tap(&["run", "-q", "--pcap", next, "--", "true"]))
            .wait()
            .expect_success("next");
    }
    drop(client);
}

/// While the tap is stopped, its buffer fills up. The program continues, and records without room
/// are counted.
#[test]
fn a_full_buffer_costs_frames_only() {
    needs!("fi_pingpong", "libfabric-bin");
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let tap = tap(directory.path(), "--buffer 1");
    // Enough messages that the programs are still running when the first frames are captured.
    let dialogue = pingpong(&fabric, &tap, "10000");
    let server = dialogue.server(&HOSTS[0]);
    let client = dialogue.client(&HOSTS[1]);
    let stopped = client.inner_id();
    let capture = directory.path().join("beta.tap");
    wait_for_frames(&capture);
    // SAFETY: the call takes no pointers.
    unsafe { libc::kill(stopped, libc::SIGSTOP) };
    server.wait().expect_success("server");
    // SAFETY: the call takes no pointers.
    unsafe { libc::kill(stopped, libc::SIGCONT) };
    let outcome = client.wait().expect_success("client");
    let (frames, dropped) = counts(&capture);
    // The file has room for fewer than 300 of the 20000 messages.
    assert!(frames > 100 && dropped > 500, "{frames} {dropped}");
    let said = format!("{dropped} dropped");
    assert!(outcome.stderr.contains(&said), "{}", outcome.stderr);
}

/// The capture of a killed program has everything that the program had published.
#[test]
fn a_killed_program_leaves_a_readable_capture() {
    needs!("fi_pingpong", "libfabric-bin");
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let tap = tap(directory.path(), "");
    let dialogue = pingpong(&fabric, &tap, "100000");
    let server = dialogue.server(&HOSTS[0]);
    let client = dialogue.client(&HOSTS[1]);
    let capture = directory.path().join("beta.tap");
    wait_for_frames(&capture);
    let program = child_of(client.inner_id()).unwrap();
    // SAFETY: the call takes no pointers.
    unsafe { libc::kill(program, libc::SIGKILL) };
    let outcome = client.wait();
    assert_eq!(outcome.code(), 137, "{outcome:?}");
    drop(server);
    let (frames, _) = counts(&capture);
    assert!(frames > 10, "{frames}");
}

/// A tap that is never switched on.
#[test]
fn an_idle_tap_records_nothing() {
    needs!("fi_pingpong", "libfabric-bin");
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let tap = tap(directory.path(), "--idle");
    pingpong(&fabric, &tap, "10").run(&HOSTS[0], &HOSTS[1]);
    for host in ["alpha", "beta"] {
        let capture = directory.path().join(format!("{host}.tap"));
        assert_eq!(counts(&capture), (0, 0));
    }
}

/// Only frames between on and off are recorded.
#[test]
fn recording_is_switched_on_and_off() {
    needs!("fi_pingpong", "libfabric-bin");
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let tap = tap(directory.path(), "--idle");
    // More than can be sent: the test ends the programs.
    let mut dialogue = pingpong(&fabric, &tap, "100000000");
    dialogue.environment = &NO_FOREIGN_HANDLER;
    let server = dialogue.server(&HOSTS[0]);
    let client = dialogue.client(&HOSTS[1]);
    let tap_id = client.inner_id();
    let capture = directory.path().join("beta.tap");
    let wait = Wait::start();
    let program = loop {
        let program = child_of(tap_id).map(|program| program.to_string());
        if let Some(program) = program
            && efa_tap(&["on", &program])
                .output()
                .unwrap()
                .status
                .success()
        {
            break program;
        }
        wait.pause(|| "the program opens no device".into());
    };
    wait_for_frames(&capture);
    let off = efa_tap(&["off", &program]).output().unwrap();
    assert!(off.status.success(), "{off:?}");
    // The frames recorded until then are written; the dialogue continues.
    let mut before = 0;
    let wait = Wait::start();
    while length(&capture) != before {
        before = length(&capture);
        wait.pause(|| "it is still recorded".into());
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(child_of(tap_id).is_some(), "the program has ended");
    let on = efa_tap(&["on", &program]).output().unwrap();
    assert!(on.status.success(), "{on:?}");
    let wait = Wait::start();
    while length(&capture) < before + 1_000_000 {
        wait.pause(|| "it is not recorded again".into());
    }
    client.signal(libc::SIGTERM);
    client.wait();
    drop(server);
    let mut reader = Reader::open(&capture).unwrap();
    let mut arrived = 0;
    while let Some(captured) = reader.next_frame().unwrap() {
        let frame = captured.frame.unwrap();
        if captured.direction == Some(Direction::Inbound) && frame.header.kind == FrameKind::Send {
            // In the second recording, nearly all receives were posted while nothing was recorded.
            assert!(!frame.payload.is_empty(), "packet {}", captured.number);
            arrived += 1;
        }
    }
    assert!(arrived > 10, "{arrived}");

    let nobody = efa_tap(&["on", "1"]).output().unwrap();
    let (status, said) = outcome(&nobody);
    assert_eq!(status, Some(2));
    assert!(said.contains("--idle"), "{said}");
}
