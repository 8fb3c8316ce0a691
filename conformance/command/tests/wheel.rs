//! The packages of `make dist`: their names, when they are published, and the metadata for the
//! Python package index that `scripts/wheel.py` writes into a wheel.

use std::fs;
use std::path::Path;
use std::process::Command;

use efa_testing::workspace::{expect, root};

const REPOSITORY: &str = "https://repository.invalid/efa/efa-rdm";
const REVISION: &str = "0123456789abcdef0123456789abcdef01234567";

/// The files that `scripts/wheel.py` reads by name, and a program.
const STAGED: [&str; 4] = [
    "bin/efa-emu",
    "share/doc/efa-rdm/LICENSE-APACHE",
    "share/doc/efa-rdm/LICENSE-MIT",
    "share/doc/efa-rdm/THIRD-PARTY-LICENSES",
];

/// Makes a wheel of files whose content is their name. Returns its bytes, and the files in its
/// `dist-info`: each name, content, and a zero byte.
fn wheel(repository: &str) -> (Vec<u8>, String) {
    const SCRIPT: &str = r#"
import subprocess, sys, zipfile
script, stage, wheel = sys.argv[1:]
subprocess.run([sys.executable, "-B", script, stage, wheel], check=True)
for name in zipfile.ZipFile(wheel).namelist():
    if ".dist-info/" in name:
        print(name, zipfile.ZipFile(wheel).read(name).decode(), sep="\n", end="\0")
"#;
    let directory = tempfile::tempdir().unwrap();
    let stage = directory.path().join("stage");
    for name in STAGED {
        let path = stage.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
    let file = directory.path().join("efa_rdm-1.2.3-py3-none-any.whl");
    let text = expect(
        Command::new("python3")
            .args(["-c", SCRIPT])
            .args([&root().join("scripts/wheel.py"), &stage, &file])
            .env("SOURCE_DATE_EPOCH", "1700000000")
            .env("EFA_RDM_REPOSITORY", repository)
            .env("EFA_RDM_REVISION", REVISION),
        0,
        &[],
    );
    (fs::read(file).unwrap(), text)
}

/// The file of this name in `dist-info`.
fn file<'a>(files: &'a str, name: &str) -> &'a str {
    let beginning = format!("efa_rdm-1.2.3.dist-info/{name}\n");
    let found = files
        .split('\0')
        .find_map(|file| file.strip_prefix(&beginning));
    found.unwrap_or_else(|| panic!("no {name}: {files}"))
}

/// The targets of the links of a text, except those within it.
fn links(text: &str) -> Vec<&str> {
    let after = text.split("](").skip(1);
    let targets = after.map(|rest| rest.split(')').next().unwrap());
    targets.filter(|target| !target.starts_with('#')).collect()
}

#[test]
fn links_lead_to_the_repository() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let (_, files) = wheel(&format!("{REPOSITORY}/"));
    let metadata = file(&files, "METADATA");
    let (fields, description) = metadata.split_once("\n\n").unwrap();
    assert!(fields.lines().all(|field| field.contains(": ")), "{fields}");
    for field in [
        &format!("Project-URL: Repository, {REPOSITORY}"),
        "Version: 1.2.3",
    ] {
        assert!(fields.lines().any(|line| line == field), "{fields}");
    }
    assert!(description.starts_with("# "), "{description}");
    let (of_readme, of_wheel) = (links(&readme), links(metadata));
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
fn without_a_repository_there_are_no_links() {
    let (_, files) = wheel("");
    let metadata = file(&files, "METADATA");
    assert!(!metadata.contains("Project-URL"), "{metadata}");
    let links = links(metadata);
    assert!(
        links.iter().all(|link| link.starts_with("https:")),
        "{links:?}"
    );
    // The text of removed links stays.
    assert!(metadata.contains("\n| `traces` | the corpus |\n"));
}

#[test]
fn a_wheel_has_all_licences_and_is_reproducible() {
    let (first, files) = wheel("");
    assert_eq!(first, wheel("").0);
    for path in &STAGED[1..] {
        let name = format!(
            "licenses/{}",
            Path::new(path).file_name().unwrap().display()
        );
        assert_eq!(file(&files, &name), *path);
        assert!(file(&files, "RECORD").contains(&format!("{name},sha256=")));
    }
}

/// The release workflow and users choose packages by name.
#[test]
fn packages_have_the_documented_names() {
    let page = fs::read_to_string(root().join("docs/install.md")).unwrap();
    for machine in ["x86_64", "aarch64"] {
        let mut command = Command::new(root().join("scripts/dist"));
        let names = command.arg("names").env("EFA_DIST_MACHINE", machine);
        let names = expect(names, 0, &[]);
        assert_eq!(names.lines().count(), 3, "{names}");
        for name in names.lines() {
            let written = name.replacen(env!("CARGO_PKG_VERSION"), "VERSION", 1);
            assert!(page.contains(&written), "docs/install.md: no {written}");
        }
    }
}

#[test]
fn nothing_is_published_before_it_was_used() {
    let workflow = fs::read_to_string(root().join(".github/workflows/release.yml")).unwrap();
    let steps = [
        "actions/checkout@",
        "scripts/dist version",
        "run: make dist\n",
        "run: make dist-test\n",
        "run: make dist-arm64\n",
        "scripts/dist commit",
        "action-gh-release@",
        "gh-action-pypi-publish@",
    ];
    let places = steps.map(|step| workflow.find(step).unwrap_or_else(|| panic!("no {step}")));
    assert!(places.is_sorted(), "{places:?}");
    // A step that is skipped, or whose failure is ignored, would let the next ones publish.
    for key in [" if:", "continue-on-error:"] {
        assert!(!workflow.contains(key), "{key}");
    }
}
