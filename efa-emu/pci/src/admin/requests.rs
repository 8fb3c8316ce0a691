//! The commands of the admin queue: `efa_admin_aq_entry`.

use efa_device_model::fault::AdminCommand;
use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::{AdminStatus, ENTRY};
use crate::layout::{layout, numbered};

layout! {
    /// The head of every command: `efa_admin_aq_common_desc`.
    pub Head, from 0 to 4;
    0 id: U16, "what the completion repeats, in bits 11:0";
    2 opcode: u8, "which command it is";
    3 flags: u8, "bit 0 phase, 1 for a control buffer, 2 for an indirect one";
}

impl Head {
    /// The phase bit in `flags`.
    pub const PHASE: u8 = 1 << 0;
    /// The data is in a control buffer.
    pub const CONTROL_BUFFER: u8 = 1 << 1;
    /// The control buffer is a list of pages.
    pub const INDIRECT: u8 = 1 << 2;
}

layout! {
    /// Memory for a command: `efa_admin_ctrl_buff_info`.
    pub ControlBuffer, from 0 to 12;
    0 length: U32, "bytes";
    4 address: U64, "address in the guest";
}

layout! {
    /// `efa_admin_create_qp_cmd`.
    pub CreateQp, from 0 to 64;
    0 head: Head, "the command";
    4 pd: U16, "protection domain";
    6 service: u8, "1 for UD, 2 for SRD";
    7 flags: u8, "bit 0 send queue by registered address, 1 receive queue likewise, 2 unsolicited write receive";
    8 send_base: U64, "not used by queues in the device's memory";
    16 recv_base: U64, "address of the receive queue in the guest";
    24 send_cq: U32, "completion queue of the send queue";
    28 recv_cq: U32, "completion queue of the receive queue";
    32 send_lkey: U32, "for a send queue by registered address";
    36 recv_lkey: U32, "for a receive queue by registered address";
    40 send_bytes: U32, "length of the send queue";
    44 send_depth: U32, "requests in the send queue; the ring has the next power of two";
    48 recv_bytes: U32, "length of the receive queue";
    52 recv_depth: U32, "requests in the receive queue; the ring has as many descriptors as its length";
    56 uar: U16, "user access region";
    58 service_level: u8, "not used here";
    59 reserved: [u8; 5], "0";
}

layout! {
    /// `efa_admin_modify_qp_cmd`.
    pub ModifyQp, from 0 to 32;
    0 head: Head, "the command";
    4 mask: U32, "which of the fields count";
    8 handle: U32, "queue pair";
    12 state: U32, "state to change to";
    16 current_state: U32, "state to change from";
    20 qkey: U32, "Q-key";
    24 sq_psn: U32, "packet sequence number";
    28 drained_event: u8, "tell when the send queue is drained";
    29 rnr_retry: u8, "retries of a request that found the receiver not ready";
    30 reserved: U16, "0";
}

bitflags::bitflags! {
    /// The fields of [`ModifyQp`] that are valid.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct ModifyMask: u32 {
        /// The new state.
        const STATE = 1 << 0;
        /// The expected current state.
        const CURRENT_STATE = 1 << 1;
        /// The Q-key.
        const QKEY = 1 << 2;
        /// The packet sequence number.
        const SQ_PSN = 1 << 3;
        /// The event of a drained send queue.
        const DRAINED_EVENT = 1 << 4;
        /// The RNR retry count.
        const RNR_RETRY = 1 << 5;
    }
}

layout! {
    /// `efa_admin_query_qp_cmd`.
    pub QueryQp, from 0 to 8;
    0 head: Head, "the command";
    4 handle: U32, "queue pair";
}

layout! {
    /// `efa_admin_destroy_qp_cmd`.
    pub DestroyQp, from 0 to 8;
    0 head: Head, "the command";
    4 handle: U32, "queue pair";
}

layout! {
    /// `efa_admin_create_ah_cmd`.
    pub CreateAh, from 0 to 24;
    0 head: Head, "the command";
    4 gid: [u8; 16], "the destination";
    20 pd: U16, "protection domain";
    22 reserved: U16, "0";
}

layout! {
    /// `efa_admin_destroy_ah_cmd`.
    pub DestroyAh, from 0 to 8;
    0 head: Head, "the command";
    4 ah: U16, "address handle";
    6 pd: U16, "protection domain";
}

layout! {
    /// `efa_admin_reg_mr_cmd`.
    pub RegMr, from 0 to 64;
    0 head: Head, "the command";
    4 pd: U16, "protection domain";
    6 reserved: U16, "0";
    8 pages: [U64; 4], "addresses of up to four pages, or a control buffer with the list";
    40 length: U64, "bytes of the region";
    48 flags: u8, "bits 4:0 page size as a power of two, bit 7 physical addresses";
    49 permissions: u8, "bit 0 local write, 1 remote write, 2 remote read";
    50 reserved2: U16, "0";
    52 page_count: U32, "the driver leaves it 0";
    56 iova: U64, "the address by which work requests name the first byte";
}

impl RegMr {
    /// The page size in `flags`, as a power of two.
    pub const PAGE_SHIFT: u8 = 0x1f;
    /// Physical addresses, for the kernel only.
    pub const PHYSICAL: u8 = 1 << 7;
    /// Local write in `permissions`.
    pub const LOCAL_WRITE: u8 = 1 << 0;
    /// Remote write in `permissions`.
    pub const REMOTE_WRITE: u8 = 1 << 1;
    /// Remote read in `permissions`.
    pub const REMOTE_READ: u8 = 1 << 2;

    /// The control buffer with the list of pages.
    pub fn list(&self) -> ControlBuffer {
        let [first, second, ..] = self.pages.map(U64::get);
        ControlBuffer {
            length: U32::new(first as u32),
            address: U64::new(first >> 32 | second << 32),
        }
    }
}

layout! {
    /// `efa_admin_dereg_mr_cmd`.
    pub DeregMr, from 0 to 8;
    0 head: Head, "the command";
    4 lkey: U32, "local key of the region";
}

layout! {
    /// `efa_admin_create_cq_cmd`.
    pub CreateCq, from 0 to 28;
    0 head: Head, "the command";
    4 flags: u8, "bit 5 interrupts, 6 queue by registered address";
    5 entry: u8, "bits 4:0 length of an entry in words of 4 bytes, bit 5 with the sender's GID";
    6 depth: U16, "entries, a power of two";
    8 eqn: U16, "event queue, if there are interrupts";
    10 reserved: U16, "0";
    12 base: U64, "address of the queue in the guest";
    20 lkey: U32, "for a queue by registered address";
    24 sub_queues: U16, "1";
    26 uar: U16, "user access region";
}

impl CreateCq {
    /// Interrupts, in `flags`.
    pub const INTERRUPTS: u8 = 1 << 5;
    /// A queue by registered address, in `flags`.
    pub const VIRTUAL: u8 = 1 << 6;
    /// Words of 4 bytes, in `entry`.
    pub const WORDS: u8 = 0x1f;
    /// The sender's GID, in `entry`.
    pub const SOURCE_GID: u8 = 1 << 5;
}

layout! {
    /// `efa_admin_destroy_cq_cmd`.
    pub DestroyCq, from 0 to 8;
    0 head: Head, "the command";
    4 cq: U16, "completion queue";
    6 reserved: U16, "0";
}

layout! {
    /// `efa_admin_get_feature_cmd`.
    pub GetFeature, from 0 to 20;
    0 head: Head, "the command";
    4 buffer: ControlBuffer, "not used";
    16 reserved: u8, "0";
    17 feature: u8, "the feature";
    18 reserved2: U16, "0";
}

layout! {
    /// `efa_admin_set_feature_cmd`.
    pub SetFeature, from 0 to 28;
    0 head: Head, "the command";
    4 buffer: ControlBuffer, "the value, of features that do not fit";
    16 reserved: u8, "0";
    17 feature: u8, "the feature";
    18 reserved2: U16, "0";
    20 unused: U32, "of asynchronous events: the groups that there are";
    24 groups: U32, "of asynchronous events: the groups to report";
}

layout! {
    /// `efa_admin_aq_get_stats_cmd`.
    pub GetStats, from 0 to 20;
    0 head: Head, "the command";
    4 buffer: ControlBuffer, "not used";
    16 statistics: u8, "which statistics";
    17 scope: u8, "0 for the device";
    18 scope_modifier: U16, "0";
}

numbered! {
    /// The types of statistics: `efa_admin_get_stats_type`.
    pub StatisticsType, u8;
    /// Bytes and packets.
    Basic = 0;
    /// Sends and receives.
    Messages = 1;
    /// RDMA reads.
    RdmaRead = 2;
    /// RDMA writes.
    RdmaWrite = 3;
    /// Retransmissions and lost peers.
    Network = 4;
}

layout! {
    /// `efa_admin_alloc_pd_cmd`.
    pub AllocPd, from 0 to 4;
    0 head: Head, "the command";
}

layout! {
    /// `efa_admin_dealloc_pd_cmd`.
    pub DeallocPd, from 0 to 8;
    0 head: Head, "the command";
    4 pd: U16, "protection domain";
    6 reserved: U16, "0";
}

layout! {
    /// `efa_admin_alloc_uar_cmd`.
    pub AllocUar, from 0 to 4;
    0 head: Head, "the command";
}

layout! {
    /// `efa_admin_dealloc_uar_cmd`.
    pub DeallocUar, from 0 to 8;
    0 head: Head, "the command";
    4 uar: U16, "user access region";
    6 reserved: U16, "0";
}

layout! {
    /// `efa_admin_create_eq_cmd`.
    pub CreateEq, from 0 to 24;
    0 head: Head, "the command";
    4 depth: U16, "entries, a power of two";
    6 vector: u8, "the MSI-X vector";
    7 entry: u8, "bits 4:0 length of an entry in words of 4 bytes";
    8 base: U64, "address of the queue in the guest";
    16 events: U32, "bit 0 events of completion queues";
    20 reserved: U32, "0";
}

layout! {
    /// `efa_admin_destroy_eq_cmd`.
    pub DestroyEq, from 0 to 8;
    0 head: Head, "the command";
    4 eqn: U16, "event queue";
    6 reserved: U16, "0";
}

/// Declares the commands, which have the opcodes of [`AdminCommand`].
macro_rules! requests {
    ($($name:ident,)*) => {
        /// A command.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Request {
            $(#[doc = concat!("[`", stringify!($name), "`].")] $name($name),)*
        }

        impl Request {
            /// Parses an entry of the admin queue.
            ///
            /// # Errors
            /// [`AdminStatus::BadOpcode`] for an unknown command.
            pub fn parse(entry: &[u8; ENTRY]) -> Result<Request, AdminStatus> {
                $(if entry[2] == AdminCommand::$name as u8 {
                    let (request, _) = $name::read_from_prefix(entry)
                        .map_err(|_| AdminStatus::MalformedRequest)?;
                    return Ok(Request::$name(request));
                })*
                Err(AdminStatus::BadOpcode)
            }

            /// The type of the command.
            pub fn command(&self) -> AdminCommand {
                match self {
                    $(Request::$name(_) => AdminCommand::$name,)*
                }
            }
        }
    };
}

requests! {
    CreateQp,
    ModifyQp,
    QueryQp,
    DestroyQp,
    CreateAh,
    DestroyAh,
    RegMr,
    DeregMr,
    CreateCq,
    DestroyCq,
    GetFeature,
    SetFeature,
    GetStats,
    AllocPd,
    DeallocPd,
    AllocUar,
    DeallocUar,
    CreateEq,
    DestroyEq,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry in which the value of each byte after the head is its offset.
    fn entry(opcode: u8) -> [u8; ENTRY] {
        let mut entry = std::array::from_fn(|index| index as u8);
        entry[..4].copy_from_slice(&[0x34, 0x02, opcode, 0x01]);
        entry
    }

    const HEAD: Head = Head {
        id: U16::new(0x234),
        opcode: 0,
        flags: Head::PHASE,
    };

    fn head(opcode: u8) -> Head {
        Head { opcode, ..HEAD }
    }

    #[test]
    fn a_queue_pair_is_made_of_these_bytes() {
        let parsed = Request::parse(&entry(1)).unwrap();
        let expected = CreateQp {
            head: head(1),
            pd: 0x0504.into(),
            service: 6,
            flags: 7,
            send_base: 0x0f0e_0d0c_0b0a_0908.into(),
            recv_base: 0x1716_1514_1312_1110.into(),
            send_cq: 0x1b1a_1918.into(),
            recv_cq: 0x1f1e_1d1c.into(),
            send_lkey: 0x2322_2120.into(),
            recv_lkey: 0x2726_2524.into(),
            send_bytes: 0x2b2a_2928.into(),
            send_depth: 0x2f2e_2d2c.into(),
            recv_bytes: 0x3332_3130.into(),
            recv_depth: 0x3736_3534.into(),
            uar: 0x3938.into(),
            service_level: 0x3a,
            reserved: [0x3b, 0x3c, 0x3d, 0x3e, 0x3f],
        };
        assert_eq!(parsed, Request::CreateQp(expected));
    }

    #[test]
    fn a_change_of_a_queue_pair() {
        let expected = ModifyQp {
            head: head(2),
            mask: 0x0706_0504.into(),
            handle: 0x0b0a_0908.into(),
            state: 0x0f0e_0d0c.into(),
            current_state: 0x1312_1110.into(),
            qkey: 0x1716_1514.into(),
            sq_psn: 0x1b1a_1918.into(),
            drained_event: 0x1c,
            rnr_retry: 0x1d,
            reserved: 0x1f1e.into(),
        };
        assert_eq!(Request::parse(&entry(2)), Ok(Request::ModifyQp(expected)));
    }

    #[test]
    fn a_region_and_its_list_of_pages() {
        let Ok(Request::RegMr(parsed)) = Request::parse(&entry(7)) else {
            panic!("a registration");
        };
        assert_eq!(parsed.pd.get(), 0x0504);
        assert_eq!(parsed.pages[3].get(), 0x2726_2524_2322_2120);
        assert_eq!(parsed.length.get(), 0x2f2e_2d2c_2b2a_2928);
        assert_eq!((parsed.flags, parsed.permissions), (0x30, 0x31));
        assert_eq!(parsed.iova.get(), 0x3f3e_3d3c_3b3a_3938);
        let list = parsed.list();
        assert_eq!(list.length.get(), 0x0b0a_0908);
        assert_eq!(list.address.get(), 0x1312_1110_0f0e_0d0c);
    }

    #[test]
    fn queues_of_completions_and_events() {
        let cq = CreateCq {
            head: head(9),
            flags: 4,
            entry: 5,
            depth: 0x0706.into(),
            eqn: 0x0908.into(),
            reserved: 0x0b0a.into(),
            base: 0x1312_1110_0f0e_0d0c.into(),
            lkey: 0x1716_1514.into(),
            sub_queues: 0x1918.into(),
            uar: 0x1b1a.into(),
        };
        assert_eq!(Request::parse(&entry(9)), Ok(Request::CreateCq(cq)));
        let eq = CreateEq {
            head: head(18),
            depth: 0x0504.into(),
            vector: 6,
            entry: 7,
            base: 0x0f0e_0d0c_0b0a_0908.into(),
            events: 0x1312_1110.into(),
            reserved: 0x1716_1514.into(),
        };
        assert_eq!(Request::parse(&entry(18)), Ok(Request::CreateEq(eq)));
    }

    #[test]
    fn a_handle_of_an_address() {
        let ah = CreateAh {
            head: head(5),
            gid: [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19],
            pd: 0x1514.into(),
            reserved: 0x1716.into(),
        };
        assert_eq!(Request::parse(&entry(5)), Ok(Request::CreateAh(ah)));
        let Ok(Request::DestroyAh(destroy)) = Request::parse(&entry(6)) else {
            panic!("the end of a handle");
        };
        assert_eq!((destroy.ah.get(), destroy.pd.get()), (0x0504, 0x0706));
    }

    #[test]
    fn features_and_statistics_are_named_at_16() {
        let Ok(Request::SetFeature(set)) = Request::parse(&entry(12)) else {
            panic!("a feature is set");
        };
        assert_eq!((set.feature, set.groups.get()), (17, 0x1b1a_1918));
        assert_eq!(set.buffer.address.get(), 0x0f0e_0d0c_0b0a_0908);
        let Ok(Request::GetFeature(get)) = Request::parse(&entry(11)) else {
            panic!("a feature is asked for");
        };
        assert_eq!(get.feature, 17);
        let Ok(Request::GetStats(statistics)) = Request::parse(&entry(13)) else {
            panic!("statistics are asked for");
        };
        assert_eq!((statistics.statistics, statistics.scope), (16, 17));
        assert_eq!(StatisticsType::of(4), Some(StatisticsType::Network));
        assert_eq!(StatisticsType::of(5), None);
    }

    #[test]
    fn opcodes_that_there_are_not_are_refused() {
        let known = (0..=255).filter(|opcode| Request::parse(&entry(*opcode)).is_ok());
        assert_eq!(known.collect::<Vec<u8>>(), (1..=19).collect::<Vec<u8>>());
        assert_eq!(Request::parse(&entry(20)), Err(AdminStatus::BadOpcode));
    }
}
