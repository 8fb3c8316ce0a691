//! Checks that the tests named in `docs/protocol-coverage.md` verify the statements there: each row
//! names faults of the engine, and its tests must fail on an engine that has them.
//!
//! `make coverage` runs all of it; `cargo test -p efa-core --test coverage_proof -- TEXT` runs the
//! rows that contain a text. The packages are built once more, below `target/coverage`, from a copy
//! whose `efa-core` has all [`faults`]. Each test process enables one of them, or none.

mod faults;
mod page;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use faults::Faults;
use page::Row;

/// The environment variable that selects the fault of a process, by its number.
const VARIABLE: &str = "EFA_SEEDED_FAULT";

/// The packages that are copied; the rest of the workspace is only linked to.
const PACKAGES: [&str; 3] = ["efa-core", "efa-emu", "testing"];
const MEMBERS: &str = r#"members = ["efa-core", "efa-core/wire", "efa-emu/model", "efa-emu/sim", "efa-emu/promises", "testing"]"#;

/// The arguments of `cargo test --no-run`.
const BUILDS: [&[&str]; 4] = [
    &["-p", "efa-core", "--lib", "--test", "endpoint"],
    &["-p", "efa-wire", "--lib", "--test", "wire"],
    &[
        "-p",
        "efa-sim",
        "-p",
        "efa-promises",
        "--no-default-features",
        "--test",
        "endpoint",
        "--test",
        "promises",
    ],
    &["-p", "efa-device-model", "--lib", "--test", "connected"],
];
/// The test binaries: the prefix of their tests in the page, the build that produces them, and the
/// name that cargo gives them.
const BINARIES: [(&str, usize, &str); 8] = [
    ("unit", 0, "unittests src/lib.rs"),
    ("unit/wire", 1, "unittests src/lib.rs"),
    ("endpoint", 0, "tests/endpoint/main.rs"),
    ("wire", 1, "tests/wire/main.rs"),
    ("device", 2, "tests/endpoint/main.rs"),
    ("promises", 2, "tests/promises/main.rs"),
    ("unit/model", 3, "unittests src/lib.rs"),
    ("connected", 3, "tests/connected/main.rs"),
];

/// A test that takes longer does not count as failed, but as undecided.
const PATIENCE: Duration = Duration::from_secs(300);

/// How a test ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Passed,
    Failed,
    TimedOut,
}

fn main() -> ExitCode {
    let started = Instant::now();
    let filter = env::args().nth(1).unwrap_or_default();
    let faults = Faults::read();
    let mut rows = page::claims();
    rows.retain(|row| is_chosen(row, &filter));
    let binaries = build(&faults);
    let built = started.elapsed();
    let tests: BTreeSet<&str> = rows
        .iter()
        .flat_map(|row| &row.tests)
        .map(String::as_str)
        .collect();
    let tests: BTreeMap<&str, Test> = tests
        .into_iter()
        .map(|name| (name, binaries.test(name)))
        .collect();
    let mut runs = BTreeSet::new();
    for row in &rows {
        for test in &row.tests {
            runs.insert((None, test.as_str()));
            let numbers = row.faults.iter().map(|name| Some(number(&faults, name)));
            runs.extend(numbers.map(|fault| (fault, test.as_str())));
        }
    }
    let ends = run_all(&tests, runs);
    let troubles: Vec<String> = rows
        .iter()
        .flat_map(|row| judge(row, &faults, &ends))
        .collect();
    for trouble in &troubles {
        println!("{trouble}");
    }
    println!(
        "{} rows; {} faults; {} runs of {} tests; {} s to build, {} s in all; {}",
        rows.len(),
        faults.names().len(),
        ends.len(),
        tests.len(),
        built.as_secs(),
        started.elapsed().as_secs(),
        match troubles.len() {
            0 => "all proven".to_owned(),
            count => format!("{count} troubles"),
        }
    );
    match troubles.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn number(faults: &Faults, name: &str) -> usize {
    let number = faults.number(name);
    number.unwrap_or_else(|| panic!("{name} is not a fault"))
}

/// Returns whether a row contains a text.
fn is_chosen(row: &Row, text: &str) -> bool {
    let mut parts = row.faults.iter().chain(&row.tests).chain([&row.statement]);
    parts.any(|part| part.contains(text))
}

/// The defects of a row: each test must pass without a fault and fail with at least one fault, and
/// each fault must make a test fail.
fn judge(row: &Row, faults: &Faults, ends: &BTreeMap<(Option<usize>, &str), End>) -> Vec<String> {
    let statement = &row.statement;
    let end = |fault: Option<usize>, test: &String| ends[&(fault, test.as_str())];
    let mut troubles = Vec::new();
    for test in &row.tests {
        match end(None, test) {
            End::Passed => {}
            other => troubles.push(format!("{statement}: {test} without a fault: {other:?}")),
        }
    }
    let names = &row.faults;
    let numbers: Vec<Option<usize>> = names.iter().map(|name| faults.number(name)).collect();
    for test in &row.tests {
        if !numbers.iter().any(|fault| end(*fault, test) == End::Failed) {
            troubles.push(format!("{statement}: {test} fails with none of {names:?}"));
        }
    }
    for (name, fault) in names.iter().zip(numbers) {
        if !row.tests.iter().any(|test| end(fault, test) == End::Failed) {
            troubles.push(format!("{statement}: no test fails with {name}"));
        }
        for test in row
            .tests
            .iter()
            .filter(|test| end(fault, test) == End::TimedOut)
        {
            troubles.push(format!("{statement}: {test} does not end with {name}"));
        }
    }
    troubles
}

/// Runs tests with faults, as many at a time as there are processors.
fn run_all<'a>(
    tests: &BTreeMap<&'a str, Test>,
    runs: BTreeSet<(Option<usize>, &'a str)>,
) -> BTreeMap<(Option<usize>, &'a str), End> {
    let runs = Mutex::new(runs.into_iter());
    let ends = Mutex::new(BTreeMap::new());
    let work = || {
        loop {
            let next = runs.lock().expect("no panic").next();
            let Some((fault, test)) = next else {
                break;
            };
            let end = tests[test].run(fault);
            ends.lock().expect("no panic").insert((fault, test), end);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    ends.into_inner().expect("no panic")
}

/// One test of a binary.
struct Test {
    binary: PathBuf,
    /// Its name in the binary.
    name: String,
    /// The directory of its package's files.
    directory: PathBuf,
}

impl Test {
    fn run(&self, fault: Option<usize>) -> End {
        let mut command = Command::new(&self.binary);
        command
            .args(["--exact", &self.name])
            .current_dir(&self.directory);
        // Every fault gets the same test cases. Failing cases are not kept for other runs.
        command.env("PROPTEST_RNG_SEED", "1");
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
        match fault {
            Some(fault) => command.env(VARIABLE, fault.to_string()),
            None => command.env_remove(VARIABLE),
        };
        let null = command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = null.spawn().expect("the test starts");
        let started = Instant::now();
        loop {
            match child.try_wait().expect("a child") {
                Some(status) if status.success() => return End::Passed,
                Some(_) => return End::Failed,
                None if started.elapsed() > PATIENCE => {
                    child.kill().expect("a child");
                    child.wait().expect("a child");
                    return End::TimedOut;
                }
                None => thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

/// The test binaries, by their prefix in the page.
struct Binaries {
    paths: BTreeMap<&'static str, PathBuf>,
    /// The names of the tests of each.
    names: BTreeMap<&'static str, Vec<String>>,
    directory: PathBuf,
}

impl Binaries {
    /// The test that the page means by `a/b::name`.
    fn test(&self, reference: &str) -> Test {
        let rest = |prefix| Some((prefix, reference.strip_prefix(prefix)?.strip_prefix('/')?));
        let parts = rest("unit/wire").or_else(|| rest("unit/model"));
        let parts = parts.or_else(|| reference.split_once('/'));
        let parts = parts.and_then(|(prefix, rest)| {
            let (module, name) = rest.split_once("::")?;
            Some((prefix, module, name))
        });
        let (prefix, module, name) = parts.unwrap_or_else(|| panic!("{reference} names no test"));
        let names = self.names.get(prefix);
        let names = names.unwrap_or_else(|| panic!("{reference}: {prefix} is not a test binary"));
        let module = match module {
            "main" | "mod" => String::new(),
            module => module.trim_end_matches("/mod").replace('/', "::") + "::",
        };
        let found = names.iter().find(|full| {
            let rest = full.strip_prefix(&module);
            rest.and_then(|rest| rest.strip_suffix(name))
                .is_some_and(|between| matches!(between, "" | "tests::"))
        });
        Test {
            binary: self.paths[prefix].clone(),
            name: found
                .unwrap_or_else(|| panic!("{reference} does not exist"))
                .clone(),
            directory: self.directory.clone(),
        }
    }
}

/// Builds the tests of a workspace whose engine has all faults.
fn build(faults: &Faults) -> Binaries {
    let (root, copy) = (page::root(), page::root().join("target/coverage"));
    fs::create_dir_all(&copy).expect("a directory");
    for entry in fs::read_dir(&root).expect("the workspace") {
        let name = entry.expect("the workspace").file_name();
        let (from, to) = (root.join(&name), copy.join(&name));
        match name.to_string_lossy().as_ref() {
            "target" | ".git" => {}
            "Cargo.toml" => write(&to, members(&page::read(&from)).as_bytes()),
            "Cargo.lock" => write(&to, page::read(&from).as_bytes()),
            package if PACKAGES.contains(&package) => {
                copy_tree(&from, &to, &|path| content(faults, &root, path));
            }
            _ if to.symlink_metadata().is_ok() => {}
            _ => std::os::unix::fs::symlink(&from, &to).expect("a link"),
        }
    }
    for file in faults.files() {
        assert!(
            copy.join(page::source(file)).exists(),
            "{file} does not exist"
        );
    }
    let mut binaries = Binaries {
        paths: BTreeMap::new(),
        names: BTreeMap::new(),
        directory: copy.join("efa-core"),
    };
    for (number, arguments) in BUILDS.iter().enumerate() {
        let built = cargo_build(&copy, arguments);
        for (prefix, build, description) in BINARIES {
            if build != number {
                continue;
            }
            let start = format!("  Executable {description} (");
            let mut lines = built.lines();
            let path = lines.find_map(|line| line.strip_prefix(&start)?.strip_suffix(')'));
            let path = path.unwrap_or_else(|| panic!("no {description} in\n{built}"));
            let path = copy.join(path);
            binaries.names.insert(prefix, names(&path));
            binaries.paths.insert(prefix, path);
        }
    }
    binaries
}

/// The function that each choice in the source calls.
fn switch() -> String {
    format!(
        r#"
pub(crate) fn seeded(fault: usize) -> bool {{
    static FAULT: std::sync::LazyLock<Option<usize>> =
        std::sync::LazyLock::new(|| std::env::var("{VARIABLE}").ok()?.parse().ok());
    *FAULT == Some(fault)
}}
"#
    )
}

/// The content of a file in the copy.
fn content(faults: &Faults, root: &Path, path: &Path) -> Vec<u8> {
    let content = fs::read(path).expect("a file");
    let file = page::SOURCES.iter().find_map(|(prefix, source)| {
        let below = path.strip_prefix(root.join(source)).ok()?;
        Some(Path::new(prefix).join(below))
    });
    let Some(file) = file else {
        return content;
    };
    let text = String::from_utf8(content).expect("source is text");
    let text = faults.apply(&file.to_string_lossy(), &text);
    match file.ends_with("lib.rs") {
        true => (text + &switch()).into(),
        false => text.into(),
    }
}

/// The workspace with the packages that are needed.
fn members(manifest: &str) -> String {
    let (before, members) = manifest.split_once("members = [").expect("a workspace");
    let (_, after) = members.split_once(']').expect("a list ends");
    format!("{before}{MEMBERS}{after}")
}

/// Copies a directory. Unchanged files are not rewritten, so that cargo does not rebuild them.
fn copy_tree(from: &Path, to: &Path, content: &dyn Fn(&Path) -> Vec<u8>) {
    let names = |path: &Path| -> BTreeSet<_> {
        let entries = fs::read_dir(path).into_iter().flatten();
        entries
            .map(|entry| entry.expect("a file").file_name())
            .collect()
    };
    fs::create_dir_all(to).expect("a directory");
    let wanted = names(from);
    for gone in names(to).difference(&wanted) {
        let path = to.join(gone);
        match path.is_dir() {
            true => fs::remove_dir_all(path),
            false => fs::remove_file(path),
        }
        .expect("a file is removed");
    }
    for name in wanted {
        let (from, to) = (from.join(&name), to.join(&name));
        match from.is_dir() {
            true => copy_tree(&from, &to, content),
            false => write(&to, &content(&from)),
        }
    }
}

/// Writes a file unless it is the same.
fn write(path: &Path, content: &[u8]) {
    if fs::read(path).ok().as_deref() != Some(content) {
        fs::write(path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// Builds tests, and returns the output of cargo.
fn cargo_build(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(["test", "--no-run", "--target-dir", "target"])
        .args(arguments)
        .current_dir(directory)
        .env_remove(VARIABLE)
        .output()
        .expect("cargo starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

/// The names of all tests of a binary.
fn names(binary: &Path) -> Vec<String> {
    let output = Command::new(binary).arg("--list").output();
    let output = output.expect("the test starts");
    assert!(output.status.success(), "{}", binary.display());
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
    names.map(str::to_owned).collect()
}
