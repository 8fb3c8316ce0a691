//! Captures of the emulated wire: pcapng files that Wireshark opens, written and read.
//!
//! A device or network tells a [`Recorder`] what its requests do; the recorder makes frames of it
//! ([`crate::frame`]) and hands them to a [`CaptureTap`]:
//!
//! * [`Writer`] writes to any `std::io::Write`, with one pcapng interface per emulated host: the
//!   deterministic network's captures.
//! * [`SharedFile`] appends to a file that several processes of one host write at once, each frame
//!   whole or not at all. [`Follower`] reads such a file while it grows.
//! * [`FileWriter`] and [`Writer::copy`] make one capture of several shared files: those of
//!   `efa-emu capture` and `efa-emu run --pcap`, the one as a file and the other for a pipe.
//!
//! [`Reader`] reads captures of either kind, and what other tools made of them or wrote: pcapng and
//! the classic format, with any link layer that Linux captures IPv6 with, compressed or not. Times
//! are nanoseconds since the Unix epoch, or since the start of a simulation.
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
mod link;
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
pub use recorder::{Moment, Recorder, RequestData, Route};
pub use shared::{SharedFile, create_shared};
pub use writer::{RecordedFrame, Writer};

use crate::frame::Frame;

/// A snap length that is longer than any frame; the value that tcpdump uses for "everything".
pub const WHOLE_FRAMES: u32 = 262_144;

/// Names an interface of a capture: its index among the capture's interfaces.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InterfaceId(pub u32);

impl InterfaceId {
    /// The interface of a device that records for itself, whichever it is in the file.
    pub const FIRST: InterfaceId = InterfaceId(0);
}

/// An emulated host's device, as a capture describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// The name of the host, or of the device if the host has several.
    pub host: String,
    /// The name of the device's profile.
    pub profile: String,
    /// The device's GID; all zeroes if it is not known, and then not declared.
    pub gid: Gid,
}

/// How many frames an interface saw, and how many of them the capture lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Frames seen, those not recorded included.
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

/// Takes the frames that a capture consists of.
///
/// Recording never fails for the recorded program: a tap that cannot store a frame counts it as
/// dropped and goes on.
pub trait CaptureTap {
    /// Records that `interface` sent or received `frame` at `time`.
    fn frame(
        &mut self,
        interface: InterfaceId,
        time: Duration,
        direction: Direction,
        frame: &Frame<'_>,
    );

    /// As [`CaptureTap::frame`], of a frame that has other headers than ours: its bytes from the
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
