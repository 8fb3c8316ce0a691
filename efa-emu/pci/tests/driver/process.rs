//! An ordinary process of the fabric, the peer of guests.

use std::path::Path;

use efa_core::address::Gid;
use efa_core::nic::Access;
use efa_device_model::device::queue::{Buffer, WqeSize};
use efa_device_model::device::{MemoryRegion, PdId, QpChange, QpConfig, RegionKeys, Service};
use efa_device_model::profile::Profile;
use efa_device_model::provider::{
    Completion, CompletionQueue, SendData, SendOpcode, SendRequest, UdAddress,
};
use efa_shm::Engine;
use efa_testing::device::{ClientQueues, QKEY, RdmaOperation};

use super::guest::open_engine;

/// A process with a queue pair and registered memory.
pub(crate) struct Process {
    engine: Engine,
    pd: PdId,
    queues: ClientQueues,
    completions: CompletionQueue,
    pub(crate) memory: Box<[u8]>,
    keys: RegionKeys,
}

impl Process {
    pub(crate) fn new(root: &Path, host: &str) -> Process {
        let profile = Profile::default();
        let engine = open_engine(root, host, &profile);
        let request_ids = profile.longest_request_ids();
        let (pd, cq, ring) = engine
            .with_device(|device| {
                let pd = device.alloc_pd().unwrap();
                let (cq, ring) = device.create_cq(256, request_ids).unwrap();
                (pd, cq, ring)
            })
            .unwrap();
        let config = QpConfig {
            service: Service::Srd,
            pd,
            send_cq: cq,
            recv_cq: cq,
            send_entries: 64,
            wqe_size: WqeSize::Bytes64,
            recv_descriptors: 128,
            unsolicited_write_recv: false,
            request_ids,
        };
        let (qpn, rings) = engine.create_qp(config).unwrap();
        let mut queues = ClientQueues::new(qpn, rings, &profile, WqeSize::Bytes64, 0);
        for change in QpChange::bring_up(QKEY, None) {
            engine.modify_qp(qpn, &change).unwrap();
            queues.set_state(change.state.unwrap());
        }
        let memory = vec![0; 32 << 10].into_boxed_slice();
        let region = MemoryRegion {
            address: memory.as_ptr() as u64,
            length: memory.len() as u64,
            iova: memory.as_ptr() as u64,
            access: Access::all(),
        };
        let keys = engine.register_memory(pd, region).unwrap();
        Process {
            engine,
            pd,
            queues,
            completions: CompletionQueue::new(ring),
            memory,
            keys,
        }
    }

    pub(crate) fn gid(&self) -> Gid {
        self.engine.gid()
    }

    /// The address for peers, whose handle for its host is `ahn`.
    pub(crate) fn address(&self, ahn: u16) -> UdAddress {
        UdAddress {
            ahn,
            qpn: self.queues.qpn,
            qkey: QKEY,
        }
    }

    /// Creates an address handle for a peer's host.
    pub(crate) fn connect(&self, gid: Gid) -> u16 {
        let made = self
            .engine
            .with_device(|device| device.create_ah(self.pd, gid));
        made.unwrap().unwrap().0
    }

    /// Address and key of its memory, for peers.
    pub(crate) fn remote(&self, offset: u64) -> (u64, u32) {
        (self.memory.as_ptr() as u64 + offset, self.keys.rkey.0)
    }

    fn buffer(&self, offset: u64, length: u32) -> Buffer {
        Buffer {
            address: self.memory.as_ptr() as u64 + offset,
            length,
            lkey: self.keys.lkey.0,
        }
    }

    pub(crate) fn post_recv(&mut self, wr_id: u64, offset: u64, length: u32) {
        let buffer = self.buffer(offset, length);
        self.queues.recv.post(wr_id, &[buffer]).unwrap();
    }

    pub(crate) fn post_send(&mut self, wr_id: u64, to: UdAddress, offset: u64, length: u32) {
        let request = SendRequest {
            wr_id,
            opcode: SendOpcode::Send,
            flags: 0,
            to,
            data: SendData::Buffers(&[self.buffer(offset, length)]),
        };
        self.queues.send.post(&request).unwrap();
        self.engine.process_send_doorbell(self.queues.qpn).unwrap();
    }

    pub(crate) fn post_rdma(
        &mut self,
        wr_id: u64,
        to: UdAddress,
        kind: RdmaOperation,
        length: u32,
        remote: (u64, u32),
    ) {
        let local = self.buffer(0, length);
        self.queues.post_rdma(wr_id, to, kind, local, remote);
        self.engine.process_send_doorbell(self.queues.qpn).unwrap();
    }

    pub(crate) fn progress(&self) {
        self.engine.progress();
    }

    /// Waits for the next completion.
    pub(crate) fn completion(&mut self) -> Completion {
        loop {
            if let Some(completion) = self.completions.next(&mut self.queues) {
                return completion;
            }
            self.engine.progress();
            std::thread::yield_now();
        }
    }
}
