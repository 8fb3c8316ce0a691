//! The pipe that a capture goes into.

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

    /// The file behind it, to write into.
    pub(crate) fn try_clone(&self) -> io::Result<File> {
        self.0.try_clone()
    }

    /// Whether nobody is left at the other end of the pipe. A quiet fabric gives nothing to write,
    /// and so no error that would tell.
    pub(crate) fn is_deserted(&self) -> bool {
        let mut descriptors = [PollFd::new(&self.0, PollFlags::empty())];
        let now = Timespec::default();
        poll(&mut descriptors, Some(&now)).is_ok()
            && descriptors[0]
                .revents()
                .intersects(PollFlags::ERR | PollFlags::HUP)
    }
}
