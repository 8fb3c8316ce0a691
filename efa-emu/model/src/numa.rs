//! The NUMA nodes of this machine, to which emulated devices are assigned.

use std::fs;
use std::path::Path;

/// The kernel's directory of nodes.
const NODES: &str = "/sys/devices/system/node";

/// A NUMA node with processors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its number.
    pub number: u32,
    /// Its processors, as the kernel lists them: `0-3,8`.
    pub cpu_list: String,
    /// Its processors, as a mask in groups of 32 bits: `00000000,0000010f`.
    pub cpu_mask: String,
}

/// The nodes of this machine, ordered by number. Empty if the kernel has no such directory.
pub fn of_machine() -> Vec<Node> {
    below(Path::new(NODES))
}

fn below(directory: &Path) -> Vec<Node> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut nodes: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let number = name.to_str()?.strip_prefix("node")?.parse().ok()?;
            let read = |name| {
                Some(
                    fs::read_to_string(entry.path().join(name))
                        .ok()?
                        .trim()
                        .to_owned(),
                )
            };
            let cpu_list = read("cpulist")?;
            (!cpu_list.is_empty()).then_some(Node {
                number,
                cpu_list,
                cpu_mask: read("cpumap")?,
            })
        })
        .collect();
    nodes.sort_by_key(|node| node.number);
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_with_processors_are_sorted_by_number() {
        let directory = tempfile::tempdir().unwrap();
        for (name, list, mask) in [
            ("node10", "8-15", "0000ff00"),
            ("node2", "0-7", "000000ff"),
            ("node3", "", "00000000"),
            ("power", "0", "1"),
        ] {
            let node = directory.path().join(name);
            fs::create_dir(&node).unwrap();
            fs::write(node.join("cpulist"), format!("{list}\n")).unwrap();
            fs::write(node.join("cpumap"), format!("{mask}\n")).unwrap();
        }
        let nodes = below(directory.path());
        assert_eq!(
            nodes,
            [(2, "0-7", "000000ff"), (10, "8-15", "0000ff00")].map(|(number, list, mask)| Node {
                number,
                cpu_list: list.to_owned(),
                cpu_mask: mask.to_owned(),
            })
        );
        assert_eq!(below(&directory.path().join("missing")), []);
    }
}
