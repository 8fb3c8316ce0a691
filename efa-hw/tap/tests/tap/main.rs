//! The tap over the emulated libraries.

mod agrees;
mod compared;
mod troubles;

use std::path::Path;

use efa_testing::programs::{Dialogue, TestFabric};
use efa_testing::workspace::built;

/// The words that start a program under the tap on an emulated host.
fn tap(directory: &Path, options: &str) -> Vec<String> {
    tap_with_limit(directory, options, "unlimited")
}

/// As [`tap`]; files of the tap, but not of the program, are limited to this many blocks of 512
/// bytes.
fn tap_with_limit(directory: &Path, options: &str, blocks: &str) -> Vec<String> {
    let script = format!(
        "ulimit -S -f {blocks}; exec {} run --pcap {}/$EFA_EMU_HOST.tap {options} -- \
         sh -c 'ulimit -S -f unlimited; exec \"$@\"' sh \"$@\"",
        built("efa-tap").display(),
        directory.display()
    );
    ["sh", "-c", &script, "tap"].map(str::to_owned).into()
}

/// A dialogue of `fi_pingpong` in which both programs run under the tap; its captures are written
/// to the tap's directory, as `HOST.tap`.
fn tapped<'a>(fabric: &'a TestFabric, tap: &'a [String], program: &[&'a str]) -> Dialogue<'a> {
    let tap: Vec<&str> = tap.iter().map(String::as_str).collect();
    Dialogue::new(fabric, &[&tap[..], program].concat(), "-B", "-P")
}
