//! One capture file with several writers, some of which are killed.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use efa_capture::frame::{Frame, FrameKind, Repr};
use efa_capture::{
    CaptureTap, Counts, Direction, FileWriter, Follower, Interface, InterfaceId, Reader,
    SharedFile, WHOLE_FRAMES, Writer, create_shared,
};
use efa_testing::patience::Wait;
use efa_wire::address::{Gid, Qpn};

use crate::counted;

const PAYLOAD: usize = 8100;

/// The environment variable that names the file to a child.
const FILE: &str = "CAPTURE_FILE";

fn file_of_child() -> PathBuf {
    std::env::var_os(FILE).unwrap().into()
}

/// Makes a capture file.
fn create(path: &Path) -> PathBuf {
    create_shared(path, &interface(), WHOLE_FRAMES).unwrap();
    path.to_owned()
}

fn interface() -> Interface {
    Interface::new("a", "efa2", Gid([1; 16]))
}

fn record(file: &mut SharedFile, writer: u16, sequence: u32) {
    let payload = [sequence as u8; PAYLOAD];
    let header = Repr {
        source_qpn: Qpn(writer),
        destination_qpn: Qpn(0),
        sequence,
        ..Repr::new(FrameKind::Send, PAYLOAD)
    };
    let frame = Frame {
        source: Gid([1; 16]),
        destination: Gid([2; 16]),
        header,
        payload: &payload,
    };
    let time = Duration::from_nanos(sequence.into());
    file.frame(InterfaceId::FIRST, time, Direction::Outbound, &frame);
}

/// The (writer, sequence number) of every frame, and the summed counts.
fn read(path: &Path) -> (Vec<(u16, u32)>, Option<Counts>, bool) {
    let mut reader = Reader::open(path).unwrap();
    let mut frames = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        let frame = frame.frame.unwrap();
        assert_eq!(frame.payload, [frame.header.sequence as u8; PAYLOAD]);
        frames.push((frame.header.source_qpn.0, frame.header.sequence));
    }
    let truncated = reader.truncation().is_some();
    (frames, reader.interfaces()[0].counts, truncated)
}

#[test]
fn two_handles_share_a_file_and_counts() {
    let directory = tempfile::tempdir().unwrap();
    let path = create(&directory.path().join("a.pcapng"));
    let (mut one, mut two) = (
        SharedFile::open(&path).unwrap(),
        SharedFile::open(&path).unwrap(),
    );
    for sequence in 0..3 {
        record(&mut one, 1, sequence);
        record(&mut two, 2, sequence);
    }
    record(&mut two, 2, 3);
    assert_eq!(one.close().unwrap(), counted(3, 0));
    assert_eq!(two.close().unwrap(), counted(4, 0));
    let (frames, counts, truncated) = read(&path);
    assert_eq!(
        frames,
        [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (2, 2), (2, 3)]
    );
    assert_eq!(counts, Some(counted(7, 0)));
    assert!(!truncated);
}

#[test]
fn a_killed_writers_remains_are_truncated() {
    let directory = tempfile::tempdir().unwrap();
    let path = create(&directory.path().join("a.pcapng"));
    let mut file = SharedFile::open(&path).unwrap();
    let start = std::fs::read(&path).unwrap().len();
    record(&mut file, 1, 0);
    let block = std::fs::read(&path).unwrap().split_off(start);
    // Another writer adds a block, and is killed while it writes one more.
    for cut in [1, 4, 7, 8, 11, 12, 100, block.len() - 4, block.len() - 1] {
        let mut other = OpenOptions::new().append(true).open(&path).unwrap();
        other.write_all(&block).unwrap();
        other.write_all(&block[..cut]).unwrap();
        let (before, _, truncated) = read(&path);
        assert!(truncated, "cut at {cut}");
        record(&mut file, 1, 0);
        let (after, _, truncated) = read(&path);
        assert_eq!(after.len(), before.len() + 1, "cut at {cut}");
        assert!(!truncated);
    }
    assert_eq!(file.counts().dropped, 0);
}

#[test]
fn a_stuck_lock_drops_frames_without_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let path = create(&directory.path().join("a.pcapng"));
    let mut file = SharedFile::open(&path).unwrap();
    let holder = std::fs::File::open(&path).unwrap();
    rustix::fs::flock(&holder, rustix::fs::FlockOperation::LockExclusive).unwrap();
    for sequence in 0..100 {
        record(&mut file, 1, sequence);
    }
    assert_eq!(file.counts(), counted(100, 100));
    assert!(
        file.last_error()
            .unwrap()
            .to_string()
            .contains("is it stopped?")
    );
    drop(holder);
    record(&mut file, 1, 100);
    assert_eq!(file.counts(), counted(101, 100));
    assert_eq!(file.close().unwrap().dropped, 100);
    let (frames, counts, _) = read(&path);
    assert_eq!(frames, [(1, 100)]);
    assert_eq!(counts, Some(counted(101, 100)));
}

#[test]
fn a_foreign_file_is_not_appended_to() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notes.txt");
    std::fs::write(&path, "precious notes, not to be damaged").unwrap();
    let error = SharedFile::open(&path).unwrap_err().to_string();
    assert!(
        error.contains("notes.txt is not a capture made by efa-emu"),
        "{error}"
    );
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        "precious notes, not to be damaged"
    );
}

/// Starts this test binary again, to run one of the ignored functions below.
fn child(function: &str, path: &Path, writer: u16) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            function,
            "--ignored",
            "--nocapture",
            "--test-threads",
            "1",
        ])
        .env(FILE, path)
        .env("WRITER", writer.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn killed_writers_leave_a_whole_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = create(&directory.path().join("a.pcapng"));
    const ROUNDS: u16 = 12;
    for round in 0..ROUNDS {
        let length = || std::fs::metadata(&path).unwrap().len();
        let before = length();
        let mut children: Vec<Child> = (0..3)
            .map(|i| {
                child(
                    "capture_shared::child_records_without_end",
                    &path,
                    round * 3 + i,
                )
            })
            .collect();
        let wait = Wait::start();
        while length() == before {
            wait.pause(|| "no child writes anything".to_owned());
        }
        // Different times in the children's lives, so that some are killed inside a write.
        std::thread::sleep(Duration::from_micros(1_370 * u64::from(round)));
        for child in &mut children {
            child.kill().unwrap();
        }
        for child in &mut children {
            child.wait().unwrap();
        }
    }
    let mut file = SharedFile::open(&path).unwrap();
    record(&mut file, 1000, 0);
    let (frames, _, truncated) = read(&path);
    assert!(!truncated);
    assert_eq!(frames.last(), Some(&(1000, 0)));
    let mut last = std::collections::HashMap::new();
    for (writer, sequence) in frames {
        let before = last.insert(writer, sequence);
        assert!(
            before.is_none_or(|before| before < sequence),
            "writer {writer} at {sequence}"
        );
    }
    assert!(last.len() > usize::from(ROUNDS), "{} writers", last.len());
}

#[test]
#[ignore = "a child process of killed_writers_leave_a_whole_file"]
fn child_records_without_end() {
    let mut file = SharedFile::open(&file_of_child()).unwrap();
    let writer = std::env::var("WRITER").unwrap().parse().unwrap();
    // Bounded, in case the parent dies first.
    for sequence in 0..20_000 {
        record(&mut file, writer, sequence);
    }
}

/// The ignored functions below that write ten frames into the file that the environment names.
const TEN_FRAMES: [&str; 2] = [
    "capture_shared::child_records_ten_frames",
    "capture_shared::child_copies_ten_frames",
];

/// Runs `script`, in which `"$@"` is the function `child` of [`TEN_FRAMES`]; by `unshare` if there
/// are `arguments` for it.
fn ten_frames(
    child: &str,
    namespace: &[&str],
    script: &str,
    environment: &[(&str, &Path)],
) -> Output {
    let shell = ["sh", "-c", script, "sh"];
    let line = [namespace, &shell].concat();
    Command::new(line[0])
        .args(&line[1..])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", child, "--ignored", "--nocapture"])
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Checks a capture that had room for only three of ten frames.
fn assert_three_of_ten(path: &Path) {
    let (frames, counts, truncated) = read(path);
    assert_eq!(frames, [(7, 0), (7, 1), (7, 2)]);
    // The child exited without closing the capture.
    let expected = counted(10, 7);
    assert_eq!(counts, Some(expected));
    assert!(!truncated);
}

#[test]
fn a_full_disk_drops_whole_frames() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let namespace = ["unshare", "--user", "--map-root-user", "--mount"];
    let mount = "mount -t tmpfs -o size=32k none \"$DISK\"";
    let possible = Command::new(namespace[0])
        .args(&namespace[1..])
        .args(["sh", "-c", mount])
        .env("DISK", &disk)
        .output();
    match possible {
        Ok(output) if output.status.success() => {}
        other => {
            return efa_testing::skip(format_args!("no small disk can be mounted here: {other:?}"));
        }
    }
    // The kernel shortens the write that exceeds the disk.
    let script = format!(
        "{mount} && cp \"$RESULT\" \"$DISK/a\" && {FILE}=\"$DISK/a\" \"$@\" && \
         cp \"$DISK/a\" \"$RESULT\""
    );
    for child in TEN_FRAMES {
        let path = create(&directory.path().join("a.pcapng"));
        let variables = [("DISK", &disk), ("RESULT", &path)];
        let output = ten_frames(
            child,
            &namespace,
            &script,
            &variables.map(|(name, path)| (name, &**path)),
        );
        assert!(output.status.success(), "{output:?}");
        assert_three_of_ten(&path);
    }
}

/// Beyond `ulimit -f` the system kills a process by a signal; the capture must avoid that. `ulimit
/// -f` counts blocks of 512 bytes.
#[test]
fn file_size_limits_drop_frames_only() {
    let directory = tempfile::tempdir().unwrap();
    for child in TEN_FRAMES {
        let path = create(&directory.path().join("a.pcapng"));
        let output = ten_frames(child, &[], "ulimit -f 60; exec \"$@\"", &[(FILE, &path)]);
        assert!(output.status.success(), "{output:?}");
        assert_three_of_ten(&path);
    }
}

/// Two growing captures are joined into one, with an interface each and unchanged frames.
#[test]
fn growing_captures_are_followed_and_joined() {
    let directory = tempfile::tempdir().unwrap();
    let paths = ["a", "b"].map(|name| {
        let path = directory.path().join(name);
        create(&path)
    });
    let mut files = paths.each_ref().map(|path| SharedFile::open(path).unwrap());
    let mut followers = paths.each_ref().map(|path| Follower::open(path).unwrap());
    let mut writer = Writer::new(Vec::new()).unwrap();
    let ids = [0, 1].map(|_| writer.add_interface(&interface()).unwrap());
    let mut expected = Vec::new();
    for sequence in 0..300 {
        let side = (sequence % 3 == 0) as usize;
        record(&mut files[side], side as u16, sequence);
        expected.push((side as u16, sequence));
        // Often, so that some frames are taken one by one and others in bulk.
        if sequence % 7 == 0 || sequence == 299 {
            let mut frames = Vec::new();
            for (follower, id) in followers.iter_mut().zip(ids) {
                let mut new = Vec::new();
                follower.read(&mut new).unwrap();
                frames.extend(new.into_iter().map(|frame| (id, frame)));
            }
            frames.sort_by_key(|(_, frame)| frame.time);
            for (id, frame) in frames {
                writer.copy(id, &frame).unwrap();
            }
        }
    }
    // An incomplete block is left alone, and read once it is complete.
    let whole = std::fs::read(&paths[0]).unwrap();
    record(&mut files[0], 0, 300);
    let longer = std::fs::read(&paths[0]).unwrap();
    let mut frames = Vec::new();
    for length in [whole.len() + 1, longer.len() - 1] {
        std::fs::write(&paths[0], &longer[..length]).unwrap();
        assert!(!followers[0].read(&mut frames).unwrap());
    }
    std::fs::write(&paths[0], &longer).unwrap();
    assert!(followers[0].read(&mut frames).unwrap());
    writer.copy(ids[0], &frames[0]).unwrap();
    expected.push((0, 300));
    writer.add_dropped(ids[1], followers[1].dropped().unwrap() + 2);

    let joined = directory.path().join("joined");
    std::fs::write(&joined, writer.finish(Duration::ZERO).unwrap()).unwrap();
    let (frames, counts, truncated) = read(&joined);
    assert_eq!(frames, expected);
    let seen = expected.iter().filter(|(side, _)| *side == 0).count() as u64;
    assert_eq!(counts, Some(counted(seen, 0)));
    assert!(!truncated);

    std::fs::write(
        &paths[1],
        [whole.as_slice(), &[6, 0, 0, 0, 3, 0, 0, 0]].concat(),
    )
    .unwrap();
    let mut damaged = Follower::open(&paths[1]).unwrap();
    assert!(damaged.read(&mut Vec::new()).is_err());
}

#[test]
#[ignore = "a child process of the tests of full disks and limits"]
fn child_records_ten_frames() {
    let mut file = SharedFile::open(&file_of_child()).unwrap();
    for sequence in 0..10 {
        record(&mut file, 7, sequence);
    }
    assert_eq!(file.counts(), counted(10, 7));
    assert!(file.last_error().is_some());
}

#[test]
#[ignore = "a child process of the tests of full disks and limits"]
fn child_copies_ten_frames() {
    // In memory, where there is room: the limits apply to the file below.
    let spool = Path::new("/dev/shm").join(format!("efa-emu-test-{}", std::process::id()));
    let mut frames = Vec::new();
    for sequence in 0..10 {
        create(&spool);
        record(&mut SharedFile::open(&spool).unwrap(), 7, sequence);
        Follower::open(&spool).unwrap().read(&mut frames).unwrap();
    }
    std::fs::remove_file(&spool).unwrap();
    let file = OpenOptions::new()
        .write(true)
        .open(file_of_child())
        .unwrap();
    let mut writer = FileWriter::new(file, WHOLE_FRAMES).unwrap();
    let id = writer.add_interface(&interface(), Duration::ZERO).unwrap();
    for frame in &frames {
        writer.copy(id, frame);
    }
    writer.finish().unwrap();
    let counts = writer.counts(id);
    assert_eq!((counts.seen, counts.dropped), (10, 7));
    assert!(writer.last_error().is_some());
}
