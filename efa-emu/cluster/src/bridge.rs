//! `efa-emu bridge`: a separate program, so that other programs do not depend on its network
//! libraries.

use efa_commands::sibling::SiblingProgram;

/// The program.
pub const BRIDGE: SiblingProgram = SiblingProgram {
    program: "efa-emu-bridge",
    package: "efa-emu-bridge",
    folder: "efa-emu/bridge",
};
