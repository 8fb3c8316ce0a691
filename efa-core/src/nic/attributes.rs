//! Properties and capabilities of a device.

bitflags::bitflags! {
    /// Capabilities of a device, in the bit numbers of `efadv_device_attr.device_caps`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct DeviceCaps: u32 {
        /// RDMA read.
        const RDMA_READ = 1 << 0;
        /// The number of receiver-not-ready retries can be set per queue pair.
        const RNR_RETRY = 1 << 1;
        /// Completions of unknown senders carry their GID.
        const CQ_WITH_SGID = 1 << 2;
        /// RDMA write.
        const RDMA_WRITE = 1 << 3;
        /// A peer's write with immediate data need not consume a receive. In the attributes of a
        /// device: queue pairs can be created with this feature. In those of a queue pair: it was
        /// created with it.
        const UNSOLICITED_WRITE_RECV = 1 << 4;
    }
}

/// Identity, capabilities and limits of a device, or of one queue pair. They do not change while it
/// is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NicAttributes {
    /// Capability bits.
    pub caps: DeviceCaps,
    /// Largest packet in bytes (port attribute `max_msg_sz`), 8928 on most devices.
    pub mtu: usize,
    /// Largest RDMA operation in bytes.
    pub max_rdma_size: usize,
    /// Capacity of the send queue in work requests; of a device, the largest possible one.
    pub send_queue_depth: usize,
    /// Capacity of the receive queue; of a device, the largest possible one.
    pub recv_queue_depth: usize,
    /// Largest payload that can be placed inside a send work request, in bytes.
    pub inline_size: usize,
    /// PCI part id, such as 0xEFA1: the generation of the device.
    pub vendor_part_id: u32,
    /// An identifier of the host, 0 if there is none.
    pub host_id: u64,
}
