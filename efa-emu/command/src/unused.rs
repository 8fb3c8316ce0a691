//! What `efa-emu run` says when its programs made no use of the device, which nobody would notice otherwise.
//!
//! It says what the marks of the processes ([`usage`](efa_shm::usage)), the executables and the environment
//! establish. What is likely only is called so.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use efa_shm::usage::{Process, Step, processes};

use super::executable::{self, Obstacle};
use super::leftovers::SHARED_MEMORY;

/// Programs that open devices in order to describe them.
const DESCRIBING: [&str; 7] = [
    "fi_info",
    "ibv_devices",
    "ibv_devinfo",
    "ucx_info",
    "lstopo",
    "hwloc-info",
    "hwloc-ls",
];

/// Options with which `env` starts a program without the environment.
const CLEARING: [&str; 3] = ["-i", "-", "--ignore-environment"];

/// What the kernel keeps of a file name as a process's name.
const NAME_LENGTH: usize = 15;

/// What is known of a run that has ended.
pub(super) struct Facts<'a> {
    /// The command.
    pub(super) command: &'a [OsString],
    /// Where its processes left their marks.
    pub(super) marks: &'a Path,
    /// The command's process, if it is one of the programs itself and does not only start them elsewhere: its
    /// number, and its name when it ended.
    pub(super) first: Option<(u32, Option<String>)>,
    /// The variable of this name of the run itself.
    pub(super) fi_provider: Option<String>,
    /// How many endpoints of libfabric's `shm` provider appeared that belong to one of the run's hosts.
    pub(super) shm_endpoints: usize,
    /// Whether programs can make files in the directory of POSIX shared memory.
    pub(super) has_shared_memory: bool,
}

/// The line for the user, if the device was not used and nothing says that this was the purpose.
pub(super) fn explain(facts: &Facts<'_>) -> Option<String> {
    let took = |step| processes(facts.marks, step);
    if [Step::RunInside, Step::Sent]
        .iter()
        .any(|step| !took(*step).is_empty())
    {
        return None;
    }
    let opened = took(Step::Opened);
    let needs_no_memory =
        |process: &Process| describes(process) || other_provider(process).is_some();
    if !facts.has_shared_memory && !opened.iter().all(needs_no_memory) {
        return Some(format!(
            "nothing was sent over the device, and {SHARED_MEMORY} is not there or cannot be written to: without it \
             libfabric's efa provider opens no endpoint of type FI_EP_RDM (release 1.17), or none for peers of the same host"
        ));
    }
    if !took(Step::QueuePair).is_empty() {
        return (facts.shm_endpoints >= 2).then(|| {
            "nothing was sent over the device, and libfabric made endpoints of its shm provider beside it: \
             very likely they took its place, as on EC2 between processes of one host; \
             FI_EFA_ENABLE_SHM_TRANSFER=0 keeps them on the device"
                .to_owned()
        });
    }
    if !opened.is_empty() {
        return opened_only(&opened);
    }
    let listed = took(Step::Listed);
    if !listed.is_empty() && listed.iter().all(describes) {
        return None;
    }
    Some(format!(
        "no process opened the device: {}",
        unopened(facts, &took(Step::Loaded), &listed)
    ))
}

/// Why processes opened the device and made no queue pair.
fn opened_only(opened: &[Process]) -> Option<String> {
    let begin = format!(
        "{} opened the device and sent nothing over it",
        names(opened)
    );
    if let Some(choice) = opened.iter().find_map(other_provider) {
        return Some(format!("{begin}: {}", leaves_efa_out(&choice)));
    }
    (!opened.iter().all(describes)).then(|| {
        format!(
            "{begin}, for it made no queue pair: probably another transport was chosen; FI_PROVIDER=efa \
             permits libfabric no other"
        )
    })
}

/// Whether the program tells what devices there are, and does nothing with them.
fn describes(process: &Process) -> bool {
    DESCRIBING.contains(&&process.name[..])
}

/// Why no process opened the device.
fn unopened(facts: &Facts<'_>, loaded: &[Process], listed: &[Process]) -> String {
    if let Some(choice) = listed.iter().find_map(other_provider) {
        return leaves_efa_out(&choice);
    }
    if !listed.is_empty() {
        return format!("{} asked for the list of devices only", names(listed));
    }
    if let Some(reason) = not_loaded(facts, loaded) {
        return reason;
    }
    if let Some(choice) = facts
        .fi_provider
        .as_deref()
        .filter(|choice| excludes_efa(choice))
    {
        return leaves_efa_out(choice);
    }
    match suspect(facts.command) {
        Some(suspicion) => format!("none asked for the list of devices; {suspicion}"),
        None => "none asked for the list of devices".to_owned(),
    }
}

/// What the command names, perhaps within the text of a script, that the libraries do not get into.
fn suspect(command: &[OsString]) -> Option<String> {
    let is_separator = |byte: &u8| byte.is_ascii_whitespace() || b";&|()'\"`".contains(byte);
    let words: Vec<&OsStr> = command
        .iter()
        .flat_map(|word| word.as_bytes().split(is_separator))
        .filter(|word| !word.is_empty())
        .map(OsStr::from_bytes)
        .collect();
    let obstacle = words.iter().find_map(|word| {
        let obstacle = executable::obstacle(&executable::find(word)?)?;
        Some(format!(
            "{}, which the command names, {obstacle}",
            word.display()
        ))
    });
    let is_cleared = |pair: &[&OsStr]| {
        has_name(pair[0], "env") && CLEARING.iter().any(|option| pair[1] == *option)
    };
    let cleared = || {
        let pair = words.windows(2).find(|pair| is_cleared(pair))?;
        Some(format!(
            "the command's `{} {}` takes LD_PRELOAD away: put `efa-emu run` behind it",
            pair[0].display(),
            pair[1].display()
        ))
    };
    obstacle.or_else(cleared)
}

/// Why the libraries were not loaded into the program that was to use them.
fn not_loaded(facts: &Facts<'_>, loaded: &[Process]) -> Option<String> {
    let program = facts.command.first()?;
    let Some((pid, last)) = &facts.first else {
        let none = || format!("{} started no program on a host", program.display());
        return loaded.is_empty().then(none);
    };
    if loaded.is_empty() {
        let obstacle = executable::find(program).and_then(|path| executable::obstacle(&path));
        return Some(match obstacle {
            Some(obstacle) => of_obstacle(program, &obstacle),
            None => format!(
                "its libraries were loaded into no process, not even into {}",
                program.display()
            ),
        });
    }
    // The first process may have replaced its program by another one, as `env` does.
    let last = last.as_deref()?;
    let of_first = || loaded.iter().filter(|process| process.pid == *pid);
    let before = of_first().next_back()?;
    if of_first().any(|process| process.name == last) {
        return None;
    }
    let word = facts.command.iter().find(|word| has_name(word, last))?;
    let obstacle = executable::find(word).and_then(|path| executable::obstacle(&path));
    Some(match obstacle {
        Some(obstacle) => of_obstacle(word, &obstacle),
        None => format!(
            "{} started {} with an environment that lacks LD_PRELOAD: put `efa-emu run` directly before {}",
            before.name,
            word.display(),
            word.display()
        ),
    })
}

fn of_obstacle(program: &OsStr, obstacle: &Obstacle) -> String {
    format!("{} {obstacle}", program.display())
}

/// Whether a process that executes this file gets the name.
fn has_name(file: &OsStr, name: &str) -> bool {
    let file = Path::new(file).file_name().unwrap_or_default().as_bytes();
    !file.is_empty() && &file[..file.len().min(NAME_LENGTH)] == name.as_bytes()
}

/// The process's `FI_PROVIDER`, if it leaves the efa provider out.
fn other_provider(process: &Process) -> Option<String> {
    let choice = process.fi_provider.clone()?;
    excludes_efa(&choice).then_some(choice)
}

/// Whether libfabric does without a provider for EFA, its own or the plug-in, by a value of `FI_PROVIDER`, which names
/// those that it may use or, behind a `^`, those that it may not.
fn excludes_efa(choice: &str) -> bool {
    let is_for_efa = |name: &str| ["efa", "efa_rs"].contains(&name.trim());
    let names = |list: &str| list.split([',', ';']).any(is_for_efa);
    match choice.strip_prefix('^') {
        Some(others) => names(others),
        None => !choice.is_empty() && !names(choice),
    }
}

fn leaves_efa_out(choice: &str) -> String {
    format!("FI_PROVIDER is {choice:?}, which leaves libfabric's efa provider out")
}

/// The names of processes, each once.
fn names(processes: &[Process]) -> String {
    let names: BTreeSet<_> = processes.iter().map(|process| &process.name[..]).collect();
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

    #[test]
    fn the_command_is_searched_for_what_keeps_the_libraries_out() {
        let suspect = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            suspect(&words)
        };
        let is_static = "/sbin/ldconfig, which the command names, is statically linked";
        for words in [
            &["mpirun", "-n", "2", "/sbin/ldconfig"][..],
            &["bash", "-c", "true;/sbin/ldconfig --version && true"],
            &["setsid", "-f", "/sbin/ldconfig"],
        ] {
            let said = suspect(words).unwrap();
            assert!(said.starts_with(is_static), "{said}");
        }
        for words in [
            &["sh", "-c", "env -i x; true"][..],
            &["timeout", "5", "env", "-", "x"],
        ] {
            let said = suspect(words).unwrap();
            assert!(said.contains("takes LD_PRELOAD away"), "{said}");
        }
        for words in [
            &["sh", "-c", "true; env x"][..],
            &["mpirun", "-n", "2", "true"],
            &[],
        ] {
            assert_eq!(suspect(words), None);
        }
    }

    #[test]
    fn names_of_processes_are_cut() {
        let has = |file: &str, name| has_name(OsStr::new(file), name);
        assert!(has("/usr/bin/fi_pingpong", "fi_pingpong"));
        assert!(has("fi_rdm_tagged_bw_long", "fi_rdm_tagged_b"));
        assert!(!has("fi_info", "fi_inf"));
        assert!(!has("", ""));
    }
}
