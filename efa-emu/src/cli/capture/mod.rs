//! `efa-emu capture`: records a fabric while it runs.

mod filter;
mod output;
mod recording;

use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use efa_emu::transport::DEFAULT_FABRIC;

use super::Failure;
use super::signals::Signals;

pub(super) use filter::Filter;
pub(super) use output::Output;
pub(super) use recording::{Recording, Trouble};

/// Time between two looks at the fabric and at what the devices have recorded.
pub(super) const TICK: Duration = Duration::from_millis(100);

#[derive(Args)]
pub(super) struct CaptureArguments {
    /// The fabric to record.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_FABRIC)]
    fabric: String,
    /// Write to this file (pcapng) instead of standard output, which may be piped into
    /// `wireshark -k -i -`.
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// What to record, such as `host alice and qpn 2`; everything if it is missing.
    ///
    /// Tests: `host NAME` (what this host, or its device NAME:N, sent and received), `gid ADDRESS`, `qpn NUMBER`,
    /// `type NAME`, `rdm`, `rdma`, `outbound` (each frame once, as sent), `inbound`; combined with
    /// `and`, `or`, `not` and parentheses.
    #[arg(value_name = "FILTER", trailing_var_arg = true)]
    filter: Vec<String>,
}

impl CaptureArguments {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        let filter = parse_filter(&self.filter.join(" "))?;
        let output = self.output()?;
        let name = match &self.write {
            Some(path) => path.display().to_string(),
            None => "standard output".to_owned(),
        };
        let sink = output.sink()?;
        let signals = Signals::take(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]);
        let recording = Recording::begin(&self.fabric, sink, filter)?;
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
        let summary = record(recording, &name, announce, |_| {
            signals.wait_for(TICK).is_none() && !output.is_deserted()
        })?;
        if let Some(summary) = summary {
            eprintln!("efa-emu: {summary}");
        }
        Ok(ExitCode::SUCCESS)
    }

    fn output(&self) -> Result<Output, Failure> {
        match &self.write {
            Some(path) => Ok(Output::new(File::create(path).map_err(|error| {
                Failure(format!("cannot create {}: {error}", path.display()))
            })?)),
            None if io::stdout().is_terminal() => Err(Failure(
                "a capture is no text for a terminal: name a file with -w, or pipe it into \
                 `wireshark -k -i -`"
                    .to_owned(),
            )),
            None => Ok(Output::standard()?),
        }
    }
}

/// Reads a capture filter.
pub(super) fn parse_filter(text: &str) -> Result<Filter, Failure> {
    Filter::parse(text).map_err(|reason| Failure(format!("capture filter {text:?}: {reason}")))
}

/// Calls `announce` when all devices record, then records for as long as `goes_on`, which waits a
/// moment, says so. Returns what there was as a line for the user, or nothing if whoever read the
/// capture went away. `target` is the name of what is written.
pub(super) fn record(
    mut recording: Recording,
    target: &str,
    announce: impl FnOnce(&Recording),
    mut goes_on: impl FnMut(&mut Recording) -> bool,
) -> Result<Option<String>, Failure> {
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
        Ok(summary) => Ok(Some(summary)),
        Err(Trouble::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(None),
        Err(Trouble::Output(error)) => Err(Failure(format!("cannot write to {target}: {error}"))),
        Err(Trouble::Fabric(reason)) => Err(reason),
    }
}

fn unanswered(processes: &[i32]) -> String {
    let processes: Vec<_> = processes.iter().map(i32::to_string).collect();
    format!(
        "the device of process {} does not record yet: if the process is stopped, let it go on",
        processes.join(", ")
    )
}
