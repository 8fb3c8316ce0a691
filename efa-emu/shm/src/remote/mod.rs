//! Another machine in this fabric: its devices are members like those of this machine, and what local processes
//! ask of them is handed to whoever carries it there.
//!
//! A *bridge* has one [`RemoteMachine`] for each machine that it is connected with. The two halves of a request:
//!
//! ```text
//!   local process ── ring ──► stand-in of the responder ── parcels ──► (the other machine)
//!   local process ◄── ring ── stand-in of the initiator ◄── parcels ── (the other machine)
//! ```
//!
//! A record stays in its ring until the other machine has answered it. So a ring is also what bounds the requests
//! of a process that are under way, and nothing is copied but for the carriage. What the device of the responder
//! answers is what the device of the initiator gets; of its own, this module answers
//!
//! * RDMA for which the responder would copy between two processes: make it through the rings;
//! * requests to a machine that has vanished ([`RemoteMachine::give_up_lost`], [`Uptake::Unresponsive`]): unresponsive.
//!
//! Nothing here waits, and nothing knows how parcels travel. They may arrive in any order, but an answer that
//! says that a request is kept comes before its outcome.

#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod names;
mod parcel;
mod parked;
mod rules;
mod sleep;
mod stand_in;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use efa_core::address::{Gid, Qkey, Qpn};
use efa_core::nic::Status;
use slab::Slab;

use super::clock::monotonic_now;
use super::error::FabricError;
use super::fabric::Fabric;
use super::host::Host;
use super::record::{Answer, Kind, Record};
use super::segment::Address;
use super::switchboard::{LINES, Switchboard};
use efa_device_model::link::{Operation, RemoteRange, RequestHeader};
use names::{Names, Numbers};
use parcel::Parcel;
pub use parcel::{BadParcel, FIRST_PARCEL, FRAME_HEADER, LONGEST_PARCEL};
use parked::{Destination, Parked, ParkedRecords, To};
pub use sleep::{Alarm, Sleep};
pub use stand_in::RemoteDevice;
use stand_in::{Origin, StandIn, Token, Unsent};

/// Records of one ring that are taken before the next ring's turn.
const RECORDS_PER_TURN: usize = 32;

/// Bytes of requests that wait for room in the rings of local processes, beyond which nothing more should be
/// brought: see [`RemoteMachine::is_overloaded`].
const MOST_PARKED: usize = 256 << 20;

/// A record of a local process that the machine has not answered, or has kept.
#[derive(Debug)]
struct Held {
    device: usize,
    origin: Origin,
    is_kept: bool,
    /// The connection that it went with.
    epoch: u32,
}

/// A read of a process of the machine that a local process serves.
#[derive(Debug)]
struct Pull {
    /// The machine's name for it.
    name: u64,
    device: usize,
    by: Option<Address>,
}

/// A request of the machine that a local process keeps: the machine's name for it, and if it is a read, ours.
#[derive(Clone, Copy, Debug)]
struct Kept {
    name: u64,
    pull: Option<u32>,
}

/// What becomes of the records of local processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Uptake {
    /// They are taken as long as there are fewer than so many bytes to be carried.
    Until(usize),
    /// They wait in their rings.
    Nothing,
    /// They are answered as if nobody were there.
    Unresponsive,
}

/// The devices of another machine as members of this fabric.
pub struct RemoteMachine {
    fabric: Fabric,
    name: String,
    devices: Slab<StandIn>,
    /// Those with rings to be looked at.
    busy: Vec<usize>,
    by_gid: HashMap<Gid, usize>,
    held: Names<Held>,
    pulls: Numbers<Pull>,
    /// Requests of the machine that a local process keeps, by stand-in, process and number of the record.
    kept: HashMap<(usize, Address, u64), Kept>,
    parked: ParkedRecords,
    /// Parcels that were made without being asked for any.
    replies: Vec<u8>,
    epoch: u32,
    /// Whose records are carried.
    admitted: HashSet<Gid>,
    /// The machine's rules of faults.
    copies: Vec<rules::Copy>,
    alarm: Arc<AtomicU32>,
    /// How often the alarm had been rung when whoever sleeps last looked for everything.
    heard: u32,
}

impl RemoteMachine {
    /// A machine without devices.
    pub fn new(fabric: Fabric, name: &str) -> RemoteMachine {
        RemoteMachine {
            fabric,
            name: name.to_owned(),
            devices: Slab::new(),
            busy: Vec::new(),
            by_gid: HashMap::new(),
            held: Names::default(),
            pulls: Numbers::default(),
            kept: HashMap::new(),
            parked: ParkedRecords::default(),
            replies: Vec::new(),
            epoch: 0,
            admitted: HashSet::new(),
            copies: Vec::new(),
            alarm: Arc::default(),
            heard: 0,
        }
    }

    /// A device of the machine becomes a member of the fabric. One that is there already learns what the network
    /// does to what it sends.
    ///
    /// # Errors
    /// Another device with this name or GID is there already.
    pub fn enter(&mut self, device: &RemoteDevice) -> Result<(), FabricError> {
        let entered = self.enter_all(std::slice::from_ref(device))?;
        entered.into_iter().collect()
    }

    /// As [`RemoteMachine::enter`], for several devices, which takes about as long as for one. Returns what became of
    /// each.
    ///
    /// # Errors
    /// None can enter: the fabric cannot be changed.
    pub fn enter_all(
        &mut self,
        devices: &[RemoteDevice],
    ) -> Result<Vec<Result<(), FabricError>>, FabricError> {
        let (mut same, mut renamed) = (HashSet::new(), HashSet::new());
        for device in devices {
            let Some(index) = self.by_gid.get(&device.gid) else {
                continue;
            };
            let stand_in = &self.devices[*index];
            if stand_in.is(&device.name) {
                stand_in.declare_network(&device.network);
                same.insert(device.gid);
            } else {
                renamed.insert(device.gid);
            }
        }
        self.leave_if(|gid| renamed.contains(gid));
        let entering = || devices.iter().filter(|device| !same.contains(&device.gid));
        if entering().next().is_none() {
            return Ok(devices.iter().map(|_| Ok(())).collect());
        }
        let names: Vec<_> = entering()
            .map(|device| (&device.name, device.gid))
            .collect();
        let mut hosts = self.fabric.enter_remotes(&names, &self.name)?.into_iter();
        let mut enter = |device: &RemoteDevice| match same.contains(&device.gid) {
            true => Ok(()),
            false => {
                let host = hosts.next().expect("there is one for each name");
                host.and_then(|host| self.take_place(device, host))
            }
        };
        Ok(devices.iter().map(&mut enter).collect())
    }

    /// Stands for a device, as which `host` has entered the fabric.
    fn take_place(&mut self, device: &RemoteDevice, host: Host) -> Result<(), FabricError> {
        let number = self.devices.vacant_key();
        let neighbour = self.devices.iter().next().map(|(_, neighbour)| neighbour);
        let mut stand_in = StandIn::new(&self.fabric, device, host, number, neighbour)?;
        stand_in.epoch = self.epoch;
        self.devices.insert(stand_in);
        self.by_gid.insert(device.gid, number);
        Ok(())
    }

    /// A device is gone: requests that wait for its answer fail as on a device without the queue pair.
    pub fn leave(&mut self, gid: Gid) {
        self.leave_if(|other| *other == gid);
    }

    /// As [`RemoteMachine::leave`], for all devices that `is_gone` selects.
    pub fn leave_if(&mut self, is_gone: impl Fn(&Gid) -> bool) {
        let gone: Vec<(Gid, usize)> = self.by_gid.extract_if(|gid, _| is_gone(gid)).collect();
        if gone.is_empty() {
            return;
        }
        for (gid, device) in &gone {
            let status = self.devices[*device].nobody();
            self.fail(status, |held| held.device == *device);
            self.forget_copies_of(*gid);
        }
        let devices: HashSet<usize> = gone.iter().map(|(_, device)| *device).collect();
        self.pulls.retain(|pull| !devices.contains(&pull.device));
        self.parked.retain(|to, _| !devices.contains(&to.device));
        self.kept.retain(|(of, ..), _| !devices.contains(of));
        self.busy.retain(|device| !devices.contains(device));
        let stand_ins = devices
            .into_iter()
            .map(|device| self.devices.remove(device));
        StandIn::leave_all(&self.fabric, stand_ins);
    }

    /// The connection is lost, with all that was on it: what the machine has asked is not answered any more.
    /// What was asked of the machine waits until [`RemoteMachine::give_up_lost`].
    pub fn disconnect(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        for (_, device) in &mut self.devices {
            device.epoch = self.epoch;
        }
        // Local processes may have sent data for these. Their names do not come back before that was looked at.
        self.pulls.retain(|_| false);
        self.kept.clear();
        // What was asked of the machine and has ended is among the parked records: who asked is still to be told.
        self.parked
            .retain(|_, parked| parked.record.kind() == Kind::Outcome);
        self.replies.clear();
    }

    /// What was asked of the machine over connections that are lost fails: the machine does not answer. Whether
    /// it was done there, nobody knows.
    pub fn give_up_lost(&mut self) {
        let epoch = self.epoch;
        self.fail(Status::LocalUnresponsiveRemote, |held| held.epoch != epoch);
    }

    fn fail(&mut self, status: Status, chosen: impl Fn(&Held) -> bool) {
        for held in self.held.extract(chosen) {
            self.end(&held, status);
        }
    }

    /// Tells a local process what became of its request.
    fn end(&mut self, held: &Held, status: Status) {
        if !held.is_kept {
            return self.devices[held.device].answer(&held.origin, Answer::Status(status));
        }
        let Origin { from, incoming, .. } = held.origin;
        self.deliver_or_park(
            held.device,
            To::Process(from),
            Record::outcome(incoming.number, status),
            Token::Nobody,
            &[],
        );
    }

    // --- from local processes to the machine ---

    /// The devices of this machine that the other one knows. Records of others wait.
    pub fn admit(&mut self, devices: impl Iterator<Item = Gid>) {
        self.admitted.clear();
        self.admitted.extend(devices);
    }

    /// Appends parcels for the machine: records of local processes, as far as `uptake` says, and answers.
    /// Returns whether there was anything to do.
    pub fn collect(&mut self, uptake: Uptake, parcels: &mut Vec<u8>) -> bool {
        let mut busy = !self.replies.is_empty();
        parcels.append(&mut self.replies);
        busy |= self.send_parked();
        busy |= self.answer_doorbells();
        for position in 0..self.busy.len() {
            let index = self.busy[position];
            busy |= self.take_answers(index, parcels);
            busy |= self.take_records(index, uptake, parcels);
        }
        if matches!(uptake, Uptake::Until(limit) if parcels.len() >= limit) {
            // Another one is the first next time.
            self.busy.rotate_left(1);
        }
        busy
    }

    /// Looks at the doorbells of devices where local processes have rung. Returns whether there were any.
    fn answer_doorbells(&mut self) -> bool {
        let Some(board) = self.board().filter(|board| board.is_rung()) else {
            return false;
        };
        let mut any = false;
        board.take(|line| {
            for index in (line..self.devices.capacity()).step_by(LINES) {
                if self.devices.contains(index) {
                    let is_known = |sender: Gid| self.admitted.contains(&sender);
                    any |= self.devices[index].answer_doorbells(is_known);
                    self.list_if_busy(index);
                }
            }
        });
        any
    }

    /// What local processes wake; `None` if the machine has no device.
    fn board(&self) -> Option<Arc<Switchboard>> {
        let (_, device) = self.devices.iter().next()?;
        Some(Arc::clone(device.board()))
    }

    fn list_if_busy(&mut self, index: usize) {
        let device = &mut self.devices[index];
        if device.is_busy() && !device.is_listed {
            device.is_listed = true;
            self.busy.push(index);
        }
    }

    fn take_records(&mut self, index: usize, uptake: Uptake, parcels: &mut Vec<u8>) -> bool {
        let mut busy = false;
        // From the end: the ring may go, and its slot leaves the list.
        for place in (0..self.devices[index].polled()).rev() {
            let is_known = |sender: Gid| self.admitted.contains(&sender);
            if uptake != Uptake::Unresponsive
                && !self.devices[index].sender(place).is_some_and(is_known)
            {
                continue;
            }
            for _ in 0..RECORDS_PER_TURN {
                let is_enough = match uptake {
                    Uptake::Until(limit) => parcels.len() >= limit,
                    Uptake::Nothing => true,
                    Uptake::Unresponsive => false,
                };
                if is_enough {
                    return busy;
                }
                let Some(origin) = self.devices[index].take(place) else {
                    break;
                };
                busy = true;
                match uptake {
                    Uptake::Unresponsive => self.refuse(index, &origin),
                    _ => self.carry(index, origin, parcels),
                }
            }
        }
        busy
    }

    /// Answers a record that the machine will not see.
    fn refuse(&mut self, index: usize, origin: &Origin) {
        let answer = match origin.incoming.record.kind() {
            Kind::Outcome => Answer::Status(Status::Ok),
            Kind::Direct => Answer::UseRings,
            _ => Answer::Status(Status::LocalUnresponsiveRemote),
        };
        self.devices[index].answer(origin, answer);
    }

    fn carry(&mut self, index: usize, origin: Origin, parcels: &mut Vec<u8>) {
        let record = origin.incoming.record;
        match record.kind() {
            // Rings skip the padding.
            Kind::Pad => {}
            Kind::Direct => self.devices[index].answer(&origin, Answer::UseRings),
            Kind::Data | Kind::Pull => self.carry_request(index, origin, parcels),
            Kind::ReadData => {
                let pull = self.pulls.get_mut(record.sequence());
                let is_its = |pull: &&mut Pull| pull.by == Some(origin.from);
                let Some(read) = pull.filter(is_its).map(|pull| pull.name) else {
                    let status = Answer::Status(Status::LocalInvalidLkey);
                    return self.devices[index].answer(&origin, status);
                };
                let name = self.hold(index, origin);
                let length = record.payload() as usize;
                let fill = |into: &mut [u8]| self.devices[index].read_data(&origin, into);
                parcel::append_read_data(parcels, [name, read], record.offset(), length, fill);
            }
            Kind::Outcome => {
                let number = u64::from(record.sequence()) | u64::from(record.offset()) << 32;
                let key = (index, origin.from, number);
                let mut kept = self.kept.remove(&key);
                if kept.is_none() {
                    // The process said that it keeps the request before it sent the outcome, but that may not
                    // have been looked at.
                    self.take_answers(index, parcels);
                    kept = self.kept.remove(&key);
                }
                if let Some(Kept { name, pull }) = kept {
                    if let Some(pull) = pull {
                        self.pulls.remove(pull);
                    }
                    let code = record.header().immediate.unwrap_or(u32::MAX);
                    let code = u8::try_from(code).unwrap_or(u8::MAX);
                    parcel::append_outcome(parcels, name, code);
                }
                self.devices[index].answer(&origin, Answer::Status(Status::Ok));
            }
        }
    }

    fn carry_request(&mut self, index: usize, origin: Origin, parcels: &mut Vec<u8>) {
        let record = origin.incoming.record;
        let is_datagram = record.operation() == Operation::Datagram;
        let name = match is_datagram {
            true => 0,
            false => self.hold(index, origin),
        };
        let due = match record.due() {
            0 => 0,
            due => Duration::from_nanos(due)
                .saturating_sub(monotonic_now())
                .as_nanos()
                .max(1) as u64,
        };
        let fields = record.due_at(due).fields();
        let device = &mut self.devices[index];
        let gids = [origin.from.gid, device.gid()];
        let fill = |into: &mut [u8]| device.read_data(&origin, into);
        parcel::append_request(
            parcels,
            name,
            gids,
            &fields,
            record.payload() as usize,
            fill,
        );
        if is_datagram {
            // Nobody is told what becomes of it.
            self.devices[index].answer(&origin, Answer::Status(Status::Ok));
        }
    }

    fn hold(&mut self, device: usize, origin: Origin) -> u64 {
        self.held.insert(Held {
            device,
            origin,
            is_kept: false,
            epoch: self.epoch,
        })
    }

    /// Takes the answers of local processes to requests of the machine.
    fn take_answers(&mut self, index: usize, parcels: &mut Vec<u8>) -> bool {
        let RemoteMachine {
            devices,
            pulls,
            kept,
            ..
        } = self;
        devices[index].reap(|process, number, token, answer| match token {
            Token::Nobody => {}
            Token::ReadData { name } => parcel::append_answer(parcels, name, answer.to_code()),
            Token::Request { name, pull } => {
                match (answer, pull) {
                    (Answer::Deferred, _) => {
                        kept.insert((index, process, number), Kept { name, pull });
                    }
                    (_, Some(pull)) => drop(pulls.remove(pull)),
                    _ => {}
                }
                parcel::append_answer(parcels, name, answer.to_code());
            }
        })
    }

    // --- from the machine to local processes ---

    /// Takes a parcel of the machine: a whole frame.
    ///
    /// # Errors
    /// The frame is none that a bridge sends. The machine is not to be believed any more.
    pub fn deliver(&mut self, frame: &[u8]) -> Result<(), BadParcel> {
        let bad = |field| BadParcel {
            kind: frame.get(4).copied().unwrap_or(0),
            length: frame.len(),
            field,
        };
        match Parcel::parse(frame)? {
            Parcel::Request {
                name,
                from,
                to,
                fields,
                data,
            } => {
                let record = Record::from_fields(&fields).map_err(|error| bad(error.field))?;
                if !matches!(record.kind(), Kind::Data | Kind::Pull)
                    || record.payload() as usize != data.len()
                {
                    return Err(bad("record"));
                }
                // Nobody could be told that the read is over.
                if record.kind() == Kind::Pull && name == 0 {
                    return Err(bad("name"));
                }
                self.take_request(name, from, to, record, data);
            }
            Parcel::ReadData {
                name,
                read,
                offset,
                data,
            } => self.take_read_data(name, read, offset, data),
            Parcel::Answer { name, code } => self.take_answer(name, Answer::from_code(code)),
            Parcel::Outcome { name, code } => {
                if self.held.get_mut(name).is_some_and(|held| held.is_kept)
                    && let Some(held) = self.held.remove(name)
                {
                    let status = Status::from_code(code).unwrap_or(Status::RemoteBadStatus);
                    self.end(&held, status);
                }
            }
        }
        Ok(())
    }

    fn take_request(&mut self, name: u64, from: Gid, to: Gid, record: Record, data: &[u8]) {
        let Some(device) = self.by_gid.get(&from).copied() else {
            return self.reply(name, Status::LocalUnreachableRemote);
        };
        let mut record = match record.due() {
            0 => record,
            after => {
                let due = monotonic_now().saturating_add(Duration::from_nanos(after));
                record.due_at(u64::try_from(due.as_nanos()).unwrap_or(u64::MAX))
            }
        };
        let pull = (record.kind() == Kind::Pull).then(|| {
            self.pulls.insert(Pull {
                name,
                device,
                by: None,
            })
        });
        if let Some(pull) = pull {
            // Data for the read is taken from the process that serves it only.
            record = record.at(pull);
        }
        let token = match name {
            0 => Token::Nobody,
            name => Token::Request { name, pull },
        };
        let to = To::QueuePair(to, record.header().destination_qpn);
        self.deliver_or_park(device, to, record, token, data);
    }

    fn take_read_data(&mut self, name: u64, read: u64, offset: u32, data: &[u8]) {
        let held = self.held.get_mut(read);
        let fits = |held: &&mut Held| {
            let record = &held.origin.incoming.record;
            let end = u64::from(offset) + data.len() as u64;
            record.kind() == Kind::Pull && end <= u64::from(record.request_length())
        };
        let Some(held) = held.filter(fits) else {
            return self.reply(name, Status::RemoteAbort);
        };
        let (device, Origin { from, incoming, .. }) = (held.device, held.origin);
        let header = RequestHeader {
            operation: Operation::RdmaRead,
            source_qpn: Qpn(0),
            destination_qpn: Qpn(0),
            qkey: Qkey(0),
            // The initiator's name for the read.
            sequence: incoming.record.offset(),
            retries: 0,
            immediate: None,
            remote: Some(RemoteRange { address: 0, key: 0 }),
            length: incoming.record.request_length(),
        };
        let record = Record::whole(Kind::ReadData, &header, data.len() as u32).at(offset);
        let to = To::Process(from);
        self.deliver_or_park(device, to, record, Token::ReadData { name }, data);
    }

    fn take_answer(&mut self, name: u64, answer: Answer) {
        if answer == Answer::Deferred {
            if let Some(held) = self.held.get_mut(name).filter(|held| !held.is_kept) {
                held.is_kept = true;
                let (device, origin) = (held.device, held.origin);
                self.devices[device].answer(&origin, answer);
            }
        } else if self.held.get_mut(name).is_some_and(|held| !held.is_kept)
            && let Some(held) = self.held.remove(name)
        {
            self.devices[held.device].answer(&held.origin, answer);
        }
    }

    /// Answers a request of the machine that no local process gets to see.
    fn reply(&mut self, name: u64, status: Status) {
        if name != 0 {
            parcel::append_answer(&mut self.replies, name, status.code());
        }
    }

    fn deliver_or_park(
        &mut self,
        device: usize,
        to: To,
        record: Record,
        token: Token,
        data: &[u8],
    ) {
        let destination = Destination { device, to };
        let sent = match self.parked.wait_for(&destination) {
            true => Err(Unsent::Busy),
            false => self.try_send(&destination, &record, token, data),
        };
        match sent {
            Ok(()) => {}
            Err(Unsent::Failed(status)) => self.undelivered(token, status),
            Err(Unsent::Busy) => self.parked.push(destination, record, token, data),
        }
    }

    fn try_send(
        &mut self,
        &Destination { device, to }: &Destination,
        record: &Record,
        token: Token,
        data: &[u8],
    ) -> Result<(), Unsent> {
        let stand_in = &mut self.devices[device];
        let process = match to {
            To::QueuePair(gid, _) => stand_in.send(gid, record, token, data)?,
            To::Process(process) => stand_in.send_to(process, record, token, data)?,
        };
        self.list_if_busy(device);
        // Only that process may answer a read.
        if let Token::Request {
            pull: Some(pull), ..
        } = token
            && let Some(pull) = self.pulls.get_mut(pull)
        {
            pull.by = Some(process);
        }
        Ok(())
    }

    fn undelivered(&mut self, token: Token, status: Status) {
        let status = match token {
            Token::ReadData { .. } => Status::RemoteAbort,
            Token::Request { .. } | Token::Nobody => status,
        };
        self.answered(token, Answer::Status(status));
    }

    /// Tells the machine the last answer to what it sent.
    fn answered(&mut self, token: Token, answer: Answer) {
        let name = match token {
            Token::Request { name, pull } => {
                if let Some(pull) = pull {
                    self.pulls.remove(pull);
                }
                name
            }
            Token::ReadData { name } => name,
            Token::Nobody => return,
        };
        if name != 0 {
            parcel::append_answer(&mut self.replies, name, answer.to_code());
        }
    }

    fn send_parked(&mut self) -> bool {
        let mut waiting = std::mem::take(&mut self.parked);
        let any = waiting.send(|to, parked| {
            let Parked { token, .. } = *parked;
            match self.try_send(to, &parked.record, token, &parked.data) {
                Ok(()) => true,
                Err(Unsent::Failed(status)) => {
                    self.undelivered(token, status);
                    true
                }
                Err(Unsent::Busy) => false,
            }
        });
        self.parked = waiting;
        any
    }

    /// Whether so much waits for room in the rings of local processes that no more parcels should be brought for now.
    pub fn is_overloaded(&self) -> bool {
        self.parked.bytes() > MOST_PARKED
    }

    /// Whether anything waits for room in the rings of local processes.
    pub fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// Whether parcels wait that [`RemoteMachine::collect`] has not been asked for.
    pub fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Records of local processes that the machine has not answered.
    pub fn unanswered(&self) -> usize {
        self.held.len()
    }

    /// Gives up rings of processes that are gone. To be called now and then: it asks the system about each process.
    pub fn check_peers(&mut self) {
        for index in 0..self.devices.capacity() {
            if !self.devices.contains(index) {
                continue;
            }
            let status = self.devices[index].nobody();
            let (mut ended, mut gone) = (Vec::new(), Vec::new());
            let is_known = |sender: Gid| self.admitted.contains(&sender);
            self.devices[index].check_peers(
                is_known,
                |token, answer| ended.push((token, answer)),
                |peer| gone.push(peer),
            );
            for peer in gone {
                let kept = self
                    .kept
                    .extract_if(|(of, process, _), _| *of == index && *process == peer);
                let kept: Vec<Kept> = kept.map(|(_, kept)| kept).collect();
                for Kept { name, pull } in kept {
                    if let Some(pull) = pull {
                        self.pulls.remove(pull);
                    }
                    parcel::append_outcome(&mut self.replies, name, status.code());
                }
            }
            for (token, answer) in ended {
                match answer {
                    // Nobody is left to send what was announced.
                    None | Some(Answer::Deferred) => self.undelivered(token, status),
                    Some(answer) => self.answered(token, answer),
                }
            }
        }
    }

    /// Whether records of devices wait that are not [admitted](RemoteMachine::admit).
    pub fn has_strangers(&self) -> bool {
        self.busy_devices().any(|device| {
            let mut senders = (0..device.polled()).filter_map(|place| device.sender(place));
            senders.any(|sender| !self.admitted.contains(&sender))
        })
    }

    fn busy_devices(&self) -> impl Iterator<Item = &StandIn> {
        self.busy.iter().map(|index| &self.devices[*index])
    }

    // --- sleep ---

    /// Interrupts [`Sleep`].
    pub fn alarm(&self) -> Alarm {
        Alarm::new(&self.alarm)
    }

    /// Has local processes wake whoever sleeps next. `None` if something has come meanwhile, or somebody has rung the
    /// alarm: then nobody may sleep.
    pub fn prepare_to_sleep(&mut self, uptake: Uptake, parcels: &mut Vec<u8>) -> Option<Sleep> {
        let rung = self.alarm.load(Ordering::Acquire);
        if std::mem::replace(&mut self.heard, rung) != rung {
            return None;
        }
        let sleep = Sleep::announce(self.board(), &self.alarm, rung);
        let mut is_quiet = true;
        let devices = &mut self.devices;
        self.busy.retain(|index| {
            let device = &mut devices[*index];
            is_quiet &= device.prepare_to_sleep();
            device.is_listed = device.is_busy();
            device.is_listed
        });
        // What waits in rings and may not be taken is no reason to stay awake.
        let may_wait = uptake == Uptake::Nothing || self.has_strangers();
        (!self.collect(uptake, parcels) && (is_quiet || may_wait)).then_some(sleep)
    }

    /// The longest time that nobody should sleep beyond; `None`: there is nothing to be done but what somebody
    /// wakes for.
    pub fn longest_sleep(&self) -> Option<Duration> {
        const PARKED: Duration = Duration::from_millis(1);
        const WAITING: Duration = Duration::from_millis(20);
        let is_waiting = || self.busy_devices().any(StandIn::is_waiting);
        if self.has_parked() {
            Some(PARKED)
        } else if !self.kept.is_empty() || is_waiting() || self.has_strangers() {
            Some(WAITING)
        } else {
            None
        }
    }
}
