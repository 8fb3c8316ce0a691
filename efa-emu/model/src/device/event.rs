//! What a device tells its owner by itself.

use efa_core::address::Qpn;

use super::ids::CqId;

/// Something that a device tells without being asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceEvent {
    /// A completion queue has an entry that its client wanted to be told of.
    Completion(CqId),
    /// A completion queue loses an entry: it was full when that was due, or somebody wants it so.
    CqError(CqId),
    /// A queue pair has failed: its queues made no sense, or somebody wants it so.
    QpFatal(Qpn),
    /// The device was removed.
    Fatal,
    /// The port has lost its link.
    PortError,
    /// The port has its link again.
    PortActive,
    /// The port's link has another speed.
    SpeedChange,
}

impl DeviceEvent {
    /// Whether it tells of this completion queue.
    pub(super) fn is_of_cq(self, cq: CqId) -> bool {
        matches!(self, DeviceEvent::Completion(of) | DeviceEvent::CqError(of) if of == cq)
    }
}
