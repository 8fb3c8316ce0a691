//! Time limits for machines, and the check for remaining files.

use std::time::Duration;

use efa_shm::SHARED_MEMORY;

use super::network::Machines;
use crate::harness::{Bench, NotMeasured, Running, await_some, failed};

pub(super) const GROUP: &str = "machines";

/// Maximum time to create and connect machines, on a busy machine.
pub(super) const START: Duration = Duration::from_secs(60);

/// Maximum time for bridges to exit.
pub(super) const END: Duration = Duration::from_secs(60);

/// No files of the fabric may remain in the shared memory of any machine, `limit` after the last
/// host has gone, with which bridges exit.
pub(super) fn nothing_is_left(
    bench: &Bench,
    machines: &Machines,
    limit: Duration,
) -> Result<(), NotMeasured> {
    for machine in 0..machines.count() {
        await_some(limit, || {
            let mut command = machines.command(machine);
            command.args(["find", SHARED_MEMORY, "-name", bench.fabric()]);
            let found = Running::start(bench, "find".into(), command)?.success()?;
            match found.stdout.is_empty() {
                true => Ok(()),
                false => Err(failed!("m{machine} has {} left", found.stdout.trim())),
            }
        })?;
    }
    Ok(())
}
