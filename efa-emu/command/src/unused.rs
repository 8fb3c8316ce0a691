//! The warning of `efa-emu run` about programs that did not use the device.
//!
//! A reason is only named if the marks of the processes ([`usage`](efa_shm::usage)) or the
//! environment prove it.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::Path;

use efa_shm::usage::{Process, UsageStep, processes};
use efa_shm::{ENV_FABRICS, SHARED_MEMORY};

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
    /// `FI_PROVIDER` in the environment of the run itself.
    pub(super) fi_provider: Option<String>,
    /// Whether programs can create files in the directory of POSIX shared memory.
    pub(super) has_shared_memory: bool,
    /// Whether programs find the devices in `/sys` and `/dev`. Reading there leaves no trace.
    pub(super) shows_devices: bool,
    /// The directory of the fabrics, by its path outside of containers.
    pub(super) fabrics: &'a Path,
    /// Whether a device of the run's hosts has received packets. Receiving leaves no trace.
    pub(super) has_received: bool,
    /// Whether the command failed, which explains an opened device without traffic.
    pub(super) has_failed: bool,
}

/// The line for the user, unless the device was used or not using it was the purpose.
pub(super) fn explain(facts: &RunFacts<'_>) -> Option<String> {
    let took = |step| processes(facts.marks, step);
    let apart = took(UsageStep::ApartFromRun);
    let mut apart = apart
        .iter()
        .filter(|process| !describes(process))
        .peekable();
    if apart.peek().is_some() {
        return Some(format!(
            "{} used the device on a fabric without the run's hosts: {} is another directory there, as in a container; \
             share it, or set {ENV_FABRICS} to one that is shared",
            names(apart),
            facts.fabrics.display()
        ));
    }
    let has_queue_pairs = !took(UsageStep::QueuePair).is_empty();
    let is_used = !took(UsageStep::Sent).is_empty() || has_queue_pairs && facts.has_received;
    if is_used || !took(UsageStep::RunInside).is_empty() {
        return None;
    }
    let (opened, listed) = (took(UsageStep::Opened), took(UsageStep::Listed));
    if listed.is_empty() && facts.shows_devices {
        return None;
    }
    // Processes that listed the devices, and do more than describe them.
    let users = || listed.iter().filter(|process| !describes(process));
    if !listed.is_empty() && users().next().is_none() {
        return None;
    }
    let own_choice = facts.fi_provider.as_ref();
    let mut choices = listed
        .iter()
        .filter_map(|process| process.fi_provider.as_ref());
    let choice = choices.find(|choice| excludes_efa(choice));
    let choice = choice.or(own_choice.filter(|choice| listed.is_empty() && excludes_efa(choice)));
    Some(if let Some(choice) = choice {
        format!(
            "nothing was sent over the device: FI_PROVIDER is {choice:?}, which leaves libfabric's efa provider out"
        )
    } else if listed.is_empty() {
        let mut loaded = took(UsageStep::Loaded);
        loaded.sort_by(|a, b| a.executable.cmp(&b.executable));
        loaded.dedup_by(|a, b| a.executable == b.executable);
        let mut owners = loaded.iter().filter(has_own_verbs).peekable();
        match owners.peek() {
            Some(_) => format!(
                "nothing was sent over the device: {} has a libibverbs of its own linked in, which knows real devices \
                 only (docs/no-device.md)",
                names(owners)
            ),
            None => "nothing was sent over the device: no process was seen to ask for devices. Programs that are static \
                     or set-uid, have a libibverbs of their own, ask the kernel, or run in a container or without the \
                     run's LD_PRELOAD (`env -i`, `sudo`) do not see it (docs/no-device.md)"
                .to_owned(),
        }
    } else if !facts.has_shared_memory {
        format!(
            "nothing was sent over the device, and {SHARED_MEMORY} is not there or cannot be written to: without it \
             libfabric's efa provider opens no endpoint of type FI_EP_RDM (release 1.17), or none for peers of the same host"
        )
    } else if opened.is_empty() {
        format!(
            "nothing was sent over the device: {} asked for the list of devices only",
            names(users())
        )
    } else if facts.has_failed {
        return None;
    } else if !has_queue_pairs {
        let users = opened.iter().filter(|process| !describes(process));
        format!(
            "nothing was sent over the device: {} opened it; FI_PROVIDER=efa permits libfabric no other transport",
            names(users)
        )
    } else {
        "nothing was sent over the device, though there were queue pairs: between processes of one host libfabric \
         may take its shm provider instead, as on EC2; FI_EFA_ENABLE_SHM_TRANSFER=0 keeps them on the device"
            .to_owned()
    })
}

/// Whether the program only describes devices.
fn describes(process: &Process) -> bool {
    DESCRIBING.contains(&&process.name[..])
}

/// Whether the program's file includes the code of libibverbs. The start of libibverbs's warnings
/// identifies it. This program contains the same text, because it searches for it.
fn has_own_verbs(process: &&Process) -> bool {
    const WARNING: &[u8] = b"libibverbs: Warning: ";
    if env::current_exe().is_ok_and(|own| own == process.executable) {
        return false;
    }
    let program = fs::read(&process.executable).unwrap_or_default();
    memchr::memmem::find(&program, WARNING).is_some()
}

/// Whether this value of `FI_PROVIDER` excludes both the efa provider and efa_rs.
fn excludes_efa(choice: &str) -> bool {
    let is_for_efa = |name: &str| ["efa", "efa_rs"].contains(&name.trim());
    let names = |list: &str| list.split([',', ';']).any(is_for_efa);
    match choice.strip_prefix('^') {
        Some(others) => names(others),
        None => !choice.is_empty() && !names(choice),
    }
}

/// The names of processes, each once.
fn names<'a>(processes: impl Iterator<Item = &'a Process>) -> String {
    let names: BTreeSet<_> = processes.map(|process| &process.name[..]).collect();
    let names: Vec<_> = names.into_iter().collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_of_providers() {
        for choice in ["tcp", "tcp;ofi_rxm", "^efa", "^shm,efa", "efa-direct"] {
            assert!(excludes_efa(choice), "{choice}");
        }
        for choice in ["", "efa", "tcp,efa", "^tcp", "shm, efa", "efa_rs"] {
            assert!(!excludes_efa(choice), "{choice}");
        }
    }
}
