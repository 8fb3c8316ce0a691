//! The documentation's example that needs an argument.

use std::path::Path;
use std::process::{Command, Output};

use efa_testing::workspace::{built, traces};

fn judge(capture: &Path) -> Output {
    Command::new(built("examples/judge"))
        .arg(capture)
        .output()
        .expect("it starts")
}

#[test]
fn judge_distinguishes_faulty_and_correct_captures() {
    let sound = traces().join("eager-tagged.pcapng");
    let judged = judge(&sound);
    assert!(judged.status.success(), "{judged:?}");

    // An unknown packet type in place of EAGER_TAGRTM, 65, of version 4.
    let mut bytes = std::fs::read(&sound).expect("the corpus is readable");
    let at = bytes
        .windows(2)
        .position(|part| part == [65, 4])
        .expect("the capture has such a packet");
    bytes[at] = 250;
    let directory = tempfile::tempdir().expect("there is room");
    let faulty = directory.path().join("faulty.pcapng");
    std::fs::write(&faulty, bytes).expect("there is room");
    let judged = judge(&faulty);
    let findings = String::from_utf8_lossy(&judged.stdout);
    assert_eq!(judged.status.code(), Some(1), "{judged:?}");
    assert!(
        findings.contains("type id 250 is not assigned"),
        "{findings}"
    );
}
