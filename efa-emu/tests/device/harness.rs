//! Hosts with a device, memory and one queue pair each, and a network between them.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use efa_core::address::{Ahn, Gid, Qkey, Qpn};
use efa_core::nic::{Access, DeviceCaps, Status};
use efa_emu::device::queue::{Buffer, WqeSize};
use efa_emu::device::{
    CqId, Device, MemoryRegion, PdId, QpChange, QpConfig, QpRings, QpState, RegionKeys, Service,
};
use efa_emu::link::{HostSegment, Link, LinkBusy, LocalData, RequestHeader, Token, Transfer};
use efa_emu::profile::Profile;
use efa_emu::provider::{
    Completion, CompletionQueue, QueueOwner, RecvQueue, RecvQueueConfig, Retired, SendData,
    SendOpcode, SendQueue, SendQueueConfig, SendRequest, UdAddress,
};

/// Where every host's memory begins.
pub(crate) const MEMORY: u64 = 0x10_0000;
pub(crate) const MEMORY_SIZE: u64 = 1 << 18;
pub(crate) const QKEY: Qkey = Qkey(0x1122_3344);

/// How hosts are made.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) profile: Profile,
    pub(crate) service: Service,
    pub(crate) wqe_size: WqeSize,
    pub(crate) send_entries: u32,
    pub(crate) recv_descriptors: u32,
    pub(crate) cq_entries: u32,
    pub(crate) rnr_retry: Option<u8>,
    pub(crate) unsolicited_write_recv: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            profile: Profile::default(),
            service: Service::Srd,
            wqe_size: WqeSize::Bytes64,
            send_entries: 16,
            recv_descriptors: 64,
            cq_entries: 64,
            rnr_retry: Some(0),
            unsolicited_write_recv: false,
        }
    }
}

pub(crate) fn gid(host: usize) -> Gid {
    let mut bytes = [0; 16];
    bytes[0] = 0xfd;
    bytes[15] = host as u8;
    Gid(bytes)
}

/// A queue pair as its client sees it.
pub(crate) struct Client {
    pub(crate) qpn: Qpn,
    pub(crate) send: SendQueue,
    pub(crate) recv: RecvQueue,
}

pub(crate) struct Host {
    pub(crate) device: Device,
    pub(crate) memory: Vec<u8>,
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
    pub(crate) keys: RegionKeys,
    pub(crate) client: Client,
    pub(crate) completions: CompletionQueue,
    setup: Setup,
    generation: u32,
}

impl QueueOwner for Client {
    fn retire_send(&mut self, qpn: Qpn, request_id: u16) -> Retired {
        match qpn == self.qpn {
            true => self.send.retire(request_id),
            false => Retired::Stale,
        }
    }

    fn retire_recv(&mut self, qpn: Qpn, request_id: u16) -> Retired {
        match qpn == self.qpn {
            true => self.recv.retire(request_id),
            false => Retired::Stale,
        }
    }

    fn owns(&mut self, qpn: Qpn) -> bool {
        qpn == self.qpn
    }
}

impl Client {
    fn new(qpn: Qpn, rings: QpRings, setup: &Setup, generation: u32) -> Self {
        Client {
            qpn,
            send: SendQueue::new(
                rings.send,
                SendQueueConfig {
                    max_sge: setup.profile.max_sq_sge,
                    max_rdma_sge: setup.profile.max_rdma_sge,
                    max_inline: setup.wqe_size.inline_capacity() as u32,
                    inline_write: setup.wqe_size == WqeSize::Bytes128,
                    signal_all: true,
                    generation,
                },
            ),
            recv: RecvQueue::new(
                rings.recv,
                RecvQueueConfig {
                    max_sge: setup.profile.max_rq_sge,
                    generation,
                },
            ),
        }
    }
}

impl Host {
    fn new(number: usize, setup: &Setup) -> Host {
        let mut device = Device::new(setup.profile.clone(), gid(number));
        let pd = device.alloc_pd().unwrap();
        let mut access = Access::LOCAL_WRITE;
        access.set(
            Access::REMOTE_READ,
            setup.profile.caps.contains(DeviceCaps::RDMA_READ),
        );
        access.set(
            Access::REMOTE_WRITE,
            setup.profile.caps.contains(DeviceCaps::RDMA_WRITE),
        );
        let region = MemoryRegion {
            address: MEMORY,
            length: MEMORY_SIZE,
            iova: MEMORY,
            access,
        };
        let keys = device.register_memory(pd, region).unwrap();
        let (cq, ring) = device.create_cq(setup.cq_entries).unwrap();
        let qpn = Qpn(number as u16 + 100);
        let rings = device.create_qp(qpn, config(pd, cq, setup)).unwrap();
        let mut host = Host {
            client: Client::new(qpn, rings, setup, 0),
            completions: CompletionQueue::new(ring),
            memory: vec![0; MEMORY_SIZE as usize],
            device,
            pd,
            cq,
            keys,
            setup: setup.clone(),
            generation: 0,
        };
        host.ready();
        host
    }

    /// Destroys the queue pair and makes one with the same number.
    pub(crate) fn recreate_qp(&mut self) {
        self.device.destroy_qp(self.client.qpn).unwrap();
        let config = config(self.pd, self.cq, &self.setup);
        let rings = self.device.create_qp(self.client.qpn, config).unwrap();
        self.generation += 1;
        self.client = Client::new(self.client.qpn, rings, &self.setup, self.generation);
        self.ready();
    }

    pub(crate) fn modify(&mut self, change: QpChange) {
        self.device.modify_qp(self.client.qpn, &change).unwrap();
        self.client.send.set_state(change.state.unwrap());
        self.client.recv.set_state(change.state.unwrap());
    }

    pub(crate) fn set_state(&mut self, state: QpState) {
        self.modify(QpChange {
            state: Some(state),
            ..QpChange::default()
        });
    }

    /// From RESET to RTS.
    pub(crate) fn ready(&mut self) {
        self.modify(QpChange {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            qkey: Some(QKEY),
            ..QpChange::default()
        });
        self.set_state(QpState::ReadyToReceive);
        let rnr_retry = self.setup.rnr_retry.filter(|_| {
            self.setup.service == Service::Srd
                && self.setup.profile.caps.contains(DeviceCaps::RNR_RETRY)
        });
        self.modify(QpChange {
            state: Some(QpState::ReadyToSend),
            sq_psn: Some(0),
            rnr_retry,
            ..QpChange::default()
        });
    }

    pub(crate) fn buffer(&self, offset: u64, length: u32) -> Buffer {
        Buffer {
            address: MEMORY + offset,
            length,
            lkey: self.keys.lkey.0,
        }
    }

    pub(crate) fn bytes(&mut self, offset: u64, length: usize) -> &mut [u8] {
        &mut self.memory[offset as usize..][..length]
    }

    /// Posts a receive of up to three buffers, given as (offset, length).
    pub(crate) fn post_recv(&mut self, wr_id: u64, parts: &[(u64, u32)]) {
        let buffers: Vec<_> = parts
            .iter()
            .map(|&(offset, length)| self.buffer(offset, length))
            .collect();
        self.client.recv.post(wr_id, &buffers).unwrap();
    }

    /// Posts a send of this host's memory.
    pub(crate) fn post_send(&mut self, wr_id: u64, to: UdAddress, parts: &[(u64, u32)]) {
        let buffers: Vec<_> = parts
            .iter()
            .map(|&(offset, length)| self.buffer(offset, length))
            .collect();
        self.post(wr_id, to, SendOpcode::Send, SendData::Buffers(&buffers));
    }

    pub(crate) fn post(
        &mut self,
        wr_id: u64,
        to: UdAddress,
        opcode: SendOpcode,
        data: SendData<'_>,
    ) {
        let request = SendRequest {
            wr_id,
            opcode,
            flags: 0,
            to,
            data,
        };
        self.client.send.post(&request).unwrap();
        self.doorbell();
    }

    /// Posts an RDMA request between this host's memory and the memory that `rkey` names.
    pub(crate) fn post_rdma(&mut self, wr_id: u64, to: UdAddress, rdma: Rdma) {
        let local = self.buffer(rdma.local.0, rdma.local.1);
        let send = &mut self.client.send;
        send.start();
        match rdma.kind {
            Kind::Read => send.rdma_read(wr_id, 0, rdma.rkey, rdma.remote),
            Kind::Write(immediate) => {
                send.rdma_write(wr_id, 0, rdma.rkey, rdma.remote, immediate);
            }
        }
        send.set_ud_addr(to);
        send.set_sge_list(&[local]);
        send.complete().unwrap();
        self.doorbell();
    }

    pub(crate) fn doorbell(&mut self) {
        self.device.look_at_send_queue(self.client.qpn).unwrap();
    }

    pub(crate) fn poll(&mut self) -> Option<Completion> {
        self.completions.next(&mut self.client)
    }

    /// The next completion, as (work request id, status).
    pub(crate) fn outcome(&mut self) -> Option<(u64, Status)> {
        self.poll()
            .map(|completion| (completion.wr_id, completion.status().unwrap()))
    }
}

fn config(pd: PdId, cq: CqId, setup: &Setup) -> QpConfig {
    QpConfig {
        service: setup.service,
        pd,
        send_cq: cq,
        recv_cq: cq,
        send_entries: setup.send_entries,
        wqe_size: setup.wqe_size,
        recv_descriptors: setup.recv_descriptors,
        unsolicited_write_recv: setup.unsolicited_write_recv,
    }
}

/// An RDMA request: local (offset, length), remote address and key.
#[derive(Clone, Copy)]
pub(crate) struct Rdma {
    pub(crate) kind: Kind,
    pub(crate) local: (u64, u32),
    pub(crate) remote: u64,
    pub(crate) rkey: u32,
}

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Read,
    Write(Option<u32>),
}

/// A request on its way; sends and writes carry a copy of their data.
pub(crate) struct Packet {
    pub(crate) from: usize,
    pub(crate) to: Gid,
    pub(crate) token: Token,
    pub(crate) header: RequestHeader,
    pub(crate) data: Vec<u8>,
}

/// The hosts and what is under way between them.
pub(crate) struct Net {
    pub(crate) hosts: Vec<Host>,
    pub(crate) packets: VecDeque<Packet>,
    /// Destinations for which the link takes nothing.
    pub(crate) busy: BTreeSet<Gid>,
    /// Offers that the link refuses from now on, whatever their destination.
    pub(crate) refusals: usize,
    pub(crate) now: Duration,
}

impl Net {
    pub(crate) fn new(setups: &[Setup]) -> Net {
        Net {
            hosts: setups
                .iter()
                .enumerate()
                .map(|(number, setup)| Host::new(number, setup))
                .collect(),
            packets: VecDeque::new(),
            busy: BTreeSet::new(),
            refusals: 0,
            now: Duration::ZERO,
        }
    }

    /// Two hosts of the same kind; each has the other in its address book.
    pub(crate) fn pair(setup: Setup) -> Net {
        let mut net = Net::new(&[setup.clone(), setup]);
        net.know(0, 1);
        net.know(1, 0);
        net
    }

    /// Puts `whom` into the address book of `host`.
    pub(crate) fn know(&mut self, host: usize, whom: usize) -> Ahn {
        let host = &mut self.hosts[host];
        host.device.create_ah(host.pd, gid(whom)).unwrap()
    }

    /// The address of host `to`'s queue pair for requests of host `from`, which knows it.
    pub(crate) fn address(&mut self, from: usize, to: usize) -> UdAddress {
        UdAddress {
            ahn: self.know(from, to).0,
            qpn: self.hosts[to].client.qpn,
            qkey: QKEY,
        }
    }

    pub(crate) fn transmit(&mut self, host: usize) -> usize {
        let Host { device, memory, .. } = &mut self.hosts[host];
        let mut wire = Wire {
            from: host,
            memory,
            packets: &mut self.packets,
            busy: &self.busy,
            refusals: &mut self.refusals,
        };
        device.transmit(self.now, &mut wire)
    }

    /// Lets one request reach its responder; the answer does not go back.
    pub(crate) fn deliver(&mut self, packet: &mut Packet) -> Status {
        let from = gid(packet.from);
        let to = usize::from(packet.to.0[15]);
        let Some(host) = self.hosts.get_mut(to) else {
            return Status::LocalUnreachableRemote;
        };
        let mut transfer = Copier {
            data: &mut packet.data,
            length: packet.header.length,
            memory: &mut host.memory,
        };
        host.device.deliver(from, &packet.header, &mut transfer)
    }

    /// Brings an answer back; the data of a read goes where the device says.
    pub(crate) fn answer(&mut self, packet: &Packet, mut status: Status) {
        let host = &mut self.hosts[packet.from];
        let read = packet.header.operation == efa_emu::link::Operation::RdmaRead;
        if read && status == Status::Ok {
            match host.device.local_memory(packet.token) {
                Some(segments) => {
                    let mut rest = &packet.data[..];
                    for segment in segments.iter().filter(|segment| segment.length > 0) {
                        let (part, behind) = rest.split_at(segment.length as usize);
                        host.memory[range(segment)].copy_from_slice(part);
                        rest = behind;
                    }
                }
                None => status = Status::LocalInvalidLkey,
            }
        }
        host.device.complete(self.now, packet.token, status);
    }

    /// Lets everything through until nothing moves at this time.
    pub(crate) fn settle(&mut self) {
        loop {
            for host in 0..self.hosts.len() {
                self.transmit(host);
            }
            let Some(mut packet) = self.packets.pop_front() else {
                return;
            };
            let status = self.deliver(&mut packet);
            self.answer(&packet, status);
        }
    }

    /// Moves the time to the next timeout of any device; false if there is none.
    pub(crate) fn advance(&mut self) -> bool {
        let next = self
            .hosts
            .iter()
            .filter_map(|host| host.device.next_timeout())
            .min();
        if let Some(next) = next {
            self.now = self.now.max(next);
        }
        next.is_some()
    }
}

pub(crate) fn range(segment: &HostSegment) -> Range<usize> {
    let start = (segment.address - MEMORY) as usize;
    start..start + segment.length as usize
}

struct Wire<'a> {
    from: usize,
    memory: &'a [u8],
    packets: &'a mut VecDeque<Packet>,
    busy: &'a BTreeSet<Gid>,
    refusals: &'a mut usize,
}

impl Link for Wire<'_> {
    fn try_send(
        &mut self,
        to: Gid,
        token: Token,
        header: &RequestHeader,
        data: LocalData<'_>,
    ) -> Result<(), LinkBusy> {
        if *self.refusals > 0 {
            *self.refusals -= 1;
            return Err(LinkBusy);
        }
        if self.busy.contains(&to) {
            return Err(LinkBusy);
        }
        let mut copy = Vec::new();
        if header.operation != efa_emu::link::Operation::RdmaRead {
            match data {
                LocalData::Inline(bytes) => copy.extend_from_slice(bytes),
                LocalData::Segments(segments) => {
                    for segment in segments.iter().filter(|segment| segment.length > 0) {
                        copy.extend_from_slice(&self.memory[range(segment)]);
                    }
                }
            }
            assert_eq!(copy.len(), header.length as usize);
        }
        self.packets.push_back(Packet {
            from: self.from,
            to,
            token,
            header: *header,
            data: copy,
        });
        Ok(())
    }
}

struct Copier<'a> {
    data: &'a mut Vec<u8>,
    length: u32,
    memory: &'a mut [u8],
}

impl Transfer for Copier<'_> {
    fn fetch(&mut self, offset: u32, to: HostSegment) -> Result<(), Status> {
        assert!(offset + to.length <= self.length);
        let from = offset as usize..(offset + to.length) as usize;
        self.memory[range(&to)].copy_from_slice(&self.data[from]);
        Ok(())
    }

    fn store(&mut self, offset: u32, from: HostSegment) -> Result<(), Status> {
        assert!(offset as usize == self.data.len() && offset + from.length <= self.length);
        self.data.extend_from_slice(&self.memory[range(&from)]);
        Ok(())
    }

    fn fill(&mut self, to: u64, bytes: &[u8]) -> Result<(), Status> {
        let start = (to - MEMORY) as usize;
        self.memory[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}
