//! The driver's side of a driven process.

mod contained;
mod delays;
mod driven;
mod error;
pub mod hosted;
mod launch;
mod listen;
mod place;
mod process;
mod program;
mod recorder;
mod requirement;
mod status;
mod stderr;

pub use contained::contain;
pub use delays::{Delays, Timeouts};
pub use driven::DrivenApplication;
pub use efa_commands::shell::{RemoteShell, join, quote, split_words};
pub use error::PlayerError;
pub use hosted::HostedProgram;
pub use launch::{Host, Launcher, LauncherError};
pub use place::{
    Description, HostDevice, ParseHostDeviceError, PlaceError, PortError, Recording, RemoteAccess,
    Versions, own_address,
};
pub use process::Player;
pub use program::Program;
pub use recorder::Recorder;
pub use requirement::RequirementError;
pub use status::{UNSUPPORTED, status_as};
