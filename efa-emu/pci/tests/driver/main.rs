//! The device as a driver sees it. The driver is a fake one, in a guest without a virtual machine.

mod commands;
mod fake;
mod guest;
mod hostile;
mod probe;
mod process;
mod traffic;
