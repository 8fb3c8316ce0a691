//! Names and properties of directories. With any name of a variable's, an option's, the working or
//! the installation directory, programs find their device, or the command is refused in one line
//! that names the directory and the remedy.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use efa_testing::programs::{Finished, TestFabric, needs, run, succeed, words};
use efa_testing::workspace::{built, conformance, efa_emu, emulator, traces};

use super::beside::compile;

/// A directory.
struct Directory {
    name: &'static str,
    form: PathForm,
    /// The uses of it that are refused, with words of the line that says so.
    refused: &'static [(DirectoryUse, &'static str)],
}

/// How a command is told of the directory.
enum PathForm {
    /// By the absolute path of a directory of this name.
    Named(&'static [u8]),
    Relative,
    Link,
    Missing,
    /// A directory in which not even root can make a file.
    ReadOnly,
}

/// The use of a directory. In all uses, all variables but `TMPDIR` and the working directory are
/// set to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DirectoryUse {
    /// `TMPDIR`, for the files of a run.
    Temporary,
    /// `EFA_EMU_FABRICS`, for the fabric.
    Fabrics,
    /// The directory of the program `efa-emu` and its libraries.
    Installation,
    /// The directory of a run's captures and fault rules.
    Run,
    /// The directory of a cluster's `ssh` and of the programs that the cluster starts.
    Cluster,
    Profile,
    Tap,
    Key,
    Bridge,
    Check,
    Replay,
}

const USES: [DirectoryUse; 11] = [
    DirectoryUse::Temporary,
    DirectoryUse::Fabrics,
    DirectoryUse::Installation,
    DirectoryUse::Run,
    DirectoryUse::Cluster,
    DirectoryUse::Profile,
    DirectoryUse::Tap,
    DirectoryUse::Key,
    DirectoryUse::Bridge,
    DirectoryUse::Check,
    DirectoryUse::Replay,
];

const LONG: [u8; 200] = [b'x'; 200];

/// The dynamic linker ends an entry of its list at these characters.
const IN_NO_LIST: &[(DirectoryUse, &str)] = &[(DirectoryUse::Installation, "EFA_EMU_LIB")];

const DIRECTORIES: [Directory; 11] = [
    Directory::of(
        "relative",
        PathForm::Relative,
        &[(DirectoryUse::Fabrics, "EFA_EMU_FABRICS")],
    ),
    Directory::of("a space", PathForm::Named(b"with space"), IN_NO_LIST),
    Directory::of("a colon", PathForm::Named(b"with:colon"), IN_NO_LIST),
    Directory::of("a semicolon", PathForm::Named(b"with;semicolon"), &[]),
    Directory::of("a newline", PathForm::Named(b"with\nnewline"), &[]),
    Directory::of("a quote", PathForm::Named(b"with'quote"), &[]),
    Directory::of(
        "not UTF-8",
        PathForm::Named(b"caf\xe9"),
        &[(DirectoryUse::Profile, "--profile")],
    ),
    Directory::of(
        "long",
        PathForm::Named(&LONG),
        &[(DirectoryUse::Temporary, "set TMPDIR")],
    ),
    Directory::of("a link", PathForm::Link, &[]),
    Directory::of(
        "missing",
        PathForm::Missing,
        &[
            (DirectoryUse::Temporary, "set TMPDIR"),
            (DirectoryUse::Fabrics, "missing/efa-emu-"),
            (DirectoryUse::Installation, "EFA_EMU_LIB"),
            (DirectoryUse::Run, "missing/rules.toml"),
            (DirectoryUse::Profile, "missing/profile.toml"),
            (DirectoryUse::Tap, "missing/tap.pcapng"),
            (DirectoryUse::Key, "missing/new.key"),
            (DirectoryUse::Bridge, "missing/key"),
            (DirectoryUse::Check, "missing/trace.pcapng"),
            (DirectoryUse::Replay, "missing/trace.pcapng"),
        ],
    ),
    Directory::of(
        "read-only",
        PathForm::ReadOnly,
        &[
            (DirectoryUse::Temporary, "set TMPDIR"),
            (DirectoryUse::Fabrics, "/sys/efa-emu-"),
            (DirectoryUse::Installation, "EFA_EMU_LIB"),
            (DirectoryUse::Run, "/sys/rules.toml"),
            (DirectoryUse::Profile, "/sys/profile.toml"),
            (DirectoryUse::Tap, "/sys/tap.pcapng"),
            (DirectoryUse::Key, "/sys/new.key"),
            (DirectoryUse::Bridge, "/sys/key"),
            (DirectoryUse::Check, "/sys/trace.pcapng"),
            (DirectoryUse::Replay, "/sys/trace.pcapng"),
        ],
    ),
];

impl Directory {
    const fn of(
        name: &'static str,
        form: PathForm,
        refused: &'static [(DirectoryUse, &'static str)],
    ) -> Directory {
        Directory {
            name,
            form,
            refused,
        }
    }

    fn refusal(&self, used: DirectoryUse) -> Option<&'static str> {
        let mut refused = self.refused.iter();
        refused.find_map(|(refused, words)| (*refused == used).then_some(*words))
    }
}

/// A directory that was made, with the files that commands read from it.
struct PreparedDirectory<'a> {
    place: &'a Directory,
    /// The path as commands get it.
    path: PathBuf,
    working_directory: PathBuf,
    fabric: TestFabric,
}

impl<'a> PreparedDirectory<'a> {
    fn below(root: &Path, place: &'a Directory) -> PreparedDirectory<'a> {
        let directory = match place.form {
            PathForm::Named(name) => root.join(OsStr::from_bytes(name)),
            PathForm::Relative | PathForm::Link => root.join("directory"),
            PathForm::Missing => root.join("missing"),
            PathForm::ReadOnly => "/sys".into(),
        };
        let holds_files = !matches!(place.form, PathForm::Missing | PathForm::ReadOnly);
        if holds_files {
            fs::create_dir(&directory).unwrap();
            fill(&directory);
        }
        let path = match place.form {
            PathForm::Relative => "directory".into(),
            PathForm::Link => {
                let link = root.join("link");
                std::os::unix::fs::symlink(&directory, &link).unwrap();
                link
            }
            _ => directory.clone(),
        };
        PreparedDirectory {
            place,
            path,
            working_directory: match place.form {
                PathForm::Relative | PathForm::Missing => root.to_owned(),
                _ => directory,
            },
            fabric: TestFabric::new(),
        }
    }

    /// A program with the whole environment.
    fn command(&self, program: PathBuf, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        let mut search = self.path.clone().into_os_string();
        search.push(":");
        search.push(std::env::var_os("PATH").unwrap_or_default());
        command
            .args(words.iter().map(|word| self.with_path(word)))
            .current_dir(&self.working_directory)
            .env("PATH", search)
            .env("LD_PRELOAD", self.path.join(PRELOADED));
        for name in ["XDG_RUNTIME_DIR", "HOME", "LD_LIBRARY_PATH", "SYSFS_PATH"] {
            command.env(name, &self.path);
        }
        if self.place.refusal(DirectoryUse::Temporary).is_none() {
            command.env("TMPDIR", &self.path);
        }
        command
    }

    /// A word with the directory in place of `@/`, and a fabric's name in place of `FABRIC`.
    fn with_path(&self, word: &str) -> OsString {
        match word.strip_prefix("@/") {
            Some(file) => self.path.join(file).into(),
            None => word.replace("FABRIC", self.fabric.name()).into(),
        }
    }

    fn run(&self, used: DirectoryUse) -> Finished {
        // The program changes its directory, and finds devices by `SYSFS_PATH`, and the libraries
        // by their development names in `LD_LIBRARY_PATH`.
        let devices = "grep -q user.so /proc/self/maps && echo preloaded; cd / && ibv_devices | grep -c rdmap && \
                       ls \"${LD_LIBRARY_PATH%%:*}/libibverbs.so\" | wc -l";
        let hosts = "cd / && $(command -v ssh) node1 'cd / && ibv_devices | grep -c rdmap'";
        let emulator = |words: &[&str]| self.command(emulator(), words);
        let on_host = |options: &[&str], program: &[&str]| {
            let run = ["run", "--fabric", "FABRIC", "--quiet"];
            emulator(&[&run, options, &["--"], program].concat())
        };
        let shell = ["sh", "-c", devices];
        let mut command = match used {
            DirectoryUse::Temporary | DirectoryUse::Fabrics => on_host(&[], &shell),
            DirectoryUse::Installation => {
                let mut command = on_host(&["--provider", "efa_rs"], &shell);
                let own = self.path.join("efa-emu");
                match self.working_directory.join(&own).exists() {
                    true => command_of(&own, &command),
                    false => {
                        command.env("EFA_EMU_LIB", &self.path);
                        command
                    }
                }
            }
            DirectoryUse::Run => {
                let files = ["--faults", "@/rules.toml", "--pcap", "@/run.pcapng"];
                on_host(&files, &shell)
            }
            DirectoryUse::Cluster => {
                let cluster = ["cluster", "2", "--quiet", "--fabric", "FABRIC"];
                emulator(&[&cluster[..], &["--", "sh", "-c", hosts]].concat())
            }
            DirectoryUse::Profile => on_host(&["--profile", "@/profile.toml"], &shell),
            DirectoryUse::Tap => {
                let tap = built("efa-tap");
                let options = words("run --quiet --pcap @/tap.pcapng --");
                on_host(
                    &[],
                    &[&[tap.to_str().unwrap()], &options[..], &shell].concat(),
                )
            }
            DirectoryUse::Key => emulator(&["bridge", "key", "@/new.key"]),
            // The bridge has read its key when it reports a missing peer.
            DirectoryUse::Bridge => emulator(&["bridge", "--key", "@/key"]),
            DirectoryUse::Check => self.command(conformance(), &["check", "@/trace.pcapng"]),
            DirectoryUse::Replay => {
                let replay = ["run", "@/trace.pcapng", "--json", "@/report.json"];
                self.command(conformance(), &replay)
            }
        };
        match used {
            DirectoryUse::Temporary => command.env("TMPDIR", &self.path),
            DirectoryUse::Fabrics => command.env("EFA_EMU_FABRICS", &self.path),
            _ => &mut command,
        };
        run(command)
    }

    /// The expected output of the program, if it is known.
    fn expected(&self, used: DirectoryUse) -> Option<&'static str> {
        // As without the emulator, the list cannot have every name.
        let is_preloaded = match self.place.form {
            PathForm::Missing | PathForm::ReadOnly => false,
            _ => !self
                .path
                .as_os_str()
                .as_bytes()
                .iter()
                .any(|byte| b" :".contains(byte)),
        };
        match used {
            DirectoryUse::Key
            | DirectoryUse::Bridge
            | DirectoryUse::Check
            | DirectoryUse::Replay => None,
            DirectoryUse::Cluster => Some("1\n"),
            _ if is_preloaded => Some("preloaded\n1\n1\n"),
            _ => Some("1\n1\n"),
        }
    }

    #[track_caller]
    fn check(&self, used: DirectoryUse) {
        let outcome = self.run(used);
        let name = self.place.name;
        if let Some(words) = self.place.refusal(used) {
            assert_eq!(outcome.code(), 2, "{name}, {used:?}: {outcome:?}");
            let said = outcome
                .stderr
                .lines()
                .filter(|line| !line.contains("ld.so"));
            let said: Vec<_> = said.collect();
            assert!(
                said.len() == 1 && said[0].contains(words),
                "{name}, {used:?}: {words:?} is not in {said:?}"
            );
            return;
        }
        if used == DirectoryUse::Bridge {
            outcome.expect_stderr(&["say where to meet other bridges"]);
            return;
        }
        assert_eq!(outcome.code(), 0, "{name}, {used:?}: {outcome:?}");
        if let Some(expected) = self.expected(used) {
            assert_eq!(outcome.stdout, expected, "{name}, {used:?}: {outcome:?}");
        }
    }
}

/// The same command with another program.
fn command_of(program: &Path, command: &Command) -> Command {
    let mut other = Command::new(program);
    other.args(command.get_args());
    other.current_dir(command.get_current_dir().unwrap());
    other.envs(
        command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    other
}

/// The library that the user preloads.
const PRELOADED: &str = "user.so";

/// The files that commands read, in the directory of the test.
fn fill(directory: &Path) {
    let source = directory.parent().unwrap().parent().unwrap();
    for file in fs::read_dir(source.join("files")).unwrap() {
        let file = file.unwrap();
        fs::hard_link(file.path(), directory.join(file.file_name())).unwrap();
    }
}

/// Makes the files below `root`, once for all directories.
fn make_files(root: &Path) {
    let files = root.join("files");
    fs::create_dir(&files).unwrap();
    for name in [
        "efa-emu",
        "libefa_emu_verbs.so",
        "libefa_emu_efadv.so",
        "libefa_rs-fi.so",
    ] {
        let built = fs::canonicalize(built(name)).unwrap();
        fs::hard_link(built, files.join(name)).unwrap();
    }
    for (name, text) in [
        (
            "rules.toml",
            "[[fault]]\nwhen = { packet = \"CTS\" }\nthen = \"hold\"\n",
        ),
        ("profile.toml", "name = \"measured\"\nbase = \"efa2\"\n"),
    ] {
        fs::write(files.join(name), text).unwrap();
    }
    for ending in ["pcapng", "toml"] {
        let trace = traces().join(format!("burst-before-handshake.{ending}"));
        fs::copy(trace, files.join(format!("trace.{ending}"))).unwrap();
    }
    compile(&files, PRELOADED, "int user;\n", &["-shared", "-fPIC"]).unwrap();
    let mut key = efa_emu(&["bridge", "key", "key"]);
    key.current_dir(&files);
    succeed(key, "a key");
}

#[test]
fn any_place_works_or_is_refused_by_name() {
    needs!("ibv_devices", "ibverbs-utils");
    needs!("cc", "gcc");
    // On the file system of the built files, so that links can replace copies.
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    make_files(root.path());
    thread::scope(|scope| {
        for (index, place) in DIRECTORIES.iter().enumerate() {
            let root = root.path().join(index.to_string());
            fs::create_dir(&root).unwrap();
            scope.spawn(move || {
                let made = PreparedDirectory::below(&root, place);
                USES.into_iter().for_each(|used| made.check(used));
            });
        }
    });
}
