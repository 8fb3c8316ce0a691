//! A small verbs client on an engine: one queue pair, one completion queue.

use std::path::Path;

use efa_core::address::{Gid, Qkey, Qpn};
use efa_core::nic::{Access, Status};
use efa_device_model::device::queue::{Buffer, WqeSize};
use efa_device_model::device::{
    CqId, Lkey, MemoryRegion, PdId, QpChange, QpConfig, RegionKeys, Service,
};
use efa_device_model::profile::Profile;
use efa_device_model::provider::{
    Completion, CompletionQueue, SendData, SendOpcode, SendRequest, UdAddress,
};
use efa_shm::{Engine, Fabric, HostConfig};
use efa_testing::device::{ClientQueues, RdmaOperation};

/// Name of the fabric of all tests; each test has its own directory for it. In this fabric, a seed
/// means the same to given GIDs as in the simulation.
pub(crate) const FABRIC: &str = efa_shm::DEFAULT_FABRIC;

/// The address of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Address {
    pub(crate) gid: Gid,
    pub(crate) qpn: Qpn,
    pub(crate) qkey: Qkey,
}

impl Address {
    pub(crate) fn to_text(self) -> String {
        format!("{} {} {}", self.gid, self.qpn, self.qkey.0)
    }

    pub(crate) fn from_text(text: &str) -> Address {
        let mut fields = text.split_whitespace();
        let mut next = || fields.next().expect("an address has three fields");
        Address {
            gid: Gid::from(next().parse::<std::net::Ipv6Addr>().unwrap()),
            qpn: Qpn(next().parse().unwrap()),
            qkey: Qkey(next().parse().unwrap()),
        }
    }
}

/// An opened device with one queue pair that is ready to send.
pub(crate) struct Client {
    pub(crate) engine: Engine,
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
    completions: CompletionQueue,
    queues: ClientQueues,
    qkey: Qkey,
    /// Whether a completion may come twice.
    pub(crate) may_repeat: bool,
}

/// Registered memory.
pub(crate) struct Memory {
    pub(crate) bytes: Box<[u8]>,
    pub(crate) keys: RegionKeys,
}

impl Memory {
    pub(crate) fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }

    pub(crate) fn buffer(&self, offset: usize, length: usize) -> Buffer {
        assert!(offset + length <= self.bytes.len());
        Buffer {
            address: self.address() + offset as u64,
            length: length as u32,
            lkey: self.keys.lkey.0,
        }
    }
}

pub(crate) fn fabric(root: &Path) -> Fabric {
    Fabric::open_below(root, FABRIC).unwrap()
}

pub(crate) fn config(host: &str) -> HostConfig {
    HostConfig::new(FABRIC, host)
}

impl Client {
    pub(crate) fn open(root: &Path, config: &HostConfig) -> Client {
        Client::open_with(root, config, Qkey(std::process::id()), Service::Srd, |_| {})
    }

    pub(crate) fn open_with(
        root: &Path,
        config: &HostConfig,
        qkey: Qkey,
        service: Service,
        change: impl FnOnce(&mut Profile),
    ) -> Client {
        let mut profile = Profile::by_name("efa2").unwrap().clone();
        change(&mut profile);
        let engine = Engine::open_in(&fabric(root), config, profile.clone()).unwrap();
        let (pd, cq, ring) = engine
            .with_device(|device| {
                let pd = device.alloc_pd().unwrap();
                let request_ids = profile.longest_request_ids();
                let (cq, ring) = device.create_cq(16384, request_ids).unwrap();
                (pd, cq, ring)
            })
            .unwrap();
        let (qpn, rings) = engine
            .create_qp(QpConfig {
                service,
                pd,
                send_cq: cq,
                recv_cq: cq,
                send_entries: 1024,
                wqe_size: WqeSize::Bytes64,
                recv_descriptors: 4096,
                unsolicited_write_recv: false,
                request_ids: profile.longest_request_ids(),
            })
            .unwrap();
        let generation = qpn.0.into();
        let mut client = Client {
            engine,
            pd,
            cq,
            completions: CompletionQueue::new(ring),
            queues: ClientQueues::new(qpn, rings, &profile, WqeSize::Bytes64, generation),
            qkey,
            may_repeat: false,
        };
        client.ready();
        client
    }

    fn ready(&mut self) {
        for change in QpChange::bring_up(self.qkey, None) {
            self.modify(&change);
        }
    }

    pub(crate) fn modify(&mut self, change: &QpChange) {
        self.engine.modify_qp(self.queues.qpn, change).unwrap();
        if let Some(state) = change.state {
            self.queues.set_state(state);
        }
    }

    pub(crate) fn address(&self) -> Address {
        Address {
            gid: self.engine.gid(),
            qpn: self.queues.qpn,
            qkey: self.qkey,
        }
    }

    /// The raw address handle of a peer, with the other fields that a work request needs.
    pub(crate) fn connect(&self, to: Address) -> UdAddress {
        let ahn = self
            .engine
            .with_device(|device| device.create_ah(self.pd, to.gid))
            .unwrap()
            .unwrap();
        UdAddress {
            ahn: ahn.0,
            qpn: to.qpn,
            qkey: to.qkey,
        }
    }

    pub(crate) fn register(&self, bytes: Vec<u8>) -> Memory {
        let bytes = bytes.into_boxed_slice();
        let region = MemoryRegion {
            address: bytes.as_ptr() as u64,
            length: bytes.len() as u64,
            iova: bytes.as_ptr() as u64,
            access: Access::all(),
        };
        let keys = self
            .engine
            .with_device(|device| device.register_memory(self.pd, region))
            .unwrap()
            .unwrap();
        Memory { bytes, keys }
    }

    pub(crate) fn deregister(&self, lkey: Lkey) {
        self.engine.deregister_memory(lkey).unwrap();
    }

    pub(crate) fn post_recv(&mut self, wr_id: u64, buffer: Buffer) {
        self.queues.recv.post(wr_id, &[buffer]).unwrap();
    }

    /// Posts a send; returns false if the queue is full.
    pub(crate) fn post_send(&mut self, wr_id: u64, to: UdAddress, data: SendData<'_>) -> bool {
        let posted = self.post_send_quietly(wr_id, to, data);
        if posted {
            self.engine.process_send_doorbell(self.queues.qpn).unwrap();
        }
        posted
    }

    /// Posts a send and writes the doorbell, but does not call the engine.
    pub(crate) fn post_send_quietly(
        &mut self,
        wr_id: u64,
        to: UdAddress,
        data: SendData<'_>,
    ) -> bool {
        let request = SendRequest {
            wr_id,
            opcode: SendOpcode::Send,
            flags: match data {
                SendData::Inline(_) => 1 << 3,
                SendData::Buffers(_) => 0,
            },
            to,
            data,
        };
        match self.queues.send.post(&request) {
            Ok(()) => true,
            Err(efa_device_model::device::Error::QueueFull(_)) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Wakes the engine for sends of `post_send_quietly`, as a client that makes no calls does.
    pub(crate) fn ring_directly(&self) {
        let ring = self.queues.send.ring();
        let direct = ring.direct_doorbell().expect("the queue pair is watched");
        direct.doorbell().write(ring.doorbell().read());
    }

    /// Asks for an event at the next completion.
    pub(crate) fn arm(&mut self) {
        self.completions.event_received();
        self.completions.request_notification();
        self.engine.arm_cq(self.cq).unwrap();
    }

    pub(crate) fn post_read(
        &mut self,
        wr_id: u64,
        to: UdAddress,
        local: Buffer,
        remote: (u64, u32),
    ) {
        self.post_rdma(wr_id, to, RdmaOperation::Read, local, remote);
    }

    pub(crate) fn post_write(
        &mut self,
        wr_id: u64,
        to: UdAddress,
        local: Buffer,
        remote: (u64, u32),
        immediate: Option<u32>,
    ) {
        self.post_rdma(wr_id, to, RdmaOperation::Write(immediate), local, remote);
    }

    fn post_rdma(
        &mut self,
        wr_id: u64,
        to: UdAddress,
        kind: RdmaOperation,
        local: Buffer,
        remote: (u64, u32),
    ) {
        self.queues.post_rdma(wr_id, to, kind, local, remote);
        self.engine.process_send_doorbell(self.queues.qpn).unwrap();
    }

    /// The next completion, if there is one. If there is none, runs the engine, and if there is
    /// still none, yields to other threads.
    pub(crate) fn poll(&mut self) -> Option<Completion> {
        self.glance().or_else(|| {
            self.engine.progress();
            let found = self.glance();
            if found.is_none() && self.engine.should_rest() {
                self.engine.rest();
            }
            found
        })
    }

    /// The next completion that is there without a call of the engine.
    pub(crate) fn glance(&mut self) -> Option<Completion> {
        let found = self.completions.next(&mut self.queues);
        assert!(self.may_repeat || self.stale() == 0, "a stale completion");
        found
    }

    /// Completions that belonged to no request.
    pub(crate) fn stale(&self) -> u64 {
        self.completions.stale()
    }

    /// Waits for the next completion.
    pub(crate) fn wait(&mut self) -> Completion {
        loop {
            if let Some(completion) = self.poll() {
                return completion;
            }
            std::thread::yield_now();
        }
    }

    /// Waits for the next completion, and asserts that it is a success.
    pub(crate) fn wait_ok(&mut self) -> Completion {
        let completion = self.wait();
        assert_eq!(completion.status(), Some(Status::Ok), "{completion:?}");
        completion
    }

    /// Destroys the queue pair.
    pub(crate) fn destroy_qp(&mut self) {
        self.engine.destroy_qp(self.queues.qpn).unwrap();
    }
}
