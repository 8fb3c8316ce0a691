//! The workflow that publishes releases: its form, and its commands, which run here in their order. A stand-in
//! replaces `make`, whose targets take many minutes and have tests of their own (`make dist-test`).

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use efa_testing::workspace::{outcome, root};
use yaml_rust2::{Yaml, YamlLoader};

const WORKFLOW: &str = ".github/workflows/release.yml";

/// What a job and a step may have (GitHub's workflow syntax); others would be ignored or refused there.
const KEYS_OF_JOBS: [&str; 6] = [
    "runs-on",
    "container",
    "environment",
    "permissions",
    "env",
    "steps",
];
const KEYS_OF_STEPS: [&str; 4] = ["name", "uses", "with", "run"];

/// The machines that packages are made for, as `uname` calls them: first that of the runner.
const MACHINES: [&str; 2] = ["x86_64", "aarch64"];

/// The names of tarball, Debian package and wheel for a machine.
fn packages(machine: &str) -> [String; 3] {
    let output = Command::new(root().join("scripts/dist"))
        .arg("names")
        .env("EFA_DIST_MACHINE", machine)
        .output()
        .unwrap();
    let (status, text) = outcome(&output);
    assert_eq!(status, Some(0), "{text}");
    let names: Vec<String> = text.lines().map(str::to_owned).collect();
    names.try_into().expect("three names")
}

fn job() -> Yaml {
    let text = fs::read_to_string(root().join(WORKFLOW)).unwrap();
    let documents = YamlLoader::load_from_str(&text).unwrap();
    let [workflow] = documents.as_slice() else {
        panic!("{WORKFLOW} is one document");
    };
    assert_eq!(workflow["on"]["push"]["tags"][0].as_str(), Some("v*"));
    let jobs = workflow["jobs"].as_hash().unwrap();
    assert_eq!(jobs.len(), 1, "one job, whose steps depend on each other");
    workflow["jobs"]["packages"].clone()
}

fn keys(table: &Yaml) -> Vec<&str> {
    let keys = table.as_hash().unwrap().keys();
    keys.map(|key| key.as_str().unwrap()).collect()
}

fn steps(job: &Yaml) -> &[Yaml] {
    job["steps"].as_vec().unwrap()
}

/// The commands, in their order.
fn commands(job: &Yaml) -> Vec<&str> {
    let commands = steps(job).iter().filter_map(|step| step["run"].as_str());
    commands.collect()
}

#[test]
fn it_has_the_form_of_a_workflow() {
    let job = job();
    for key in keys(&job) {
        assert!(KEYS_OF_JOBS.contains(&key), "jobs have no {key}");
    }
    for step in steps(&job) {
        for key in keys(step) {
            assert!(KEYS_OF_STEPS.contains(&key), "steps have no {key}");
        }
        let action = step["uses"].as_str();
        assert!(
            action.is_some() != step["run"].as_str().is_some(),
            "{step:?}"
        );
        // A version, so that it does not change by itself.
        assert!(
            action.is_none_or(|action| action.contains('@')),
            "{action:?}"
        );
    }
    // Systems are made in it.
    assert_eq!(job["container"]["options"].as_str(), Some("--privileged"));
    assert_eq!(job["permissions"]["contents"].as_str(), Some("write"));
    assert_eq!(job["permissions"]["id-token"].as_str(), Some("write"));
    // Where the links of the wheel's description lead.
    let repository = "${{ github.server_url }}/${{ github.repository }}";
    assert_eq!(job["env"]["EFA_RDM_REPOSITORY"].as_str(), Some(repository));
}

/// The place of the one step that `is_it` finds.
fn position(steps: &[Yaml], is_it: impl Fn(&Yaml) -> bool, what: &str) -> usize {
    let places: Vec<usize> = (0..steps.len()).filter(|at| is_it(&steps[*at])).collect();
    match places.as_slice() {
        [place] => *place,
        _ => panic!("{} steps {what}, not one", places.len()),
    }
}

#[test]
fn nothing_is_published_before_it_was_used() {
    let job = job();
    let steps = steps(&job);
    let runs = |line: &str| {
        let has = |step: &Yaml| {
            let command = step["run"].as_str().unwrap_or_default();
            command.lines().any(|its| its.trim() == line)
        };
        position(steps, has, &format!("run `{line}`"))
    };
    let runs_with = |part: &str| {
        let has = |step: &Yaml| step["run"].as_str().is_some_and(|its| its.contains(part));
        position(steps, has, &format!("run `{part}`"))
    };
    let uses = |action: &str| {
        let is_it = |step: &Yaml| {
            let used = step["uses"].as_str();
            used.is_some_and(|used| used.starts_with(action))
        };
        position(steps, is_it, &format!("use {action}"))
    };
    let order = [
        uses("actions/checkout@"),
        runs_with("GITHUB_REF_NAME"),
        runs("make dist"),
        runs("make dist-test"),
        runs("make dist-arm64"),
        runs_with("scripts/dist commit"),
        uses("softprops/action-gh-release@"),
        uses("pypa/gh-action-pypi-publish@"),
    ];
    assert!(order.is_sorted(), "{order:?}");
    // A step that is left out, or whose failure is none, would let the next ones publish.
    for step in steps {
        for key in ["if", "continue-on-error"] {
            assert!(step[key].is_badvalue(), "{step:?}");
        }
    }
    // One target builds and uses those for arm64.
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let (_, recipe) = makefile.split_once("\ndist-arm64:").unwrap();
    let lines: Vec<&str> = recipe.lines().skip(1).take(2).map(str::trim).collect();
    assert_eq!(lines, ["@scripts/arm64 dist", "@scripts/arm64 dist-test"]);
}

/// A clone in which `make` only writes files with the names of the packages.
fn clone_of_the_project() -> tempfile::TempDir {
    let clone = tempfile::tempdir().unwrap();
    for name in ["scripts", "Cargo.toml"] {
        symlink(root().join(name), clone.path().join(name)).unwrap();
    }
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    for target in ["\ndist:", "\ndist-test:", "\ndist-arm64:"] {
        assert!(makefile.contains(target), "Makefile has no{target}");
    }
    let make = clone.path().join("bin/make");
    fs::create_dir(make.parent().unwrap()).unwrap();
    let script = format!(
        "#!/bin/sh\nset -e\ncase \"$*\" in\n\
         dist) mkdir -p target/dist; cd target/dist; touch {files} ;;\n\
         dist-test) cd target/dist; ls {files} >/dev/null ;;\n\
         dist-arm64) cd target/dist; touch {files_for_arm64} ;;\n\
         *) echo \"make $*: not known\" >&2; exit 1 ;;\nesac\n",
        files = packages(MACHINES[0]).join(" "),
        files_for_arm64 = packages(MACHINES[1]).join(" ")
    );
    fs::write(&make, script).unwrap();
    fs::set_permissions(&make, PermissionsExt::from_mode(0o755)).unwrap();
    fs::write(clone.path().join(".gitignore"), "target\nwheels\n").unwrap();
    let commit = "git init -q && git add . && \
                  git -c user.name=tester -c user.email=tester@localhost commit -qm release";
    let (status, text) = run(commit, clone.path(), "");
    assert_eq!(status, Some(0), "{text}");
    clone
}

/// Runs a command as GitHub does in a container.
fn run(command: &str, clone: &Path, tag: &str) -> (Option<i32>, String) {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("sh")
        .args(["-e", "-c", command])
        .current_dir(clone)
        .env("PATH", format!("{}:{path}", clone.join("bin").display()))
        .env("HOME", clone)
        .env("LC_ALL", "C")
        .env("GITHUB_REF_NAME", tag)
        .output()
        .unwrap();
    outcome(&output)
}

#[test]
fn its_commands_publish_all_packages() {
    let job = job();
    let clone = clone_of_the_project();
    let tag = format!("v{}", env!("CARGO_PKG_VERSION"));
    for command in commands(&job) {
        let (status, text) = run(command, clone.path(), &tag);
        assert_eq!(status, Some(0), "{command}: {text}");
    }
    let published = |action: &str, setting: &str| -> Vec<String> {
        let step = steps(&job).iter().find(|step| {
            let used = step["uses"].as_str();
            used.is_some_and(|used| used.starts_with(action))
        });
        let patterns = step.unwrap()["with"][setting].as_str().unwrap().to_owned();
        let (status, files) = run(
            &format!("ls -d {}", patterns.replace('\n', " ")),
            clone.path(),
            &tag,
        );
        assert_eq!(status, Some(0), "{files}");
        files.lines().map(str::to_owned).collect()
    };
    let attached = published("softprops/action-gh-release@", "files");
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    let packages = MACHINES.map(packages);
    let paths = packages.iter().flatten();
    let paths = paths.map(|name| format!("target/dist/{name}"));
    assert_eq!(sorted(attached), sorted(paths.collect()));
    let directory = published("pypa/gh-action-pypi-publish@", "packages-dir");
    let (_, wheels) = run(&format!("ls {}", directory[0]), clone.path(), &tag);
    let wheels = wheels.lines().map(str::to_owned).collect();
    let both = packages.map(|[_, _, wheel]| wheel);
    assert_eq!(sorted(wheels), sorted(both.into()));
}

#[test]
fn the_packages_have_names_by_which_they_are_chosen() {
    for (machine, of_debian) in MACHINES.into_iter().zip(["amd64", "arm64"]) {
        let [tarball, deb, wheel] = packages(machine);
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(tarball, format!("efa-rdm-{version}-{machine}.tar.gz"));
        assert_eq!(deb, format!("efa-rdm_{version}_{of_debian}.deb"));
        // What is between them is the platform, and in it the oldest C library.
        let begin = format!("efa_rdm-{version}-py3-none-manylinux_2_");
        assert!(wheel.starts_with(&begin), "{wheel}");
        assert!(wheel.ends_with(&format!("_{machine}.whl")), "{wheel}");
        // Those who install them read the names there.
        let page = fs::read_to_string(root().join("docs/install.md")).unwrap();
        for name in [tarball, deb, wheel] {
            let written = name.replacen(version, "VERSION", 1);
            assert!(page.contains(&written), "docs/install.md: no {written}");
        }
    }
}

#[test]
fn a_tag_of_another_version_is_not_released() {
    let job = job();
    let clone = clone_of_the_project();
    let check = commands(&job)[0];
    assert!(check.contains("GITHUB_REF_NAME"), "{check}");
    let without_v = format!("x{}", env!("CARGO_PKG_VERSION"));
    for tag in ["v9.9.9", "v", &without_v] {
        let (status, text) = run(check, clone.path(), tag);
        assert_eq!(status, Some(1), "{tag}: {text}");
    }
}

#[test]
fn packages_of_a_changed_clone_are_not_released() {
    let job = job();
    let commands = commands(&job);
    let checks = |command: &&&str| command.contains("scripts/dist commit");
    let check = commands.iter().find(checks).unwrap();
    let clone = clone_of_the_project();
    let tag = format!("v{}", env!("CARGO_PKG_VERSION"));
    let (status, text) = run(check, clone.path(), &tag);
    assert_eq!(status, Some(0), "{text}");
    fs::write(clone.path().join("bin/make"), "changed").unwrap();
    let (status, text) = run(check, clone.path(), &tag);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("-dirty"), "{text}");
    fs::remove_dir_all(clone.path().join(".git")).unwrap();
    let (status, text) = run(check, clone.path(), &tag);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("unknown"), "{text}");
}
