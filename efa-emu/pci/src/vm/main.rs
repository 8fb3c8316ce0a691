//! `efa-emu-vm`: runs commands in virtual machines with EFA devices. `efa-emu vm` starts it.
//!
//! * `software`: the required packages.
//! * `archive`, `contents`: the file system of a guest, in the kernel's own format.
//! * `machine`: a guest: `efa-emu run`, in it `efa-emu-pci`, and in that QEMU.
//! * `guests`: the run of all guests.

mod archive;
mod contents;
mod guests;
mod machine;
mod software;

use std::process::ExitCode;

use clap::Parser;
use efa_options::vm::VmArguments;

const PROGRAM: &str = "efa-emu vm";

#[derive(Parser)]
#[command(name = "efa-emu vm", bin_name = "efa-emu vm", version,
          long_version = efa_commands::installation::version_text())]
struct Arguments {
    #[command(flatten)]
    vm: VmArguments,
}

fn main() -> ExitCode {
    efa_commands::end(PROGRAM, guests::run(&Arguments::parse().vm))
}
