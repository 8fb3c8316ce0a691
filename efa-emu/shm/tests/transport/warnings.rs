//! Warnings on standard error about problems that fail no call of the program. Each is printed
//! once, however often its cause occurs.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use efa_core::nic::Status;
use efa_device_model::provider::SendData;
use efa_shm::ArmedFault;
use efa_testing::engine::{Client, config, fabric};
use efa_testing::patience::Wait;

use crate::processes::{Parent, errors_of};

/// A problem that a child causes twice, and the text of its line.
type Case = (fn(&Path), &'static str);

const CASES: [Case; 6] = [
    (unreadable_rule, "leaving out a rule of"),
    (
        fault_without_effect,
        "a staged fault cannot do its work: no host \"nobody\"",
    ),
    (unreachable_host, "cannot reach the host fe80::"),
    (
        unreachable_process,
        "cannot reach a process of the host fe80::",
    ),
    (refused_ring, "refusing what a process sends: "),
    (capture, "cannot record into "),
];

/// A child that causes the problem with this number.
pub(crate) fn warned(parent: &Parent) {
    let (trouble, _) = CASES[parent.seed as usize];
    trouble(&parent.root);
}

#[test]
fn each_kind_of_trouble_is_reported_once() {
    for (number, (_, part)) in CASES.iter().enumerate() {
        let root = tempfile::tempdir().unwrap();
        let errors = errors_of("warned", root.path(), number as u64);
        let lines: Vec<&str> = errors.lines().collect();
        let [line] = lines[..] else {
            panic!("{part}: {errors}");
        };
        let start = format!("efa-emu: {part}");
        assert!(line.starts_with(&start), "{part}: {line}");
    }
}

/// The files in a directory whose names have this ending.
fn files(directory: &Path, ending: &str) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path, ending)),
            false if path.to_str().unwrap().ends_with(ending) => drop(found.insert(path)),
            false => {}
        }
    }
    found
}

/// The file with this ending that `open` adds to the fabric.
fn new_file<T>(root: &Path, ending: &str, open: impl FnOnce() -> T) -> (T, PathBuf) {
    let before = files(root, ending);
    let opened = open();
    let mut new = files(root, ending).into_iter();
    let new = new.find(|path| !before.contains(path)).unwrap();
    (opened, new)
}

/// Overwrites a part of a file of the fabric.
fn damage(path: &Path, at: u64) {
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(b"\nnonsense", at).unwrap();
}

/// Sends twice from `alpha`. Returns the outcome of the second send.
fn send_twice(alpha: &mut Client, beta: &mut Client) -> Option<Status> {
    let to = alpha.connect(beta.address());
    beta.connect(alpha.address());
    let memory = beta.register(vec![0; 64]);
    let mut last = None;
    for number in 0..2 {
        beta.post_recv(number, memory.buffer(0, 64));
        assert!(alpha.post_send(number, to, SendData::Inline(&[b"x"])));
        let wait = Wait::start();
        last = loop {
            beta.engine.progress();
            if let Some(completion) = alpha.poll() {
                break completion.status();
            }
            wait.check(|| "the send does not complete".into());
        };
    }
    last
}

fn unreadable_rule(root: &Path) {
    let fabric = fabric(root);
    let _alpha = Client::open(root, &config("alpha"));
    for action in ["drop", "duplicate"] {
        let rule = format!(r#"when = {{ operation = "send" }}, then = "{action}""#);
        fabric.arm(&rule.parse().unwrap()).unwrap();
    }
    let board = files(root, "/faults").pop_first().unwrap();
    // The text of the first slot.
    damage(&board, 65536 + 128);
    for _ in 0..2 {
        let armed: Vec<ArmedFault> = fabric.armed().unwrap();
        let texts: Vec<String> = armed.iter().map(|rule| rule.fault.to_string()).collect();
        assert_eq!(texts.len(), 1, "{texts:?}");
        assert!(texts[0].contains("duplicate"), "{texts:?}");
    }
}

fn fault_without_effect(root: &Path) {
    let mut alpha = Client::open(root, &config("alpha"));
    let mut beta = Client::open(root, &config("beta"));
    let rule = r#"when = { operation = "send" }, then = { kill = "nobody" }"#;
    fabric(root).arm(&rule.parse().unwrap()).unwrap();
    assert_eq!(send_twice(&mut alpha, &mut beta), Some(Status::Ok));
}

fn unreachable_host(root: &Path) {
    let mut alpha = Client::open(root, &config("alpha"));
    let (mut beta, table) = new_file(root, "/table", || Client::open(root, &config("beta")));
    damage(&table, 0);
    let unreachable = Some(Status::LocalUnreachableRemote);
    assert_eq!(send_twice(&mut alpha, &mut beta), unreachable);
}

fn unreachable_process(root: &Path) {
    let mut alpha = Client::open(root, &config("alpha"));
    let (mut beta, segment) = new_file(root, ".device", || Client::open(root, &config("beta")));
    damage(&segment, 0);
    let unreachable = Some(Status::LocalUnreachableRemote);
    assert_eq!(send_twice(&mut alpha, &mut beta), unreachable);
}

fn refused_ring(root: &Path) {
    let (mut alpha, segment) = new_file(root, ".device", || Client::open(root, &config("alpha")));
    let mut beta = Client::open(root, &config("beta"));
    // Mapping a ring checks its process's segment.
    damage(&segment, 0);
    assert_ne!(send_twice(&mut alpha, &mut beta), Some(Status::Ok));
}

fn capture(root: &Path) {
    let alpha = Client::open(root, &config("alpha"));
    for _ in 0..2 {
        let enter = || fabric(root).enter_host(Some("alpha"), None, 1).unwrap();
        let (recorder, lock) = new_file(root, ".lock", enter);
        let draft = root.join("draft");
        fs::write(&draft, "nonsense").unwrap();
        fs::rename(&draft, lock.with_extension("capture")).unwrap();
        let wait = Wait::start();
        while !recorder.devices_not_recording().unwrap().is_empty() {
            wait.check(|| "the device does not answer".into());
            alpha.engine.progress();
        }
    }
}
