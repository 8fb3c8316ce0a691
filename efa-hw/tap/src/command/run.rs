//! `efa-tap run`.

use std::collections::HashMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Args;
use efa_capture::frame::OUTER_LEN;
use efa_capture::frame::header::HEADER_LEN;
use efa_commands::installation::Installation;
use efa_commands::{Failure, RunDirectory, child, complain, directory_of};
use efa_options::capture_output::{CaptureOptions, Store, parse_filter};

use super::frames::FrameTruncation;
use super::process::{Process, Rings};
use super::{PROGRAM, place_of_runs};
use crate::exchange::{
    ENV_CLOCK, ENV_DIRECTORY, ENV_QUIET, ENV_RDMA_DATA, ENV_RING, ENV_SEND_DATA, IDLE,
    from_monotonic,
};

/// The file name of the library to preload.
const LIBRARY: &str = "libefa_tap.so";
/// The directory of the library, in place of the usual ones.
const ENV_LIBRARY: &str = "EFA_TAP_LIB";
const LD_PRELOAD: &str = "LD_PRELOAD";

/// The bytes of a send that are read to find the end of its headers.
const LONGEST_HEADERS: usize = 512;

/// The intervals at which records are collected: while there are some, and otherwise.
const BUSY: Duration = Duration::from_millis(1);
const QUIET: Duration = Duration::from_millis(20);

/// The most collections after the program's end.
const LAST_TURNS: usize = 1000;

#[derive(Args)]
#[command(override_usage = "efa-tap run --pcap FILE [OPTIONS] -- COMMAND [ARG]...")]
pub(super) struct RunArguments {
    /// Write the packets that the program and its children send and receive over EFA devices to
    /// this file (pcapng).
    #[arg(long, value_name = "FILE")]
    pcap: PathBuf,
    #[command(flatten)]
    capture: CaptureOptions,
    /// Record the headers of RDM packets, and no user data: the bytes of each packet before its
    /// data, and the requests of RDMA operations.
    #[arg(long)]
    headers_only: bool,
    /// Record frames that pass this filter, such as `qpn 2 and type CTS`; see `efa-emu capture
    /// --help`.
    #[arg(
        long,
        value_name = "FILTER",
        default_value = "",
        hide_default_value = true
    )]
    filter: String,
    /// Begin without recording: `efa-tap on PID` begins.
    #[arg(long)]
    idle: bool,
    /// The memory for records that were not written yet, in each process; records without room are
    /// lost, and counted.
    #[arg(long, value_name = "MIB", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    buffer: u32,
    /// Do not report the content and the losses of the capture.
    #[arg(short, long)]
    quiet: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl RunArguments {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        let mut store = Store::create(&self.pcap, &self.capture)?;
        store.set_filter(parse_filter(&self.filter)?);
        let library = library()?;
        let directory = RunDirectory::create_below(&place_of_runs(), PROGRAM)?;
        if self.idle {
            fs::write(directory.path().join(IDLE), "")?;
        }
        let (program, arguments) = self.command.split_first().expect("clap requires a command");
        if let Some(reason) = cannot_preload(program) {
            complain(PROGRAM, &reason);
        }
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env(LD_PRELOAD, preload(&library))
            .env(ENV_DIRECTORY, directory.path())
            .env(ENV_CLOCK, from_monotonic().to_string())
            .env(ENV_RING, (u64::from(self.buffer) << 20).to_string());
        let frame_headers = OUTER_LEN + HEADER_LEN;
        let (sends, rdma) = match self.headers_only {
            true => (LONGEST_HEADERS, Some(0)),
            false => (
                (self.capture.snaplen() as usize).saturating_sub(frame_headers),
                None,
            ),
        };
        command.env(ENV_SEND_DATA, sends.to_string());
        if let Some(rdma) = rdma {
            command.env(ENV_RDMA_DATA, rdma.to_string());
        }
        if self.quiet {
            command.env(ENV_QUIET, "1");
        }
        let cut = FrameTruncation {
            snaplen: self.capture.snaplen(),
            headers_only: self.headers_only,
        };
        let mut recording = Recording {
            directory: directory.path(),
            processes: HashMap::new(),
            devices: Vec::new(),
            store,
            cut,
            failure: None,
        };
        let status = child::run(&mut command, || recording.turn())
            .map_err(|error| child::cannot_start(program, error))?;
        let lines = recording.end(&self.pcap);
        if !self.quiet {
            lines.iter().for_each(|line| complain(PROGRAM, line));
        }
        drop(directory);
        Ok(child::end_as(status))
    }
}

/// Moves the records of a run's processes into the capture.
struct Recording<'a> {
    directory: &'a Path,
    /// The processes by the path of their rings.
    processes: HashMap<PathBuf, Process>,
    /// The GIDs of all devices, in the order in which they were first seen.
    devices: Vec<efa_core::address::Gid>,
    store: Store,
    cut: FrameTruncation,
    /// The error that ended the recording before the run.
    failure: Option<Failure>,
}

impl Recording<'_> {
    /// Moves the records since the last call. Returns when to call this again.
    fn turn(&mut self) -> Duration {
        if self.failure.is_some() {
            return QUIET;
        }
        match self.try_turn() {
            Ok(true) => BUSY,
            Ok(false) => QUIET,
            Err(failure) => {
                self.failure = Some(failure);
                QUIET
            }
        }
    }

    fn try_turn(&mut self) -> Result<bool, Failure> {
        for ring in Rings::in_directory(self.directory) {
            if !self.processes.contains_key(&ring.path) {
                let process = Process::open(&ring.path, self.cut)?;
                self.processes.insert(ring.path, process);
            }
        }
        let mut any = false;
        for process in self.processes.values_mut() {
            any |= process.turn(&mut self.store, &mut self.devices)?;
        }
        self.store.turn()?;
        Ok(any)
    }

    /// Ends the recording. Returns the lines to print.
    fn end(mut self, path: &Path) -> Vec<String> {
        // Processes that the program has left running may never end.
        let _ = (0..LAST_TURNS).find(|_| self.turn() != BUSY);
        let path = path.display();
        if let Some(Failure(reason)) = self.failure {
            return vec![format!("{path} is not complete: {reason}")];
        }
        let mut lines = Vec::new();
        if self.processes.is_empty() {
            lines.push(format!(
                "{path}: no process opened an EFA device through a libibverbs that it loaded: see docs/tap.md"
            ));
        }
        for process in self.processes.into_values() {
            process.finish(&mut self.store);
        }
        match self.store.finish() {
            Ok(written) => {
                lines.extend(
                    written
                        .nothing_to_judge()
                        .map(|reason| format!("{path}: {reason}")),
                );
                lines.push(format!("{path}: {written}"));
            }
            Err(error) => lines.push(format!("{path} is not complete: {error}")),
        }
        lines
    }
}

/// Finds the library in the directory of [`ENV_LIBRARY`], else in the installation.
fn library() -> Result<PathBuf, Failure> {
    let directories = match env::var_os(ENV_LIBRARY) {
        Some(directory) => vec![PathBuf::from(directory)],
        None => Installation::of_this_program()?.libraries(),
    };
    let remedies =
        "install the whole package (docs/install.md), build it with `cargo build --workspace`";
    Ok(directory_of(&[LIBRARY], &directories, remedies, ENV_LIBRARY)?.join(LIBRARY))
}

/// `LD_PRELOAD` for the program: the tap precedes all other libraries, including emulated ones.
fn preload(library: &Path) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(inherited) = env::var_os(LD_PRELOAD).filter(|list| !list.is_empty()) {
        all.push(":");
        all.push(inherited);
    }
    all
}

/// The reason why the program will not load a library, if its file shows one.
fn cannot_preload(program: &OsStr) -> Option<String> {
    let path = match program.to_string_lossy().contains('/') {
        true => PathBuf::from(program),
        false => env::split_paths(&env::var_os("PATH")?)
            .map(|directory| directory.join(program))
            .find(|path| path.is_file())?,
    };
    let file = fs::read(&path).ok()?;
    is_static(&file).then(|| {
        format!(
            "{} is linked statically and loads no library: nothing of it can be recorded, only of programs that it \
             starts",
            path.display()
        )
    })
}

/// Whether this is a 64-bit ELF program without an interpreter.
fn is_static(file: &[u8]) -> bool {
    const PT_INTERP: u32 = 3;
    let word = |at: usize, bytes: usize| -> Option<u64> {
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(file.get(at..at.checked_add(bytes)?)?);
        Some(u64::from_le_bytes(value))
    };
    let header = || {
        let table = usize::try_from(word(32, 8)?).ok()?;
        let (size, count) = (word(54, 2)? as usize, word(56, 2)? as usize);
        Some((table, size, count))
    };
    if file.get(..5) != Some(b"\x7fELF\x02") {
        return false;
    }
    let Some((table, size, count)) = header() else {
        return false;
    };
    let kind = |index: usize| word(table.checked_add(index.checked_mul(size)?)?, 4);
    !(0..count).any(|index| kind(index) == Some(PT_INTERP.into()))
}
