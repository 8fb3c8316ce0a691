//! The command line of `efa-emu vm`. The program `efa-emu-vm` executes it; `efa-emu`, which starts
//! that program, uses it for help, manual pages and completions.

use std::path::PathBuf;

use clap::Args;

use efa_commands::sibling::SiblingProgram;
use efa_shm::{DEFAULT_FABRIC, DEFAULT_PROFILE};

/// The program.
pub const VM: SiblingProgram = SiblingProgram {
    program: "efa-emu-vm",
    package: "efa-emu-pci",
    folder: "efa-emu/pci",
};

/// Run commands in virtual machines that have EFA devices, with the stock Linux driver.
///
/// Each command runs in a guest of its own, the first one in `vm1`, the one after `:` in `vm2`. The
/// guests are hosts of the fabric, like the hosts of `efa-emu run`. Guests reach each other by
/// their names, and this machine as `host`. QEMU, a kernel and the programs in a guest are fetched
/// the first time, as packages of Debian. The exit status is that of the first failing command.
#[derive(Args, Debug)]
pub struct VmArguments {
    /// The network that the guests are on.
    #[arg(long, default_value = DEFAULT_FABRIC)]
    pub fabric: String,
    /// Whose kernel the guests have: 6.1 of debian12, 6.12 of debian13, 7.2 of debian14.
    #[arg(long, value_name = "RELEASE", default_value = "debian12", value_parser = ["debian12", "debian13", "debian14"])]
    pub linux: String,
    /// Whose programs the guests have: rdma-core 44, libfabric 1.17 and perftest 4.5 of debian12;
    /// 56, 2.1 and 25.01 of debian13.
    #[arg(long, value_name = "RELEASE", default_value = "debian12", value_parser = ["debian12", "debian13"])]
    pub programs: String,
    /// Put this package of that release, and all that it needs, into the guests too. May be given
    /// again.
    #[arg(long, value_name = "NAME")]
    pub package: Vec<String>,
    /// The generation of the devices: efa0 to efa2, or efa3, which Linux 6.12 and later know.
    #[arg(long, default_value = DEFAULT_PROFILE)]
    pub profile: String,
    /// Put this file or directory into the guests too, under its own name in /root. May be given
    /// again.
    #[arg(long, value_name = "PATH")]
    pub with: Vec<PathBuf>,
    /// Connections to this TCP port of 127.0.0.1 reach the first guest. May be given again.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub forward: Vec<u16>,
    /// Megabytes of memory of each guest.
    #[arg(long, value_name = "MB", default_value_t = 512, value_parser = clap::value_parser!(u32).range(128..=65536))]
    pub memory: u32,
    /// Arm the rules of this file (docs/faults.md) for as long as the first guest runs.
    #[arg(long, value_name = "FILE")]
    pub faults: Option<PathBuf>,
    /// Options of `efa-emu run` for the device of each guest too, as one word: '--loss 0.01 --paths
    /// 4'.
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    pub run: Option<String>,
    /// Keep the consoles of the guests (vm1.log, vm2.log) and the captures of their devices
    /// (vm1.pcapng, vm2.pcapng) in this directory, which is made. While they run, QEMU's monitors
    /// (QMP) are there too (vm1.qmp, vm2.qmp).
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// The command of the first guest, and, after `:`, the command of the second one.
    #[arg(
        last = true,
        required = true,
        value_name = "COMMAND [ARG]... [: COMMAND [ARG]...]"
    )]
    pub commands: Vec<String>,
}
