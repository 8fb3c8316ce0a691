//! How much fits: a packet, a window, an RDMA request.

use crate::address::RawAddress;
use crate::endpoint::IOV_LIMIT;
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::operation::{AtomicKind, WriteArgs};
use crate::endpoint::sending::choice::FitsRdma;
use crate::nic::{Domain, Nic};
use crate::wire::{PacketType, ReadRsp, Repr, ReqFlags, UniversalFlags};

use super::{Channel, Conversation};

/// What stock libfabric since 1.17 reserves for the header of a request, in bytes: that of a write in
/// windows with all iovs, raw address and CQ data.
pub(crate) const MAX_REQUEST_HEADER: usize = {
    let flags = ReqFlags::RAW_ADDR_HDR.union(ReqFlags::CQ_DATA_HDR);
    PacketType::LongctsRtw.header_len(flags.bits(), IOV_LIMIT)
};

/// What stock libfabric reserves for the header of an atomic, in bytes: all iovs, and the raw address
/// without its length.
const ATOMIC_HEADER: usize = PacketType::WriteRta.header_len(0, IOV_LIMIT) + RawAddress::LEN;

/// Header of CTSDATA with a connection id, in bytes.
const CTSDATA_HEADER: usize = PacketType::CtsData.header_len(UniversalFlags::CONNID_HDR.bits(), 0);

impl<N: Nic> Channel<N> {
    /// Most bytes that an operation with [`OperationFlags::INJECT`] may have.
    ///
    /// [`OperationFlags::INJECT`]: crate::endpoint::OperationFlags::INJECT
    pub(crate) fn inject_size(&self) -> usize {
        self.mtu - MAX_REQUEST_HEADER
    }

    /// Checks that so much data may be injected.
    pub(crate) fn check_inject(&self, inject: bool, length: u64) -> Result<(), EndpointError> {
        let limit = self.inject_size() as u64;
        if inject && length > limit {
            return Err(EndpointError::OutOfRange {
                what: "length of injected data",
                value: length,
                limit,
            });
        }
        Ok(())
    }

    /// Most bytes that an atomic may have per operand: one packet has to hold the request.
    pub(crate) fn max_atomic_size(&self, kind: AtomicKind<'_>) -> usize {
        let payload = self.mtu.saturating_sub(ATOMIC_HEADER);
        match kind {
            AtomicKind::Write | AtomicKind::Fetch { .. } => payload,
            AtomicKind::Compare { .. } => payload / 2,
        }
    }

    /// Bytes that one CTS grants at most.
    pub(crate) fn window_size(&self) -> u64 {
        let per_packet = self.mtu.saturating_sub(CTSDATA_HEADER) as u64;
        (u64::from(self.config.cts_window_packets) * per_packet).max(1)
    }

    /// Data that one READRSP holds. Peers have the same MTU.
    pub(crate) fn read_response_capacity(&self) -> u64 {
        self.mtu.saturating_sub(ReadRsp::default().header_len()) as u64
    }

    /// Bytes that may travel ahead of the RDMA read of another message to a peer: the settings'
    /// share, as long as no message to the peer is being read.
    pub(crate) fn runt_budget(&self, peer: Option<&Conversation>) -> u64 {
        let runt_size = self.config.runt_size as u64;
        peer.map_or(runt_size, |state| state.read_based.runt_budget(runt_size))
    }

    /// Most bytes of an RDMA read.
    pub(crate) fn rdma_limit(&self) -> usize {
        self.config
            .read_segment_size
            .min(self.posting.nic().attributes().max_rdma_size)
            .max(1)
    }

    /// How far the device can do a write by itself.
    pub(crate) fn fits_rdma(&self, args: &WriteArgs<'_>, length: u64) -> FitsRdma {
        let Some(data) = args.cq_data else {
            return FitsRdma::Plain;
        };
        let one_request = args.data.len() == 1
            && args.remote.len() == 1
            && length <= self.posting.nic().attributes().max_rdma_size as u64;
        match u32::try_from(data) {
            Ok(_) if one_request => FitsRdma::WithImmediate,
            _ => FitsRdma::No,
        }
    }
}
