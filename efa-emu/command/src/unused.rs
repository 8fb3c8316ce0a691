//! The warning of `efa-emu run` about programs that did not use the device: no process asked for
//! devices, or those that did used something else, or were on another fabric.
//!
//! A reason is only named if the marks of the processes ([`usage`](efa_shm::usage)) or the
//! environment prove it.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::Path;

use efa_shm::ENV_FABRICS;
use efa_shm::usage::{Process, UsageStep, processes};

/// Programs that open devices only to describe them.
const DESCRIBING: [&str; 7] = [
    "fi_info",
    "ibv_devices",
    "ibv_devinfo",
    "ucx_info",
    "lstopo",
    "hwloc-info",
    "hwloc-ls",
];

/// The known facts about a run that has ended.
pub(super) struct RunFacts<'a> {
    /// The directory of its processes' marks.
    pub(super) marks: &'a Path,
    /// Whether programs can create files in the directory of POSIX shared memory.
    pub(super) has_shared_memory: bool,
    /// Whether programs find the devices in `/sys` and `/dev`. Reading there leaves no trace.
    pub(super) shows_devices: bool,
    /// The directory of the fabrics, by its path outside of containers.
    pub(super) fabrics: &'a Path,
    /// Whether a device of the run's hosts has received packets. Receiving leaves no trace.
    pub(super) has_received: bool,
    /// Whether the command failed, which explains a device without traffic.
    pub(super) has_failed: bool,
}

/// The line for the user, unless the device was used or not using it was the purpose.
pub(super) fn explain(facts: &RunFacts<'_>) -> Option<String> {
    let took = |step| processes(facts.marks, step);
    // Those that do more than describe the devices.
    let users = |step| names(took(step).into_iter().filter(|process| !describes(process)));
    let apart = users(UsageStep::ApartFromRun);
    if !apart.is_empty() {
        return Some(format!(
            "{apart} used the device on a fabric without the run's hosts: {} is another directory there, as in a container; \
             share it, or set {ENV_FABRICS} to one that is shared",
            facts.fabrics.display()
        ));
    }
    let has_queue_pairs = !took(UsageStep::QueuePair).is_empty();
    let is_used = !took(UsageStep::Sent).is_empty() || has_queue_pairs && facts.has_received;
    if is_used || !took(UsageStep::RunInside).is_empty() {
        return None;
    }
    if took(UsageStep::Listed).is_empty() {
        return (!facts.shows_devices).then(|| unseen(took(UsageStep::Loaded)));
    }
    let users = users(UsageStep::Listed);
    if users.is_empty() || facts.has_failed && facts.has_shared_memory {
        return None;
    }
    let hint = match facts.has_shared_memory {
        true => "FI_EFA_ENABLE_SHM_TRANSFER=0 no shared memory between processes of one host",
        false => {
            "/dev/shm is not there or cannot be written to: without it libfabric's efa provider opens no endpoint \
             of type FI_EP_RDM (release 1.17), or none for peers of the same host"
        }
    };
    Some(format!(
        "nothing was sent over the device, though {users} saw it: FI_PROVIDER=efa permits libfabric no other transport, \
         and {hint}"
    ))
}

/// The line about a run in which no process asked for devices, from those that loaded the
/// libraries.
fn unseen(mut loaded: Vec<Process>) -> String {
    loaded.sort_by(|a, b| a.executable.cmp(&b.executable));
    loaded.dedup_by(|a, b| a.executable == b.executable);
    loaded.retain(has_own_verbs);
    match &names(loaded)[..] {
        "" => "nothing was sent over the device: no process was seen to ask for devices. Programs that are static or \
               set-uid, have a libibverbs of their own, ask the kernel, run in a container or without the run's \
               LD_PRELOAD (`env -i`, `sudo`), or whose FI_PROVIDER leaves efa out, do not see it (docs/no-device.md)"
            .to_owned(),
        owners => format!(
            "nothing was sent over the device: {owners} has a libibverbs of its own linked in, which knows real devices \
             only (docs/no-device.md)"
        ),
    }
}

/// Whether the program's file includes the code of libibverbs. The start of libibverbs's warnings
/// identifies it. This program contains the same text, because it searches for it.
fn has_own_verbs(process: &Process) -> bool {
    const WARNING: &[u8] = b"libibverbs: Warning: ";
    if env::current_exe().is_ok_and(|own| own == process.executable) {
        return false;
    }
    let program = fs::read(&process.executable).unwrap_or_default();
    memchr::memmem::find(&program, WARNING).is_some()
}

/// Whether the program only describes devices.
fn describes(process: &Process) -> bool {
    DESCRIBING.contains(&&process.name[..])
}

/// The names of processes, each once.
fn names(processes: impl IntoIterator<Item = Process>) -> String {
    let names: BTreeSet<_> = processes.into_iter().map(|process| process.name).collect();
    let names: Vec<_> = names.into_iter().collect();
    names.join(", ")
}
