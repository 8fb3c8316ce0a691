//! The numbers that identify messages, operations and connections in packets.

use core::fmt;

use crate::address::Qkey;

/// The position of an RTM or RTA in the sequence from one endpoint to another. It starts at 0 and
/// wraps around (spec section 3.2, eager message, point 1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MsgId(pub u32);

impl MsgId {
    /// The next id in the sequence.
    pub const fn next(self) -> MsgId {
        MsgId(self.0.wrapping_add(1))
    }

    /// The distance of `self` ahead of `other`; negative if it is behind. Correct across the
    /// wrap-around as long as the two are less than 2^31 apart.
    pub const fn distance_from(self, other: MsgId) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }
}

/// An operation of the endpoint that sends the data, in that endpoint's own numbering. The peer
/// only echoes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SendId(pub u32);

/// An operation of the endpoint that receives the data, in that endpoint's own numbering. The peer
/// only echoes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RecvId(pub u32);

/// A connection id. It distinguishes endpoints that have used the same queue pair number one after
/// the other (spec section 4.4). Its value is the endpoint's Q-key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Connid(pub u32);

impl From<Qkey> for Connid {
    fn from(qkey: Qkey) -> Self {
        Connid(qkey.0)
    }
}

impl From<Connid> for Qkey {
    fn from(connid: Connid) -> Self {
        Qkey(connid.0)
    }
}

macro_rules! display_as_number {
    ($($name:ident: $format:literal),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    )*};
}
display_as_number!(MsgId: "{}", SendId: "{}", RecvId: "{}", Connid: "{:#010x}");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_ids_wrap_around() {
        assert_eq!(MsgId(u32::MAX).next(), MsgId(0));
        assert_eq!(MsgId(1).distance_from(MsgId(u32::MAX)), 2);
        assert_eq!(MsgId(u32::MAX).distance_from(MsgId(1)), -2);
    }
}
