//! Waits for a connection in a separate thread, while the carrier's thread sleeps until local
//! processes wake it.
//!
//! No system call waits for a socket and for futexes simultaneously. So one thread waits for the
//! socket, and rings the alarm of the sleeping thread. While the carrier is awake, events of the
//! socket wake no thread.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use efa_shm::remote::Alarm;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// The events to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Interest {
    /// Data was received.
    pub(crate) input: bool,
    /// There is room to send.
    pub(crate) room: bool,
}

/// A connection to wait for.
pub(crate) struct Watch {
    epoll: OwnedFd,
    /// A duplicate of the connection's descriptor, which stays open during a wait.
    connection: OwnedFd,
    is_over: AtomicBool,
}

impl Watch {
    /// Waits for nothing yet.
    pub(crate) fn new(connection: impl AsFd) -> io::Result<Watch> {
        let connection = connection.as_fd().try_clone_to_owned()?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let (nothing, flags) = (EventData::new_u64(0), EventFlags::ONESHOT);
        epoll::add(&epoll, &connection, nothing, flags)?;
        Ok(Watch {
            epoll,
            connection,
            is_over: AtomicBool::new(false),
        })
    }

    /// Rings the alarm once when one of the events happens, or has happened already.
    pub(crate) fn want(&self, wanted: Interest) -> io::Result<()> {
        let mut flags = EventFlags::ONESHOT;
        flags.set(EventFlags::IN, wanted.input);
        flags.set(EventFlags::OUT, wanted.room);
        self.wait_for(flags)
    }

    fn wait_for(&self, flags: EventFlags) -> io::Result<()> {
        let nothing = EventData::new_u64(0);
        Ok(epoll::modify(
            &self.epoll,
            &self.connection,
            nothing,
            flags,
        )?)
    }

    /// Makes [`Watch::run`] return, after the connection was closed.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        // The end of the stream is such an event. This only fails for lack of memory.
        let _ = self.wait_for(EventFlags::IN);
    }

    /// Rings the alarm for the requested events until the connection ends.
    pub(crate) fn run(&self, alarm: &Alarm) {
        while !self.is_over.load(Ordering::Acquire) {
            let mut events = Vec::with_capacity(1);
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => alarm.ring(),
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::time::Duration;

    use efa_shm::Fabric;
    use efa_shm::remote::{ReceivePolicy, RemoteMachine};

    use super::*;

    /// The descriptor of a connection is closed right after its end is reported.
    #[test]
    fn a_closed_connection_ends_the_wait() {
        let alarm = RemoteMachine::new(Fabric::open("unused").unwrap(), "other").alarm();
        for _ in 0..200 {
            let (connection, _other) = UnixStream::pair().unwrap();
            let watch = Arc::new(Watch::new(&connection).unwrap());
            let waits = Arc::clone(&watch);
            let alarm = alarm.clone();
            let waiting = std::thread::spawn(move || waits.run(&alarm));
            let nothing = Interest {
                input: true,
                room: false,
            };
            watch.want(nothing).unwrap();
            connection.shutdown(Shutdown::Both).unwrap();
            watch.end();
            drop(connection);
            waiting.join().unwrap();
        }
    }

    #[test]
    fn events_before_or_during_a_sleep_end_it() {
        use std::io::Write as _;
        const LONG: Duration = Duration::from_secs(3600);
        let mut machine = RemoteMachine::new(Fabric::open("unused").unwrap(), "other");
        let (connection, mut other) = UnixStream::pair().unwrap();
        let watch = Arc::new(Watch::new(&connection).unwrap());
        let (waits, alarm) = (Arc::clone(&watch), machine.alarm());
        let waiting = std::thread::spawn(move || waits.run(&alarm));
        let mut sleep = |wanted, meanwhile: &mut dyn FnMut()| {
            let receive_policy = ReceivePolicy::Nothing;
            let announced = loop {
                // The sleep is not announced if the alarm was rung before.
                if let Some(sleep) = machine.prepare_to_sleep(receive_policy, &mut Vec::new()) {
                    break sleep;
                }
            };
            watch.want(wanted).unwrap();
            meanwhile();
            announced.sleep(LONG);
        };
        let (input, room) = (true, false);
        sleep(Interest { input, room }, &mut || {
            other.write_all(b"1").unwrap()
        });
        // The data was not received.
        sleep(Interest { input, room }, &mut || {});
        sleep(
            Interest {
                input: false,
                room: true,
            },
            &mut || {},
        );
        connection.shutdown(Shutdown::Both).unwrap();
        watch.end();
        waiting.join().unwrap();
    }
}
