//! Packet sequence numbers: 24 bits, compared modulo 2^24.

/// A packet sequence number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Psn(u32);

impl Psn {
    const MASK: u32 = 0x00ff_ffff;
    const SIGN: u32 = 0x0080_0000;

    /// The number with these lower 24 bits.
    pub const fn new(bits: u32) -> Psn {
        Psn(bits & Self::MASK)
    }

    /// The number's 24 bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The number `packets` later.
    pub const fn plus(self, packets: u32) -> Psn {
        Psn::new(self.0.wrapping_add(packets))
    }

    /// The number one earlier.
    pub const fn before(self) -> Psn {
        Psn::new(self.0.wrapping_sub(1))
    }

    /// The distance from `other` to this number; negative if this number is before `other`.
    pub const fn since(self, other: Psn) -> i32 {
        let difference = self.0.wrapping_sub(other.0) & Self::MASK;
        if difference & Self::SIGN == 0 {
            difference as i32
        } else {
            difference as i32 - (Self::MASK as i32 + 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_around_the_wrap() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).before(), last);
        assert_eq!(Psn::new(2).since(last), 3);
        assert_eq!(last.since(Psn::new(2)), -3);
        assert_eq!(Psn::new(0x7f_ffff).since(Psn::new(0)), 0x7f_ffff);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -0x80_0000);
        assert_eq!(Psn::new(0xff00_0001).bits(), 1);
    }
}
