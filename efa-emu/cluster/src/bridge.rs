//! `efa-emu bridge`: a separate program, so that other programs do not depend on its network
//! libraries.

use efa_commands::companion::Companion;

/// The program.
pub const BRIDGE: Companion = Companion {
    program: "efa-emu-bridge",
    package: "efa-emu-bridge",
    folder: "efa-emu/bridge",
};
