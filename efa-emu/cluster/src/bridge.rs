//! `efa-emu bridge`: a program of its own, so that nobody else depends on what carries bytes
//! between machines.

use efa_commands::companion::Companion;

/// The program.
pub const BRIDGE: Companion = Companion {
    program: "efa-emu-bridge",
    package: "efa-emu-bridge",
    folder: "efa-emu/bridge",
};
