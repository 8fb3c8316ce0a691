//! An endpoint that talks to itself over a [`Loopback`] device, past its handshake.

use core::hint::black_box;

use efa_core::endpoint::*;
use efa_core::nic::{Access, Region, UserSlice};

#[path = "loopback.rs"]
mod loopback;

use loopback::Loopback;

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
        let mut endpoint = Endpoint::new(Loopback::new(false), config).unwrap();
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
