//! `efa-tap on` and `efa-tap off`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use efa_commands::{Failure, living_directories_below};

use super::process::{Rings, set_recording};
use super::{PROGRAM, place_of_runs};
use crate::exchange::IDLE;

/// Switches the recording of a process, or of all processes of a run.
pub(super) fn switch(pid: u32, on: bool) -> Result<ExitCode, Failure> {
    let runs = living_directories_below(&place_of_runs(), PROGRAM);
    for run in &runs {
        let name = run.file_name().unwrap_or_default().to_string_lossy();
        // The name of a run's directory begins with the number of its process.
        let is_meant = name.split('-').nth(1) == Some(&pid.to_string());
        let of_process: Vec<PathBuf> = Rings::in_directory(run)
            .filter(|ring| is_meant || ring.pid == pid)
            .map(|ring| ring.path)
            .collect();
        if is_meant {
            let idle = run.join(IDLE);
            match on {
                true => drop(fs::remove_file(&idle)),
                false => fs::write(&idle, "")?,
            }
        }
        for ring in &of_process {
            set_recording(ring, on)?;
        }
        if is_meant || !of_process.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    Err(Failure(format!(
        "process {pid} is neither `efa-tap run` nor a program with an EFA device that it started: start the \
         program with `efa-tap run --idle --pcap FILE -- COMMAND`"
    )))
}
