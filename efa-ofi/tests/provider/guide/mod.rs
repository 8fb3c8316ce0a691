//! The examples of libfabric's programmer's guide as programs, compiled against the machine's
//! libfabric, and run over this provider and over stock libfabric's own, in two releases of it.

mod features;
mod future;
mod processes;

use std::path::{Path, PathBuf};
use std::process::Command;

use efa_testing::programs::{TestFabric, run};
use efa_testing::workspace::{root, userland};

/// The directory of the plug-in.
const PLUG_INS: &str = concat!(env!("OUT_DIR"), "/plug-in");

/// The examples' source.
const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/provider/guide/programs");

/// A libfabric that runs a program.
struct Release {
    name: &'static str,
    /// The program that starts others with it, if it is not the machine's.
    starter: Option<PathBuf>,
    /// The directory of its libraries and providers, if the program has to search there.
    directory: Option<PathBuf>,
}

/// The machine's, 1.17 on Debian 12, and those that can be fetched: 2.1 of Debian 13, and 2.5.1 of
/// a wheel.
fn releases() -> Vec<Release> {
    let mut releases = vec![Release {
        name: "1.17",
        starter: None,
        directory: None,
    }];
    if let Some(directory) = userland("debian13") {
        releases.push(Release {
            name: "2.1",
            starter: Some(directory.join("run")),
            directory: None,
        });
    }
    if let Some(directory) = userland("pypi-mpich") {
        releases.push(Release {
            name: "2.5",
            starter: None,
            directory: Some(directory.join("venv/lib/mpich")),
        });
    }
    releases
}

/// Compiles an example.
fn compile(name: &str, directory: &Path) -> PathBuf {
    let program = directory.join(name);
    let source = Path::new(PROGRAMS).join(format!("{name}.c"));
    let output = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-Wno-unused", "-O1", "-o"])
        .args([&program, &source])
        .arg("-lfabric")
        .output()
        .expect("cc starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {errors}");
    program
}

/// The output of an example over a provider of a release.
fn printed(fabric: &TestFabric, program: &Path, release: &Release, provider: &str) -> String {
    let starter = release.starter.iter().map(|path| path.as_path());
    let words: Vec<&str> = starter
        .chain([program, Path::new(provider)])
        .map(|word| word.to_str().expect("text"))
        .collect();
    let mut command = fabric.run(&[&["--quiet", "--"], &words[..]].concat());
    let providers = release
        .directory
        .as_ref()
        .map(|path| path.join("libfabric"));
    let providers = providers.map(|path| format!("{PLUG_INS}:{}", path.display()));
    command
        .env("FI_PROVIDER", provider)
        .env("FI_PROVIDER_PATH", providers.as_deref().unwrap_or(PLUG_INS))
        .env("FI_EFA_ENABLE_SHM_TRANSFER", "0")
        .current_dir(root());
    if let Some(directory) = &release.directory {
        command.env("LD_LIBRARY_PATH", directory);
    }
    run(command).stdout
}

/// Stock's queues cannot be slept on.
const NO_WAIT_OBJECT: &str =
    "fi_cq_open(domain, &cq_attr, &tx_cq, tx_name): Function not implemented\n";

/// The different output of stock, by release.
type Exceptions = &'static [(&'static str, &'static str)];

/// The examples, with their output over every provider, and the different output of stock in these
/// releases.
const EXAMPLES: [(&str, &str, Exceptions); 6] = [
    (
        "active_endpoint",
        "sent: 1, context 1\nreceived 10 bytes: a message, context 1\nclosed\n",
        &[],
    ),
    (
        "cq_error",
        "fi_cq_read: Error available\n\
         fi_cq_readerr: 1, Truncation error, 48 bytes did not fit, context 1\n",
        &[],
    ),
    (
        "counter",
        "counted 1, errors 0\ncounted 2, errors 0\ncounted 3, errors 0\nadded: 13\n",
        &[],
    ),
    ("poll_set", "at first: 0\nboth queues had an entry\n", &[]),
    (
        "wait_object",
        "received 10 bytes: a message\n",
        &[("1.17", NO_WAIT_OBJECT), ("2.1", NO_WAIT_OBJECT)],
    ),
    (
        "other_endpoints",
        "connections: No data available\nseveral contexts: at most 1 and 1\n\
         scalable: Function not implemented\n",
        &[],
    ),
];

#[test]
fn examples_print_the_same_over_stock() {
    let directory = tempfile::tempdir().expect("a directory");
    let fabric = TestFabric::new();
    let mut wrong = String::new();
    for (name, expected, exceptions) in EXAMPLES {
        let program = compile(name, directory.path());
        for release in releases().iter().filter(|release| release.name != "2.5") {
            for provider in ["efa_rs", "efa"] {
                let found = printed(&fabric, &program, release, provider);
                let mut exceptions = exceptions.iter().filter(|(of, _)| *of == release.name);
                let exception = exceptions.next().filter(|_| provider == "efa");
                let expected = exception.map_or(expected, |(_, printed)| printed);
                if found != expected {
                    let release = release.name;
                    wrong += &format!("{name} over {provider} in {release}:\n{found}\n");
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
