//! Removing what killed programs left in shared memory.
//!
//! The fabric cleans up after itself. But libfabric, too, makes a shared memory object for each
//! endpoint, for peers on the same host, and removes it when the endpoint is closed: after a kill it
//! stays. Its name starts with the device's GID, which tells ours from those of real devices.
//!
//! Who uses an object is read from `/proc`. That shows neither the programs of other pid namespaces,
//! which may share `/dev/shm` (containers of one pod), nor the files of programs that hide them. The
//! fabric knows of the live processes of both kinds by their locks; as long as a host has one, the
//! objects of that host stay. As long as a fabric cannot be read, all objects stay: it may be that of another
//! version, whose hosts nobody here knows.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::net::Ipv6Addr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use efa_core::address::Gid;
use efa_emu::transport::{self, Fabric};

/// Where `shm_open` puts its objects.
const SHARED_MEMORY: &str = "/dev/shm";

/// Removes the objects of this user's programs that no process uses any more.
pub(super) fn remove() {
    remove_from(Path::new(SHARED_MEMORY), hosts_out_of_sight);
}

/// Removes the unused objects in `directory`, but for those of the hosts whose GIDs `kept` returns. None if that
/// is not known.
fn remove_from(directory: &Path, kept: impl FnOnce() -> Option<HashSet<String>>) {
    let user = rustix::process::geteuid().as_raw();
    // The list comes first: a program that has made an object by now has it open, or has closed it
    // after mapping it, when the processes are looked at.
    let mut candidates: Vec<_> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            entry
                .metadata()
                .is_ok_and(|metadata| metadata.uid() == user)
        })
        .filter_map(|entry| Some((gid_of_endpoint(&entry.file_name())?, entry.path())))
        .collect();
    if candidates.is_empty() {
        return;
    }
    let Some(kept) = kept() else {
        return;
    };
    candidates.retain(|(gid, _)| !kept.contains(gid));
    let used = used_files(directory, user);
    for (_, path) in candidates.iter().filter(|(_, path)| !used.contains(path)) {
        let _ = fs::remove_file(path);
    }
}

/// The GIDs, as text, of the hosts on which a live process's files cannot be seen. `None` if a fabric cannot be
/// read.
fn hosts_out_of_sight() -> Option<HashSet<String>> {
    let mut out_of_sight = HashSet::new();
    for fabric in Fabric::running() {
        for host in fabric.hosts().ok()? {
            let mut participants = host.participants.iter();
            if participants.any(|participant| !are_files_visible(participant.pid)) {
                out_of_sight.insert(host.gid.to_string());
            }
        }
    }
    Some(out_of_sight)
}

/// Returns whether `/proc` tells which files the live process `pid` uses. `pid` is 0 if the process
/// has no number in this pid namespace.
fn are_files_visible(pid: i32) -> bool {
    let process = Path::new("/proc").join(pid.to_string());
    fs::read_dir(process.join("fd")).is_ok() && fs::read(process.join("maps")).is_ok()
}

/// The GID in the name of an endpoint's object, which is `GID_QPN_QKEY_UID` with the last three in
/// hexadecimal; `None` for other names and the GIDs of real devices.
fn gid_of_endpoint(name: &OsString) -> Option<String> {
    let (gid, numbers) = name.to_str()?.split_once('_')?;
    let numbers: Vec<_> = numbers.split('_').collect();
    let address: Ipv6Addr = gid.parse().ok()?;
    let is_endpoint = transport::is_emulated(Gid::from(address))
        && numbers.len() == 3
        && numbers.iter().all(|number| {
            !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_hexdigit())
        });
    is_endpoint.then(|| gid.to_owned())
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

    use super::*;

    #[test]
    fn names_of_endpoints() {
        let gid = |name: &str| gid_of_endpoint(&OsString::from(name));
        let found = gid("fe80::ef:a0ff:fe00:1_0002_3046906b_0000");
        assert_eq!(found.as_deref(), Some("fe80::ef:a0ff:fe00:1"));
        let found = gid("fe80::ef:a0ff:fe4c:276c_000a_1_03e8");
        assert_eq!(found.as_deref(), Some("fe80::ef:a0ff:fe4c:276c"));
        let found = gid("fe80::ef:a7ff:fe00:1_0002_3046906b_0000");
        assert_eq!(found.as_deref(), Some("fe80::ef:a7ff:fe00:1"));
        for other in [
            "fe80::1ff:fe23:4567_0002_3046906b_0000", // a real device's
            "fe80::ef:a0ff:fe00:1_0002_3046906b",
            "fe80::ef:a0ff:fe00:1_0002_other_0000",
            "efa-emu-0",
        ] {
            assert_eq!(gid(other), None, "{other}");
        }
    }

    #[test]
    fn only_unused_objects_of_endpoints_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let directory = fs::canonicalize(directory.path()).unwrap();
        let path = |name: &str| directory.join(name);
        let [unused, open, mapped, out_of_sight] = ["1", "2", "3", "4"]
            .map(|number| path(&format!("fe80::ef:a0ff:fe00:{number}_0002_3046906b_0000")));
        let other = path("of_somebody_else_1");
        for file in [&unused, &open, &mapped, &out_of_sight, &other] {
            fs::write(file, "content").unwrap();
        }
        let opened = fs::File::open(&open).unwrap();
        let file = fs::File::open(&mapped).unwrap();
        // SAFETY: the file is not changed while it is mapped.
        let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
        drop(file);

        remove_from(&directory, || None);
        assert!(unused.exists(), "nothing is known of the hosts");
        let kept = || Some(HashSet::from(["fe80::ef:a0ff:fe00:4".to_owned()]));
        remove_from(&directory, kept);
        assert!(out_of_sight.exists(), "its user cannot be seen");
        assert!(!unused.exists());
        assert!(open.exists() && mapped.exists() && other.exists());
        assert!(opened.as_fd().try_clone_to_owned().is_ok() && map.len() == 7);
        drop((opened, map));
        remove_from(&directory, || Some(HashSet::new()));
        assert!(!open.exists() && !mapped.exists() && !out_of_sight.exists() && other.exists());
    }
}
