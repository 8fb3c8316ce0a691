//! The hosts of a cluster: their names and addresses, and the files that list them.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::files::{ADDRESSES_FILE, NAMES_FILE};
use crate::layout::Layout;

/// Maximum number of hosts of a cluster: the number of processes that can send to one process.
pub(crate) const MOST_HOSTS: u32 = 1024;

/// The system's primary file for host names.
pub(crate) const SYSTEM_HOSTS: &str = "/etc/hosts";

/// The name of the host with this number, from 0.
pub fn name(number: u32) -> String {
    format!("node{number}")
}

/// A list of hosts cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}", path.display())]
pub struct HostListError {
    path: PathBuf,
    source: io::Error,
}

/// The files that list the hosts of a cluster.
pub(crate) struct HostLists {
    /// In the format of `/etc/hosts`: the machine's own names, and the hosts.
    pub(crate) addresses: PathBuf,
    /// The names, one per line.
    pub(crate) names: PathBuf,
    /// With slots, in the format of Open MPI.
    pub(crate) open_mpi: PathBuf,
    /// With slots, in the format of MPICH's launcher.
    pub(crate) hydra: PathBuf,
}

impl HostLists {
    /// Writes the files into a directory.
    pub(crate) fn write(
        directory: &Path,
        layout: &Layout,
        slots: Option<u32>,
    ) -> Result<HostLists, HostListError> {
        let lists = HostLists {
            addresses: directory.join(ADDRESSES_FILE),
            names: directory.join(NAMES_FILE),
            open_mpi: directory.join("hosts.openmpi"),
            hydra: directory.join("hosts.hydra"),
        };
        let system = fs::read_to_string(SYSTEM_HOSTS).unwrap_or_default();
        let machine = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let lines = |line: &dyn Fn(&str) -> String| {
            layout.reached().fold(String::new(), |mut text, number| {
                let _ = writeln!(text, "{}", line(&name(number)));
                text
            })
        };
        for (path, text) in [
            (&lists.addresses, addresses(&system, machine.trim(), layout)),
            (&lists.names, lines(&str::to_owned)),
            (
                &lists.open_mpi,
                lines(&|name| match slots {
                    Some(slots) => format!("{name} slots={slots}"),
                    None => name.to_owned(),
                }),
            ),
            (
                &lists.hydra,
                lines(&|name| match slots {
                    Some(slots) => format!("{name}:{slots}"),
                    None => name.to_owned(),
                }),
            ),
        ] {
            fs::write(path, text).map_err(|source| HostListError {
                path: path.clone(),
                source,
            })?;
        }
        Ok(lists)
    }
}

/// The text of `/etc/hosts` on each host. It contains the machine's name, because launchers connect
/// to it and some machines cannot resolve it.
fn addresses(system: &str, machine: &str, layout: &Layout) -> String {
    let mut text = system.to_owned();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    let known = system
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default())
        .any(|line| line.split_whitespace().skip(1).any(|name| name == machine));
    if !known && !machine.is_empty() {
        let _ = writeln!(text, "127.0.0.1 {machine}");
    }
    for number in 0..layout.total() {
        let _ = writeln!(text, "{} {}", layout.address(number), name(number));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_addresses_and_name_remain() {
        assert_eq!(
            addresses(
                "127.0.0.1 localhost\n10.0.0.1 lab # mine",
                "lab",
                &Layout::alone(2)
            ),
            "127.0.0.1 localhost\n10.0.0.1 lab # mine\n127.1.0.1 node0\n127.1.0.2 node1\n"
        );
        assert_eq!(
            addresses("10.0.0.1 other # lab", "lab", &Layout::alone(1)),
            "10.0.0.1 other # lab\n127.0.0.1 lab\n127.1.0.1 node0\n"
        );
    }

    #[test]
    fn host_lists_follow_each_launchers_format() {
        let directory = tempfile::tempdir().unwrap();
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        let lists = HostLists::write(directory.path(), &Layout::alone(2), Some(4)).unwrap();
        assert_eq!(read(&lists.names), "node0\nnode1\n");
        assert_eq!(read(&lists.open_mpi), "node0 slots=4\nnode1 slots=4\n");
        assert_eq!(read(&lists.hydra), "node0:4\nnode1:4\n");
        let lists = HostLists::write(directory.path(), &Layout::alone(1), None).unwrap();
        assert_eq!(read(&lists.open_mpi), "node0\n");
        assert_eq!(read(&lists.hydra), "node0\n");
    }
}
