//! Another machine: what threads know of it, and of the connection with it.
//!
//! A machine has one thread that carries messages there and back, as long as the bridge runs
//! ([`Carrier`]). Each connection has the thread that made it, which only waits for the
//! connection while the carrier sleeps.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use efa_options::bridge::SHORTEST_TIMEOUT;
use efa_shm::Fabric;
use efa_shm::remote::{Alarm, RemoteMachine, Uptake};
use efa_wire::address::Gid;

use crate::carrier::Carrier;
use crate::local::{Local, News};
use crate::output::report;
use crate::secure::{Secured, Wire};
use crate::watch::Watch;

/// A connection that the carrier has not taken over.
pub(crate) struct Fresh {
    pub(crate) wire: Wire,
    pub(crate) watch: Arc<Watch>,
    /// The heartbeat timeout: after so much silence either end takes the other one for gone.
    pub(crate) longest_silence: Duration,
}

/// The state of the connection with a machine.
enum LinkState {
    /// There is one.
    Up { fresh: Option<Fresh> },
    /// There is none. Until then the machine may come back.
    Down { until: Instant },
}

struct Link {
    state: LinkState,
    /// The last list of devices that the machine has read.
    known: Option<News>,
}

/// Another machine.
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) local: Arc<Local>,
    pub(crate) timeout: Duration,
    plain: bool,
    alarm: Alarm,
    remote: Mutex<RemoteMachine>,
    link: Mutex<Link>,
    /// This bridge ends: what happens to its connections is no news.
    is_ending: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    /// A machine that has not been connected with yet.
    pub(crate) fn new(
        name: &str,
        fabric: &Fabric,
        local: &Arc<Local>,
        timeout: Duration,
        plain: bool,
    ) -> Machine {
        let remote = RemoteMachine::new(fabric.clone(), name);
        let alarm = remote.alarm();
        local.tell(alarm.clone());
        Machine {
            name: name.to_owned(),
            local: Arc::clone(local),
            timeout,
            plain,
            alarm,
            remote: Mutex::new(remote),
            link: Mutex::new(Link {
                state: LinkState::Down {
                    until: Instant::now(),
                },
                known: None,
            }),
            is_ending: AtomicBool::new(false),
        }
    }

    /// Whether there is a connection.
    pub(crate) fn is_connected(&self) -> bool {
        matches!(lock(&self.link).state, LinkState::Up { .. })
    }

    /// If the machine knows of a device of this one, or cannot be told: the generation of the rules
    /// of which it knows.
    pub(crate) fn knows(&self, gid: Gid) -> Option<u64> {
        let news = self.local.news();
        let link = lock(&self.link);
        let list = match (&link.state, &link.known) {
            (LinkState::Down { .. }, _) => &news,
            (LinkState::Up { .. }, Some(known)) if known.number == news.number => &news,
            (LinkState::Up { .. }, known) => known.as_ref()?,
        };
        list.gids.contains(&gid).then_some(list.generation)
    }

    /// Serves a connection until it is over; `None` if there is one already. The other end takes
    /// this machine for gone when it has been silent for `their_timeout`.
    pub(crate) fn serve(
        &self,
        connection: Secured,
        their_timeout: Duration,
    ) -> Option<io::Result<()>> {
        let watch = match self.begin(connection, their_timeout) {
            Ok(watch) => watch?,
            Err(error) => return Some(Err(error)),
        };
        report(&format!("connected with {}", self.name));
        watch.run(&self.alarm);
        Some(Ok(()))
    }

    fn begin(
        &self,
        connection: Secured,
        their_timeout: Duration,
    ) -> io::Result<Option<Arc<Watch>>> {
        let mut link = lock(&self.link);
        if matches!(link.state, LinkState::Up { .. }) {
            return Ok(None);
        }
        let wire = connection.into_wire(self.plain)?;
        let watch = Arc::new(Watch::new(&wire)?);
        link.state = LinkState::Up {
            fresh: Some(Fresh {
                wire,
                watch: Arc::clone(&watch),
                longest_silence: their_timeout.max(SHORTEST_TIMEOUT).min(self.timeout),
            }),
        };
        link.known = None;
        drop(link);
        self.alarm.ring();
        Ok(Some(watch))
    }

    /// The last words.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
        self.alarm.ring();
    }

    /// The devices of the machine leave the fabric.
    pub(crate) fn leave(&self) {
        self.remote().leave_if(|_| true);
    }

    /// Carries messages there and back: until [`Machine::end`].
    pub(crate) fn carry(&self) {
        Carrier::new(self).run();
    }

    // --- for the carrier ---

    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// Its devices in the fabric.
    pub(crate) fn remote(&self) -> MutexGuard<'_, RemoteMachine> {
        lock(&self.remote)
    }

    /// What becomes of the records of local processes if they may be taken `up_to` so many bytes,
    /// and a connection that is new.
    pub(crate) fn look(&self, up_to: usize) -> (Uptake, Option<Fresh>) {
        let mut link = lock(&self.link);
        match &mut link.state {
            LinkState::Up { fresh } => (Uptake::Until(up_to), fresh.take()),
            LinkState::Down { until } if Instant::now() < *until => (Uptake::Nothing, None),
            LinkState::Down { .. } => (Uptake::Unresponsive, None),
        }
    }

    /// The machine has read this list.
    pub(crate) fn has_read(&self, list: News) {
        lock(&self.link).known = Some(list);
    }

    /// The connection is over. The machine may come back until then.
    pub(crate) fn is_down(&self, until: Instant) {
        lock(&self.link).state = LinkState::Down { until };
    }
}
