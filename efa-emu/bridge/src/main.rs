//! `efa-emu-bridge`: joins the fabric of this machine with the fabrics of others.
//!
//! One process runs on each machine. It adds the devices of the other machines to the local fabric
//! ([`efa_shm::remote`]), and has a connection with each of their bridges: TLS over TCP, by rustls
//! and the kernel. `efa-emu bridge` starts it.
//!
//! * `arguments`: the command line.
//! * `key`, `secure`: authentication, and the bytes of a connection.
//! * `frames`, `greeting`: the protocol between bridges, except for messages.
//! * `local`: the devices of this machine.
//! * `machine`: another machine; `carrier`: the thread that exchanges messages with it; `watch`:
//!   waits for its connection.
//! * `peers`: the addresses of the other bridges.
//! * `connection_setup`: makes and accepts connections.

mod arguments;
mod carrier;
#[cfg(test)]
mod carrier_tests;
mod connection_setup;
mod frames;
mod greeting;
mod key;
mod local;
mod machine;
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
