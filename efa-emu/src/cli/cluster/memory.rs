//! Whether the machine has memory for so many hosts.

use std::fs;

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
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    match available(&meminfo) {
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

/// The memory that programs can get without swapping, in KiB.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_larger_than_memory_is_refused_with_the_figures() {
        let meminfo = "MemTotal:       24000000 kB\nMemAvailable:    1048576 kB\n";
        let memory = available(meminfo).unwrap();
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
        assert_eq!(available("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn numbers_of_hosts_have_a_range() {
        for hosts in [0, MOST_HOSTS + 1] {
            let Failure(reason) = check_number(hosts).unwrap_err();
            assert!(reason.contains("1 to 1024"), "{reason}");
        }
    }
}
