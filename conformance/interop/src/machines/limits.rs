//! How long what is done with machines may take, and what may be left of it.

use std::time::Duration;

use super::network::Machines;
use crate::harness::{Bench, Running, Unmet, await_some};

pub(super) const GROUP: &str = "machines";

/// How long machines may take to be made and joined. The machine may be busy.
pub(super) const START: Duration = Duration::from_secs(60);

/// How long bridges may take to end by themselves.
pub(super) const END: Duration = Duration::from_secs(60);

/// The bridges end with the last host. Nothing may be left in the shared memory of any machine.
pub(super) fn nothing_is_left(bench: &Bench, machines: &Machines) -> Result<(), Unmet> {
    for machine in 0..machines.count() {
        await_some(END, || {
            let mut command = machines.command(machine);
            command.args(["find", "/dev/shm", "-name", bench.fabric()]);
            let found = Running::start(bench, "find".into(), command)?.success()?;
            Ok(match found.stdout.is_empty() {
                true => Ok(()),
                false => Err(format!(
                    "m{machine} has its fabric for {END:?} after the end"
                )),
            })
        })?;
    }
    Ok(())
}
