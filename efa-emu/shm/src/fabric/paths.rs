//! The names of files and directories in a fabric (see [`directory`](super::directory)), and their
//! permitted owners.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use efa_core::address::Gid;

use crate::error::{DirectoryContent, FabricError};
use crate::transport::doorbell_page;
use efa_lock_free::qpn::ParticipantId;

/// Longest name of a fabric or host, which is the kernel's limit for the name of a machine.
pub(super) const MAX_NAME: usize = 64;

/// Refuses names that cannot be file names or that would be hard to read in messages.
pub(crate) fn check_name(what: &'static str, name: &str) -> Result<(), FabricError> {
    let valid = !name.is_empty()
        && name.len() <= MAX_NAME
        && !name.starts_with('.')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    if valid {
        Ok(())
    } else {
        Err(FabricError::InvalidName {
            what,
            name: name.to_owned(),
            max: MAX_NAME,
        })
    }
}

pub(super) fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Makes sure that `path` is a directory of this user that no other user can write to.
pub(crate) fn private_directory(path: &Path, holds: DirectoryContent) -> Result<(), FabricError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(FabricError::io("create", path)(error)),
    }
    let metadata = std::fs::symlink_metadata(path).map_err(FabricError::io("stat", path))?;
    if !metadata.is_dir() {
        return Err(FabricError::NotADirectory {
            path: path.to_owned(),
            holds,
        });
    }
    let user = effective_user();
    if metadata.uid() != user {
        return Err(FabricError::ForeignOwner {
            path: path.to_owned(),
            holds,
            owner: metadata.uid(),
            user,
        });
    }
    let mode = metadata.mode() & 0o777;
    if mode & 0o022 != 0 {
        return Err(FabricError::WritableByOthers {
            path: path.to_owned(),
            mode,
        });
    }
    Ok(())
}

/// The name of a host's directory.
pub(crate) fn gid_name(gid: Gid) -> String {
    use std::fmt::Write as _;
    gid.0.iter().fold(String::new(), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    })
}

/// The inverse of [`gid_name`].
pub(crate) fn gid_from_name(name: &str) -> Option<Gid> {
    if name.len() != 32
        || !name
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    {
        return None;
    }
    u128::from_str_radix(name, 16)
        .ok()
        .map(|value| Gid(value.to_be_bytes()))
}

/// The kinds of files into which devices record.
pub(super) const CAPTURE: &str = "capture";
pub(super) const RUN_CAPTURE: &str = "run-capture";

pub(crate) fn table_path(host: &Path) -> PathBuf {
    host.join("table")
}

pub(crate) fn lock_path(host: &Path, id: ParticipantId) -> PathBuf {
    host.join(format!("{}.lock", id.0))
}

/// The path of a participant's shared segment, if it opened a device.
pub(crate) fn device_path(host: &Path, id: ParticipantId) -> PathBuf {
    host.join(format!("{}.device", id.0))
}

/// The file in which a participant's device lists the captures that it records into.
pub(super) fn recording_path(host: &Path, id: ParticipantId) -> PathBuf {
    host.join(format!("{}.recording", id.0))
}

/// The path at which a participant prepares files that others then find complete.
pub(super) fn draft_path(host: &Path, id: ParticipantId) -> PathBuf {
    host.join(format!("{}.draft", id.0))
}

pub(super) fn profile_path(host: &Path) -> PathBuf {
    host.join("profile")
}

/// The directories of the hosts, live or not.
pub(super) fn directories(hosts: &Path) -> Result<Vec<(Gid, PathBuf)>, FabricError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(hosts).map_err(FabricError::io("list", hosts))? {
        let entry = entry.map_err(FabricError::io("list", hosts))?;
        if let Some(gid) = entry.file_name().to_str().and_then(gid_from_name) {
            found.push((gid, entry.path()));
        }
    }
    Ok(found)
}

pub(super) fn file_names(directory: &Path) -> Result<Vec<String>, FabricError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(FabricError::io("list", directory))? {
        let entry = entry.map_err(FabricError::io("list", directory))?;
        names.extend(entry.file_name().into_string());
    }
    Ok(names)
}

/// The participant that a file of this name in a host's directory belongs to.
pub(super) fn file_owner(name: &str) -> Option<ParticipantId> {
    let (id, _) = name.split_once('.')?;
    let id = id.parse().ok().filter(|id| *id != 0)?;
    let is_owned = matches!(
        kind_of_file(name)?,
        "lock" | "device" | doorbell_page::KIND | CAPTURE | RUN_CAPTURE | "recording" | "draft"
    );
    is_owned.then_some(ParticipantId(id))
}

/// The type of a file in a host's directory, if it belongs to a participant.
pub(super) fn kind_of_file(name: &str) -> Option<&str> {
    name.split_once('.').map(|(_, kind)| kind)
}

/// Returns whether `path` is a directory, without following a symbolic link.
pub(super) fn is_directory(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_names_round_trip() {
        let gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 0xab, 0xff]);
        assert_eq!(gid_name(gid), "fe80000000000000010203040506abff");
        assert_eq!(gid_from_name(&gid_name(gid)), Some(gid));
        for name in [
            "",
            "fe80",
            "FE80000000000000010203040506ABFF",
            "+e80000000000000010203040506abff",
        ] {
            assert_eq!(gid_from_name(name), None);
        }
    }

    #[test]
    fn file_names_contain_their_owner() {
        assert_eq!(file_owner("12.lock"), Some(ParticipantId(12)));
        for name in ["0.lock", "x.lock", "1.", "1", "table", "-1.device"] {
            assert_eq!(file_owner(name), None, "{name}");
        }
    }
}
