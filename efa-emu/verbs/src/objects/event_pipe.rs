//! An event queue behind a descriptor that reads like the kernel's: a pipe.
//!
//! Most programs read it through the library. libfabric's direct data path (from 2.6 on) reads the
//! descriptor of a completion channel directly.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ffi::errno::Errno;

/// Events of `SIZE` bytes that the program has not read yet.
pub(crate) struct EventPipe<const SIZE: usize> {
    /// The read end for the program, which may make it non-blocking.
    program: OwnedFd,
    /// Both ends for the library, non-blocking.
    ends: Mutex<PipeEnds<SIZE>>,
}

struct PipeEnds<const SIZE: usize> {
    read: File,
    write: File,
}

impl<const SIZE: usize> PipeEnds<SIZE> {
    /// Removes and returns the oldest event, if there is one.
    fn pop(&mut self) -> Option<[u8; SIZE]> {
        let mut bytes = [0; SIZE];
        match self.read.read(&mut bytes) {
            Ok(read) if read == SIZE => Some(bytes),
            _ => None,
        }
    }

    fn push(&mut self, event: [u8; SIZE]) {
        // It fails if the pipe is full of thousands of unread events. More events would be of no
        // use to the program.
        let _ = self.write.write(&event);
    }
}

/// Which of the matching events [`EventPipe::discard`] removes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Discard {
    Oldest,
    All,
}

impl<const SIZE: usize> EventPipe<SIZE> {
    pub(crate) fn new() -> Result<Self, Errno> {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(Errno::last());
        }
        // SAFETY: the descriptors are new and have no other owner.
        let [program, write] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        // Opened again, because the program may change whether its descriptor blocks.
        let again = |end: &OwnedFd, options: &mut OpenOptions| {
            options
                .custom_flags(libc::O_NONBLOCK)
                .open(format!("/proc/self/fd/{}", end.as_raw_fd()))
                .map_err(|error| Errno::new(error.raw_os_error().unwrap_or(libc::EIO)))
        };
        let read = again(&program, OpenOptions::new().read(true))?;
        let write = again(&write, OpenOptions::new().write(true))?;
        Ok(EventPipe {
            program,
            ends: Mutex::new(PipeEnds { read, write }),
        })
    }

    /// The descriptor for the program.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.program.as_raw_fd()
    }

    fn ends(&self) -> MutexGuard<'_, PipeEnds<SIZE>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event.
    pub(crate) fn push(&self, event: [u8; SIZE]) {
        self.ends().push(event);
    }

    /// Removes events that match, and returns whether there were any. A concurrent reader may read
    /// a later event before an earlier one.
    pub(crate) fn discard(&self, which: Discard, matches: impl Fn(&[u8; SIZE]) -> bool) -> bool {
        let mut ends = self.ends();
        let mut kept = Vec::new();
        let mut removed = false;
        while let Some(event) = ends.pop() {
            if matches(&event) && (which == Discard::All || !removed) {
                removed = true;
            } else {
                kept.push(event);
            }
        }
        for event in kept {
            ends.push(event);
        }
        removed
    }

    /// Removes the oldest event for which `receive` returns a value. Waits for one unless the
    /// program's descriptor is non-blocking. `receive` runs under the lock: an event is either in
    /// the pipe or received.
    pub(crate) fn take<R>(
        &self,
        mut receive: impl FnMut([u8; SIZE]) -> Option<R>,
    ) -> Result<R, Errno> {
        loop {
            {
                let mut ends = self.ends();
                while let Some(event) = ends.pop() {
                    if let Some(received) = receive(event) {
                        return Ok(received);
                    }
                }
            }
            self.wait()?;
        }
    }

    fn wait(&self) -> Result<(), Errno> {
        // SAFETY: the call takes no pointers.
        let flags = unsafe { libc::fcntl(self.descriptor(), libc::F_GETFL) };
        if flags & libc::O_NONBLOCK != 0 {
            return Err(Errno::AGAIN);
        }
        let mut descriptor = libc::pollfd {
            fd: self.descriptor(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor.
        match unsafe { libc::poll(&raw mut descriptor, 1, -1) } {
            1 => Ok(()),
            _ => Err(Errno::last()),
        }
    }
}
