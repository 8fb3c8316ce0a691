//! Built programs and files of the workspace, for tests that start or read them.

use std::borrow::BorrowMut;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The path of a program or library that `cargo build --workspace` has built.
///
/// # Panics
/// If the file was not built, with the remedy. Skipping the test would hide that it never runs.
pub fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("a program knows its path");
    // target/PROFILE/deps/TEST-HASH, or target/PROFILE/examples/NAME
    let mut directories = own.ancestors().skip(1).take(2);
    let found = directories.find_map(|directory| {
        let path = directory.join(name);
        path.is_file().then_some(path)
    });
    found.unwrap_or_else(|| {
        panic!(
            "{name} is not above {}: run `cargo build --workspace` first, with `--release` for \
             benchmarks",
            own.display()
        )
    })
}

/// The path of the program `efa-emu`.
///
/// # Panics
/// As [`built`].
pub fn emulator() -> PathBuf {
    built("efa-emu")
}

/// A command that starts `efa-emu` with these arguments.
///
/// # Panics
/// As [`built`].
pub fn efa_emu(arguments: &[&str]) -> Command {
    let mut command = Command::new(emulator());
    command.args(arguments);
    command
}

/// The path of the program `efa-conformance`.
///
/// # Panics
/// As [`built`].
pub fn conformance() -> PathBuf {
    built("efa-conformance")
}

/// A command that starts `efa-conformance` with these arguments.
///
/// # Panics
/// As [`built`].
pub fn efa_conformance(arguments: &[&str]) -> Command {
    let mut command = Command::new(conformance());
    command.args(arguments);
    command
}

/// As [`efa_conformance`], on an emulated host created by `efa-emu run` with `options`.
///
/// # Panics
/// As [`built`].
pub fn efa_conformance_on_host(options: &[&str], arguments: &[&str]) -> Command {
    let mut command = efa_emu(&["run"]);
    command.args(options).arg("--");
    command.arg(conformance()).args(arguments);
    command
}

/// The directory of software that `scripts/userland NAME` downloads at the first use. `None`, after
/// printing the reason, if that fails, for example without a network.
pub fn userland(name: &str) -> Option<PathBuf> {
    let script = root().join("scripts/userland");
    let output = Command::new(script)
        .arg(name)
        .output()
        .expect("the script starts");
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        crate::skip(format_args!(
            "scripts/userland {name}: {}",
            reason.trim_end()
        ));
        return None;
    }
    let directory = String::from_utf8(output.stdout).expect("the path is text");
    Some(PathBuf::from(directory.trim_end()))
}

/// The exit status of a program and its output, standard output first.
pub fn outcome(output: &Output) -> (Option<i32>, String) {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    (output.status.code(), format!("{out}{err}"))
}

/// Runs a program and returns its output, standard output first. It must exit with this status and
/// print all of the texts.
#[track_caller]
pub fn expect(mut command: impl BorrowMut<Command>, status: i32, texts: &[&str]) -> String {
    let command = command.borrow_mut();
    let output = command.output().expect("the program starts");
    let (ended, printed) = outcome(&output);
    assert_eq!(ended, Some(status), "{command:?}\n{printed}");
    for text in texts {
        assert!(
            printed.contains(text),
            "{command:?}: `{text}` is not in\n{printed}"
        );
    }
    printed
}

/// The directory of the workspace.
pub fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().expect("a package is in the workspace")
}

/// Compares a file of the workspace with what it should contain, or writes it if `EFA_UPDATE` is
/// set. `tests` are the arguments of `cargo test` to run the caller.
///
/// # Panics
/// If the file contains something else.
#[track_caller]
pub fn expect_file(file: impl AsRef<Path>, tests: &str, expected: impl AsRef<[u8]>) {
    let (file, expected) = (file.as_ref(), expected.as_ref());
    let path = root().join(file);
    if std::fs::read(&path).is_ok_and(|current| current == expected) {
        return;
    }
    assert!(
        is_update(),
        "{} is not what the test generates; if the change is intended, update it with\n    \
         EFA_UPDATE=1 cargo test {tests}",
        file.display()
    );
    std::fs::write(&path, expected).expect("the file is writable");
}

/// As [`expect_file`], for the text between two marks in the file. An empty second mark is the end
/// of the file.
///
/// # Panics
/// If the file contains another text there, or no such marks.
#[track_caller]
pub fn expect_part(file: &str, [begin, end]: [&str; 2], tests: &str, expected: &str) {
    let text = std::fs::read_to_string(root().join(file)).expect("the file is readable");
    let marks = text.split_once(begin).and_then(|(before, rest)| {
        // From the back, so that an empty mark is found at the end.
        Some((before, rest.rsplit_once(end)?.1))
    });
    let Some((before, after)) = marks else {
        panic!(
            "{file} has no marks `{}` and `{}`",
            begin.trim(),
            end.trim()
        );
    };
    let expected = [before, begin, expected, end, after].concat();
    expect_file(file, tests, expected);
}

/// Whether generated files are to be written, instead of compared.
pub fn is_update() -> bool {
    std::env::var_os("EFA_UPDATE").is_some()
}

/// The directory of the corpus.
pub fn traces() -> PathBuf {
    root().join("traces")
}

/// The captures in the directory of the corpus, by name.
///
/// # Panics
/// If there are none.
pub fn captures() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(traces()).expect("the corpus is readable");
    let mut captures: Vec<PathBuf> = entries
        .map(|entry| entry.expect("the corpus is readable").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "pcapng")
        })
        .collect();
    captures.sort();
    assert!(
        !captures.is_empty(),
        "no captures in {}",
        traces().display()
    );
    captures
}
