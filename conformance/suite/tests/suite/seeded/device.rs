//! A device between the engine and the simulator that makes a correct engine wrong.
//!
//! Most errors of an implementation show in the packets that it sends, some in its handling of
//! arriving packets, some in its timing. So the device changes the packets between the engine and
//! the network, and the engine itself has no code for faults.

use std::cell::Cell;
use std::collections::{HashSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use efa_core::nic::{
    BufferId, Completion, CompletionKind, Destination, Domain, Doorbell, Nic, NicError, PolledNic,
    RdmaRequest, SendRequest, Status, UserSlice,
};
use efa_core::wire::PacketType;
use efa_play::application::engine::HostNic;
use efa_sim::{NicConfig, SimDomain, SimHost, SimNic, SimQueuePair};

use super::fault::{Change, FaultyBehaviour, Packets, RdmaChange};

/// Packet buffers of the device that the engine does not know.
const SPARE_BUFFERS: usize = 64;

/// The state of the fault.
struct FaultState {
    /// The fault; `None` for a correct engine.
    act: Option<FaultyBehaviour>,
    /// The number of times that it took effect.
    applied: Rc<Cell<usize>>,
    /// The number of packets seen of those that the fault selects.
    seen: usize,
    /// Buffers of packets that the engine did not post.
    own: HashSet<BufferId>,
    /// Contexts of RDMA requests whose completions the engine already has.
    completed: Vec<u64>,
    /// Completions without a posted request.
    finished: VecDeque<Completion>,
    /// The destination of the engine's last packet.
    peer: Option<Destination>,
    /// Deferred packets, and the packets that they wait for.
    held: Vec<(Vec<u8>, Option<PacketType>)>,
    /// RDMA reads that wait for the next packet that reports their end.
    late: Vec<RdmaRequest>,
    /// An answer was sent early: the next one of this type is suppressed.
    spent: Option<PacketType>,
}

impl FaultState {
    fn is_chosen(&mut self, packets: Packets, packet: &[u8]) -> bool {
        if PacketType::peek(packet) != Some(packets.kind) {
            return false;
        }
        let nth = self.seen;
        self.seen += 1;
        let is_chosen = packets.has(nth);
        if is_chosen {
            self.applied.set(self.applied.get() + 1);
        }
        is_chosen
    }

    /// The packets to send instead of this one; `None` to send it unchanged.
    fn sends(&mut self, packet: &[u8]) -> Option<Vec<Vec<u8>>> {
        let kind = PacketType::peek(packet);
        if self.spent.is_some() && self.spent == kind {
            self.spent = None;
            return Some(Vec::new());
        }
        let Some(FaultyBehaviour::Sends(packets, change)) = self.act else {
            return None;
        };
        if !self.is_chosen(packets, packet) {
            return None;
        }
        Some(match change {
            Change::Lost => Vec::new(),
            Change::Twice => vec![packet.to_vec(); 2],
            Change::Again(until) => {
                self.held.push((packet.to_vec(), Some(until)));
                return None;
            }
            change => vec![change.of(packet)],
        })
    }

    /// The change of a received packet; `None` to pass it unchanged.
    fn hears(&mut self, packet: &[u8]) -> Option<Change> {
        let Some(FaultyBehaviour::Hears(packets, change)) = self.act else {
            return None;
        };
        self.is_chosen(packets, packet).then_some(change)
    }

    /// Sends the answer that the engine invents for a received packet.
    fn invents(&mut self, packet: &[u8]) {
        let Some(FaultyBehaviour::Invents(packets, answer)) = self.act else {
            return;
        };
        if self.is_chosen(packets, packet) {
            let answer = answer(packet);
            self.spent = PacketType::peek(&answer);
            self.held.push((answer, None));
        }
    }

    /// The change of an RDMA request of the engine.
    fn rdma(&mut self, reads: bool) -> Option<RdmaChange> {
        let change = match self.act {
            Some(FaultyBehaviour::Reads(change)) if reads => change,
            Some(FaultyBehaviour::Writes(change)) if !reads => change,
            _ => return None,
        };
        self.applied.set(self.applied.get() + 1);
        Some(change)
    }

    /// Deferred packets that are due now.
    fn due(&mut self, passed: Option<PacketType>) -> Vec<Vec<u8>> {
        let is_due =
            |held: &mut (Vec<u8>, Option<PacketType>)| held.1.is_none() || held.1 == passed;
        self.held
            .extract_if(.., is_due)
            .map(|(packet, _)| packet)
            .collect()
    }
}

/// The device of an endpoint with a fault. The engine posts and polls through it; all other calls
/// reach the simulated device unchanged.
pub(crate) struct FaultyNic {
    inner: SimNic,
    state: FaultState,
}

impl FaultyNic {
    /// Opens it on a host, with the fault `act` if there is one. `applied` counts how often the
    /// fault takes effect.
    pub(crate) fn open(
        host: &SimHost,
        act: Option<FaultyBehaviour>,
        applied: Rc<Cell<usize>>,
    ) -> Result<Self, NicError> {
        let config = NicConfig::default();
        let inner = host.open_nic(NicConfig {
            packet_buffers: config.packet_buffers + SPARE_BUFFERS,
            ..config
        })?;
        let state = FaultState {
            act,
            applied,
            seen: 0,
            own: HashSet::new(),
            completed: Vec::new(),
            finished: VecDeque::new(),
            peer: None,
            held: Vec::new(),
            late: Vec::new(),
            spent: None,
        };
        Ok(FaultyNic { inner, state })
    }

    /// Sends the packets that waited for a packet of this type, or for none.
    fn send_due(&mut self, passed: Option<PacketType>) {
        if self.state.peer.is_none() {
            return;
        }
        for packet in self.state.due(passed) {
            self.send(&packet);
        }
    }

    /// Adds the completions that the engine gets for a received packet.
    fn hear(&mut self, completion: Completion, heard: &mut Vec<Completion>) {
        let CompletionKind::Recv {
            buffer,
            length,
            source,
            immediate,
        } = completion.kind
        else {
            return heard.push(completion);
        };
        let packet = self.inner.buffer(buffer)[..length].to_vec();
        let kind = PacketType::peek(&packet);
        self.state.invents(&packet);
        let with = |buffer, length| Completion {
            kind: CompletionKind::Recv {
                buffer,
                length,
                source,
                immediate,
            },
            ..completion
        };
        match self.state.hears(&packet) {
            None => heard.push(completion),
            Some(Change::Lost) => self.inner.release_buffer(buffer),
            Some(Change::Twice | Change::Again(_)) => {
                heard.push(completion);
                let copy = self.put(&packet);
                heard.push(with(copy, length));
            }
            Some(change) => {
                let changed = change.of(&packet);
                self.inner.buffer_mut(buffer)[..changed.len()].copy_from_slice(&changed);
                heard.push(with(buffer, changed.len()));
            }
        }
        self.send_due(kind);
    }

    /// A buffer with these bytes.
    fn put(&mut self, packet: &[u8]) -> BufferId {
        let buffer = self
            .inner
            .acquire_buffer()
            .expect("there are spare buffers");
        self.inner.buffer_mut(buffer)[..packet.len()].copy_from_slice(packet);
        buffer
    }

    /// The packet that a request sends.
    fn packet(&mut self, request: &SendRequest) -> Result<Vec<u8>, NicError> {
        let mut packet = self.inner.buffer(request.buffer)[..request.header_length].to_vec();
        if let Some((slice, _)) = request.payload {
            let header = packet.len();
            packet.resize(header + slice.length, 0);
            self.inner.read_user(slice.address, &mut packet[header..])?;
        }
        Ok(packet)
    }

    fn finish(&mut self, context: u64, kind: CompletionKind) {
        self.state.finished.push_back(Completion {
            queue_pair: self.inner.address().qpn,
            context,
            status: Status::Ok,
            kind,
        });
    }

    /// Sends a packet that the engine did not post.
    fn send(&mut self, packet: &[u8]) {
        let destination = self.state.peer.expect("the engine has sent something");
        let buffer = self.put(packet);
        let request = SendRequest {
            destination,
            buffer,
            header_length: packet.len(),
            payload: None,
            immediate: None,
            context: 0,
        };
        self.state.own.insert(buffer);
        self.inner
            .post_send(&request, Doorbell::Ring)
            .expect("the send queue has room");
    }

    fn post_rdma(
        &mut self,
        request: &RdmaRequest,
        doorbell: Doorbell,
        reads: bool,
    ) -> Result<(), NicError> {
        let mut request = *request;
        let kind = match reads {
            true => CompletionKind::RdmaRead,
            false => CompletionKind::RdmaWrite,
        };
        match self.state.rdma(reads) {
            None => {}
            Some(RdmaChange::Shorter(by)) => request.local.length -= by,
            Some(RdmaChange::Elsewhere(by)) => {
                request.remote_address = request.remote_address.wrapping_add_signed(by)
            }
            Some(RdmaChange::Skipped) => {
                self.finish(request.context, kind);
                return Ok(());
            }
            Some(RdmaChange::Late) => {
                self.finish(request.context, kind);
                self.state.late.push(request);
                return Ok(());
            }
            Some(RdmaChange::Immediate(change)) => {
                request.immediate = request.immediate.map(|data| data ^ change);
            }
        }
        self.post(&request, doorbell, reads)
    }

    fn post(
        &mut self,
        request: &RdmaRequest,
        doorbell: Doorbell,
        reads: bool,
    ) -> Result<(), NicError> {
        match reads {
            true => self.inner.post_read(request, doorbell),
            false => self.inner.post_write(request, doorbell),
        }
    }
}

impl Deref for FaultyNic {
    type Target = SimDomain;

    fn deref(&self) -> &SimDomain {
        &self.inner
    }
}

impl DerefMut for FaultyNic {
    fn deref_mut(&mut self) -> &mut SimDomain {
        &mut self.inner
    }
}

impl Nic for FaultyNic {
    type Domain = SimDomain;

    fn queue_pair(&self) -> &SimQueuePair {
        self.inner.queue_pair()
    }

    fn parts(&mut self) -> (&mut SimDomain, &mut SimQueuePair) {
        self.inner.parts()
    }

    fn post_send(&mut self, request: &SendRequest, doorbell: Doorbell) -> Result<(), NicError> {
        self.state.peer = Some(request.destination);
        let packet = self.packet(request)?;
        let instead = self.state.sends(&packet);
        match instead.as_deref() {
            None => self.inner.post_send(request, doorbell)?,
            Some([]) => {
                let buffer = request.buffer;
                self.finish(request.context, CompletionKind::Send { buffer });
            }
            Some([changed, others @ ..]) => {
                let changed_buffer = self.inner.buffer_mut(request.buffer);
                changed_buffer[..changed.len()].copy_from_slice(changed);
                let request = SendRequest {
                    header_length: changed.len(),
                    payload: None,
                    ..*request
                };
                self.inner.post_send(&request, doorbell)?;
                for packet in others {
                    self.send(packet);
                }
            }
        }
        let kind = PacketType::peek(&packet);
        for packet in self.state.due(kind) {
            self.send(&packet);
        }
        if kind.is_some_and(|kind| matches!(kind, PacketType::Eor | PacketType::Receipt)) {
            for read in std::mem::take(&mut self.state.late) {
                self.state.completed.push(read.context);
                self.inner.post_read(&read, Doorbell::Ring)?;
            }
        }
        Ok(())
    }

    fn post_read(&mut self, request: &RdmaRequest, doorbell: Doorbell) -> Result<(), NicError> {
        self.post_rdma(request, doorbell, true)
    }

    fn post_write(&mut self, request: &RdmaRequest, doorbell: Doorbell) -> Result<(), NicError> {
        self.post_rdma(request, doorbell, false)
    }
}

impl PolledNic for FaultyNic {
    fn poll(&mut self, completions: &mut Vec<Completion>, limit: usize) -> usize {
        let before = completions.len();
        let mut arrived = Vec::new();
        self.inner.poll(&mut arrived, limit);
        completions.extend(self.state.finished.drain(..));
        self.send_due(None);
        for completion in arrived {
            let state = &mut self.state;
            match completion.kind {
                CompletionKind::Send { buffer } if state.own.remove(&buffer) => {
                    self.inner.release_buffer(buffer);
                }
                CompletionKind::RdmaRead | CompletionKind::RdmaWrite => {
                    let context = completion.context;
                    let known = state.completed.iter().position(|known| *known == context);
                    match known {
                        Some(at) => drop(state.completed.swap_remove(at)),
                        None => completions.push(completion),
                    }
                }
                _ => self.hear(completion, completions),
            }
        }
        completions.len() - before
    }
}

impl HostNic for FaultyNic {
    fn allocate_user(&mut self, length: usize) -> Result<UserSlice, NicError> {
        self.inner.allocate_user(length)
    }

    fn fill_user(&mut self, address: u64, bytes: &[u8]) -> Result<(), NicError> {
        self.inner.fill_user(address, bytes)
    }

    fn dump_user(&mut self, source: UserSlice) -> Result<Vec<u8>, NicError> {
        self.inner.dump_user(source)
    }
}
