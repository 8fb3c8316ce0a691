//! `efa-tap`: captures the packets that programs send and receive over EFA devices, as `efa-emu run
//! --pcap` does for emulated ones.

mod command;
mod exchange;

fn main() -> std::process::ExitCode {
    command::main()
}
