//! The thread that carries messages to another machine and back.
//!
//! It takes what has come over the connection and puts it into the rings of local processes, and
//! sends what they have for the machine. As long as there is something to do now and then it stays
//! awake, and lets others run in between: to be woken takes longer than all that it does for a
//! message. Then it sleeps until a local process wakes it, or until the connection does
//! ([`Watch`]).

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use efa_shm::remote::{RemoteDevice, RemoteMachine, Uptake};
use efa_wire::address::Gid;

use crate::frames::{self, Device, Frame, Frames, Notice, Rule};
use crate::local::News;
use crate::machine::Machine;
use crate::output::{complain, report};
use crate::secure::Wire;
use crate::watch::{Wanted, Watch};

/// Bytes that wait to be sent, beyond which no more records are taken.
const BATCH: usize = 256 << 10;

/// Bytes that wait to be sent, beyond which nothing more is received: answers to what comes are
/// among them. A machine that follows the protocol has fewer requests under way.
const MOST_UNSENT: usize = 64 << 20;

/// How long the thread goes on looking before it sleeps.
const LINGER: Duration = Duration::from_micros(500);

/// How often to look whether local processes still live, while they owe answers or are owed some.
const CHECK_PEERS: Duration = Duration::from_millis(20);

/// How long to sleep at most.
const LONGEST_SLEEP: Duration = Duration::from_millis(250);

/// How long the other machine may take to read that this bridge shuts down.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

/// Refused devices of a list that are named.
const MOST_NAMED: usize = 64;

/// Devices that enter the fabric in a turn. Meanwhile nothing is sent to their machine, not even
/// that this one lives.
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

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        End::Lost(error)
    }
}

/// The connection with the machine.
struct Connection {
    wire: Wire,
    watch: Arc<Watch>,
    frames: Frames,
    last_heard: Instant,
    last_sent: Instant,
    /// How long nothing may be sent.
    longest_pause: Duration,
    announced: Announced,
    /// The list of the machine's devices that is not done with.
    entering: Option<List>,
}

/// The state of the announcement of this machine's devices to the other.
enum Announced {
    Nothing,
    /// The machine has not answered this list, and is sent no other one before it has.
    Sent(News),
    /// The number of the last list that it has read.
    Read(u64),
}

impl Announced {
    /// Whether this list has not been announced yet.
    fn wants(&self, news: &News) -> bool {
        match self {
            Announced::Nothing => true,
            Announced::Sent(_) => false,
            Announced::Read(number) => *number != news.number,
        }
    }
}

/// Devices and rules of the machine.
struct List {
    number: u64,
    devices: Vec<Device>,
    rules: Vec<Rule>,
    /// How many of the devices have entered, or were refused.
    done: usize,
    /// Those that were, and why.
    refused: Vec<(String, String)>,
}

/// See the module.
pub(crate) struct Carrier<'a> {
    machine: &'a Machine,
    connection: Option<Connection>,
    /// Bytes for the machine, of which so many are sent.
    messages: Vec<u8>,
    sent: usize,
    last_check: Instant,
    last_work: Instant,
    /// When requests over lost connections fail.
    given_up_at: Option<Instant>,
    has_said_bye: bool,
}

impl<'a> Carrier<'a> {
    pub(crate) fn new(machine: &'a Machine) -> Carrier<'a> {
        Carrier {
            machine,
            connection: None,
            messages: Vec::with_capacity(2 * BATCH),
            sent: 0,
            last_check: Instant::now(),
            last_work: Instant::now(),
            given_up_at: None,
            has_said_bye: false,
        }
    }

    /// Carries until the bridge ends, and the machine has heard the last words or has had until
    /// then.
    pub(crate) fn run(mut self) {
        while self.turn() {}
        if let Some(Connection { wire, watch, .. }) = self.connection {
            wire.finish(Instant::now() + SHUTDOWN_TIMEOUT);
            watch.end();
        }
    }

    /// One turn. Returns false after the last one.
    fn turn(&mut self) -> bool {
        let mut busy = self.with_connection(Self::hear);
        busy |= self.with_connection(Self::enter_some);
        let uptake = self.look_at_connection();
        self.append_notices();
        let now = Instant::now();
        let mut remote = self.machine.remote();
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
        busy |= remote.collect(uptake, &mut self.messages);
        drop(remote);
        busy |= self.with_connection(Self::flush);
        if self.connection.is_none() {
            // Nobody will be told.
            self.messages.clear();
        }
        if self.has_said_bye && !self.has_unsent() {
            return false;
        }
        if busy {
            self.last_work = now;
        }
        if now - self.last_work < LINGER {
            // After work, too: those for whom it was done are ready to run.
            std::thread::yield_now();
        } else {
            self.sleep(uptake);
        }
        true
    }

    /// Does something with the connection, if there is one. Returns whether there was anything to
    /// do.
    fn with_connection(
        &mut self,
        work: impl FnOnce(&mut Self, &mut Connection) -> Result<bool, End>,
    ) -> bool {
        let Some(mut connection) = self.connection.take() else {
            return false;
        };
        match work(self, &mut connection) {
            Ok(busy) => {
                self.connection = Some(connection);
                busy
            }
            Err(end) => {
                self.lose(&connection, end);
                true
            }
        }
    }

    /// Takes over a new connection, and says what becomes of the records of local processes.
    fn look_at_connection(&mut self) -> Uptake {
        let (uptake, fresh) = self.machine.look(BATCH + self.sent);
        if let Some(fresh) = fresh {
            // The machine may be another process by now, which knows no device of this one.
            self.machine.remote().admit(std::iter::empty());
            self.connection = Some(Connection {
                wire: fresh.wire,
                watch: fresh.watch,
                frames: Frames::new(),
                last_heard: Instant::now(),
                last_sent: Instant::now(),
                longest_pause: fresh.longest_silence / 4,
                announced: Announced::Nothing,
                entering: None,
            });
        }
        match self.has_said_bye || self.messages.len() - self.sent >= BATCH {
            true => Uptake::Nothing,
            false => uptake,
        }
    }

    // --- from the machine ---

    /// Whether there is room for what answers more requests.
    fn has_room(&self) -> bool {
        self.messages.len() - self.sent <= MOST_UNSENT
    }

    /// Takes what has come.
    fn hear(&mut self, connection: &mut Connection) -> Result<bool, End> {
        let mut remote = self.machine.remote();
        if remote.is_overloaded() {
            // This machine does not get on with what has come: the other one has to wait, too.
            connection.last_heard = Instant::now();
            return Ok(false);
        }
        let any = match self.has_room() {
            true => connection.wire.receive(&mut connection.frames)?,
            false => {
                // The other one does not get on. It lives as long as it takes something.
                connection.last_heard = connection.last_sent;
                false
            }
        };
        if !any {
            return match connection.last_heard.elapsed() > self.machine.timeout {
                true => Err(End::Silent),
                false => Ok(false),
            };
        }
        connection.last_heard = Instant::now();
        while let Some(frame) = connection.frames.next()? {
            match frame {
                Frame::Message(message) => remote.deliver(message).map_err(io::Error::other)?,
                Frame::Notice(Notice::Alive) => {}
                Frame::Notice(Notice::Bye) => return Err(End::Bye),
                Frame::Notice(Notice::Devices {
                    number,
                    devices,
                    faults,
                }) => {
                    let list = List {
                        number,
                        devices,
                        rules: faults,
                        done: 0,
                        refused: Vec::new(),
                    };
                    if connection.entering.replace(list).is_some() {
                        let reason = "it tells of its devices again before it was answered";
                        return Err(End::Lost(io::Error::other(reason)));
                    }
                }
                Frame::Notice(Notice::Entered { number, refused }) => {
                    self.complain_of_refused(&refused);
                    if let Announced::Sent(list) = &connection.announced
                        && list.number == number
                    {
                        remote.admit(list.gids.iter().copied());
                        self.machine.has_read(list.clone());
                        connection.announced = Announced::Read(number);
                    }
                }
            }
        }
        Ok(true)
    }

    fn complain_of_refused(&self, refused: &[(String, String)]) {
        let machine = &self.machine.name;
        for (device, reason) in refused.iter().take(MOST_NAMED) {
            complain(&format!(
                "{device} is not a member of the fabric of {machine}: {reason}"
            ));
        }
        if refused.len() > MOST_NAMED {
            let more = refused.len() - MOST_NAMED;
            complain(&format!(
                "{more} more devices are not members of the fabric of {machine}"
            ));
        }
    }

    /// Makes some of the devices that the machine has told of members of the fabric.
    fn enter_some(&mut self, connection: &mut Connection) -> Result<bool, End> {
        let Some(list) = &mut connection.entering else {
            return Ok(false);
        };
        let mut remote = self.machine.remote();
        if list.done == 0 {
            let listed: HashSet<Gid> = list.devices.iter().map(Device::gid).collect();
            remote.leave_if(|gid| !listed.contains(gid));
        }
        let end = list.devices.len().min(list.done + ENTERED_AT_ONCE);
        let refused = enter(
            &mut remote,
            &list.devices[list.done..end],
            &self.machine.name,
        );
        list.refused.extend(refused);
        list.done = end;
        if list.done == list.devices.len() {
            arm(&mut remote, &list.rules, &self.machine.name);
            let notice = Notice::Entered {
                number: list.number,
                refused: std::mem::take(&mut list.refused),
            };
            frames::append_notice(&mut self.messages, &notice);
            connection.entering = None;
        }
        Ok(true)
    }

    // --- to the machine ---

    /// Appends the notices that are due.
    fn append_notices(&mut self) {
        if self.machine.is_ending() && !self.has_said_bye {
            self.has_said_bye = true;
            frames::append_notice(&mut self.messages, &Notice::Bye);
        }
        let Some(connection) = &mut self.connection else {
            return;
        };
        let news = self.machine.local.news();
        if connection.announced.wants(&news) {
            let notice = Notice::Devices {
                number: news.number,
                devices: news.devices.to_vec(),
                faults: news.faults.to_vec(),
            };
            frames::append_notice(&mut self.messages, &notice);
            connection.announced = Announced::Sent(news);
        }
        let is_quiet = connection.last_sent.elapsed() > connection.longest_pause;
        if is_quiet && self.messages.is_empty() {
            frames::append_notice(&mut self.messages, &Notice::Alive);
        }
    }

    /// Sends what there is room for.
    fn flush(&mut self, connection: &mut Connection) -> Result<bool, End> {
        let mut busy = false;
        while self.sent < self.messages.len() || connection.wire.has_unsent() {
            let count = connection.wire.send(&self.messages[self.sent..])?;
            if count == 0 {
                break;
            }
            self.sent += count;
            connection.last_sent = Instant::now();
            busy = true;
        }
        if self.sent == self.messages.len() {
            self.messages.clear();
            self.sent = 0;
        } else if self.sent >= BATCH {
            self.messages.drain(..self.sent);
            self.sent = 0;
        }
        Ok(busy)
    }

    /// Whether there was no room for something.
    fn has_unsent(&self) -> bool {
        let wire = self.connection.as_ref().map(|connection| &connection.wire);
        self.sent < self.messages.len() || wire.is_some_and(Wire::has_unsent)
    }

    // --- when there is nothing to do ---

    fn sleep(&mut self, uptake: Uptake) {
        let mut remote = self.machine.remote();
        let Some(sleep) = remote.prepare_to_sleep(uptake, &mut self.messages) else {
            self.last_work = Instant::now();
            return;
        };
        let longest = remote.longest_sleep().unwrap_or(LONGEST_SLEEP);
        let wanted = Wanted {
            input: self.has_room() && !remote.is_overloaded(),
            room: self.has_unsent(),
        };
        drop(remote);
        self.with_connection(|_, connection| {
            connection.watch.want(wanted)?;
            Ok(false)
        });
        let connection = self.connection.as_ref();
        let pause = connection.map_or(LONGEST_SLEEP, |connection| connection.longest_pause / 2);
        sleep.sleep(longest.min(LONGEST_SLEEP).min(pause));
    }

    /// The connection is over.
    fn lose(&mut self, connection: &Connection, end: End) {
        let Connection { wire, watch, .. } = connection;
        wire.cut();
        // A new connection begins with a whole frame, and without what was asked over this one.
        self.messages.clear();
        self.sent = 0;
        let mut remote = self.machine.remote();
        remote.disconnect();
        let now = Instant::now();
        let until = match end {
            End::Lost(_) => now + self.machine.timeout,
            // It has been silent for that long.
            End::Silent | End::Bye => now,
        };
        self.given_up_at.get_or_insert(until);
        let name = &self.machine.name;
        match end {
            _ if self.machine.is_ending() => {}
            End::Lost(error) => complain(&format!("the connection with {name} is lost: {error}")),
            End::Silent => complain(&format!(
                "nothing was heard of {name} for {:?}: its hosts do not answer until it is back",
                self.machine.timeout
            )),
            End::Bye => {
                report(&format!("{name} has left"));
                remote.give_up_lost();
                remote.leave_if(|_| true);
            }
        }
        drop(remote);
        // From here on, there may be another one.
        self.machine.is_down(until);
        watch.end();
    }
}

/// Makes devices of a machine members of the fabric. Returns those that cannot be, with the
/// reasons.
fn enter(remote: &mut RemoteMachine, devices: &[Device], machine: &str) -> Vec<(String, String)> {
    let mut refused = Vec::new();
    let mut refuse = |device: &Device, reason: String| {
        complain(&format!(
            "{} of {machine} is not a member of this machine's fabric: {reason}",
            device.name()
        ));
        refused.push((device.name(), reason));
    };
    let (described, remotes): (Vec<&Device>, Vec<RemoteDevice>) = devices
        .iter()
        .filter_map(|device| Some((device, device.remote()?)))
        .unzip();
    match remote.enter_all(&remotes) {
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
    refused
}

/// Arms rules of a machine.
fn arm(remote: &mut RemoteMachine, rules: &[Rule], machine: &str) {
    let mut faults = Vec::new();
    let tell = |reason: &str| {
        complain(&format!(
            "a rule of faults of {machine} does not hold on this machine: {reason}"
        ));
    };
    for rule in rules {
        match rule.carried() {
            Ok(fault) => faults.push(fault),
            Err(error) => tell(&error.to_string()),
        }
    }
    for error in remote.declare_faults(&faults) {
        tell(&error.to_string());
    }
}
