//! Device generations: identity, capabilities and limits, each with the source of its value.

mod file;

use std::time::Duration;

use efa_core::nic::{DeviceCaps, NicAttributes, Status};

pub use file::{ProfileError, ProfileProblem, is_path};

use crate::limits::{INLINE_SIZE_WIDE, MAX_MESSAGE, MAX_SGE};
use crate::qpn_policy::QpnPolicy;

/// PCI vendor id of the device (Amazon).
pub const VENDOR_ID: u32 = 0x1d0f;

/// PCI vendor id of the device that is not an EFA. The PCI-SIG has not assigned it.
const NOBODY: u32 = 0xf7f7;

/// Delays before an initiator retries a request that was answered with RNR. They double from
/// `first` up to `longest`. The real device's timers are not public.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RnrBackoff {
    /// Before the first retry.
    pub first: Duration,
    /// The upper bound.
    pub longest: Duration,
}

impl RnrBackoff {
    /// The wait before retry number `retry`, counted from 0.
    pub fn delay(&self, retry: u32) -> Duration {
        self.first
            .saturating_mul(1u32.checked_shl(retry).unwrap_or(u32::MAX))
            .min(self.longest)
    }
}

/// The length of request ids in a send queue's work requests and completions.
///
/// A client with 16-bit ids keeps a table from them to the application's ids. With 64 bits the
/// device returns the application's id. Client and device agree on the size when the queue pair is
/// created (rdma-core of August 2026: `EFA_CREATE_QP_WITH_SQ_64_BIT_REQ_ID`). Ids of receives
/// always have 16 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestIdSize {
    /// Bytes 0 and 1 of an entry.
    Bits16,
    /// Bytes 0 and 1, and the upper bits in bytes 26 to 31.
    Bits64,
}

impl RequestIdSize {
    /// The part of an entry's id that a queue with this size uses.
    #[inline(always)]
    pub(crate) const fn of(self, request_id: u64) -> u64 {
        match self {
            RequestIdSize::Bits16 => request_id & 0xffff,
            RequestIdSize::Bits64 => request_id,
        }
    }
}

/// The status of requests that the responder refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Statuses {
    /// No queue pair with the destination's number is ready to receive.
    pub unknown_queue_pair: Status,
    /// The queue pair has another Q-key.
    pub wrong_qkey: Status,
    /// The remote key belongs to no region of the queue pair's protection domain.
    pub unknown_key: Status,
    /// The range exceeds the region.
    pub outside_region: Status,
    /// The region was registered without this access.
    pub forbidden_access: Status,
    /// RDMA from a host that is not in the address book.
    pub unknown_peer: Status,
}

/// The numbers of a profile: each with its value in most generations, and with name, text (by
/// default the number) and source of its row of `efa-emu profiles`. In a file the key has the
/// field's name.
macro_rules! numbers {
    ($declare:ident) => {
        $declare! {
            /// PCI device id; those of EFA start at 0xefa0.
            part_id: u32 = 0, "vendor_part_id" as |it| hexadecimal(it.part_id),
                "PCI id tables of the kernel driver (to 0xefa3) and rdma-core";
            /// `hw_ver`: the PCI subsystem device id.
            hw_version: u32 = 0, "hw_ver" as |it| hexadecimal(it.hw_version),
                "UCX contrib/ibmock has 0xefa1 for part id 0xefa1; the others alike";
            /// Completion channels are supported (kernel capability `CQ_NOTIFICATIONS`).
            cq_notifications: bool = true,
                "CQ_NOTIFICATIONS" as |it| yes_or_no(it.cq_notifications), GENERATION;
            /// Aligned 128-byte writes become visible in order (kernel capability
            /// `DATA_POLLING_128`).
            data_polling_128: bool = false,
                "DATA_POLLING_128" as |it| yes_or_no(it.data_polling_128), GENERATION;
            /// Send queues can have request ids of 64 bits (kernel capability `SQ_64_BIT_REQ_ID`).
            long_request_ids: bool = false,
                "SQ_64_BIT_REQ_ID" as |it| yes_or_no(it.long_request_ids), GENERATION;
            /// RDMA from a host that is not in the responder's address book is refused with status
            /// 14.
            unknown_peer_check: bool = true,
                "unknown peer check" as |it| yes_or_no(it.unknown_peer_check),
                "status 14 of the device's interface";
            /// Largest packet in bytes, without any header.
            mtu: u32 = 8928, "max_msg_sz" as |it| it.max_msg_sz().to_string(), MOCK;
            /// Largest send queue in work requests. A power of two.
            max_sq_wr: u32 = 4096, "max_sq_wr", MOCK;
            /// Largest receive queue in 16-byte descriptors. A power of two.
            max_rq_wr: u32 = 32768, "max_rq_wr", MOCK;
            /// Gather entries of a send.
            max_sq_sge: u32 = 2, "max_sq_sge", MOCK;
            /// Scatter entries of a receive.
            max_rq_sge: u32 = 3, "max_rq_sge", MOCK;
            /// Local scatter or gather entries of an RDMA request of EFA.
            max_rdma_sge: u32 = 1, "max_sge_rd" as |it| it.max_sge_rd().to_string(), MOCK;
            /// Inline bytes of a send in a 64-byte work request.
            inline_size: u32 = 32, "inline_buf_size", MOCK;
            /// Largest RDMA request in bytes.
            max_rdma_size: u32 = 1 << 30, "max_rdma_size", MOCK;
            /// Queue pairs. A power of two: clients look a queue pair up by the lower bits of its
            /// number.
            max_qp: u32 = 2048, "max_qp", MORE;
            /// Completion queues.
            max_cq: u32 = 2048, "max_cq", MORE;
            /// Entries of one completion queue. A power of two below 65536.
            max_cqe: u32 = 32768, "max_cqe", MOCK;
            /// Memory regions; at most [`Profile::MAX_MR`].
            max_mr: u32 = Profile::MAX_MR, "max_mr", MOCK;
            /// Bytes of one memory region.
            max_mr_size: u64 = 96 << 30, "max_mr_size", MOCK;
            /// Pages of [`Profile::PAGE`] bytes of all memory regions together.
            max_registered_pages: u64 = (96 << 30) / Profile::PAGE - 1, "registered pages",
                "libfabric issue 9739: 95 GB can be registered, 96 GB not";
            /// Pages of a memory region that peers may write.
            max_writable_pages: u64 = 1 << 20, "pages of a region for remote write",
                "libfabric pull request 10402";
            /// Protection domains.
            max_pd: u32 = 1024, "max_pd", MORE;
            /// Destinations in one address book; at most 65535.
            max_ah: u32 = 8192, "max_ah", MORE;
            /// Completion counters; 0 if the generation has none.
            max_comp_counters: u32 = 0, "max_comp_cntr", OURS;
            /// Completion vectors.
            comp_vectors: u32 = 8, "comp_vectors", OURS;
        }
    };
}

/// Declares [`Profile`], what most generations have, and the rows of the numbers.
macro_rules! profile {
    ($(
        $(#[$meaning:meta])*
        $field:ident: $type:ty = $value:expr, $name:literal $(as $text:expr)?, $source:expr;
    )*) => {
        /// One generation of the device. [`Profile::by_name`] finds the built-in ones,
        /// [`Profile::named`] also those of files; a test may change any field of its copy.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct Profile {
            /// The name of the profile for `efa-emu run --profile`.
            pub name: &'static str,
            /// A one-line description.
            pub description: &'static str,
            /// PCI vendor id.
            pub vendor_id: u32,
            /// Firmware version as `ibv_devinfo` prints it.
            pub firmware: &'static str,
            /// Capability bits, in the numbers of `efadv_device_attr.device_caps`.
            pub caps: DeviceCaps,
            /// Waits between receiver-not-ready retries.
            pub rnr_backoff: RnrBackoff,
            /// How the number of a new queue pair is chosen, unless the user chooses a policy.
            pub qpn_reuse: QpnPolicy,
            /// The status of refused requests.
            pub statuses: Statuses,
            /// Connected queue pairs, shared receive queues and tag matching are supported
            /// ([`connected`](crate::device::connected)). No EFA has them.
            pub connected: bool,
            $($(#[$meaning])* pub $field: $type,)*
        }

        const fn base() -> Profile {
            Profile {
                name: "",
                description: "",
                vendor_id: VENDOR_ID,
                firmware: "0.0.0.0",
                caps: DeviceCaps::empty(),
                rnr_backoff: RnrBackoff {
                    first: Duration::from_micros(64),
                    longest: Duration::from_millis(4),
                },
                qpn_reuse: QpnPolicy::Lowest,
                statuses: Statuses {
                    unknown_queue_pair: Status::RemoteBadDestQpn,
                    wrong_qkey: Status::RemoteBadDestQpn,
                    unknown_key: Status::RemoteBadAddress,
                    outside_region: Status::RemoteBadAddress,
                    forbidden_access: Status::RemoteBadAddress,
                    unknown_peer: Status::RemoteUnknownPeer,
                },
                connected: false,
                $($field: $value,)*
            }
        }

        impl Profile {
            fn numbers(&self) -> Vec<Attribute> {
                /// The type of a closure in the table.
                fn text(profile: &Profile, text: fn(&Profile) -> String) -> String {
                    text(profile)
                }
                vec![$(Attribute {
                    name: $name,
                    value: None::<String>
                        $(.or_else(|| Some(text(self, $text))))?
                        .unwrap_or_else(|| self.$field.to_string()),
                    source: $source,
                }),*]
            }
        }
    };
}

use numbers; // in `file`
numbers!(profile);

/// A row of `efa-emu profiles`: an attribute, its value and the source of the value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attribute {
    /// The attribute's usual name.
    pub name: &'static str,
    /// Its value as text.
    pub value: String,
    /// The source of the value.
    pub source: &'static str,
}

/// A mock of the device by owners of a real one.
const MOCK: &str = "UCX contrib/ibmock, for part id 0xefa1";
const GENERATION: &str = "which firmware of which generation has it is not public: ours";
const MORE: &str = "ours; UCX contrib/ibmock has fewer, too few for 1024 queue pairs a host";
const OURS: &str = "ours: not public";

static PROFILES: [Profile; 5] = [
    Profile {
        name: "efa0",
        description: "first generation, messages only",
        part_id: 0xefa0,
        hw_version: 0xefa0,
        firmware: "1.0.0.0",
        caps: DeviceCaps::RNR_RETRY,
        ..base()
    },
    Profile {
        name: "efa1",
        description: "RDMA read; the newest that perftest 4.5 knows",
        part_id: 0xefa1,
        hw_version: 0xefa1,
        firmware: "1.1.0.0",
        caps: DeviceCaps::RDMA_READ
            .union(DeviceCaps::RNR_RETRY)
            .union(DeviceCaps::CQ_WITH_SGID),
        ..base()
    },
    Profile {
        name: "efa2",
        description: "RDMA read and write, unsolicited write receive",
        part_id: 0xefa2,
        hw_version: 0xefa2,
        firmware: "1.2.0.0",
        caps: DeviceCaps::all(),
        ..base()
    },
    Profile {
        name: "efa3",
        description: "as efa2, and ordered 128-byte polling",
        part_id: 0xefa3,
        hw_version: 0xefa3,
        firmware: "1.3.0.0",
        caps: DeviceCaps::all(),
        data_polling_128: true,
        ..base()
    },
    Profile {
        name: "efa4",
        description: "as efa3, completion counters and 64-bit request ids; only its part id is public",
        part_id: 0xefa4,
        hw_version: 0xefa4,
        firmware: "1.4.0.0",
        caps: DeviceCaps::all(),
        max_comp_counters: 256,
        data_polling_128: true,
        long_request_ids: true,
        ..base()
    },
];

/// The profile that is not an EFA: the device that `Documentation/tag_matching.md` of rdma-core
/// extends.
static TAG_MATCHING: Profile = Profile {
    name: "tm",
    description: "no EFA: connected queue pairs, shared receive queues, tag matching",
    vendor_id: NOBODY,
    part_id: 0x0001,
    hw_version: 0x0001,
    firmware: "1.0.0.0",
    caps: DeviceCaps::RDMA_READ
        .union(DeviceCaps::RDMA_WRITE)
        .union(DeviceCaps::RNR_RETRY),
    mtu: 4096,
    connected: true,
    ..base()
};

impl Profile {
    /// The most memory regions whose index fits into a 24-bit local key next to the generation
    /// bits.
    pub const MAX_MR: u32 = 1 << 18;

    /// The page size in bytes for counting registered memory.
    pub const PAGE: u64 = 4096;

    /// The name of the default profile: the oldest one with RDMA read and write. libfabric 1.17
    /// enables its RDMA protocols by default from part id 0xefa2 on.
    pub const DEFAULT: &'static str = "efa2";

    /// The built-in generations of EFA, oldest first.
    pub fn all() -> &'static [Profile] {
        &PROFILES
    }

    /// All built-in profiles: the generations of EFA, and the one that is not an EFA.
    pub fn built_in() -> impl Iterator<Item = &'static Profile> {
        PROFILES.iter().chain([&TAG_MATCHING])
    }

    /// The built-in profile with this name.
    pub fn by_name(name: &str) -> Option<&'static Profile> {
        Profile::built_in().find(|profile| profile.name == name)
    }

    /// The longest request ids of send queues. libefa uses the longest that the device supports.
    pub fn longest_request_ids(&self) -> RequestIdSize {
        match self.long_request_ids {
            true => RequestIdSize::Bits64,
            false => RequestIdSize::Bits16,
        }
    }

    /// The device's attributes for the protocol engine.
    pub fn nic_attributes(&self, host_id: u64) -> NicAttributes {
        NicAttributes {
            caps: self.caps,
            mtu: self.mtu as usize,
            max_rdma_size: self.max_rdma_size as usize,
            send_queue_depth: self.max_sq_wr as usize,
            recv_queue_depth: (self.max_rq_wr / self.max_rq_sge) as usize,
            inline_size: self.inline_size as usize,
            vendor_part_id: self.part_id,
            host_id,
        }
    }

    /// The bits of `efadv_device_attr.device_caps`.
    pub fn device_caps(&self) -> u32 {
        const COMPLETION_COUNTERS: u32 = 1 << 6;
        match self.max_comp_counters {
            0 => self.caps.bits(),
            _ => self.caps.bits() | COMPLETION_COUNTERS,
        }
    }

    /// The port attribute `max_msg_sz`: of a datagram, or of a message between connected queue
    /// pairs.
    pub fn max_msg_sz(&self) -> u32 {
        match self.connected {
            true => MAX_MESSAGE,
            false => self.mtu,
        }
    }

    /// `ibv_device_attr.max_sge_rd`.
    pub fn max_sge_rd(&self) -> u32 {
        match self.connected {
            true => MAX_SGE as u32,
            false => self.max_rdma_sge,
        }
    }

    /// Every attribute with its source, in the order of `efa-emu profiles`. Names, order and
    /// sources are the same for all profiles.
    pub fn attributes(&self) -> Vec<Attribute> {
        const STATUS: &str = "the name of the status in the device's interface";
        let mut rows = Vec::new();
        for number in self.numbers() {
            let behind = number.name;
            rows.push(number);
            let mut add = |name, value, source| {
                rows.push(Attribute {
                    name,
                    value,
                    source,
                })
            };
            match behind {
                "hw_ver" => {
                    add("fw_ver", self.firmware.to_owned(), OURS);
                    let bits = format!("{:#04x}", self.device_caps());
                    add("device_caps", bits, GENERATION);
                    for (name, bit) in DeviceCaps::all().iter_names() {
                        add(name, yes_or_no(self.caps.contains(bit)), GENERATION);
                    }
                }
                "DATA_POLLING_128" => {
                    add(
                        "COMP_CNTR",
                        yes_or_no(self.max_comp_counters > 0),
                        GENERATION,
                    );
                }
                "SQ_64_BIT_REQ_ID" => add(
                    "connected queue pairs",
                    yes_or_no(self.connected),
                    "no EFA has them; InfiniBand Architecture Specification, tag_matching.md of rdma-core",
                ),
                "inline_buf_size" => add(
                    "inline_buf_size_ex",
                    INLINE_SIZE_WIDE.to_string(),
                    "the layout of a work request",
                ),
                _ => {}
            }
        }
        let mut add = |name, value, source| {
            rows.push(Attribute {
                name,
                value,
                source,
            })
        };
        let RnrBackoff { first, longest } = self.rnr_backoff;
        add("RNR back-off", format!("{first:?}..{longest:?}"), OURS);
        add(
            "QPN reuse",
            self.qpn_reuse.to_string(),
            "rdma-core 63 and libfabric 2.6 count generations of each number",
        );
        let Statuses {
            unknown_queue_pair,
            wrong_qkey,
            unknown_key,
            outside_region,
            forbidden_access,
            unknown_peer,
        } = self.statuses;
        for (name, status) in [
            ("status of an unknown queue pair", unknown_queue_pair),
            ("status of a wrong Q-key", wrong_qkey),
            ("status of an unknown remote key", unknown_key),
            ("status outside of a region", outside_region),
            ("status of forbidden access", forbidden_access),
            ("status of an unknown peer", unknown_peer),
        ] {
            add(name, status.code().to_string(), STATUS);
        }
        rows
    }
}

fn hexadecimal(value: u32) -> String {
    format!("{value:#06x}")
}

fn yes_or_no(value: bool) -> String {
    String::from(if value { "yes" } else { "no" })
}

impl Default for Profile {
    fn default() -> Self {
        Profile::by_name(Profile::DEFAULT)
            .expect("the default profile is built in")
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_distinct_and_fit_the_formats() {
        let mut names = std::collections::HashSet::new();
        let mut parts = std::collections::HashSet::new();
        for profile in Profile::all() {
            assert!(names.insert(profile.name) && parts.insert(profile.part_id));
            assert_eq!(Profile::by_name(profile.name), Some(profile));
            assert_eq!(profile.clone().fit(), Vec::<String>::new());
        }
        assert_eq!(Profile::by_name("efa"), None);
    }

    #[test]
    fn the_default_can_read_and_write() {
        let caps = Profile::default().caps;
        assert!(caps.contains(DeviceCaps::RDMA_READ | DeviceCaps::RDMA_WRITE));
    }

    #[test]
    fn attributes_are_listed_once_with_one_source() {
        let mut names = std::collections::HashSet::new();
        for attribute in Profile::default().attributes() {
            assert!(names.insert(attribute.name), "{}", attribute.name);
            assert!(!attribute.value.is_empty() && !attribute.source.is_empty());
        }
        let sources = |profile: &Profile| -> Vec<_> {
            let attributes = profile.attributes().into_iter();
            attributes.map(|row| (row.name, row.source)).collect()
        };
        for profile in Profile::all() {
            assert_eq!(sources(profile), sources(&Profile::default()));
        }
    }

    #[test]
    fn rnr_waits_double_up_to_the_bound() {
        let backoff = RnrBackoff {
            first: Duration::from_micros(10),
            longest: Duration::from_micros(35),
        };
        let delays: Vec<_> = [0, 1, 2, 31, 32, u32::MAX]
            .map(|retry| backoff.delay(retry).as_micros())
            .to_vec();
        assert_eq!(delays, [10, 20, 35, 35, 35, 35]);
    }
}
