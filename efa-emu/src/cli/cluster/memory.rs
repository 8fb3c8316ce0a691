//! Whether the machine has memory for so many hosts.

use std::fs;
use std::path::Path;

use super::names::MOST_HOSTS;
use efa_emu::command::Failure;

/// What a host with one device takes before any program runs on it, in KiB: its process, its sysfs tree, its table
/// of queue pair numbers and its namespaces (docs/cluster.md says how it was measured).
const HOST_KIB: u64 = 2048;

/// What a rank of an MPI job takes at least, in KiB: the packet buffers of libfabric's efa provider.
const RANK_KIB: u64 = 80 * 1024;

/// Refuses numbers of hosts that are not possible.
pub(super) fn check_number(hosts: u32) -> Result<(), Failure> {
    if !(1..=MOST_HOSTS).contains(&hosts) {
        return Err(Failure(format!(
            "a cluster of {hosts} hosts is not possible: it can have 1 to {MOST_HOSTS}"
        )));
    }
    Ok(())
}

/// Refuses more hosts on this machine than it has memory for.
pub(super) fn check(hosts: u32) -> Result<(), Failure> {
    match available(Path::new("/")) {
        Some(available) => compare(hosts, available),
        None => Ok(()),
    }
}

/// Each host is meant to run a program.
fn compare(hosts: u32, available: u64) -> Result<(), Failure> {
    let each = HOST_KIB + RANK_KIB;
    let needed = u64::from(hosts) * each;
    if needed <= available {
        return Ok(());
    }
    Err(Failure(format!(
        "{hosts} hosts take {} MiB, and {} MiB are available: each takes {} MiB, and {} MiB for one rank that \
         uses libfabric; at most {} hosts fit",
        needed / 1024,
        available / 1024,
        HOST_KIB / 1024,
        RANK_KIB / 1024,
        available / each
    )))
}

/// The memory that programs can get without swapping, in KiB: the machine's, or less if a control group permits less.
fn available(root: &Path) -> Option<u64> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok();
    let of_machine = meminfo.and_then(|text| value(&text, "MemAvailable:"));
    of_machine.into_iter().chain(of_groups(root)).min()
}

/// What is left of each limit that holds for this process, in KiB: its control group's (version 2) and those of the groups around
/// that. A container sees its own group as the outermost one.
fn of_groups(root: &Path) -> Vec<u64> {
    let all = root.join("sys/fs/cgroup");
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let Some(own) = groups.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return Vec::new();
    };
    all.join(own)
        .ancestors()
        .take_while(|group| group.starts_with(&all))
        .filter_map(left_of)
        .collect()
}

/// What is left of a group's limit, in KiB; `None` if it has none. As in `MemAvailable`, what the kernel keeps of files is
/// there for programs.
fn left_of(group: &Path) -> Option<u64> {
    let read = |name| fs::read_to_string(group.join(name)).ok();
    let number = |name| read(name)?.trim().parse::<u64>().ok();
    let limit = number("memory.max")?;
    let used = number("memory.current")?;
    let statistics = read("memory.stat").unwrap_or_default();
    let files = ["inactive_file", "active_file"]
        .iter()
        .filter_map(|name| value(&statistics, name))
        .sum();
    Some(limit.saturating_sub(used.saturating_sub(files)) / 1024)
}

/// The number behind a name at the beginning of a line.
fn value(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    let mut line = lines.find(|line| line.clone().next() == Some(name))?;
    line.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUPS: &str = "sys/fs/cgroup";

    /// Writes files below a directory.
    fn write(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    /// A machine of which 1 GiB is available.
    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let text = "MemTotal:       24000000 kB\nMemAvailable:    1048576 kB\n";
        write(root.path(), &[("proc/meminfo", text)]);
        root
    }

    #[test]
    fn a_cluster_larger_than_memory_is_refused_with_the_figures() {
        let memory = available(machine().path()).unwrap();
        assert_eq!(memory, 1 << 20);
        assert!(compare(12, memory).is_ok());
        let Failure(reason) = compare(13, memory).unwrap_err();
        for part in [
            "13 hosts take 1066 MiB",
            "1024 MiB are available",
            "at most 12 hosts",
        ] {
            assert!(reason.contains(part), "{reason}");
        }
        let nothing = tempfile::tempdir().unwrap();
        assert_eq!(available(nothing.path()), None);
    }

    #[test]
    fn the_lowest_limit_of_the_groups_around_a_process_counts() {
        let machine = machine();
        let root = machine.path();
        let group = |name: &str, max: &str, current: &str| {
            let directory = root.join(GROUPS).join(name);
            let files = [("memory.max", max), ("memory.current", current)];
            write(&directory, &files);
        };
        write(root, &[("proc/self/cgroup", "1:cpu:/x\n0::/outer/own\n")]);
        group("outer/own", "max\n", "4096\n");
        assert_eq!(available(root), Some(1 << 20), "no limit");
        group("outer/own", "629145600\n", "104857600\n");
        assert_eq!(available(root), Some(500 << 10));
        group("outer", "629145600\n", "419430400\n");
        assert_eq!(available(root), Some(200 << 10), "that of another group");
        let files = "anon 1\ninactive_file 41943040\nactive_file 62914560\n";
        write(&root.join(GROUPS), &[("outer/memory.stat", files)]);
        assert_eq!(available(root), Some(300 << 10), "files may be dropped");
        group("outer", "104857600\n", "419430400\n");
        assert_eq!(available(root), Some(0), "more is used than permitted");
        // In a container, the group is the root of what it sees.
        write(root, &[("proc/self/cgroup", "0::/\n")]);
        assert_eq!(available(root), Some(1 << 20));
        group("", "536870912\n", "0\n");
        assert_eq!(available(root), Some(512 << 10));
        group("", "8589934592\n", "0\n");
        assert_eq!(available(root), Some(1 << 20), "the machine has less");
    }

    #[test]
    fn numbers_of_hosts_have_a_range() {
        for hosts in [0, MOST_HOSTS + 1] {
            let Failure(reason) = check_number(hosts).unwrap_err();
            assert!(reason.contains("1 to 1024"), "{reason}");
        }
    }
}
