//! What `efa-conformance` prints with `--json`: the documented fields.

use std::path::{Path, PathBuf};

use efa_emu::capture::{CaptureTap, Interface, Reader, Writer};
use efa_testing::json::assert_documented;
use efa_testing::workspace::{efa_conformance, traces};
use serde_json::Value;

/// What a command prints, value by value.
fn printed(arguments: &[&str]) -> Vec<Value> {
    let output = efa_conformance(arguments).output().unwrap();
    let values = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
    let values: Vec<Value> = values.map(Result::unwrap).collect();
    assert!(!values.is_empty(), "{output:?}");
    values
}

/// A trace's capture with a wrong version in its first packet, and without its end.
fn damaged(directory: &Path, name: &str) -> PathBuf {
    let path = traces().join(name);
    let mut bytes = std::fs::read(&path).unwrap();
    let mut reader = Reader::open(&path).unwrap();
    let first = reader.next_frame().unwrap().unwrap();
    let frame = first.frame.as_ref().unwrap();
    let packet_at = first.bytes.len() - frame.payload.len();
    let start = bytes
        .windows(first.bytes.len())
        .position(|window| window == first.bytes)
        .unwrap();
    bytes[start + packet_at + 1] = 9;
    bytes.truncate(bytes.len() - 3);
    let path = directory.join("damaged.pcapng");
    std::fs::write(&path, bytes).unwrap();
    path
}

/// A trace's capture as it would have been recorded with a snap length.
fn cut(directory: &Path, name: &str, snaplen: u32) -> PathBuf {
    let mut reader = Reader::open(&traces().join(name)).unwrap();
    let mut writer = Writer::with_snaplen(Vec::new(), snaplen).unwrap();
    for host in ["a", "b"] {
        let interface = Interface {
            host: host.to_owned(),
            profile: "efa2".to_owned(),
            gid: Default::default(),
        };
        writer.add_interface(&interface).unwrap();
    }
    let mut time = std::time::Duration::ZERO;
    while let Some(frame) = reader.next_frame().unwrap() {
        let direction = frame.direction.unwrap();
        writer.frame(
            frame.interface,
            frame.time,
            direction,
            &frame.frame.unwrap(),
        );
        time = frame.time;
    }
    let path = directory.join("cut.pcapng");
    std::fs::write(&path, writer.finish(time).unwrap()).unwrap();
    path
}

#[test]
fn check() {
    let directory = tempfile::tempdir().unwrap();
    let path = damaged(directory.path(), "long-read.pcapng");
    let values = printed(&["check", path.to_str().unwrap(), "--json"]);
    assert_documented("efa-conformance check", &values, &[]);
    assert_eq!(values[0]["result"], "failed");
    let damage = values[0]["damage"].as_array().unwrap();
    assert_eq!(damage.len(), 2, "{damage:?}");
}

#[test]
fn list() {
    let values = printed(&["list", traces().to_str().unwrap(), "--json"]);
    // The engine plays all traces.
    assert_documented("efa-conformance list", &values, &["codec_only"]);
}

#[test]
fn show() {
    let directory = tempfile::tempdir().unwrap();
    let damaged = damaged(directory.path(), "long-read.pcapng");
    let cut = cut(directory.path(), "medium-untagged.pcapng", 256);
    let mut values = Vec::new();
    let others = ["read-direct.pcapng", "releases/not-ready-eager-2.5.pcapng"];
    for path in others
        .map(|name| traces().join(name))
        .into_iter()
        .chain([damaged, cut])
    {
        values.extend(printed(&["show", path.to_str().unwrap(), "--json"]));
    }
    assert_documented("efa-conformance show", &values, &["immediate"]);
    let of_cut: Vec<_> = values
        .iter()
        .filter(|value| value.get("captured").is_some())
        .collect();
    // The fields of the header are there, and a packet that is not whole is not called invalid.
    assert!(
        of_cut
            .iter()
            .any(|value| value["fields"]["msg_id"].is_number())
    );
    for value in of_cut {
        assert!(
            value["captured"].as_u64() < value["bytes"].as_u64(),
            "{value}"
        );
        assert!(value.get("invalid").is_none(), "{value}");
    }
}
