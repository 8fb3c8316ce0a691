//! `efa-emu-bridge`: joins the fabric of this machine with those of others.
//!
//! One process on each machine. It stands in the local fabric for the devices of the other machines
//! ([`efa_shm::remote`]), and has a connection with each of their bridges: TLS over TCP, by rustls
//! and the kernel. `efa-emu bridge` starts it.
//!
//! * `arguments`: the command line.
//! * `key`, `secure`: who may connect, and the bytes of a connection.
//! * `frames`, `greeting`: what bridges say to each other besides messages.
//! * `local`: the devices of this machine.
//! * `machine`: another machine; `carrier`: the thread that carries messages there and back;
//!   `watch`: what wakes it.
//! * `peers`: with whom.
//! * `meeting`: connections are made and accepted.

mod arguments;
mod carrier;
#[cfg(test)]
mod carrier_tests;
mod frames;
mod greeting;
mod key;
mod local;
mod machine;
mod meeting;
mod output;
mod peers;
mod secure;
mod watch;

use std::process::ExitCode;

use efa_commands::{self, end};

use output::PROGRAM;

fn main() -> ExitCode {
    efa_log::init();
    end(PROGRAM, arguments::execute())
}
