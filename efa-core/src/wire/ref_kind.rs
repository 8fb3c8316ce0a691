//! What a PEER_ERROR is about.

use core::fmt;

/// What [`PeerError::op_id`](super::PeerError::op_id) refers to. Unknown values are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PeerErrorRefKind(pub u32);

impl PeerErrorRefKind {
    /// An operation of the packet's receiver, in that endpoint's numbering.
    pub const OPERATION: PeerErrorRefKind = PeerErrorRefKind(0);
    /// The message id of a message of which some data has arrived.
    pub const MSG_ID: PeerErrorRefKind = PeerErrorRefKind(1);
    /// The message id of a message that will never arrive: the sequence goes on behind it.
    pub const MSG_ID_SKIP: PeerErrorRefKind = PeerErrorRefKind(2);

    /// The name of the value. `None` if it is not known.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            PeerErrorRefKind::OPERATION => Some("OPERATION"),
            PeerErrorRefKind::MSG_ID => Some("MSG_ID"),
            PeerErrorRefKind::MSG_ID_SKIP => Some("MSG_ID_SKIP"),
            _ => None,
        }
    }
}

impl fmt::Display for PeerErrorRefKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.name().unwrap_or("unknown"))
    }
}
