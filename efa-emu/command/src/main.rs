//! The `efa-emu` command: runs programs on emulated hosts with an EFA device, and shows what runs.
//!
//! Lines on standard error begin with `efa-emu: ` and report errors, and conditions that would
//! otherwise go unnoticed; a normal run prints none.

#[cfg(feature = "bundled")]
mod bundle;
mod capture;
mod cluster;
mod extcap;
mod fault;
mod injection;
mod leftovers;
mod output;
mod profiles;
mod ps;
mod rsh;
mod run;
mod stats;
mod survivors;
mod unused;
mod wireshark;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use efa_commands::{Failure, end, installation};
use efa_options::bridge::BridgeArguments;
use efa_options::pages;
use efa_options::pci::{self, PciArguments};
use efa_options::vm::{VM, VmArguments};

use output::PROGRAM;

const EXIT_STATUS: &str = "\
Exit status:
  of run and cluster  that of the program, 128 + n if signal n ended it
  of rsh              that of the command, 255 if there is none
  of the others       0
  2                   wrong usage or an unfit environment";

/// A software EFA device for unmodified programs.
#[derive(Parser)]
#[command(name = "efa-emu", version, propagate_version = true,
          long_version = installation::version_text(), after_long_help = EXIT_STATUS)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program on an emulated host that has an EFA device.
    ///
    /// Each `run` is one host with its own GID, unless --host names a host that runs already.
    /// Programs meet if they run in the same fabric. The exit status is the program's.
    Run(run::RunArguments),
    /// Run a program that starts others on several emulated hosts: an MPI launcher, pdsh, a script
    /// that calls ssh.
    ///
    /// Open MPI, MPICH and Intel MPI find the hosts and the device by the environment. The exit
    /// status is the program's.
    Cluster(cluster::ClusterArguments),
    /// Run a command on a host of a cluster, as ssh does.
    ///
    /// The exit status is the command's, or 255 if there is none.
    Rsh(rsh::RshArguments),
    Bridge(BridgeArguments),
    Vm(VmArguments),
    /// List the device generations that can be emulated, with the source of every number.
    Profiles(profiles::ProfilesArguments),
    /// List the emulated hosts of a fabric and their processes.
    Ps(ps::PsArguments),
    /// Show the counters of a fabric's devices, with their names in `hw_counters`.
    Stats(stats::StatsArguments),
    /// Stage faults in a running fabric: hold, delay, lose, refuse, cut, kill.
    Fault(fault::FaultArguments),
    /// Record the traffic of a running fabric, until interrupted.
    Capture(capture::CaptureArguments),
    /// Show EFA packets in Wireshark: dissector, profile and live interfaces.
    Wireshark(wireshark::WiresharkArguments),
    /// Run as an interface of Wireshark: Wireshark calls this to list and record running fabrics.
    ///
    /// `efa-emu wireshark install` puts a program that calls this into Wireshark's extcap
    /// directory.
    Extcap(extcap::ExtcapArguments),
    /// Write the manual pages and the shell completions below a directory, as in PREFIX/share.
    Pages {
        /// The directory.
        directory: PathBuf,
    },
}

/// Parses the command line and runs the command.
fn main() -> ExitCode {
    efa_log::init();
    let mut words = env::args_os();
    let called = words.next().map(PathBuf::from);
    if called.is_some_and(|path| path.ends_with(efa_cluster::AGENT)) {
        return efa_cluster::rsh::main(words.collect());
    }
    let outcome = match Arguments::parse().command {
        Command::Run(arguments) => arguments.execute(),
        Command::Cluster(arguments) => arguments.execute(),
        Command::Rsh(arguments) => Ok(arguments.execute()),
        Command::Bridge(_) => efa_cluster::bridge::BRIDGE.execute().map_err(Failure::from),
        Command::Vm(_) => VM.execute().map_err(Failure::from),
        Command::Profiles(arguments) => arguments.execute(),
        Command::Ps(arguments) => arguments.execute(),
        Command::Stats(arguments) => arguments.execute(),
        Command::Fault(arguments) => arguments.execute(),
        Command::Capture(arguments) => arguments.execute(),
        Command::Wireshark(arguments) => arguments.execute(),
        Command::Extcap(arguments) => arguments.execute(),
        Command::Pages { directory } => {
            let pci = clap::Command::new(pci::PROGRAM).version(env!("CARGO_PKG_VERSION"));
            [Arguments::command(), PciArguments::augment_args(pci)]
                .into_iter()
                .try_for_each(|command| pages::write(command, &directory))
                .map(|()| ExitCode::SUCCESS)
                .map_err(Failure::from)
        }
    };
    end(PROGRAM, outcome)
}
