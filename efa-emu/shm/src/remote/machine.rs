//! Another machine: its devices as members of this fabric, and the outstanding requests.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use efa_core::address::Gid;
use efa_core::nic::Status;
use slab::Slab;

use super::backlog::{Backlog, RecordTarget};
use super::names::{NameTable, NumberTable};
use super::proxy::{DeviceProxy, Origin, RemoteDevice, Token};
use super::rules;
use crate::error::FabricError;
use crate::fabric::directory::Fabric;
use crate::fabric::host::Host;
use crate::transport::doorbell_page::DoorbellPage;
use crate::transport::segment::Address;
use efa_lock_free::record::{Answer, Record, RecordKind};

/// A record of a local process that the other machine has not answered, or has deferred.
#[derive(Debug)]
pub(super) struct UnansweredRecord {
    pub(super) device: usize,
    pub(super) origin: Origin,
    pub(super) is_deferred: bool,
    /// The connection over which the record was sent.
    pub(super) epoch: u32,
}

/// A read by a process of the machine that a local process serves.
#[derive(Debug)]
pub(super) struct Pull {
    /// The machine's name for it.
    pub(super) name: u64,
    pub(super) device: usize,
    pub(super) by: Option<Address>,
}

/// A request of the machine that a local process defers: the machine's name for it, and the local
/// name if it is a read.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeferredRequest {
    pub(super) name: u64,
    pub(super) pull: Option<u32>,
}

/// How records of local processes are handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceivePolicy {
    /// They are read while fewer than this number of bytes of messages are ready.
    Until(usize),
    /// They stay in their rings.
    Nothing,
    /// They are answered like requests to an unresponsive machine.
    Unresponsive,
}

/// The devices of another machine as members of this fabric.
pub struct RemoteMachine {
    pub(super) fabric: Fabric,
    pub(super) name: String,
    pub(super) devices: Slab<DeviceProxy>,
    /// Devices whose rings must be polled.
    pub(super) busy: Vec<usize>,
    pub(super) by_gid: HashMap<Gid, usize>,
    pub(super) unanswered: NameTable<UnansweredRecord>,
    pub(super) pulls: NumberTable<Pull>,
    /// Requests of the machine that a local process defers, by proxy, process and number of the
    /// record.
    pub(super) deferred: HashMap<(usize, Address, u64), DeferredRequest>,
    pub(super) backlog: Backlog,
    /// Answers of this module to requests of the machine.
    pub(super) replies: Vec<u8>,
    pub(super) epoch: u32,
    /// The devices whose records are sent to the machine.
    pub(super) admitted: HashSet<Gid>,
    /// The machine's rules of faults.
    pub(super) copies: Vec<rules::RuleCopy>,
    pub(super) alarm: Arc<AtomicU32>,
    /// The alarm's value at the last complete check for work.
    pub(super) heard: u32,
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
            unanswered: NameTable::default(),
            pulls: NumberTable::default(),
            deferred: HashMap::new(),
            backlog: Backlog::default(),
            replies: Vec::new(),
            epoch: 0,
            admitted: HashSet::new(),
            copies: Vec::new(),
            alarm: Arc::default(),
            heard: 0,
        }
    }

    /// Adds a device of the machine to the fabric. If it is a member already, its network options
    /// are updated.
    ///
    /// # Errors
    /// Another member has this name or GID.
    pub fn enter(&mut self, device: &RemoteDevice) -> Result<(), FabricError> {
        let entered = self.enter_all(std::slice::from_ref(device))?;
        entered.into_iter().collect()
    }

    /// As [`RemoteMachine::enter`], for several devices, in about the time of one. Returns the
    /// result for each.
    ///
    /// # Errors
    /// No device can enter: the fabric cannot be changed.
    pub fn enter_all(
        &mut self,
        devices: &[RemoteDevice],
    ) -> Result<Vec<Result<(), FabricError>>, FabricError> {
        let (mut same, mut renamed) = (HashSet::new(), HashSet::new());
        for device in devices {
            let Some(index) = self.by_gid.get(&device.gid) else {
                continue;
            };
            let proxy = &self.devices[*index];
            if proxy.is(&device.name) {
                proxy.declare_network(&device.network);
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

    /// Adds the proxy of a device that has entered the fabric as `host`.
    fn take_place(&mut self, device: &RemoteDevice, host: Host) -> Result<(), FabricError> {
        let number = self.devices.vacant_key();
        let neighbour = self.devices.iter().next().map(|(_, neighbour)| neighbour);
        let mut proxy = DeviceProxy::new(&self.fabric, device, host, number, neighbour)?;
        proxy.epoch = self.epoch;
        self.devices.insert(proxy);
        self.by_gid.insert(device.gid, number);
        Ok(())
    }

    /// Removes a device: requests that wait for its answer fail like requests to a missing queue
    /// pair.
    pub fn leave(&mut self, gid: Gid) {
        self.leave_if(|other| *other == gid);
    }

    /// As [`RemoteMachine::leave`], for all devices for which `is_gone` returns true.
    pub fn leave_if(&mut self, is_gone: impl Fn(&Gid) -> bool) {
        let gone: Vec<(Gid, usize)> = self.by_gid.extract_if(|gid, _| is_gone(gid)).collect();
        if gone.is_empty() {
            return;
        }
        for (gid, device) in &gone {
            let status = self.devices[*device].nobody();
            self.fail(status, |record| record.device == *device);
            self.forget_copies_of(*gid);
        }
        let devices: HashSet<usize> = gone.iter().map(|(_, device)| *device).collect();
        self.pulls.retain(|pull| !devices.contains(&pull.device));
        self.backlog.retain(|to, _| !devices.contains(&to.device));
        self.deferred.retain(|(of, ..), _| !devices.contains(of));
        self.busy.retain(|device| !devices.contains(device));
        let proxies = devices
            .into_iter()
            .map(|device| self.devices.remove(device));
        DeviceProxy::leave_all(&self.fabric, proxies);
    }

    /// The connection is lost: requests of the machine are not answered any more. Requests to the
    /// machine wait until [`RemoteMachine::give_up_lost`].
    pub fn disconnect(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        for (_, device) in &mut self.devices {
            device.epoch = self.epoch;
        }
        // Local processes may already have sent data for these reads. Their names must not be
        // reused before that data was handled.
        self.pulls.retain(|_| false);
        self.deferred.clear();
        // Outcomes of finished requests stay in the backlog until the initiators have received
        // them.
        self.backlog
            .retain(|_, waiting| waiting.record.kind() == RecordKind::Outcome);
        self.replies.clear();
    }

    /// Fails requests that were sent over lost connections as unresponsive. It is unknown whether
    /// the machine executed them.
    pub fn give_up_lost(&mut self) {
        let epoch = self.epoch;
        self.fail(Status::LocalUnresponsiveRemote, |record| {
            record.epoch != epoch
        });
    }

    fn fail(&mut self, status: Status, chosen: impl Fn(&UnansweredRecord) -> bool) {
        for record in self.unanswered.extract(chosen) {
            self.end(&record, status);
        }
    }

    /// Reports the outcome of a request to the local process.
    pub(super) fn end(&mut self, record: &UnansweredRecord, status: Status) {
        if !record.is_deferred {
            return self.devices[record.device].answer(&record.origin, Answer::Status(status));
        }
        let Origin { from, incoming, .. } = record.origin;
        self.deliver_or_queue(
            record.device,
            RecordTarget::Process(from),
            Record::outcome(incoming.number, status),
            Token::Nobody,
            &[],
        );
    }

    // --- from local processes to the machine ---

    /// Sets the local devices that were announced to the other machine. Records of other devices
    /// wait.
    pub fn admit(&mut self, devices: impl Iterator<Item = Gid>) {
        self.admitted.clear();
        self.admitted.extend(devices);
    }

    /// The doorbell page that local processes ring; `None` if the machine has no device.
    pub(super) fn doorbells(&self) -> Option<Arc<DoorbellPage>> {
        let (_, device) = self.devices.iter().next()?;
        Some(Arc::clone(device.doorbells()))
    }

    pub(super) fn list_if_busy(&mut self, index: usize) {
        let device = &mut self.devices[index];
        if device.is_busy() && !device.is_listed {
            device.is_listed = true;
            self.busy.push(index);
        }
    }

    pub(super) fn busy_devices(&self) -> impl Iterator<Item = &DeviceProxy> {
        self.busy.iter().map(|index| &self.devices[*index])
    }
}
