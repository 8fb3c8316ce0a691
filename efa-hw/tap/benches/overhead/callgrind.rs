//! Counts the instructions of the tap's library, and the calls to it.

use std::process::Command;

use efa_testing::callgrind::Profile;

use crate::Result;

/// The library that is preloaded.
const TAP: &str = "libefa_tap.so";
/// The library that the tap passes calls to.
const LIBRARY: &str = "libefa_emu_verbs.so";

/// The counts of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    /// Instructions of the tap, and of the functions that it calls outside of the library, such as
    /// copying memory.
    pub(crate) instructions: u64,
    /// Calls of the program that the tap has passed on.
    pub(crate) calls: u64,
}

/// Counts in a program; `command` is passed the words of callgrind to start it with.
pub(crate) fn count(command: impl FnOnce(&[String]) -> Result<Command>) -> Result<Counts> {
    let mut counts = Counts::default();
    for cost in Profile::record(command)?.costs() {
        let is_tap = cost.object.ends_with(TAP);
        match cost.calls {
            None if is_tap => counts.instructions += cost.instructions,
            Some((callee, calls)) if is_tap != callee.ends_with(TAP) => {
                if !is_tap {
                    counts.calls += calls;
                } else if !callee.ends_with(LIBRARY) {
                    counts.instructions += cost.instructions;
                }
            }
            _ => {}
        }
    }
    Ok(counts)
}
