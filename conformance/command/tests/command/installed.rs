//! The program in the layout of a package, outside of the clone: it finds its corpus and the rest
//! of its data there.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use efa_testing::workspace::{conformance, expect, root};

/// Installs the program and the named data below `prefix`.
fn install(prefix: &Path, data: &[&str]) -> impl Fn(&[&str]) -> Command {
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
        // Group `interop` needs a program efa-emu, but starts none for a list.
        command.env("PATH", conformance().parent().unwrap());
        command
    }
}

#[test]
fn an_installed_program_uses_the_installed_corpus() {
    let prefix = tempfile::tempdir().unwrap();
    let run = install(prefix.path(), &["traces", "wireshark", "scripts"]);
    let corpus = prefix.path().join("share/efa-rdm/traces");
    let text = expect(run(&["list", "--json"]), 0, &[]);
    let first = text.lines().next().unwrap();
    assert!(first.contains(corpus.to_str().unwrap()), "{first}");
    let command = run(&["run", "--filter", "eager-tagged"]);
    expect(command, 0, &["PASS  eager-tagged"]);
    let command = run(&["interop", "--list", "--group", "scenarios"]);
    expect(command, 0, &["eager-tagged"]);
    let data = format!("data: {}", prefix.path().join("share/efa-rdm").display());
    expect(run(&["--version"]), 0, &[&data]);
}

#[test]
fn missing_files_of_an_installation_are_named() {
    let prefix = tempfile::tempdir().unwrap();
    let run = install(prefix.path(), &["wireshark"]);
    for (arguments, missing) in [
        (&["run"][..], "traces"),
        (&["list"], "traces"),
        (&["interop", "x.toml"], "scripts/userland"),
    ] {
        expect(
            run(arguments),
            2,
            &[&format!("cannot find {missing}"), "docs/install.md"],
        );
    }
}
