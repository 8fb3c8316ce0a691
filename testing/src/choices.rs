//! Choices from the bytes of an input, for fuzz targets.

/// Takes bytes from the front; zeros when there are none left.
pub struct Choices<'a>(pub &'a [u8]);

impl Choices<'_> {
    /// Whether all bytes are taken.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// A number below the limit.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit.max(1)
    }

    /// A yes or no.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// The next 16 bits.
    pub fn half(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// The next 32 bits.
    pub fn word(&mut self) -> u32 {
        u32::from(self.half()) | u32::from(self.half()) << 16
    }

    /// The next 64 bits.
    pub fn long(&mut self) -> u64 {
        u64::from(self.word()) | u64::from(self.word()) << 32
    }

    /// A number near an interesting value, or any number.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            0 => 0,
            1 => 1,
            2 => 2,
            3 => 3,
            4 => u64::MAX,
            5 => 1 << 63,
            6 => self.long(),
            7 => u64::from(self.word()),
            other => u64::from(other),
        }
    }

    /// A length near one of a device's limits, or any.
    pub fn length(&mut self) -> u32 {
        match self.byte() {
            0 => 0,
            1 => 1,
            2 => 8 << 10,
            3 => (8 << 10) + 1,
            4 => 16 << 10,
            5 => u32::MAX,
            6 => self.word(),
            other => u32::from(other) * 16,
        }
    }
}
