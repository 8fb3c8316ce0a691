//! The pipe that a capture is written to.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use efa_commands::Failure;

/// An open pipe.
pub(crate) struct Output(File);

impl Output {
    pub(crate) fn new(file: File) -> Output {
        Output(file)
    }

    /// This process's standard output.
    pub(crate) fn standard() -> Result<Output, Failure> {
        Ok(Output(File::from(
            io::stdout().as_fd().try_clone_to_owned()?,
        )))
    }

    /// A descriptor for writing to it.
    pub(crate) fn try_clone(&self) -> io::Result<File> {
        self.0.try_clone()
    }

    /// Whether the pipe no longer has a reader. On a quiet fabric nothing is written, so no write
    /// error reveals it.
    pub(crate) fn is_deserted(&self) -> bool {
        let mut descriptors = [PollFd::new(&self.0, PollFlags::empty())];
        let now = Timespec::default();
        poll(&mut descriptors, Some(&now)).is_ok()
            && descriptors[0]
                .revents()
                .intersects(PollFlags::ERR | PollFlags::HUP)
    }
}
