//! `efa-emu rsh`: the program that launchers call in place of `ssh`.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;

#[derive(Args)]
#[command(
    disable_version_flag = true,
    override_usage = "efa-emu rsh [OPTIONS OF SSH] [USER@]HOST [COMMAND [ARG]...]"
)]
pub(super) struct RshArguments {
    /// The arguments of ssh. The options -f, -n, -q and SendEnv of -o are followed, -G, -N, -O, -Q,
    /// -V, -W and SetEnv of -o are refused, and the others are ignored.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARG"
    )]
    words: Vec<OsString>,
}

impl RshArguments {
    pub(super) fn execute(self) -> ExitCode {
        efa_cluster::rsh::main(self.words)
    }
}
