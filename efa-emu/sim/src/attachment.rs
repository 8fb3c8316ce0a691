//! Attaches a device to the wire: requests leave through [`Uplink`], data is transferred through
//! [`Dma`].

use efa_core::address::Gid;
use efa_core::nic::Status;

use super::host_id::HostId;
use super::memory::AddressSpace;
use super::wire::Wire;
use efa_device_model::link::{
    HostSegment, Link, LinkBusy, LocalData, RequestHeader, Token, Transfer,
};

/// The interface of the wire for one host's device.
pub(super) struct Uplink<'a> {
    pub(super) wire: &'a mut Wire,
    pub(super) host: HostId,
    pub(super) memory: &'a AddressSpace,
}

impl Link for Uplink<'_> {
    fn try_send(
        &mut self,
        to: Gid,
        token: Token,
        header: &RequestHeader,
        data: LocalData<'_>,
    ) -> Result<(), LinkBusy> {
        self.wire
            .accept(self.host, self.memory, to, token, header, data)
    }
}

/// Moves a request's data between the wire and the responder's memory.
pub(super) struct Dma<'a> {
    pub(super) data: &'a mut Vec<u8>,
    pub(super) memory: &'a mut AddressSpace,
}

impl Transfer for Dma<'_> {
    fn fetch(&mut self, offset: u32, to: HostSegment) -> Result<(), Status> {
        let length = to.length as usize;
        let source = (offset as usize)
            .checked_add(length)
            .and_then(|end| self.data.get(offset as usize..end))
            .ok_or(Status::LocalBadLength)?;
        let target = self.memory.bytes_mut(to.address, length);
        target
            .map_err(|_| Status::LocalInvalidLkey)?
            .copy_from_slice(source);
        Ok(())
    }

    fn store(&mut self, offset: u32, from: HostSegment) -> Result<(), Status> {
        let length = from.length as usize;
        let source = self.memory.bytes(from.address, length);
        let source = source.map_err(|_| Status::LocalInvalidLkey)?;
        let start = offset as usize;
        let end = start.checked_add(length).ok_or(Status::LocalBadLength)?;
        if self.data.len() < end {
            self.data.resize(end, 0);
        }
        self.data[start..end].copy_from_slice(source);
        Ok(())
    }

    fn fill(&mut self, to: u64, bytes: &[u8]) -> Result<(), Status> {
        let target = self.memory.bytes_mut(to, bytes.len());
        target
            .map_err(|_| Status::LocalInvalidLkey)?
            .copy_from_slice(bytes);
        Ok(())
    }

    fn peek(&mut self, offset: u32, into: &mut [u8]) -> Result<(), Status> {
        let part = self.data.get(offset as usize..);
        let part = part.and_then(|rest| rest.get(..into.len()));
        into.copy_from_slice(part.ok_or(Status::LocalBadLength)?);
        Ok(())
    }

    fn update(&mut self, at: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, Status> {
        let bytes = self.memory.bytes_mut(at, size_of::<u64>());
        let bytes = bytes.map_err(|_| Status::LocalInvalidLkey)?;
        let word: &mut [u8; 8] = bytes.try_into().map_err(|_| Status::LocalInvalidLkey)?;
        let before = u64::from_ne_bytes(*word);
        *word = change(before).to_ne_bytes();
        Ok(before)
    }
}
