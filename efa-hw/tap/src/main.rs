//! `efa-tap`: captures what programs send and receive over EFA devices, as `efa-emu run --pcap` does for emulated ones.
//!
//! Exit status: that of the program (128 + n if signal n ended it); 2 for wrong usage or an environment that does not
//! allow the command, with one line that says why.

mod command;
mod exchange;

fn main() -> std::process::ExitCode {
    command::main()
}
