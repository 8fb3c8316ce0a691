//! `efa-emu capture`: records a fabric while it runs.

mod of_run;
mod output;
mod recorded_device;
mod recording;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use efa_options::capture_output::{CaptureOptions, RecordingTotals, Store, TICK, parse_filter};
use efa_shm::DEFAULT_FABRIC;

use efa_commands::Failure;
use efa_commands::signals::Signals;

pub(super) use of_run::RunRecording;
pub(super) use output::Output;
pub(super) use recording::{Recording, RecordingError};

#[derive(Args)]
pub(super) struct CaptureArguments {
    /// The fabric to record.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_FABRIC)]
    fabric: String,
    /// Write to this file (pcapng) instead of standard output (`-`), which may be piped into
    /// `wireshark -k -i -`.
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    #[command(flatten)]
    options: CaptureOptions,
    /// The frames to record, such as `host alice and qpn 2`; by default all.
    ///
    /// Tests: `host NAME` (frames that this host, or its device NAME:N, sent and received), `gid
    /// ADDRESS`, `qpn NUMBER`, `type NAME`, `rdm`, `rdma`, `outbound` (each frame once, as sent),
    /// `inbound`; combined with `and`, `or`, `not` and parentheses.
    #[arg(value_name = "FILTER", trailing_var_arg = true)]
    filter: Vec<String>,
}

impl CaptureArguments {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        let filter = parse_filter(&self.filter.join(" "))?;
        let (store, pipe, name) = self.output()?;
        let signals = Signals::take(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]);
        let recording = Recording::begin(&self.fabric, store, self.options.snaplen(), filter)?;
        let announce = |recording: &Recording| {
            let hosts: Vec<_> = recording.interfaces().iter().map(|i| &i.host[..]).collect();
            let hosts = match &hosts[..] {
                [] => "no hosts yet".to_owned(),
                hosts => hosts.join(", "),
            };
            eprintln!(
                "efa-emu: recording fabric {}: {hosts}; Ctrl+C ends it",
                self.fabric
            );
        };
        let written = record(recording, &name, announce, |_| {
            signals.wait_for(TICK).is_none() && !pipe.as_ref().is_some_and(Output::is_deserted)
        })?;
        if let Some(written) = written {
            eprintln!("efa-emu: {written}");
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The store, the pipe if the output is one whose reader may go away, and the output's name.
    fn output(&self) -> Result<(Store, Option<Output>, String), Failure> {
        if let Some(path) = self.write.as_deref().filter(|path| *path != Path::new("-")) {
            let store = Store::create(path, &self.options)?;
            return Ok((store, None, path.display().to_string()));
        }
        if self.options.ring()?.is_some() {
            return Err(Failure("-b needs a file: name it with -w".to_owned()));
        }
        if io::stdout().is_terminal() {
            return Err(Failure(
                "a capture is not text for a terminal: name a file with -w, or pipe it into \
                 `wireshark -k -i -`"
                    .to_owned(),
            ));
        }
        let pipe = Output::standard()?;
        let store = Store::pipe(pipe.try_clone()?, self.options.snaplen())?;
        Ok((store, Some(pipe), "standard output".to_owned()))
    }
}

/// Lets the recording of a run, if there is one, collect frames. Returns when to call this again.
pub(super) fn turn(recording: &mut Option<RunRecording<'_>>) -> Duration {
    match recording {
        Some(recording) => {
            recording.turn();
            TICK
        }
        None => Duration::MAX,
    }
}

/// Calls `announce` when all devices record, then records as long as `goes_on` returns true; that
/// function waits for a moment. Returns the totals, or `None` if the reader of the capture has
/// closed it. `target` is the name of the output.
pub(super) fn record(
    mut recording: Recording,
    target: &str,
    announce: impl FnOnce(&Recording),
    mut goes_on: impl FnMut(&mut Recording) -> bool,
) -> Result<Option<RecordingTotals>, Failure> {
    let run = || {
        let missing = recording.start()?;
        if !missing.is_empty() {
            eprintln!("efa-emu: {}", unanswered(&missing));
        }
        announce(&recording);
        loop {
            let goes_on = goes_on(&mut recording);
            recording.turn()?;
            if !goes_on {
                return Ok(());
            }
        }
    };
    let outcome = run();
    match outcome.and_then(|()| recording.end()) {
        Ok(written) => Ok(Some(written)),
        Err(RecordingError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(None),
        Err(RecordingError::Output(error)) => {
            Err(Failure(format!("cannot write to {target}: {error}")))
        }
        Err(RecordingError::Fabric(reason)) => Err(reason),
    }
}

fn unanswered(processes: &[i32]) -> String {
    let processes: Vec<_> = processes.iter().map(i32::to_string).collect();
    format!(
        "the device of process {} does not record yet: if the process is stopped, let it go on",
        processes.join(", ")
    )
}
