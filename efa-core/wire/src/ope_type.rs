//! The two sides of a message.

use core::fmt;

/// A side of a message, by the names and numbers of stock libfabric
/// ([`PeerError::emitter_ope_type`](super::PeerError::emitter_ope_type)). Unknown values are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct OpeType(pub u32);

impl OpeType {
    /// The side that sends the data.
    pub const TXE: OpeType = OpeType(1);
    /// The side that receives the data.
    pub const RXE: OpeType = OpeType(2);

    /// The name of the value. `None` if it is not known.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            OpeType::TXE => Some("TXE"),
            OpeType::RXE => Some("RXE"),
            _ => None,
        }
    }
}

impl fmt::Display for OpeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.name().unwrap_or("unknown"))
    }
}
