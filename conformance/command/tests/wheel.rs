//! What the Python package index is told: the metadata that `scripts/wheel.py` writes into a wheel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use efa_testing::workspace::{outcome, root};

const REPOSITORY: &str = "https://repository.invalid/efa/efa-rdm";
const REVISION: &str = "0123456789abcdef0123456789abcdef01234567";

/// The files that `scripts/wheel.py` reads by name, and a program.
const STAGED: [&str; 4] = [
    "bin/efa-emu",
    "share/doc/efa-rdm/LICENSE-APACHE",
    "share/doc/efa-rdm/LICENSE-MIT",
    "share/doc/efa-rdm/THIRD-PARTY-LICENSES",
];

fn python(arguments: &[&str], repository: Option<&str>) -> String {
    let mut command = Command::new("python3");
    command.arg("-B").args(arguments);
    command.env("SOURCE_DATE_EPOCH", "1700000000");
    command.env_remove("EFA_RDM_REPOSITORY");
    if let Some(repository) = repository {
        command.env("EFA_RDM_REPOSITORY", repository);
        command.env("EFA_RDM_REVISION", REVISION);
    }
    let (status, text) = outcome(&command.output().unwrap());
    assert_eq!(status, Some(0), "{arguments:?}: {text}");
    text
}

/// Makes a wheel in a directory, of files that have their names in them.
fn wheel(directory: &Path, repository: Option<&str>) -> PathBuf {
    let stage = directory.join("stage");
    for name in STAGED {
        let path = stage.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
    let file = directory.join("efa_rdm-1.2.3-py3-none-any.whl");
    let script = root().join("scripts/wheel.py");
    let arguments = [&script, &stage, &file].map(|path| path.to_str().unwrap());
    python(&arguments, repository);
    file
}

/// A file of a wheel.
fn file(wheel: &Path, name: &str) -> String {
    let read = "import sys, zipfile; print(zipfile.ZipFile(sys.argv[1]).read(sys.argv[2]).decode(), end='')";
    python(&["-c", read, wheel.to_str().unwrap(), name], None)
}

fn metadata(repository: Option<&str>) -> String {
    let directory = tempfile::tempdir().unwrap();
    let wheel = wheel(directory.path(), repository);
    file(&wheel, "efa_rdm-1.2.3.dist-info/METADATA")
}

/// Where the links of a text lead, but for those within it.
fn links(text: &str) -> Vec<&str> {
    let after = text.split("](").skip(1);
    let targets = after.map(|rest| rest.split(')').next().unwrap());
    targets.filter(|target| !target.starts_with('#')).collect()
}

#[test]
fn links_lead_to_the_repository() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let metadata = metadata(Some(&format!("{REPOSITORY}/")));
    let field = format!("\nProject-URL: Repository, {REPOSITORY}\n");
    assert!(metadata.contains(&field), "{metadata}");
    let (of_readme, of_wheel) = (links(&readme), links(&metadata));
    assert!(of_readme.len() > 50, "{of_readme:?}");
    assert_eq!(of_readme.len(), of_wheel.len());
    for (before, after) in of_readme.into_iter().zip(of_wheel) {
        if before.starts_with("https:") {
            assert_eq!(after, before);
            continue;
        }
        assert_eq!(after, format!("{REPOSITORY}/blob/{REVISION}/{before}"));
        let path = before.split('#').next().unwrap();
        assert!(root().join(path).exists(), "{before}");
    }
}

#[test]
fn there_are_no_links_without_a_repository() {
    let metadata = metadata(None);
    assert!(!metadata.contains("Project-URL"), "{metadata}");
    let relative = links(&metadata).into_iter();
    let relative: Vec<&str> = relative
        .filter(|link| !link.starts_with("https:"))
        .collect();
    assert_eq!(relative, [""; 0]);
    // Their words stay.
    assert!(metadata.contains(
        "\n| install it | `make install PREFIX=$HOME/.local`, or a package: docs/install.md |\n"
    ));
    assert!(metadata.contains("\n| `traces` | the corpus |\n"));
}

#[test]
fn the_description_comes_after_fields_alone() {
    for repository in [None, Some(REPOSITORY)] {
        let metadata = metadata(repository);
        let (fields, description) = metadata.split_once("\n\n").unwrap();
        for field in fields.lines() {
            assert!(field.contains(": "), "{field}");
        }
        assert!(fields.contains("\nVersion: 1.2.3\n"), "{fields}");
        assert!(description.starts_with("# "), "{description}");
    }
}

#[test]
fn it_has_all_licences_and_is_the_same_again() {
    let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let wheels = directories
        .each_ref()
        .map(|directory| wheel(directory.path(), None));
    let [first, second] = wheels.each_ref().map(|wheel| fs::read(wheel).unwrap());
    assert_eq!(first, second);
    let record = file(&wheels[0], "efa_rdm-1.2.3.dist-info/RECORD");
    for path in &STAGED[1..] {
        let name = path.rsplit('/').next().unwrap();
        let name = format!("efa_rdm-1.2.3.dist-info/licenses/{name}");
        assert_eq!(file(&wheels[0], &name), *path);
        assert!(record.contains(&format!("{name},sha256=")), "{record}");
    }
}
