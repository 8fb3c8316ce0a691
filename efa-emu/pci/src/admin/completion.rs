//! Completions of commands: `efa_admin_acq_entry`.

use zerocopy::little_endian::U16;
use zerocopy::{Immutable, IntoBytes};

use super::ENTRY;
use crate::layout::layout;

/// The status of a command: `efa_admin_aq_completion_status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum AdminStatus {
    /// The command was executed.
    Success = 0,
    /// The device has no resources (`ENOMEM`).
    NoResources = 1,
    /// The opcode is unknown.
    BadOpcode = 2,
    /// The device does not support the command (`EOPNOTSUPP`).
    Unsupported = 3,
    /// The entry is not a valid command.
    MalformedRequest = 4,
    /// An argument is invalid (`EINVAL`).
    IllegalParameter = 5,
    /// The device has failed.
    Unknown = 6,
    /// Other objects still use the object.
    Busy = 7,
}

impl From<efa_device_model::device::Error> for AdminStatus {
    fn from(error: efa_device_model::device::Error) -> Self {
        use efa_device_model::device::Error;
        match error {
            Error::Exhausted(_) | Error::QueueFull(_) | Error::Staged(libc::ENOMEM) => {
                AdminStatus::NoResources
            }
            Error::Unsupported(_) | Error::Staged(libc::EOPNOTSUPP) => AdminStatus::Unsupported,
            Error::Invalid { .. } | Error::NotFound { .. } | Error::Staged(libc::EINVAL) => {
                AdminStatus::IllegalParameter
            }
            Error::Busy(_) => AdminStatus::Busy,
            Error::Removed | Error::Staged(_) => AdminStatus::Unknown,
        }
    }
}

impl From<efa_shm::EngineError> for AdminStatus {
    fn from(error: efa_shm::EngineError) -> Self {
        match error {
            efa_shm::EngineError::Device(error) => error.into(),
            efa_shm::EngineError::Fabric(_) => AdminStatus::Unknown,
        }
    }
}

impl From<efa_shm::FabricError> for AdminStatus {
    fn from(_: efa_shm::FabricError) -> Self {
        AdminStatus::Unknown
    }
}

layout! {
    /// The head of every completion: `efa_admin_acq_common_desc`.
    CompletionHead, from 0 to 8;
    0 id: U16, "the command's";
    2 status: u8, "how the command ended";
    3 flags: u8, "bit 0 phase";
    4 checksum: U16, "from version 0.2 of the device on";
    6 consumed: U16, "not used by the driver";
}

/// The part of a command that its completion repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestId(pub u16);

impl RequestId {
    /// The id of an entry of the admin queue. Bits outside of the id are returned unchanged.
    pub fn of(entry: &[u8; ENTRY]) -> RequestId {
        RequestId(u16::from_le_bytes([entry[0], entry[1]]))
    }
}

/// Offset of the data in a completion.
const DATA: usize = size_of::<CompletionHead>();

/// The data of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion([u8; ENTRY - DATA]);

impl Completion {
    /// No data.
    pub const EMPTY: Completion = Completion([0; ENTRY - DATA]);

    /// This data. Only the first 56 bytes are used.
    pub fn of(data: &(impl IntoBytes + Immutable)) -> Completion {
        let mut bytes = [0; ENTRY - DATA];
        for (to, from) in bytes.iter_mut().zip(data.as_bytes()) {
            *to = *from;
        }
        Completion(bytes)
    }

    /// The entry of a command's completion.
    pub fn entry(
        id: RequestId,
        outcome: Result<Completion, AdminStatus>,
        phase: bool,
    ) -> [u8; ENTRY] {
        let (status, Completion(data)) = match outcome {
            Ok(completion) => (AdminStatus::Success, completion),
            Err(status) => (status, Completion::EMPTY),
        };
        let mut entry = [0; ENTRY];
        entry[..2].copy_from_slice(&id.0.to_le_bytes());
        entry[2] = status as u8;
        entry[3] = u8::from(phase);
        entry[DATA..].copy_from_slice(&data);
        let checksum = checksum(&entry);
        entry[4..6].copy_from_slice(&checksum.to_le_bytes());
        entry
    }
}

/// CRC-16 with the reflected polynomial 0x8005, initially all ones and inverted at the end, of a
/// completion with a checksum of 0.
fn checksum(entry: &[u8; ENTRY]) -> u16 {
    const REFLECTED: u16 = 0xa001;
    let step = |crc: u16, byte: &u8| {
        (0..8).fold(crc ^ u16::from(*byte), |crc, _| match crc & 1 {
            0 => crc >> 1,
            _ => crc >> 1 ^ REFLECTED,
        })
    };
    !entry.iter().fold(u16::MAX, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_have_checksum_status_and_phase() {
        let entry = Completion::entry(
            RequestId(0x1234),
            Ok(Completion::of(&0x4443_4241u32.to_le_bytes())),
            true,
        );
        #[rustfmt::skip]
        let head = [
            0x34, 0x12,             // id
            0,                      // status
            1,                      // phase
        ];
        assert_eq!(entry[..4], head);
        assert_eq!(entry[6..12], [0, 0, 0x41, 0x42, 0x43, 0x44]);
        assert_eq!(entry[12..], [0; 52]);
        let mut without = entry;
        without[4..6].fill(0);
        assert_eq!(u16::from_le_bytes([entry[4], entry[5]]), checksum(&without));
        let failed = Completion::entry(RequestId(7), Err(AdminStatus::Busy), false);
        assert_eq!(failed[..4], [7, 0, 7, 0]);
    }

    #[test]
    fn the_checksum_is_that_of_crc_16_usb() {
        // The catalogue's check value of CRC-16/USB is 0xb4c8, for nine bytes. A table-driven
        // implementation continues it to 64 bytes.
        let mut entry = [0; ENTRY];
        entry[..9].copy_from_slice(b"123456789");
        let mut table = 0xb4c8u16 ^ 0xffff;
        for _ in 9..ENTRY {
            let mut low = table & 0xff;
            for _ in 0..8 {
                low = low >> 1 ^ (0xa001 * (low & 1));
            }
            table = table >> 8 ^ low;
        }
        assert_eq!(checksum(&entry), table ^ 0xffff);
    }

    #[test]
    fn errors_of_the_device_have_statuses() {
        use efa_device_model::device::Error;
        for (error, status) in [
            (Error::Exhausted("queue"), AdminStatus::NoResources),
            (Error::Staged(libc::ENOMEM), AdminStatus::NoResources),
            (Error::Unsupported("that"), AdminStatus::Unsupported),
            (Error::Busy("queue"), AdminStatus::Busy),
            (Error::Removed, AdminStatus::Unknown),
        ] {
            assert_eq!(AdminStatus::from(error), status, "{error}");
        }
    }
}
