//! The destination of a written header.

use crate::packet_type::TypeTraits;

/// A sink for a header that is written: for its bytes, their number, or the values for the base
/// header.
pub(crate) trait Output {
    fn bytes(&mut self, _bytes: &[u8]) {}
    fn zeroes(&mut self, _count: usize) {}
    /// Flags of the base header.
    fn flags(&mut self, _flags: u16) {}
    /// Traits of the packet type.
    fn traits(&mut self, _traits: TypeTraits) {}
}

/// Counts the bytes of a header.
pub(crate) struct Length(pub(crate) usize);

impl Output for Length {
    #[inline(always)]
    fn bytes(&mut self, bytes: &[u8]) {
        self.0 = self.0.saturating_add(bytes.len());
    }

    #[inline(always)]
    fn zeroes(&mut self, count: usize) {
        self.0 = self.0.saturating_add(count);
    }
}

/// Collects the values for the base header.
#[derive(Clone, Copy)]
pub(crate) struct BaseHeaderValues {
    /// Its flags, without the packet type's.
    pub(crate) flags: u16,
    /// The traits of the packet type.
    pub(crate) traits: TypeTraits,
}

impl Default for BaseHeaderValues {
    #[inline(always)]
    fn default() -> BaseHeaderValues {
        BaseHeaderValues {
            flags: 0,
            traits: TypeTraits::empty(),
        }
    }
}

impl Output for BaseHeaderValues {
    #[inline(always)]
    fn flags(&mut self, flags: u16) {
        self.flags |= flags;
    }

    #[inline(always)]
    fn traits(&mut self, traits: TypeTraits) {
        self.traits = self.traits.union(traits);
    }
}
