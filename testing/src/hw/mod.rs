//! Runs a test on an EFA device: the machine's own, or an emulated one.

pub mod kernel;

use std::process::Command;

use crate::{test_name, workspace};
use efa_hw::{DeviceName, HwDevice};

/// The variable that is set when a test is run again under the emulator.
const NESTED: &str = "EFA_HW_TEST_UNDER_EMULATOR";

/// Calls `body`, a closure in a test, with a device.
///
/// Without EFA hardware the test binary is started again under `efa-emu run`, with only this test,
/// whose result is that of the process.
///
/// # Panics
/// If there is no device under `efa-emu run` either, or if `efa-emu` was not built.
pub fn with_device(body: impl FnOnce(HwDevice)) {
    with_device_and(|_| (), body);
}

/// As [`with_device`]. `prepare` changes the emulator's command; its result is dropped after the
/// command has exited.
pub fn with_device_and<T>(prepare: impl FnOnce(&mut Command) -> T, body: impl FnOnce(HwDevice)) {
    with_device_under(&[], test_name(&body), prepare, body);
}

/// As [`with_device`], for an emulated device with this profile.
pub fn with_device_of(profile: &str, body: impl FnOnce(HwDevice)) {
    with_device_started(&["--profile", profile], &[], test_name(&body), |_| (), body);
}

/// As [`with_device_and`], for the test `name`. `tool` is a program with its arguments that runs
/// the test binary under the emulator.
pub fn with_device_under<T>(
    tool: &[&str],
    name: &str,
    prepare: impl FnOnce(&mut Command) -> T,
    body: impl FnOnce(HwDevice),
) {
    with_device_started(&[], tool, name, prepare, body);
}

fn with_device_started<T>(
    options: &[&str],
    tool: &[&str],
    name: &str,
    prepare: impl FnOnce(&mut Command) -> T,
    body: impl FnOnce(HwDevice),
) {
    match HwDevice::open(&DeviceName::First) {
        Ok(device) => body(device),
        Err(error) if std::env::var_os(NESTED).is_some() => {
            panic!("no device under the emulator: {error}")
        }
        Err(_) => {
            let test = std::env::current_exe().expect("the test binary has a path");
            let fabric = format!("hw-{}-{}", std::process::id(), name.replace("::", "-"));
            // The longest name of a fabric has 63 characters.
            let fabric = &fabric[..fabric.len().min(63)];
            let mut command = workspace::efa_emu(&["run", "--fabric", fabric]);
            command
                .args(options)
                .arg("--")
                .args(tool)
                .arg(test)
                .args(["--exact", name, "--nocapture", "--test-threads=1"])
                .env(NESTED, "1");
            let _kept = prepare(&mut command);
            let output = command.output().expect("efa-emu starts");
            let status = output.status;
            let printed = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            // With a wrong name no test would run, and the process would succeed.
            assert!(
                status.success() && printed.contains("1 passed"),
                "under the emulator: {status}\n{printed}\n{errors}"
            );
            // The reasons for skipped parts.
            let skipped = printed.lines().filter(|line| line.contains("skipped"));
            skipped.for_each(|line| println!("{line}"));
        }
    }
}
