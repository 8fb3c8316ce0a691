//! Error messages name the problem and the remedy.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::machine::{Machine, address, joined, key, two};
use efa_commands::ports::free_port;

const DAY: Duration = Duration::from_secs(24 * 3600);

#[test]
fn mismatched_bridges_report_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| key(directory.path(), name));
    let Some(first) = Machine::new("first") else {
        return;
    };
    let here = first.bridge(&ours, &["--listen", "127.0.0.1:0"]);
    let peer = address(&here);
    for (key, options, complaint) in [
        (
            &theirs,
            &["--machine", "b"][..],
            "has another key: use the same --key file",
        ),
        (
            &ours,
            &["--machine", "b", "--fabric", "other"],
            "it joins the fabric default, this machine other",
        ),
        (
            &ours,
            &["--machine", "b", "--plain"],
            "it encrypts, this machine does not encrypt",
        ),
        (
            &ours,
            &["--machine", "first"],
            "both machines are called first",
        ),
    ] {
        let other = first.bridge(key, &[&["--peer", &peer], options].concat());
        other.wait_for(complaint);
    }
    here.wait_for("another key");
    // An address without a listener, and one with another service.
    let nobody = format!("127.0.0.1:{}", free_port().unwrap());
    let alone = first.bridge(&ours, &["--peer", &nobody]);
    alone.wait_for("Connection refused");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stranger = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut stream, b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        let _ = stream.read(&mut [0; 100]);
    });
    let lost = first.bridge(&ours, &["--peer", &stranger]);
    lost.wait_for("it does not speak TLS");
}

/// Key files of a separate authority, with these validity periods of the certificates.
fn keys_of_an_authority<const N: usize>(
    directory: &Path,
    times: [[SystemTime; 2]; N],
) -> [PathBuf; N] {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().unwrap();
    let authority_text = authority.self_signed(&authority_key).unwrap().pem();
    let issuer = Issuer::new(authority, authority_key);
    let mut number = 0;
    times.map(|[from, until]| {
        // The name that docs/machines.md requires.
        let mut bridge = CertificateParams::new(vec!["efa-emu-bridge".to_owned()]).unwrap();
        (bridge.not_before, bridge.not_after) = (from.into(), until.into());
        let own_key = KeyPair::generate().unwrap();
        let certificate = bridge.signed_by(&own_key, &issuer).unwrap().pem();
        let path = directory.join(format!("key{number}"));
        number += 1;
        let text = [certificate, own_key.serialize_pem(), authority_text.clone()].concat();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        path
    })
}

#[test]
fn both_ends_name_expired_certificates() {
    let directory = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let [good, other, expired, early] = keys_of_an_authority(
        directory.path(),
        [
            [now - DAY, now + DAY],
            [now - DAY, now + DAY],
            [now - 2 * DAY, now - DAY],
            [now + DAY, now + 2 * DAY],
        ],
    );
    let Some(first) = Machine::new("first") else {
        return;
    };
    let here = first.bridge(&good, &["--listen", "127.0.0.1:0"]);
    let peer = address(&here);
    for (key, theirs, ours) in [
        (
            &expired,
            "not valid by its clock: look at the clocks of both machines; if they agree, it has expired: make a new key",
            "its certificate has expired: make a new key",
        ),
        (
            &early,
            "not valid by its clock: look at the clocks of both machines",
            "its certificate is not valid yet: look at the clocks of both machines",
        ),
    ] {
        let there = first.bridge(key, &["--peer", &peer, "--machine", "second"]);
        there.wait_for(theirs);
        here.wait_for(ours);
    }
    // Two certificates of one authority match.
    let there = first.bridge(&other, &["--peer", &peer, "--machine", "second"]);
    there.wait_for("connected with first");
    here.wait_for("connected with second");
}

#[test]
fn fabrics_with_equal_host_names_keep_both() {
    let directory = tempfile::tempdir().unwrap();
    let Some((key, first, second)) = two(directory.path()) else {
        return;
    };
    let run = |machine: &Machine, host: &str| {
        let program = "echo started && exec sleep 600";
        let started = machine.emulator(&["run", "--host", host, "--", "sh", "-c", program]);
        started.wait_for("started");
        started
    };
    let hosts = [
        run(&first, "alpha"),
        run(&second, "alpha"),
        run(&first, "beta"),
        run(&second, "gamma"),
    ];
    let here = first.bridge(&key, &["--listen", "127.0.0.1:0"]);
    let there = second.bridge(&key, &["--peer", &address(&here)]);
    for bridge in [&here, &there] {
        bridge.wait_for("is not a member of this machine's fabric: ");
        bridge.wait_for("is not a member of the fabric of ");
    }
    here.wait_for("alpha of second is not a member of this machine's fabric");
    there.wait_for("alpha of first is not a member of this machine's fabric");
    // The other devices are members.
    first.wait_for_host("gamma");
    second.wait_for_host("beta");
    drop(hosts);
}

#[test]
fn a_host_taken_by_another_machine_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let Some([(first, _here), (second, _there)]) = joined(directory.path(), &[]) else {
        return;
    };
    let program = "echo started && exec sleep 600";
    let alpha = first.emulator(&["run", "--host", "alpha", "--", "sh", "-c", program]);
    alpha.wait_for("started");
    second.wait_for_host("alpha");
    let (status, said) = second
        .emulator(&["run", "--host", "alpha", "--", "true"])
        .outcome();
    assert_eq!(status, Some(2), "{said}");
    assert!(
        said.contains("alpha is a device of the machine first"),
        "{said}"
    );
}

#[test]
fn readable_or_malformed_key_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let Some(first) = Machine::new("first") else {
        return;
    };
    let key = key(directory.path(), "key");
    let none = directory.path().join("none");
    std::fs::write(&none, "-----BEGIN NOTHING-----\n").unwrap();
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    set(&none, 0o600);
    let refused = |path: &Path, text: &str| {
        let (status, said) = first.bridge(path, &["--listen", "127.0.0.1:0"]).outcome();
        assert_eq!(status, Some(2), "{said}");
        assert!(said.contains(text), "{said}");
    };
    refused(&none, "none is not a key");
    refused(&directory.path().join("missing"), "cannot open");
    set(&key, 0o604);
    refused(
        &key,
        "key can be read by others (mode 604): run `chmod 600` on it",
    );
    set(&key, 0o640);
    match rustix::process::geteuid().is_root() {
        // The way Kubernetes gives a Secret to a group.
        true => {
            let bridge = first.bridge(&key, &["--listen", "127.0.0.1:0"]);
            bridge.wait_for("listens on");
        }
        false => refused(&key, "can be read by others (mode 640)"),
    }
}
