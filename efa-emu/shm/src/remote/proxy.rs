//! A device of another machine as a member of this fabric: its rings from and to local processes.

use std::sync::Arc;

use efa_core::address::Gid;
use efa_core::nic::Status;
use slab::Slab;

use crate::error::FabricError;
use crate::fabric::directory::Fabric;
use crate::fabric::host::Host;
use crate::identity::config::NetworkOptions;
use crate::identity::device_name::DeviceName;
use crate::link::outbound::routes::{NoRoute, OutgoingRing, Routes};
use crate::link::peer::{Peer, Peers, refuse_slot};
use crate::process::shared::SharedMemory;
use crate::transport::doorbell_page::{self, DoorbellLine, DoorbellPage, LINES};
use crate::transport::ring::{Consumer, Producer};
use crate::transport::segment::{Address, Segment, SlotContent};
use efa_device_model::fault::{Fault, FaultId};
use efa_lock_free::record::{Answer, Record};
use efa_lock_free::ring::{Incoming, RingFull};

/// Bytes of a ring to a local process, the same as between two local processes.
const RING_BYTES: usize = 1 << 20;

/// The description of a device of another machine.
#[derive(Clone, PartialEq, Debug)]
pub struct RemoteDevice {
    /// Its name, which contains the host's name.
    pub name: DeviceName,
    /// Its address in the fabric, which the other machine has chosen.
    pub gid: Gid,
    /// The name of its profile, if the other machine announced one.
    pub profile: Option<String>,
    /// The status of requests to queue pair numbers that no process owns.
    pub nobody: Status,
    /// The delays and losses of the frames that it sends.
    pub network: NetworkOptions,
}

/// The value that a ring returns together with the answer of a local process.
#[derive(Clone, Copy, Debug)]
pub(super) enum Token {
    /// A request of the machine: the machine's name for it, and the local name if it is a read.
    Request { name: u64, pull: Option<u32> },
    /// Data of the machine for a read: the machine's name for it.
    ReadData { name: u64 },
    /// No answer is expected.
    Nobody,
}

/// A ring to a local process.
pub(super) struct OutRing {
    pub(super) producer: Producer<(u32, Token)>,
    pub(super) peer: Arc<Peer>,
    listed: bool,
}

impl OutgoingRing for OutRing {
    type Token = (u32, Token);

    fn new(producer: Producer<Self::Token>, peer: Arc<Peer>) -> OutRing {
        OutRing {
            producer,
            peer,
            listed: false,
        }
    }
}

/// A ring from a local process.
struct InRing {
    consumer: Consumer,
    peer: Arc<Peer>,
    /// Distinguishes this ring from an earlier one in the same slot.
    serial: u64,
    polled: bool,
}

/// The source of a record that must be answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    slot: usize,
    serial: u64,
    pub(super) from: Address,
    pub(super) incoming: Incoming,
}

/// The reason why a record was not sent to a local process.
pub(super) enum SendError {
    /// The ring is full; try again later.
    Busy,
    /// It can never be sent.
    Failed(Status),
}

/// The proxy of one device.
pub(super) struct DeviceProxy {
    host: Host,
    segment: Arc<Segment>,
    doorbells: Arc<DoorbellPage>,
    /// By slot, up to the highest slot that was ever in use.
    in_rings: Vec<Option<Box<InRing>>>,
    polled: Vec<usize>,
    serials: u64,
    routes: Routes,
    out_rings: Slab<OutRing>,
    waiting: Vec<usize>,
    /// Whether the machine's list of busy devices contains it.
    pub(super) is_listed: bool,
    /// Number of the machine's connection. Requests of earlier connections are not answered any
    /// more.
    pub(super) epoch: u32,
}

impl DeviceProxy {
    /// The proxy of a device that has entered the fabric as `host`. `number` is unique among the
    /// devices of the machine; `neighbour` is another one of them, if any.
    pub(super) fn new(
        fabric: &Fabric,
        device: &RemoteDevice,
        host: Host,
        number: usize,
        neighbour: Option<&DeviceProxy>,
    ) -> Result<DeviceProxy, FabricError> {
        let path = host.device_path();
        let page_path = path.with_extension(doorbell_page::KIND);
        let doorbells = match neighbour {
            Some(neighbour) => {
                let known = neighbour.host.device_path();
                std::fs::hard_link(known.with_extension(doorbell_page::KIND), &page_path)
                    .map_err(FabricError::io("link", &page_path))?;
                Arc::clone(&neighbour.doorbells)
            }
            None => Arc::new(DoorbellPage::create(&page_path)?),
        };
        let line = DoorbellLine {
            page: Arc::clone(&doorbells),
            number: number % LINES,
        };
        let segment = Arc::new(Segment::create_at(&path, host.address(), line)?);
        segment.declare_network(&device.network);
        if let Some(profile) = &device.profile {
            host.announce_profile(profile)?;
        }
        let peers = Peers::new(fabric.clone(), Arc::clone(&segment));
        // Announced last: a process that finds the numbers acquired must find the segment.
        host.table().take_all(host.address().id);
        Ok(DeviceProxy {
            host,
            segment,
            doorbells,
            in_rings: Vec::new(),
            polled: Vec::new(),
            serials: 0,
            routes: Routes::new(peers, RING_BYTES, device.nobody).within_this_machine(),
            out_rings: Slab::new(),
            waiting: Vec::new(),
            is_listed: false,
            epoch: 0,
        })
    }

    /// Makes several devices leave the fabric together.
    pub(super) fn leave_all(fabric: &Fabric, proxies: impl Iterator<Item = DeviceProxy>) {
        for mut proxy in proxies {
            proxy.host.vacate();
        }
        fabric.sweep();
    }

    pub(super) fn is(&self, name: &DeviceName) -> bool {
        self.host.name() == name
    }

    /// Declares the network options of the device's frames. Processes to which it has already sent
    /// do not read them again.
    pub(super) fn declare_network(&self, options: &NetworkOptions) {
        self.segment.declare_network(options);
    }

    pub(super) fn gid(&self) -> Gid {
        self.host.gid()
    }

    /// Arms a rule for the lifetime of the proxy.
    pub(super) fn arm(&self, fault: &Fault) -> Result<FaultId, FabricError> {
        self.host.arm(fault)
    }

    pub(super) fn nobody(&self) -> Status {
        self.routes.nobody()
    }

    /// The doorbell page that local processes ring, the same for all devices of the machine.
    pub(super) fn doorbells(&self) -> &Arc<DoorbellPage> {
        &self.doorbells
    }

    /// Whether answers are outstanding, or rings are polled.
    pub(super) fn is_busy(&self) -> bool {
        !self.polled.is_empty() || !self.waiting.is_empty()
    }

    // --- from local processes ---

    /// Handles doorbells. Returns whether any was rung. `is_known` returns whether the records of a
    /// device are sent to the machine.
    pub(super) fn answer_doorbells(&mut self, is_known: impl Fn(Gid) -> bool) -> bool {
        if !self.segment.doorbell_rung() {
            return false;
        }
        let segment = Arc::clone(&self.segment);
        let is_full = segment.take_doorbells(|slot| self.inspect_slot(slot));
        if is_full {
            self.free_dead_senders(is_known);
        }
        true
    }

    fn inspect_slot(&mut self, slot: usize) {
        match self.segment.inspect(slot) {
            SlotContent::Free | SlotContent::Pending { .. } => {}
            SlotContent::GivenUp => {
                self.drop_ring(slot);
                self.segment.free(slot);
            }
            SlotContent::Nonsense => self.refuse(slot, &"the slot's descriptor makes no sense"),
            SlotContent::InUse { sender, capacity } => {
                if self.in_ring(slot).is_none() && !self.adopt(slot, sender, capacity) {
                    return;
                }
                if let Some(ring) = in_ring(&mut self.in_rings, slot)
                    && !ring.polled
                {
                    ring.polled = true;
                    self.polled.push(slot);
                    self.segment.start_polling(slot);
                }
            }
        }
    }

    fn adopt(&mut self, slot: usize, sender: Address, capacity: usize) -> bool {
        let adopted = self.routes.peers().adopt_ring(slot, sender, capacity);
        let Some((peer, consumer)) = adopted else {
            return false;
        };
        self.serials += 1;
        if self.in_rings.len() <= slot {
            self.in_rings.resize_with(slot + 1, || None);
        }
        self.in_rings[slot] = Some(Box::new(InRing {
            consumer,
            peer,
            serial: self.serials,
            polled: false,
        }));
        true
    }

    fn refuse(&mut self, slot: usize, reason: &dyn std::fmt::Display) {
        refuse_slot(&self.segment, slot, reason);
        if let Some(ring) = self.in_ring(slot) {
            ring.peer.segment.wake();
        }
        self.drop_ring(slot);
    }

    fn in_ring(&self, slot: usize) -> Option<&InRing> {
        self.in_rings.get(slot)?.as_deref()
    }

    fn drop_ring(&mut self, slot: usize) {
        if let Some(ring) = self.in_rings.get_mut(slot) {
            *ring = None;
        }
        self.polled.retain(|polled| *polled != slot);
    }

    /// The number of polled rings.
    pub(super) fn polled(&self) -> usize {
        self.polled.len()
    }

    /// The sender of the polled ring with this index.
    pub(super) fn sender(&self, place: usize) -> Option<Gid> {
        let ring = self.in_ring(*self.polled.get(place)?)?;
        Some(ring.peer.address().gid)
    }

    /// The next record of the polled ring with this index.
    pub(super) fn take(&mut self, place: usize) -> Option<Origin> {
        let slot = *self.polled.get(place)?;
        let ring = in_ring(&mut self.in_rings, slot)?;
        match ring.consumer.take() {
            Ok(incoming) => Some(Origin {
                slot,
                serial: ring.serial,
                from: ring.peer.address(),
                incoming: incoming?,
            }),
            Err(error) => {
                self.refuse(slot, &error);
                None
            }
        }
    }

    fn ring(&mut self, origin: &Origin) -> Option<&mut InRing> {
        in_ring(&mut self.in_rings, origin.slot).filter(|ring| ring.serial == origin.serial)
    }

    /// Copies the data of a record; zeros if its ring was abandoned.
    pub(super) fn read_data(&mut self, origin: &Origin, into: &mut [u8]) {
        if let Some(ring) = self.ring(origin)
            && let Some((memory, at)) =
                ring.consumer
                    .payload(origin.incoming.payload(), 0, into.len() as u32)
        {
            memory.read(at, into);
        }
    }

    /// Answers a record, unless its ring was abandoned.
    pub(super) fn answer(&mut self, origin: &Origin, answer: Answer) {
        if let Some(ring) = self.ring(origin) {
            ring.consumer.answer(&origin.incoming, answer);
            ring.peer.segment.wake();
        }
    }

    // --- to local processes ---

    /// Sends a request to the process that owns its queue pair.
    pub(super) fn send(
        &mut self,
        to: Gid,
        record: &Record,
        token: Token,
        data: &[u8],
    ) -> Result<Address, SendError> {
        let qpn = record.header().destination_qpn;
        let index = self.routes.find(to, qpn, &mut self.out_rings)?;
        self.push(index, record, token, data)
    }

    /// Sends to a given process.
    pub(super) fn send_to(
        &mut self,
        to: Address,
        record: &Record,
        token: Token,
        data: &[u8],
    ) -> Result<Address, SendError> {
        let index = self.routes.ring_to(to, &mut self.out_rings)?;
        self.push(index, record, token, data)
    }

    fn push(
        &mut self,
        index: usize,
        record: &Record,
        token: Token,
        data: &[u8],
    ) -> Result<Address, SendError> {
        let ring = &mut self.out_rings[index];
        let fill = |memory: &SharedMemory, at: usize| memory.write(at, data);
        match ring.producer.push(record, (self.epoch, token), fill) {
            Ok(_) => {
                if !ring.listed {
                    ring.listed = true;
                    self.waiting.push(index);
                }
                Ok(ring.peer.address())
            }
            // An empty ring always has room for half of its capacity, independent of the position
            // of its end.
            Err(RingFull) if 2 * record.length() <= ring.producer.capacity() => {
                Err(SendError::Busy)
            }
            Err(RingFull) => Err(SendError::Failed(Status::RemoteBadLength)),
        }
    }

    /// Processes the answers of local processes: calls `answered` with the process, the number of
    /// the record, its token and the answer.
    pub(super) fn reap(&mut self, mut answered: impl FnMut(Address, u64, Token, Answer)) -> bool {
        let mut any = false;
        let mut position = 0;
        let epoch = self.epoch;
        while let Some(index) = self.waiting.get(position).copied() {
            let ring = &mut self.out_rings[index];
            let process = ring.peer.address();
            ring.producer.reap(|(sent_in, token), number, answer| {
                any = true;
                if sent_in == epoch {
                    answered(process, number, token, answer);
                }
            });
            ring.listed = ring.producer.waiting() > 0;
            if ring.listed {
                position += 1;
            } else {
                self.waiting.swap_remove(position);
            }
        }
        any
    }

    /// Whether any answer of a local process is outstanding.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    // --- the dead ---

    /// Drops the rings of dead processes: calls `ended` for each record whose answer was not read,
    /// with the answer if there is one, and `gone` for each process. `is_known` is as for
    /// [`DeviceProxy::answer_doorbells`].
    pub(super) fn check_peers(
        &mut self,
        is_known: impl Fn(Gid) -> bool,
        mut ended: impl FnMut(Token, Option<Answer>),
        mut gone: impl FnMut(Address),
    ) {
        self.free_dead_senders(is_known);
        let dead: Vec<usize> = self
            .out_rings
            .iter()
            .filter(|(_, ring)| ring.producer.is_refused() || !ring.peer.is_alive())
            .map(|(index, _)| index)
            .collect();
        let epoch = self.epoch;
        for index in dead {
            self.waiting.retain(|other| *other != index);
            let ring = self.out_rings.remove(index);
            self.routes.forget_ring(ring.peer.address());
            gone(ring.peer.address());
            ring.producer.abandon(|(sent_in, token), _, answer| {
                if sent_in == epoch {
                    ended(token, answer);
                }
            });
        }
        self.routes.forget_gone_hosts();
    }

    fn free_dead_senders(&mut self, is_known: impl Fn(Gid) -> bool) {
        for slot in 0..self.in_rings.len() {
            let is_over = self.in_ring(slot).is_some_and(|ring| {
                // Records of a device that is no longer known are never read.
                let has_more = || ring.consumer.has_record() && is_known(ring.peer.address().gid);
                !has_more() && ring.consumer.unanswered() == 0 && !ring.peer.is_alive()
            });
            if is_over {
                self.drop_ring(slot);
                self.segment.free(slot);
            }
        }
    }

    // --- sleep ---

    /// Makes senders ring the doorbell from now on. Returns whether no record arrived before that
    /// took effect.
    pub(super) fn prepare_to_sleep(&mut self) -> bool {
        for slot in &self.polled {
            self.segment.stop_polling(*slot);
        }
        let (segment, rings) = (&self.segment, &mut self.in_rings);
        self.polled.retain(|slot| {
            let Some(ring) = in_ring(rings, *slot) else {
                return false;
            };
            ring.polled = ring.consumer.has_record();
            if ring.polled {
                segment.start_polling(*slot);
            }
            ring.polled
        });
        self.polled.is_empty() && !self.segment.doorbell_rung()
    }
}

fn in_ring(rings: &mut [Option<Box<InRing>>], slot: usize) -> Option<&mut InRing> {
    rings.get_mut(slot)?.as_deref_mut()
}

impl Drop for DeviceProxy {
    fn drop(&mut self) {
        for ring in self.out_rings.drain() {
            if ring.producer.is_settled() {
                ring.producer.abandon(|_, _, _| {});
            }
        }
    }
}

impl From<NoRoute> for SendError {
    fn from(reason: NoRoute) -> SendError {
        match reason {
            NoRoute::Busy => SendError::Busy,
            NoRoute::Failed(status) => SendError::Failed(status),
        }
    }
}
