//! A small verbs client on an engine of the shared memory fabric: one queue pair, one completion
//! queue.

use std::path::Path;

use efa_core::address::{Gid, Qkey, Qpn};
use efa_core::nic::{Access, Status};
use efa_device_model::device::queue::Buffer;
use efa_device_model::device::{CqId, Lkey, MemoryRegion, PdId, QpChange, RegionKeys, Service};
use efa_device_model::profile::Profile;
use efa_device_model::provider::{Completion, CompletionQueue, SendData, SendOpcode, UdAddress};
use efa_shm::{Engine, Fabric, HostConfig};

use crate::device::{ClientQueues, RdmaOperation, Setup};

/// Name of the fabric of all tests; each test has its own directory for it. In this fabric, a seed
/// means the same to given GIDs as in the simulation.
pub const FABRIC: &str = efa_shm::DEFAULT_FABRIC;

/// The address of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// The GID of its device.
    pub gid: Gid,
    /// The number of its queue pair.
    pub qpn: Qpn,
    /// The Q-key of its queue pair.
    pub qkey: Qkey,
}

impl Address {
    /// The address as a line for another process.
    pub fn to_text(self) -> String {
        format!("{} {} {}", self.gid, self.qpn, self.qkey.0)
    }

    /// Reads a line of [`Address::to_text`].
    pub fn from_text(text: &str) -> Address {
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
pub struct Client {
    /// Its device.
    pub engine: Engine,
    /// The protection domain of all objects.
    pub pd: PdId,
    /// The completion queue of both queues.
    pub cq: CqId,
    completions: CompletionQueue,
    queues: ClientQueues,
    qkey: Qkey,
    /// Whether a completion may come twice.
    pub may_repeat: bool,
}

/// Registered memory.
pub struct Memory {
    /// The bytes, which the device accesses at their own address.
    pub bytes: Box<[u8]>,
    /// The keys of the memory.
    pub keys: RegionKeys,
}

impl Memory {
    /// The address of the first byte.
    pub fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }

    /// A part of the memory.
    pub fn buffer(&self, offset: usize, length: usize) -> Buffer {
        assert!(offset + length <= self.bytes.len());
        Buffer {
            address: self.address() + offset as u64,
            length: length as u32,
            lkey: self.keys.lkey.0,
        }
    }
}

/// The fabric of tests below `root`.
pub fn fabric(root: &Path) -> Fabric {
    Fabric::open_below(root, FABRIC).unwrap()
}

/// The configuration of a host with one device.
pub fn config(host: &str) -> HostConfig {
    HostConfig::new(FABRIC, host)
}

impl Client {
    /// Opens the device of a host in a fabric below `root`.
    pub fn open(root: &Path, config: &HostConfig) -> Client {
        Client::open_with(root, config, Qkey(std::process::id()), Service::Srd, |_| {})
    }

    /// Opens it with this Q-key, a queue pair of this service, and changes of the profile.
    pub fn open_with(
        root: &Path,
        config: &HostConfig,
        qkey: Qkey,
        service: Service,
        change: impl FnOnce(&mut Profile),
    ) -> Client {
        let mut profile = Profile::by_name("efa2").unwrap().clone();
        change(&mut profile);
        let fabric = Fabric::open_below(root, &config.fabric).unwrap();
        let engine = Engine::open_in(&fabric, config, profile.clone()).unwrap();
        let (pd, cq, ring) = engine
            .with_device(|device| {
                let pd = device.alloc_pd().unwrap();
                let request_ids = profile.longest_request_ids();
                let (cq, ring) = device.create_cq(16384, request_ids).unwrap();
                (pd, cq, ring)
            })
            .unwrap();
        let setup = Setup {
            profile,
            service,
            send_entries: 1024,
            recv_descriptors: 4096,
            ..Setup::default()
        };
        let (qpn, rings) = engine.create_qp(setup.config(pd, cq)).unwrap();
        let generation = qpn.0.into();
        let mut client = Client {
            engine,
            pd,
            cq,
            completions: CompletionQueue::new(ring),
            queues: ClientQueues::new(qpn, rings, &setup.profile, setup.wqe_size, generation),
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

    /// Changes the queue pair's attributes and state.
    pub fn modify(&mut self, change: &QpChange) {
        self.engine.modify_qp(self.queues.qpn, change).unwrap();
        if let Some(state) = change.state {
            self.queues.set_state(state);
        }
    }

    /// The address for peers.
    pub fn address(&self) -> Address {
        Address {
            gid: self.engine.gid(),
            qpn: self.queues.qpn,
            qkey: self.qkey,
        }
    }

    /// The raw address handle of a peer, with the other fields that a work request needs.
    pub fn connect(&self, to: Address) -> UdAddress {
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

    /// Registers memory for every access.
    pub fn register(&self, bytes: Vec<u8>) -> Memory {
        let bytes = bytes.into_boxed_slice();
        let region = MemoryRegion::new(bytes.as_ptr() as u64, bytes.len() as u64, Access::all());
        let keys = self
            .engine
            .with_device(|device| device.register_memory(self.pd, region))
            .unwrap()
            .unwrap();
        Memory { bytes, keys }
    }

    /// Ends a registration.
    pub fn deregister(&self, lkey: Lkey) {
        self.engine.deregister_memory(lkey).unwrap();
    }

    /// Posts a receive.
    pub fn post_recv(&mut self, wr_id: u64, buffer: Buffer) {
        self.queues.recv.post(wr_id, &[buffer]).unwrap();
    }

    /// Posts a send; returns false if the queue is full.
    pub fn post_send(&mut self, wr_id: u64, to: UdAddress, data: SendData<'_>) -> bool {
        let posted = self.post_send_quietly(wr_id, to, data);
        if posted {
            self.engine.process_send_doorbell(self.queues.qpn).unwrap();
        }
        posted
    }

    /// Posts a send and writes the doorbell, but does not call the engine.
    pub fn post_send_quietly(&mut self, wr_id: u64, to: UdAddress, data: SendData<'_>) -> bool {
        match self.queues.post(wr_id, to, SendOpcode::Send, data) {
            Ok(()) => true,
            Err(efa_device_model::device::Error::QueueFull(_)) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Wakes the engine for sends of `post_send_quietly`, as a client that makes no calls does.
    pub fn ring_directly(&self) {
        let ring = self.queues.send.ring();
        let direct = ring.direct_doorbell().expect("the queue pair is watched");
        direct.doorbell().write(ring.doorbell().read());
    }

    /// Asks for an event at the next completion.
    pub fn arm(&mut self) {
        self.completions.event_received();
        self.completions.request_notification();
        self.engine.arm_cq(self.cq).unwrap();
    }

    /// Posts an RDMA read; `remote` is an address and its key.
    pub fn post_read(&mut self, wr_id: u64, to: UdAddress, local: Buffer, remote: (u64, u32)) {
        self.post_rdma(wr_id, to, RdmaOperation::Read, local, remote);
    }

    /// Posts an RDMA write; `remote` is an address and its key.
    pub fn post_write(
        &mut self,
        wr_id: u64,
        to: UdAddress,
        local: Buffer,
        remote: (u64, u32),
        immediate: Option<u32>,
    ) {
        self.post_rdma(wr_id, to, RdmaOperation::Write(immediate), local, remote);
    }

    /// Posts an RDMA request; `remote` is an address and its key.
    pub fn post_rdma(
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
    pub fn poll(&mut self) -> Option<Completion> {
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
    pub fn glance(&mut self) -> Option<Completion> {
        let found = self.completions.next(&mut self.queues);
        assert!(self.may_repeat || self.stale() == 0, "a stale completion");
        found
    }

    /// Completions that belonged to no request.
    pub fn stale(&self) -> u64 {
        self.completions.stale()
    }

    /// Waits for the next completion.
    pub fn wait(&mut self) -> Completion {
        loop {
            if let Some(completion) = self.poll() {
                return completion;
            }
            std::thread::yield_now();
        }
    }

    /// Waits for the next completion, and asserts that it is a success.
    pub fn wait_ok(&mut self) -> Completion {
        let completion = self.wait();
        assert_eq!(completion.status(), Some(Status::Ok), "{completion:?}");
        completion
    }

    /// Destroys the queue pair.
    pub fn destroy_qp(&mut self) {
        self.engine.destroy_qp(self.queues.qpn).unwrap();
    }
}
