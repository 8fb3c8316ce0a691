//! Counts instructions by the object and the source file that contain them.

use std::path::Path;

use efa_testing::callgrind::Profile;

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
    let profile = Profile::record(|words| measure::command(emulator, contender, workload, words))
        .map_err(|error| format!("{}: {error}", contender.name))?;
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let own = own.display().to_string();
    let is_device = |object: &str| object.ends_with(DEVICE);
    let mut counts = Counts {
        all: profile.total(),
        ..Counts::default()
    };
    for cost in profile.costs() {
        match cost.calls {
            Some((callee, _)) => {
                if is_device(cost.object) && !is_device(callee) {
                    counts.device += cost.instructions;
                }
            }
            None if is_device(cost.object) => counts.device += cost.instructions,
            None => {
                let is_harness = !contender.is_engine() || cost.file.contains(HARNESS);
                if cost.object == own && is_harness {
                    counts.harness += cost.instructions;
                }
            }
        }
    }
    Ok(counts)
}
