//! `check` finds no error in stock traffic, however its captures are changed.

use std::process::Command;

use efa_commands::ports::free_port;
use efa_testing::workspace::{conformance, emulator, expect, root};

/// A short run of `scripts/judge-stock`, which makes 500 captures when run by hand.
#[test]
fn stock_captures_are_right_after_each_conversion() {
    for tool in ["fi_pingpong", "editcap", "tshark", "zstd", "lz4"] {
        if Command::new(tool).arg("--version").output().is_err() {
            return efa_testing::skip(format!("{tool} is not installed"));
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let printed = expect(
        Command::new(root().join("scripts/judge-stock"))
            .arg(directory.path())
            .args(["2", "1.17-1-pingpong-rnr-mtagged"])
            .env("EFA_PORT", free_port().unwrap().to_string())
            .env("EFA_EMU", emulator())
            .env("EFA_CONFORMANCE", conformance()),
        0,
        &[],
    );
    let verdict = "2 captures judged, errors in 0; 20 conversions of them judged, errors in 0 (0 could not be made)";
    assert!(printed.contains(verdict), "{printed}");
}
