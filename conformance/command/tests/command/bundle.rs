//! The contents of `bundle`'s archive.

use std::path::{Path, PathBuf};
use std::process::Command;

use efa_capture::Reader;
use efa_core::wire::Packet;
use efa_testing::workspace::{conformance, efa_conformance, efa_emu, emulator, expect, traces};

/// `bundle` without asking AWS's metadata service, wherever the tests run.
fn bundle(arguments: &[&str], home: &Path) -> Command {
    let mut command = efa_conformance(&["bundle"]);
    command
        .args(arguments)
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("HOME", home);
    command
}

/// The files of an archive, unpacked below a directory.
fn unpack(archive: &Path, below: &Path) -> Vec<PathBuf> {
    let status = Command::new("tar")
        .arg("-xzf")
        .arg(archive)
        .arg("-C")
        .arg(below)
        .status();
    assert!(status.unwrap().success());
    let mut files = Vec::new();
    let mut directories = vec![below.join("efa-bundle")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => directories.push(path),
                false => files.push(path),
            }
        }
    }
    files.sort();
    files
}

/// The last bytes of the applications' data in a capture: of packets, and of RDMA.
fn sent_by_applications(capture: &Path) -> Vec<Vec<u8>> {
    let mut reader = Reader::open(capture).unwrap();
    let mut ends = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        let frame = frame.frame.unwrap();
        let packet = frame
            .rdm_packet()
            .map(|packet| Packet::parse(packet).unwrap());
        let data = &frame.payload[packet.map_or(0, |packet| packet.payload.offset)..];
        // Fewer bytes may occur anywhere by chance.
        if data.len() >= 8 {
            ends.push(data[data.len().saturating_sub(32)..].to_vec());
        }
    }
    ends
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn bundles_hold_no_application_data_and_keep_verdicts() {
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("out.tar.gz");
    let names = [
        "eager-tagged",
        "medium-untagged",
        "long-cts",
        "read-direct",
        "long-read",
        "releases/write-direct-2.5-2.5",
    ];
    let captures = names.map(|name| traces().join(format!("{name}.pcapng")));
    let mut arguments = vec!["-o", archive.to_str().unwrap()];
    arguments.extend(captures.iter().map(|path| path.to_str().unwrap()));
    expect(bundle(&arguments, directory.path()), 0, &[]);
    let files = unpack(&archive, directory.path());
    for capture in &captures {
        let name = capture.file_name().unwrap();
        let cut = files
            .iter()
            .find(|file| file.file_name() == Some(name))
            .unwrap();
        let bytes = std::fs::read(cut).unwrap();
        let sent = sent_by_applications(capture);
        assert!(!sent.is_empty(), "{name:?} has no data");
        let whole = std::fs::read(capture).unwrap();
        for end in sent {
            assert!(contains(&whole, &end));
            assert!(!contains(&bytes, &end), "{name:?}: {end:?}");
        }
        let judged = |path: &Path| -> serde_json::Value {
            let output = efa_conformance(&["check", "--json", path.to_str().unwrap()]).output();
            serde_json::from_slice(&output.unwrap().stdout).unwrap()
        };
        let (before, after) = (judged(capture), judged(cut));
        assert_eq!(before["packets"], after["packets"], "{name:?}");
        assert_eq!(after["counts"]["error"], 0, "{after:#}");
        assert_eq!(after["damage"], before["damage"]);
        let fields = |path: &Path| -> usize {
            let output = efa_conformance(&["show", "--json", path.to_str().unwrap()]).output();
            String::from_utf8(output.unwrap().stdout)
                .unwrap()
                .matches("\"msg_id\"")
                .count()
        };
        assert_eq!(fields(capture), fields(cut), "{name:?}: headers are kept");
    }
}

#[test]
fn names_that_are_private_stay_at_home() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("home-of-somebody");
    std::fs::create_dir(&home).unwrap();
    let trace = home.join("unannounced-product.pcapng");
    for extension in ["pcapng", "toml"] {
        let from = traces().join(format!("eager-tagged.{extension}"));
        std::fs::copy(from, trace.with_extension(extension)).unwrap();
    }
    let report = home.join("report.json");
    let run = efa_conformance(&[
        "run",
        trace.to_str().unwrap(),
        "--json",
        report.to_str().unwrap(),
    ]);
    let mut run = run;
    assert!(run.output().unwrap().status.success());
    let mut text = std::fs::read_to_string(&report).unwrap();
    // Whatever else a report may contain about its machine.
    text = text.replacen(
        "eager-tagged",
        &format!("eager-tagged {} product9", home.display()),
        1,
    );
    std::fs::write(&report, &text).unwrap();
    let archive = directory.path().join("out.tar.gz");
    let arguments = [
        "-o",
        archive.to_str().unwrap(),
        report.to_str().unwrap(),
        "--hide",
        "product9",
    ];
    expect(bundle(&arguments, &home), 0, &[]);
    let files = unpack(&archive, directory.path());
    let names: Vec<_> = files
        .iter()
        .map(|file| file.file_name().unwrap().to_str().unwrap())
        .collect();
    assert_eq!(names, ["doctor.json", "report.json", "versions.json"]);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for private in [home.to_str().unwrap(), "product9", "PATH=", host.trim()] {
            let is_short = private.len() < 3;
            assert!(
                is_short || !text.contains(private),
                "{}: {private}",
                file.display()
            );
        }
    }
    // No other file is left beside the archive.
    let left = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left, 3, "home, archive, what was unpacked");
}

/// The report of a run on two hosts, and the capture of a third one; `bundle` gets only the files.
/// The archive names no host, nor the directory of the profile of the third one's device.
#[test]
fn bundles_name_no_host_or_profile_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::create_dir(path("unannounced")).unwrap();
    let profile = path("unannounced/quick.toml");
    std::fs::write(&profile, "name = \"quick\"\nbase = \"efa2\"\n").unwrap();
    let [program, emulator] = [conformance(), emulator()].map(|path| path.display().to_string());
    let trace = traces().join("eager-tagged.pcapng").display().to_string();
    let fabric = format!("bundle-{}", std::process::id());
    let started = |mut command: Command, words: &[&str]| {
        command.args(words).env("AWS_EC2_METADATA_DISABLED", "true");
        expect(command, 0, &[]);
    };
    let (report, capture, archive) = (path("r.json"), path("lima-17.pcapng"), path("out.tar.gz"));
    let rsh = format!("{emulator} rsh");
    started(
        efa_emu(&["cluster", "2", "--quiet", "--fabric", &fabric, "--"]),
        &[
            &program,
            "run",
            &trace,
            "--at",
            "a=node0",
            "--at",
            "b=node1%rdmap0s0",
            "--rsh",
            &rsh,
            "--remote-program",
            &program,
            "--json",
            &report,
        ],
    );
    let lima = ["run", "-q", "--host", "lima-17", "--profile", &profile];
    started(
        efa_emu(&lima),
        &[
            "--pcap",
            &capture,
            "--",
            &program,
            "run",
            &trace,
            "--backend",
            "hw",
        ],
    );
    started(
        efa_emu(&lima),
        &["--", &program, "bundle", "-o", &archive, &report, &capture],
    );
    let files = unpack(Path::new(&archive), directory.path());
    let names: Vec<_> = files
        .iter()
        .map(|file| file.file_name().unwrap().to_str().unwrap())
        .collect();
    let cut = &files[0];
    assert!(
        names[0].starts_with("HOST") && names[0].ends_with(".pcapng"),
        "{names:?}"
    );
    for file in &files {
        let bytes = std::fs::read(file).unwrap();
        for private in ["lima-17", "node0", "node1", "unannounced"] {
            assert!(
                !contains(&bytes, private.as_bytes()),
                "{private} in {file:?}"
            );
        }
    }
    let read = |name: &str| -> serde_json::Value {
        let file = files.iter().find(|file| file.ends_with(name)).unwrap();
        serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
    };
    let places = &read("r.json")["cases"][0]["places"];
    let [one, other] = ["a", "b"].map(|role| places[role].as_str().unwrap());
    let other = other.strip_suffix("%rdmap0s0").expect("the device stays");
    assert!(
        one.starts_with("HOST") && other.starts_with("HOST") && one != other,
        "{places}"
    );
    let emulated = read("doctor.json").to_string();
    assert!(emulated.contains(", profile quick.toml"), "{emulated}");
    expect(efa_conformance(&["check", cut.to_str().unwrap()]), 0, &[]);
    let mut reader = Reader::open(cut).unwrap();
    let mut frames = 0;
    while reader.next_frame().unwrap().is_some() {
        frames += 1;
    }
    let interfaces: Vec<_> = reader
        .interfaces()
        .iter()
        .map(|one| one.name.clone())
        .collect();
    let expected = names[0].strip_suffix(".pcapng").map(str::to_owned);
    assert_eq!((interfaces, frames > 2), (vec![expected], true));
}

#[test]
fn other_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("out.tar.gz");
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("environment.txt"), "SECRET=1").unwrap();
    std::fs::write(path("any.json"), "{\"SECRET\": 1}").unwrap();
    std::fs::write(path("any.toml"), "SECRET = 1").unwrap();
    std::fs::write(path("any.pcapng"), "SECRET").unwrap();
    for name in [
        "environment.txt",
        "any.json",
        "any.toml",
        "any.pcapng",
        "none.pcapng",
    ] {
        let arguments = ["-o", archive.to_str().unwrap(), &path(name)];
        expect(bundle(&arguments, directory.path()), 2, &[name]);
        assert!(!archive.exists());
    }
}
