//! Events: entries of the asynchronous event queue, and of event queues.

use zerocopy::little_endian::{U16, U32, U64};

use crate::layout::layout;

/// The type of an asynchronous event: `efa_admin_aenq_group`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum AsyncGroup {
    /// The device has failed.
    FatalError = 1,
    /// Keep-alive.
    KeepAlive = 4,
}

impl AsyncGroup {
    /// Bits of all groups that the driver supports, including warnings and notifications.
    pub const ALL: u32 = 0x1e;

    /// The group's bit.
    pub const fn bit(self) -> u32 {
        1 << self as u16
    }
}

layout! {
    /// `efa_admin_aenq_entry`.
    pub AsyncEvent, from 0 to 64;
    0 group: U16, "what it is about";
    2 syndrome: U16, "0";
    4 flags: u8, "bit 0 phase";
    5 reserved: [u8; 3], "0";
    8 timestamp: U64, "microseconds since the device started";
    16 data: [u8; 48], "0";
}

impl AsyncEvent {
    /// An event of this group.
    pub fn new(group: AsyncGroup, phase: bool, microseconds: u64) -> AsyncEvent {
        AsyncEvent {
            group: (group as u16).into(),
            syndrome: U16::ZERO,
            flags: u8::from(phase),
            reserved: [0; 3],
            timestamp: microseconds.into(),
            data: [0; 48],
        }
    }
}

layout! {
    /// `efa_admin_eqe` of a completion queue.
    pub CompletionEvent, from 0 to 16;
    0 common: U32, "bit 0 phase, 8:1 what it is about: 0";
    4 reserved: U32, "0";
    8 cq: U16, "completion queue";
    10 reserved2: [u8; 6], "0";
}

impl CompletionEvent {
    /// The length in words of 4 bytes.
    pub const WORDS: u8 = 4;

    /// The event for a completion queue with new entries.
    pub fn new(cq: u16, phase: bool) -> CompletionEvent {
        CompletionEvent {
            common: u32::from(phase).into(),
            reserved: U32::ZERO,
            cq: cq.into(),
            reserved2: [0; 6],
        }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn signs_of_life_have_these_bytes() {
        let event = AsyncEvent::new(AsyncGroup::KeepAlive, true, 0x0201);
        assert_eq!(
            event.as_bytes()[..16],
            [4, 0, 0, 0, 1, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(event.as_bytes()[16..], [0; 48]);
        assert_eq!(AsyncGroup::KeepAlive.bit(), 0x10);
    }

    #[test]
    fn events_of_completion_queues_have_these_bytes() {
        let bytes = [1, 0, 0, 0, 0, 0, 0, 0, 0x34, 0x12, 0, 0, 0, 0, 0, 0];
        assert_eq!(CompletionEvent::new(0x1234, true).as_bytes(), bytes);
        assert_eq!(CompletionEvent::new(0x1234, false).as_bytes()[0], 0);
    }
}
