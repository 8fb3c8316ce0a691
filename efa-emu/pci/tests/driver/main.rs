//! The device as seen by a fake driver, in a guest without a virtual machine; the programs.

mod commands;
mod fake;
mod guest;
mod hostile;
mod probe;
mod process;
mod program;
mod traffic;
