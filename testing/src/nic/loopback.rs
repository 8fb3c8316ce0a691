//! A device that delivers to itself, and allocates nothing once it is open.

use std::collections::VecDeque;

use efa_core::address::{Ahn, Gid, Qkey, Qpn, RawAddress};
use efa_core::nic::{
    Access, BufferId, Completion, CompletionKind, DeviceCaps, LocalKey, NicAttributes, NicError,
    RdmaRequest, Region, RemoteKey, SendRequest, Source, Status, UserSlice,
};

use efa_core::nic::test_device::{Buffers, TestDomain, TestNic, Transport};

const MTU: usize = 1024;
const DEPTH: usize = 256;

const ADDRESS: RawAddress = RawAddress::new(Gid([7; 16]), Qpn(1), Qkey(2));

/// The device with its only queue pair. Its memory starts at address 0.
pub type LoopbackNic = TestNic<Loopback>;

/// The transport of packets from a device to itself.
pub struct Loopback {
    receives: VecDeque<BufferId>,
    completions: VecDeque<Completion>,
    memory: Vec<u8>,
    swap: bool,
    swapped: Option<Completion>,
}

impl Loopback {
    /// Bytes of the device's memory.
    pub const MEMORY_SIZE: usize = 1 << 20;
    /// The capabilities of the newest generation of the device.
    pub const ALL: DeviceCaps = DeviceCaps::RDMA_READ.union(DeviceCaps::RDMA_WRITE);

    /// Opens a device with the capabilities `caps`. With `swap`, packets are delivered in pairs,
    /// the later one first.
    pub fn open(caps: DeviceCaps, swap: bool) -> LoopbackNic {
        let carrier = Loopback {
            receives: VecDeque::with_capacity(DEPTH),
            completions: VecDeque::with_capacity(4 * DEPTH),
            memory: vec![0; Self::MEMORY_SIZE],
            swap,
            swapped: None,
        };
        let attributes = NicAttributes {
            caps,
            mtu: MTU,
            max_rdma_size: 4096,
            send_queue_depth: DEPTH,
            recv_queue_depth: DEPTH,
            inline_size: 32,
            vendor_part_id: 0xEFA1,
            host_id: 0,
        };
        TestDomain::open(carrier, attributes, ADDRESS, 2 * DEPTH)
    }

    fn rdma(&mut self, context: u64, kind: CompletionKind, from: u64, to: u64, length: usize) {
        self.memory
            .copy_within(from as usize..from as usize + length, to as usize);
        self.complete(context, kind);
    }

    fn complete(&mut self, context: u64, kind: CompletionKind) {
        self.completions.push_back(Completion {
            queue_pair: ADDRESS.qpn,
            context,
            status: Status::Ok,
            kind,
        });
    }
}

impl Transport for Loopback {
    fn post_send(&mut self, buffers: &mut Buffers, request: &SendRequest) -> Result<(), NicError> {
        let target = self.receives.pop_front().ok_or(NicError::QueueFull)?;
        let mut length = request.header_length;
        let mut packet = std::mem::take(&mut buffers.bytes[target.0 as usize]);
        packet[..length].copy_from_slice(&buffers.bytes[request.buffer.0 as usize][..length]);
        if let Some((slice, _)) = request.payload {
            let from = slice.address as usize;
            packet[length..length + slice.length]
                .copy_from_slice(&self.memory[from..from + slice.length]);
            length += slice.length;
        }
        buffers.bytes[target.0 as usize] = packet;
        let arrival = Completion {
            queue_pair: ADDRESS.qpn,
            context: 0,
            status: Status::Ok,
            kind: CompletionKind::Recv {
                buffer: target,
                length,
                source: source(),
                immediate: None,
            },
        };
        match (self.swap, self.swapped.take()) {
            (true, None) => self.swapped = Some(arrival),
            (true, Some(earlier)) => self.completions.extend([arrival, earlier]),
            (false, _) => self.completions.push_back(arrival),
        }
        let buffer = request.buffer;
        self.complete(request.context, CompletionKind::Send { buffer });
        Ok(())
    }

    fn post_recv(&mut self, _: &mut Buffers, buffer: BufferId) -> Result<(), NicError> {
        self.receives.push_back(buffer);
        Ok(())
    }

    fn post_read(&mut self, request: &RdmaRequest) -> Result<(), NicError> {
        let (local, remote) = (request.local, request.remote_address);
        let kind = CompletionKind::RdmaRead;
        self.rdma(request.context, kind, remote, local.address, local.length);
        Ok(())
    }

    fn post_write(&mut self, request: &RdmaRequest) -> Result<(), NicError> {
        let (local, remote) = (request.local, request.remote_address);
        let kind = CompletionKind::RdmaWrite;
        self.rdma(request.context, kind, local.address, remote, local.length);
        if let Some(immediate) = request.immediate {
            let buffer = self.receives.pop_front().ok_or(NicError::QueueFull)?;
            let kind = CompletionKind::RecvRdmaWithImmediate {
                buffer: Some(buffer),
                length: local.length,
                source: source(),
                immediate,
            };
            self.complete(0, kind);
        }
        Ok(())
    }

    fn poll(&mut self, _: &mut Buffers, completions: &mut Vec<Completion>, limit: usize) -> usize {
        if self.completions.is_empty() {
            // No later packet follows that could overtake it.
            self.completions.extend(self.swapped.take());
        }
        let count = self.completions.len().min(limit);
        completions.extend(self.completions.drain(..count));
        count
    }

    fn register(&mut self, _: UserSlice, _: Access) -> Result<Region, NicError> {
        Ok(Region {
            local_key: LocalKey(1),
            remote_key: RemoteKey(1),
        })
    }

    fn deregister(&mut self, _: Region) -> Result<(), NicError> {
        Ok(())
    }

    fn create_address_handle(&mut self, gid: Gid) -> Result<Ahn, NicError> {
        Ok(ahn(gid))
    }

    fn destroy_address_handle(&mut self, _: Ahn) -> Result<(), NicError> {
        Ok(())
    }

    fn user<R>(
        &mut self,
        memory: UserSlice,
        access: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, NicError> {
        Ok(access(
            &mut self.memory[memory.address as usize..][..memory.length],
        ))
    }
}

fn source() -> Source {
    Source {
        ahn: Some(ahn(ADDRESS.gid)),
        qpn: ADDRESS.qpn,
        gid: None,
    }
}

/// The last two bytes of a GID identify the host.
fn ahn(gid: Gid) -> Ahn {
    Ahn(u16::from_be_bytes([gid.0[14], gid.0[15]]))
}
