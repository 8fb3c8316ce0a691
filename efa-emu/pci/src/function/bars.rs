//! The BARs of the function.

/// The regions of its base address registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Bars {
    /// Registers, and the MSI-X table.
    Registers = 0,
    /// Send queues.
    SendQueues = 2,
    /// Doorbells.
    Doorbells = 4,
}

impl Bars {
    /// The number of the region with doorbells.
    pub const DOORBELLS: u8 = Bars::Doorbells as u8;

    /// The region with this number.
    pub fn of(index: u32) -> Option<Bars> {
        [Bars::Registers, Bars::SendQueues, Bars::Doorbells]
            .into_iter()
            .find(|bar| *bar as u32 == index)
    }

    /// Length in bytes, a power of two.
    pub const fn length(self) -> u64 {
        match self {
            Bars::Registers => 16 << 10,
            // 256 of the longest queues. Shorter queues use less.
            Bars::SendQueues => 64 << 20,
            // A page for each queue pair and each completion queue.
            Bars::Doorbells => 16 << 20,
        }
    }

    /// The type bits of the base address register.
    pub const fn bits(self) -> u32 {
        const IS_64_BIT: u32 = 0b100;
        const PREFETCHABLE: u32 = 0b1000;
        match self {
            Bars::Registers => 0,
            Bars::SendQueues => IS_64_BIT | PREFETCHABLE,
            Bars::Doorbells => IS_64_BIT,
        }
    }
}

/// Number of MSI-X vectors: one for the admin queue, the others for event queues.
pub const MSIX_VECTORS: u16 = 32;

/// Offsets of the MSI-X tables in [`Bars::Registers`]. QEMU emulates their content.
pub(super) const MSIX_TABLE: u32 = 0x2000;
pub(super) const MSIX_PENDING: u32 = 0x3000;
