//! What a device tells its owner by itself.

use efa_core::address::Qpn;

use super::CqId;

/// Something that a device tells without being asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceEvent {
    /// A completion queue has an entry that its client wanted to be told of.
    Completion(CqId),
    /// A completion queue was full when another entry was due, which is lost.
    CqError(CqId),
    /// A queue pair has failed, because its queues made no sense.
    QpFatal(Qpn),
    /// The device was removed.
    Fatal,
    /// The port has lost its link.
    PortError,
    /// The port has its link again.
    PortActive,
}

impl DeviceEvent {
    /// Whether it tells of this completion queue.
    pub(super) fn is_of_cq(self, cq: CqId) -> bool {
        matches!(self, DeviceEvent::Completion(of) | DeviceEvent::CqError(of) if of == cq)
    }
}
