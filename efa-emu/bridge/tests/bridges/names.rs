//! A name of several machines, whose addresses change.

use std::path::Path;

use crate::machine::{Machine, address, key};

/// Writes the file in which the machine looks up names.
fn write(hosts: &Path, addresses: &[&str]) {
    let lines: String = addresses
        .iter()
        .map(|address| format!("{address} peers\n"))
        .collect();
    // Written in place, because the machine has mounted this file.
    std::fs::write(hosts, format!("127.0.0.1 localhost\n{lines}")).unwrap();
}

#[test]
fn names_follow_their_current_addresses() {
    let directory = tempfile::tempdir().unwrap();
    let key = key(directory.path(), "key");
    let names = ["first", "second", "third"];
    let [Some(first), Some(second), Some(third)] = names.map(Machine::new) else {
        return;
    };
    let hosts = directory.path().join("hosts");
    write(&hosts, &[]);
    let mut mount = third.command(Path::new("mount"));
    let mounted = mount.arg("--bind").args([&hosts, Path::new("/etc/hosts")]);
    assert!(mounted.status().unwrap().success());

    let one = first.bridge(&key, &["--listen", "127.0.0.2:0"]);
    let here = address(&one);
    let (_, port) = here.rsplit_once(':').unwrap();
    let two = second.bridge(&key, &["--listen", &format!("127.0.0.3:{port}")]);
    two.wait_for("listens on");
    let peer = format!("peers:{port}");
    let own = format!("127.0.0.4:{port}");
    let bridge = third.bridge(&key, &["--peer", &peer, "--listen", &own]);
    bridge.wait_for(&format!("cannot find {peer}"));
    // The machine's own address is skipped.
    write(&hosts, &["127.0.0.2", "127.0.0.4"]);
    bridge.wait_for("connected with first");
    write(&hosts, &["127.0.0.2", "127.0.0.4", "127.0.0.3"]);
    bridge.wait_for("connected with second");
    // A removed machine is not dialed forever.
    write(&hosts, &["127.0.0.4", "127.0.0.3"]);
    one.signal(libc::SIGTERM);
    bridge.wait_for(&format!("{here} is dialed no longer"));
    // It restarts with another address, like a pod.
    drop(one);
    let again = first.bridge(&key, &["--listen", &format!("127.0.0.5:{port}")]);
    again.wait_for("listens on");
    write(&hosts, &["127.0.0.4", "127.0.0.3", "127.0.0.5"]);
    again.wait_for("connected with third");
}
