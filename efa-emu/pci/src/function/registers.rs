//! The registers: `efa_regs_defs.h`. Drivers only write them. To read a register, a driver sends a
//! request, and the device writes the value into the guest's memory.

use zerocopy::little_endian::{U16, U32};

use crate::admin::ENTRY;
use crate::layout::layout;

/// Declares the registers: `offset = name, meaning;`.
macro_rules! registers {
    ($($offset:literal = $name:ident, $meaning:literal;)*) => {
        /// A register of 32 bits.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u16)]
        pub enum Register {
            $(#[doc = $meaning] #[doc = "."] $name = $offset,)*
        }

        impl Register {
            /// All registers.
            pub const ALL: &'static [Register] = &[$(Register::$name),*];

            /// The register at an offset.
            pub fn at(offset: u64) -> Option<Register> {
                match offset {
                    $($offset => Some(Register::$name),)*
                    _ => None,
                }
            }
        }
    };
}

registers! {
    0x00 = Version, "version of the registers: minor in bits 7:0, major in 15:8";
    0x04 = ControllerVersion,
        "version of the device: subminor in bits 7:0, minor in 15:8, major in 23:16, implementation in 31:24";
    0x08 = Capabilities,
        "bit 0 contiguous queues, 5:1 time-out of a reset in units of 100 ms, 15:8 width of addresses, 19:16 time-out \
         of commands likewise";
    0x10 = AdminBaseLow, "address of the admin queue, bits 31:0";
    0x14 = AdminBaseHigh, "bits 63:32";
    0x18 = AdminCapabilities, "depth in bits 15:0, bytes of an entry in 31:16: the queue starts";
    0x20 = CompletionBaseLow, "address of the queue of completions, bits 31:0";
    0x24 = CompletionBaseHigh, "bits 63:32";
    0x28 = CompletionCapabilities,
        "depth in bits 15:0, bytes of an entry in 23:16, vector in 31:24: the queue starts";
    0x2c = AdminDoorbell, "counter of the next command";
    0x34 = AsyncCapabilities,
        "depth in bits 15:0, bytes of an entry in 23:16, vector in 31:24: the queue of asynchronous events starts";
    0x38 = AsyncBaseLow, "its address, bits 31:0";
    0x3c = AsyncBaseHigh, "bits 63:32";
    0x40 = AsyncDoorbell, "counter of the event that is read next, and whether an interrupt is wanted";
    0x4c = InterruptMask, "bit 0: no interrupts of the admin queue";
    0x54 = Control, "bit 0 reset, 1 restart of the admin queue, 31:28 the reason of a reset";
    0x58 = Status, "bit 0 ready, 3 reset in progress, 4 reset finished, 5 failed";
    0x5c = ReadRequest, "a register is to be read: id in bits 15:0, its offset in 31:16";
    0x60 = ReadResponseLow, "address of the answers, bits 31:0";
    0x64 = ReadResponseHigh, "bits 63:32";
    0x68 = EventDoorbell, "event queue in bits 15:0, bit 31: an interrupt is wanted";
}

layout! {
    /// The value of a register: `efa_admin_mmio_req_read_less_resp`.
    pub(super) ReadResponse, from 0 to 8;
    0 id: U16, "of the request";
    2 offset: U16, "of the register";
    4 value: U32, "its value";
}

/// The first version whose completions have checksums.
const VERSION: u32 = 0x0002;
const CONTROLLER_VERSION: u32 = 0x0000_0001;
/// A reset needs at most one second. Time-outs of commands are determined by the driver.
const RESET_TIMEOUT: u32 = 10;

bitflags::bitflags! {
    /// The bits of [`Register::Status`].
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) struct DeviceStatus: u32 {
        const READY = 1 << 0;
        const RESETTING = 1 << 3;
        const RESET_FINISHED = 1 << 4;
        const FAILED = 1 << 5;
    }
}

/// The value of a readable register.
pub(super) fn value(register: Register, status: DeviceStatus) -> u32 {
    match register {
        Register::Version => VERSION,
        Register::ControllerVersion => CONTROLLER_VERSION,
        Register::Capabilities => {
            let width = u32::from(crate::admin::ADDRESS_WIDTH);
            1 | RESET_TIMEOUT << 1 | width << 8
        }
        Register::Status => status.bits(),
        _ => 0,
    }
}

/// The parameters of a queue in its register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QueueShape {
    /// Entries, a power of two.
    pub(super) depth: u16,
    /// The vector of its interrupts.
    pub(super) vector: u8,
}

impl QueueShape {
    /// The value of [`Register::AdminCapabilities`].
    pub(super) fn of_requests(value: u32) -> Option<QueueShape> {
        QueueShape::new(value as u16, value >> 16, 0)
    }

    /// The value for the queues that the device writes.
    pub(super) fn of_answers(value: u32) -> Option<QueueShape> {
        QueueShape::new(value as u16, value >> 16 & 0xff, (value >> 24) as u8)
    }

    fn new(depth: u16, entry: u32, vector: u8) -> Option<QueueShape> {
        let is_possible = depth.is_power_of_two() && entry as usize == ENTRY;
        is_possible.then_some(QueueShape { depth, vector })
    }

    /// Length of the queue in bytes.
    pub(super) fn bytes(self) -> u64 {
        u64::from(self.depth) * ENTRY as u64
    }
}

/// An address that is written in two halves.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct SplitAddress(pub(super) u64);

impl SplitAddress {
    pub(super) fn set_low(&mut self, value: u32) {
        self.0 = self.0 >> 32 << 32 | u64::from(value);
    }

    pub(super) fn set_high(&mut self, value: u32) {
        self.0 = self.0 & 0xffff_ffff | u64::from(value) << 32;
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn answers_of_reads_have_these_bytes() {
        let response = ReadResponse {
            id: 0x0201.into(),
            offset: 0x0058.into(),
            value: 0x4443_4241.into(),
        };
        assert_eq!(response.as_bytes(), [1, 2, 0x58, 0, 0x41, 0x42, 0x43, 0x44]);
    }

    #[test]
    fn registers_that_are_read_have_these_values() {
        let status = DeviceStatus::READY | DeviceStatus::RESET_FINISHED;
        let value = |register| value(register, status);
        assert_eq!(value(Register::Version), 0x0000_0002);
        assert_eq!(value(Register::ControllerVersion), 0x0000_0001);
        assert_eq!(value(Register::Capabilities), 0x0000_3415);
        assert_eq!(value(Register::Status), 0x0000_0011);
        assert_eq!(value(Register::AdminBaseLow), 0);
    }

    #[test]
    fn offsets_name_one_register() {
        for register in Register::ALL {
            assert_eq!(Register::at(*register as u64), Some(*register));
        }
        let found = (0..0x100u64).filter(|offset| Register::at(*offset).is_some());
        assert_eq!(found.count(), Register::ALL.len());
    }

    #[test]
    fn queues_have_possible_shapes() {
        let shape = |depth, vector| Some(QueueShape { depth, vector });
        assert_eq!(QueueShape::of_requests(0x0040_0020), shape(32, 0));
        assert_eq!(QueueShape::of_answers(0x0340_0010), shape(16, 3));
        for value in [0, 0x0040_0000, 0x0040_0003, 0x0020_0020, 0xffff_ffff] {
            assert_eq!(QueueShape::of_requests(value), None, "{value:#x}");
        }
        let mut address = SplitAddress::default();
        address.set_high(0x0403_0201);
        address.set_low(0x1413_1211);
        address.set_high(0x2423_2221);
        assert_eq!(address.0, 0x2423_2221_1413_1211);
    }
}
