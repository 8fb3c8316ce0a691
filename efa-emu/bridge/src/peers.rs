//! The addresses of other bridges: command-line arguments, host files, or a job's launcher.

use std::io;
use std::path::{Path, PathBuf};

use efa_commands::Failure;

/// The word for all nodes of the current Slurm job.
const SLURM: &str = "slurm";

/// The variable in which Slurm lists the nodes of a job.
const NODES: &str = "SLURM_JOB_NODELIST";

/// Most names in a list.
const MOST: usize = 4096;

/// The reason why a value of `--peer` is invalid.
#[derive(Debug, thiserror::Error)]
enum PeerError {
    #[error("{NODES} is not set: `{SLURM}` is for programs that srun or sbatch starts")]
    NotInJob,
    #[error("{NODES} is {list:?}, not a list of nodes: name them with HOST or @FILE")]
    NodeList { list: String },
    #[error("an address is missing")]
    Missing,
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} lists no host", path.display())]
    NoHost { path: PathBuf },
}

/// The addresses in the values of `--peer`: each is `HOST[:PORT]`; `@FILE`, a host file of a
/// launcher; or `slurm`, all nodes of the job.
pub(crate) fn named(values: &[String]) -> Result<Vec<String>, Failure> {
    let mut all = Vec::new();
    for value in values {
        let addresses =
            meant(value).map_err(|reason| Failure(format!("--peer {value}: {reason}")))?;
        all.extend(addresses);
    }
    Ok(all)
}

/// The addresses in one value.
fn meant(value: &str) -> Result<Vec<String>, PeerError> {
    if value == SLURM {
        let nodes = std::env::var(NODES).map_err(|_| PeerError::NotInJob)?;
        return expand(&nodes);
    }
    match value.strip_prefix('@') {
        Some(path) => of_file(Path::new(path)),
        None if value.is_empty() => Err(PeerError::Missing),
        None => Ok(vec![value.to_owned()]),
    }
}

/// The first word of each line; `#` begins a comment, and a second `:` the number of processes in
/// the format of MPICH's launcher.
fn of_file(path: &Path) -> Result<Vec<String>, PeerError> {
    let text = std::fs::read_to_string(path).map_err(|source| PeerError::Read {
        path: path.to_owned(),
        source,
    })?;
    let words = text.lines().filter_map(|line| {
        let line = line.split('#').next().unwrap_or_default();
        line.split_whitespace().next()
    });
    let hosts: Vec<String> = words.map(str::to_owned).collect();
    match hosts.is_empty() {
        true => Err(PeerError::NoHost {
            path: path.to_owned(),
        }),
        false => Ok(hosts),
    }
}

/// The names in a list of Slurm: `login,node[1-3,07-09]`.
fn expand(list: &str) -> Result<Vec<String>, PeerError> {
    let mut names = Vec::new();
    let mut rest = list;
    while !rest.is_empty() {
        // A comma in brackets separates numbers, not names.
        let end = match (rest.find(','), rest.find('[')) {
            (Some(comma), Some(bracket)) if bracket < comma => None,
            (comma, Some(_)) if comma.is_none() => None,
            (comma, _) => Some(comma.unwrap_or(rest.len())),
        };
        let item = match end {
            Some(end) => &rest[..end],
            None => {
                let close = rest.find(']').ok_or_else(|| bad(list))?;
                let behind = &rest[close..];
                &rest[..close + behind.find(',').unwrap_or(behind.len())]
            }
        };
        rest = rest[item.len()..].trim_start_matches(',');
        expand_item(item, &mut names).ok_or_else(|| bad(list))?;
    }
    match names.is_empty() {
        true => Err(bad(list)),
        false => Ok(names),
    }
}

fn bad(list: &str) -> PeerError {
    PeerError::NodeList {
        list: list.to_owned(),
    }
}

/// `None` if the item is invalid, or contains too many names.
fn expand_item(item: &str, names: &mut Vec<String>) -> Option<()> {
    let Some((front, rest)) = item.split_once('[') else {
        names.push(item.to_owned());
        return (!item.is_empty() && names.len() <= MOST).then_some(());
    };
    let (numbers, behind) = rest.split_once(']')?;
    // Slurm lists names with several dimensions only if configured to.
    if behind.contains(['[', ']']) {
        return None;
    }
    for range in numbers.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (from, to) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
        if to < from || to - from >= MOST as u64 {
            return None;
        }
        for number in from..=to {
            // Padded with zeros to the width of the first number.
            let width = first.len();
            names.push(format!("{front}{number:0width$}{behind}"));
        }
        if names.len() > MOST {
            return None;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurms_lists_expand_to_names() {
        for (list, names) in [
            ("node1", "node1"),
            ("login,node[1-3]", "login node1 node2 node3"),
            ("n[08-10,12]-ib,x", "n08-ib n09-ib n10-ib n12-ib x"),
            ("a[1],b[2-3],c", "a1 b2 b3 c"),
        ] {
            assert_eq!(expand(list).unwrap().join(" "), names, "{list}");
        }
        for list in ["", "a[", "a[1", "a[2-1]", "a[x]", "a[1-99999]", "a[1]b[2]"] {
            let error = expand(list).unwrap_err();
            assert!(error.to_string().contains(NODES), "{list}: {error}");
        }
    }

    #[test]
    fn files_list_hosts_as_launchers_read_them() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("hosts");
        std::fs::write(&file, "# all\nnode0 slots=4\n\nnode1\n").unwrap();
        let list = format!("@{}", file.display());
        let peers = named(&["login".to_owned(), list.clone()]).unwrap();
        assert_eq!(peers, ["login", "node0", "node1"]);
        std::fs::write(&file, "# none\n").unwrap();
        let Failure(error) = named(std::slice::from_ref(&list)).unwrap_err();
        assert!(error.starts_with(&format!("--peer {list}: ")), "{error}");
        assert!(error.contains("lists no host"), "{error}");
    }
}
