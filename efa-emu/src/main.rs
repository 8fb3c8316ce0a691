//! The `efa-emu` command: runs programs on emulated hosts with an EFA device, and shows what runs.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
