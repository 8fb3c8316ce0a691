//! Checks that memory and file systems have room for the hosts of a cluster.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use efa_commands::place_of_runs;
use efa_shm::{DeviceName, Fabric};

use crate::names::MOST_HOSTS;

/// The memory of a host with one device before any program runs on it, in KiB: process, sysfs tree,
/// its table of queue pair numbers and its namespaces (docs/cluster.md describes the measurement).
const HOST_KIB: u64 = 2048;

/// The memory of each further device, in KiB.
const DEVICE_KIB: u64 = 640;

/// The least memory of a rank of an MPI job, in KiB: the packet buffers of libfabric's efa
/// provider.
const RANK_KIB: u64 = 80 * 1024;

/// The shared memory of a device's sysfs tree, in KiB: a page for each file.
const TREE_KIB: u64 = 260;

/// The shared memory of a cluster without its hosts, in KiB: the board of faults, and host lists.
const CLUSTER_KIB: u64 = 192;

/// The reason why a cluster has too many hosts, or none.
#[derive(Debug, thiserror::Error)]
pub enum CapacityError {
    /// The number of hosts is 0, or greater than the emulator permits.
    #[error("a cluster of {0} hosts is not possible: it can have 1 to {MOST_HOSTS}")]
    Number(u32),
    /// The memory that the system can give is too small.
    #[error(
        "{hosts} hosts take {} MiB, and {} MiB are available: each{} takes {} MiB, and {} MiB for one rank that uses \
         libfabric; at most {most} hosts fit",
        needed / 1024,
        available / 1024,
        with_devices(*devices),
        host.div_ceil(1024),
        RANK_KIB / 1024
    )]
    Memory {
        /// The number of hosts that were requested.
        hosts: u32,
        /// The devices of each host.
        devices: u32,
        /// The memory of each host without programs, of all hosts with a rank each, and what there
        /// is, in KiB.
        host: u64,
        /// Of all hosts with a rank each, in KiB.
        needed: u64,
        /// What the system can give, in KiB.
        available: u64,
        /// The number of hosts that fit.
        most: u64,
    },
    /// The file system of the fabric is too small.
    #[error(
        "{} {} MiB of {}, and {} MiB are free there: each takes {} KiB{}; at most {most} hosts fit: make it larger \
         (`mount -o remount,size=SIZE {}`; of a container, `--shm-size SIZE`)",
        hosts_take(*hosts),
        needed.div_ceil(1024),
        place.path.display(),
        place.free / 1024,
        place.host,
        and_program(place.program),
        place.path.display()
    )]
    FileSystem {
        /// The number of hosts that were requested.
        hosts: u32,
        /// The file system of the fabric.
        place: FileSystem,
        /// The space that the hosts take, in KiB.
        needed: u64,
        /// The number of hosts that fit.
        most: u64,
    },
}

fn with_devices(devices: u32) -> String {
    match devices {
        1 => String::new(),
        devices => format!(" with its {devices} devices"),
    }
}

fn hosts_take(hosts: u32) -> String {
    match hosts {
        1 => "1 host takes".to_owned(),
        hosts => format!("{hosts} hosts take"),
    }
}

fn and_program(program: u64) -> String {
    match program {
        0 => String::new(),
        program => format!(", and {program} KiB for a program that opens a device"),
    }
}

/// Refuses invalid numbers of hosts.
///
/// # Errors
/// The number is not in the range.
pub fn check_number(hosts: u32) -> Result<(), CapacityError> {
    if !(1..=MOST_HOSTS).contains(&hosts) {
        return Err(CapacityError::Number(hosts));
    }
    Ok(())
}

/// Refuses more hosts on this machine than its memory and file systems have room for. Each has
/// `devices` devices with `queue_pairs` queue pairs.
///
/// # Errors
/// The resource that is too small, with the figures.
pub fn check(
    hosts: u32,
    devices: u32,
    queue_pairs: u32,
    fabric: &Fabric,
) -> Result<(), CapacityError> {
    // Invalid numbers are refused elsewhere.
    let devices = devices.clamp(1, DeviceName::MOST);
    if let Some(available) = available(Path::new("/")) {
        compare(hosts, devices, available)?;
    }
    check_room(hosts, devices, queue_pairs, fabric)
}

/// As [`check`], for file systems only.
///
/// # Errors
/// The file system without enough room, with the figures.
pub fn check_room(
    hosts: u32,
    devices: u32,
    queue_pairs: u32,
    fabric: &Fabric,
) -> Result<(), CapacityError> {
    let devices = u64::from(devices.clamp(1, DeviceName::MOST));
    let table = Fabric::bytes_of_device(queue_pairs).div_ceil(1024);
    let program = Fabric::bytes_of_program().div_ceil(1024);
    let mut places: BTreeMap<u64, FileSystem> = BTreeMap::new();
    for (path, host, program) in [
        (fabric.directory(), devices * table, program),
        (&place_of_runs(), devices * TREE_KIB, 0),
    ] {
        let Some((id, path, free)) = file_system(path) else {
            continue;
        };
        let place = places.entry(id).or_insert(FileSystem {
            path,
            free,
            host: 0,
            program: 0,
        });
        place.host += host;
        place.program += program;
    }
    places.values().try_for_each(|place| place.compare(hosts))
}

/// A file system with files of hosts; all sizes in KiB.
#[derive(Clone, Debug)]
pub struct FileSystem {
    /// Where it is mounted.
    pub(crate) path: PathBuf,
    /// Its free space in KiB.
    pub(crate) free: u64,
    /// Size of each host's files.
    pub host: u64,
    /// Size of the files of a program that opens a device.
    pub program: u64,
}

impl FileSystem {
    /// Includes a program on each host.
    fn compare(&self, hosts: u32) -> Result<(), CapacityError> {
        let each = self.host + self.program;
        let needed = u64::from(hosts) * each + CLUSTER_KIB;
        if needed <= self.free {
            return Ok(());
        }
        Err(CapacityError::FileSystem {
            hosts,
            place: self.clone(),
            needed,
            most: self.free.saturating_sub(CLUSTER_KIB) / each,
        })
    }
}

/// The file system of `path`, which may not exist yet: its unique number, the nearest existing
/// directory, and the free space in KiB. `None` if the space is unlimited or unknown.
fn file_system(path: &Path) -> Option<(u64, PathBuf, u64)> {
    let found = path.ancestors().find(|path| path.is_dir())?;
    let device = fs::metadata(found).ok()?.dev();
    let statistics = rustix::fs::statvfs(found).ok()?;
    // A file system in memory without a limit reports no blocks.
    (statistics.f_blocks > 0).then(|| {
        let free = statistics.f_bavail * statistics.f_frsize / 1024;
        (device, found.to_owned(), free)
    })
}

/// Includes a program on each host.
fn compare(hosts: u32, devices: u32, available: u64) -> Result<(), CapacityError> {
    let host = HOST_KIB + u64::from(devices - 1) * DEVICE_KIB;
    let each = host + RANK_KIB;
    let needed = u64::from(hosts) * each;
    if needed <= available {
        return Ok(());
    }
    Err(CapacityError::Memory {
        hosts,
        devices,
        host,
        needed,
        available,
        most: available / each,
    })
}

/// The memory that programs can get without swapping, in KiB: the machine's, or less if a control
/// group limits it.
fn available(root: &Path) -> Option<u64> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok();
    let of_machine = meminfo.and_then(|text| value(&text, "MemAvailable:"));
    of_machine.into_iter().chain(of_groups(root)).min()
}

/// A version of control groups: the directory of memory groups, and the names of their files.
struct GroupVersion {
    /// Below `/sys/fs/cgroup`.
    directory: &'static str,
    limit: &'static str,
    used: &'static str,
    /// The names of the page cache's counters in `memory.stat`.
    files: [&'static str; 2],
}

const SECOND: GroupVersion = GroupVersion {
    directory: "",
    limit: "memory.max",
    used: "memory.current",
    files: ["inactive_file", "active_file"],
};

const FIRST: GroupVersion = GroupVersion {
    directory: "memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    files: ["total_inactive_file", "total_active_file"],
};

/// The memory left below each limit of this process, in KiB: of its control group and the groups
/// above. In a container, its own group is the outermost one.
fn of_groups(root: &Path) -> Vec<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut left = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let version = match fields.next() {
            Some("") => SECOND,
            Some(controllers) if controllers.split(',').any(|name| name == "memory") => FIRST,
            _ => continue,
        };
        let all = root.join("sys/fs/cgroup").join(version.directory);
        let own = all.join(fields.next().unwrap_or_default().trim_start_matches('/'));
        let enclosing = own.ancestors().take_while(|group| group.starts_with(&all));
        left.extend(enclosing.filter_map(|group| version.left_of(group)));
    }
    left
}

impl GroupVersion {
    /// The memory left below a group's limit, in KiB; `None` without a limit. As in `MemAvailable`,
    /// the page cache counts as free.
    fn left_of(&self, group: &Path) -> Option<u64> {
        let read = |name| fs::read_to_string(group.join(name)).ok();
        let number = |name| read(name)?.trim().parse::<u64>().ok();
        let limit = number(self.limit)?;
        let used = number(self.used)?;
        let statistics = read("memory.stat").unwrap_or_default();
        let files = self.files.iter();
        let files = files.filter_map(|name| value(&statistics, name)).sum();
        Some(limit.saturating_sub(used.saturating_sub(files)) / 1024)
    }
}

/// The number after a name at the beginning of a line.
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

    /// A machine with 1 GiB of available memory.
    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let text = "MemTotal:       24000000 kB\nMemAvailable:    1048576 kB\n";
        write(root.path(), &[("proc/meminfo", text)]);
        root
    }

    #[test]
    fn clusters_larger_than_memory_are_refused() {
        let memory = available(machine().path()).unwrap();
        assert_eq!(memory, 1 << 20);
        assert!(compare(12, 1, memory).is_ok());
        let reason = compare(13, 1, memory).unwrap_err().to_string();
        for part in [
            "13 hosts take 1066 MiB",
            "1024 MiB are available",
            "at most 12 hosts",
        ] {
            assert!(reason.contains(part), "{reason}");
        }
        let reason = compare(12, 32, memory).unwrap_err().to_string();
        for part in [
            "12 hosts take 1216 MiB",
            "each with its 32 devices takes 22 MiB",
            "at most 10 hosts",
        ] {
            assert!(reason.contains(part), "{reason}");
        }
        let nothing = tempfile::tempdir().unwrap();
        assert_eq!(available(nothing.path()), None);
    }

    #[test]
    fn clusters_larger_than_a_file_system_are_refused() {
        let mut place = FileSystem {
            path: "/dev/shm".into(),
            free: 8192,
            host: 456,
            program: 1156,
        };
        assert!(place.compare(4).is_ok());
        let reason = place.compare(5).unwrap_err().to_string();
        assert_eq!(
            reason,
            "5 hosts take 9 MiB of /dev/shm, and 8 MiB are free there: each takes 456 KiB, and 1156 KiB for a program \
             that opens a device; at most 4 hosts fit: make it larger (`mount -o remount,size=SIZE /dev/shm`; of a \
             container, `--shm-size SIZE`)"
        );
        place.program = 0;
        assert!(place.compare(17).is_ok());
        let reason = place.compare(18).unwrap_err().to_string();
        assert!(reason.contains("takes 456 KiB; at most 17"), "{reason}");
        place.free = 0;
        let reason = place.compare(1).unwrap_err().to_string();
        assert!(reason.starts_with("1 host takes 1 MiB of"), "{reason}");
    }

    /// A missing file counts for the file system of its nearest existing parent.
    #[test]
    fn the_file_system_of_a_path_is_found() {
        let root = tempfile::tempdir().unwrap();
        let (id, path, _) = file_system(&root.path().join("a/b")).unwrap();
        assert_eq!(path, root.path());
        assert_eq!(file_system(root.path()).unwrap().0, id);
    }

    #[test]
    fn the_lowest_enclosing_cgroup_limit_counts() {
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
        // In a container, the group is the visible root.
        write(root, &[("proc/self/cgroup", "0::/\n")]);
        assert_eq!(available(root), Some(1 << 20));
        group("", "536870912\n", "0\n");
        assert_eq!(available(root), Some(512 << 10));
        group("", "8589934592\n", "0\n");
        assert_eq!(available(root), Some(1 << 20), "the machine has less");
    }

    /// A Docker container, and a systemd unit without subgroups.
    #[test]
    fn limits_of_first_version_groups_count() {
        const NO_LIMIT: &str = "9223372036854771712\n";
        let machine = machine();
        let root = machine.path();
        let groups = "4:cpu,cpuacct:/cpu\n3:hugetlb,memory:/docker/own\n0::/docker/own\n";
        write(root, &[("proc/self/cgroup", groups)]);
        let group = |name: &str, limit: &str| {
            let files = [
                ("memory.limit_in_bytes", limit),
                ("memory.usage_in_bytes", "104857600\n"),
                (
                    "memory.stat",
                    "inactive_file 1\ntotal_inactive_file 52428800\n",
                ),
            ];
            write(&root.join(GROUPS).join(name), &files);
        };
        group("memory/docker", NO_LIMIT);
        assert_eq!(available(root), Some(1 << 20));
        group("cpu/docker/own", "104857600\n");
        assert_eq!(available(root), Some(1 << 20), "not that of memory");
        group("memory", "629145600\n");
        assert_eq!(available(root), Some(550 << 10));
        group("memory/docker/own", "209715200\n");
        assert_eq!(available(root), Some(150 << 10));
    }

    #[test]
    fn numbers_of_hosts_have_a_range() {
        for hosts in [0, MOST_HOSTS + 1] {
            let reason = check_number(hosts).unwrap_err().to_string();
            assert!(reason.contains("1 to 1024"), "{reason}");
        }
    }
}
