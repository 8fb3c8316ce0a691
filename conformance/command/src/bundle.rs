//! `bundle`: packs one file to send when something fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use efa_doctor::bundle::{self, Member, PrivateTexts};
use efa_shm::version;
use serde_json::json;

use crate::doctor;
use crate::outcome::{Outcome, complain, say};

#[derive(clap::Args)]
pub(crate) struct Bundle {
    /// The archive to write.
    #[arg(short, long, value_name = "FILE.tar.gz")]
    output: PathBuf,
    /// Captures (.pcapng), reports of `run --json` (.json) and profiles of `survey` (.toml).
    files: Vec<PathBuf>,
    /// Another word to leave out, such as the name of a user; may be given again for others. The
    /// hosts that the files name are left out in any case.
    #[arg(long, value_name = "WORD")]
    hide: Vec<String>,
}

/// The directory in the archive.
const NAME: &str = "efa-bundle";

pub(crate) fn bundle(arguments: &Bundle) -> Outcome {
    match make(arguments) {
        Ok(members) => {
            for name in members {
                say(name);
            }
            say(format_args!("wrote {}", arguments.output.display()));
            Outcome::Passed
        }
        Err(problem) => complain(problem, Outcome::Unfit),
    }
}

/// Writes the archive, and returns the names of its files.
fn make(arguments: &Bundle) -> Result<Vec<String>, String> {
    let mut private = PrivateTexts::default();
    private.host(
        fs::read_to_string("/proc/sys/kernel/hostname")
            .unwrap_or_default()
            .trim(),
    );
    for file in &arguments.files {
        bundle::hosts(file)
            .map_err(|error| error.to_string())?
            .iter()
            .for_each(|host| private.host(host));
    }
    arguments.hide.iter().for_each(|word| private.word(word));
    private.home(&std::env::var("HOME").unwrap_or_default());
    let mut members = Vec::new();
    for file in &arguments.files {
        let member = bundle::member(file, &private);
        members.push(member.map_err(|error| error.to_string())?);
    }
    let diagnosis = doctor::of_this_machine()?;
    let diagnosis = serde_json::to_value(&diagnosis).map_err(|error| error.to_string())?;
    let names: Vec<_> = members.iter().map(|member| &member.name).collect();
    let versions = json!({ "build": version::build(), "files": names });
    for (name, value) in [("doctor.json", diagnosis), ("versions.json", versions)] {
        members.push(Member {
            name: name.to_owned(),
            bytes: private.hide_in_json(value).into_bytes(),
        });
    }
    let mut names: Vec<_> = members.iter().map(|member| member.name.clone()).collect();
    names.sort();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("two files are called {}: rename one", twice[0]));
    }
    write(&members, &arguments.output)?;
    Ok(names)
}

/// Has `tar` pack the files, without the names of users.
fn write(members: &[Member], output: &Path) -> Result<(), String> {
    // Files are prepared in the archive's directory, which has room for them.
    let mut parent = output.as_os_str().to_owned();
    parent.push(format!(".{}", std::process::id()));
    let parent = TemporaryDirectory(PathBuf::from(parent));
    let cannot =
        |path: &Path, error: std::io::Error| format!("cannot write {}: {error}", path.display());
    for member in members {
        let path = parent.0.join(NAME).join(&member.name);
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(|error| cannot(directory, error))?;
        }
        fs::write(&path, &member.bytes).map_err(|error| cannot(&path, error))?;
    }
    let packed = Command::new("tar")
        .arg("-czf")
        .arg(output)
        .arg("-C")
        .arg(&parent.0)
        .args(["--owner=0", "--group=0", "--numeric-owner", NAME])
        .output()
        .map_err(|error| format!("cannot start tar: {error}: install tar and gzip"))?;
    match packed.status.success() {
        true => Ok(()),
        false => {
            let why = String::from_utf8_lossy(&packed.stderr);
            Err(format!("tar failed: {}", why.trim()))
        }
    }
}

/// A directory that is removed at the end.
struct TemporaryDirectory(PathBuf);

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // If the removal fails, the files remain beside the archive.
        let _ = fs::remove_dir_all(&self.0);
    }
}
