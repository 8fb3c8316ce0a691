//! Asynchronous events of a device.

use efa_core::address::Qpn;

use super::connected::SrqId;
use super::ids::CqId;

/// An asynchronous event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceEvent {
    /// A completion queue has an entry for which its client has requested an event.
    Completion(CqId),
    /// A completion queue lost an entry: it was full, or a rule stages it.
    CqError(CqId),
    /// A queue pair has failed: its queues were invalid, or a rule stages it.
    QpFatal(Qpn),
    /// A peer has accessed memory of this host through a connected queue pair without permission.
    QpAccessError(Qpn),
    /// A connected queue pair has received an invalid request.
    QpRequestError(Qpn),
    /// A failed connected queue pair consumes no more receives from its shared receive queue.
    QpLastReceive(Qpn),
    /// A shared receive queue has fewer receives than its limit.
    SrqLimit(SrqId),
    /// The device was removed.
    Fatal,
    /// The port has lost its link.
    PortError,
    /// The port's link is up again.
    PortActive,
    /// The speed of the port's link has changed.
    SpeedChange,
}

impl DeviceEvent {
    /// Whether the event belongs to this completion queue.
    pub(super) fn is_of_cq(self, cq: CqId) -> bool {
        matches!(self, DeviceEvent::Completion(of) | DeviceEvent::CqError(of) if of == cq)
    }
}
