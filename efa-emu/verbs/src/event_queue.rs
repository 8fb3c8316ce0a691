//! What a completion channel delivers: events of completion queues, through a descriptor that reads
//! as the kernel's does.
//!
//! The descriptor is a pipe. An event is 8 bytes: the address of the `ibv_cq`, as in the kernel's
//! `ib_uverbs_comp_event_desc`. Most programs leave the reading to `ibv_get_cq_event`; libfabric's
//! direct data path (from 2.6 on) reads the descriptor by itself.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::abi::ibv_cq;
use crate::comp_queue::{CompQueue, QUEUES};
use crate::errno::Errno;
use crate::handles::Handle;

/// Bytes of an event.
const EVENT_SIZE: usize = size_of::<u64>();

/// The completion queue that raised an event: its address, as the program knows it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RaisedBy(*mut ibv_cq);

// SAFETY: only an address here.
unsafe impl Send for RaisedBy {}
// SAFETY: as above.
unsafe impl Sync for RaisedBy {}

impl RaisedBy {
    pub(crate) fn new(queue: &CompQueue) -> RaisedBy {
        RaisedBy(queue.c_pointer())
    }

    fn to_bytes(self) -> [u8; EVENT_SIZE] {
        (self.0.expose_provenance() as u64).to_ne_bytes()
    }

    /// The program may have written anything into the bytes; the address is looked up, not followed.
    fn from_bytes(bytes: [u8; EVENT_SIZE]) -> RaisedBy {
        let address = u64::from_ne_bytes(bytes) as usize;
        RaisedBy(std::ptr::with_exposed_provenance_mut(address))
    }
}

/// Events that the program has not taken yet.
pub(crate) struct EventQueue {
    /// The read end that the program knows, and may make non-blocking.
    program: OwnedFd,
    /// Both ends as the library uses them: non-blocking.
    ends: Mutex<Ends>,
}

struct Ends {
    read: File,
    write: File,
}

impl Ends {
    /// Takes the oldest event, if there is one.
    fn pop(&mut self) -> Option<RaisedBy> {
        let mut bytes = [0; EVENT_SIZE];
        match self.read.read(&mut bytes) {
            Ok(EVENT_SIZE) => Some(RaisedBy::from_bytes(bytes)),
            _ => None,
        }
    }

    fn push(&mut self, event: RaisedBy) {
        // It fails if the pipe is full, of thousands of events that the program does not take. More
        // would tell it nothing: a queue has one event at a time, unless its doorbell is written by
        // a client that asks again and again.
        let _ = self.write.write(&event.to_bytes());
    }

    /// Drops the first event of `of`, or all; whether there was one. A reader that comes meanwhile
    /// may take a later event before an earlier one.
    fn remove(&mut self, of: RaisedBy, all: bool) -> bool {
        let mut kept = Vec::new();
        let mut removed = false;
        while let Some(event) = self.pop() {
            if event == of && (all || !removed) {
                removed = true;
            } else {
                kept.push(event);
            }
        }
        for event in kept {
            self.push(event);
        }
        removed
    }
}

impl EventQueue {
    pub(crate) fn new() -> Result<EventQueue, Errno> {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(Errno::last());
        }
        // SAFETY: new, and nobody else's.
        let [program, write] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        // Opened anew, so that whether they block is not what the program makes of its descriptor.
        let again = |end: &OwnedFd, options: &mut OpenOptions| {
            options
                .custom_flags(libc::O_NONBLOCK)
                .open(format!("/proc/self/fd/{}", end.as_raw_fd()))
                .map_err(|error| Errno::new(error.raw_os_error().unwrap_or(libc::EIO)))
        };
        let read = again(&program, OpenOptions::new().read(true))?;
        let write = again(&write, OpenOptions::new().write(true))?;
        Ok(EventQueue {
            program,
            ends: Mutex::new(Ends { read, write }),
        })
    }

    /// The descriptor for the program.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.program.as_raw_fd()
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event. Called by the device, under its lock.
    pub(crate) fn raise(&self, by: RaisedBy) {
        self.ends().push(by);
    }

    /// Drops the events of a completion queue that goes away.
    pub(crate) fn discard(&self, of: RaisedBy) {
        self.ends().remove(of, true);
    }

    /// Takes back an event of a completion queue that the program has not taken yet; whether there
    /// was one.
    pub(crate) fn take_back(&self, of: RaisedBy) -> bool {
        self.ends().remove(of, false)
    }

    /// Takes the oldest event, waiting for it unless the program's descriptor is non-blocking. It is
    /// counted under the lock, so that a completion queue that is being destroyed finds it among the
    /// events or in its count.
    pub(crate) fn take(&self) -> Result<Arc<CompQueue>, Errno> {
        loop {
            {
                let mut ends = self.ends();
                while let Some(RaisedBy(pointer)) = ends.pop() {
                    if let Ok(queue) = QUEUES.get(pointer) {
                        queue.count_event();
                        return Ok(queue);
                    }
                }
            }
            self.wait()?;
        }
    }

    fn wait(&self) -> Result<(), Errno> {
        // SAFETY: takes no pointers.
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
