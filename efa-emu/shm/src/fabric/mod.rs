//! The members of a fabric, as directories and files: hosts, recorders and bridges, armed faults,
//! requested captures. Also marks of use in a run's directory, and the version of this software.

pub(crate) mod board;
pub(crate) mod capture_files;
pub(crate) mod directory;
pub(crate) mod gids;
pub(crate) mod host;
mod known;
pub(crate) mod members;
pub(crate) mod participants;
pub(crate) mod paths;
pub(crate) mod recorder;
mod recorder_locks;
pub(crate) mod status;
pub mod usage;
pub mod version;
