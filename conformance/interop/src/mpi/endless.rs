//! A job that runs until it is killed.

use std::path::PathBuf;
use std::process::Command;

use super::library::{Installation, MPICH};
use crate::harness::{Bench, NotMeasured, Running};

/// A job of two ranks on two hosts that runs until it is killed.
pub(crate) struct Job {
    installation: Installation,
    program: PathBuf,
}

impl Job {
    /// Fetches the library and compiles the program.
    pub(crate) fn prepare(bench: &Bench) -> Result<Job, NotMeasured> {
        let installation = Installation::find(bench, &MPICH)?;
        let program = installation.compile(bench, "exercise.c")?;
        Ok(Job {
            installation,
            program,
        })
    }

    /// Starts the job with a rank on each of two hosts, which others may share.
    pub(crate) fn start<'a>(
        &self,
        bench: &'a Bench<'a>,
        hosts: [&str; 2],
    ) -> Result<Running<'a>, NotMeasured> {
        let words = [self.program.clone(), "pingpong".into(), "3600".into()];
        let mut command = Command::new(self.installation.mpiexec());
        for (separator, host) in [None, Some(":")].into_iter().zip(hosts) {
            command
                .args(separator)
                .args(["-n", "1"])
                .arg(&bench.launcher()?.efa_emu)
                .args(["run", "--fabric", bench.fabric(), "--host", host, "--"])
                .args(&words);
        }
        command.envs([
            // The ranks are on one machine, but not on one emulated host.
            ("MPIR_CVAR_NOLOCAL", "1"),
            ("MPIR_CVAR_CH4_NETMOD", "ofi"),
            ("FI_PROVIDER", "efa"),
        ]);
        Running::start(bench, "MPI job".into(), command)
    }
}
