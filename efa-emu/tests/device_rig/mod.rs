//! Two devices joined by a link that costs next to nothing and allocates nothing: what is measured
//! is the device and its user-space half.

use std::time::Duration;

use efa_core::address::{Gid, Qkey, Qpn};
use efa_core::nic::{Access, Status};
use efa_emu::device::queue::{Buffer, WqeSize};
use efa_emu::device::{Device, MemoryRegion, QpChange, QpConfig, QpState, RegionKeys, Service};
use efa_emu::link::{HostSegment, Link, LinkBusy, LocalData, RequestHeader, Token, Transfer};
use efa_emu::profile::Profile;
use efa_emu::provider::{
    CompletionQueue, QueueOwner, RecvQueue, RecvQueueConfig, Retired, SendData, SendOpcode,
    SendQueue, SendQueueConfig, SendRequest, UdAddress,
};

const MEMORY: u64 = 0x10_0000;
const QKEY: Qkey = Qkey(1);
const NOW: Duration = Duration::ZERO;

struct Client {
    send: SendQueue,
    recv: RecvQueue,
}

impl QueueOwner for Client {
    fn retire_send(&mut self, _: Qpn, request_id: u16) -> Retired {
        self.send.retire(request_id)
    }

    fn retire_recv(&mut self, _: Qpn, request_id: u16) -> Retired {
        self.recv.retire(request_id)
    }

    fn owns(&mut self, _: Qpn) -> bool {
        true
    }
}

struct Host {
    device: Device,
    client: Client,
    completions: CompletionQueue,
    keys: RegionKeys,
    peer: UdAddress,
}

fn gid(number: u8) -> Gid {
    Gid([number; 16])
}

impl Host {
    fn new(number: u8, peer: u8) -> Host {
        let mut device = Device::new(Profile::default(), gid(number));
        let pd = device.alloc_pd().unwrap();
        let region = MemoryRegion {
            address: MEMORY,
            length: 1 << 20,
            iova: MEMORY,
            access: Access::all(),
        };
        let keys = device.register_memory(pd, region).unwrap();
        let (cq, ring) = device.create_cq(16384).unwrap();
        let config = QpConfig {
            service: Service::Srd,
            pd,
            send_cq: cq,
            recv_cq: cq,
            send_entries: 4096,
            wqe_size: WqeSize::Bytes64,
            recv_descriptors: 8192,
            unsolicited_write_recv: false,
        };
        let rings = device.create_qp(Qpn(1), config).unwrap();
        let mut client = Client {
            send: SendQueue::new(
                rings.send,
                SendQueueConfig {
                    max_sge: 2,
                    max_rdma_sge: 1,
                    max_inline: 32,
                    inline_write: false,
                    signal_all: true,
                    generation: 0,
                },
            ),
            recv: RecvQueue::new(
                rings.recv,
                RecvQueueConfig {
                    max_sge: 1,
                    generation: 0,
                },
            ),
        };
        let to = |state| QpChange {
            state: Some(state),
            ..QpChange::default()
        };
        let changes = [
            QpChange {
                pkey_index: Some(0),
                port: Some(1),
                qkey: Some(QKEY),
                ..to(QpState::Init)
            },
            to(QpState::ReadyToReceive),
            QpChange {
                sq_psn: Some(0),
                ..to(QpState::ReadyToSend)
            },
        ];
        for change in changes {
            device.modify_qp(Qpn(1), &change).unwrap();
        }
        client.send.set_state(QpState::ReadyToSend);
        client.recv.set_state(QpState::ReadyToSend);
        let peer = UdAddress {
            ahn: device.create_ah(pd, gid(peer)).unwrap().0,
            qpn: Qpn(1),
            qkey: QKEY,
        };
        Host {
            device,
            client,
            completions: CompletionQueue::new(ring),
            keys,
            peer,
        }
    }
}

/// Holds one request.
#[derive(Default)]
struct Slot(Option<(Token, RequestHeader)>);

impl Link for Slot {
    fn try_send(
        &mut self,
        _: Gid,
        token: Token,
        header: &RequestHeader,
        _: LocalData<'_>,
    ) -> Result<(), LinkBusy> {
        if self.0.is_some() {
            return Err(LinkBusy);
        }
        self.0 = Some((token, *header));
        Ok(())
    }
}

/// Moves nothing.
struct NoTransfer;

impl Transfer for NoTransfer {
    fn fetch(&mut self, _: u32, _: HostSegment) -> Result<(), Status> {
        Ok(())
    }

    fn store(&mut self, _: u32, _: HostSegment) -> Result<(), Status> {
        Ok(())
    }

    fn fill(&mut self, _: u64, _: &[u8]) -> Result<(), Status> {
        Ok(())
    }
}

pub(crate) struct Rig {
    from: Host,
    to: Host,
    slot: Slot,
}

impl Rig {
    pub(crate) fn new() -> Rig {
        Rig {
            from: Host::new(1, 2),
            to: Host::new(2, 1),
            slot: Slot::default(),
        }
    }

    fn buffer(keys: RegionKeys, length: u32) -> [Buffer; 1] {
        [Buffer {
            address: MEMORY,
            length,
            lkey: keys.lkey.0,
        }]
    }

    /// Doorbell, transmit, deliver, complete.
    fn exchange(&mut self) -> Status {
        self.from.device.look_at_send_queue(Qpn(1)).unwrap();
        self.from.device.transmit(NOW, &mut self.slot);
        let (token, header) = self.slot.0.take().expect("one request was posted");
        let device = &mut self.to.device;
        let status = device.deliver(gid(1), &header, &mut NoTransfer);
        self.from.device.complete(NOW, token, status);
        status
    }

    /// A 64-byte message with everything that belongs to it: the receive posted, the send posted,
    /// both completions polled.
    pub(crate) fn message(&mut self, wr_id: u64) {
        let receive = Self::buffer(self.to.keys, 8192);
        self.to.client.recv.post(wr_id, &receive).unwrap();
        let send = Self::buffer(self.from.keys, 64);
        let request = SendRequest {
            wr_id,
            opcode: SendOpcode::Send,
            flags: 0,
            to: self.from.peer,
            data: SendData::Buffers(&send),
        };
        self.from.client.send.post(&request).unwrap();
        assert_eq!(self.exchange(), Status::Ok);
        for host in [&mut self.from, &mut self.to] {
            let completion = host.completions.next(&mut host.client).expect("completed");
            assert_eq!(completion.wr_id, wr_id);
        }
    }

    /// An RDMA write of 64 bytes through the builder session, with its completion polled.
    pub(crate) fn write(&mut self, wr_id: u64) {
        let local = Self::buffer(self.from.keys, 64);
        let send = &mut self.from.client.send;
        send.start();
        send.rdma_write(wr_id, 0, self.to.keys.rkey.0, MEMORY, None);
        send.set_ud_addr(self.from.peer);
        send.set_sge_list(&local);
        send.complete().unwrap();
        assert_eq!(self.exchange(), Status::Ok);
        let host = &mut self.from;
        let completion = host.completions.next(&mut host.client).expect("completed");
        assert_eq!(completion.wr_id, wr_id);
    }

    /// A turn of the device and of the client with nothing to do.
    pub(crate) fn idle(&mut self) {
        let host = &mut self.from;
        assert_eq!(host.device.transmit(NOW, &mut self.slot), 0);
        assert!(host.completions.next(&mut host.client).is_none());
    }
}
