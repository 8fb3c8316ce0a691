//! Captures of the emulated wire: writing and reading pcapng files for Wireshark.
//!
//! A device or network reports its requests to a [`Recorder`], which makes frames of them
//! ([`crate::frame`]) and passes these to a [`CaptureTap`]:
//!
//! * [`Writer`] writes to any `std::io::Write`, with one pcapng interface per emulated host: the
//!   deterministic network's captures.
//! * [`SharedFile`] appends to a file that several processes of one host write at once, each frame
//!   whole or not at all. [`Follower`] reads such a file while it grows.
//! * [`FileWriter`] and [`Writer::copy`] make one capture of several shared files: those of
//!   `efa-emu capture` and `efa-emu run --pcap`, the first as a file and the second for a pipe.
//!
//! [`Reader`] reads captures of either kind, and captures that other tools changed or wrote: pcapng
//! and the classic format, with any link layer with which Linux captures IPv6, compressed or not.
//! Times are nanoseconds since the Unix epoch, or since the start of a simulation.
//!
//! ```no_run
#![doc = include_str!("../examples/read_capture.rs")]
//! ```

mod block;
mod blocks;
mod compressed;
mod direction;
mod file;
pub mod file_size;
mod follow;
pub mod frame;
mod reader;
mod recorder;
mod shared;
mod writer;

use std::time::Duration;

use efa_wire::address::Gid;

pub use direction::Direction;
pub use file::FileWriter;
pub use follow::{FollowedFrame, Follower};
pub use reader::{CapturedFrame, CapturedInterface, ReadError, Reader, Truncation};
pub use recorder::{CapturePoint, Recorder, RequestData, Route};
pub use shared::{SharedFile, create_shared};
pub use writer::{RecordedFrame, Writer};

use crate::frame::Frame;

/// A snap length that is longer than any frame; the value that tcpdump uses for "everything".
pub const WHOLE_FRAMES: u32 = 262_144;

/// Identifies an interface of a capture by its index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InterfaceId(pub u32);

impl InterfaceId {
    /// The interface of a device that records into a separate file, independent of its number
    /// there.
    pub const FIRST: InterfaceId = InterfaceId(0);
}

/// An emulated host's device, as a capture describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// The name of the host, or of the device if the host has several.
    pub host: String,
    /// The name of the device's profile.
    pub profile: String,
    /// The device's GID; all zeroes if unknown, which is not declared.
    pub gid: Gid,
}

impl Interface {
    /// The interface of a host's device.
    pub fn new(host: impl Into<String>, profile: impl Into<String>, gid: Gid) -> Interface {
        Interface {
            host: host.into(),
            profile: profile.into(),
            gid,
        }
    }
}

/// The number of frames that an interface saw, and of those that the capture lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Frames seen, including those not recorded.
    pub seen: u64,
    /// Frames that could not be recorded.
    pub dropped: u64,
}

impl Counts {
    fn count(&mut self, recorded: bool) {
        self.seen += 1;
        self.dropped += u64::from(!recorded);
    }
}

/// Receives the frames of a capture.
///
/// Recording never fails for the recorded program: a tap that cannot store a frame counts it as
/// dropped and continues.
pub trait CaptureTap {
    /// Records that `interface` sent or received `frame` at `time`.
    fn frame(
        &mut self,
        interface: InterfaceId,
        time: Duration,
        direction: Direction,
        frame: &Frame<'_>,
    );

    /// As [`CaptureTap::frame`], for a frame with a foreign header format: its bytes from the
    /// Ethernet header on.
    fn raw(&mut self, interface: InterfaceId, time: Duration, direction: Direction, bytes: &[u8]);
}

impl<T: CaptureTap> CaptureTap for &mut T {
    fn frame(
        &mut self,
        interface: InterfaceId,
        time: Duration,
        direction: Direction,
        frame: &Frame<'_>,
    ) {
        (**self).frame(interface, time, direction, frame);
    }

    fn raw(&mut self, interface: InterfaceId, time: Duration, direction: Direction, bytes: &[u8]) {
        (**self).raw(interface, time, direction, bytes);
    }
}
