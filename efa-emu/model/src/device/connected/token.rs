//! Tokens of a connected queue pair's packets and timers.

use efa_core::address::Qpn;

use super::psn::Psn;
use crate::link::Token;

/// The bits above the queue pair number in timers of connected queue pairs and in the tokens of
/// their packets. Other requests have a slot index there, which is never that large.
const CONNECTED: u64 = 0xffff_0000;

/// The token of a connected queue pair's timers.
#[inline]
pub(super) fn timer_token(qpn: Qpn) -> u64 {
    CONNECTED | u64::from(qpn.0)
}

/// The queue pair of a timer or of a packet, if it is a connected one.
pub(in crate::device) fn timer_of(token: u64) -> Option<Qpn> {
    (token & CONNECTED == CONNECTED).then_some(Qpn(token as u16))
}

/// The bits of a connection's number that tokens contain.
pub(super) const CONNECTION_BITS: u8 = 0x7f;

/// The content of a packet's token, besides the queue pair number.
pub(super) struct PacketToken {
    pub(super) psn: Psn,
    pub(super) is_answer: bool,
    pub(super) connection: u8,
}

impl PacketToken {
    #[inline]
    pub(super) fn token(&self, qpn: Qpn) -> Token {
        let upper = self.psn.bits() | u32::from(self.is_answer) << 24;
        let upper = upper | u32::from(self.connection) << 25;
        Token(u64::from(upper) << 32 | timer_token(qpn))
    }

    #[inline]
    pub(super) fn of(token: Token) -> PacketToken {
        let upper = (token.0 >> 32) as u32;
        PacketToken {
            psn: Psn::new(upper),
            is_answer: upper & 1 << 24 != 0,
            connection: (upper >> 25) as u8,
        }
    }
}
