//! An ordinary process of the fabric, the peer of guests.

use std::path::Path;

use efa_core::address::Gid;
use efa_device_model::device::Service;
use efa_device_model::provider::{Completion, SendData, UdAddress};
use efa_shm::HostConfig;
use efa_testing::device::{QKEY, RdmaOperation};
use efa_testing::engine::{Address, Client, Memory};

use super::guest::FABRIC;

/// A process with a queue pair and registered memory.
pub(crate) struct Process {
    client: Client,
    pub(crate) memory: Memory,
}

impl Process {
    pub(crate) fn new(root: &Path, host: &str) -> Process {
        let config = HostConfig::new(FABRIC, host);
        let client = Client::open_with(root, &config, QKEY, Service::Srd, |_| {});
        let memory = client.register(vec![0; 32 << 10]);
        Process { client, memory }
    }

    pub(crate) fn gid(&self) -> Gid {
        self.client.engine.gid()
    }

    /// The address for peers, whose handle for its host is `ahn`.
    pub(crate) fn address(&self, ahn: u16) -> UdAddress {
        let (qpn, qkey) = (self.client.address().qpn, QKEY);
        UdAddress { ahn, qpn, qkey }
    }

    /// Creates an address handle for a peer's host.
    pub(crate) fn connect(&self, gid: Gid) -> u16 {
        let of_host = Address {
            gid,
            ..self.client.address()
        };
        self.client.connect(of_host).ahn
    }

    /// Address and key of its memory, for peers.
    pub(crate) fn remote(&self, offset: u64) -> (u64, u32) {
        (self.memory.address() + offset, self.memory.keys.rkey.0)
    }

    pub(crate) fn post_recv(&mut self, wr_id: u64, offset: usize, length: usize) {
        self.client
            .post_recv(wr_id, self.memory.buffer(offset, length));
    }

    pub(crate) fn post_send(&mut self, wr_id: u64, to: UdAddress, offset: usize, length: usize) {
        let data = [self.memory.buffer(offset, length)];
        assert!(self.client.post_send(wr_id, to, SendData::Buffers(&data)));
    }

    pub(crate) fn post_rdma(
        &mut self,
        wr_id: u64,
        to: UdAddress,
        kind: RdmaOperation,
        length: usize,
        remote: (u64, u32),
    ) {
        let local = self.memory.buffer(0, length);
        self.client.post_rdma(wr_id, to, kind, local, remote);
    }

    pub(crate) fn progress(&self) {
        self.client.engine.progress();
    }

    /// Waits for the next completion.
    pub(crate) fn completion(&mut self) -> Completion {
        self.client.wait()
    }
}
