//! The command line of `efa-emu-pci`. `efa-emu` writes its manual page and completions.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

/// The name of the program.
pub const PROGRAM: &str = "efa-emu-pci";

/// Gives a virtual machine an EFA device, by vfio-user.
///
/// To be started by `efa-emu run`, whose host the device belongs to. QEMU gets it by
/// -device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"SOCKET"}}'
/// and has to share the guest's memory:
/// -object memory-backend-memfd,id=mem,size=512M,share=on -machine q35,memory-backend=mem
#[derive(Args, Debug)]
pub struct PciArguments {
    /// The socket for QEMU. It is created.
    pub socket: PathBuf,
    /// A program to start once the socket exists. This command exits together with it.
    #[arg(last = true)]
    pub command: Vec<OsString>,
}
