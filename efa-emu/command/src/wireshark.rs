//! `efa-emu wireshark`: installs the dissector, its profile and running fabrics in the current
//! user's Wireshark.

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Args, Subcommand};
use efa_commands::installation::Installation;
use efa_commands::shell::quote;

use efa_commands::Failure;

/// Names of files in the repository.
const DISSECTOR: &str = "wireshark/efa.lua";
const PROFILE: &str = "wireshark/profile";

/// The file that Wireshark executes to call this program.
const EXTCAP: &str = "efa-emu-extcap";

#[derive(Args)]
pub(super) struct WiresharkArguments {
    #[command(subcommand)]
    command: WiresharkCommand,
}

#[derive(Subcommand)]
enum WiresharkCommand {
    /// Install the dissector, its profile, and running fabrics as interfaces, for the current user.
    ///
    /// The files go to the directories that `tshark -G folders` prints. Needs `tshark`.
    Install(InstallArguments),
}

#[derive(Args)]
#[group(multiple = false)]
struct InstallArguments {
    /// Install the dissector, and nothing else.
    #[arg(long)]
    dissector_only: bool,
    /// Install the profile with its colours, columns and filters, and nothing else.
    #[arg(long)]
    profile_only: bool,
    /// Make running fabrics interfaces of Wireshark, and nothing else.
    #[arg(long)]
    interfaces_only: bool,
}

impl WiresharkArguments {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        let WiresharkCommand::Install(wanted) = self.command;
        let everything = !(wanted.dissector_only || wanted.profile_only || wanted.interfaces_only);
        let installation = Installation::of_this_program()?;
        let folders = Folders::ask()?;
        if everything || wanted.dissector_only {
            let directory = folders.plugins()?;
            let file = directory.join("efa.lua");
            copy(&installation.file(DISSECTOR)?, &file)?;
            crate::output::print(&format!("dissector:  {}\n", file.display()));
        }
        if everything || wanted.profile_only {
            let directory = folders.configuration()?.join("profiles/EFA");
            let source = installation.file(PROFILE)?;
            let entries = fs::read_dir(&source).map_err(failed("read", &source))?;
            for entry in entries {
                let entry = entry.map_err(failed("read", &source))?;
                copy(&entry.path(), &directory.join(entry.file_name()))?;
            }
            crate::output::print(&format!(
                "profile:    {} (start with: wireshark -C EFA)\n",
                directory.display()
            ));
        }
        if everything || wanted.interfaces_only {
            let own = std::env::current_exe()?;
            let file = folders.programs()?.join(EXTCAP);
            write(&file, caller_of(&own).as_bytes())?;
            let executable = Permissions::from_mode(0o755);
            fs::set_permissions(&file, executable).map_err(failed("make executable", &file))?;
            crate::output::print(&format!(
                "interfaces: {}, of {}\n",
                file.display(),
                own.display()
            ));
        }
        if rustix::process::geteuid().is_root() {
            eprintln!(
                "efa-emu: note: you are root; Wireshark 4.4 and later run no Lua scripts for root"
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The script in Wireshark's extcap directory that lists and records running fabrics. It uses the
/// path of this program, because a Wireshark that is started by a desktop has a different PATH than
/// a shell.
fn caller_of(program: &Path) -> String {
    let program = quote(&program.to_string_lossy());
    format!("#!/bin/sh\nexec {program} extcap \"$@\"\n")
}

/// The directories in which Wireshark looks for files, by its names for them.
struct Folders(HashMap<String, PathBuf>);

impl Folders {
    /// Queries `tshark`. The names are the same in Wireshark 3.4 to 4.4.
    fn ask() -> Result<Folders, Failure> {
        let output = Command::new("tshark")
            .args(["-G", "folders"])
            .output()
            .map_err(|error| {
                Failure(format!(
                    "cannot start tshark, which tells where Wireshark looks for files: {error}: \
                     install it, on Debian with `apt-get install tshark`"
                ))
            })?;
        Ok(Folders::parse(&String::from_utf8_lossy(&output.stdout)))
    }

    fn parse(text: &str) -> Folders {
        let lines = text.lines().filter_map(|line| {
            let (name, path) = line.split_once(':')?;
            let path = path.trim();
            (!path.is_empty()).then(|| (name.to_owned(), PathBuf::from(path)))
        });
        // A name may occur again, with further directories.
        let mut folders = HashMap::new();
        for (name, path) in lines {
            folders.entry(name).or_insert(path);
        }
        Folders(folders)
    }

    /// The folder `name`. For releases that do not print it, the usual one below the user's home.
    fn folder(&self, name: &str, usual: &str) -> Result<PathBuf, Failure> {
        if let Some(told) = self.0.get(name) {
            return Ok(told.clone());
        }
        let home = std::env::var_os("HOME").ok_or_else(|| {
            Failure(format!(
                "tshark does not tell its folder {name:?}, and HOME is not set: set HOME"
            ))
        })?;
        Ok(PathBuf::from(home).join(usual))
    }

    fn configuration(&self) -> Result<PathBuf, Failure> {
        self.folder("Personal configuration", ".config/wireshark")
    }

    fn plugins(&self) -> Result<PathBuf, Failure> {
        self.folder("Personal Lua Plugins", ".local/lib/wireshark/plugins")
    }

    /// Before 4.2 it is below the configuration, and not printed.
    fn programs(&self) -> Result<PathBuf, Failure> {
        match self.0.get("Personal Extcap path") {
            Some(told) => Ok(told.clone()),
            None => Ok(self.configuration()?.join("extcap")),
        }
    }
}

fn copy(source: &Path, target: &Path) -> Result<(), Failure> {
    write(target, &fs::read(source).map_err(failed("read", source))?)
}

/// Writes a file, and creates its directories.
fn write(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory).map_err(failed("create", directory))?;
    fs::write(path, content).map_err(failed("write", path))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Failure {
    let path = path.display().to_string();
    move |error| {
        Failure(format!(
            "cannot {action} {path}: {error}: let Wireshark use another directory (HOME, \
             WIRESHARK_CONFIG_DIR), or give it the dissector with -X lua_script:FILE"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_two_releases() {
        let old = Folders::parse(
            "Temp:                   /tmp\n\
             Personal configuration: /home/a b/.config/wireshark\n\
             Global configuration:   /usr/share/wireshark\n\
             Personal Lua Plugins:   /home/a b/.local/lib/wireshark/plugins\n\
             Extcap path:            /usr/lib/wireshark/extcap\n",
        );
        let path = |path: Result<PathBuf, Failure>| path.unwrap().display().to_string();
        assert_eq!(
            path(old.plugins()),
            "/home/a b/.local/lib/wireshark/plugins"
        );
        assert_eq!(path(old.programs()), "/home/a b/.config/wireshark/extcap");
        let new = Folders::parse("Personal Extcap path:\t/home/a/.local/lib/wireshark/extcap\n");
        assert_eq!(path(new.programs()), "/home/a/.local/lib/wireshark/extcap");
    }

    #[test]
    fn the_caller_quotes_the_programs_path() {
        let script = caller_of(Path::new("/o'brien/efa emu"));
        let expected = "#!/bin/sh\nexec \"/o'brien/efa emu\" extcap \"$@\"\n";
        assert_eq!(script, expected);
    }
}
