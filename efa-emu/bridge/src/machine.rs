//! Another machine: the threads that carry parcels there and back.
//!
//! A machine has one thread that sends, as long as the bridge runs. It takes records out of the rings of local
//! processes, sleeps until one of them wakes it, and notices when the machine has been silent for too long. Each
//! connection has one thread that receives, the one that made it: it puts records into the rings of local
//! processes. Both work on the same [`RemoteMachine`], in turns.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use efa_core::address::Gid;
use efa_emu::transport::Fabric;
use efa_emu::transport::remote::{Alarm, RemoteDevice, RemoteMachine, Uptake};

use crate::complain;
use crate::frames::{self, Device, Frame, Frames, Notice, Rule};
use crate::greeting::Greeting;
use crate::local::Local;
use crate::secure::{Breaker, Reader, Secured, Writer};
use crate::slice;

/// Bytes that are collected before they are sent.
const BATCH: usize = 256 << 10;

/// How long the sending thread goes on looking before it sleeps.
const LINGER: Duration = Duration::from_micros(20);

/// How often to look whether local processes still live, while they owe answers or are owed some.
const CHECK_PEERS: Duration = Duration::from_millis(20);

/// How long to sleep at most.
const LONGEST_SLEEP: Duration = Duration::from_millis(250);

/// Devices that enter the fabric at a time. Meanwhile nothing is sent to their machine, not even that this one lives.
const ENTERED_AT_ONCE: usize = 64;

/// Why a connection is over.
enum End {
    /// It broke, or was cut.
    Lost(io::Error),
    /// Nothing was heard for too long.
    Silent,
    /// The other bridge has said that it ends.
    Bye,
}

/// A connection's state.
enum State {
    /// There is one. The writer waits for its thread.
    Up {
        breaker: Breaker,
        writer: Option<Writer>,
    },
    /// There is none. Until then the machine may come back.
    Down { until: Instant },
}

struct Link {
    state: State,
    /// The process at the other end.
    incarnation: u64,
    notices: Vec<Notice>,
    /// The last list of devices that was sent.
    announced: Announced,
    /// The GIDs of a list that the other machine has read.
    known: HashSet<Gid>,
    /// The number of that list, and the generation of the rules in it.
    known_number: u64,
    known_faults: u64,
}

/// A list of devices that was sent.
struct Announced {
    number: u64,
    gids: Vec<Gid>,
    /// The generation of the rules that went with it.
    faults: u64,
}

impl Announced {
    const NOTHING: Announced = Announced {
        number: u64::MAX,
        gids: Vec::new(),
        faults: 0,
    };
}

/// Another machine.
pub(crate) struct Machine {
    name: String,
    local: Arc<Local>,
    timeout: Duration,
    plain: bool,
    alarm: Alarm,
    remote: Mutex<RemoteMachine>,
    link: Mutex<Link>,
    /// Counts the connections. Changes while `remote` is locked.
    session: AtomicU64,
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
                state: State::Down {
                    until: Instant::now(),
                },
                incarnation: 0,
                notices: Vec::new(),
                announced: Announced::NOTHING,
                known: HashSet::new(),
                known_number: u64::MAX,
                known_faults: 0,
            }),
            session: AtomicU64::new(0),
            is_ending: AtomicBool::new(false),
        }
    }

    /// Whether there is a connection.
    pub(crate) fn is_connected(&self) -> bool {
        matches!(lock(&self.link).state, State::Up { .. })
    }

    /// If the machine knows of a device of this one, or cannot be told: the generation of the rules of which it knows.
    pub(crate) fn knows(&self, gid: Gid) -> Option<u64> {
        let news = self.local.news();
        let link = lock(&self.link);
        if matches!(link.state, State::Down { .. }) || link.known_number == news.number {
            return news.gids.contains(&gid).then_some(news.generation);
        }
        link.known.contains(&gid).then_some(link.known_faults)
    }

    /// Serves a connection until it is over; `None` if there is one already.
    pub(crate) fn serve(&self, connection: Secured, theirs: &Greeting) -> Option<io::Result<()>> {
        let (session, reader) = match self.begin(connection, theirs) {
            Ok(begun) => begun?,
            Err(error) => return Some(Err(error)),
        };
        println!("connected with {}", self.name);
        let end = self.receive(session, reader);
        self.lose(session, end);
        Some(Ok(()))
    }

    fn begin(&self, connection: Secured, theirs: &Greeting) -> io::Result<Option<(u64, Reader)>> {
        let mut link = lock(&self.link);
        if matches!(link.state, State::Up { .. }) {
            return Ok(None);
        }
        let (writer, reader) = connection.split(self.plain, self.timeout)?;
        link.state = State::Up {
            breaker: writer.breaker()?,
            writer: Some(writer),
        };
        link.incarnation = theirs.incarnation;
        link.notices.clear();
        link.announced = Announced::NOTHING;
        link.known.clear();
        link.known_number = u64::MAX;
        let session = self.session.load(Ordering::Relaxed);
        drop(link);
        self.alarm.ring();
        Ok(Some((session, reader)))
    }

    /// Receives until the connection is over.
    fn receive(&self, session: u64, mut reader: Reader) -> End {
        slice::shorten();
        let mut frames = Frames::new();
        loop {
            match reader.receive(&mut frames) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) =>
                {
                    return End::Silent;
                }
                Err(error) => return End::Lost(error),
            }
            if let Some(end) = self.take(session, &mut frames) {
                return end;
            }
            // Local processes do not take what comes: the machine has to wait, too.
            while lock(&self.remote).is_overloaded() {
                if self.session.load(Ordering::Relaxed) != session {
                    return End::Lost(io::ErrorKind::ConnectionAborted.into());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Takes the frames that are complete.
    fn take(&self, session: u64, frames: &mut Frames) -> Option<End> {
        let mut remote = lock(&self.remote);
        if self.session.load(Ordering::Relaxed) != session {
            return Some(End::Lost(io::ErrorKind::ConnectionAborted.into()));
        }
        let mut must_send = false;
        loop {
            let notice = match frames.next() {
                Ok(None) => break,
                Ok(Some(Frame::Parcel(parcel))) => match remote.deliver(parcel) {
                    Ok(()) => continue,
                    Err(error) => return Some(End::Lost(io::Error::other(error))),
                },
                Ok(Some(Frame::Notice(notice))) => notice,
                Err(error) => return Some(End::Lost(error)),
            };
            match notice {
                Notice::Alive => {}
                Notice::Bye => return Some(End::Bye),
                Notice::Devices {
                    number,
                    devices,
                    faults,
                } => {
                    drop(remote);
                    let refused = self.enter(&devices);
                    remote = lock(&self.remote);
                    self.arm(&mut remote, &faults);
                    drop(remote);
                    lock(&self.link)
                        .notices
                        .push(Notice::Entered { number, refused });
                    must_send = true;
                    remote = lock(&self.remote);
                }
                Notice::Entered { number, refused } => {
                    drop(remote);
                    let admitted = self.admitted(number, &refused);
                    remote = lock(&self.remote);
                    if let Some(admitted) = admitted {
                        remote.admit(admitted.into_iter());
                        must_send = true;
                    }
                }
            }
        }
        must_send |= remote.has_replies();
        drop(remote);
        if must_send {
            self.alarm.ring();
        }
        None
    }

    /// Makes the machine's devices members of the fabric. Returns those that cannot be, with the reasons.
    fn enter(&self, devices: &[Device]) -> Vec<(String, String)> {
        let listed: HashSet<Gid> = devices.iter().map(Device::gid).collect();
        let is_gone = |gid: &Gid| !listed.contains(gid);
        lock(&self.remote).leave_if(is_gone);
        let mut refused = Vec::new();
        let mut refuse = |device: &Device, reason: String| {
            complain(&format!(
                "{} of {} is no member of this machine's fabric: {reason}",
                device.name(),
                self.name
            ));
            refused.push((device.name(), reason));
        };
        for devices in devices.chunks(ENTERED_AT_ONCE) {
            let (described, remotes): (Vec<&Device>, Vec<RemoteDevice>) = devices
                .iter()
                .filter_map(|device| Some((device, device.remote()?)))
                .unzip();
            let entered = lock(&self.remote).enter_all(&remotes);
            match entered {
                Ok(entered) => {
                    for (device, entered) in described.into_iter().zip(entered) {
                        if let Err(error) = entered {
                            refuse(device, error.to_string());
                        }
                    }
                }
                Err(error) => {
                    for device in described {
                        refuse(device, error.to_string());
                    }
                }
            }
            for device in devices.iter().filter(|device| device.remote().is_none()) {
                refuse(device, "its description makes no sense".to_owned());
            }
            // Whoever sends has its turn.
            std::thread::yield_now();
        }
        refused
    }

    /// Arms the machine's rules.
    fn arm(&self, remote: &mut RemoteMachine, rules: &[Rule]) {
        let mut faults = Vec::new();
        let tell = |reason: &str| {
            complain(&format!(
                "a rule of faults of {} does not hold on this machine: {reason}",
                self.name
            ));
        };
        for rule in rules {
            match rule.carried() {
                Ok(fault) => faults.push(fault),
                Err(reason) => tell(&reason),
            }
        }
        for error in remote.declare_faults(&faults) {
            tell(&error.to_string());
        }
    }

    /// The devices whose records may be sent now that the machine has read list `number`.
    fn admitted(&self, number: u64, refused: &[(String, String)]) -> Option<Vec<Gid>> {
        for (device, reason) in refused {
            complain(&format!(
                "{device} is no member of the fabric of {}: {reason}",
                self.name
            ));
        }
        let mut link = lock(&self.link);
        (link.announced.number == number).then(|| {
            let gids = link.announced.gids.clone();
            link.known = gids.iter().copied().collect();
            link.known_number = number;
            link.known_faults = link.announced.faults;
            gids
        })
    }

    /// The connection is over.
    fn lose(&self, session: u64, end: End) {
        let mut link = lock(&self.link);
        let mut remote = lock(&self.remote);
        if self.session.load(Ordering::Relaxed) != session {
            return;
        }
        self.session.store(session + 1, Ordering::Relaxed);
        if let State::Up { breaker, .. } = &link.state {
            breaker.cut();
        }
        let now = Instant::now();
        remote.disconnect();
        link.state = State::Down {
            until: match end {
                End::Lost(_) => now + self.timeout,
                // It has been silent for that long.
                End::Silent | End::Bye => now,
            },
        };
        let name = &self.name;
        match end {
            _ if self.is_ending.load(Ordering::Relaxed) => {}
            End::Lost(error) => complain(&format!("the connection with {name} is lost: {error}")),
            End::Silent => complain(&format!(
                "nothing was heard of {name} for {:?}: its hosts do not answer until it is back",
                self.timeout
            )),
            End::Bye => {
                println!("{name} has left");
                remote.give_up_lost();
                remote.leave_if(|_| true);
            }
        }
        drop((remote, link));
        self.alarm.ring();
    }

    /// The last words.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
        {
            let mut link = lock(&self.link);
            link.notices.push(Notice::Bye);
        }
        self.alarm.ring();
    }

    /// The devices of the machine leave the fabric.
    pub(crate) fn leave(&self) {
        lock(&self.remote).leave_if(|_| true);
    }

    /// Sends for ever: until [`Machine::end`].
    pub(crate) fn send(&self) {
        slice::shorten();
        let mut sender = Sender {
            machine: self,
            writer: None,
            parcels: Vec::with_capacity(2 * BATCH),
            last_sent: Instant::now(),
            last_check: Instant::now(),
            last_work: Instant::now(),
            given_up_at: None,
        };
        while sender.turn() {}
    }
}

/// The sending thread.
struct Sender<'a> {
    machine: &'a Machine,
    /// The connection's number and its writing half.
    writer: Option<(u64, Writer)>,
    parcels: Vec<u8>,
    last_sent: Instant,
    last_check: Instant,
    last_work: Instant,
    /// When requests over lost connections fail.
    given_up_at: Option<Instant>,
}

impl Sender<'_> {
    /// One turn. Returns false after the last one.
    fn turn(&mut self) -> bool {
        let machine = self.machine;
        let uptake = self.look_at_link();
        let is_last = self.append_notices();
        let now = Instant::now();
        let mut remote = lock(&machine.remote);
        if self.given_up_at.is_some_and(|at| at <= now) {
            self.given_up_at = None;
            remote.give_up_lost();
        }
        if now - self.last_check > CHECK_PEERS {
            self.last_check = now;
            if remote.unanswered() > 0 || remote.longest_sleep().is_some() {
                remote.check_peers();
            }
        }
        let mut busy = remote.collect(uptake, &mut self.parcels);
        drop(remote);
        busy |= self.flush();
        if is_last {
            return false;
        }
        if busy {
            self.last_work = now;
        } else if now - self.last_work < LINGER {
            std::thread::yield_now();
        } else {
            self.sleep(uptake);
        }
        true
    }

    /// Takes over a new connection, and says what becomes of the records of local processes.
    fn look_at_link(&mut self) -> Uptake {
        let machine = self.machine;
        let mut link = lock(&machine.link);
        match &mut link.state {
            State::Up { writer, .. } => {
                if let Some(writer) = writer.take() {
                    if self.writer.is_some() {
                        // It was lost and made again since the last turn.
                        self.given_up_at
                            .get_or_insert(Instant::now() + machine.timeout);
                    }
                    let session = machine.session.load(Ordering::Relaxed);
                    self.writer = Some((session, writer));
                    self.last_sent = Instant::now();
                }
                Uptake::Until(BATCH)
            }
            State::Down { until } => {
                if self.writer.take().is_some() {
                    self.given_up_at.get_or_insert(*until);
                }
                match Instant::now() < *until {
                    true => Uptake::Nothing,
                    false => Uptake::Unresponsive,
                }
            }
        }
    }

    /// What the other bridge has to be told. Returns whether nothing comes after.
    fn append_notices(&mut self) -> bool {
        let machine = self.machine;
        let news = machine.local.news();
        let mut link = lock(&machine.link);
        let mut is_last = false;
        for notice in link.notices.drain(..) {
            is_last |= matches!(notice, Notice::Bye);
            frames::append_notice(&mut self.parcels, &notice);
        }
        if self.writer.is_none() {
            return is_last;
        }
        if link.announced.number != news.number {
            link.announced = Announced {
                number: news.number,
                gids: news.devices.iter().map(Device::gid).collect(),
                faults: news.generation,
            };
            let notice = Notice::Devices {
                number: news.number,
                devices: news.devices.to_vec(),
                faults: news.faults.to_vec(),
            };
            frames::append_notice(&mut self.parcels, &notice);
        }
        if self.parcels.is_empty() && self.last_sent.elapsed() > machine.timeout / 4 {
            frames::append_notice(&mut self.parcels, &Notice::Alive);
        }
        is_last
    }

    /// Sends what was collected. Returns whether there was anything.
    fn flush(&mut self) -> bool {
        if self.parcels.is_empty() {
            return false;
        }
        if let Some((session, writer)) = &mut self.writer {
            let session = *session;
            if let Err(error) = writer.send(&self.parcels) {
                self.machine.lose(session, End::Lost(error));
            }
            self.last_sent = Instant::now();
        }
        self.parcels.clear();
        true
    }

    fn sleep(&mut self, uptake: Uptake) {
        let machine = self.machine;
        let mut remote = lock(&machine.remote);
        let Some(sleep) = remote.prepare_to_sleep(uptake, &mut self.parcels) else {
            drop(remote);
            self.flush();
            self.last_work = Instant::now();
            return;
        };
        let longest = remote.longest_sleep().unwrap_or(LONGEST_SLEEP);
        drop(remote);
        sleep.sleep(longest.min(LONGEST_SLEEP).min(machine.timeout / 8));
    }
}
