//! An endpoint that talks to itself over a [`Loopback`] device, past its handshake.

use core::hint::black_box;

use efa_core::address::{Gid, Qkey, Qpn, RawAddress};
use efa_core::endpoint::*;
use efa_core::nic::{Access, Region, UserSlice};

#[path = "loopback.rs"]
mod loopback;

use loopback::{Loopback, LoopbackDomain};

pub(crate) struct Subject {
    endpoint: Endpoint<Loopback>,
    pub(crate) peer: PeerId,
    region: Region,
}

impl Subject {
    pub(crate) fn new() -> Self {
        let config = EndpointConfig {
            completion_queue: 1 << 20,
            ..EndpointConfig::default()
        };
        let mut endpoint = Endpoint::new(LoopbackDomain::new(false).open(), config).unwrap();
        let peer = endpoint.insert_address(endpoint.address()).unwrap();
        let memory = UserSlice {
            address: 0,
            length: 1 << 20,
        };
        let region = endpoint.register(memory, Access::all()).unwrap();
        let mut subject = Subject {
            endpoint,
            peer,
            region,
        };
        subject.recv(SourceFilter::Any, None, 0);
        subject.send(None, 0);
        subject.finish(2);
        subject
    }

    /// Puts so many other endpoints into the address vector, a thousand per host.
    #[allow(dead_code, reason = "not every user has idle peers")]
    pub(crate) fn insert_idle_peers(&mut self, count: u32) {
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

    fn piece(&self, address: u64, length: usize) -> IoVec {
        IoVec {
            memory: UserSlice { address, length },
            region: Some(self.region),
        }
    }

    pub(crate) fn send(&mut self, tag: Option<u64>, length: usize) {
        let data = [self.piece(0, length)];
        self.endpoint
            .send(SendArgs {
                peer: self.peer,
                data: &data,
                tag,
                cq_data: None,
                flags: OperationFlags::COMPLETION,
                context: 1,
            })
            .unwrap();
    }

    pub(crate) fn recv(
        &mut self,
        source: SourceFilter,
        tag: Option<TagFilter>,
        length: usize,
    ) -> ReceiveId {
        let buffer = [self.piece(1 << 19, length)];
        self.endpoint
            .recv(RecvArgs {
                source,
                buffer: &buffer,
                tag,
                flags: OperationFlags::COMPLETION,
                context: 2,
            })
            .unwrap()
    }

    pub(crate) fn progress(&mut self) {
        self.endpoint.progress(Instant::START);
    }

    pub(crate) fn finish(&mut self, mut completions: usize) {
        while completions > 0 {
            self.progress();
            while let Some(entry) = self.endpoint.poll_completion() {
                black_box(entry).unwrap();
                completions -= 1;
            }
        }
    }
}
