//! Starting driven programs: on emulated hosts, on this one, and on others.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command as Process, Stdio};

use super::delays::Timeouts;
use super::error::PlayerError;
use super::hosted::HostedProgram;
use super::place::{HostDevice, RemoteAccess};
use super::process::Player;
use super::program::{Program, find_beside};

/// The reason why nothing can be launched.
#[derive(Debug, thiserror::Error)]
pub enum LauncherError {
    /// The path of this program cannot be determined.
    #[error("cannot find this program's own file: {0}")]
    OwnFile(#[from] std::io::Error),
    /// The program `efa-emu` was not found.
    #[error(
        "efa-emu is neither beside this program nor in PATH; build it with `cargo build -p efa-emu` or \
         name it with --efa-emu PATH"
    )]
    NoEmulator,
}

/// Starts driven processes, each on a separate emulated host.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The program that starts the emulated hosts.
    pub efa_emu: PathBuf,
    /// The program that plays endpoints with the engine or libfabric.
    pub efa_conformance: PathBuf,
    /// Name of the emulated fabric, different from all others in use.
    pub fabric: String,
}

impl Launcher {
    /// A launcher that uses the `efa-emu` in the directory of this program, or else the one in
    /// `PATH`.
    pub fn new(efa_emu: Option<PathBuf>) -> Result<Self, LauncherError> {
        let own = std::env::current_exe()?;
        let efa_emu = match efa_emu {
            Some(path) => path,
            None => find_beside(&own, "efa-emu").ok_or(LauncherError::NoEmulator)?,
        };
        Ok(Launcher {
            efa_emu,
            efa_conformance: own,
            fabric: format!("conformance-{}", std::process::id()),
        })
    }
}

/// The emulated host and the environment of a player's process.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// Name of the endpoint and of its emulated host.
    pub name: String,
    /// The device profile; `None`: the default of `efa-emu`.
    pub profile: Option<String>,
    /// The file for a capture of its device, if one is wanted.
    pub capture: Option<PathBuf>,
    /// Variables of the process besides those of this one.
    pub environment: BTreeMap<String, String>,
    /// The program that starts programs with the libraries of another release, if one is needed.
    pub runner: Option<PathBuf>,
    /// The file for standard error; `None` is the standard error of this process.
    pub log: Option<PathBuf>,
    /// Further options of `efa-emu run`.
    pub options: Vec<String>,
}

impl Player {
    /// Starts a program on a separate emulated host.
    pub fn launch(
        launcher: &Launcher,
        program: &Program,
        host: &Host,
    ) -> Result<Self, PlayerError> {
        let mut arguments: Vec<OsString> = vec!["run".into(), "--quiet".into(), "--host".into()];
        arguments.push(host.name.as_str().into());
        arguments.extend(["--fabric".into(), launcher.fabric.as_str().into()]);
        if let Some(profile) = &host.profile {
            arguments.extend(["--profile".into(), profile.into()]);
        }
        if let Some(capture) = &host.capture {
            arguments.extend(["--pcap".into(), capture.into()]);
        }
        arguments.extend(host.options.iter().map(OsString::from));
        arguments.push("--".into());
        arguments.extend(
            host.runner
                .as_ref()
                .map(|runner| runner.as_os_str().to_owned()),
        );
        arguments.extend(program.words(&launcher.efa_conformance));
        let mut process = Process::new(&launcher.efa_emu);
        process.args(arguments).envs(&host.environment);
        if let Some(log) = &host.log {
            let file = File::create(log).map_err(|source| PlayerError::Start {
                endpoint: host.name.clone(),
                program: log.clone(),
                source,
            })?;
            process.stderr(file);
        }
        Self::spawn(host.name.clone(), process, Timeouts::DEFAULT, None)
    }

    /// Starts a program at a place.
    ///
    /// # Errors
    /// [`PlayerError::Start`]; errors on the other host appear with the first command to the
    /// program.
    pub fn launch_at(
        endpoint: &str,
        place: &HostDevice,
        reach: &RemoteAccess,
        hosted: &HostedProgram,
        timeouts: Timeouts,
    ) -> Result<Self, PlayerError> {
        let mut process = hosted.command(&place.host, reach);
        process.stderr(Stdio::piped());
        let endpoint = format!("{endpoint} at {place}");
        Self::spawn(endpoint, process, timeouts, Some(place.clone()))
    }

    /// Starts a program on this host, with this process's device.
    pub fn launch_here(
        endpoint: &str,
        program: &Program,
        environment: &BTreeMap<String, String>,
        timeouts: Timeouts,
    ) -> Result<Self, PlayerError> {
        let start = |source| PlayerError::Start {
            endpoint: endpoint.to_owned(),
            program: "this program".into(),
            source,
        };
        let own = std::env::current_exe().map_err(start)?;
        let words = program.words(&own);
        let Some((file, arguments)) = words.split_first() else {
            return Err(start(std::io::ErrorKind::InvalidInput.into()));
        };
        let mut process = Process::new(file);
        process.args(arguments).envs(environment);
        process.stderr(Stdio::piped());
        Self::spawn(endpoint.to_owned(), process, timeouts, None)
    }
}
