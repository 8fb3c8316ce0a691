//! Runs a test on an EFA device: the machine's own, or an emulated one.

use std::process::Command;

use efa_hw::{DeviceName, HwDevice};
use efa_testing::workspace;

/// The variable that is set when a test runs again under the emulator.
const NESTED: &str = "EFA_HW_TEST_UNDER_EMULATOR";

/// Calls `body` with a device.
///
/// Without EFA hardware the test binary is started again under `efa-emu run`, with only the test `name`, whose
/// result is that of the process.
///
/// # Panics
/// If there is no device under `efa-emu run` either, or if `efa-emu` was not built.
pub(crate) fn with_device(name: &str, body: impl FnOnce(HwDevice)) {
    match HwDevice::open(&DeviceName::First) {
        Ok(device) => body(device),
        Err(error) if std::env::var_os(NESTED).is_some() => {
            panic!("no device under the emulator: {error}")
        }
        Err(_) => {
            let test = std::env::current_exe().expect("the test binary has a path");
            let output = Command::new(workspace::emulator())
                .args([
                    "run",
                    "--fabric",
                    &format!("hw-{}-{name}", std::process::id()),
                    "--",
                ])
                .arg(test)
                .args(["--exact", name, "--nocapture", "--test-threads=1"])
                .env(NESTED, "1")
                .output()
                .expect("efa-emu starts");
            let status = output.status;
            let printed = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            // With a wrong name no test would run, and the process would succeed.
            assert!(
                status.success() && printed.contains("1 passed"),
                "under the emulator: {status}\n{printed}\n{errors}"
            );
        }
    }
}
