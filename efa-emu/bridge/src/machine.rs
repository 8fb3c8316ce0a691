//! The shared state of another machine, and of the connection with it.
//!
//! A machine has one thread that exchanges messages with it for as long as the bridge runs
//! ([`Carrier`]). The thread that made a connection afterwards only waits for it while the carrier
//! sleeps.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use efa_options::bridge::SHORTEST_TIMEOUT;
use efa_shm::Fabric;
use efa_shm::remote::{Alarm, ReceivePolicy, RemoteMachine};
use efa_wire::address::Gid;

use crate::carrier::Carrier;
use crate::local::{DeviceList, LocalDevices};
use crate::output::report;
use crate::secure::{SecureConnection, Wire};
use crate::watch::Watch;

/// A connection that the carrier has not taken over.
pub(crate) struct NewConnection {
    pub(crate) wire: Wire,
    pub(crate) watch: Arc<Watch>,
    /// The heartbeat timeout: after this time of silence either end considers the connection dead.
    pub(crate) longest_silence: Duration,
}

/// The state of the connection with a machine.
enum LinkState {
    /// Connected.
    Up { fresh: Option<NewConnection> },
    /// Not connected. Until that time the machine may connect again.
    Down { until: Instant },
}

struct Link {
    state: LinkState,
    /// The last list of devices that the machine has read.
    known: Option<DeviceList>,
}

/// Another machine.
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) local: Arc<LocalDevices>,
    pub(crate) timeout: Duration,
    plain: bool,
    alarm: Alarm,
    remote: Mutex<RemoteMachine>,
    link: Mutex<Link>,
    /// Whether this bridge shuts down, so that the ends of its connections are not reported.
    is_ending: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    /// A machine that was never connected.
    pub(crate) fn new(
        name: &str,
        fabric: &Fabric,
        local: &Arc<LocalDevices>,
        timeout: Duration,
        plain: bool,
    ) -> Machine {
        let remote = RemoteMachine::new(fabric.clone(), name);
        let alarm = remote.alarm();
        local.add_alarm(alarm.clone());
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

    /// The generation of the rules that the machine has, if it has a device of this machine or
    /// cannot be notified.
    pub(crate) fn knows(&self, gid: Gid) -> Option<u64> {
        let device_list = self.local.device_list();
        let link = lock(&self.link);
        let list = match (&link.state, &link.known) {
            (LinkState::Down { .. }, _) => &device_list,
            (LinkState::Up { .. }, Some(known)) if known.number == device_list.number => {
                &device_list
            }
            (LinkState::Up { .. }, known) => known.as_ref()?,
        };
        list.gids.contains(&gid).then_some(list.generation)
    }

    /// Serves a connection until it ends; `None` if there is one already. `their_timeout` is the
    /// heartbeat timeout of the other end.
    pub(crate) fn serve(
        &self,
        connection: SecureConnection,
        their_timeout: Duration,
    ) -> Option<io::Result<()>> {
        let watch = match self.begin(connection, their_timeout) {
            Ok(watch) => watch?,
            Err(error) => return Some(Err(error)),
        };
        report(&format!("connected with {}", self.name));
        tracing::info!(machine = self.name, timeout = ?their_timeout, "machine connected");
        watch.run(&self.alarm);
        Some(Ok(()))
    }

    fn begin(
        &self,
        connection: SecureConnection,
        their_timeout: Duration,
    ) -> io::Result<Option<Arc<Watch>>> {
        let mut link = lock(&self.link);
        if matches!(link.state, LinkState::Up { .. }) {
            return Ok(None);
        }
        let wire = connection.into_wire(self.plain)?;
        let watch = Arc::new(Watch::new(&wire)?);
        link.state = LinkState::Up {
            fresh: Some(NewConnection {
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

    /// Shuts down.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
        self.alarm.ring();
    }

    /// Removes the devices of the machine from the fabric.
    pub(crate) fn leave(&self) {
        self.remote().leave_if(|_| true);
    }

    /// Exchanges messages until [`Machine::end`].
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

    /// Returns how to handle the records of local processes, if at most `up_to` bytes of them may
    /// be read, and a new connection, if any.
    pub(crate) fn look(&self, up_to: usize) -> (ReceivePolicy, Option<NewConnection>) {
        let mut link = lock(&self.link);
        match &mut link.state {
            LinkState::Up { fresh } => (ReceivePolicy::Until(up_to), fresh.take()),
            LinkState::Down { until } if Instant::now() < *until => (ReceivePolicy::Nothing, None),
            LinkState::Down { .. } => (ReceivePolicy::Unresponsive, None),
        }
    }

    /// Records that the machine has read this list.
    pub(crate) fn has_read(&self, list: DeviceList) {
        lock(&self.link).known = Some(list);
    }

    /// Records that the connection has ended. The machine may connect again until this time.
    pub(crate) fn is_down(&self, until: Instant) {
        lock(&self.link).state = LinkState::Down { until };
    }
}
