//! The direction of a frame.

/// The direction of a frame, seen from the host whose interface recorded it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// The host received it.
    Inbound,
    /// The host sent it.
    Outbound,
}
