//! What the commands of this project that start other programs have in common: failures as one line, a directory
//! for each run, waiting for a program as a shell does.

pub mod child;
mod run_directory;
pub mod signals;

pub use run_directory::{
    RunDirectory, living_directories, living_directories_below, user_directory_below,
};

/// Why a command could not do its work: one line with the thing, its value and the remedy.
#[derive(Debug)]
pub struct Failure(pub String);

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure(error.to_string())
    }
}
