//! The driver's side of a driven process.

mod contained;
mod error;
pub mod hosted;
mod lack;
mod launch;
mod listen;
mod place;
mod process;
mod program;
mod recorded;
mod subject;
mod tail;

use std::time::Duration;

pub use contained::contain;
pub use efa_commands::shell::{RemoteShell, join, quote, split_words};
pub use error::PlayerError;
pub use hosted::Hosted;
pub use lack::LackError;
pub use launch::{Host, Launcher, LauncherError};
pub use place::{
    Description, Place, PlaceError, PlaceNameError, PortError, Reach, Recording, Versions,
    own_address,
};
pub use process::Player;
pub use program::Program;
pub use recorded::{Recorder, status_as};
pub use subject::Driven;

use serde::{Deserialize, Serialize};

/// How long a program may take. No command takes long, but the machine may be busy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Patience {
    /// Until it has started and answers `hello`.
    pub start: Duration,
    /// Until it answers another command.
    pub answer: Duration,
}

impl Patience {
    /// What applies if nothing else is said.
    pub const DEFAULT: Patience = Patience {
        start: Duration::from_secs(60),
        answer: Duration::from_secs(60),
    };
}

/// The exit status of a program that cannot do what is asked of it.
pub const UNSUPPORTED: i32 = 127;
