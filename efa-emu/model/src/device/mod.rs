//! The hardware half of the device: objects, keys, queues and the rules between them.
//!
//! [`Device`] does no I/O, starts no thread and reads no clock; times are `Duration`s since a
//! start that the owner chooses. It is driven from four sides:
//!
//! * verbs that manage objects (`create_qp`, `register_memory`, ...) are calls;
//! * work arrives through rings in shared memory ([`queue`]); a doorbell tells the device to look;
//! * requests leave through a [`Link`](crate::link::Link) in [`Device::transmit`] and their answers
//!   come back in [`Device::complete`];
//! * requests of peers arrive in [`Device::deliver`].
//!
//! What a client writes into rings is not trusted: an invalid work request fails, and an invalid
//! queue fails its queue pair.

mod address_book;
mod backlog;
mod comp_counter;
mod cq_table;
mod error;
mod event;
mod flight;
mod flush;
mod initiator;
mod look_ahead;
mod prepare;
mod qp_table;
mod qpn;
pub mod queue;
mod queue_pair;
mod regions;
mod responder;
mod staged;

use std::sync::Arc;

use efa_core::address::{Ahn, Gid, Qpn};
use efa_core::nic::{Access, DeviceCaps};
use slab::Slab;

pub use crate::counters::{Command, CommandCounters, Counters, Statistics, TroubleCounters};
pub use crate::port::{LinkSpeed, NoSuchSpeed, PortLink};
pub use comp_counter::{CompCounter, CountedOps, CounterId, CounterValue};
pub use error::Error;
pub use event::DeviceEvent;
pub use look_ahead::Nearness;
pub use qpn::QpnAllocator;
pub use qpn::QpnRange;
pub use queue_pair::{
    QpAttributes, QpChange, QpConfig, QpRings, QpState, RNR_RETRY_INFINITE, Service,
};
pub use regions::{Lkey, MemoryRegion, RegionKeys, Rkey};
pub use responder::GRH_LENGTH;
pub use staged::{QueueError, QueueKind};

use crate::profile::Profile;
use address_book::AddressBook;
use comp_counter::CounterTable;
use cq_table::CqTable;
use initiator::Initiator;
use qp_table::QpTable;
use queue::{CompletionRing, ReceiveRing, RequestIdSize, SendRing};
use queue_pair::QueuePair;
use regions::RegionTable;

/// A protection domain: memory, address handles and queue pairs work together only inside one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PdId(pub u32);

/// A completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CqId(pub u32);

/// One opened device. See the [module documentation](self).
pub struct Device {
    profile: Profile,
    gid: Gid,
    /// Objects that use each protection domain.
    pds: Slab<u32>,
    regions: RegionTable,
    book: AddressBook,
    cqs: CqTable,
    qps: QpTable,
    initiator: Initiator,
    counters: Counters,
    /// But for overruns, which the completion queues count.
    trouble: TroubleCounters,
    commands: CommandCounters,
    /// The queue pair that received last. [`Device::look_ahead`] takes it.
    last_receiver: Option<Qpn>,
    comp_counters: CounterTable,
    /// The device was removed: it does nothing any more but take back what it gave.
    removed: bool,
    port: PortLink,
}

impl Device {
    /// Makes a device of the given generation whose port has this GID.
    pub fn new(profile: Profile, gid: Gid) -> Self {
        Device {
            gid,
            pds: Slab::new(),
            regions: RegionTable::new(profile.max_mr),
            book: AddressBook::new(profile.max_ah),
            cqs: CqTable::default(),
            qps: QpTable::new(),
            initiator: Initiator::default(),
            counters: Counters::default(),
            trouble: TroubleCounters::default(),
            commands: CommandCounters::default(),
            last_receiver: None,
            comp_counters: CounterTable::default(),
            removed: false,
            port: PortLink::default(),
            profile,
        }
    }

    /// The device's generation.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The port's GID.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// The counters of the port since the device was opened.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The counters of the port and of commands since the device was opened.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            commands: self.commands,
            port: self.counters,
            trouble: TroubleCounters {
                cq_overruns: self.cqs.overruns(),
                ..self.trouble
            },
        }
    }

    /// Carries out a command and counts it. The device's methods that are commands call this
    /// themselves. Other callers need it for commands that they refuse before the device sees them.
    ///
    /// After its removal the device refuses to make anything.
    pub fn command<T, E: From<Error>>(
        &mut self,
        command: Command,
        carry_out: impl FnOnce(&mut Device) -> Result<T, E>,
    ) -> Result<T, E> {
        let result = match self.removed && command != Command::Other {
            true => Err(Error::Removed.into()),
            false => carry_out(self),
        };
        self.commands.count(command, result.is_err());
        if result.is_err() {
            tracing::debug!(gid = %self.gid, ?command, "command refused");
        }
        result
    }

    /// Makes a protection domain.
    pub fn alloc_pd(&mut self) -> Result<PdId, Error> {
        self.command(Command::AllocPd, |device| {
            if device.pds.len() >= device.profile.max_pd as usize {
                return Err(Error::Exhausted("protection domain"));
            }
            Ok(PdId(device.pds.insert(0) as u32))
        })
    }

    /// Frees a protection domain.
    ///
    /// # Errors
    /// [`Error::Busy`] while objects belong to it.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), Error> {
        self.command(Command::Other, |device| {
            match device.pds.get(pd.0 as usize) {
                None => Err(Error::not_found("protection domain", pd.0)),
                Some(0) => {
                    device.pds.remove(pd.0 as usize);
                    Ok(())
                }
                Some(_) => Err(Error::Busy("protection domain")),
            }
        })
    }

    fn check_pd(&self, pd: PdId) -> Result<(), Error> {
        if self.pds.contains(pd.0 as usize) {
            Ok(())
        } else {
            Err(Error::not_found("protection domain", pd.0))
        }
    }

    fn retain_pd(&mut self, pd: PdId) {
        if let Some(users) = self.pds.get_mut(pd.0 as usize) {
            *users += 1;
        }
    }

    fn release_pd(&mut self, pd: PdId) {
        if let Some(users) = self.pds.get_mut(pd.0 as usize) {
            *users = users.saturating_sub(1);
        }
    }

    /// Registers memory.
    ///
    /// # Errors
    /// As [`Device::check_region`], and [`Error::Exhausted`] if there are too many regions.
    pub fn register_memory(&mut self, pd: PdId, region: MemoryRegion) -> Result<RegionKeys, Error> {
        self.command(Command::RegisterMemory, |device| {
            device.check_region(pd, &region)?;
            let keys = device.regions.insert(pd, region)?;
            device.retain_pd(pd);
            Ok(keys)
        })
    }

    /// Checks whether the device can register a region of this size and kind.
    ///
    /// # Errors
    /// Remote access that the device's generation cannot do is [`Error::Unsupported`]; remote write
    /// without local write, an empty or too long region, one that wraps, and an I/O virtual address
    /// whose place in its page differs are [`Error::Invalid`]; more pages than the device has room for
    /// are [`Error::Exhausted`].
    pub fn check_region(&self, pd: PdId, region: &MemoryRegion) -> Result<(), Error> {
        const PAGE_OFFSET: u64 = Profile::PAGE - 1;
        self.check_pd(pd)?;
        let (access, profile) = (region.access, &self.profile);
        if access.contains(Access::REMOTE_READ) && !profile.caps.contains(DeviceCaps::RDMA_READ) {
            return Err(Error::Unsupported("remote read access"));
        }
        if access.contains(Access::REMOTE_WRITE) && !profile.caps.contains(DeviceCaps::RDMA_WRITE) {
            return Err(Error::Unsupported("remote write access"));
        }
        if access.contains(Access::REMOTE_WRITE) && !access.contains(Access::LOCAL_WRITE) {
            return Err(Error::invalid("access without local write", access.bits()));
        }
        if region.length == 0
            || region.length > profile.max_mr_size
            || region.address.checked_add(region.length).is_none()
            || region.iova.checked_add(region.length).is_none()
        {
            return Err(Error::invalid("region length", region.length));
        }
        if region.address & PAGE_OFFSET != region.iova & PAGE_OFFSET {
            return Err(Error::invalid("I/O virtual address", region.iova));
        }
        let pages = region.pages();
        if access.contains(Access::REMOTE_WRITE) && pages > profile.max_writable_pages {
            return Err(Error::Exhausted("page that peers may write"));
        }
        if self.regions.pages() + pages > profile.max_registered_pages {
            return Err(Error::Exhausted("registered page"));
        }
        Ok(())
    }

    /// Deregisters memory. Requests that still use the region fail.
    pub fn deregister_memory(&mut self, lkey: Lkey) -> Result<(), Error> {
        self.command(Command::Other, |device| {
            let pd = device.regions.remove(lkey)?;
            device.release_pd(pd);
            Ok(())
        })
    }

    /// Makes an address handle of a GID. All handles of one GID have the same number.
    ///
    /// # Errors
    /// [`Error::Invalid`] for the unspecified address and for multicast addresses.
    pub fn create_ah(&mut self, pd: PdId, gid: Gid) -> Result<Ahn, Error> {
        self.command(Command::CreateAh, |device| {
            device.check_pd(pd)?;
            let ahn = device.book.create(pd, gid)?;
            tracing::debug!(ahn = ahn.0, peer = %gid, "address handle made");
            device.retain_pd(pd);
            Ok(ahn)
        })
    }

    /// Destroys one handle. With the last handle of a GID its number becomes free, and requests to it
    /// that the link has not taken fail.
    pub fn destroy_ah(&mut self, pd: PdId, ahn: Ahn) -> Result<(), Error> {
        self.command(Command::Other, |device| {
            let freed = device.book.destroy(pd, ahn)?;
            device.release_pd(pd);
            if freed {
                device.abandon_backlog(ahn);
            }
            Ok(())
        })
    }

    /// The GID behind a handle number.
    pub fn query_ah(&self, ahn: Ahn) -> Result<Gid, Error> {
        self.book
            .gid(ahn)
            .ok_or_else(|| Error::not_found("address handle", ahn.0))
    }

    fn check_request_ids(&self, ids: RequestIdSize) -> Result<(), Error> {
        match (ids, self.profile.longest_request_ids()) {
            (RequestIdSize::Bits64, RequestIdSize::Bits16) => {
                Err(Error::Unsupported("64-bit request ids"))
            }
            _ => Ok(()),
        }
    }

    /// Makes a completion queue with at least `entries` entries, rounded up to a power of two.
    /// `request_ids` are the longest ids of send queues that complete there.
    pub fn create_cq(
        &mut self,
        entries: u32,
        request_ids: RequestIdSize,
    ) -> Result<(CqId, Arc<CompletionRing>), Error> {
        self.command(Command::CreateCq, |device| {
            device.check_request_ids(request_ids)?;
            if entries == 0 || entries > device.profile.max_cqe {
                return Err(Error::invalid("number of completion entries", entries));
            }
            if device.cqs.len() >= device.profile.max_cq as usize {
                return Err(Error::Exhausted("completion queue"));
            }
            let ring = Arc::new(CompletionRing::new(entries.next_power_of_two())?);
            Ok((device.cqs.insert(Arc::clone(&ring), request_ids), ring))
        })
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// [`Error::Busy`] while queue pairs use it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), Error> {
        self.command(Command::Other, |device| device.cqs.remove(cq))
    }

    /// Reads a completion queue's doorbell, which its client has written. If the doorbell asks for an
    /// event, the event is raised at once if there are entries beyond the consumer counter, and with
    /// the next entry otherwise.
    pub fn arm_cq(&mut self, cq: CqId) -> Result<(), Error> {
        self.cqs.ring(cq)
    }

    /// Returns whether the next entry of any completion queue raises an event.
    pub fn awaits_event(&self) -> bool {
        self.cqs.is_any_armed()
    }

    /// Returns whether there are events since the last [`Device::take_events`].
    #[inline]
    pub fn has_events(&self) -> bool {
        self.cqs.has_events()
    }

    /// Takes the events since the last call.
    pub fn take_events(&mut self) -> impl Iterator<Item = DeviceEvent> {
        self.cqs.events()
    }

    /// Runs `work`, then writes every completion entry that it has added a second time. This stages a
    /// fault of the device.
    pub fn duplicating<T>(&mut self, work: impl FnOnce(&mut Device) -> T) -> T {
        let before = self.completion_counters();
        let result = work(self);
        self.repeat_completions(&before);
        result
    }

    /// The counters of all completion queues, for [`Device::repeat_completions`].
    pub fn completion_counters(&self) -> Vec<(CqId, u16)> {
        self.cqs.counters()
    }

    /// Writes every completion entry that was written since the counters were taken a second time.
    pub fn repeat_completions(&mut self, since: &[(CqId, u16)]) {
        self.cqs.repeat_since(since);
    }

    /// Makes a queue pair with the number that the caller chose.
    ///
    /// # Errors
    /// [`Error::Busy`] if another queue pair has the number.
    pub fn create_qp(&mut self, qpn: Qpn, config: QpConfig) -> Result<QpRings, Error> {
        self.command(Command::CreateQp, |device| {
            device.check_pd(config.pd)?;
            if config.send_entries > device.profile.max_sq_wr {
                return Err(Error::invalid("send queue depth", config.send_entries));
            }
            if config.recv_descriptors > device.profile.max_rq_wr {
                return Err(Error::invalid(
                    "receive queue depth",
                    config.recv_descriptors,
                ));
            }
            if config.unsolicited_write_recv
                && !device
                    .profile
                    .caps
                    .contains(DeviceCaps::UNSOLICITED_WRITE_RECV)
            {
                return Err(Error::Unsupported("unsolicited write receive"));
            }
            device.check_request_ids(config.request_ids)?;
            if device.qps.get(qpn).is_some() {
                return Err(Error::Busy("queue pair number"));
            }
            if device.qps.live() >= device.profile.max_qp {
                return Err(Error::Exhausted("queue pair"));
            }
            device
                .cqs
                .check_request_ids(config.send_cq, config.request_ids)?;
            let rings = QpRings {
                send: Arc::new(SendRing::new(config.send_entries, config.wqe_size)?),
                recv: Arc::new(ReceiveRing::new(config.recv_descriptors)?),
            };
            device.cqs.attach(config.send_cq)?;
            if let Err(error) = device.cqs.attach(config.recv_cq) {
                device.cqs.detach(config.send_cq);
                return Err(error);
            }
            device.retain_pd(config.pd);
            tracing::info!(gid = %device.gid, %qpn, service = ?config.service, "queue pair made");
            device
                .qps
                .insert(qpn, QueuePair::new(config, rings.clone()));
            Ok(rings)
        })
    }

    /// Changes a queue pair's attributes and state, by the rules of the kernel driver.
    ///
    /// Changing to [`QpState::Error`] flushes all outstanding requests. Changing to
    /// [`QpState::Reset`] drops them and empties the rings.
    pub fn modify_qp(&mut self, qpn: Qpn, change: &QpChange) -> Result<(), Error> {
        self.command(Command::Other, |device| {
            // Nothing but the first step of its end.
            if change.state != Some(QpState::Reset) {
                device.check_present()?;
            }
            let rnr_settable = device.profile.caps.contains(DeviceCaps::RNR_RETRY);
            let qp = device
                .qps
                .get_mut(qpn)
                .ok_or_else(|| Error::not_found("queue pair", qpn.0))?;
            qp.change(change, rnr_settable)?;
            match change.state {
                Some(QpState::Reset) => {
                    device.forget_requests(qpn);
                    device.reset_queues(qpn);
                }
                Some(QpState::Error) => device.flush(qpn),
                Some(QpState::ReadyToSend) => device.look_at_posted(qpn)?,
                _ => {}
            }
            Ok(())
        })
    }

    fn reset_queues(&mut self, qpn: Qpn) {
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.rings.send.doorbell().write(0);
            if let Some(page) = qp.rings.send.direct_doorbell() {
                page.doorbell().write(0);
                qp.rings.send.clear();
            }
            qp.rings.recv.doorbell().write(0);
            qp.send.restart();
            qp.recv = Default::default();
            qp.broken = false;
        }
    }

    /// A queue pair's attributes.
    pub fn query_qp(&self, qpn: Qpn) -> Result<QpAttributes, Error> {
        self.check_present()?;
        self.qps
            .get(qpn)
            .map(QueuePair::attributes)
            .ok_or_else(|| Error::not_found("queue pair", qpn.0))
    }

    /// Removes the device: all queue pairs fail, and what is outstanding is flushed. What comes from now on is
    /// flushed or refused; objects can still be ended.
    pub fn remove(&mut self) {
        if self.removed {
            return;
        }
        let all: Vec<_> = self.qps.numbers().collect();
        for qpn in all {
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.state = QpState::Error;
                self.flush(qpn);
            }
        }
        self.removed = true;
        self.cqs.raise(DeviceEvent::Fatal);
    }

    /// Returns [`Error::Removed`] after [`Device::remove`].
    pub fn check_present(&self) -> Result<(), Error> {
        match self.removed {
            true => Err(Error::Removed),
            false => Ok(()),
        }
    }

    /// Sets the link of the port, and raises events of what has changed.
    pub fn set_port(&mut self, port: PortLink) {
        let before = std::mem::replace(&mut self.port, port);
        if port.is_down != before.is_down {
            self.cqs.raise(match port.is_down {
                true => DeviceEvent::PortError,
                false => DeviceEvent::PortActive,
            });
        }
        if port.speed != before.speed {
            self.cqs.raise(DeviceEvent::SpeedChange);
        }
    }

    /// The link of the port.
    pub fn port(&self) -> PortLink {
        self.port
    }

    /// Destroys a queue pair. Its outstanding requests are dropped: they write no completions, and
    /// answers that arrive later are ignored.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), Error> {
        self.command(Command::Other, |device| {
            let qp = device
                .qps
                .remove(qpn)
                .ok_or_else(|| Error::not_found("queue pair", qpn.0))?;
            device.cqs.detach(qp.config.send_cq);
            device.cqs.detach(qp.config.recv_cq);
            device.release_pd(qp.config.pd);
            device.initiator.remove_qp(qpn);
            device.detach_counters(qpn);
            device.forget_requests(qpn);
            Ok(())
        })
    }

    /// The send queue of a queue pair.
    pub fn send_ring(&self, qpn: Qpn) -> Option<&Arc<SendRing>> {
        Some(&self.qps.get(qpn)?.rings.send)
    }

    /// The memory of a completion queue.
    pub fn completion_ring(&self, cq: CqId) -> Option<&Arc<CompletionRing>> {
        self.cqs.direct_ring(cq)
    }

    /// The counter of the next entry of a completion queue.
    pub fn next_completion(&self, cq: CqId) -> Option<u16> {
        self.cqs.producer(cq)
    }

    /// Sets whether [`Device::look_at_watched`] reads this queue pair's doorbells. It has to if the
    /// client writes them without a call.
    pub fn watch_qp(&mut self, qpn: Qpn, watched: bool) -> Result<(), Error> {
        let qp = self
            .qps
            .get_mut(qpn)
            .ok_or_else(|| Error::not_found("queue pair", qpn.0))?;
        if watched {
            let page = qp.rings.send.make_direct_doorbell()?;
            qp.send.rung = page.doorbell().read() as u16;
        }
        qp.watched = watched;
        self.initiator.watch(qpn, watched);
        Ok(())
    }

    /// As [`Device::watch_qp`], for a completion queue's doorbell.
    pub fn watch_cq(&mut self, cq: CqId, watched: bool) -> Result<(), Error> {
        self.cqs.set_watched(cq, watched)
    }
}
