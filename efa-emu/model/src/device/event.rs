//! Asynchronous events of a device.

use efa_core::address::Qpn;

use super::connected::SrqId;
use super::ids::CqId;

/// An asynchronous event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceEvent {
    /// A completion queue has an entry, and its client has asked for an event.
    Completion(CqId),
    /// A completion queue loses an entry: it was full when that was due, or a rule stages it.
    CqError(CqId),
    /// A queue pair has failed: its queues were invalid, or a rule stages it.
    QpFatal(Qpn),
    /// A peer has accessed memory of this host through a connected queue pair, and may not.
    QpAccessError(Qpn),
    /// A request of a connected queue pair's peer makes no sense.
    QpRequestError(Qpn),
    /// A connected queue pair that has failed takes no more receives from the queue that it shares.
    QpLastReceive(Qpn),
    /// A shared receive queue has fewer receives than its client has asked to be told of.
    SrqLimit(SrqId),
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
    /// Whether it is about this completion queue.
    pub(super) fn is_of_cq(self, cq: CqId) -> bool {
        matches!(self, DeviceEvent::Completion(of) | DeviceEvent::CqError(of) if of == cq)
    }
}
