//! Limits in bytes that follow from the device and the settings: of packets, windows, RDMA
//! requests.

use crate::address::RawAddress;
use crate::endpoint::IOV_LIMIT;
use crate::endpoint::api::config::EndpointConfig;
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::operation::{AtomicKind, WriteArgs};
use crate::endpoint::sending::choice::FitsRdma;
use crate::nic::NicAttributes;
use crate::wire::{PacketType, ReadRsp, Repr, ReqFlags, UniversalFlags};

/// The header size that stock libfabric since 1.17 reserves in requests, in bytes: that of a write
/// in windows with all iovs, raw address and CQ data.
pub const MAX_REQUEST_HEADER: usize = {
    let flags = ReqFlags::RAW_ADDR_HDR.union(ReqFlags::CQ_DATA_HDR);
    PacketType::LongctsRtw.header_len(flags.bits(), IOV_LIMIT)
};

/// The header size that stock libfabric reserves in atomics, in bytes: all iovs, and the raw
/// address without its length field.
const ATOMIC_HEADER: usize = PacketType::WriteRta.header_len(0, IOV_LIMIT) + RawAddress::LEN;

/// Header of CTSDATA with a connection id, in bytes.
const CTSDATA_HEADER: usize = PacketType::CtsData.header_len(UniversalFlags::CONNID_HDR.bits(), 0);

/// Sizes in bytes.
pub(crate) struct Sizes {
    /// Largest packet.
    pub(crate) mtu: usize,
    /// Maximum number of bytes of an operation with [`OperationFlags::INJECT`].
    ///
    /// [`OperationFlags::INJECT`]: crate::endpoint::OperationFlags::INJECT
    pub(crate) inject: usize,
    /// Maximum number of bytes that one CTS grants. At least 1.
    pub(crate) window: u64,
    /// Maximum data of one READRSP. All peers have the same MTU.
    pub(crate) read_response: u64,
    /// Maximum number of bytes that may be sent before the RDMA read of a message.
    pub(crate) runt: u64,
    /// Maximum size of an RDMA read that the engine posts, in bytes. At least 1.
    pub(crate) rdma_read: usize,
    /// Maximum size of an RDMA request, in bytes.
    rdma: u64,
}

impl Sizes {
    /// The sizes for a device and settings. The MTU must be larger than [`MAX_REQUEST_HEADER`].
    pub(crate) fn new(attributes: &NicAttributes, config: &EndpointConfig) -> Self {
        let mtu = attributes.mtu;
        let data_packet = mtu.saturating_sub(CTSDATA_HEADER) as u64;
        Sizes {
            mtu,
            inject: mtu - MAX_REQUEST_HEADER,
            window: (u64::from(config.cts_window_packets) * data_packet).max(1),
            read_response: mtu.saturating_sub(ReadRsp::default().header_len()) as u64,
            runt: config.runt_size as u64,
            rdma_read: config
                .read_segment_size
                .min(attributes.max_rdma_size)
                .max(1),
            rdma: attributes.max_rdma_size as u64,
        }
    }

    /// Checks that `length` bytes may be injected, if injection is requested.
    #[inline]
    pub(crate) fn check_inject(&self, inject: bool, length: u64) -> Result<(), EndpointError> {
        let limit = self.inject as u64;
        if inject && length > limit {
            return Err(EndpointError::OutOfRange {
                what: "length of injected data",
                value: length,
                limit,
            });
        }
        Ok(())
    }

    /// The largest length in bytes of an operand of an atomic.
    pub(crate) fn atomic(&self, kind: AtomicKind<'_>) -> usize {
        atomic_operand(self.mtu, kind)
    }

    /// Whether the device can carry out a write of `length` bytes by itself.
    pub(crate) fn fits_rdma(&self, args: &WriteArgs<'_>, length: u64) -> FitsRdma {
        let Some(data) = args.cq_data else {
            return FitsRdma::Plain;
        };
        let one_request = args.data.len() == 1 && args.remote.len() == 1 && length <= self.rdma;
        match u32::try_from(data) {
            Ok(_) if one_request => FitsRdma::WithImmediate,
            _ => FitsRdma::No,
        }
    }
}

/// The largest length in bytes of an operand of an atomic. The request must fit one packet of `mtu`
/// bytes.
pub(crate) fn atomic_operand(mtu: usize, kind: AtomicKind<'_>) -> usize {
    let payload = mtu.saturating_sub(ATOMIC_HEADER);
    match kind {
        AtomicKind::Write | AtomicKind::Fetch { .. } => payload,
        AtomicKind::Compare { .. } => payload / 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::base::ids::{Id, PeerId};
    use crate::endpoint::{IoVec, OperationFlags, RemoteIoVec};
    use crate::nic::{DeviceCaps, RemoteKey, UserSlice};

    /// The sizes of a device with the usual MTU.
    fn sizes(max_rdma_size: usize) -> Sizes {
        let attributes = NicAttributes {
            caps: DeviceCaps::empty(),
            mtu: 8928,
            max_rdma_size,
            send_queue_depth: 16,
            recv_queue_depth: 16,
            inline_size: 32,
            vendor_part_id: 0xefa1,
            host_id: 0,
        };
        let config = EndpointConfig {
            cts_window_packets: 10,
            read_segment_size: 1 << 20,
            runt_size: 4096,
            ..EndpointConfig::default()
        };
        Sizes::new(&attributes, &config)
    }

    #[test]
    fn sizes_follow_from_the_mtu_and_the_headers() {
        let sizes = sizes(1 << 30);
        // 24 bytes, four iovs of 24, 40 of raw address, 8 of CQ data.
        assert_eq!(sizes.inject, 8928 - 168);
        // 24 bytes and 8 of connection id.
        assert_eq!(sizes.window, 10 * (8928 - 32));
        assert_eq!(sizes.read_response, 8928 - 24);
        assert_eq!((sizes.runt, sizes.rdma_read), (4096, 1 << 20));
    }

    #[test]
    fn reads_are_nonempty_and_within_device_limits() {
        assert_eq!(sizes(4096).rdma_read, 4096);
        assert_eq!(sizes(0).rdma_read, 1);
    }

    #[test]
    fn only_injected_data_is_limited() {
        let sizes = sizes(0);
        assert_eq!(sizes.check_inject(true, 8760), Ok(()));
        assert_eq!(sizes.check_inject(false, u64::MAX), Ok(()));
        let refused = sizes.check_inject(true, 8761);
        let limit = matches!(refused, Err(EndpointError::OutOfRange { limit: 8760, .. }));
        assert!(limit, "{refused:?}");
    }

    #[test]
    fn compare_operands_share_the_packet() {
        let sizes = sizes(0);
        let whole = sizes.atomic(AtomicKind::Write);
        assert_eq!(whole, 8928 - 152);
        let compare = AtomicKind::Compare {
            result: &[],
            comparand: &[],
        };
        assert_eq!(sizes.atomic(compare), whole / 2);
    }

    #[test]
    fn single_request_writes_use_the_devices_immediate() {
        let sizes = sizes(100);
        let piece = IoVec {
            memory: UserSlice::new(0, 100),
            region: None,
        };
        let remote = RemoteIoVec::new(0, 100, RemoteKey(1));
        let write = |data: &[IoVec], cq_data, length| {
            let args = WriteArgs {
                peer: PeerId::new(0, 0),
                data,
                remote: &[remote],
                cq_data,
                context: 0,
                flags: OperationFlags::empty(),
            };
            sizes.fits_rdma(&args, length)
        };
        assert_eq!(write(&[piece; 2], None, 1000), FitsRdma::Plain);
        assert_eq!(write(&[piece], Some(7), 100), FitsRdma::WithImmediate);
        assert_eq!(write(&[piece], Some(7), 101), FitsRdma::No);
        assert_eq!(write(&[piece; 2], Some(7), 100), FitsRdma::No);
        assert_eq!(write(&[piece], Some(1 << 32), 100), FitsRdma::No);
    }
}
