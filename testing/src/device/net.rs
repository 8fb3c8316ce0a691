//! Devices connected by a network that loses, duplicates and reorders packets, decided by a seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use efa_core::address::{Gid, Qpn};
use efa_core::nic::{Access, Status};
use efa_device_model::device::connected::{
    BufferList, ConnectedConfig, ConnectionAttributes, ConnectionMask, Payload, Psn, REMOTE_ATOMIC,
    RecvWr, RemoteMemory, RendezvousHeader, SendOperation, SendWr, SrqConfig, SrqId, TagConfig,
    TagHeader, TagOperation,
};
use efa_device_model::device::queue::{
    Buffer, CompletionEntry, CompletionRing, CompletionSlot, RequestIdSize,
};
use efa_device_model::device::{
    CqId, Device, DeviceEvent, MemoryRegion, PdId, QpState, RegionKeys,
};
use efa_device_model::link::{Link, LinkBusy, LocalData, RequestHeader, Token};
use efa_device_model::profile::Profile;
use rand::{Rng as _, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub use super::MEMORY;
use super::{Copier, range};
pub use crate::addresses::gid;

/// Bytes of a host's memory.
pub const SIZE: usize = 1 << 17;

/// Operations and flags of completions.
pub mod codes {
    #![allow(missing_docs, reason = "named as in the device's interface")]

    pub const RECV: u8 = 128;
    pub const ADDED: u8 = 130;
    pub const DELETED: u8 = 131;
    pub const SYNCED: u8 = 132;
    pub const TAGGED: u8 = 133;
    pub const WITHOUT_TAG: u8 = 134;
    pub const SYNC_REQUESTED: u8 = 1 << 4;
    pub const MATCH: u8 = 1 << 5;
    pub const DATA_VALID: u8 = 1 << 6;
}

/// A message with a tag.
pub struct TaggedMessage<'a> {
    /// The header.
    pub header: TagHeader,
    /// The data, which a rendezvous announces.
    pub payload: &'a [u8],
    /// Offset in the sender's memory of the message.
    pub place: usize,
    /// Offset in the sender's memory of the data of a rendezvous.
    pub data: usize,
    /// Bytes for the program behind the headers of a rendezvous.
    pub further: usize,
}

/// The network's effects on packets.
#[derive(Clone, Copy, Default)]
pub struct NetworkEffects {
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a packet comes twice.
    pub duplicates: f64,
    /// The longest time that a packet takes, in microseconds; the shortest is 1.
    pub longest: u64,
    /// Probability that the link is busy.
    pub busy: f64,
    /// Whether the link returns acknowledgements, at once.
    pub acknowledges: bool,
}

/// A device of the profile `tm`, and a program that uses it.
pub struct Host {
    /// The device.
    pub device: Device,
    /// The program's memory, from [`MEMORY`] on.
    pub memory: Vec<u8>,
    /// The protection domain of the memory.
    pub pd: PdId,
    /// The completion queue of all queue pairs.
    pub cq: CqId,
    /// The keys of the memory.
    pub keys: RegionKeys,
    ring: Arc<CompletionRing>,
    consumer: u16,
}

struct Packet {
    from: usize,
    to: usize,
    /// Token of the first copy, if the link returns acknowledgements.
    token: Option<Token>,
    header: RequestHeader,
    data: Vec<u8>,
}

/// Hosts, and the network between them.
pub struct Net {
    /// The hosts.
    pub hosts: Vec<Host>,
    /// The treatment of packets by the network.
    pub effects: NetworkEffects,
    /// The virtual time.
    pub now: Duration,
    /// The link takes packets and does not deliver them.
    pub is_stopped: bool,
    packets: BTreeMap<(Duration, u64), Packet>,
    serial: u64,
    random: ChaCha8Rng,
}

struct Wire<'a> {
    memory: &'a [u8],
    out: Vec<(Gid, Token, RequestHeader, Vec<u8>)>,
    random: &'a mut ChaCha8Rng,
    busy: f64,
}

impl Link for Wire<'_> {
    fn try_send(
        &mut self,
        to: Gid,
        token: Token,
        header: &RequestHeader,
        data: LocalData<'_>,
    ) -> Result<(), LinkBusy> {
        if self.random.random_bool(self.busy) {
            return Err(LinkBusy);
        }
        let LocalData::Packet {
            head,
            segments,
            padding,
        } = data
        else {
            panic!("a connection sends packets");
        };
        let mut copy = head.to_vec();
        for segment in segments {
            copy.extend_from_slice(&self.memory[range(segment)]);
        }
        copy.resize(copy.len() + padding, 0);
        assert_eq!(copy.len(), header.length as usize);
        assert_eq!(copy.len() % 4, 0, "packets are whole words");
        self.out.push((to, token, *header, copy));
        Ok(())
    }
}

impl Host {
    fn new(number: usize) -> Host {
        let profile = Profile::by_name("tm").unwrap().clone();
        let mut device = Device::new(profile, gid(number));
        let pd = device.alloc_pd().unwrap();
        let (cq, ring) = device.create_cq(4096, RequestIdSize::Bits16).unwrap();
        let region = MemoryRegion::new(MEMORY, SIZE as u64, Access::all() | REMOTE_ATOMIC);
        let keys = device.register_memory(pd, region).unwrap();
        Host {
            device,
            memory: vec![0; SIZE],
            pd,
            cq,
            keys,
            ring,
            consumer: 0,
        }
    }

    /// The ring of the completion queue.
    pub fn ring(&self) -> &CompletionRing {
        &self.ring
    }

    /// The number of completions that were polled.
    pub fn consumer(&self) -> u16 {
        self.consumer
    }

    /// The next completion.
    pub fn poll(&mut self) -> Option<CompletionEntry> {
        match self.ring.read(self.consumer) {
            CompletionSlot::Entry(entry) => {
                self.consumer = self.consumer.wrapping_add(1);
                Some(entry)
            }
            CompletionSlot::Empty => None,
            CompletionSlot::Garbage => panic!("garbage in the completion queue"),
        }
    }

    /// Work request id, status and operation of all available completions.
    pub fn completions(&mut self) -> Vec<(u64, u8, u8)> {
        let mut found = Vec::new();
        while let Some(entry) = self.poll() {
            let (status, operation) = (entry.status(), entry.connected_operation());
            found.push((entry.connected_wr_id(), status, operation));
        }
        found
    }

    /// The events since the last call, without those of completions.
    pub fn events(&mut self) -> Vec<DeviceEvent> {
        let is_completion = |event: &DeviceEvent| matches!(event, DeviceEvent::Completion(_));
        self.device
            .take_events()
            .filter(|event| !is_completion(event))
            .collect()
    }

    /// A buffer at an offset of the host's memory.
    pub fn buffer(&self, offset: usize, length: usize) -> Buffer {
        Buffer::new(MEMORY + offset as u64, length as u32, self.keys.lkey.0)
    }

    /// A list of one buffer at an offset of the host's memory.
    pub fn list(&self, offset: usize, length: usize) -> BufferList {
        BufferList::new(&[self.buffer(offset, length)]).unwrap()
    }

    /// Memory at an offset, for a peer's requests.
    pub fn remote(&self, offset: usize) -> RemoteMemory {
        RemoteMemory {
            address: MEMORY + offset as u64,
            key: self.keys.rkey.0,
        }
    }

    /// Posts a receive of one buffer.
    pub fn receive(&mut self, qpn: Qpn, wr_id: u64, offset: usize, length: usize) {
        let buffers = self.list(offset, length);
        let receive = RecvWr { wr_id, buffers };
        self.device.post_connected_recv(qpn, receive).unwrap();
    }

    /// Creates a shared receive queue, with a list of at most this many tags if there is a limit.
    pub fn shared_queue(&mut self, max_wr: u32, max_tags: Option<u32>) -> SrqId {
        let cq = self.cq;
        let config = SrqConfig {
            pd: self.pd,
            max_wr,
            max_sge: 1,
            tags: max_tags.map(|max_tags| TagConfig { cq, max_tags }),
        };
        self.device.create_srq(config).unwrap()
    }

    /// Posts a receive of one buffer to a shared queue.
    ///
    /// # Errors
    /// The `errno` of the device's error.
    pub fn receive_shared(
        &mut self,
        srq: SrqId,
        wr_id: u64,
        offset: usize,
        length: usize,
    ) -> Result<(), i32> {
        let buffers = self.list(offset, length);
        let posted = self.device.post_srq_recv(srq, RecvWr { wr_id, buffers });
        posted.map_err(|error| error.errno())
    }
}

/// A signaled work request.
pub fn request(wr_id: u64, operation: SendOperation, buffers: BufferList) -> SendWr {
    SendWr {
        wr_id,
        operation,
        payload: Payload::Buffers(buffers),
        is_signaled: true,
        is_fenced: false,
        is_solicited: false,
    }
}

/// Attributes of a connection to a peer.
pub fn attributes(peer: usize, destination: Qpn) -> ConnectionAttributes {
    ConnectionAttributes {
        access: Access::REMOTE_READ | Access::REMOTE_WRITE | REMOTE_ATOMIC,
        peer: gid(peer),
        destination: destination.0.into(),
        path_mtu: 1,
        timeout: 8,
        retry_count: 7,
        rnr_retry: 7,
        min_rnr_timer: 1,
        // Wraps soon.
        rq_psn: Psn::new(0xff_fff0),
        sq_psn: Psn::new(0xff_fff0),
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        ..ConnectionAttributes::default()
    }
}

impl Net {
    /// Hosts without queue pairs; `seed` decides what happens to packets.
    pub fn new(hosts: usize, effects: NetworkEffects, seed: u64) -> Net {
        Net {
            hosts: (0..hosts).map(Host::new).collect(),
            effects,
            now: Duration::ZERO,
            is_stopped: false,
            packets: BTreeMap::new(),
            serial: 0,
            random: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// Creates a queue pair.
    pub fn queue_pair(&mut self, host: usize, qpn: u16, shared: Option<SrqId>) -> Qpn {
        let Host { device, pd, cq, .. } = &mut self.hosts[host];
        let config = ConnectedConfig {
            pd: *pd,
            send_cq: *cq,
            recv_cq: *cq,
            shared,
            max_send_wr: 256,
            max_recv_wr: 256,
            max_recv_sge: 2,
        };
        device.create_connected_qp(Qpn(qpn), config).unwrap();
        Qpn(qpn)
    }

    /// Takes a queue pair through its states.
    pub fn bring_up(&mut self, host: usize, qpn: Qpn, to: ConnectionAttributes) {
        let states = [
            QpState::Reset,
            QpState::Init,
            QpState::ReadyToReceive,
            QpState::ReadyToSend,
        ];
        let device = &mut self.hosts[host].device;
        for step in states.windows(2) {
            let to = ConnectionAttributes {
                state: step[1],
                ..to
            };
            let mask = ConnectionMask::required(step[0], step[1]).unwrap();
            device
                .modify_connected_qp(qpn, &to, mask | ConnectionMask::STATE)
                .unwrap();
        }
    }

    /// Two hosts with a connection.
    pub fn connected(effects: NetworkEffects, seed: u64) -> Net {
        let mut net = Net::new(2, effects, seed);
        let pairs = [0, 1].map(|host| net.queue_pair(host, 7 + host as u16, None));
        for host in 0..2 {
            let peer = 1 - host;
            net.bring_up(host, pairs[host], attributes(peer, pairs[peer]));
        }
        net
    }

    /// A host with a shared receive queue as by [`Host::shared_queue`], and hosts that send to it:
    /// the queue pair 5 of host N to the queue pair 10 + N of the first one.
    pub fn receiver(
        senders: usize,
        effects: NetworkEffects,
        seed: u64,
        max_wr: u32,
        max_tags: Option<u32>,
    ) -> (Net, SrqId) {
        let mut net = Net::new(1 + senders, effects, seed);
        let srq = net.hosts[0].shared_queue(max_wr, max_tags);
        for peer in 1..=senders {
            let own = net.queue_pair(0, 10 + peer as u16, Some(srq));
            let theirs = net.queue_pair(peer, 5, None);
            net.bring_up(0, own, attributes(peer, theirs));
            net.bring_up(peer, theirs, attributes(0, own));
        }
        (net, srq)
    }

    /// Posts a work request.
    pub fn post(&mut self, host: usize, qpn: Qpn, wr: SendWr) {
        self.hosts[host]
            .device
            .post_connected_send(qpn, wr)
            .unwrap();
    }

    /// Sends a message with a tag.
    pub fn send_tagged(&mut self, host: usize, qpn: Qpn, message: &TaggedMessage<'_>) {
        let TaggedMessage {
            header,
            payload,
            place,
            data,
            further,
        } = *message;
        let sender = &mut self.hosts[host];
        let mut bytes = header.to_bytes().to_vec();
        if header.operation == TagOperation::Rendezvous {
            sender.memory[data..data + payload.len()].copy_from_slice(payload);
            let remote = RendezvousHeader {
                address: MEMORY + data as u64,
                key: sender.keys.rkey.0,
                length: payload.len() as u32,
            };
            bytes.extend_from_slice(&remote.to_bytes());
            bytes.resize(bytes.len() + further, 0xaa);
        } else {
            bytes.extend_from_slice(payload);
        }
        sender.memory[place..place + bytes.len()].copy_from_slice(&bytes);
        let list = sender.list(place, bytes.len());
        let wr = request(header.data.into(), SendOperation::Send(None), list);
        self.post(host, qpn, wr);
    }

    fn transmit(&mut self) {
        for from in 0..self.hosts.len() {
            let host = &mut self.hosts[from];
            let mut wire = Wire {
                memory: &host.memory,
                out: Vec::new(),
                random: &mut self.random,
                busy: self.effects.busy,
            };
            host.device.transmit(self.now, &mut wire);
            for (to, token, header, data) in std::mem::take(&mut wire.out) {
                if self.is_stopped {
                    continue;
                }
                let packet = Packet {
                    from,
                    to: usize::from(to.0[15]),
                    token: Some(token),
                    header,
                    data,
                };
                if let Some(token) = self.carry(packet) {
                    let device = &mut self.hosts[from].device;
                    device.complete(self.now, token, Status::Ok);
                }
            }
        }
    }

    /// Returns the token of a packet that was lost, or that counts as delivered because it waits in
    /// this network.
    fn carry(&mut self, packet: Packet) -> Option<Token> {
        let NetworkEffects {
            loss,
            duplicates,
            longest,
            acknowledges,
            ..
        } = self.effects;
        let Packet {
            from,
            to,
            mut token,
            header,
            data,
        } = packet;
        let copies = 1 + usize::from(self.random.random_bool(duplicates));
        for _ in 0..copies {
            if self.random.random_bool(loss) || to >= self.hosts.len() {
                continue;
            }
            let time = self.random.random_range(1..=longest.max(1));
            let at = self.now + Duration::from_micros(time);
            self.serial += 1;
            let data = data.clone();
            let packet = Packet {
                from,
                to,
                token: token.take_if(|_| acknowledges),
                header,
                data,
            };
            self.packets.insert((at, self.serial), packet);
        }
        token
    }

    /// Delivers a packet to a device.
    pub fn inject(&mut self, from: usize, to: usize, header: &RequestHeader, data: &[u8]) {
        self.deliver(from, to, None, header, &mut data.to_vec());
    }

    fn deliver(
        &mut self,
        from: usize,
        to: usize,
        token: Option<Token>,
        header: &RequestHeader,
        data: &mut Vec<u8>,
    ) {
        let sent = data.len();
        let host = &mut self.hosts[to];
        let mut transfer = Copier {
            data,
            memory: &mut host.memory,
            acknowledged: token.map(|_| false),
        };
        let status = host.device.deliver(gid(from), header, &mut transfer);
        assert_eq!(status, Status::Ok, "packets are not answered by the link");
        let acknowledged = transfer.acknowledged;
        assert_eq!(data.len(), sent, "a connection does not store");
        let device = &mut self.hosts[from].device;
        match (token, acknowledged) {
            (Some(token), Some(true)) => device.acknowledged(token),
            (Some(token), _) => device.complete(self.now, token, Status::Ok),
            (None, _) => {}
        }
    }

    /// Handles the next event. Returns false if there is none.
    pub fn step(&mut self) -> bool {
        self.transmit();
        let timers = self
            .hosts
            .iter()
            .filter_map(|host| host.device.next_timeout());
        let packet = self.packets.keys().next().map(|(at, _)| *at);
        let is_busy = self.hosts.iter().any(|host| host.device.has_unsent());
        let again = is_busy.then(|| self.now + Duration::from_micros(1));
        let Some(at) = timers.chain(packet).chain(again).min() else {
            return false;
        };
        self.now = self.now.max(at);
        if packet.is_some_and(|packet| packet <= self.now)
            && let Some((_, packet)) = self.packets.pop_first()
        {
            let Packet {
                from,
                to,
                token,
                header,
                mut data,
            } = packet;
            self.deliver(from, to, token, &header, &mut data);
        }
        true
    }

    /// Runs until there are no more events.
    pub fn settle(&mut self) {
        for _ in 0..2_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the devices never come to rest");
    }
}
