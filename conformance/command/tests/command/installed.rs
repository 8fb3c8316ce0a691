//! The program where a package puts it, away from the clone: it finds its corpus and the rest of
//! its data there.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use efa_testing::workspace::{conformance, outcome, root};

/// Lays the program and the data that is named out below `prefix`.
fn install(prefix: &Path, data: &[&str]) -> impl Fn(&[&str]) -> (Option<i32>, String) {
    let program = prefix.join("bin/efa-conformance");
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    fs::copy(conformance(), &program).unwrap();
    let share = prefix.join("share/efa-rdm");
    fs::create_dir_all(&share).unwrap();
    for name in data {
        symlink(root().join(name), share.join(name)).unwrap();
    }
    let elsewhere = prefix.to_owned();
    move |arguments| {
        let mut command = Command::new(&program);
        command.args(arguments).current_dir(&elsewhere);
        // Group `interop` wants a program efa-emu, and starts none for a list.
        command.env("PATH", conformance().parent().unwrap());
        outcome(&command.output().unwrap())
    }
}

#[test]
fn an_installed_program_uses_the_installed_corpus() {
    let prefix = tempfile::tempdir().unwrap();
    let run = install(prefix.path(), &["traces", "wireshark", "scripts"]);
    let corpus = prefix.path().join("share/efa-rdm/traces");
    let (status, text) = run(&["list", "--json"]);
    assert_eq!(status, Some(0), "{text}");
    let first = text.lines().next().unwrap();
    assert!(first.contains(corpus.to_str().unwrap()), "{first}");
    let (status, text) = run(&["run", "--filter", "eager-tagged"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("PASS  eager-tagged"), "{text}");
    let (status, text) = run(&["interop", "--list", "--group", "scenarios"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("eager-tagged"), "{text}");
    let (_, text) = run(&["--version"]);
    let data = format!("data: {}", prefix.path().join("share/efa-rdm").display());
    assert!(text.contains(&data), "{text}");
}

#[test]
fn what_is_not_installed_is_named() {
    let prefix = tempfile::tempdir().unwrap();
    let run = install(prefix.path(), &["wireshark"]);
    for (arguments, missing) in [
        (&["run"][..], "traces"),
        (&["list"], "traces"),
        (&["interop", "x.toml"], "scripts/userland"),
    ] {
        let (status, text) = run(arguments);
        assert_eq!(status, Some(2), "{arguments:?}: {text}");
        assert!(text.contains(&format!("cannot find {missing}")), "{text}");
        assert!(text.contains("docs/install.md"), "{text}");
    }
}
