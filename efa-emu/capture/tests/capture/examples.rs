//! The examples that need arguments; those in the documentation run with it.

use std::process::Command;

use efa_testing::workspace::{built, traces};

#[test]
fn read_capture_lists_the_packets() {
    let output = Command::new(built("examples/read_capture"))
        .arg(traces().join("eager-tagged.pcapng"))
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}");
    let types: Vec<_> = printed
        .lines()
        .map(|line| line.rsplit(' ').next().unwrap())
        .collect();
    // As sent and as received.
    assert_eq!(
        types,
        [
            "EAGER_TAGRTM",
            "EAGER_TAGRTM",
            "HANDSHAKE",
            "HANDSHAKE",
            "HANDSHAKE",
            "HANDSHAKE"
        ]
    );
}
