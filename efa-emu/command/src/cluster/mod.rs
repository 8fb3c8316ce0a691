//! `efa-emu cluster`: several emulated hosts on this machine, and programs that launchers start on
//! them through `efa-emu rsh`.

mod files;
mod gateway;
mod launchers;
mod layout;
mod members;
mod memory;
mod names;
mod namespaces;
mod node;
mod nodes;
mod process;
mod rsh;
mod service;
mod session;
mod start;

pub(super) use files::AGENT;
pub(super) use rsh::{RshArguments, main as ssh_main};
pub(super) use start::ClusterArguments;
