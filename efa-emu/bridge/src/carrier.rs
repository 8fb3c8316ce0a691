//! The thread that exchanges messages with another machine.
//!
//! It passes messages from the connection into the rings of local processes, and sends the messages
//! of local processes to the machine. While there is occasional work it stays awake and yields in
//! between, because waking up takes longer than handling a message. When idle it sleeps until a
//! local process or the connection wakes it ([`Watch`]).

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use efa_shm::remote::{ReceivePolicy, RemoteDevice, RemoteMachine};
use efa_wire::address::Gid;

use crate::frames::{self, Device, Frame, Frames, Notice, Rule};
use crate::local::DeviceList;
use crate::machine::Machine;
use crate::output::{complain, report};
use crate::secure::Wire;
use crate::watch::{Interest, Watch};

/// When this number of unsent bytes is exceeded, no more records are read.
const BATCH: usize = 256 << 10;

/// Unsent bytes beyond which nothing more is received, because received requests need answers. A
/// machine that follows the protocol has fewer outstanding requests.
const MOST_UNSENT: usize = 64 << 20;

/// The time that the thread polls before it sleeps.
const LINGER: Duration = Duration::from_micros(500);

/// Interval of liveness checks for local processes, while answers from or to them are outstanding.
const CHECK_PEERS: Duration = Duration::from_millis(20);

/// Longest sleep.
const LONGEST_SLEEP: Duration = Duration::from_millis(250);

/// Maximum time for the other machine to read the notice of the shutdown.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

/// Most refused devices of a list that are logged.
const MOST_NAMED: usize = 64;

/// Devices that enter the fabric in one turn. During a turn nothing is sent to their machine, not
/// even a heartbeat.
const ENTERED_AT_ONCE: usize = 64;

/// The reason why a connection has ended.
#[derive(Debug, thiserror::Error)]
enum CloseReason {
    /// It broke, or was closed.
    #[error(transparent)]
    Lost(#[from] io::Error),
    #[error("the heartbeat timeout has expired")]
    Silent,
    #[error("the other bridge shuts down")]
    Bye,
}

/// The connection with the other machine.
struct Connection {
    wire: Wire,
    watch: Arc<Watch>,
    frames: Frames,
    last_received: Instant,
    last_sent: Instant,
    /// The longest time without sending.
    longest_pause: Duration,
    announced: AnnounceState,
    /// The list of the machine's devices that is being processed.
    entering: Option<RemoteList>,
}

/// The state of announcing this machine's devices to the other.
enum AnnounceState {
    Nothing,
    /// This list was sent and is not acknowledged. No other list is sent before it is.
    Sent(DeviceList),
    /// The number of the last acknowledged list.
    Read(u64),
}

impl AnnounceState {
    /// Whether this list must be announced.
    fn wants(&self, device_list: &DeviceList) -> bool {
        match self {
            AnnounceState::Nothing => true,
            AnnounceState::Sent(_) => false,
            AnnounceState::Read(number) => *number != device_list.number,
        }
    }
}

/// Devices and rules of the machine.
struct RemoteList {
    number: u64,
    devices: Vec<Device>,
    rules: Vec<Rule>,
    /// The number of devices that have entered, or were refused.
    done: usize,
    /// The refused devices, with the reasons.
    refused: Vec<(String, String)>,
}

/// See the module documentation.
pub(crate) struct Carrier<'a> {
    machine: &'a Machine,
    connection: Option<Connection>,
    /// Bytes for the machine, of which `sent` are sent.
    messages: Vec<u8>,
    sent: usize,
    last_check: Instant,
    last_work: Instant,
    /// The time at which requests over lost connections fail.
    given_up_at: Option<Instant>,
    bye_sent: bool,
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
            bye_sent: false,
        }
    }

    /// Runs until the bridge ends, and the machine has received the notice of the shutdown or that
    /// has timed out.
    pub(crate) fn run(mut self) {
        while self.turn() {}
        if let Some(Connection { wire, watch, .. }) = self.connection {
            wire.finish(Instant::now() + SHUTDOWN_TIMEOUT);
            watch.end();
        }
    }

    /// One turn. Returns false after the last one.
    fn turn(&mut self) -> bool {
        let mut busy = self.with_connection(Self::receive);
        busy |= self.with_connection(Self::enter_some);
        let receive_policy = self.check_connection();
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
        busy |= remote.collect(receive_policy, &mut self.messages);
        drop(remote);
        busy |= self.with_connection(Self::flush);
        if self.connection.is_none() {
            // There is no connection for the messages.
            self.messages.clear();
        }
        if self.bye_sent && !self.has_unsent() {
            return false;
        }
        if busy {
            self.last_work = now;
        }
        if now - self.last_work < LINGER {
            // After work, too: the processes for which it was done are ready to run.
            std::thread::yield_now();
        } else {
            self.sleep(receive_policy);
        }
        true
    }

    /// Uses the connection, if there is one. Returns whether there was any work.
    fn with_connection(
        &mut self,
        work: impl FnOnce(&mut Self, &mut Connection) -> Result<bool, CloseReason>,
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

    /// Takes over a new connection, and returns how to handle the records of local processes.
    fn check_connection(&mut self) -> ReceivePolicy {
        let (receive_policy, fresh) = self.machine.look(BATCH + self.sent);
        if let Some(fresh) = fresh {
            // The machine's bridge may be a new process, to which no device of this machine was
            // announced.
            self.machine.remote().admit(std::iter::empty());
            self.connection = Some(Connection {
                wire: fresh.wire,
                watch: fresh.watch,
                frames: Frames::new(),
                last_received: Instant::now(),
                last_sent: Instant::now(),
                longest_pause: fresh.longest_silence / 4,
                announced: AnnounceState::Nothing,
                entering: None,
            });
        }
        match self.bye_sent || self.messages.len() - self.sent >= BATCH {
            true => ReceivePolicy::Nothing,
            false => receive_policy,
        }
    }

    // --- from the machine ---

    /// Whether there is room for the answers to further requests.
    fn has_room(&self) -> bool {
        self.messages.len() - self.sent <= MOST_UNSENT
    }

    /// Handles received frames.
    fn receive(&mut self, connection: &mut Connection) -> Result<bool, CloseReason> {
        let mut remote = self.machine.remote();
        if remote.is_overloaded() {
            // This machine cannot keep up, so the other machine has to wait as well.
            connection.last_received = Instant::now();
            return Ok(false);
        }
        let any = match self.has_room() {
            true => connection.wire.receive(&mut connection.frames)?,
            false => {
                // The other machine cannot keep up. It is alive as long as it reads.
                connection.last_received = connection.last_sent;
                false
            }
        };
        if !any {
            return match connection.last_received.elapsed() > self.machine.timeout {
                true => Err(CloseReason::Silent),
                false => Ok(false),
            };
        }
        connection.last_received = Instant::now();
        while let Some(frame) = connection.frames.next()? {
            match frame {
                Frame::Message(message) => remote.deliver(message).map_err(io::Error::other)?,
                Frame::Notice(Notice::Alive) => {}
                Frame::Notice(Notice::Bye) => return Err(CloseReason::Bye),
                Frame::Notice(Notice::Devices {
                    number,
                    devices,
                    faults,
                }) => {
                    let list = RemoteList {
                        number,
                        devices,
                        rules: faults,
                        done: 0,
                        refused: Vec::new(),
                    };
                    if connection.entering.replace(list).is_some() {
                        let reason = "it announced its devices again before it was answered";
                        return Err(CloseReason::Lost(io::Error::other(reason)));
                    }
                }
                Frame::Notice(Notice::Entered { number, refused }) => {
                    self.complain_of_refused(&refused);
                    if let AnnounceState::Sent(list) = &connection.announced
                        && list.number == number
                    {
                        remote.admit(list.gids.iter().copied());
                        self.machine.has_read(list.clone());
                        connection.announced = AnnounceState::Read(number);
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

    /// Adds some of the devices in the machine's list to the fabric.
    fn enter_some(&mut self, connection: &mut Connection) -> Result<bool, CloseReason> {
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
            tracing::info!(
                machine = self.machine.name,
                devices = end - list.refused.len(),
                refused = list.refused.len(),
                "devices of the machine entered"
            );
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
        if self.machine.is_ending() && !self.bye_sent {
            self.bye_sent = true;
            frames::append_notice(&mut self.messages, &Notice::Bye);
        }
        let Some(connection) = &mut self.connection else {
            return;
        };
        let device_list = self.machine.local.device_list();
        if connection.announced.wants(&device_list) {
            let notice = Notice::Devices {
                number: device_list.number,
                devices: device_list.devices.to_vec(),
                faults: device_list.faults.to_vec(),
            };
            frames::append_notice(&mut self.messages, &notice);
            connection.announced = AnnounceState::Sent(device_list);
        }
        let is_quiet = connection.last_sent.elapsed() > connection.longest_pause;
        if is_quiet && self.messages.is_empty() {
            frames::append_notice(&mut self.messages, &Notice::Alive);
        }
    }

    /// Sends until the socket accepts no more.
    fn flush(&mut self, connection: &mut Connection) -> Result<bool, CloseReason> {
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

    /// Whether unsent bytes are left.
    fn has_unsent(&self) -> bool {
        let wire = self.connection.as_ref().map(|connection| &connection.wire);
        self.sent < self.messages.len() || wire.is_some_and(Wire::has_unsent)
    }

    // --- when there is nothing to do ---

    fn sleep(&mut self, receive_policy: ReceivePolicy) {
        let mut remote = self.machine.remote();
        let Some(sleep) = remote.prepare_to_sleep(receive_policy, &mut self.messages) else {
            self.last_work = Instant::now();
            return;
        };
        let longest = remote.longest_sleep().unwrap_or(LONGEST_SLEEP);
        let wanted = Interest {
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

    /// Handles the end of the connection.
    fn lose(&mut self, connection: &Connection, end: CloseReason) {
        let Connection { wire, watch, .. } = connection;
        wire.cut();
        // A new connection begins with a whole frame, and without requests of this one.
        self.messages.clear();
        self.sent = 0;
        let mut remote = self.machine.remote();
        remote.disconnect();
        let now = Instant::now();
        let until = match end {
            CloseReason::Lost(_) => now + self.machine.timeout,
            // The timeout has already passed.
            CloseReason::Silent | CloseReason::Bye => now,
        };
        self.given_up_at.get_or_insert(until);
        let name = &self.machine.name;
        tracing::info!(machine = name, reason = %end, "machine disconnected");
        match end {
            _ if self.machine.is_ending() => {}
            CloseReason::Lost(error) => {
                complain(&format!("the connection with {name} is lost: {error}"))
            }
            CloseReason::Silent => complain(&format!(
                "nothing was heard of {name} for {:?}: its hosts do not answer until it is back",
                self.machine.timeout
            )),
            CloseReason::Bye => {
                report(&format!("{name} has left"));
                remote.give_up_lost();
                remote.leave_if(|_| true);
            }
        }
        drop(remote);
        // A new connection may be made from here on.
        self.machine.is_down(until);
        watch.end();
    }
}

/// Adds devices of a machine to the fabric. Returns those that cannot be added, with the reasons.
fn enter(remote: &mut RemoteMachine, devices: &[Device], machine: &str) -> Vec<(String, String)> {
    let mut refused = Vec::new();
    let mut refuse = |device: &Device, reason: String| {
        tracing::debug!(machine, device = device.name(), reason, "device refused");
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

/// Arms fault rules of a machine.
fn arm(remote: &mut RemoteMachine, rules: &[Rule], machine: &str) {
    let mut faults = Vec::new();
    let warn = |reason: &str| {
        complain(&format!(
            "a rule of faults of {machine} does not hold on this machine: {reason}"
        ));
    };
    for rule in rules {
        match rule.carried() {
            Ok(fault) => faults.push(fault),
            Err(error) => warn(&error.to_string()),
        }
    }
    for error in remote.declare_faults(&faults) {
        warn(&error.to_string());
    }
}
