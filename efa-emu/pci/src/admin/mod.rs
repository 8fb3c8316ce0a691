//! The formats of the admin interface: commands, their completions, features, statistics and
//! events.
//!
//! Names, offsets and values are those of the kernel driver's `efa_admin_defs.h` and
//! `efa_admin_cmds_defs.h` (Linux 6.1 to 7.2). The responses are derived from the device's
//! [`Profile`](efa_device_model::profile::Profile) and counters, like those for programs on the
//! emulated verbs.

mod completion;
mod events;
mod features;
mod requests;
mod responses;

pub use completion::{AdminStatus, Completion, RequestId};
pub use events::{AsyncEvent, AsyncGroup, CompletionEvent};
pub(crate) use features::ADDRESS_WIDTH;
pub use features::{
    AsyncEvents, DeviceAttributes, EVENT_QUEUE_DEPTH, EVENT_QUEUES, EventQueues, Feature,
    HardwareHints, Network, QueueAttributes, WideQueueAttributes, async_events, device_attributes,
    event_queues, hardware_hints, network, queue_attributes, wide_queue_attributes,
};
pub use requests::{
    AllocPd, AllocUar, ControlBuffer, CreateAh, CreateCq, CreateEq, CreateQp, DeallocPd,
    DeallocUar, DeregMr, DestroyAh, DestroyCq, DestroyEq, DestroyQp, GetFeature, GetStats, Head,
    ModifyMask, ModifyQp, QueryQp, RegMr, Request, SetFeature, StatisticsType,
};
pub use responses::{
    AhMade, CqMade, Number, QpMade, QpState, RegionMade, basic, messages,
    network as network_statistics, reads, writes,
};
pub(crate) use responses::{state_number, state_of};

/// The length of an entry of the admin queues in bytes.
pub const ENTRY: usize = 64;
