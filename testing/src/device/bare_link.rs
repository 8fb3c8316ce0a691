//! Two hosts joined by a link that costs almost nothing and allocates nothing, so that measurements
//! show the device and its user-space half.

use std::time::Duration;

use efa_core::address::Gid;
use efa_core::nic::Status;
use efa_device_model::device::RegionKeys;
use efa_device_model::device::queue::Buffer;
use efa_device_model::link::{
    HostSegment, Link, LinkBusy, LocalData, RequestHeader, Token, Transfer,
};
use efa_device_model::provider::{SendData, SendOpcode, UdAddress};

use super::{Host, MEMORY, QKEY, RdmaOperation, Setup};
use crate::addresses::gid;

const NOW: Duration = Duration::ZERO;

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

/// A transfer that copies nothing.
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

/// The two hosts. The first one makes requests to the second.
pub struct BareLink {
    from: Host,
    to: Host,
    address: UdAddress,
    slot: Slot,
}

impl Default for BareLink {
    fn default() -> Self {
        // libfabric's queue sizes.
        let setup = Setup {
            send_entries: 4096,
            recv_descriptors: 8192,
            cq_entries: 16384,
            ..Setup::default()
        };
        let [mut from, mut to] = [0, 1].map(|number| Host::new(number, &setup));
        to.device.create_ah(to.pd, gid(0)).unwrap();
        let address = UdAddress {
            ahn: from.device.create_ah(from.pd, gid(1)).unwrap().0,
            qpn: to.client.qpn,
            qkey: QKEY,
        };
        BareLink {
            from,
            to,
            address,
            slot: Slot::default(),
        }
    }
}

impl BareLink {
    fn buffer(keys: RegionKeys, length: u32) -> [Buffer; 1] {
        [Buffer::new(MEMORY, length, keys.lkey.0)]
    }

    /// Doorbell, transmit, deliver, complete, poll.
    fn exchange(&mut self, wr_id: u64) {
        self.from.doorbell();
        self.from.device.transmit(NOW, &mut self.slot);
        let (token, header) = self.slot.0.take().expect("one request was posted");
        let status = self.to.device.deliver(gid(0), &header, &mut NoTransfer);
        self.from.device.complete(NOW, token, status);
        assert_eq!(self.from.outcome(), Some((wr_id, Status::Ok)));
    }

    /// Exchanges a 64-byte message: posts the receive and the send, and polls both completions.
    pub fn message(&mut self, wr_id: u64) {
        let receive = Self::buffer(self.to.keys, 8192);
        self.to.client.recv.post(wr_id, &receive).unwrap();
        let send = Self::buffer(self.from.keys, 64);
        let (opcode, data) = (SendOpcode::Send, SendData::Buffers(&send));
        let posted = self.from.client.post(wr_id, self.address, opcode, data);
        posted.unwrap();
        self.exchange(wr_id);
        assert_eq!(self.to.outcome(), Some((wr_id, Status::Ok)));
    }

    /// Writes 64 bytes by RDMA through the builder session, and polls the completion.
    pub fn write(&mut self, wr_id: u64) {
        let [local] = Self::buffer(self.from.keys, 64);
        let remote = (MEMORY, self.to.keys.rkey.0);
        let kind = RdmaOperation::Write(None);
        self.from
            .client
            .post_rdma(wr_id, self.address, kind, local, remote);
        self.exchange(wr_id);
    }

    /// Runs one turn of the device and of the client without work.
    pub fn idle(&mut self) {
        assert_eq!(self.from.device.transmit(NOW, &mut self.slot), 0);
        assert!(self.from.poll().is_none());
    }
}
