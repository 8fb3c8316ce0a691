//! Counts instructions by the object and the source file that contain them.

use std::path::Path;

use crate::measure::{self, Implementation, Workload};

/// The emulated device.
const DEVICE: &str = "libefa_emu_verbs.so";
/// The directory of this benchmark's source, as its debug information names it.
const HARNESS: &str = "conformance/play/benches/engine/";

/// Instructions of a whole run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) all: u64,
    /// Instructions of the device and of the functions that it calls in other objects, such as
    /// copying memory.
    pub(crate) device: u64,
    /// Instructions of this benchmark: all of its program, or, if the engine is linked into the
    /// program, those of the benchmark's own source. Inlined code of the standard library counts as
    /// the engine's.
    pub(crate) harness: u64,
}

/// Runs a workload under callgrind.
pub(crate) fn count(
    emulator: &Path,
    contender: &Implementation,
    workload: Workload,
) -> Result<Counts, String> {
    let file = std::env::temp_dir().join(format!("efa-engine-{}.callgrind", std::process::id()));
    let valgrind = [
        "valgrind".to_owned(),
        "--tool=callgrind".to_owned(),
        // A contender's runner executes the program, whose profile replaces the runner's.
        "--trace-children=yes".to_owned(),
        "--compress-strings=no".to_owned(),
        "--compress-pos=no".to_owned(),
        format!("--callgrind-out-file={}", file.display()),
    ];
    let output = measure::command(emulator, contender, workload, &valgrind)?
        .output()
        .map_err(|error| format!("cannot start {}: {error}", emulator.display()))?;
    let profile = std::fs::read_to_string(&file);
    // The file may not exist, and nothing else uses it.
    let _ = std::fs::remove_file(&file);
    match profile {
        Ok(profile) if output.status.success() => {
            let own = std::env::current_exe().map_err(|error| error.to_string())?;
            let own = own.display().to_string();
            Ok(parse(&profile, |object, file| {
                object == own && (!contender.is_engine() || file.contains(HARNESS))
            }))
        }
        _ => Err(format!(
            "callgrind of {} failed (is valgrind installed?): {}",
            contender.name,
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

/// Sums up a profile without compressed names or positions.
fn parse(profile: &str, is_harness: impl Fn(&str, &str) -> bool) -> Counts {
    let mut counts = Counts::default();
    let is_device = |object: &str| object.ends_with(DEVICE);
    let (mut object, mut file, mut called) = ("", "", None);
    let mut is_call = false;
    for line in profile.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            object = name;
        } else if let Some(name) = line.strip_prefix("cob=") {
            called = Some(name);
        } else if let Some(name) = ["fl=", "fi=", "fe="]
            .iter()
            .find_map(|prefix| line.strip_prefix(prefix))
        {
            file = name;
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit()) {
            let cost: u64 = line
                .split_whitespace()
                .nth(1)
                .and_then(|cost| cost.parse().ok())
                .unwrap_or(0);
            if is_call {
                // The cost of the called function with its callees, which the profile also lists
                // separately.
                let callee = called.take().unwrap_or(object);
                if is_device(object) && !is_device(callee) {
                    counts.device += cost;
                }
                is_call = false;
                continue;
            }
            counts.all += cost;
            if is_device(object) {
                counts.device += cost;
            } else if is_harness(object, file) {
                counts.harness += cost;
            }
        }
    }
    counts
}
