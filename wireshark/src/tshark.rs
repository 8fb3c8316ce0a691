//! An installed `tshark` with the dissector.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use efa_capture::Writer;
use efa_testing::workspace::{root, userland};
use serde_json::Value;

use crate::shown::DissectedFrame;

/// An installed `tshark`: the one in the variable `TSHARK`, or else the one in the path.
pub struct Tshark {
    program: OsString,
    dissector: PathBuf,
    /// An empty configuration, so that the user's own profile and plugins have no effect.
    home: tempfile::TempDir,
}

impl Tshark {
    /// `None`, and a line with the reason, if no `tshark` runs the dissector.
    pub fn find() -> Option<Tshark> {
        Tshark::load(std::env::var_os("TSHARK").unwrap_or_else(|| "tshark".into()))
    }

    /// The `tshark` of another Debian release, which `scripts/userland NAME` fetches at the first
    /// use. `None`, and a line with the reason, if that fails.
    pub fn fetch(name: &str) -> Option<Tshark> {
        let directory = userland(name)?;
        let program = directory.join("tshark");
        let started = Command::new(&program).arg("--version").output().unwrap();
        if !started.status.success() {
            let reason = String::from_utf8_lossy(&started.stderr);
            efa_testing::skip(format_args!("{}: {}", program.display(), reason.trim_end()));
            return None;
        }
        Tshark::load(program.into())
    }

    fn load(program: OsString) -> Option<Tshark> {
        let Some(identity) = identity(&program) else {
            efa_testing::skip("tshark is not installed (apt-get install tshark)");
            return None;
        };
        let tshark = Tshark {
            program,
            dissector: root().join("wireshark/efa.lua"),
            home: tempfile::tempdir().unwrap(),
        };
        // Each test is a process, and would repeat the check.
        let known = root().join("target/tmp/tshark-with-lua");
        if std::fs::read_to_string(&known).is_ok_and(|known| known == identity) {
            return Some(tshark);
        }
        // A filter on an unknown protocol is an error.
        let mut empty = tempfile::NamedTempFile::new().unwrap();
        let section = Writer::new(Vec::new()).unwrap();
        empty
            .write_all(&section.finish(Duration::ZERO).unwrap())
            .unwrap();
        let probe = tshark
            .command()
            .arg("-r")
            .arg(empty.path())
            .args(["-Y", "efa_rdm"])
            .output()
            .unwrap();
        if probe.status.success() {
            std::fs::create_dir_all(known.parent().unwrap()).unwrap();
            std::fs::write(known, identity).unwrap();
            return Some(tshark);
        }
        // Wireshark 4.4 runs no scripts for root unless its own configuration says so.
        let errors = String::from_utf8_lossy(&probe.stderr);
        assert!(
            rustix::process::geteuid().is_root() && !errors.contains("Lua: "),
            "tshark does not load wireshark/efa.lua: {errors}"
        );
        efa_testing::skip(
            "this tshark runs no Lua scripts for root; run the test as another user, or \
             put `run_user_scripts_when_superuser = true` into init.lua in Wireshark's global Lua \
             plugin directory (tshark -G folders)",
        );
        None
    }

    /// The dissector's fields, as `tshark -G fields` lists them: name, type, label, meaning.
    pub fn fields(&self) -> BTreeMap<String, [String; 3]> {
        let mut command = Command::new(&self.program);
        command
            .env("HOME", self.home.path())
            .env("XDG_CONFIG_HOME", self.home.path());
        // It must be the first option.
        let script = format!("lua_script:{}", self.dissector.display());
        let Output { stdout, .. } = command
            .args(["-G", "fields", "-X", &script])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&stdout).into_owned();
        let rows = text.lines().map(|line| line.split('\t').collect());
        rows.filter(|cells: &Vec<_>| cells[0] == "F" && cells.len() >= 8)
            .filter(|cells| matches!(cells[4], "efa" | "efa_rdm" | "efa_tm"))
            .map(|cells| {
                let [label, name, kind] = [cells[1], cells[2], cells[3]].map(str::to_owned);
                (name, [kind, label, cells[7].to_owned()])
            })
            .collect()
    }

    /// The command with the dissector, for a test to add arguments.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("HOME", self.home.path())
            .env("XDG_CONFIG_HOME", self.home.path())
            .arg("-X")
            .arg(format!("lua_script:{}", self.dissector.display()));
        command
    }

    /// The same `tshark` with a changed dissector.
    pub fn with_dissector(&self, change: impl FnOnce(String) -> String) -> Tshark {
        let home = tempfile::tempdir().unwrap();
        let dissector = home.path().join("efa.lua");
        let text = std::fs::read_to_string(&self.dissector).unwrap();
        std::fs::write(&dissector, change(text)).unwrap();
        Tshark {
            program: self.program.clone(),
            dissector,
            home,
        }
    }

    /// Runs it on a capture. Fails if Lua reported an error anywhere.
    pub fn run(&self, capture: &[u8], arguments: &[&str]) -> String {
        let (stdout, stderr) = self.output(capture, arguments, &[]);
        for sign in [
            "Lua Error",
            "lua:",
            "Dissector bug",
            "attempt to",
            "stack traceback",
        ] {
            for text in [&stdout, &stderr] {
                let line = text.lines().find(|line| line.contains(sign));
                assert!(line.is_none(), "{}", line.unwrap_or_default());
            }
        }
        stdout
    }

    /// Runs it on a capture, and ignores errors of Lua.
    pub fn run_unchecked(&self, capture: &[u8], arguments: &[&str]) -> String {
        self.output(capture, arguments, &[]).0
    }

    /// The statistics that the dissector prints after the last frame.
    pub fn statistics(&self, capture: &[u8], names: &str) -> String {
        self.output(capture, &["-q"], &[("EFA_STATISTICS", names)])
            .0
    }

    fn output(
        &self,
        capture: &[u8],
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> (String, String) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(capture).unwrap();
        let Output {
            status,
            stdout,
            stderr,
        } = self
            .command()
            .envs(environment.iter().copied())
            .arg("-r")
            .arg(file.path())
            .args([
                "-o",
                "udp.check_checksum:TRUE",
                "-o",
                "udp.try_heuristic_first:FALSE",
            ])
            .args(arguments)
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&stdout).into_owned();
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        assert!(status.success(), "tshark {arguments:?}: {status}\n{stderr}");
        (stdout, stderr)
    }

    /// All fields of all frames.
    pub fn dissect(&self, capture: &[u8]) -> Vec<DissectedFrame> {
        self.json(capture, &["-T", "json", "--no-duplicate-keys"])
    }

    /// All fields of all frames in a second pass, in which later frames are known.
    pub fn dissect_twice(&self, capture: &[u8]) -> Vec<DissectedFrame> {
        self.json(capture, &["-2", "-T", "json", "--no-duplicate-keys"])
    }

    fn json(&self, capture: &[u8], arguments: &[&str]) -> Vec<DissectedFrame> {
        let json = self.run(capture, arguments);
        let frames: Vec<Value> = serde_json::from_str(&json).unwrap();
        frames
            .iter()
            .map(|frame| DissectedFrame::new(&frame["_source"]["layers"]))
            .collect()
    }

    /// `PROTOCOL|INFO` of all frames, as in the packet list.
    pub fn lines(&self, capture: &[u8]) -> Vec<String> {
        let fields = [
            "-T",
            "fields",
            "-E",
            "separator=|",
            "-e",
            "_ws.col.Protocol",
            "-e",
        ];
        let text = self.run(capture, &[&fields[..], &["_ws.col.Info"]].concat());
        text.lines().map(str::to_owned).collect()
    }
}

/// The file of a program, its metadata, and the user that runs it; `None` if there is no such
/// program.
fn identity(program: &OsStr) -> Option<String> {
    let path = std::env::var_os("PATH")?;
    let file = std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())?;
    let metadata = file.metadata().ok()?;
    let (length, changed) = (metadata.len(), metadata.modified().ok()?);
    let user = rustix::process::geteuid().as_raw();
    Some(format!("{} {length} {changed:?} {user}", file.display()))
}
