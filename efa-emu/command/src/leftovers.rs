//! Removes objects that killed programs left in shared memory.
//!
//! The fabric cleans up after itself. But libfabric too creates a shared memory object for each
//! endpoint, for peers on the same host, and removes it when the endpoint is closed; after a kill
//! it remains. Its name starts with the device's GID, which distinguishes emulated devices from
//! real ones.
//!
//! The object is named after its queue pair, and is kept as long as a live process has a queue pair
//! of that number, according to the fabrics. The users of other objects are read from `/proc`,
//! which is slow on a busy machine. `/proc` shows neither the programs of other pid namespaces,
//! which may share `/dev/shm` (containers of one pod), nor the files of programs that hide them.
//! The fabric detects the live processes of both kinds by their locks. The objects of a host are
//! kept while it has such a process. If a fabric cannot be read, all objects are kept: the fabric
//! may have another version, and its hosts are unknown.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::net::Ipv6Addr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use efa_shm::{self, Fabric, HostStatus, SHARED_MEMORY};
use efa_wire::address::{Gid, Qpn};

/// Removes the objects of this user's programs that no process uses any more.
pub(super) fn remove() {
    remove_from(Path::new(SHARED_MEMORY), || {
        let mut hosts = Vec::new();
        for fabric in Fabric::running() {
            hosts.extend(fabric.hosts().ok()?);
        }
        Some(hosts)
    });
}

/// Removes the unused objects in `directory`. `hosts` returns the hosts of all fabrics, and `None`
/// if a fabric cannot be read.
fn remove_from(directory: &Path, hosts: impl FnOnce() -> Option<Vec<HostStatus>>) {
    let user = rustix::process::geteuid().as_raw();
    // The objects are listed first: when the processes are read afterwards, a program that has
    // created one of the objects has it open, or has mapped and closed it.
    let mut candidates: Vec<_> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            entry
                .metadata()
                .is_ok_and(|metadata| metadata.uid() == user)
        })
        .filter_map(|entry| Some((queue_pair_of(&entry.file_name())?, entry.path())))
        .collect();
    if candidates.is_empty() {
        return;
    }
    let Some(hosts) = hosts() else {
        return;
    };
    let living: HashSet<(Gid, Qpn)> = hosts
        .iter()
        .flat_map(|host| {
            host.participants
                .iter()
                .map(|participant| (host.gid, participant))
        })
        .flat_map(|(gid, participant)| participant.queue_pairs.iter().map(move |qpn| (gid, *qpn)))
        .collect();
    candidates.retain(|(queue_pair, _)| !living.contains(queue_pair));
    let out_of_sight = hosts_out_of_sight(&hosts, |gid| {
        candidates.iter().any(|((of, _), _)| *of == gid)
    });
    candidates.retain(|((gid, _), _)| !out_of_sight.contains(gid));
    if candidates.is_empty() {
        return;
    }
    let used = used_files(directory, user);
    for (_, path) in candidates.iter().filter(|(_, path)| !used.contains(path)) {
        let _ = fs::remove_file(path);
    }
}

/// The GIDs of the hosts with a live process whose files are not visible, among those for which
/// `matters` returns true.
fn hosts_out_of_sight(hosts: &[HostStatus], matters: impl Fn(Gid) -> bool) -> HashSet<Gid> {
    let hosts = hosts.iter().filter(|host| {
        let mut processes = host.participants.iter();
        matters(host.gid) && processes.any(|process| !are_files_visible(process.pid))
    });
    hosts.map(|host| host.gid).collect()
}

/// Returns whether `/proc` shows the files of the live process `pid`. `pid` is 0 if the process has
/// no number in this pid namespace.
fn are_files_visible(pid: i32) -> bool {
    let process = Path::new("/proc").join(pid.to_string());
    fs::read_dir(process.join("fd")).is_ok() && fs::read(process.join("maps")).is_ok()
}

/// The queue pair in the name of an endpoint's object, which is `GID_QPN_QKEY_UID` with the last
/// three in hexadecimal; `None` for other names and the GIDs of real devices.
pub(super) fn queue_pair_of(name: &OsStr) -> Option<(Gid, Qpn)> {
    let (gid, numbers) = name.to_str()?.split_once('_')?;
    let numbers: Vec<_> = numbers.split('_').collect();
    let gid = Gid::from(gid.parse::<Ipv6Addr>().ok()?);
    let is_endpoint = efa_shm::is_emulated(gid)
        && numbers.len() == 3
        && numbers.iter().all(|number| {
            !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_hexdigit())
        });
    let qpn = u16::from_str_radix(numbers.first()?, 16).ok()?;
    is_endpoint.then_some((gid, Qpn(qpn)))
}

/// The files in `directory` that processes of `user` have open or mapped.
fn used_files(directory: &Path, user: u32) -> HashSet<PathBuf> {
    let mut used = HashSet::new();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        let is_process = process
            .file_name()
            .as_encoded_bytes()
            .iter()
            .all(u8::is_ascii_digit);
        if !is_process
            || !process
                .metadata()
                .is_ok_and(|metadata| metadata.uid() == user)
        {
            continue;
        }
        let open = fs::read_dir(process.path().join("fd"))
            .into_iter()
            .flatten()
            .flatten();
        used.extend(
            open.filter_map(|descriptor| fs::read_link(descriptor.path()).ok())
                .filter(|path| path.starts_with(directory)),
        );
        let maps = fs::read(process.path().join("maps")).unwrap_or_default();
        let maps = String::from_utf8_lossy(&maps);
        used.extend(
            maps.lines()
                .filter_map(|line| line.find('/').map(|start| PathBuf::from(&line[start..])))
                .filter(|path| path.starts_with(directory)),
        );
    }
    used
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use efa_shm::{DeviceName, ParticipantStatus};

    use super::*;

    #[test]
    fn names_of_endpoints() {
        for (name, gid, qpn) in [
            (
                "fe80::ef:a0ff:fe00:1_0002_3046906b_0000",
                "fe80::ef:a0ff:fe00:1",
                2,
            ),
            (
                "fe80::ef:a0ff:fe4c:276c_000a_1_03e8",
                "fe80::ef:a0ff:fe4c:276c",
                10,
            ),
            (
                "fe80::ef:a7ff:fe00:1_ffff_3046906b_0000",
                "fe80::ef:a7ff:fe00:1",
                65_535,
            ),
        ] {
            let gid = Gid::from(gid.parse::<Ipv6Addr>().unwrap());
            assert_eq!(
                queue_pair_of(OsStr::new(name)),
                Some((gid, Qpn(qpn))),
                "{name}"
            );
        }
        for other in [
            "fe80::1ff:fe23:4567_0002_3046906b_0000", // a real device's
            "fe80::ef:a0ff:fe00:1_0002_3046906b",
            "fe80::ef:a0ff:fe00:1_0002_other_0000",
            "efa-emu-0",
        ] {
            assert_eq!(queue_pair_of(OsStr::new(other)), None, "{other}");
        }
    }

    /// A host with a process that has this queue pair.
    fn host(gid: &str, pid: i32, qpn: u16) -> HostStatus {
        HostStatus {
            name: DeviceName::new("host", 0, 1),
            gid: gid.parse::<Ipv6Addr>().unwrap().into(),
            profile: None,
            participants: vec![ParticipantStatus {
                pid,
                has_device: true,
                queue_pairs: vec![Qpn(qpn)],
            }],
            statistics: Default::default(),
            machine: None,
        }
    }

    #[test]
    fn only_unused_objects_of_endpoints_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let directory = fs::canonicalize(directory.path()).unwrap();
        let path = |name: &str| directory.join(name);
        let [unused, open, mapped, out_of_sight, living] = ["1", "2", "3", "4", "5"]
            .map(|number| path(&format!("fe80::ef:a0ff:fe00:{number}_0002_3046906b_0000")));
        let other = path("of_somebody_else_1");
        for file in [&unused, &open, &mapped, &out_of_sight, &living, &other] {
            fs::write(file, "content").unwrap();
        }
        let opened = fs::File::open(&open).unwrap();
        let file = fs::File::open(&mapped).unwrap();
        // SAFETY: the file is not changed while it is mapped.
        let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
        drop(file);

        let own = i32::try_from(std::process::id()).unwrap();
        remove_from(&directory, || None);
        assert!(unused.exists(), "nothing is known of the hosts");
        let hosts = || {
            Some(vec![
                // This process is alive, and has another queue pair.
                host("fe80::ef:a0ff:fe00:1", own, 3),
                host("fe80::ef:a0ff:fe00:4", 0, 3),
                host("fe80::ef:a0ff:fe00:5", own, 2),
            ])
        };
        remove_from(&directory, hosts);
        assert!(out_of_sight.exists(), "its user cannot be seen");
        assert!(living.exists(), "its queue pair is there");
        assert!(!unused.exists());
        assert!(open.exists() && mapped.exists() && other.exists());
        assert!(opened.as_fd().try_clone_to_owned().is_ok() && map.len() == 7);
        drop((opened, map));
        remove_from(&directory, || Some(Vec::new()));
        let left = [&open, &mapped, &out_of_sight, &living].map(|path| path.exists());
        assert_eq!((left, other.exists()), ([false; 4], true));
    }
}
