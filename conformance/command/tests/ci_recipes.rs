//! The jobs of `docs/ci.md`: these tests run the commands on the page.
//!
//! Stand-ins replace the commands that need a network, root or many minutes: `apt-get`, `git clone` (some
//! traces of this checkout), `cargo build` (the programs that were built for the tests), and building
//! libfabric (the installed one). All other commands run as they are printed.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use efa_play::libfabric::Library;
use efa_testing::workspace::{conformance, root};
use yaml_rust2::{Yaml, YamlLoader};

/// Some traces, because a test of a job need not run the whole corpus.
const TRACES: [&str; 3] = ["eager-tagged", "long-cts", "read-emulated"];
const JOBS: [&str; 3] = ["engine", "distribution", "branch"];

/// The scripts of each job in the `index`-th YAML block, in their order: GitHub's `run`, GitLab's `script`.
fn jobs(index: usize) -> BTreeMap<String, Vec<String>> {
    let text = std::fs::read_to_string(root().join("docs/ci.md")).unwrap();
    let page = text.split("```yaml\n").nth(index + 1).unwrap();
    let page = page.split("```").next().unwrap();
    let documents = YamlLoader::load_from_str(page).unwrap();
    let scripts = |name: &str| -> Vec<String> {
        let github = documents[0]["jobs"][name]["steps"].as_vec().into_iter();
        let commands = github.flatten().map(|step| &step["run"]);
        let gitlab = documents[0][name]["script"].as_vec().into_iter().flatten();
        let all = commands.chain(gitlab).filter_map(Yaml::as_str);
        all.map(str::to_owned).collect()
    };
    JOBS.map(|name| (name.to_owned(), scripts(name)))
        .into_iter()
        .collect()
}

#[test]
fn both_systems_run_the_same_commands() {
    let github = jobs(0);
    for scripts in github.values() {
        assert!(scripts.len() >= 2, "{scripts:?}");
    }
    assert_eq!(github, jobs(1));
}

fn write_program(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Writes the stand-ins, with the files that they copy from this checkout.
fn stand_ins(directory: &Path, libfabric: Option<&Path>) {
    std::fs::create_dir_all(directory.join("clone/traces")).unwrap();
    for name in TRACES {
        for extension in ["toml", "pcapng"] {
            let file = format!("traces/{name}.{extension}");
            symlink(root().join(&file), directory.join("clone").join(&file)).unwrap();
        }
    }
    std::fs::copy(
        root().join("Cargo.toml"),
        directory.join("clone/Cargo.toml"),
    )
    .unwrap();
    let here = directory.display();
    write_program(&directory.join("apt-get"), "#!/bin/sh\nexit 0\n");
    // `git clone --depth 1 ADDRESS DIRECTORY`; anything else is git's own.
    write_program(
        &directory.join("git"),
        &format!(
            "#!/bin/sh\ncase \"$1 $4\" in\n\
             'clone ADDRESS') cp -R '{here}/clone' \"$5\" ;;\n\
             'rev-parse '*) echo 1f2e3d4c ;;\n\
             'config '*) ;;\n\
             *) echo \"git $*: not in docs/ci.md\" >&2; exit 1 ;;\nesac\n"
        ),
    );
    // The packages in the command must be those whose programs the job uses.
    let conformance = conformance();
    let programs = conformance.parent().expect("a program is in a directory");
    let programs = programs.display();
    write_program(
        &directory.join("cargo"),
        &format!(
            "#!/bin/sh\nset -e\ntest \"$1 $2 $3\" = 'build --release --manifest-path'\n\
             release=$(dirname \"$4\")/target/release\nmkdir -p \"$release\"\n\
             for package in \"$@\"; do\n\
             case $package in\n\
             efa-conformance) cp '{programs}/efa-conformance' \"$release\" ;;\n\
             efa-emu) cp '{programs}/efa-emu' \"$release\" ;;\n\
             efa-emu-verbs) cp '{programs}/libefa_emu_verbs.so' \"$release\" ;;\n\
             efa-emu-efadv) cp '{programs}/libefa_emu_efadv.so' \"$release\" ;;\n\
             esac\ndone\n"
        ),
    );
    if let Some(libfabric) = libfabric {
        let library = libfabric.display();
        write_program(
            &directory.join("make"),
            &format!(
                "#!/bin/sh\nmkdir -p installed/lib\ncp '{library}' installed/lib/libfabric.so.1\n"
            ),
        );
    }
}

/// Runs a job in a clean directory; returns its output and its report.
fn run(job: &str, libfabric: Option<&Path>) -> (String, String) {
    let beside = tempfile::tempdir().unwrap();
    stand_ins(beside.path(), libfabric);
    let clean = tempfile::tempdir().unwrap();
    if job == "branch" {
        // The checkout of the fork.
        for script in ["autogen.sh", "configure"] {
            write_program(&clean.path().join(script), "#!/bin/sh\nexit 0\n");
        }
    }
    let path = format!(
        "{}:{}",
        beside.path().display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let mut printed = String::new();
    for script in &jobs(0)[job] {
        // As the runner of GitHub does it.
        let output = Command::new("bash")
            .args(["-e", "-o", "pipefail", "-c", script])
            .current_dir(clean.path())
            .env("PATH", &path)
            .env("EFA_RDM", "ADDRESS")
            .output()
            .unwrap();
        printed.push_str(&String::from_utf8_lossy(&output.stdout));
        printed.push_str(&String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{script}\n{printed}");
    }
    let report = std::fs::read_to_string(clean.path().join("junit.xml")).unwrap();
    (printed, report)
}

fn installed() -> Option<PathBuf> {
    match Library::load(Path::new(Library::DEFAULT)) {
        Ok(library) => Some(library.file()),
        Err(error) => {
            efa_testing::skip(error);
            None
        }
    }
}

#[test]
fn the_engine_is_tested() {
    let (printed, report) = run("engine", None);
    assert!(printed.contains("under test: efa-core"), "{printed}");
    assert!(printed.contains("same outcome under 5 seeds"), "{printed}");
    assert!(report.contains("<testsuite name=\"hw\""), "{report}");
    assert!(report.contains("<testsuite name=\"emu\""), "{report}");
}

#[test]
fn the_distributions_libfabric_is_tested() {
    let Some(libfabric) = installed() else { return };
    let (printed, report) = run("distribution", None);
    let path = libfabric.display().to_string();
    assert!(printed.contains(&path), "{printed}");
    assert!(report.contains(&path), "{report}");
    assert!(report.contains("eager-tagged (libfabric as a)"), "{report}");
}

#[test]
fn a_branch_of_libfabric_is_tested() {
    let Some(libfabric) = installed() else { return };
    let (printed, report) = run("branch", Some(&libfabric));
    assert!(printed.contains("commit 1f2e3d4c"), "{printed}");
    assert!(
        printed.contains("/installed/lib/libfabric.so.1"),
        "{printed}"
    );
    assert!(
        report.contains(r#"<property name="under-test.commit" value="1f2e3d4c"/>"#),
        "{report}"
    );
}
