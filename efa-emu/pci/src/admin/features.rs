//! Features of the device: `efa_admin_get_feature_resp`, made from the device's profile.

use efa_core::address::Gid;
use efa_core::nic::DeviceCaps;
use efa_device_model::device::PortLink;
use efa_device_model::limits::INLINE_SIZE_WIDE;
use efa_device_model::profile::Profile;
use efa_device_model::sysfs::node_guid;
use zerocopy::little_endian::{U16, U32, U64};

use super::AsyncGroup;
use crate::function::Bars;
use crate::layout::{layout, numbered};

numbered! {
    /// The features that can be queried or set: `efa_admin_aq_feature_id`.
    pub Feature, u8;
    /// [`DeviceAttributes`].
    Device = 1;
    /// [`AsyncEvents`].
    AsyncEvents = 2;
    /// [`Network`].
    Network = 3;
    /// [`QueueAttributes`].
    Queues = 4;
    /// [`HardwareHints`].
    HardwareHints = 5;
    /// Information about the guest. It can only be set.
    HostInfo = 6;
    /// [`EventQueues`].
    EventQueues = 7;
    /// [`WideQueueAttributes`].
    WideQueues = 9;
}

layout! {
    /// `efa_admin_feature_device_attr_desc`.
    pub DeviceAttributes, from 8 to 64;
    8 features: U64, "a bit for each feature that there is";
    16 page_sizes: U64, "a bit for each page size of regions";
    24 firmware: U32, "version of the firmware, its first part first";
    28 admin_version: U32, "version of the admin interface";
    32 device_version: U32, "the generation";
    36 doorbell_bar: U16, "the region with the doorbells";
    38 physical_width: u8, "bits of addresses in the guest";
    39 virtual_width: u8, "bits of addresses of work requests";
    40 caps: U32, "bit 0 RDMA read, 1 RNR retry, 2 ordered 128-byte polling, 3 RDMA write, 4 unsolicited write receive";
    44 max_rdma_size: U32, "bytes of an RDMA request";
    48 guid: U64, "node GUID, in the order of the network";
    56 gbps: U16, "speed of the link in Gbit/s";
    58 reserved: [u8; 6], "0";
}

/// The page sizes that the driver may choose for a region: 4 KiB to 2 GiB.
const PAGE_SIZES: u64 = 0xffff_f000;

/// The bit of [`DeviceAttributes::caps`] that has another meaning in [`DeviceCaps`].
const DATA_POLLING_128: u32 = 1 << 2;

/// Number of address bits of the guest.
pub(crate) const ADDRESS_WIDTH: u8 = 52;

/// The device's attributes.
pub fn device_attributes(profile: &Profile, gid: Gid, link: PortLink) -> DeviceAttributes {
    let mut caps = (profile.caps - DeviceCaps::CQ_WITH_SGID).bits();
    if profile.data_polling_128 {
        caps |= DATA_POLLING_128;
    }
    let features = Feature::ALL.iter().map(|feature| 1u64 << *feature as u8);
    let mut firmware = [0; 4];
    for (byte, part) in firmware.iter_mut().zip(profile.firmware.split('.')) {
        *byte = part.parse().unwrap_or(0);
    }
    DeviceAttributes {
        features: features.sum::<u64>().into(),
        page_sizes: PAGE_SIZES.into(),
        firmware: u32::from_le_bytes(firmware).into(),
        admin_version: 1.into(),
        device_version: profile.hw_version.into(),
        doorbell_bar: (Bars::DOORBELLS as u16).into(),
        physical_width: ADDRESS_WIDTH,
        virtual_width: 64,
        caps: caps.into(),
        max_rdma_size: profile.max_rdma_size.into(),
        guid: node_guid(gid).swap_bytes().into(),
        gbps: link.speed.gbps.into(),
        reserved: [0; 6],
    }
}

layout! {
    /// `efa_admin_feature_queue_attr_desc_1`.
    pub QueueAttributes, from 8 to 64;
    8 max_qp: U32, "queue pairs";
    12 max_sq_depth: U32, "requests of a send queue";
    16 inline_size: U32, "inline bytes of a send";
    20 max_rq_depth: U32, "descriptors of a receive queue";
    24 max_cq: U32, "completion queues";
    28 max_cq_depth: U32, "entries of a completion queue";
    32 sub_queues: U16, "parts of a completion queue";
    34 min_sq_depth: U16, "requests that a send queue has at least";
    36 max_send_sge: U16, "buffers of a send";
    38 max_recv_sge: U16, "buffers of a receive";
    40 max_mr: U32, "memory regions";
    44 max_mr_pages: U32, "pages of a region";
    48 max_pd: U32, "protection domains";
    52 max_ah: U32, "address handles";
    56 max_llq_size: U32, "bytes of a send queue";
    60 max_rdma_sge: U16, "local buffers of an RDMA request";
    62 max_batch: U16, "0: send queues may be written without an end";
}

/// The longest entry of a send queue in bytes.
const LONGEST_WQE: u32 = 128;

/// The attributes of queues.
pub fn queue_attributes(profile: &Profile) -> QueueAttributes {
    let pages = profile.max_mr_size / Profile::PAGE;
    QueueAttributes {
        max_qp: profile.max_qp.into(),
        max_sq_depth: profile.max_sq_wr.into(),
        inline_size: profile.inline_size.into(),
        max_rq_depth: profile.max_rq_wr.into(),
        max_cq: profile.max_cq.into(),
        max_cq_depth: profile.max_cqe.into(),
        sub_queues: 1.into(),
        // rdma-core's doorbell batches are limited to one request less than the queue's depth. With
        // a depth of one the limit would be 0, which its loop cannot handle.
        min_sq_depth: 2.into(),
        max_send_sge: (profile.max_sq_sge as u16).into(),
        max_recv_sge: (profile.max_rq_sge as u16).into(),
        max_mr: profile.max_mr.into(),
        max_mr_pages: u32::try_from(pages).unwrap_or(u32::MAX).into(),
        max_pd: profile.max_pd.into(),
        max_ah: profile.max_ah.into(),
        max_llq_size: (profile.max_sq_wr * LONGEST_WQE).into(),
        max_rdma_sge: (profile.max_rdma_sge as u16).into(),
        max_batch: U16::ZERO,
    }
}

layout! {
    /// `efa_admin_feature_queue_attr_desc_2`, without event counters.
    pub WideQueueAttributes, from 8 to 64;
    8 inline_size: U16, "inline bytes of a send in a request of 128 bytes";
    10 reserved: [u8; 54], "0: there are no event counters";
}

/// The attributes of requests of 128 bytes.
pub fn wide_queue_attributes() -> WideQueueAttributes {
    WideQueueAttributes {
        inline_size: (INLINE_SIZE_WIDE as u16).into(),
        reserved: [0; 54],
    }
}

layout! {
    /// `efa_admin_feature_network_attr_desc`.
    pub Network, from 8 to 28;
    8 gid: [u8; 16], "the port's GID";
    24 mtu: U32, "bytes of the largest packet";
}

/// The attributes of the port.
pub fn network(profile: &Profile, gid: Gid) -> Network {
    Network {
        gid: gid.0,
        mtu: profile.mtu.into(),
    }
}

layout! {
    /// `efa_admin_feature_aenq_desc`.
    pub AsyncEvents, from 8 to 16;
    8 supported: U32, "groups that the device can report";
    12 enabled: U32, "groups that it reports";
}

/// The groups of asynchronous events.
pub fn async_events(enabled: u32) -> AsyncEvents {
    AsyncEvents {
        supported: AsyncGroup::ALL.into(),
        enabled: enabled.into(),
    }
}

layout! {
    /// `efa_admin_hw_hints`. A value of 0 leaves it to the driver.
    pub HardwareHints, from 8 to 16;
    8 mmio_read_timeout: U16, "of reading a register";
    10 watchdog_timeout: U16, "of signs of life";
    12 admin_timeout: U16, "of commands";
    14 poll_interval: U16, "between two looks";
}

/// No hints.
pub fn hardware_hints() -> HardwareHints {
    HardwareHints {
        mmio_read_timeout: U16::ZERO,
        watchdog_timeout: U16::ZERO,
        admin_timeout: U16::ZERO,
        poll_interval: U16::ZERO,
    }
}

layout! {
    /// `efa_admin_event_queue_attr_desc`.
    pub EventQueues, from 8 to 20;
    8 max_eq: U32, "event queues";
    12 max_depth: U32, "entries of one";
    16 events: U32, "bit 0 events of completion queues";
}

/// The most event queues. Together with the admin queue they use all vectors.
pub const EVENT_QUEUES: u32 = 31;

/// The most entries of an event queue. Each completion queue has at most one entry: it raises the
/// next one only after the driver has read the first and armed it again.
pub const EVENT_QUEUE_DEPTH: u32 = 4096;

/// The attributes of event queues.
pub fn event_queues(profile: &Profile) -> EventQueues {
    EventQueues {
        max_eq: EVENT_QUEUES.into(),
        max_depth: EVENT_QUEUE_DEPTH.into(),
        events: u32::from(profile.cq_notifications).into(),
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn profile(name: &str) -> Profile {
        Profile::by_name(name).unwrap().clone()
    }

    fn gid() -> Gid {
        Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8])
    }

    #[test]
    fn the_device_has_these_bytes() {
        let device = device_attributes(&profile("efa2"), gid(), PortLink::default());
        let guid = node_guid(gid()).to_be_bytes();
        #[rustfmt::skip]
        let mut bytes = vec![
            0xfe, 0x02, 0, 0, 0, 0, 0, 0,       // features 1 to 7 and 9
            0x00, 0xf0, 0xff, 0xff, 0, 0, 0, 0, // page sizes
            1, 2, 0, 0,                         // firmware 1.2.0.0
            1, 0, 0, 0,                         // admin interface
            0xa2, 0xef, 0, 0,                   // generation
            4, 0,                               // doorbells
            52, 64,                             // widths
            0x1b, 0, 0, 0,                      // read, RNR retry, write, unsolicited
            0, 0, 0, 0x40,                      // 1 GiB
        ];
        bytes.extend(guid);
        bytes.extend([100, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(device.as_bytes(), bytes);
    }

    #[test]
    fn capabilities_are_those_of_the_generation() {
        let caps = |name| {
            let device = device_attributes(&profile(name), gid(), PortLink::default());
            device.caps.get()
        };
        assert_eq!(caps("efa0"), 0x02);
        assert_eq!(caps("efa1"), 0x03);
        assert_eq!(caps("efa3"), 0x1f, "with ordered polling");
    }

    #[test]
    fn queues_have_the_limits_of_the_profile() {
        let queues = queue_attributes(&profile("efa1"));
        #[rustfmt::skip]
        let bytes = [
            0x00, 0x08, 0, 0, 0x00, 0x10, 0, 0, 32, 0, 0, 0, 0x00, 0x80, 0, 0,
            0x00, 0x08, 0, 0, 0x00, 0x80, 0, 0, 1, 0, 2, 0, 2, 0, 3, 0,
            0x00, 0x00, 4, 0, 0x00, 0x00, 0x80, 1, 0x00, 4, 0, 0, 0x00, 0x20, 0, 0,
            0x00, 0x00, 8, 0, 1, 0, 0, 0,
        ];
        assert_eq!(queues.as_bytes(), bytes);
    }

    #[test]
    fn the_port_has_gid_and_mtu() {
        let network = network(&profile("efa1"), gid());
        assert_eq!(network.as_bytes()[..16], gid().0);
        assert_eq!(network.as_bytes()[16..], 8928u32.to_le_bytes());
    }

    #[test]
    fn all_groups_that_the_driver_wants_are_supported() {
        assert_eq!(
            async_events(0x10).as_bytes(),
            [0x1e, 0, 0, 0, 0x10, 0, 0, 0]
        );
    }
}
