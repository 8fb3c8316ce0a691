//! Runs the commands of the jobs in `docs/ci.md` as they are printed, over some of the traces.
//!
//! Stand-ins replace the commands that need a network, root or many minutes: `apt-get`, `git clone`
//! (some traces), `cargo build` (the programs that were built for the tests), and building
//! libfabric (the installed one).

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use efa_play::libfabric::Library;
use efa_testing::workspace::{conformance, expect, root};
use yaml_rust2::{Yaml, YamlLoader};

const TRACES: [&str; 3] = ["eager-tagged", "long-cts", "read-emulated"];
const JOBS: [&str; 3] = ["engine", "distribution", "branch"];

/// The stubs, as shell functions. `cargo` provides the programs of the packages that it should
/// build.
const STAND_INS: &str = r#"
apt-get() { :; }
git() {
    case "$1 $4" in
    'clone ADDRESS') cp -R "$CLONE" "$5" ;;
    'rev-parse '*) echo 1f2e3d4c ;;
    'config '*) ;;
    *) echo "git $*: not in docs/ci.md" >&2; return 1 ;;
    esac
}
cargo() {
    test "$1 $2 $3" = 'build --release --manifest-path'
    local package release=$(dirname "$4")/target/release
    mkdir -p "$release"
    for package in "$@"; do
        case $package in
        efa-conformance) cp "$PROGRAMS/efa-conformance" "$release" ;;
        efa-emu) cp "$PROGRAMS/efa-emu" "$release" ;;
        efa-emu-verbs) cp "$PROGRAMS/libefa_emu_verbs.so" "$release" ;;
        efa-emu-efadv) cp "$PROGRAMS/libefa_emu_efadv.so" "$release" ;;
        esac
    done
}
make() { mkdir -p installed/lib && cp "$LIBFABRIC" installed/lib/libfabric.so.1; }
"#;

/// The scripts of each job in the `index`-th YAML block, in their order: GitHub's `run`, GitLab's
/// `script`.
fn jobs(index: usize) -> [Vec<String>; 3] {
    let text = std::fs::read_to_string(root().join("docs/ci.md")).unwrap();
    let page = text.split("```yaml\n").nth(index + 1).unwrap();
    let documents = YamlLoader::load_from_str(page.split("```").next().unwrap()).unwrap();
    JOBS.map(|name| {
        let github = documents[0]["jobs"][name]["steps"].as_vec().into_iter();
        let commands = github.flatten().map(|step| &step["run"]);
        let gitlab = documents[0][name]["script"].as_vec().into_iter().flatten();
        let all = commands.chain(gitlab).filter_map(Yaml::as_str);
        all.map(str::to_owned).collect()
    })
}

#[test]
fn both_systems_run_the_same_commands() {
    let github = jobs(0);
    assert!(
        github.iter().all(|scripts| scripts.len() >= 2),
        "{github:?}"
    );
    assert_eq!(github, jobs(1));
}

/// Runs the scripts of a job in an empty directory, as GitHub's runner does; returns their output,
/// and the report.
fn run(job: &[String], libfabric: &Path) -> (String, String) {
    let beside = tempfile::tempdir().unwrap();
    let clone = beside.path().join("clone");
    std::fs::create_dir_all(clone.join("traces")).unwrap();
    std::fs::write(clone.join("Cargo.toml"), "").unwrap();
    for name in TRACES {
        for extension in ["toml", "pcapng"] {
            let file = format!("traces/{name}.{extension}");
            symlink(root().join(&file), clone.join(&file)).unwrap();
        }
    }
    let clean = tempfile::tempdir().unwrap();
    // Scripts of the libfabric sources.
    for script in ["autogen.sh", "configure"] {
        let path = clean.path().join(script);
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let mut printed = String::new();
    for script in job {
        let mut shell = Command::new("bash");
        shell
            .args(["-e", "-o", "pipefail", "-c"])
            .arg(format!("{STAND_INS}{script}"));
        shell.env("EFA_RDM", "ADDRESS").env("CLONE", &clone);
        shell.env("PROGRAMS", conformance().parent().unwrap());
        shell.env("LIBFABRIC", libfabric).current_dir(clean.path());
        printed += &expect(shell, 0, &[]);
    }
    let report = std::fs::read_to_string(clean.path().join("junit.xml")).unwrap();
    (printed, report)
}

#[test]
fn the_engine_is_tested() {
    let [engine, ..] = jobs(0);
    let (printed, report) = run(&engine, Path::new(""));
    assert!(printed.contains("under test: efa-core"), "{printed}");
    assert!(printed.contains("same outcome under 5 seeds"), "{printed}");
    for backend in ["hw", "emu"] {
        let suite = format!("<testsuite name=\"{backend}\"");
        assert!(report.contains(&suite), "{report}");
    }
}

#[test]
fn libfabric_is_tested() {
    let [_, distribution, branch] = jobs(0);
    let libfabric = match Library::load(Path::new(Library::DEFAULT)) {
        Ok(library) => library.file(),
        Err(error) => return efa_testing::skip(error),
    };
    let (printed, report) = run(&distribution, &libfabric);
    for text in [&printed, &report] {
        assert!(text.contains(libfabric.to_str().unwrap()), "{text}");
    }
    let (printed, report) = run(&branch, &libfabric);
    assert!(
        printed.contains("/installed/lib/libfabric.so.1"),
        "{printed}"
    );
    let commit = r#"<property name="under-test.commit" value="1f2e3d4c"/>"#;
    assert!(report.contains(commit), "{report}");
}
