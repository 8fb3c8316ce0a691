//! The libraries of rdma-core and libfabric: all that a program may load, and their versions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use efa_play::drive::Command;
use efa_play::libfabric::Provider;
use efa_play::player::{Player, PlayerError, Program, Timeouts};

use super::finding::Finding;
use super::machine::Machine;
use super::probe::{self, Answer, Question};

/// The libraries, by the names that programs depend on.
const VERBS: &str = "libibverbs.so.1";
const EFADV: &str = "libefa.so.1";
const LIBFABRIC: &str = "libfabric.so.1";

/// The default directories of the dynamic linker, and the directories of EC2's installer.
const DIRECTORIES: [&str; 8] = [
    "/lib64",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib",
    "/usr/local/lib",
    "/opt/amazon/efa/lib64",
    "/opt/amazon/efa/lib",
];

/// Directories of Python packages, some of which include a libfabric.
const PYTHON: [&str; 3] = ["/usr/lib", "/usr/local/lib", "/opt/conda/lib"];

pub(super) fn examine(machine: &Machine, findings: &mut Vec<Finding>) {
    let found = find(machine);
    rdma_core(machine, &found, findings);
    libfabric(machine, &found, findings);
}

/// The files of each library by the name that programs depend on. Programs load the first one.
type Found = BTreeMap<&'static str, Vec<PathBuf>>;

/// The files that a program may load by each name: in the order in which the dynamic linker
/// searches, each file once.
fn find(machine: &Machine) -> Found {
    let mut found = Found::new();
    for name in [VERBS, EFADV, LIBFABRIC] {
        let searched = machine.variable("LD_LIBRARY_PATH").unwrap_or_default();
        let told = std::env::split_paths(searched).map(|directory| directory.join(name));
        let usual = DIRECTORIES.map(|directory| machine.path(&format!("{directory}/{name}")));
        let mut paths: Vec<PathBuf> = told.collect();
        paths.extend(cached(machine, name));
        paths.extend(usual);
        if name == LIBFABRIC {
            paths.extend(in_wheels(machine));
        }
        let mut seen = BTreeSet::new();
        paths.retain(|path| fs::canonicalize(path).is_ok_and(|file| seen.insert(file)));
        found.insert(name, paths);
    }
    found
}

/// The paths of a library in the dynamic linker's cache, which contains them as strings.
fn cached(machine: &Machine, name: &str) -> Vec<PathBuf> {
    let cache = fs::read(machine.path("/etc/ld.so.cache")).unwrap_or_default();
    let strings = cache.split(|byte| *byte == 0);
    let paths = strings.filter_map(|string| std::str::from_utf8(string).ok());
    let ending = format!("/{name}");
    paths
        .filter(|path| path.starts_with('/') && path.ends_with(&ending))
        .map(|path| machine.path(path))
        .collect()
}

/// All copies of libfabric in Python packages.
fn in_wheels(machine: &Machine) -> Vec<PathBuf> {
    let homes = [
        machine
            .variable("VIRTUAL_ENV")
            .map(|home| PathBuf::from(home).join("lib")),
        machine
            .variable("HOME")
            .map(|home| PathBuf::from(home).join(".local/lib")),
    ];
    let usual = PYTHON.map(|directory| machine.path(directory));
    let mut found = Vec::new();
    for lib in homes.into_iter().flatten().chain(usual) {
        for python in below(&lib).filter(|path| begins(path, "python3")) {
            for packages in ["site-packages", "dist-packages"] {
                for package in below(&python.join(packages)) {
                    // A package has its libraries in its directory, in `lib`, or in the directory
                    // `NAME.libs` next to it.
                    let places = [package.clone(), package.join("lib")];
                    let files = places.iter().flat_map(|place| below(place));
                    found.extend(files.filter(|path| {
                        begins(path, "libfabric") && path.to_string_lossy().contains(".so")
                    }));
                }
            }
        }
    }
    found.sort();
    found
}

fn below(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

fn begins(path: &Path, beginning: &str) -> bool {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().starts_with(beginning)
}

/// The release of rdma-core of a library's file: the end of its name, as in
/// `libibverbs.so.1.14.44.0`.
fn release(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    let (_, version) = name.split_once(".so.")?;
    let numbers: Vec<&str> = version.split('.').collect();
    match numbers[..] {
        [_, _, release, patch] => Some(format!("{release}.{patch}")),
        _ => None,
    }
}

fn rdma_core(machine: &Machine, found: &Found, findings: &mut Vec<Finding>) {
    let mut used = Vec::new();
    for name in [VERBS, EFADV] {
        let paths = &found[name];
        if paths.is_empty() {
            findings.push(Finding::error("rdma-core", "is not installed").of(name).remedy(
                "Debian and Ubuntu: apt install ibverbs-providers; Amazon Linux and RHEL: yum install \
                 rdma-core; or EC2's installer (docs/ec2.md)",
            ));
        }
        for (place, path) in paths.iter().enumerate() {
            let file = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
            let release = release(&file);
            let named = match &release {
                Some(release) => format!("rdma-core {release}"),
                None => format!("is {}", machine.shown(&file)),
            };
            let finding = match probe::ask(machine, &Question::Library(path.clone())) {
                Some(Answer::Library(Some(newest))) => {
                    Finding::ok("rdma-core", format!("{named}, calls up to {newest}"))
                }
                Some(Answer::Library(None)) => {
                    Finding::error("rdma-core", format!("{named}, without any of its calls"))
                        .remedy("remove the file, or install rdma-core again")
                }
                Some(Answer::Error(problem)) => {
                    Finding::error("rdma-core", format!("{named}, cannot be loaded: {problem}"))
                        .remedy(
                            "install libibverbs and its providers from one release of rdma-core",
                        )
                }
                Some(Answer::Device(_)) | None => Finding::ok("rdma-core", named),
            };
            findings.push(finding.of(machine.shown(path)));
            if place == 0 {
                used.push(release);
            }
        }
    }
    if let [verbs, efadv] = &used[..]
        && verbs != efadv
    {
        let shown = |release: &Option<String>| release.clone().unwrap_or_else(|| "unknown".into());
        let value = format!(
            "programs get {VERBS} of {} and {EFADV} of {}",
            shown(verbs),
            shown(efadv)
        );
        findings.push(Finding::warning("rdma-core", value).remedy(
            "both from one release: remove one of the two, or its directory from LD_LIBRARY_PATH",
        ));
    }
}

fn libfabric(machine: &Machine, found: &Found, findings: &mut Vec<Finding>) {
    let paths = &found[LIBFABRIC];
    if paths.is_empty() {
        findings.push(Finding::note("libfabric", "is not installed").of(LIBFABRIC).remedy(
            "EC2's installer has one in /opt/amazon/efa; Debian and Ubuntu: apt install libfabric1",
        ));
    }
    for (place, path) in paths.iter().enumerate() {
        let finding = match machine.program() {
            None => Finding::ok("libfabric", "found"),
            Some(_) => ask_libfabric(path),
        };
        let default = match place {
            0 => ", which programs get that are not told otherwise",
            _ => "",
        };
        findings.push(finding.of(format!("{}{default}", machine.shown(path))));
    }
}

/// Loads the library in a separate process, and opens an endpoint there.
fn ask_libfabric(path: &Path) -> Finding {
    let program = Program::Libfabric {
        library: path.to_owned(),
        provider: Provider::efa(),
    };
    let broken = |error: &PlayerError| {
        Finding::error("libfabric", format!("cannot be loaded: {error}"))
            .remedy("remove it, or the directory from LD_LIBRARY_PATH")
    };
    let player = Player::launch_here("libfabric", &program, &BTreeMap::new(), Timeouts::DEFAULT);
    let mut player = match player {
        Ok(player) => player,
        Err(error) => return broken(&error),
    };
    let release = match player.identity() {
        Ok(identity) => identity.to_string(),
        Err(error) => return broken(&error),
    };
    let open = Command::Open(super::messages());
    match player.ask(&open, &mut Vec::new()) {
        Ok(_) => Finding::ok("libfabric", format!("{release}; its EFA provider works")),
        Err(error) => {
            let problem = match error {
                PlayerError::Refused { text, .. } | PlayerError::Unsupported { text, .. } => text,
                error => error.to_string(),
            };
            let value = format!("{release}; its EFA provider does not work: {problem}");
            Finding::warning("libfabric", value).remedy(
                "mend the errors above first; a libfabric may also be built without the provider: \
                 fi_info -l",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rdma_core_releases_are_read_from_file_names() {
        let release = |name: &str| release(Path::new(name));
        assert_eq!(
            release("/usr/lib/libibverbs.so.1.14.44.0").as_deref(),
            Some("44.0")
        );
        assert_eq!(release("libefa.so.1.1.33.1").as_deref(), Some("33.1"));
        assert_eq!(release("libibverbs.so.1"), None);
        assert_eq!(release("libefa_emu_verbs.so"), None);
    }
}
