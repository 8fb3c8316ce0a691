//! The file system of the guests.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use efa_commands::{Failure, shell};

use super::archive::{Archive, FileKind};
use super::software::Software;

/// Parts of the packages that no program needs in a guest.
const LEFT_OUT: [&str; 8] = [
    "usr/share",
    "usr/lib/udev",
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/lib/x86_64-linux-gnu/perl",
    "usr/lib/x86_64-linux-gnu/perl-base",
    "usr/lib/x86_64-linux-gnu/security",
    "usr/lib/systemd",
    "var",
];

/// Files that the installation of the packages would create.
const MADE: [(&str, FileKind, &str); 11] = [
    ("proc", FileKind::Directory, ""),
    ("sys", FileKind::Directory, ""),
    ("dev", FileKind::Directory, ""),
    ("tmp", FileKind::Directory, ""),
    ("run", FileKind::Directory, ""),
    ("root", FileKind::Directory, ""),
    ("applets", FileKind::Directory, ""),
    ("init", FileKind::Program, include_str!("init.sh")),
    (
        "etc/hosts",
        FileKind::File,
        "127.0.0.1 localhost\n10.0.2.2 host\n192.168.77.1 vm1\n192.168.77.2 vm2\n",
    ),
    ("etc/nsswitch.conf", FileKind::File, "hosts: files\n"),
    (
        "usr/lib/x86_64-linux-gnu/libpsm_infinipath.so.1",
        FileKind::Link,
        "/usr/lib/libpsm1/libpsm_infinipath.so.1.16",
    ),
];

/// Writes the file system with the guests' commands and the user's files.
pub(crate) fn write(
    to: &Path,
    software: &Software,
    commands: &[Vec<String>],
    with: &[PathBuf],
) -> Result<(), Failure> {
    let mut archive = Archive::new(BufWriter::new(File::create(to)?));
    add_tree(&mut archive, &software.programs, "")?;
    archive.add("modules", FileKind::Directory, &[])?;
    add_tree(&mut archive, &software.modules, "modules/")?;
    for (path, kind, contents) in MADE {
        archive.add(path, kind, contents.as_bytes())?;
    }
    archive.add("commands", FileKind::Directory, &[])?;
    for (number, words) in (1..).zip(commands) {
        let line = format!("{}\n", shell::join(words));
        archive.add(
            &format!("commands/{number}"),
            FileKind::File,
            line.as_bytes(),
        )?;
    }
    for path in with {
        add(&mut archive, path).map_err(|Failure(reason)| {
            let path = path.display();
            Failure(format!("cannot put {path} into the guests: {reason}"))
        })?;
    }
    Ok(archive.finish()?)
}

/// Adds a file of the user.
fn add(archive: &mut Archive<impl Write>, path: &Path) -> Result<(), Failure> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| Failure("it has no name, or none in UTF-8".to_owned()))?;
    let name = format!("root/{name}");
    if path.is_dir() {
        archive.add(&name, FileKind::Directory, &[])?;
        return add_tree(archive, path, &format!("{name}/"));
    }
    Ok(archive.add(&name, FileKind::Program, &fs::read(path)?)?)
}

/// Adds the content of a directory, under `prefix`.
fn add_tree(archive: &mut Archive<impl Write>, from: &Path, prefix: &str) -> Result<(), Failure> {
    let mut entries: Vec<_> = fs::read_dir(from)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        // Packages have UTF-8 names only.
        let Some(name) = name.to_str() else { continue };
        let path = format!("{prefix}{name}");
        if LEFT_OUT.contains(&path.as_str()) {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            archive.add(&path, FileKind::Directory, &[])?;
            add_tree(archive, &entry.path(), &format!("{path}/"))?;
        } else if kind.is_symlink() {
            let target = fs::read_link(entry.path())?;
            archive.add(&path, FileKind::Link, target.as_os_str().as_encoded_bytes())?;
        } else if kind.is_file() {
            let is_program = entry.metadata()?.permissions().mode() & 0o111 != 0;
            let kind = match is_program {
                true => FileKind::Program,
                false => FileKind::File,
            };
            archive.add(&path, kind, &fs::read(entry.path())?)?;
        }
    }
    Ok(())
}
