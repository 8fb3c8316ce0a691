//! The interface between the preloaded library and the command `efa-tap`: files in the directory of
//! a run.
//!
//! A process has two files, named after its number and a serial number. `PID-N.ring` begins with a
//! [`RingHeader`]; from offset [`DATA`] on it has a [`Record`] with data for each posted request
//! and completion. `PID-N.objects` has an [`ObjectRecord`] for each device, address handle and
//! queue pair, which define the numbers in the records.
//!
//! The ring has multiple writers, the threads of the process, and one reader. A writer reserves
//! bytes by adding to [`RingHeader::head`], fills them, and stores the first word last, which was
//! zero. The reader reads records in order up to the first whose first word is zero, zeroes their
//! bytes, and moves [`RingHeader::tail`]. If the ring is full, the writer counts a lost record and
//! continues. Neither side ever waits.
//!
//! The record of an object contains the ring's head at that time: records from this position on may
//! refer to the object, and earlier ones refer to an older object with the same name.

use std::sync::atomic::{AtomicU32, AtomicU64};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The directory in which processes create their files.
pub(crate) const ENV_DIRECTORY: &str = "EFA_TAP_DIRECTORY";
/// Bytes of a ring's records: a power of two.
pub(crate) const ENV_RING: &str = "EFA_TAP_RING";
/// Maximum number of bytes that are recorded of a send's data.
pub(crate) const ENV_SEND_DATA: &str = "EFA_TAP_SEND_DATA";
/// RDMA operations of more bytes are recorded without their data.
pub(crate) const ENV_RDMA_DATA: &str = "EFA_TAP_RDMA_DATA";
/// Nanoseconds from the monotonic clock to the time since the Unix epoch, the same for all
/// processes of a run: their records stay in order when the machine's clock is set.
pub(crate) const ENV_CLOCK: &str = "EFA_TAP_CLOCK";
/// Set if the library must not write to standard error.
pub(crate) const ENV_QUIET: &str = "EFA_TAP_QUIET";

/// If this file exists in the directory, new processes start without recording.
pub(crate) const IDLE: &str = "idle";
/// Suffixes of the names of a process's files.
pub(crate) const RING: &str = ".ring";
/// As [`RING`].
pub(crate) const OBJECTS: &str = ".objects";

/// First word of a ring.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"efa-tap2");
/// The offset of the records.
pub(crate) const DATA: usize = 4096;
/// Records begin at multiples of this, in bytes.
pub(crate) const ALIGNMENT: usize = 8;

/// The header of a ring.
#[repr(C)]
pub(crate) struct RingHeader {
    pub(crate) magic: u64,
    /// Bytes of the records.
    pub(crate) capacity: u64,
    /// Odd while the process records; each change adds one, so that each recording has a different
    /// number.
    pub(crate) switch: AtomicU32,
    _apart: [u32; 27],
    /// The number of bytes that were ever reserved.
    pub(crate) head: AtomicU64,
    _from: [u64; 15],
    /// The total number of bytes that were read.
    pub(crate) tail: AtomicU64,
    _each_other: [u64; 15],
    /// Records for which there was no room.
    pub(crate) dropped: AtomicU64,
}

/// Types of records.
pub(crate) mod kind {
    /// No event: the rest of the ring before its end, or a request that was not posted.
    pub(crate) const VOID: u8 = 1;
    /// A send that is posted.
    pub(crate) const SEND: u8 = 2;
    /// A UD send that is posted.
    pub(crate) const DATAGRAM: u8 = 3;
    /// An RDMA read that is posted.
    pub(crate) const READ: u8 = 4;
    /// An RDMA write that is posted.
    pub(crate) const WRITE: u8 = 5;
    /// A send that arrived.
    pub(crate) const RECEIVED: u8 = 6;
    /// A UD send that arrived.
    pub(crate) const RECEIVED_DATAGRAM: u8 = 7;
    /// The immediate data of a peer's RDMA write arrived.
    pub(crate) const RECEIVED_WRITE: u8 = 8;
    /// A request has failed, or an RDMA read has completed.
    pub(crate) const COMPLETED: u8 = 9;
}

/// Bits of [`Record::flags`].
pub(crate) mod flag {
    /// There is immediate data.
    pub(crate) const IMMEDIATE: u8 = 1 << 0;
    /// [`super::Record::gid`] is the sender's.
    pub(crate) const GID: u8 = 1 << 1;
}

/// A record. The recorded data follows it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Record {
    /// Bytes of the record with its data. With the fields up to `body`, the first word.
    pub(crate) length: u32,
    /// One of [`kind`].
    pub(crate) kind: u8,
    /// Bits of [`flag`].
    pub(crate) flags: u8,
    pub(crate) reserved: u16,
    pub(crate) body: Body,
}

impl core::ops::Deref for Record {
    type Target = Body;

    fn deref(&self) -> &Body {
        &self.body
    }
}

/// The part of a record after its first word, which is written last.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Body {
    /// Nanoseconds since the Unix epoch.
    pub(crate) time: u64,
    pub(crate) wr_id: u64,
    /// The process's own queue pair.
    pub(crate) qpn: u32,
    /// The number of the process's device.
    pub(crate) device: u32,
    pub(crate) peer_qpn: u32,
    /// Of the queue pair that receives.
    pub(crate) qkey: u32,
    /// For requests: the address of the destination's handle. For receives: the number of the
    /// sender's handle.
    pub(crate) handle: u64,
    /// Bytes of the request's data.
    pub(crate) data_length: u32,
    /// Bytes of the data that follow the record.
    pub(crate) recorded: u32,
    pub(crate) immediate: u32,
    /// EFA's status of a completion.
    pub(crate) status: u32,
    pub(crate) remote_address: u64,
    pub(crate) remote_key: u32,
    /// The number of the request in its queue pair.
    pub(crate) sequence: u32,
    /// The sender, if [`flag::GID`] is set.
    pub(crate) gid: [u8; 16],
}

/// Types of object records.
pub(crate) mod object {
    /// A device: its name, GID, and MTU.
    pub(crate) const DEVICE: u32 = 1;
    /// An address handle, identified by its address: GID and number.
    pub(crate) const HANDLE: u32 = 2;
    /// A queue pair without requests, identified by its number.
    pub(crate) const QUEUE_PAIR: u32 = 3;
}

/// An object of a process.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ObjectRecord {
    /// The head of the ring at that time.
    pub(crate) position: u64,
    /// One of [`object`].
    pub(crate) kind: u32,
    /// The number of the device in this process.
    pub(crate) device: u32,
    /// The address of the handle.
    pub(crate) handle: u64,
    /// MTU, number of the handle, or number of the queue pair.
    pub(crate) number: u32,
    pub(crate) reserved: u32,
    pub(crate) gid: [u8; 16],
    pub(crate) name: [u8; 64],
}

/// The nanoseconds of a system clock.
#[inline]
pub(crate) fn clock(which: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure may be written.
    unsafe { libc::clock_gettime(which, &raw mut time) };
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

/// The current value for [`ENV_CLOCK`].
pub(crate) fn from_monotonic() -> u64 {
    clock(libc::CLOCK_REALTIME).wrapping_sub(clock(libc::CLOCK_MONOTONIC))
}

const _: () = {
    assert!(size_of::<Record>() == 96 && size_of::<Record>().is_multiple_of(ALIGNMENT));
    assert!(core::mem::offset_of!(Record, body) == size_of::<u64>());
    assert!(size_of::<RingHeader>() <= DATA);
    assert!(size_of::<ObjectRecord>() == 112);
};
