//! A host with a device, memory and one queue pair.

use crate::addresses::gid;
use efa_core::address::{Qkey, Qpn};
use efa_core::nic::{Access, DeviceCaps, Status};
use efa_device_model::device::queue::{Buffer, WqeSize};
use efa_device_model::device::{
    CqId, Device, MemoryRegion, PdId, QpChange, QpConfig, QpState, RegionKeys, Service,
};
use efa_device_model::profile::Profile;
use efa_device_model::provider::{Completion, CompletionQueue, SendData, SendOpcode, UdAddress};

use super::ClientQueues;

/// Start of every host's memory.
pub const MEMORY: u64 = 0x10_0000;
/// Bytes of every host's memory.
pub const MEMORY_SIZE: u64 = 1 << 18;
/// The Q-key of every queue pair.
pub const QKEY: Qkey = Qkey(0x1122_3344);

/// The configuration of a host.
#[derive(Clone)]
pub struct Setup {
    /// The device's generation.
    pub profile: Profile,
    /// The queue pair's service.
    pub service: Service,
    /// Size of an entry of the send queue.
    pub wqe_size: WqeSize,
    /// Entries of the send queue.
    pub send_entries: u32,
    /// Buffers of the receive queue.
    pub recv_descriptors: u32,
    /// Entries of the completion queue.
    pub cq_entries: u32,
    /// Retries of a request after RNR, if the device supports them.
    pub rnr_retry: Option<u8>,
    /// Writes with immediate data need no receive.
    pub unsolicited_write_recv: bool,
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

impl Setup {
    /// The default with a change.
    pub fn with(change: impl FnOnce(&mut Setup)) -> Setup {
        let mut setup = Setup::default();
        change(&mut setup);
        setup
    }

    /// The configuration of a queue pair.
    pub fn config(&self, pd: PdId, cq: CqId) -> QpConfig {
        QpConfig {
            service: self.service,
            pd,
            send_cq: cq,
            recv_cq: cq,
            send_entries: self.send_entries,
            wqe_size: self.wqe_size,
            recv_descriptors: self.recv_descriptors,
            unsolicited_write_recv: self.unsolicited_write_recv,
            request_ids: self.profile.longest_request_ids(),
        }
    }
}

/// A device with one queue pair that is ready to send, and its client.
pub struct Host {
    /// Its device.
    pub device: Device,
    /// The bytes at [`MEMORY`].
    pub memory: Vec<u8>,
    /// The protection domain of all objects.
    pub pd: PdId,
    /// The completion queue of both queues.
    pub cq: CqId,
    /// The keys of the memory.
    pub keys: RegionKeys,
    /// The client's halves of its queues.
    pub client: ClientQueues,
    /// The client's half of the completion queue.
    pub completions: CompletionQueue,
    setup: Setup,
    generation: u32,
}

impl Host {
    /// Creates the host with this number.
    pub fn new(number: usize, setup: &Setup) -> Host {
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
        let region = MemoryRegion::new(MEMORY, MEMORY_SIZE, access);
        let keys = device.register_memory(pd, region).unwrap();
        let request_ids = setup.profile.longest_request_ids();
        let (cq, ring) = device.create_cq(setup.cq_entries, request_ids).unwrap();
        let qpn = Qpn(number as u16 + 100);
        let rings = device.create_qp(qpn, setup.config(pd, cq)).unwrap();
        let mut host = Host {
            client: ClientQueues::new(qpn, rings, &setup.profile, setup.wqe_size, 0),
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

    /// Destroys the queue pair and creates one with the same number.
    pub fn recreate_qp(&mut self) {
        self.device.destroy_qp(self.client.qpn).unwrap();
        let config = self.setup.config(self.pd, self.cq);
        let rings = self.device.create_qp(self.client.qpn, config).unwrap();
        self.generation += 1;
        let Setup {
            profile, wqe_size, ..
        } = &self.setup;
        let qpn = self.client.qpn;
        self.client = ClientQueues::new(qpn, rings, profile, *wqe_size, self.generation);
        self.ready();
    }

    /// Changes the queue pair's attributes and state.
    pub fn modify(&mut self, change: QpChange) {
        self.device.modify_qp(self.client.qpn, &change).unwrap();
        self.client.set_state(change.state.unwrap());
    }

    /// Changes only the queue pair's state.
    pub fn set_state(&mut self, state: QpState) {
        self.modify(QpChange {
            state: Some(state),
            ..QpChange::default()
        });
    }

    /// Brings the queue pair from RESET to RTS.
    pub fn ready(&mut self) {
        let rnr_retry = self.setup.rnr_retry.filter(|_| {
            self.setup.service == Service::Srd
                && self.setup.profile.caps.contains(DeviceCaps::RNR_RETRY)
        });
        for change in QpChange::bring_up(QKEY, rnr_retry) {
            self.modify(change);
        }
    }

    /// A buffer in this host's memory.
    pub fn buffer(&self, offset: u64, length: u32) -> Buffer {
        Buffer::new(MEMORY + offset, length, self.keys.lkey.0)
    }

    /// A part of this host's memory.
    pub fn bytes(&mut self, offset: u64, length: usize) -> &mut [u8] {
        &mut self.memory[offset as usize..][..length]
    }

    /// Posts a receive of up to three buffers, given as (offset, length).
    pub fn post_recv(&mut self, wr_id: u64, parts: &[(u64, u32)]) {
        let buffers: Vec<_> = parts
            .iter()
            .map(|&(offset, length)| self.buffer(offset, length))
            .collect();
        self.client.recv.post(wr_id, &buffers).unwrap();
    }

    /// Posts a send of this host's memory.
    pub fn post_send(&mut self, wr_id: u64, to: UdAddress, parts: &[(u64, u32)]) {
        let buffers: Vec<_> = parts
            .iter()
            .map(|&(offset, length)| self.buffer(offset, length))
            .collect();
        self.post(wr_id, to, SendOpcode::Send, SendData::Buffers(&buffers));
    }

    /// Posts a request other than RDMA.
    pub fn post(&mut self, wr_id: u64, to: UdAddress, opcode: SendOpcode, data: SendData<'_>) {
        self.client.post(wr_id, to, opcode, data).unwrap();
        self.doorbell();
    }

    /// Posts an RDMA request between this host's memory and the memory of `rkey`.
    pub fn post_rdma(&mut self, wr_id: u64, to: UdAddress, rdma: Rdma) {
        let local = self.buffer(rdma.local.0, rdma.local.1);
        let remote = (rdma.remote, rdma.rkey);
        self.client.post_rdma(wr_id, to, rdma.kind, local, remote);
        self.doorbell();
    }

    /// Rings the doorbell of the send queue.
    pub fn doorbell(&mut self) {
        self.device.read_send_doorbell(self.client.qpn).unwrap();
    }

    /// The next completion.
    pub fn poll(&mut self) -> Option<Completion> {
        self.completions.next(&mut self.client)
    }

    /// The next completion, as (work request id, status).
    pub fn outcome(&mut self) -> Option<(u64, Status)> {
        self.poll()
            .map(|completion| (completion.wr_id, completion.status().unwrap()))
    }
}

/// An RDMA request.
#[derive(Clone, Copy)]
pub struct Rdma {
    /// Read or write.
    pub kind: RdmaOperation,
    /// Offset and length in the requester's memory.
    pub local: (u64, u32),
    /// The other host's address.
    pub remote: u64,
    /// The key of the other host's memory.
    pub rkey: u32,
}

/// The operation of an RDMA request.
#[derive(Clone, Copy)]
pub enum RdmaOperation {
    /// A read.
    Read,
    /// A write, with immediate data or without.
    Write(Option<u32>),
}
