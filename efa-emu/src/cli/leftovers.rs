//! Removing what killed programs left in shared memory.
//!
//! The fabric cleans up after itself. But libfabric, too, makes a shared memory object for each
//! endpoint, for peers on the same host, and removes it when the endpoint is closed: after a kill it
//! stays. Its name starts with the device's GID, which tells ours from those of real devices.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where `shm_open` puts its objects.
const SHARED_MEMORY: &str = "/dev/shm";

/// What the GIDs of emulated hosts begin with: link-local EUI-64 addresses of the locally
/// administered MAC addresses `02:ef:a0:xx:xx:xx`.
const GID_PREFIX: &str = "fe80::ef:a0ff:fe";

/// Removes the objects of this user's programs that no process uses any more.
pub(super) fn remove() {
    remove_from(Path::new(SHARED_MEMORY));
}

fn remove_from(directory: &Path) {
    let user = rustix::process::geteuid().as_raw();
    // The list comes first: a program that has made an object by now has it open, or has closed it
    // after mapping it, when the processes are looked at.
    let candidates: Vec<_> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| is_endpoint(&entry.file_name()))
        .filter(|entry| {
            entry
                .metadata()
                .is_ok_and(|metadata| metadata.uid() == user)
        })
        .map(|entry| entry.path())
        .collect();
    if candidates.is_empty() {
        return;
    }
    let used = used_files(directory, user);
    for path in candidates.iter().filter(|path| !used.contains(*path)) {
        let _ = fs::remove_file(path);
    }
}

/// `GID_QPN_QKEY_UID`, the last three in hexadecimal.
fn is_endpoint(name: &OsString) -> bool {
    let Some(numbers) = name
        .to_str()
        .and_then(|name| name.strip_prefix(GID_PREFIX))
        .and_then(|rest| rest.split_once('_'))
        .map(|(_, numbers)| numbers)
    else {
        return false;
    };
    let numbers: Vec<_> = numbers.split('_').collect();
    numbers.len() == 3
        && numbers.iter().all(|number| {
            !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_hexdigit())
        })
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
        let is = |name: &str| is_endpoint(&OsString::from(name));
        assert!(is("fe80::ef:a0ff:fe00:1_0002_3046906b_0000"));
        assert!(is("fe80::ef:a0ff:fe4c:276c_000a_1_03e8"));
        assert!(
            !is("fe80::1ff:fe23:4567_0002_3046906b_0000"),
            "a real device's"
        );
        assert!(!is("fe80::ef:a0ff:fe00:1_0002_3046906b"));
        assert!(!is("fe80::ef:a0ff:fe00:1_0002_other_0000"));
        assert!(!is("efa-emu-0"));
    }

    #[test]
    fn only_unused_objects_of_endpoints_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let directory = fs::canonicalize(directory.path()).unwrap();
        let path = |name: &str| directory.join(name);
        let [unused, open, mapped] = ["1", "2", "3"]
            .map(|number| path(&format!("fe80::ef:a0ff:fe00:{number}_0002_3046906b_0000")));
        let other = path("of_somebody_else_1");
        for file in [&unused, &open, &mapped, &other] {
            fs::write(file, "content").unwrap();
        }
        let opened = fs::File::open(&open).unwrap();
        let file = fs::File::open(&mapped).unwrap();
        // SAFETY: the file is not changed while it is mapped.
        let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
        drop(file);

        remove_from(&directory);
        assert!(!unused.exists());
        assert!(open.exists() && mapped.exists() && other.exists());
        assert!(opened.as_fd().try_clone_to_owned().is_ok() && map.len() == 7);
        drop((opened, map));
        remove_from(&directory);
        assert!(!open.exists() && !mapped.exists() && other.exists());
    }
}
