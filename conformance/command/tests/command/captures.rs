//! `check` and `show` on captures as people have them.

use std::path::Path;

use efa_capture::frame::Frame;
use efa_capture::{CaptureTap as _, Direction, Interface, InterfaceId, Writer};
use efa_check::capture::{Capture, CapturedPacket};
use efa_testing::workspace::{efa_conformance, expect, traces};

/// Writes the frames of a trace that are `kept`.
fn write(trace: &str, kept: impl Fn(&CapturedPacket) -> bool, into: &Path) {
    let capture = Capture::load(&traces().join(format!("{trace}.pcapng"))).unwrap();
    let mut writer = Writer::new(Vec::new()).unwrap();
    for name in &capture.interfaces {
        let interface = Interface {
            host: name.clone(),
            profile: "test".into(),
            gid: capture.frames[0].source,
        };
        writer.add_interface(&interface).unwrap();
    }
    for captured in capture.frames.iter().filter(|frame| kept(frame)) {
        let frame = Frame {
            source: captured.source,
            destination: captured.destination,
            header: captured.header,
            payload: &captured.payload,
        };
        let interface = InterfaceId(captured.interface as u32);
        let direction = captured.direction.unwrap();
        writer.frame(interface, captured.time, direction, &frame);
    }
    let bytes = writer.finish(std::time::Duration::ZERO).unwrap();
    std::fs::write(into, bytes).unwrap();
}

#[test]
fn one_direction_is_said_and_blames_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.pcapng");
    write(
        "long-cts",
        |frame| frame.direction == Some(Direction::Outbound),
        &path,
    );
    let path = path.display().to_string();
    let command = efa_conformance(&["check", &path, "--fail-on", "note"]);
    let printed = expect(command, 0, &[]);
    let note = "not judged: 2 ends of conversations lack frames that they sent or got";
    assert!(printed.contains(note), "{printed}");
    assert!(printed.contains("packet-form, iov-length"), "{printed}");

    let command = efa_conformance(&["check", &path, "--require-complete"]);
    expect(command, 2, &["not all of it could be judged"]);
    let whole = traces().join("long-cts.pcapng").display().to_string();
    let command = efa_conformance(&["check", &whole, "--require-complete"]);
    let printed = expect(command, 0, &[]);
    assert!(!printed.contains("not judged"), "{printed}");
}

#[test]
fn a_missing_beginning_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("late.pcapng");
    write("long-cts", |frame| frame.number > 10, &path);
    let command = efa_conformance(&["check", &path.display().to_string()]);
    let printed = expect(command, 0, &[]);
    let note = "not judged: 2 ends of conversations lack their beginning";
    assert!(printed.contains(note), "{printed}");
    assert!(printed.contains("answer-names-request"), "{printed}");
}

#[test]
fn captures_of_directories_are_judged_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    std::fs::write(file("b.txt"), "no capture").unwrap();
    for (name, trace) in [("c.pcapng", "ping-pong"), ("a.pcapng", "eager-tagged")] {
        let source = traces().join(format!("{trace}.pcapng"));
        std::fs::copy(source, file(name)).unwrap();
    }
    let whole = directory.path().display().to_string();
    let one = file("c.pcapng").display().to_string();
    let output = efa_conformance(&["check", &whole, &one, "--json", "--jobs", "2"]);
    let output = { output }.output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let verdicts = json.as_array().unwrap();
    let name = |verdict: &serde_json::Value| verdict["capture"].as_str().unwrap().to_owned();
    let names: Vec<String> = verdicts.iter().map(name).collect();
    assert_eq!(
        names,
        [file("a.pcapng").display().to_string(), one.clone(), one]
    );
    assert!(verdicts.iter().all(|verdict| verdict["complete"] == true));

    // One that cannot be read fails, and the others are judged.
    std::fs::write(file("b.pcapng"), "no capture").unwrap();
    let printed = expect(efa_conformance(&["check", &whole]), 2, &[]);
    assert_eq!(printed.matches("0 errors").count(), 2, "{printed}");
    assert!(printed.contains("b.pcapng: not a capture"), "{printed}");
}
