//! An endpoint that talks to itself over a [`Loopback`] device.

use std::hint::black_box;

use efa_core::address::{Gid, Qkey, Qpn, RawAddress};
use efa_core::endpoint::{
    Endpoint, EndpointConfig, Instant, IoVec, OperationFlags, PeerId, ReceiveId, RecvArgs,
    SendArgs, SourceFilter, TagFilter,
};
use efa_core::nic::{Access, DeviceCaps, Region, UserSlice};

use crate::nic::{Loopback, LoopbackNic};

/// The endpoint, after its handshake. It sends from the first half of the memory and receives into
/// the second half.
pub struct SelfTalk {
    /// The endpoint.
    pub endpoint: Endpoint<LoopbackNic>,
    /// The endpoint itself in its address vector.
    pub peer: PeerId,
    /// All of its memory.
    pub region: Region,
}

impl Default for SelfTalk {
    /// On the newest device, with room for a million completions.
    fn default() -> Self {
        let config = EndpointConfig {
            completion_queue: 1 << 20,
            ..EndpointConfig::default()
        };
        SelfTalk::new(config, Loopback::ALL, false)
    }
}

impl SelfTalk {
    /// Opens the endpoint on a device of [`Loopback::open`].
    pub fn new(config: EndpointConfig, caps: DeviceCaps, swap: bool) -> Self {
        let mut endpoint = Endpoint::new(Loopback::open(caps, swap), config).unwrap();
        let peer = endpoint.insert_address(endpoint.address()).unwrap();
        let memory = UserSlice::new(0, Loopback::MEMORY_SIZE);
        let region = endpoint.register(memory, Access::all()).unwrap();
        let mut this = SelfTalk {
            endpoint,
            peer,
            region,
        };
        this.recv(SourceFilter::Any, None, 0);
        this.send(None, 0);
        this.finish(2);
        while this.progress() > 0 {}
        this
    }

    /// Inserts `count` other endpoints into the address vector, a thousand per host.
    pub fn insert_idle_peers(&mut self, count: u32) {
        for number in 0..count {
            let [high, low] = ((number / 1000) as u16).to_be_bytes();
            let mut gid = [0xFE; 16];
            (gid[14], gid[15]) = (high, low);
            let address = RawAddress {
                gid: Gid(gid),
                qpn: Qpn((number % 1000) as u16),
                qkey: Qkey(number.wrapping_mul(0x9e37_79b9)),
            };
            self.endpoint.insert_address(address).unwrap();
        }
    }

    /// A piece of its memory.
    pub fn piece(&self, address: u64, length: usize) -> IoVec {
        IoVec {
            memory: UserSlice { address, length },
            region: Some(self.region),
        }
    }

    /// Sends a message.
    pub fn send(&mut self, tag: Option<u64>, length: usize) {
        self.send_with(tag, length, None, OperationFlags::empty());
    }

    /// Sends a message with CQ data and flags.
    pub fn send_with(
        &mut self,
        tag: Option<u64>,
        length: usize,
        cq_data: Option<u64>,
        flags: OperationFlags,
    ) {
        let data = [self.piece(0, length)];
        self.endpoint
            .send(SendArgs {
                peer: self.peer,
                data: &data,
                tag,
                cq_data,
                flags: flags | OperationFlags::COMPLETION,
                context: 1,
            })
            .unwrap();
    }

    /// Posts a receive.
    pub fn recv(
        &mut self,
        source: SourceFilter,
        tag: Option<TagFilter>,
        length: usize,
    ) -> ReceiveId {
        let buffer = [self.piece(Loopback::MEMORY_SIZE as u64 / 2, length)];
        self.endpoint
            .recv(RecvArgs {
                tag,
                ..RecvArgs::new(source, &buffer, 2)
            })
            .unwrap()
    }

    /// Polls the device once. Returns the number of completions.
    pub fn progress(&mut self) -> usize {
        self.endpoint.progress(Instant::START)
    }

    /// Runs until this number of operations has completed.
    pub fn finish(&mut self, mut completions: usize) {
        for _ in 0..1_000_000 {
            if completions == 0 {
                return;
            }
            self.progress();
            while let Some(entry) = self.endpoint.poll_completion() {
                black_box(entry).unwrap();
                completions -= 1;
            }
        }
        panic!("{completions} completions are missing");
    }
}
